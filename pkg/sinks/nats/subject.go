package nats

import (
	"errors"
	"fmt"
	"strings"

	"github.com/watcherd/watcherd/pkg/event"
)

// subject is a parsed subject: literal text and tokens in turn.
type subject []piece

// piece is literal text, or the value of a token when value is not nil.
type piece struct {
	text  string
	value func(e *event.Event) (value, empty string)
}

// tokens are the names a subject may hold in braces.
var tokens = map[string]func(e *event.Event) (value, empty string){
	"cluster":   func(e *event.Event) (string, string) { return e.Cluster, "_" },
	"group":     func(e *event.Event) (string, string) { return e.Resource.Group, "core" },
	"version":   func(e *event.Event) (string, string) { return e.Resource.Version, "_" },
	"resource":  func(e *event.Event) (string, string) { return e.Resource.Resource, "_" },
	"namespace": func(e *event.Event) (string, string) { return e.Namespace, "_" },
	"name":      func(e *event.Event) (string, string) { return e.Name, "_" },
	"type":      func(e *event.Event) (string, string) { return string(e.Type), "_" },
}

func parseSubject(text string) (subject, error) {
	var s subject
	for rest := text; rest != ""; {
		literal, after, found := strings.Cut(rest, "{")
		if strings.ContainsFunc(literal, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune("*>}", r) }) {
			return nil, errors.New("must not hold spaces, wildcards or a } without a {")
		}
		if literal != "" {
			s = append(s, piece{text: literal})
		}
		if !found {
			break
		}
		name, next, closed := strings.Cut(after, "}")
		if !closed {
			return nil, errors.New("has a { without a }")
		}
		if tokens[name] == nil {
			return nil, fmt.Errorf("has the unknown token {%s}; known are {cluster} {group} {version} {resource} {namespace} {name} {type}", name)
		}
		s = append(s, piece{value: tokens[name]})
		rest = next
	}
	for token := range strings.SplitSeq(s.wildcard(), ".") {
		if token == "" {
			return nil, errors.New("is required and must have no empty part between its dots, for example k8s.{resource}.{namespace}.{name}")
		}
	}
	if strings.HasPrefix(text, "$") {
		return nil, errors.New("must not begin with $, which is the server's own")
	}
	return s, nil
}

// append appends the subject of e.
func (s subject) append(dst []byte, e *event.Event) []byte {
	for _, p := range s {
		if p.value == nil {
			dst = append(dst, p.text...)
			continue
		}
		value, empty := p.value(e)
		if value == "" {
			value = empty
		}
		dst = appendToken(dst, value)
	}
	return dst
}

// appendToken appends a value as one token: what would split it, match more than
// it or break the protocol becomes %XX, as does the percent sign, so that every
// value can be read back.
func appendToken(dst []byte, value string) []byte {
	const hexdigits = "0123456789ABCDEF"
	for i := range len(value) {
		switch c := value[i]; {
		case c <= ' ', c >= 0x7f, c == '.', c == '*', c == '>', c == '%':
			dst = append(dst, '%', hexdigits[c>>4], hexdigits[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// wildcard is a subject that matches every subject s can give.
func (s subject) wildcard() string {
	var b strings.Builder
	for _, p := range s {
		if p.value == nil {
			b.WriteString(p.text)
		} else {
			b.WriteByte('*')
		}
	}
	parts := strings.Split(b.String(), ".")
	for i, part := range parts {
		if strings.ContainsRune(part, '*') {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ".")
}

// matches reports whether a subject falls under a pattern with * and >.
func matches(pattern, subject string) bool {
	for {
		p, patternRest, morePattern := strings.Cut(pattern, ".")
		t, subjectRest, moreSubject := strings.Cut(subject, ".")
		switch {
		case p == ">":
			return true
		case p != "*" && p != t:
			return false
		case !morePattern || !moreSubject:
			return morePattern == moreSubject
		}
		pattern, subject = patternRest, subjectRest
	}
}
