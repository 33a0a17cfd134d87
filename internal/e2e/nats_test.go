package e2e

import (
	"context"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/testkit"
)

// bus is a real NATS server with a stream on disk, which outlives restarts.
type bus struct {
	t       testing.TB
	options server.Options
	server  *server.Server // nil while it is down
	read    uint64         // sequence of the last message that was tapped
}

// stream is the name of the stream that the daemon publishes to.
const stream = "K8S"

func newBus(t testing.TB) *bus {
	b := &bus{t: t, options: server.Options{
		Host: "127.0.0.1", Port: testkit.Port(t), NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: t.TempDir(),
	}}
	b.up()
	t.Cleanup(b.down)
	b.use(func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{"k8s.>"}, Storage: jetstream.FileStorage})
		return err
	})
	return b
}

func (b *bus) url() string { return b.server.ClientURL() }

// up starts the server, on the same port and data as before.
func (b *bus) up() {
	b.t.Helper()
	options := b.options
	s, err := server.NewServer(&options)
	if err != nil {
		b.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		b.t.Fatal("the NATS server does not start")
	}
	b.server, b.options.Port = s, options.Port
}

func (b *bus) down() {
	if b.server == nil {
		return
	}
	b.server.Shutdown()
	b.server.WaitForShutdown()
	b.server = nil
}

// use calls f with a connection of its own.
func (b *bus) use(f func(ctx context.Context, js jetstream.JetStream) error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	nc, err := nats.Connect(b.url(), nats.MaxReconnects(0))
	if err != nil {
		b.t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err == nil {
		err = f(ctx, js)
	}
	closed := make(chan struct{})
	nc.SetClosedHandler(func(*nats.Conn) { close(closed) })
	nc.Close()
	<-closed
	if err != nil {
		b.t.Fatal(err)
	}
}

// tap shows the stream's messages. While the server is down there is nothing new.
func (b *bus) tap() *tap {
	return newTap("nats", func() (bodies [][]byte, err error) {
		if b.server == nil {
			return nil, nil
		}
		b.use(func(ctx context.Context, js jetstream.JetStream) error {
			s, err := js.Stream(ctx, stream)
			if err != nil {
				return err
			}
			for last := s.CachedInfo().State.LastSeq; b.read < last; {
				m, err := s.GetMsg(ctx, b.read+1)
				if err != nil {
					return err
				}
				bodies = append(bodies, m.Data)
				b.read++
			}
			return nil
		})
		return bodies, nil
	})
}
