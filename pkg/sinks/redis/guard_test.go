package redis

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"testing"
)

// FuzzGuard gives the guard what a server sends, in two parts: it refuses the same as of one part, and what it passes is what
// the client reads, without a length or a depth that the client does not survive.
func FuzzGuard(f *testing.F) {
	for _, seed := range []string{
		hello, "*2\r\n$3\r\nabc\r\n*1\r\n:-7\r\n", "$-1\r\n*-1\r\n_\r\n#t\r\n,1.5\r\n(99\r\n", ">2\r\n+a\r\n%1\r\n+b\r\n*0\r\n", "!3\r\nERR\r\n=5\r\ntxt:a\r\n~0\r\n",
		"$5\r\n\r\n\r\n:\r\n", "+a\rb\r\n", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", "$0007\r\n1234567\r\n", "$+7\r\n", "*131073\r\n", "_x\r\n", "_x", "#tx", "$3\r\nabcxy", "+", "$3\r\n", ":12\n", "+" + strings.Repeat("x", maxLine),
	} {
		f.Add([]byte(seed), 7)
	}
	f.Fuzz(func(t *testing.T, sent []byte, cut int) {
		cut = max(0, min(cut, len(sent)))
		taken := func(parts ...[]byte) (messages []message, ok bool) {
			s := scanner{limits: limits{bytes: maxAnswer, elements: maxElements, depth: maxDepth}}
			for _, part := range parts {
				if !s.take(part, func(m *message) bool { messages = append(messages, *m); return true }) {
					return messages, false
				}
			}
			return messages, true
		}
		whole, once := taken(sent)
		parts, twice := taken(sent[:cut], sent[cut:])
		if once != twice || len(whole) != len(parts) {
			t.Fatalf("%d messages as a whole, %t; %d in two parts, %t", len(whole), once, len(parts), twice)
		}
		if !once {
			return
		}
		r := reader{t: t, rest: sent}
		for _, m := range whole {
			read, ok := r.read()
			if !ok || read.kind != m.kind || read.count != m.count || !strings.HasPrefix(read.text, m.text) || read.words != m.words {
				t.Fatalf("the client reads %+v, the guard %+v", read, m)
			}
		}
		if m, ok := r.read(); ok {
			t.Fatalf("the client reads %+v, the guard nothing", m)
		}
	})
}

// reader reads as the client does.
type reader struct {
	t    *testing.T
	rest []byte
}

// errMore is the panic of a reader that has not all of a message.
var errMore = errors.New("more is to come")

// read returns the next message, if it is all there.
func (r *reader) read() (m message, ok bool) {
	defer func() {
		if v := recover(); v != nil && v != errMore { //nolint:errorlint // the value
			panic(v)
		}
	}()
	m = r.next(0)
	return m, true
}

func (r *reader) bytes(n int) (b []byte) {
	if n > len(r.rest) {
		panic(errMore)
	}
	b, r.rest = r.rest[:n], r.rest[n:]
	return b
}

func (r *reader) line() string {
	line := r.bytes(bytes.IndexByte(append(bytes.Clone(r.rest), '\n'), '\n') + 1)
	return string(line[:len(line)-2])
}

func (r *reader) next(depth int) (m message) {
	if depth > maxDepth {
		r.t.Fatal("too deep")
	}
	m.kind = r.bytes(1)[0]
	switch m.kind {
	case '+', '-', ',', '(':
		m.text = r.line()
	case ':':
		r.line()
	case '_':
		r.bytes(2)
	case '#':
		r.bytes(3)
	case '$', '!', '=':
		n := r.length()
		if n < 0 {
			return message{kind: '_'}
		}
		m.text = string(r.bytes(n))
		r.bytes(2)
	default:
		n := r.length()
		if n < 0 {
			return message{kind: '_'}
		}
		if m.kind == '%' {
			n *= 2
		}
		m.count = n
		for i := range n {
			if element := r.next(depth + 1); i < len(m.words) {
				m.words[i] = element.text[:min(len(element.text), maxWord)]
			}
		}
	}
	return m
}

func (r *reader) length() int {
	text := r.line()
	n, err := strconv.Atoi(text)
	if err != nil || n < -1 || n > maxAnswer {
		r.t.Fatalf("length %q", text)
	}
	return n
}
