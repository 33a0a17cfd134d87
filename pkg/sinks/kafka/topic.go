package kafka

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks/internal/template"
)

// topic is a parsed topic.
type topic struct{ template.Template }

// maxTopic is the longest name of a topic.
const maxTopic = 249

// maxLiteral leaves room for the values.
const maxLiteral = 128

// Kafka keeps order within a topic, so no token differs between events of one object, but
// for the version of an API that is replaced.
func parseTopic(text string, mode Mode) (topic, error) {
	if text == "" {
		return topic{}, errors.New("required, for example k8s.{resource}")
	}
	parsed, err := template.Parse(text, template.Cluster, template.Group, template.Version, template.Resource, template.Namespace)
	if err != nil {
		return topic{}, err
	}
	t := topic{parsed}
	switch literals := t.Sample(""); {
	case strings.ContainsFunc(literals, func(r rune) bool { return r >= 0x80 || !allowed[r] }):
		return topic{}, errors.New("must hold letters, digits, dots, - and _ beside tokens such as {resource}")
	case len(literals) > maxLiteral:
		return topic{}, fmt.Errorf("must hold at most %d characters beside its tokens", maxLiteral)
	case len(t.Template) > maxLiteral:
		return topic{}, errors.New("has too many tokens")
	case text == "." || text == "..":
		return topic{}, errors.New("must be more than dots")
	}
	if mode == State && slices.Contains(t.Template, template.Piece{Token: template.Version}) {
		return topic{}, errors.New("must not hold {version} in mode state: an object would have a state in each version's topic")
	}
	return t, nil
}

// append appends the topic of e: always a name that Kafka takes.
func (t topic) append(dst []byte, e *event.Event) []byte {
	start := len(dst)
	dst = t.Append(dst, e, func(dst []byte, value string) []byte { return allowed.Escape(dst, '_', value) })
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

// allowed are the characters of a topic's name.
var allowed = template.NewCharset(func(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
})
