package event

import "time"

// Attribute is one CloudEvents context attribute.
type Attribute struct{ Name, Value string }

// Attributes are the context attributes of the event for binary-mode bindings,
// where each becomes a header (`ce-` and the name over HTTP and NATS) and the
// body is [AppendData] with content type [ContentTypeJSON].
// Values are not escaped; a binding escapes as its own protocol demands.
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
	}
}
