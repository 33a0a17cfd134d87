package nats

import (
	"errors"
	"strings"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks/internal/template"
)

// subject is a parsed subject.
type subject struct{ template.Template }

func parseSubject(text string) (subject, error) {
	parsed, err := template.Parse(text, template.Cluster, template.Group, template.Version, template.Resource, template.Namespace, template.Name, template.Type)
	if err != nil {
		return subject{}, err
	}
	s := subject{parsed}
	if strings.ContainsFunc(s.Sample(""), func(r rune) bool { return r <= ' ' || r == 0x7f || r == '*' || r == '>' }) {
		return subject{}, errors.New("must not hold spaces or wildcards")
	}
	for token := range strings.SplitSeq(s.wildcard(), ".") {
		if token == "" {
			return subject{}, errors.New("is required and must have no empty part between its dots, for example k8s.{resource}.{namespace}.{name}")
		}
	}
	if strings.HasPrefix(text, "$") {
		return subject{}, errors.New("must not begin with $, which is the server's own")
	}
	return s, nil
}

// whole are the characters that neither split a token, nor match more than it, nor break
// the protocol. The percent sign is none, so that every value can be read back.
var whole = template.NewCharset(func(c byte) bool { return c > ' ' && c < 0x7f && strings.IndexByte(".*>%", c) < 0 })

// append appends the subject of e.
func (s subject) append(dst []byte, e *event.Event) []byte { return s.Append(dst, e, whole.Percent) }

// wildcard is a subject that matches every subject s can give.
func (s subject) wildcard() string {
	parts := strings.Split(s.Sample("*"), ".")
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
