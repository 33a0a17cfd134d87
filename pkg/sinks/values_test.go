package sinks_test

import (
	"encoding/json"
	"testing"

	"github.com/watcherd/watcherd/pkg/sinks"
)

func TestBytes(t *testing.T) {
	for text, want := range map[string]sinks.Bytes{
		`512`: 512, `"512"`: 512, `"1Ki"`: 1024, `"1.5Mi"`: 3 << 19, `"1G"`: 1e9, `-1`: -1, `0`: 0, `"8191Pi"`: 8191 << 50,
	} {
		var got sinks.Bytes
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: %d %v, want %d", text, got, err, want)
		}
	}
	// The value of the first would take years to work out.
	for _, text := range []string{`"1E-2147483647"`, `1e999`, `"1GB"`, `"lots"`, `""`, `true`, `[1]`, `"500m"`} {
		var got sinks.Bytes
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%s: %d", text, got)
		}
	}
}
