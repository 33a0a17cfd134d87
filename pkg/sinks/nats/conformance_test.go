package nats_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

const (
	canary     = "canary-password-4711"
	maxPayload = 256 << 10
)

// backend is a server to conform to.
type backend struct {
	url  string
	node *natstest.Node // nil: the server is part of this process
	stop func()
}

// inProcess starts a server in this process, ownProcess one that can be stopped and
// killed.
func inProcess(t *testing.T) *backend {
	s := startServer(t, func(o *server.Options) { o.Username, o.Password, o.MaxPayload = "me", canary, maxPayload })
	return &backend{url: s.ClientURL(), stop: func() { stopServer(s) }}
}

func ownProcess(t *testing.T) *backend {
	n := natstest.Start(t, natstest.Spec{Name: "solo", Dir: t.TempDir(), User: "me", Password: canary, MaxPayload: maxPayload})
	return &backend{url: n.URL, node: n, stop: n.Kill}
}

func observe(t *testing.T, b *backend) (*client.Conn, jetstream.JetStream) {
	return connect(t, b.url, client.UserInfo("me", canary), client.MaxReconnects(-1), client.ReconnectWait(20*time.Millisecond))
}

// destination is what both kinds of publishing have in common. Between the sink and the
// server is a proxy.
func (b *backend) destination(t *testing.T, p *testkit.Proxy, js bool) sinktest.Destination {
	t.Setenv("NATS_TEST_PASSWORD", canary)
	d := sinktest.Destination{
		Config: func() sinks.Config {
			c := configFor("nats://"+p.Addr, js)
			c.User, c.Password = "me", &sinks.Secret{Env: "NATS_TEST_PASSWORD"}
			return c
		},
		Break:   func(*testing.T) { p.Cut() },
		Hang:    func(*testing.T) { p.Hang() },
		Repair:  func(*testing.T) { p.Restore() },
		Secrets: []string{canary},
	}
	if b.node != nil {
		d.Hang = func(*testing.T) { b.node.Freeze() }
		d.Repair = func(*testing.T) {
			b.node.Thaw()
			p.Restore()
		}
	}
	return d
}

func TestConformanceJetStream(t *testing.T) {
	for _, mode := range []struct {
		format sinks.Format
		start  func(t *testing.T) *backend
	}{{sinks.CloudEvents, ownProcess}, {sinks.CloudEventsBinary, inProcess}, {sinks.JSON, inProcess}} {
		t.Run(string(mode.format), func(t *testing.T) {
			sinktest.Run(t, func(t *testing.T) sinktest.Destination {
				b := mode.start(t)
				nc, js := observe(t, b)
				stream := func(c *jetstream.StreamConfig) { c.Storage = jetstream.FileStorage }
				makeStream(t, js, stream)
				// After it has answered the deletion of the last stream, the server removes
				// the folder of all streams, in which a new one may be beginning.
				makeStream(t, js, func(c *jetstream.StreamConfig) {
					c.Name, c.Subjects, c.Storage = "OTHER", []string{"other"}, jetstream.FileStorage
				})
				p := testkit.NewProxy(t, strings.TrimPrefix(b.url, "nats://"))
				d := b.destination(t, p, true)
				d.Format, d.Idempotent = mode.format, true
				d.Received = func(t *testing.T) []string { return idsOf(stored(t, js)) }
				d.Refuse = func(t *testing.T) {
					if err := js.DeleteStream(t.Context(), "K8S"); err != nil {
						t.Fatal(err)
					}
				}
				mend := d.Repair
				d.Repair = func(t *testing.T) {
					mend(t)
					if _, err := js.Stream(t.Context(), "K8S"); errors.Is(err, jetstream.ErrStreamNotFound) {
						makeStream(t, js, stream)
					}
				}
				if b.node != nil {
					d.Restart = func(*testing.T) { b.node.Restart() }
				}
				d.Stop = func() {
					p.Close()
					nc.Close()
					b.stop()
				}
				return d
			})
		})
	}
}

func TestConformanceCore(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		b := ownProcess(t)
		nc, _ := observe(t, b)
		sub := subscribe(t, nc, "k8s.>")
		p := testkit.NewProxy(t, strings.TrimPrefix(b.url, "nats://"))
		d := b.destination(t, p, false)
		d.Received = func(t *testing.T) []string {
			var out []string
			for _, m := range sub.all() {
				var e struct{ ID string }
				if err := json.Unmarshal(m.Data, &e); err != nil {
					t.Error(err)
				}
				out = append(out, e.ID)
			}
			return out
		}
		d.Stop = func() {
			p.Close()
			nc.Close()
			b.stop()
		}
		return d
	})
}
