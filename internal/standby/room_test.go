package standby_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/testservers/natstest"
)

// TestInterruptedSnapshot: a leader that ends while it makes a snapshot for which the servers have no room, and none for entries then, is
// replaced all the same, and the next one has room to write.
func TestInterruptedSnapshot(t *testing.T) {
	t.Parallel()
	for name, least := range map[string]int{"no entry fits": 1, "a term fits": 2 << 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limits := filepath.Join(t.TempDir(), "nats.conf")
			if err := os.WriteFile(limits, []byte("accounts {A {users: [{user: a, password: a}], jetstream: {max_file: 4MB}}}"), 0o600); err != nil {
				t.Fatal(err)
			}
			node := natstest.Start(t, natstest.Spec{Name: "solo", Dir: t.TempDir(), Config: limits})
			g := newGroup(t, []*natstest.Node{{URL: strings.Replace(node.URL, "//", "//a:a@", 1)}})
			g.maxBytes = 1 << 20
			first, second := g.replicas[0], g.replicas[1]
			if err := errors.Join(g.lead(first), g.random(first.store, randomSize), first.member.Keep(t.Context())); err != nil {
				t.Fatal(err)
			}
			first.store.StopAppends()
			first.end(t)
			conn, err := nats.Connect(g.nodes[0].URL)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			js, err := jetstream.New(conn)
			if err != nil {
				t.Fatal(err)
			}
			for size := 256 << 10; size >= least; {
				var full *jetstream.APIError
				if _, err := js.Publish(t.Context(), "watcherd.snapshot.J.LEFT", make([]byte, size)); errors.As(err, &full) {
					size /= 2
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if err := g.lead(second); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			kept := make(chan error, 1)
			go func() { kept <- second.member.Run(ctx) }()
			late := time.AfterFunc(patience, second.store.StopAppends)
			defer late.Stop()
			err = g.random(second.store, randomSize)
			stop()
			if err := errors.Join(err, <-kept); err != nil {
				t.Fatal(err)
			}
			g.same(second, first)
		})
	}
}
