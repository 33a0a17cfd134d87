package event

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// BenchmarkEncode appends an event with an object of 4 KB to a buffer that is large
// enough.
func BenchmarkEncode(b *testing.B) {
	e := &Event{
		ID: "0123456789abcdef0123456789abcdef", Type: Updated, Time: time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC),
		Cluster: "prod", Resource: Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
		Namespace: "team-a", Name: "web-7c9f8d6b5-abcde", UID: "6a1f0b52-0e0c-4f5e-9d58-0f6d5c1b7a11", ResourceVersion: "123456789", Sequence: 42,
		Object: json.RawMessage(`{"kind":"Pod","spec":"` + strings.Repeat("x", 4000) + `"}`),
	}
	for name, encode := range map[string]func([]byte, *Event) []byte{"cloudevents": AppendCloudEvent, "json": AppendJSON} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				dst = encode(dst[:0], e)
			}
			b.SetBytes(int64(len(dst)))
		})
	}
}
