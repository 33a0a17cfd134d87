package standby_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/crypto/chacha20poly1305"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/waittest"
)

// decrypted is what the entries of the stream have, for a client that has the key and nothing of our code.
func decrypted(t *testing.T, js jetstream.JetStream) (all []byte) {
	t.Helper()
	key := sha256.Sum256([]byte("watcherd journal 0123456789abcdef"))
	aead, err := chacha20poly1305.NewX(key[:])
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "J")
	if err != nil {
		t.Fatal(err)
	}
	state := stream.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		body, err := aead.Open(nil, m.Data[:aead.NonceSize()], m.Data[aead.NonceSize():], []byte(m.Header.Get("Watcherd-Entry")))
		if err == nil {
			body, err = s2.Decode(nil, body)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, body...)
	}
	return all
}

func snapshotText(t *testing.T, j *journal.Client) (all []byte) {
	t.Helper()
	s, err := j.Snapshot(t.Context())
	if err == nil && s != nil {
		err = j.Load(t.Context(), s, func(r io.Reader) (err error) { all, err = io.ReadAll(r); return err })
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestErase: what a scrub removes from the store is then in no entry of the stream, not in the snapshot, and in no
// folder of a replica; one that was down meanwhile is seeded.
func TestErase(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	random := rand.New(rand.NewPCG(12, 12))
	const canary = "canary-hunter2"
	first, second, third := g.replicas[0], g.replicas[1], &replica{dir: t.TempDir() + "/store"}
	write := func(s *store.Store) {
		t.Helper()
		b := s.NewBatch()
		for range 50 {
			var payload []byte
			for range 100 {
				payload = append(payload, byte(random.Uint32()))
			}
			payload = append(payload, canary...)
			b.Append(store.Record{Time: time.Now(), Payload: payload}, nil)
			g.log = append(g.log, strings.ReplaceAll(string(payload), canary, "-"))
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []*replica{third, first} {
		if err := g.lead(r); err != nil {
			t.Fatal(err)
		}
		write(r.store)
		if r == third {
			r.end(t)
		}
	}
	if err := first.member.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.takeOver = patience
	led := make(chan error, 1)
	go func() { led <- g.lead(second) }()
	j, js := g.journalOf(), nodes[0].Connect()
	wait := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	wait("no follower has the canary", func() bool { return len(holds(t, second.dir, canary)) > 0 })
	if !bytes.Contains(decrypted(t, js), []byte(canary)) || !bytes.Contains(snapshotText(t, j), []byte(canary)) ||
		len(holds(t, first.dir, canary)) == 0 || len(holds(t, third.dir, canary)) == 0 {
		t.Fatal("the canary is not everywhere")
	}

	var after uint64
	for end := false; !end; {
		var err error
		after, _, end, err = first.store.RewriteLog(after, func(p []byte) ([]byte, bool) {
			return bytes.ReplaceAll(p, []byte(canary), []byte("-")), bytes.Contains(p, []byte(canary))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := first.store.EraseObsolete(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A replica that answers and is behind is waited for.
	var asked atomic.Int64
	var at atomic.Uint64
	ghost := g.journalOf()
	if err := ghost.Answer(func() journal.Present {
		asked.Add(1)
		return journal.Present{Replica: "ghost", Last: at.Load()}
	}); err != nil {
		t.Fatal(err)
	}
	erased := make(chan error, 1)
	go func() { erased <- first.member.Erase(t.Context()) }()
	wait("it is not asked", func() bool { return asked.Load() > 4 })
	if x, err := j.Extent(t.Context()); err != nil || x.First > 1 {
		t.Errorf("the stream begins at %d while a replica is behind: %v", x.First, err)
	}
	at.Store(math.MaxUint64)
	if err := <-erased; err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(decrypted(t, js), []byte(canary)) {
		t.Error("the stream has it")
	}
	if bytes.Contains(snapshotText(t, j), []byte(canary)) {
		t.Error("the snapshot has it")
	}
	for name, r := range map[string]*replica{"leader": first, "follower": second} {
		if files := holds(t, r.dir, canary); len(files) > 0 {
			t.Errorf("the %s has it: %v", name, files)
		}
	}
	first.end(t)
	if err := <-led; err != nil {
		t.Fatal(err)
	}
	g.takeOver = 300 * time.Millisecond
	g.same(second, third)
	if files := holds(t, third.dir, canary); len(files) > 0 {
		t.Errorf("the replica that was down has it: %v", files)
	}
	// Without another replica.
	if err := errors.Join(g.lead(third)); err != nil {
		t.Fatal(err)
	}
	if err := third.member.Erase(t.Context()); err != nil {
		t.Fatal(err)
	}
	third.end(t)
}

// TestEraseBesideASnapshot: the snapshot that follows that of a scrub, as one is due while that is made, is whole.
func TestEraseBesideASnapshot(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	first, second := g.replicas[0], g.replicas[1]
	if err := g.lead(first); err != nil {
		t.Fatal(err)
	}
	for range 8 { // so that a snapshot takes a while
		if err := g.random(first.store, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	j, js := g.journalOf(), nodes[0].Connect()
	erased := make(chan error, 1)
	go func() { erased <- first.member.Erase(t.Context()) }()
	waittest.Until(t, "the first part of a snapshot", func() bool {
		stream, err := js.Stream(t.Context(), j.SnapshotStream())
		return err == nil && stream.CachedInfo().State.Msgs > 0
	})
	if err := errors.Join(first.member.Keep(t.Context()), <-erased); err != nil {
		t.Fatal(err)
	}
	s, err := j.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if whole, err := j.Whole(t.Context(), s); !whole || err != nil {
		t.Errorf("the snapshot lacks parts: %v", err)
	}
	g.same(first, second)
}
