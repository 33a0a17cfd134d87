package journal_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
)

// leading is the server that leads the stream, by what the servers say that one is connected to.
func leading(t *testing.T, nodes []*natstest.Node, js jetstream.JetStream) *natstest.Node {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if s, err := js.Stream(t.Context(), "J"); err == nil {
			name := s.CachedInfo().Cluster.Leader
			if i := slices.IndexFunc(nodes, func(n *natstest.Node) bool { return n.Name == name }); i >= 0 {
				return nodes[i]
			}
		}
		if time.Now().After(end) {
			t.Fatal("no server leads the stream")
		}
	}
}

// insist repeats what fails until the stream is known to have another past.
func insist(t *testing.T, do func() error) error {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if err := do(); err == nil || errors.Is(err, journal.ErrDiverged) || time.Now().After(end) {
			return err
		}
	}
}

// TestServerBehind: a server that led the stream, and was parted from the others, answers with what the stream had then. For a replica and
// a writer that are ahead of it, the stream has lost nothing: both continue with the others.
func TestServerBehind(t *testing.T) {
	t.Parallel()
	for range 3 {
		if serverBehind(t) {
			return
		}
	}
	t.Fatal("each server that was parted noticed it before another was elected")
}

// serverBehind reports whether the server that was parted answered as one that leads.
func serverBehind(t *testing.T) bool {
	t.Helper()
	nodes := natstest.StartClusterBehind(t)
	c := configOf(t, "J", nodes...)
	open(t, c)
	old := leading(t, nodes, nodes[0].Connect())
	other := nodes[slices.IndexFunc(nodes, func(n *natstest.Node) bool { return n != old })]
	toOther, toOld := testkit.NewProxy(t, strings.TrimPrefix(other.URL, "nats://")), testkit.NewProxy(t, strings.TrimPrefix(old.URL, "nats://"))
	toOld.Cut()
	c.NATS.URLs = []string{"nats://" + toOther.Addr, "nats://" + toOld.Addr}
	w, _ := contend(t, open(t, c), store.Position{})
	c.NATS.URLs = []string{old.URL}
	follower, raw := open(t, c), old.Connect()
	appended := 0
	write := func() (p store.Position) {
		t.Helper()
		for range 5 {
			var err error
			if p, err = w.Append(t.Context(), fmt.Append(nil, appended)); err != nil {
				t.Fatal(err)
			}
			appended++
		}
		return p
	}
	write()
	old.Part()
	last := write() // by another leader
	info, err := raw.Stream(t.Context(), "J")
	if err != nil || info.CachedInfo().State.LastSeq >= last.Last {
		return false
	}
	r := follower.Read(last)
	defer r.Close()
	if _, err := r.Next(t.Context(), time.Second); err == nil || errors.Is(err, journal.ErrDiverged) {
		t.Errorf("a replica that is ahead of the server: %v", err)
	}
	if has, err := follower.Has(t.Context(), last); err == nil || errors.Is(err, journal.ErrDiverged) {
		t.Errorf("a snapshot that is ahead of the server: %v, %v", has, err)
	}
	toOther.Cut()
	toOld.Restore()
	done := make(chan error, 1)
	go func() {
		_, err := w.Append(t.Context(), fmt.Append(nil, appended))
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("an append to the server that is behind: %v", err)
	case <-time.After(5 * time.Second): // it has asked the server
	}
	old.Join()
	if err := <-done; err != nil {
		t.Fatalf("the append, once the server is not behind: %v", err)
	}
	if got := read(t, r); len(got) != 1 || got[0].Kind != journal.Batch {
		t.Errorf("behind %d came %+v", last.Last, got)
	}
	return true
}

// TestStreamInPlaceOfAnother: a stream that took the place of a journal, and is as long, is followed by no replica and takes nothing of the
// writer that was cut off meanwhile.
func TestStreamInPlaceOfAnother(t *testing.T) {
	t.Parallel()
	solo := startOne(t)
	p := testkit.NewProxy(t, strings.TrimPrefix(solo.URL, "nats://"))
	c := configOf(t, "J", solo)
	direct := open(t, c)
	c.NATS.URLs = []string{"nats://" + p.Addr}
	w, _ := contend(t, open(t, c), store.Position{})
	last, err := w.Append(t.Context(), []byte("of the first"))
	if err != nil {
		t.Fatal(err)
	}
	r := direct.Read(store.Position{})
	defer r.Close()
	read(t, r)
	p.Cut()
	done := make(chan error, 1)
	go func() {
		_, err := w.Append(t.Context(), []byte("of the first, too"))
		done <- err
	}()
	if err := solo.Connect().DeleteStream(t.Context(), "J"); err != nil {
		t.Fatal(err)
	}
	second := open(t, configOf(t, "J", solo))
	w2, _ := contend(t, second, store.Position{})
	var end store.Position
	for end.Last < last.Last {
		if end, err = w2.Append(t.Context(), []byte("of the second")); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := r.Contend(t.Context(), t.Name(), nil); !errors.Is(err, journal.ErrDiverged) {
		t.Errorf("a replica of the first stream contends in the second: %v", err)
	}
	p.Restore()
	if err := <-done; !errors.Is(err, journal.ErrDiverged) {
		t.Errorf("the writer of the first stream appends to the second: %v", err)
	}
	if x, err := second.Extent(t.Context()); err != nil || x.Last != end.Last {
		t.Errorf("the second stream ends at %d, was at %d: %v", x.Last, end.Last, err)
	}
}

// TestServerParted: a writer whose server is parted from the others, and keeps the connection, continues with another.
func TestServerParted(t *testing.T) {
	t.Parallel()
	nodes := natstest.StartClusterBehind(t)
	c := configOf(t, "J", nodes...)
	c.NATS.URLs = nil
	var ways []*testkit.Proxy
	for _, n := range nodes {
		ways = append(ways, testkit.NewProxy(t, strings.TrimPrefix(n.URL, "nats://")))
		c.NATS.URLs = append(c.NATS.URLs, "nats://"+ways[len(ways)-1].Addr)
	}
	ways[1].Cut()
	ways[2].Cut()
	w, _ := contend(t, open(t, c), store.Position{})
	ways[1].Restore()
	ways[2].Restore()
	nodes[0].Part()
	defer nodes[0].Join()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := w.Append(ctx, []byte("batch")); err != nil {
		t.Fatal(err)
	}
}

// TestDirectAccess: a server that is behind is not asked for what the stream has, also where the stream lets it answer: what it lacks
// would be taken for trimmed.
func TestDirectAccess(t *testing.T) {
	t.Parallel()
	nodes := natstest.StartClusterBehind(t)
	c := configOf(t, "J", nodes...)
	open(t, c)
	js := nodes[0].Connect()
	stream, err := js.Stream(t.Context(), "J")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.AllowDirect = true
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	leader := leading(t, nodes, js)
	behind := nodes[slices.IndexFunc(nodes, func(n *natstest.Node) bool { return n != leader })]
	c.NATS.URLs = []string{leader.URL}
	w, _ := contend(t, open(t, c), store.Position{})
	c.NATS.URLs = []string{behind.URL}
	follower := open(t, c)
	behind.Part()
	var last store.Position
	for range 200 {
		batch := make([]byte, 256<<10)
		rand.Read(batch)
		if last, err = w.Append(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	behind.Join()
	for end := time.Now().Add(patience); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond) // at once when it is joined: soon it has all
		has, err := follower.Has(ctx, last)
		cancel()
		switch {
		case has:
			return
		case err == nil:
			t.Fatal("the last entry is taken for trimmed")
		case time.Now().After(end):
			t.Fatal(err)
		}
	}
}
