package otlp

import (
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

// FuzzAnswer: whatever bytes a receiver answers take memory in proportion to them, and the error is a line without the secret.
func FuzzAnswer(f *testing.F) {
	const canary = "canary-key-4711"
	f.Setenv("OTLP_FUZZ_KEY", canary)
	var answer []byte
	path := testkit.Answering(f, testservers.SocketDir(f), func(c net.Conn) { _, _ = c.Write(answer) })
	c := NewConfig()
	c.Endpoint, c.Headers = "http://localhost", map[string]sinks.Header{"X-Key": {Secret: sinks.Secret{Env: "OTLP_FUZZ_KEY"}}}
	s := sinktest.Open(f, c).(*sink)
	o := s.client.Options
	o.Socket, o.Timeout = path, 10*time.Second
	s.client = post.New(o)
	f.Cleanup(s.client.Close)
	for status, body := range map[int]string{
		200: "\x0a\x13\x08\x02\x12\x0fcanary-key-4711",
		400: "\x08\x03\x12\x0fcanary-key-4711",
		503: "\x12\xff\xff\xff\xff\x0f",
	} {
		f.Add(fmt.Appendf(nil, "HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", status, protobuf, len(body), body))
	}
	quoted := `{"partialSuccess":{"rejectedLogRecords":"canary-key-4711"}}`
	f.Add(fmt.Appendf(nil, "HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(quoted), quoted))
	f.Add([]byte("HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n0\r\ncanary-key-4711\r\n\r\n")) // in place of a trailer
	events := sinktest.Events(1, 1)
	f.Fuzz(func(t *testing.T, sent []byte) {
		answer = sent
		testkit.Allocates(t, 4<<20+64*len(sent), func() {
			err := s.post(t.Context(), events)
			if err == nil {
				return
			}
			if text := err.Error(); strings.Contains(text, canary) || len(text) > 8<<10 || strings.ContainsAny(text, "\r\n\x1b") {
				t.Errorf("the error is %q", text)
			}
		})
	})
}
