package kafka

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/template"
)

// Headers of the CloudEvents binding. Values are UTF-8, unlike those of HTTP and NATS.
// See https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md.
const (
	contentTypeHeader = "content-type"
	attributePrefix   = "ce_"
	sequenceHeader    = attributePrefix + "sequence"
)

// Headers of the encodings that have the same for every event. The client only reads them.
var (
	structuredHeaders = []kgo.RecordHeader{{Key: contentTypeHeader, Value: []byte(event.ContentTypeCloudEvent + "; charset=UTF-8")}}
	jsonHeaders       = []kgo.RecordHeader{{Key: contentTypeHeader, Value: []byte(event.ContentTypeJSON)}}
)

// records encodes a batch. Nothing in them is shared with the events or used again: the client may
// hold a record behind the end of its Write.
func (s *sink) records(batch []*event.Event) []kgo.Record {
	size := 0
	for _, e := range batch {
		size += e.Size()
	}
	buf := make([]byte, 0, size)
	out := make([]kgo.Record, len(batch))
	last := "" // topic
	for i, e := range batch {
		r := &out[i]
		start := len(buf)
		buf = s.topic.append(buf, e)
		if name := buf[start:]; string(name) != last {
			last = string(name)
		}
		r.Topic = last
		start = len(buf)
		buf = e.AppendPartitionKey(buf)
		r.Key = buf[start:len(buf):len(buf)]
		if s.tombstone(e) {
			r.Headers = attributes(e)
			continue
		}
		start = len(buf)
		buf = s.format.Append(buf, e)
		r.Value = buf[start:len(buf):len(buf)]
		switch {
		case s.format == sinks.CloudEventsBinary:
			r.Headers = append(attributes(e), kgo.RecordHeader{Key: contentTypeHeader, Value: []byte(s.format.ContentType(e))})
			continue
		case e.Body != nil:
			r.Headers = []kgo.RecordHeader{{Key: contentTypeHeader, Value: []byte(e.ContentType)}}
		case s.format == sinks.JSON:
			r.Headers = jsonHeaders
		default:
			r.Headers = structuredHeaders
		}
		if s.config.Mode == State {
			r.Headers = []kgo.RecordHeader{r.Headers[0], {Key: sequenceHeader, Value: []byte(event.SequenceText(e.Sequence))}}
		}
	}
	return out
}

// tombstone reports whether the event ends its object's state.
func (s *sink) tombstone(e *event.Event) bool {
	return s.config.Mode == State && (e.Type == event.Deleted || e.Selection == event.Left)
}

func attributes(e *event.Event) []kgo.RecordHeader {
	all := event.Attributes(e)
	headers := make([]kgo.RecordHeader, len(all), len(all)+1)
	for i, a := range all {
		headers[i] = kgo.RecordHeader{Key: attributePrefix + a.Name, Value: []byte(a.Value)}
	}
	return headers
}

// checkSize refuses a record that the topic does not take.
func checkSize(r *kgo.Record, limit int) error {
	if size := sizeOf(r); size > limit {
		return sinks.TooLarge(fmt.Errorf("record of %d bytes is larger than the %d that topic %s takes", size, limit, r.Topic))
	}
	return nil
}

// sizeOf is what a record takes in a batch at most: 64 bytes are for lengths.
func sizeOf(r *kgo.Record) int {
	size := 64 + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		size += 8 + len(h.Key) + len(h.Value)
	}
	return size
}

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
