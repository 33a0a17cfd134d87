package route

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"sync"
)

// redactedPrefix marks what has taken a value's place.
const redactedPrefix = "redacted:hmac-sha256:"

// hashDigits is how many hexadecimal digits follow the prefix.
const hashDigits = 16

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

// replace appends the JSON string that stands for value. A value that is such a text
// stays as it is, so that what was redacted once is the same after a second time.
func (h *hasher) replace(dst, value []byte) []byte {
	if isRedacted(value) {
		return append(dst, value...)
	}
	k := h.pool.Get().(*keyed)
	defer h.pool.Put(k)
	k.mac.Reset()
	k.mac.Write(value)
	sum := k.mac.Sum(k.sum[:0])
	dst = append(dst, '"')
	dst = append(dst, redactedPrefix...)
	dst = hex.AppendEncode(dst, sum[:hashDigits/2])
	return append(dst, '"')
}

// isRedacted reports whether a JSON value is exactly what replace makes.
func isRedacted(value []byte) bool {
	digits, ok := bytes.CutPrefix(value, []byte(`"`+redactedPrefix))
	if !ok || len(digits) != hashDigits+1 || digits[hashDigits] != '"' {
		return false
	}
	for _, c := range digits[:hashDigits] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// replaceManifests replaces a value whose text holds a Secret's manifest and copies
// every other.
func (h *hasher) replaceManifests(dst, value []byte) []byte {
	if holdsSecret(value) {
		return h.replace(dst, value)
	}
	return append(dst, value...)
}
