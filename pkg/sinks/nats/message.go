package nats

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/template"
)

// Headers of the CloudEvents binding. That of the content type distinguishes structured
// mode from binary, in which the data's type is an attribute like others.
// See https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/nats-protocol-binding.md.
const (
	contentTypeHeader = "content-type"
	attributePrefix   = "ce-"
)

// maxSubject keeps the protocol line of a publish below the server's limit of
// 4096 bytes, which closes the connection when it is passed.
const maxSubject = 3 << 10

// messages encodes a batch. Nothing in them is shared with the events or used
// again: a publish that is retried in the client may outlive the Write.
func (s *sink) messages(batch []*event.Event) []*client.Msg {
	size := 0
	for _, e := range batch {
		size += e.Size()
	}
	buf := make([]byte, 0, size)
	out := make([]*client.Msg, len(batch))
	for i, e := range batch {
		start := len(buf)
		buf = s.format.Append(buf, e)
		m := &client.Msg{
			Subject: string(s.subject.append(nil, e)),
			Header:  client.Header{},
			Data:    buf[start:len(buf):len(buf)],
		}
		switch s.format {
		case sinks.CloudEventsBinary:
			for _, a := range event.Attributes(e) {
				m.Header[attributePrefix+a.Name] = []string{event.HeaderValue(a.Value)}
			}
			m.Header[attributePrefix+"datacontenttype"] = []string{s.format.ContentType(e)}
		default:
			m.Header[contentTypeHeader] = []string{s.format.ContentType(e)}
		}
		if s.stream != nil {
			m.Header[jetstream.MsgIDHeader] = []string{s.messageID(e, m.Subject)}
			m.Header[jetstream.ExpectedStreamHeader] = []string{s.stream.Stream}
		}
		out[i] = m
	}
	return out
}

// messageID identifies one delivery of e, on every attempt at it. A stream's duplicate
// window spans all its subjects, so the id holds the sink's name and the subject: two
// sinks may feed one stream. Each replay and each snapshot of an object is a delivery of
// its own, identified by its position in the queue. The form is the event's id, a dot and a short hash.
func (s *sink) messageID(e *event.Event, subject string) string {
	var scratch [256]byte
	b := append(scratch[:0], s.name...)
	b = append(b, 0)
	b = append(b, subject...)
	if e.Replay || e.Type == event.Sync {
		b = append(b, 0)
		b = binary.BigEndian.AppendUint64(b, e.Position)
	}
	sum := sha256.Sum256(b)
	id := make([]byte, 0, len(e.ID)+1+16)
	id = append(append(id, e.ID...), '.')
	return string(hex.AppendEncode(id, sum[:8]))
}

// checkMessage refuses what the server would answer by closing the connection.
func checkMessage(m *client.Msg) error {
	if len(m.Subject) > maxSubject {
		return sinks.Poison(fmt.Errorf("subject of %d bytes is longer than %d", len(m.Subject), maxSubject))
	}
	return nil
}

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

// append appends the subject. One that a value would make begin with $, such as the name of a Role, is not the server's own.
func (s subject) append(dst []byte, e *event.Event) []byte {
	begin := len(dst)
	if dst = s.Append(dst, e, whole.Percent); dst[begin] == '$' {
		dst = slices.Replace(dst, begin, begin+1, []byte("%24")...)
	}
	return dst
}

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
