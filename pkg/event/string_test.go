package event

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzAppendString: encoding/json reads every string back as it was, and what is
// not UTF-8 with U+FFFD in the place of each wrong byte, as it writes it itself.
func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "plain", `"`, `\`, "\x00\x1f", "\u2028", "é\xffé", "<&>", strings.Repeat("x", 100) + "\n", "\x7f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := appendString([]byte("x"), s)
		if got[0] != 'x' {
			t.Fatal("the buffer was not kept")
		}
		var back, want string
		if err := json.Unmarshal(got[1:], &back); err != nil {
			t.Fatalf("%q: %v in %s", s, err, got[1:])
		}
		std, err := json.Marshal(s)
		if err == nil {
			err = json.Unmarshal(std, &want)
		}
		if err != nil || back != want {
			t.Errorf("%q is read as %q, want %q: %v", s, back, want, err)
		}
		e := &Event{Type: Added, Resource: Resource{Version: "v1", Resource: "pods"}, Namespace: s, Name: s, UID: s, Cluster: s}
		if encoded := AppendCloudEvent(nil, e); !json.Valid(encoded) {
			t.Errorf("%q makes an event that is not JSON: %s", s, encoded)
		}
	})
}
