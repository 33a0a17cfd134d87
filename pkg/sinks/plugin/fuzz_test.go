package plugin_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/plugin"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// FuzzAnswer: whatever bytes a program answers take memory in proportion to them, and the error is a line without the secret.
func FuzzAnswer(f *testing.F) {
	f.Setenv("PLUGIN_TEST_TOKEN", canary)
	var answer []byte
	c := plugin.NewConfig()
	c.URL, c.Timeout = answering(f, func(c net.Conn) { _, _ = c.Write(answer) }), sinks.Duration(10*time.Second)
	c.Headers = map[string]sinks.Header{"Authorization": {Secret: sinks.Secret{Env: "PLUGIN_TEST_TOKEN"}}}
	s := sinktest.Open(f, c)
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + `{"results":[{"status":"accepted"},{"status":"retry","retryAfter":1e3,"message":"no canary-token-4711"}]}`,
		"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n" + `{"results":[`,
		"HTTP/1.1 400 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ncanar\r\nc\r\ny-token-4711\r\n0\r\nT: x\r\n\r\n",
		"HTTP/1.1 307 X\r\nLocation: http://[::1\r\n\r\n",
		"HTTP/1.1 103 X\r\nLink: y\r\n\r\nHTTP/1.0 413 " + canary + "\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	events := sinktest.Events(2, 2)
	f.Fuzz(func(t *testing.T, sent []byte) {
		answer = sent
		testkit.Allocates(t, 4<<20+64*len(sent), func() {
			if err := s.Write(t.Context(), events); err != nil {
				if text := err.Error(); strings.Contains(text, canary) || len(text) > 8<<10 || strings.ContainsAny(text, "\r\n\x1b") {
					t.Errorf("the error is %q", text)
				}
			}
		})
	})
}
