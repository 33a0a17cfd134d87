package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
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
