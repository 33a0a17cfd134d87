package rawjson

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is the maximum nesting of arrays and objects, as in encoding/json.
const maxDepth = 10_000

// SyntaxError reports JSON that is invalid or truncated.
type SyntaxError struct {
	Offset int // of the first invalid byte, or the length of truncated input
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("rawjson: not valid JSON at byte %d", e.Offset)
}

// The functions below walk JSON by index. They return the index after the part they
// read, or ^i (always negative) if byte i is invalid; i is len(b) if the input is
// truncated. Plain functions over ints keep the walk in registers.

func syntaxError(bad int) error {
	return &SyntaxError{Offset: ^bad}
}

// skipSpace returns the index of the first byte at or after i that is not white
// space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// endOfInput checks that only white space follows i.
func endOfInput(b []byte, i int) int {
	if i = skipSpace(b, i); i < len(b) {
		return ^i
	}
	return i
}

const (
	eachByte = 0x0101010101010101
	highBits = 0x8080808080808080
)

// skipString reads a string whose opening quote is at i-1.
func skipString(b []byte, i int) int {
	for {
		// Eight bytes at a time. A byte that is below 0x21 with its second bit
		// flipped is a quote or a control character; the other test finds
		// backslashes. Borrows cause false hits only above the lowest true hit, which
		// is the one used.
		for i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			flipped, slash := w^2*eachByte, w^'\\'*eachByte
			hits := ((flipped-0x21*eachByte)&^flipped | (slash-eachByte)&^slash) & highBits
			if hits != 0 {
				i += bits.TrailingZeros64(hits) >> 3
				if b[i] == '"' {
					return i + 1
				}
				break
			}
			i += 8
		}
		if i >= len(b) {
			return ^len(b)
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			if i = skipEscape(b, i+1); i < 0 {
				return i
			}
		case c < ' ':
			return ^i
		default:
			i++
		}
	}
}

// skipEscape reads what follows a backslash at i-1.
func skipEscape(b []byte, i int) int {
	if i >= len(b) {
		return ^len(b)
	}
	switch b[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1
	case 'u':
		for range 4 {
			if i++; i >= len(b) {
				return ^len(b)
			}
			if _, ok := hexDigit(b[i]); !ok {
				return ^i
			}
		}
		return i + 1
	}
	return ^i
}

func hexDigit(c byte) (rune, bool) {
	switch {
	case '0' <= c && c <= '9':
		return rune(c - '0'), true
	case 'a' <= c && c <= 'f':
		return rune(c-'a') + 10, true
	case 'A' <= c && c <= 'F':
		return rune(c-'A') + 10, true
	}
	return 0, false
}

func skipNumber(b []byte, i int) int {
	if b[i] == '-' {
		i++
	}
	switch {
	case i >= len(b):
		return ^len(b)
	case b[i] == '0':
		i++
	default:
		if i = skipDigits(b, i); i < 0 {
			return i
		}
	}
	if i < len(b) && b[i] == '.' {
		if i = skipDigits(b, i+1); i < 0 {
			return i
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return skipDigits(b, i)
	}
	return i
}

func skipDigits(b []byte, i int) int {
	start := i
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	if i == start {
		return ^i
	}
	return i
}

func skipLiteral(b []byte, i int, literal string) int {
	for j := range len(literal) {
		if i+j >= len(b) {
			return ^len(b)
		}
		if b[i+j] != literal[j] {
			return ^(i + j)
		}
	}
	return i + len(literal)
}

func skipScalar(b []byte, i int) int {
	if i >= len(b) {
		return ^len(b)
	}
	switch c := b[i]; {
	case c == '"':
		return skipString(b, i+1)
	case c == '-' || '0' <= c && c <= '9':
		return skipNumber(b, i)
	case c == 't':
		return skipLiteral(b, i, "true")
	case c == 'f':
		return skipLiteral(b, i, "false")
	case c == 'n':
		return skipLiteral(b, i, "null")
	}
	return ^i
}

// skipValue reads and validates the value that starts at i, without white space
// before it. It does not recurse per level: the kinds of up to 64 open containers
// are the bits of one word (1 = object), and only every 64th level is a call. depth
// is the number of open containers around the value.
func skipValue(b []byte, i, depth int) int {
	if i >= len(b) {
		return ^len(b)
	}
	if b[i] != '{' && b[i] != '[' {
		return skipScalar(b, i)
	}
	var kinds uint64
	open := 0
	for {
		// i is at the first byte of a value.
		if i >= len(b) {
			return ^len(b)
		}
		switch c := b[i]; c {
		case '"':
			i = skipString(b, i+1)
		case '{', '[':
			if depth+open >= maxDepth {
				return ^i
			}
			if open == 64 {
				i = skipValue(b, i, depth+open)
				break
			}
			if i = skipSpace(b, i+1); i >= len(b) {
				return ^len(b)
			}
			if b[i] == c+2 { // '}' and ']' are two after their opening byte
				i++
				break
			}
			kinds <<= 1
			open++
			if c == '{' {
				kinds |= 1
				if i = skipKey(b, i); i < 0 {
					return i
				}
			}
			continue
		default:
			i = skipScalar(b, i)
		}
		if i < 0 {
			return i
		}
		// The value has ended. Close the containers that end here, then read the next value.
		for {
			if open == 0 {
				return i
			}
			if i < len(b) && b[i] <= ' ' {
				i = skipSpace(b, i)
			}
			if i >= len(b) {
				return ^len(b)
			}
			object := kinds&1 == 1
			if b[i] == ',' {
				if i++; i < len(b) && b[i] <= ' ' {
					i = skipSpace(b, i)
				}
				if object {
					if i = skipKey(b, i); i < 0 {
						return i
					}
				}
				break
			}
			if object && b[i] != '}' || !object && b[i] != ']' {
				return ^i
			}
			i++
			open--
			kinds >>= 1
		}
	}
}

// skipKey reads `"key":` with surrounding white space, up to the first byte of the
// value.
func skipKey(b []byte, i int) int {
	if i >= len(b) {
		return ^len(b)
	}
	if b[i] != '"' {
		return ^i
	}
	if i = skipString(b, i+1); i < 0 {
		return i
	}
	if i+1 < len(b) && b[i] == ':' && b[i+1] > ' ' {
		return i + 1
	}
	return skipColon(b, i)
}

func skipColon(b []byte, i int) int {
	if i = skipSpace(b, i); i >= len(b) {
		return ^len(b)
	}
	if b[i] != ':' {
		return ^i
	}
	return skipSpace(b, i+1)
}

// readKey is skipKey and returns the unescaped key.
func readKey(b []byte, i int) (key []byte, next int) {
	if i >= len(b) {
		return nil, ^len(b)
	}
	if b[i] != '"' {
		return nil, ^i
	}
	next = skipString(b, i+1)
	if next < 0 {
		return nil, next
	}
	return unescape(b[i+1 : next-1]), skipColon(b, next)
}

// unescape returns the text of the content of a valid JSON string: s itself if it
// contains no escapes and only ASCII, otherwise a copy. U+FFFD replaces lone
// surrogates and bytes that are not UTF-8, as in encoding/json.
func unescape(s []byte) []byte {
	plain := 0
	for plain < len(s) && s[plain] != '\\' && s[plain] < utf8.RuneSelf {
		plain++
	}
	if plain == len(s) {
		return s
	}
	out := make([]byte, 0, len(s)+utf8.UTFMax)
	for i := 0; i < len(s); {
		if s[i] == '\\' {
			var r rune
			r, i = readEscape(s, i+1)
			out = utf8.AppendRune(out, r)
			continue
		}
		r, size := utf8.DecodeRune(s[i:])
		out = utf8.AppendRune(out, r)
		i += size
	}
	return out
}

// readEscape returns the character of a valid escape whose backslash is at i-1, and
// the index after it.
func readEscape(s []byte, i int) (rune, int) {
	if i == len(s) {
		return utf8.RuneError, i
	}
	switch s[i] {
	case 'b':
		return '\b', i + 1
	case 'f':
		return '\f', i + 1
	case 'n':
		return '\n', i + 1
	case 'r':
		return '\r', i + 1
	case 't':
		return '\t', i + 1
	case 'u':
		r := readHex(s[i+1:])
		i += 5
		if !utf16.IsSurrogate(r) {
			return r, i
		}
		if i+6 <= len(s) && s[i] == '\\' && s[i+1] == 'u' {
			if pair := utf16.DecodeRune(r, readHex(s[i+2:])); pair != utf8.RuneError {
				return pair, i + 6
			}
		}
		return utf8.RuneError, i
	}
	return rune(s[i]), i + 1
}

func readHex(s []byte) rune {
	var r rune
	for _, c := range s[:min(4, len(s))] {
		d, _ := hexDigit(c)
		r = r<<4 | d
	}
	return r
}

// Unquote returns the text of a JSON string, "" for any other value. It does not check that the
// JSON is valid.
func Unquote(value []byte) string {
	if len(value) < 2 || value[0] != '"' {
		return ""
	}
	return string(unescape(value[1 : len(value)-1]))
}

// AppendString appends s as a JSON string. U+FFFD replaces bytes that are not
// UTF-8, as in encoding/json.
func AppendString(dst []byte, s string) []byte {
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
