// Package template makes names out of events: text with tokens such as {namespace}.
package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/watcherd/watcherd/pkg/event"
)

// Tokens of a template.
const (
	Cluster   = "cluster"
	Group     = "group"
	Version   = "version"
	Resource  = "resource"
	Namespace = "namespace"
	Name      = "name"
	Type      = "type"
	Date      = "date"
)

// Template is a parsed text.
type Template []Piece

// Piece is literal text, or the value of a token if Token is not empty.
type Piece struct{ Text, Token string }

// Parse reads a text that may hold the tokens.
func Parse(text string, tokens ...string) (Template, error) {
	var t Template
	for text != "" {
		literal, rest, found := strings.Cut(text, "{")
		if strings.ContainsRune(literal, '}') {
			return nil, errors.New("has a } without a {")
		}
		if literal != "" {
			t = append(t, Piece{Text: literal})
		}
		if !found {
			break
		}
		token, after, closed := strings.Cut(rest, "}")
		if !closed {
			return nil, errors.New("has a { without a }")
		}
		if !slices.Contains(tokens, token) {
			return nil, fmt.Errorf("has the unknown token {%s}; known are {%s}", token, strings.Join(tokens, "} {"))
		}
		t = append(t, Piece{Token: token})
		text = after
	}
	return t, nil
}

// Append appends the text for e. escape appends a value, which is not empty.
func (t Template) Append(dst []byte, e *event.Event, escape func(dst []byte, value string) []byte) []byte {
	for _, p := range t {
		switch p.Token {
		case "":
			dst = append(dst, p.Text...)
		case Date:
			dst = e.Time.UTC().AppendFormat(dst, "2006-01-02")
		default:
			if value := valueOf(p.Token, e); value != "" {
				dst = escape(dst, value)
			} else if p.Token == Group {
				dst = append(dst, "core"...)
			} else {
				dst = append(dst, '_')
			}
		}
	}
	return dst
}

func valueOf(token string, e *event.Event) string {
	switch token {
	case Cluster:
		return e.Cluster
	case Group:
		return e.Resource.Group
	case Version:
		return e.Resource.Version
	case Resource:
		return e.Resource.Resource
	case Namespace:
		return e.Namespace
	case Name:
		return e.Name
	default:
		return string(e.Type)
	}
}

// Sample is a text of the template in which every value is the given one.
func (t Template) Sample(value string) string {
	var b strings.Builder
	for _, p := range t {
		if p.Token == "" {
			b.WriteString(p.Text)
		} else {
			b.WriteString(value)
		}
	}
	return b.String()
}

// Charset is a set of characters.
type Charset [256]bool

// NewCharset is the set of the characters that keep reports true for.
func NewCharset(keep func(c byte) bool) *Charset {
	var s Charset
	for c := range s {
		s[c] = keep(byte(c))
	}
	return &s
}

// Percent appends a value in which characters outside of the set become %XX.
func (s *Charset) Percent(dst []byte, value string) []byte { return s.Escape(dst, '%', value) }

// Escape appends a value in which characters outside of the set become the mark and their
// bytes in hexadecimal.
func (s *Charset) Escape(dst []byte, mark byte, value string) []byte {
	const hexdigits = "0123456789ABCDEF"
	for i := range len(value) {
		if c := value[i]; s[c] {
			dst = append(dst, c)
		} else {
			dst = append(dst, mark, hexdigits[c>>4], hexdigits[c&15])
		}
	}
	return dst
}
