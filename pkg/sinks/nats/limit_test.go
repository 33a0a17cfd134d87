package nats

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// TestRaisedLimit: a limit that an operator raises does not hold for the life of the connection, where it would make dead
// letters of what the stream takes.
func TestRaisedLimit(t *testing.T) {
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	nc, err := client.Connect(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream := jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, Storage: jetstream.MemoryStorage, MaxMsgSize: 20_000}
	if _, err := js.CreateStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	c := NewConfig()
	c.URL, c.Subject, c.JetStream = srv.ClientURL(), "k8s.{resource}", &JetStream{Stream: "K8S"}
	s := sinktest.Open(t, c).(*sink)
	if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Fatal(err)
	}
	if n := s.Limits().MaxEventBytes; n >= 20_000 {
		t.Fatalf("limit %d", n)
	}
	stream.MaxMsgSize = 1_000_000
	if _, err := js.UpdateStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	of := s.current.Load()
	of.limit.Store(&limit{of.limit.Load().bytes, time.Now().Add(-lookAgain)}) // a while ago
	large := sinktest.Large(2, 2, 100<<10)
	if n := s.Limits().MaxEventBytes; n <= large.Size() {
		t.Errorf("the worker is told that the stream takes %d bytes", n)
	}
	if err := s.Write(t.Context(), []*event.Event{large}); err != nil {
		t.Error(err)
	}
	if own := of.limit.Load(); own == nil || own.bytes != 1_000_000 {
		t.Errorf("limit %+v", own)
	}
}
