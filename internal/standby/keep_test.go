package standby_test

import (
	"context"
	crand "crypto/rand"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/standby"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
)

// TestFullStream: a leader that ends while the stream has no room is replaced all the same, without and with a snapshot, and a store
// that is adopted begins its journal.
func TestFullStream(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	g.maxBytes = 1 << 20
	first, second := g.replicas[0], g.replicas[1]
	if err := g.lead(first); err != nil {
		t.Fatal(err)
	}
	g.fill(first)
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	if err := second.member.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.fill(second)
	if err := errors.Join(g.lead(first), first.member.Keep(t.Context()), g.random(first.store, randomSize)); err != nil {
		t.Fatal(err)
	}
	g.fill(first)
	if err := standby.Adopt(second.dir); err != nil {
		t.Fatal(err)
	}
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	second.end(t)
}

// fill has a replica that leads write until the stream has no room, and ends it. It does not resign.
func (g *group) fill(r *replica) { // to the last byte: entries without a batch have the size of one that begins a term
	t := g.t
	t.Helper()
	j := g.journalOf()
	for {
		x, err := j.Extent(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		left, size := uint64(g.maxBytes)-x.Bytes, randomSize
		if left < 2*randomSize {
			size = 256
		}
		if left < 2<<10 {
			break
		}
		if err := g.random(r.store, size); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	for err == nil {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = r.store.EraseReplicas(ctx)
		cancel()
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	r.store.StopAppends()
	r.end(t)
}

// TestFullStreamWithoutSnapshots: so is one whose successor gets no answer about the snapshot, as where the servers of that stream have no
// leader, and the stream is trimmed although it is not known up to where it could be.
func TestFullStreamWithoutSnapshots(t *testing.T) {
	t.Parallel()
	some := natstest.User{Name: "some", Password: "some", Publish: []string{
		"watcherd.>", "_INBOX.>", "$JS.API.STREAM.INFO.J", "$JS.API.STREAM.MSG.GET.J", "$JS.API.STREAM.PURGE.J", "$JS.API.CONSUMER.>",
	}}
	node := natstest.Start(t, natstest.Spec{Name: "solo", Dir: t.TempDir(), Users: []natstest.User{some, {Name: "all", Password: "all"}}})
	as := func(user string) []*natstest.Node {
		return []*natstest.Node{{URL: strings.Replace(node.URL, "//", "//"+user+":"+user+"@", 1)}}
	}
	g := newGroup(t, as("all"))
	g.maxBytes = 1 << 20
	first, second := g.replicas[0], g.replicas[1]
	for _, r := range []*replica{second, first} {
		if err := errors.Join(g.lead(r), g.random(r.store, randomSize)); err != nil {
			t.Fatal(err)
		}
		if r == second {
			second.end(t)
		}
	}
	if err := first.member.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.fill(first)
	g.nodes = as("some")
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- second.member.Run(ctx) }()
	late := time.AfterFunc(patience, second.store.StopAppends)
	defer late.Stop()
	for range 2 * g.maxBytes / randomSize {
		if err := g.random(second.store, randomSize); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := <-kept; err != nil {
		t.Fatal(err)
	}
	second.end(t)
}

// TestStreamWithoutBound: a stream that was made without a bound is trimmed as if it had the one that is configured.
func TestStreamWithoutBound(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	_, err := nodes[0].Connect().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "J", Subjects: []string{"watcherd.journal.J"}, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew,
	})
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, nodes)
	g.maxBytes = 1 << 20
	r := g.replicas[0]
	if err := g.lead(r); err != nil {
		t.Fatal(err)
	}
	for range g.maxBytes / randomSize {
		if err := g.random(r.store, randomSize); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.member.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if x, err := g.journalOf().Extent(t.Context()); err != nil || x.Bytes > uint64(g.maxBytes)/2 {
		t.Errorf("the stream has %d bytes: %v", x.Bytes, err)
	}
	g.same(r, g.replicas[1])
}

// TestSnapshotOnDemand: when much was written behind the snapshot, another is made, although nothing has to be trimmed.
func TestSnapshotOnDemand(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	g.maxBytes = 64 << 20
	r := g.replicas[0]
	if err := errors.Join(g.lead(r), r.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		size  int64 // what is written
		again bool
	}{{1 << 20, false}, {12 << 20, true}, {0, false}} { // a sixteenth of the stream, which is four times a small snapshot
		before, err := g.journalOf().Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range tc.size / (256 << 10) {
			if err := g.random(r.store, 256<<10); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.member.Keep(t.Context()); err != nil {
			t.Fatal(err)
		}
		switch now, err := g.journalOf().Snapshot(t.Context()); {
		case err != nil:
			t.Fatal(err)
		case now.Last > before.Last != tc.again:
			t.Errorf("%d bytes: the snapshot was of sequence %d and is of %d", tc.size, before.Last, now.Last)
		}
	}
	r.end(t)
}

// TestBehind: what a snapshot lacks is a share of the journal by the number of messages, and nothing where it is younger than what is
// known of the stream.
func TestBehind(t *testing.T) {
	t.Parallel()
	const room = 1 << 30
	for _, tc := range []struct {
		first, last, at uint64
		bytes, size     uint64
		want            bool
	}{
		{1, 1000, 500, room / 4, 1 << 20, true},
		{1, 1000, 900, room / 4, 1 << 20, false},       // a fortieth of the room
		{1, 1000, 500, room / 4, room / 16, false},     // another costs as much
		{1, 1000, 1000, room / 2, 1 << 20, false},      // nothing is behind it
		{1, 1000, 1001, room / 2, 1 << 20, false},      // it was made since
		{1001, 1000, 1000, 0, 1 << 20, false},          // nothing is left
		{501, 1000, 500, room / 2, 1 << 20, true},      // all
		{501, 1000, 1 << 40, room / 2, 1 << 20, false}, // as above
	} {
		s := &journal.Snapshot{Position: store.Position{Last: tc.at}, Size: tc.size}
		if got := standby.Behind(journal.Extent{First: tc.first, Last: tc.last, Bytes: tc.bytes, Room: room}, s); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

// TestTrimOnDemand writes many times what the stream has room for, as fast as it takes that: it is trimmed as it fills,
// not once in ten seconds.
func TestTrimOnDemand(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	g.maxBytes = 1 << 20
	r := g.replicas[0]
	if err := g.lead(r); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- r.member.Run(ctx) }()
	deadline := time.Now().Add(patience)
	for written := int64(0); written < 8*g.maxBytes; {
		if err := g.random(r.store, randomSize); err != nil {
			t.Fatal(err)
		}
		written += randomSize
		if time.Now().After(deadline) {
			t.Fatalf("the stream of %d bytes has taken %d only", g.maxBytes, written)
		}
	}
	stop()
	if err := <-kept; err != nil {
		t.Fatal(err)
	}
	g.same(r, g.replicas[1])
}

const randomSize = 16 << 10

// random commits a record that cannot be compressed.
func (g *group) random(s *store.Store, size int) error {
	b := s.NewBatch()
	defer b.Discard()
	payload := make([]byte, size)
	_, _ = crand.Read(payload)
	b.Append(store.Record{Time: time.Now(), Payload: payload}, nil)
	err := s.Commit(b)
	if err == nil {
		g.log = append(g.log, string(payload))
	}
	return err
}

// TestHoles: a replica that is off while the stream loses entries amid others is seeded behind them, and leads.
func TestHoles(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	random := rand.New(rand.NewPCG(37, 37))
	first, second := g.replicas[0], g.replicas[1]
	js := nodes[0].Connect()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "J", Subjects: []string{"watcherd.journal.J"}, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew,
	})
	if err != nil {
		t.Fatal(err)
	}
	g.term(first, random)
	g.term(second, random)
	if err := errors.Join(g.lead(first), g.work(first.store, random, 20)); err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), first.store.JournalPosition().Last-3); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.work(first.store, random, 20), first.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	first.end(t)
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	g.same(second, first)
}
