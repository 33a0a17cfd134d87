package webhook

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// FuzzAnswer: whatever bytes an endpoint answers, by whichever rule they are judged, take memory in proportion to them, and
// the error is a line without the secret.
func FuzzAnswer(f *testing.F) {
	const canary = "canary-token-4711"
	f.Setenv("WEBHOOK_FUZZ_TOKEN", canary)
	var answer []byte
	path := testkit.Answering(f, testservers.SocketDir(f), func(c net.Conn) { _, _ = c.Write(answer) })
	var rules []sinks.Sink
	for _, set := range []func(*Config){
		func(*Config) {},
		func(c *Config) { c.Results = true },
		func(c *Config) {
			c.Accept = `body.ok && headers["x"] != "no" ? "accepted" : body.items.exists(i, i == "busy") ? "retry" : "poison"`
		},
	} {
		c := NewConfig()
		c.URL, c.BearerToken, c.Timeout = sinks.Header{Text: "http://localhost/hook"}, &sinks.Secret{Env: "WEBHOOK_FUZZ_TOKEN"}, sinks.Duration(10*time.Second)
		set(c)
		s := sinktest.Open(f, c).(*sink)
		transport := s.clients.transport
		s.clients.transport = func(config *tls.Config) *http.Transport {
			tr := transport(config)
			tr.DisableKeepAlives = true
			tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			}
			return tr
		}
		rules = append(rules, s)
	}
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 41\r\n\r\n" + `{"ok":true,"results":[{"status":"held"}]}`,
		"HTTP/1.1 200 OK\r\nContent-Length: 36\r\n\r\n" + `{"results":[{"status":"accepted"}]}` + "\n",
		"HTTP/1.1 429 X\r\nRetry-After: Wed, 21 Oct 2065 07:28:00 GMT\r\nX: no\r\n\r\n" + `{"ok":false,"items":["busy"]}`,
		"HTTP/1.1 307 X\r\nLocation: //" + canary + "/\r\n\r\n",
		"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ncanar\r\nc\r\ny-token-4711\r\n0\r\nT: x\r\n\r\n",
		"HTTP/1.1 103 X\r\nLink: y\r\n\r\nHTTP/1.0 400 no Bearer " + canary + "\r\n\r\ncanary-tok",
		"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	events := sinktest.Events(1, 1)
	f.Fuzz(func(t *testing.T, sent []byte) {
		answer = sent
		for _, s := range rules {
			testkit.Allocates(t, 4<<20+64*len(sent), func() {
				if err := s.Write(t.Context(), events); err != nil {
					if text := err.Error(); strings.Contains(text, canary) || len(text) > 8<<10 || strings.ContainsAny(text, "\r\n\x1b") {
						t.Errorf("the error is %q", text)
					}
				}
			})
		}
	})
}
