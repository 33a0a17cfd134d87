package webhook_test

import (
	"crypto/tls"
	"errors"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

// TestMaySend: no event is sent once none may be, also where that comes between the connection and the request, or on a connection that is
// there; and it is sent when one may be again.
func TestMaySend(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		t.Run(protocol, func(t *testing.T) {
			ours := testca.New(t, "ours")
			s := newTLSServer(t, ours, nil, "127.0.0.1", nil)
			var over, atHandshake atomic.Bool
			var requests atomic.Int64
			s.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) })
			s.TLS.NextProtos = []string{protocol}
			s.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
				over.Store(atHandshake.Load())
				return nil, nil //nolint:nilnil // the same
			}
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, "ca.pem"), ours.PEM)
			c := webhook.NewConfig()
			c.URL.Text, c.TLS.CAFile = s.URL, "ca.pem"
			errOver := errors.New("it is over")
			sink := sinktest.Open(t, c, func(o *sinks.Options) {
				o.Dir = dir
				o.MaySend = func() error {
					if over.Load() {
						return errOver
					}
					return nil
				}
			})
			want := int64(0)
			for _, state := range []string{"handshake", "connection"} {
				atHandshake.Store(state == "handshake")
				over.Store(state == "connection")
				if err := sink.Write(t.Context(), sinktest.Events(1, 1)); err == nil || protocol == "http/1.1" && !errors.Is(err, errOver) || requests.Load() != want {
					t.Errorf("%s: error %v; %d requests", state, err, requests.Load())
				}
				over.Store(false)
				atHandshake.Store(false)
				want++
				eventually(t, "it is sent", func() bool { return sink.Write(t.Context(), sinktest.Events(1, 1)) == nil })
				if requests.Load() != want {
					t.Errorf("%s: %d requests, want %d", state, requests.Load(), want)
				}
			}
		})
	}
}
