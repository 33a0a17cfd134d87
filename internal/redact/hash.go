package redact

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// redactedPrefix marks a replaced value.
const redactedPrefix = "redacted:hmac-sha256:"

// hashDigits is the number of hexadecimal digits after the prefix.
const hashDigits = 16

// MinKey is the minimum length of a redaction key in bytes.
const MinKey = 16

// KeyID identifies a redaction key.
func KeyID(key []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("id of the redaction key"))
	return hex.EncodeToString(mac.Sum(nil)[:6])
}

// hasher replaces a value by the first 64 bits of an HMAC-SHA256, in hexadecimal, of
// the resource, the namespace and name of the object, the path of the value and its JSON.
// So a change stays visible, and equal values of two objects, or of two keys of one, have
// different hashes: a guess that is hashed in another place proves nothing.
// Without the key even a short value cannot be found by trial.
type hasher struct {
	resource string
	hides    *rawjson.Editor // of exposed Secrets: what hides some of their values
	pool     sync.Pool       // of *keyed
}

type keyed struct {
	mac  hash.Hash
	sum  [sha256.Size]byte
	path []byte
}

func newHasher(gr schema.GroupResource, key []byte) *hasher {
	key = bytes.Clone(key)
	return &hasher{resource: gr.String(), pool: sync.Pool{New: func() any {
		return &keyed{mac: hmac.New(sha256.New, key)}
	}}}
}

// replace appends the JSON string that replaces value. A hash is copied, so that
// redacting twice gives the same result.
func (h *hasher) replace(dst, value []byte, at *rawjson.Place) []byte {
	if isRedacted(value) {
		return append(dst, value...)
	}
	k := h.pool.Get().(*keyed)
	defer h.pool.Put(k)
	k.mac.Reset()
	namespace, name := at.Of()
	k.path = append(binary.AppendUvarint(k.path[:0], uint64(len(h.resource))), h.resource...)
	k.path = append(binary.AppendUvarint(k.path, uint64(len(namespace))), namespace...)
	k.path = append(binary.AppendUvarint(k.path, uint64(len(name))), name...)
	k.mac.Write(append(at.AppendPath(k.path), 0)) // no path has a zero byte
	k.mac.Write(value)
	sum := k.mac.Sum(k.sum[:0])
	dst = append(dst, '"')
	dst = append(dst, redactedPrefix...)
	dst = hex.AppendEncode(dst, sum[:hashDigits/2])
	return append(dst, '"')
}

// isRedacted reports whether a JSON value is a result of replace.
func isRedacted(value []byte) bool {
	digits, ok := bytes.CutPrefix(value, []byte(`"`+redactedPrefix))
	return ok && len(digits) == hashDigits+1 && digits[hashDigits] == '"' &&
		len(bytes.Trim(digits[:hashDigits], "0123456789abcdef")) == 0
}
