package webhook_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

func TestConformance(t *testing.T) {
	for _, mode := range []struct {
		name   string
		format sinks.Format
		batch  bool
		gzip   bool
	}{
		{"structured", sinks.CloudEvents, false, false},
		{"binary", sinks.CloudEventsBinary, false, false},
		{"batch", sinks.CloudEvents, true, false},
		{"json", sinks.JSON, false, false},
		{"json array, gzip", sinks.JSON, true, true},
	} {
		t.Run(mode.name, func(t *testing.T) {
			sinktest.Run(t, func(t *testing.T) sinktest.Destination {
				const token, key, query = "canary-token-4711", "canary-key-4712", "canary-query-4713"
				e := newEndpoint(t)
				bearer, signing := secretFile(t, token), secretFile(t, key)
				return sinktest.Destination{
					Config: func() sinks.Config {
						c := e.config()
						c.URL.Text += "?auth=" + query
						c.BearerToken = &bearer
						if mode.gzip {
							c.Compress = "gzip"
						} else {
							c.Signing = &webhook.Signing{Secret: signing}
						}
						return c
					},
					Format:    mode.format,
					BatchMode: mode.batch,
					Received:  func(*testing.T) []string { return e.received() },
					Break:     func(*testing.T) { e.set(echo(http.StatusServiceUnavailable)) },
					Refuse:    func(*testing.T) { e.set(echo(http.StatusUnauthorized)) },
					Hang:      func(*testing.T) { e.gates.freeze() },
					Restart:   e.restart,
					Repair: func(*testing.T) {
						e.gates.thaw()
						e.set(nil)
					},
					Reject: func(_ *testing.T, id string) {
						e.set(func(w http.ResponseWriter, r *http.Request, ids []string) {
							if slices.Contains(ids, id) {
								echo(http.StatusUnprocessableEntity)(w, r, ids)
								return
							}
							e.mu.Lock()
							e.accepted = append(e.accepted, ids...)
							e.mu.Unlock()
						})
					},
					Secrets: []string{token, key, query},
					Stop:    e.stop,
				}
			})
		})
	}
}
