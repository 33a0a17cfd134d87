package redact

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"sync"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// redactedPrefix marks a replaced value.
const redactedPrefix = "redacted:hmac-sha256:"

// hashDigits is the number of hexadecimal digits after the prefix.
const hashDigits = 16

// hasher replaces a value by the first 64 bits of the HMAC-SHA256 of its JSON, in
// hexadecimal. Equal values have equal hashes, so a change stays visible. Without the
// key even a short value cannot be found by trial.
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

// replace appends the JSON string that replaces value. A hash is copied, so that
// redacting twice gives the same result.
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

// isRedacted reports whether a JSON value is a result of replace.
func isRedacted(value []byte) bool {
	digits, ok := bytes.CutPrefix(value, []byte(`"`+redactedPrefix))
	return ok && len(digits) == hashDigits+1 && digits[hashDigits] == '"' &&
		len(bytes.Trim(digits[:hashDigits], "0123456789abcdef")) == 0
}

// replaceManifests replaces a value whose text contains a Secret's manifest and copies
// every other value.
func (h *hasher) replaceManifests(dst, value []byte) []byte {
	if holdsSecret(value) {
		return h.replace(dst, value)
	}
	return append(dst, value...)
}

// holdsSecret reports whether a JSON value's text contains the manifest of a Secret
// with values: JSON or YAML, complete or truncated, plain or quoted within other JSON.
// It searches for a member `kind` with the value Secret and a member `data` or
// `stringData`. False positives are accepted.
func holdsSecret(value []byte) bool {
	if value[0] == '"' && bytes.IndexByte(value, '\\') >= 0 {
		value = []byte(rawjson.Unquote(value))
	}
	if !bytes.Contains(value, []byte("Secret")) {
		return false
	}
	plain := unquoted(value)
	return hasMember(plain, "kind", "Secret") && (hasMember(plain, "data", "") || hasMember(plain, "stringData", ""))
}

// unquoted removes quotes, blanks and escapes, so that a member reads `key:value` in
// every notation. An escaped \n, \r or \t becomes a newline.
func unquoted(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"', '\'', ' ', '\t', '\r':
		case '\\':
			for i+1 < len(text) && text[i+1] == '\\' {
				i++
			}
			if i+1 < len(text) && (text[i+1] == 'n' || text[i+1] == 't' || text[i+1] == 'r') {
				i++
				out = append(out, '\n')
			}
		default:
			out = append(out, c)
		}
	}
	return out
}

// hasMember searches for key:value that is not part of longer words. The empty value
// matches any.
func hasMember(text []byte, key, value string) bool {
	member := []byte(key + ":" + value)
	for at := 0; ; {
		i := bytes.Index(text[at:], member)
		if i < 0 {
			return false
		}
		start, end := at+i, at+i+len(member)
		if (start == 0 || !isWord(text[start-1])) && (value == "" || end == len(text) || !isWord(text[end])) {
			return true
		}
		at = start + 1
	}
}

func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
}
