package compact

import (
	"slices"
	"unicode/utf8"
)

// insertType puts kind and apiVersion, as far as they are not empty, in front of the members of the object at dst[at:].
func insertType(dst []byte, at int, apiVersion, kind string) []byte {
	if apiVersion == "" && kind == "" {
		return dst
	}
	var space [128]byte
	head := space[:0]
	if kind != "" {
		head = appendString(append(head, `"kind":`...), kind)
		head = append(head, ',')
	}
	if apiVersion != "" {
		head = appendString(append(head, `"apiVersion":`...), apiVersion)
		head = append(head, ',')
	}
	if first := skipSpace(dst, at+1); dst[first] == '}' {
		head = head[:len(head)-1]
	}
	return slices.Insert(dst, at+1, head...)
}

// appendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD, as encoding/json has it.
func appendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			dst = append(dst, c)
		default:
			r, size := utf8.DecodeRuneInString(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += size
			continue
		}
		i++
	}
	return append(dst, '"')
}
