package route

import (
	"bytes"
	"encoding/json"
)

// holdsSecret tells whether a JSON value's text contains something written like a
// Secret with values: JSON or YAML, whole or cut off, bare or quoted within other
// JSON. It looks for a member `kind` of the value Secret and a member `data` or
// `stringData`, and would rather see one too many.
func holdsSecret(value []byte) bool {
	if bytes.IndexByte(value, '\\') >= 0 {
		var text string
		if json.Unmarshal(value, &text) == nil {
			value = []byte(text)
		}
	}
	if !bytes.Contains(value, []byte("Secret")) {
		return false
	}
	plain := unquoted(value)
	return hasMember(plain, "kind", "Secret") && (hasMember(plain, "data", "") || hasMember(plain, "stringData", ""))
}

// unquoted is the text without quotes, blanks and escapes, so that a member reads
// `key:value` in whatever notation; what an escape stood for is a line's end.
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

// hasMember looks for key:value with nothing of a longer word on either side; the
// empty value stands for any.
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
