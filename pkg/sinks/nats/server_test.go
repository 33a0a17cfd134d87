package nats_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/pkg/sinks/nats"
)

const patience = time.Minute

// startServer starts a real server in this process, on a free port.
func startServer(t *testing.T, change func(o *server.Options)) *server.Server {
	t.Helper()
	o := &server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir()}
	if change != nil {
		change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	return s
}

func stopServer(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// connect is a client beside the sink's.
func connect(t *testing.T, url string, options ...client.Option) (*client.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := client.Connect(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

func makeStream(t *testing.T, js jetstream.JetStream, change func(c *jetstream.StreamConfig)) {
	t.Helper()
	c := jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, Storage: jetstream.MemoryStorage}
	if change != nil {
		change(&c)
	}
	if _, err := js.CreateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// stored returns the messages of the stream, in its order.
func stored(t *testing.T, js jetstream.JetStream) []*jetstream.RawStreamMsg {
	t.Helper()
	var stream jetstream.Stream
	var err error
	eventually(t, "the stream answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		stream, err = js.Stream(ctx, "K8S")
		return err == nil
	})
	state := stream.CachedInfo().State
	var out []*jetstream.RawStreamMsg
	for seq := state.FirstSeq; seq <= state.LastSeq && state.Msgs > 0; seq++ {
		var m *jetstream.RawStreamMsg
		eventually(t, "the stream gives its messages", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			m, err = stream.GetMsg(ctx, seq)
			return err == nil
		})
		out = append(out, m)
	}
	return out
}

// idsOf are the ids of the events in messages, which begin those of the messages.
func idsOf(messages []*jetstream.RawStreamMsg) []string {
	var out []string
	for _, m := range messages {
		var e struct{ ID string }
		if err := json.Unmarshal(m.Data, &e); err != nil || e.ID == "" { // in binary mode
			e.ID, _, _ = strings.Cut(m.Header.Get("Nats-Msg-Id"), ".")
		}
		out = append(out, e.ID)
	}
	return out
}

func configFor(url string, js bool) *nats.Config {
	c := nats.NewConfig()
	c.URL = url
	if js {
		c.JetStream = &nats.JetStream{Stream: "K8S"}
	}
	return c
}

// subscriber collects what core NATS hands on.
type subscriber struct {
	mu       sync.Mutex
	messages []*client.Msg
}

func subscribe(t *testing.T, nc *client.Conn, subject string) *subscriber {
	t.Helper()
	s := &subscriber{}
	_, err := nc.Subscribe(subject, func(m *client.Msg) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.messages = append(s.messages, m)
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *subscriber) all() []*client.Msg {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.messages)
}
