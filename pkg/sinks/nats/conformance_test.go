package nats_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

const canary = "canary-password-4711"

func withUser(o *server.Options) {
	o.Username, o.Password = "me", canary
	o.MaxPayload = 256 << 10
}

func TestConformanceJetStream(t *testing.T) {
	for _, format := range []sinks.Format{sinks.CloudEvents, sinks.CloudEventsBinary, sinks.JSON} {
		t.Run(string(format), func(t *testing.T) {
			sinktest.Run(t, func(t *testing.T) sinktest.Destination {
				s := startServer(t, withUser)
				nc, js := connect(t, s.ClientURL(), client.UserInfo("me", canary))
				makeStream(t, js, nil)
				p := newProxy(t, s.Addr().String())
				t.Setenv("NATS_TEST_PASSWORD", canary)
				return sinktest.Destination{
					Config: func() sinks.Config {
						c := configFor(p.url(), true)
						c.User, c.Password = "me", &sinks.Secret{Env: "NATS_TEST_PASSWORD"}
						return c
					},
					Format:   format,
					Received: func(t *testing.T) []string { return idsOf(stored(t, js)) },
					Break:    func(*testing.T) { p.cut() },
					Hang:     func(*testing.T) { p.hang() },
					Refuse: func(t *testing.T) {
						if err := js.DeleteStream(t.Context(), "K8S"); err != nil {
							t.Fatal(err)
						}
					},
					Mend: func(t *testing.T) {
						p.mend()
						if _, err := js.Stream(t.Context(), "K8S"); errors.Is(err, jetstream.ErrStreamNotFound) {
							makeStream(t, js, nil)
						}
					},
					Secrets: []string{canary},
					Stop: func() {
						p.stop()
						nc.Close()
						stopServer(s)
					},
				}
			})
		})
	}
}

func TestConformanceCore(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		s := startServer(t, withUser)
		nc, _ := connect(t, s.ClientURL(), client.UserInfo("me", canary))
		sub := subscribe(t, nc, "k8s.>")
		p := newProxy(t, s.Addr().String())
		t.Setenv("NATS_TEST_PASSWORD", canary)
		return sinktest.Destination{
			Config: func() sinks.Config {
				c := configFor(p.url(), false)
				c.User, c.Password = "me", &sinks.Secret{Env: "NATS_TEST_PASSWORD"}
				return c
			},
			Received: func(t *testing.T) []string {
				var out []string
				for _, m := range sub.all() {
					var e struct{ ID string }
					if err := json.Unmarshal(m.Data, &e); err != nil {
						t.Error(err)
					}
					out = append(out, e.ID)
				}
				return out
			},
			Break:   func(*testing.T) { p.cut() },
			Hang:    func(*testing.T) { p.hang() },
			Mend:    func(*testing.T) { p.mend() },
			Secrets: []string{canary},
			Stop: func() {
				p.stop()
				nc.Close()
				stopServer(s)
			},
		}
	})
}
