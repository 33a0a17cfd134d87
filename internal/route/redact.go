package route

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"sync"
)

// redactedPrefix marks what has taken a value's place.
const redactedPrefix = "redacted:hmac-sha256:"

// hasher makes the text that stands for a redacted value: the first 64 bits of the
// HMAC-SHA256 of the value's JSON, in hexadecimal. Equal values have equal text, so
// that a change stays visible; without the key not even a short value can be found
// by trying.
type hasher struct {
	pool sync.Pool // of *keyed
}

type keyed struct {
	mac hash.Hash
	sum [sha256.Size]byte
}

func newHasher(key []byte) *hasher {
	key = append([]byte(nil), key...)
	return &hasher{pool: sync.Pool{New: func() any {
		return &keyed{mac: hmac.New(sha256.New, key)}
	}}}
}

// replace appends the JSON string that stands for value.
func (h *hasher) replace(dst, value []byte) []byte {
	k := h.pool.Get().(*keyed)
	defer h.pool.Put(k)
	k.mac.Reset()
	k.mac.Write(value)
	sum := k.mac.Sum(k.sum[:0])
	dst = append(dst, '"')
	dst = append(dst, redactedPrefix...)
	dst = hex.AppendEncode(dst, sum[:8])
	return append(dst, '"')
}

// replaceManifests replaces a value whose text holds a Secret's manifest and copies
// every other.
func (h *hasher) replaceManifests(dst, value []byte) []byte {
	if holdsSecret(value) {
		return h.replace(dst, value)
	}
	return append(dst, value...)
}
