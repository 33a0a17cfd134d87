package webhook_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

// asked is a context that notices its end when it is asked.
type asked struct {
	context.Context
	look func()
}

func (a asked) Done() <-chan struct{} {
	a.look()
	return a.Context.Done()
}

func (a asked) Err() error {
	a.look()
	return a.Context.Err()
}

// TestEndBeforeTheRequest: no event is sent once the context has ended, also where that shows between the connection and the request alone.
func TestEndBeforeTheRequest(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		t.Run(protocol, func(t *testing.T) {
			ours := testca.New(t, "ours")
			s := newTLSServer(t, ours, nil, "127.0.0.1", nil)
			var over atomic.Bool
			var acted atomic.Int64
			s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := r.Body.Read(make([]byte, 1)); err == nil {
					acted.Add(1)
				}
				w.WriteHeader(http.StatusOK)
			})
			s.TLS.NextProtos = []string{protocol}
			s.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
				over.Store(true)
				return nil, nil //nolint:nilnil // the same
			}
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, "ca.pem"), ours.PEM)
			c := webhook.NewConfig()
			c.URL.Text, c.TLS.CAFile = s.URL, filepath.Join(dir, "ca.pem")
			errOver := errors.New("it is over")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			err := sinktest.Open(t, c).Write(asked{ctx, func() {
				if over.Load() {
					cancel(errOver)
				}
			}}, sinktest.Events(1, 1))
			if !errors.Is(err, errOver) || acted.Load() != 0 {
				t.Errorf("error %v; %d requests", err, acted.Load())
			}
		})
	}
}
