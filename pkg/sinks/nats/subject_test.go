package nats

import (
	"testing"

	"github.com/watcherd/watcherd/pkg/sinks/internal/samples"
)

// TestSubjectOfAnObject: no name of an object makes a subject that is the server's own.
func TestSubjectOfAnObject(t *testing.T) {
	e := samples.Event(0, 0)
	for name, want := range map[string]string{
		"$JS":              "%24JS.x",
		"$JS.API.>":        "%24JS%2EAPI%2E%3E.x",
		"system:$x":        "system:$x.x",
		"a\r\nPUB b 1\r\n": "a%0D%0APUB%20b%201%0D%0A.x",
	} {
		s, err := parseSubject("{name}.x")
		if err != nil {
			t.Fatal(err)
		}
		e.Name = name
		if got := string(s.append([]byte("$kept "), e)); got != "$kept "+want {
			t.Errorf("%q: %s", name, got)
		}
	}
}
