package elasticsearch

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// FuzzAnswer: whatever bytes a cluster answers to a bulk request take memory in proportion to them, accept an event only with a
// result of its own, and the error is a line without the secret.
func FuzzAnswer(f *testing.F) {
	const canary = "canary-key-4711"
	f.Setenv("ELASTICSEARCH_FUZZ_KEY", canary)
	var answer []byte
	path := testkit.Answering(f, testservers.SocketDir(f), func(c net.Conn) { _, _ = c.Write(answer) })
	c := NewConfig()
	c.URL, c.APIKey = "http://localhost", &sinks.Secret{Env: "ELASTICSEARCH_FUZZ_KEY"}
	s := sinktest.Open(f, c).(*sink)
	o := s.client.Options
	o.Socket, o.Timeout = path, 10*time.Second
	s.client = post.New(o)
	f.Cleanup(s.client.Close)
	for _, body := range []string{
		`{"items":[{"create":{"status":201}},{"create":{"status":409,"error":{"type":"version_conflict_engine_exception","reason":"x"}}}]}`,
		`{"items":[{"index":{"status":400,"error":{"type":"document_parsing_exception","reason":"ApiKey canary-key-4711 \u001b[2J"}}},{"create":{"status":429}}]}`,
		`{"items":[{"create":null},{}],"items":[[]]}`,
		`{"items":[1,"canary-key-4711"`,
	} {
		f.Add(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	}
	f.Add([]byte("HTTP/1.1 413 X\r\n\r\n" + `{"error":{"reason":"canary-key-4711"}}`))
	events := sinktest.Events(2, 2)
	f.Fuzz(func(t *testing.T, sent []byte) {
		answer = sent
		testkit.Allocates(t, 4<<20+64*len(sent), func() {
			results, err := s.bulk(t.Context(), events)
			if err == nil && len(results) != len(events) {
				t.Errorf("%d results for %d events", len(results), len(events))
			}
			if err = errors.Join(append(results, err)...); err == nil {
				return
			}
			if text := err.Error(); strings.Contains(text, canary) || len(text) > 8<<10 || strings.ContainsAny(text, "\r\x1b") {
				t.Errorf("the error is %q", text)
			}
		})
	})
}
