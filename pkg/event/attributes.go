package event

import (
	"strings"
	"time"
)

// Attribute is one CloudEvents context attribute.
type Attribute struct{ Name, Value string }

// Attributes are the context attributes of the event for binary-mode bindings,
// where each becomes a header (`ce-` and the name over HTTP and NATS) and the
// body is [AppendData] with content type [ContentTypeJSON].
// Values are not escaped; see [HeaderValue].
func Attributes(e *Event) []Attribute {
	return []Attribute{
		{"specversion", "1.0"},
		{"id", e.ID},
		{"source", e.Source()},
		{"type", e.Type.CloudEvent()},
		{"subject", e.Subject()},
		{"time", e.Time.UTC().Format(time.RFC3339Nano)},
		{"sequence", SequenceText(e.Sequence)},
		{"partitionkey", e.PartitionKey()},
		{"dataschema", DataSchema},
	}
}

var inHeader = charset(func(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' })

// HeaderValue encodes an attribute for a header, as the HTTP and NATS bindings want
// it: UTF-8, percent-encoded but for printable ASCII without quote and percent.
// See https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md#3132-http-header-values.
func HeaderValue(s string) string {
	return string(appendEscaped(make([]byte, 0, len(s)), strings.ToValidUTF8(s, "\uFFFD"), inHeader))
}
