package kafka

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/watcherd/watcherd/pkg/event"
)

// template is a parsed topic: literal text and tokens in turn.
type template []piece

// piece is literal text, or the value of a token when value is not nil.
type piece struct {
	text  string
	value func(e *event.Event) (value, empty string)
}

// tokens are the names a topic may hold in braces. Kafka keeps order within a topic, so
// none of them differs between events of one object, but for the version of an API that is replaced.
var tokens = map[string]func(e *event.Event) (value, empty string){
	"cluster":   func(e *event.Event) (string, string) { return e.Cluster, "_" },
	"group":     func(e *event.Event) (string, string) { return e.Resource.Group, "core" },
	"version":   func(e *event.Event) (string, string) { return e.Resource.Version, "_" },
	"resource":  func(e *event.Event) (string, string) { return e.Resource.Resource, "_" },
	"namespace": func(e *event.Event) (string, string) { return e.Namespace, "_" },
}

// maxTopic is the longest name of a topic.
const maxTopic = 249

// maxLiteral leaves room for the values.
const maxLiteral = 128

func parseTopic(text string, mode Mode) (template, error) {
	if text == "" {
		return nil, errors.New("required, for example k8s.{resource}")
	}
	var t template
	literals := 0
	for rest := text; rest != ""; {
		literal, after, found := strings.Cut(rest, "{")
		for i := range len(literal) {
			if !allowed(literal[i]) {
				return nil, errors.New("must hold letters, digits, dots, - and _ beside tokens such as {resource}")
			}
		}
		if literals += len(literal); literals > maxLiteral {
			return nil, fmt.Errorf("must hold at most %d characters beside its tokens", maxLiteral)
		}
		if literal != "" {
			t = append(t, piece{text: literal})
		}
		if !found {
			break
		}
		name, next, closed := strings.Cut(after, "}")
		if !closed {
			return nil, errors.New("has a { without a }")
		}
		if tokens[name] == nil {
			return nil, fmt.Errorf("has the unknown token {%s}; known are {cluster} {group} {version} {resource} {namespace}", name)
		}
		if name == "version" && mode == State {
			return nil, errors.New("must not hold {version} in mode state: an object would have a state in each version's topic")
		}
		if t = append(t, piece{value: tokens[name]}); len(t) > maxLiteral {
			return nil, errors.New("has too many tokens")
		}
		rest = next
	}
	if text == "." || text == ".." {
		return nil, errors.New("must be more than dots")
	}
	return t, nil
}

// append appends the topic of e: always a name that Kafka takes.
func (t template) append(dst []byte, e *event.Event) []byte {
	start := len(dst)
	for _, p := range t {
		if p.value == nil {
			dst = append(dst, p.text...)
			continue
		}
		value, empty := p.value(e)
		if value == "" {
			value = empty
		}
		dst = appendValue(dst, value)
	}
	switch name := dst[start:]; {
	case len(name) > maxTopic:
		sum := sha256.Sum256(name)
		dst = append(dst[:start+maxTopic-17], '-')
		dst = hex.AppendEncode(dst, sum[:8])
	case string(name) == "." || string(name) == "..":
		dst = append(dst[:start], "_2E"...)
	}
	return dst
}

// appendValue appends a value with what a topic's name cannot hold as _XX.
func appendValue(dst []byte, value string) []byte {
	const hexdigits = "0123456789ABCDEF"
	for i := range len(value) {
		if c := value[i]; allowed(c) {
			dst = append(dst, c)
		} else {
			dst = append(dst, '_', hexdigits[c>>4], hexdigits[c&15])
		}
	}
	return dst
}

// allowed reports whether a topic's name can hold c.
func allowed(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
}
