package standby_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/standby"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
	"github.com/watcherd/watcherd/internal/waittest"
	"github.com/watcherd/watcherd/pkg/sinks/nats/natsclient/natsconfig"
)

func TestMain(m *testing.M) {
	if !seedUntilKilled() && !liveUntilKilled() {
		natstest.VerifyMain(m)
	}
}

// patience is for elections of servers on a loaded machine.
const patience = time.Minute

// replica is a directory, and the member that has it now.
type replica struct {
	dir    string
	member *standby.Member
	store  *store.Store
	stop   context.CancelFunc
	ran    chan struct{}
}

// group are the replicas of a store, and what was committed to it.
type group struct {
	t        *testing.T
	nodes    []*natstest.Node
	takeOver time.Duration
	maxBytes int64 // of the stream
	replicas [2]*replica
	writer   int      // number of the writer; part of payloads
	log      []string // payloads
}

func newGroup(t *testing.T, nodes []*natstest.Node) *group {
	g := &group{t: t, nodes: nodes, maxBytes: 1 << 30, takeOver: 300 * time.Millisecond} // below a leader's silence: it is replaced while it lives
	for i := range g.replicas {
		g.replicas[i] = &replica{dir: filepath.Join(t.TempDir(), "store")}
	}
	return g
}

// configOf is that of a replica.
func configOf(dir string, urls []string, maxBytes int64, takeOver time.Duration) (standby.Config, error) {
	log := slog.New(slog.DiscardHandler)
	keys, err := journal.NewKeys([]byte("0123456789abcdef"))
	return standby.Config{
		Journal: journal.Config{
			NATS: natsconfig.Config{URLs: urls, Name: "test", Timeout: 2 * time.Second, Log: log}, Stream: "J",
			Replicas: len(urls), MaxBytes: maxBytes, Keys: keys, Log: log,
		},
		Dir: dir, TakeOverAfter: takeOver, Begin: true, Host: "test", Log: log, Registerer: prometheus.NewRegistry(),
	}, err
}

func (g *group) urls() (urls []string) {
	for _, n := range g.nodes {
		urls = append(urls, n.URL)
	}
	return urls
}

// open makes the member of a replica.
func (g *group) open(r *replica, edit func(*standby.Config)) {
	g.t.Helper()
	c, err := configOf(r.dir, g.urls(), g.maxBytes, g.takeOver)
	if err == nil {
		edit(&c)
		r.member, err = standby.New(c)
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// lead makes a replica lead, beside the other if that leads.
func (g *group) lead(r *replica) error {
	g.t.Helper()
	if r.member == nil {
		g.open(r, func(*standby.Config) {})
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	var err error
	if r.store, err = r.member.Lead(ctx); err != nil {
		r.member.Close()
		r.member = nil
		return err
	}
	ctx, r.stop = context.WithCancel(g.t.Context())
	r.ran = make(chan struct{})
	go func() {
		defer close(r.ran)
		_ = r.store.Run(ctx) // its error is that of the store
	}()
	return nil
}

// end closes a replica, which resigns if it still leads.
func (r *replica) end(t *testing.T) {
	t.Helper()
	if r.member == nil {
		return
	}
	r.stop()
	<-r.ran
	if err := r.store.Close(); err != nil {
		t.Error(err)
	}
	r.member.Close()
	r.member = nil
}

// term has a replica lead, work, and end.
func (g *group) term(r *replica, random *rand.Rand) {
	g.t.Helper()
	if err := errors.Join(g.lead(r), g.work(r.store, random, 20)); err != nil {
		g.t.Fatal(err)
	}
	r.end(g.t)
}

// work uses many of a store's methods, until one fails.
func (g *group) work(s *store.Store, random *rand.Rand, n int) error {
	for range n {
		var err error
		sink := string(rune('a' + random.IntN(2)))
		switch k := random.IntN(10); k {
		case 0:
			_, err = s.EnsureSink(sink, store.FromNow)
		case 1:
			if err = s.PurgeSink(sink); errors.Is(err, store.ErrUnknownSink) {
				err = nil
			}
		case 2, 3, 4:
			err = g.settle(s, sink, random)
		default:
			err = g.commit(s, random)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// commitAlone commits to a replica's store that is opened without its journal.
func (g *group) commitAlone(r *replica, random *rand.Rand) error {
	s, err := store.Open(r.dir, store.Options{})
	if err != nil {
		return err
	}
	return errors.Join(g.commit(s, random), s.Close())
}

func (g *group) commit(s *store.Store, random *rand.Rand) error {
	b := s.NewBatch()
	defer b.Discard()
	var added []string
	n := 1 + random.IntN(20)
	for i := range n {
		payload := fmt.Sprintf("%d %d %d", g.writer, len(g.log)+i, len(g.log)+n) // checked by histories
		var routes []store.Route
		for _, name := range s.Sinks() {
			routes = append(routes, store.Route{Sink: name})
		}
		b.Append(store.Record{Time: time.Now(), Payload: []byte(payload)}, routes)
		added = append(added, payload)
	}
	b.PutState("p", "last", []byte(added[len(added)-1]))
	if err := s.Commit(b); err != nil {
		return err
	}
	g.log = append(g.log, added...)
	return nil
}

func (g *group) settle(s *store.Store, sink string, random *rand.Rand) error {
	q, err := s.Queue(sink)
	if errors.Is(err, store.ErrUnknownSink) {
		return nil
	}
	if err != nil {
		return err
	}
	items, err := q.Read(0, 10, 1<<20)
	for _, item := range items {
		switch random.IntN(4) {
		case 0:
			err = errors.Join(err, q.DeadLetter(item.Position, store.Letter{Reason: "r", Time: time.Now()}))
		case 1:
		default:
			err = errors.Join(err, q.Ack(item.Position))
		}
	}
	return errors.Join(err, q.PutNote(fmt.Append(nil, random.Int())))
}

// contents are the keys and values of a directory that nobody uses, but its position in the journal.
func contents(t *testing.T, dir string) (all []string) {
	t.Helper()
	db, err := pebble.Open(filepath.Join(dir, "db"), &pebble.Options{Merger: layout.NewMerger(), FormatMajorVersion: pebble.FormatNewest})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	it, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if it.Key()[0] != layout.PrefixJournal && it.Key()[0] != layout.PrefixTerm { // the other leads by then
			all = append(all, fmt.Sprintf("%q=%q", it.Key(), it.Value()))
		}
	}
	return all
}

// same checks that a replica that leads has what was committed, ends it, has the other take over, and compares their
// directories.
func (g *group) same(last, other *replica) {
	t := g.t
	t.Helper()
	if diff := cmp.Diff(g.log, payloads(t, last.store)); diff != "" {
		t.Errorf("the log differs from what was committed:\n%s", diff)
	}
	last.end(t)
	if err := g.lead(other); err != nil {
		t.Fatal(err)
	}
	other.end(t)
	if diff := cmp.Diff(contents(t, last.dir), contents(t, other.dir)); diff != "" {
		t.Errorf("the directories differ:\n%s", diff)
	}
}

// payloads are those of a store's log.
func payloads(t *testing.T, s *store.Store) (all []string) {
	t.Helper()
	for after := uint64(0); ; {
		items, err := s.ReadLog(after, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(items) == 0 {
			return all
		}
		for _, item := range items {
			all = append(all, string(item.Payload))
		}
		after = items[len(items)-1].Sequence
	}
}

func one(t *testing.T) []*natstest.Node {
	return []*natstest.Node{natstest.Start(t, natstest.Spec{Name: "solo", Dir: t.TempDir()})}
}

// TestStoreWithRecords: a store that has records begins a journal, which only copies of it can follow; a store with
// other records is refused until it is adopted.
func TestStoreWithRecords(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	random := rand.New(rand.NewPCG(6, 6))
	first, second := g.replicas[0], g.replicas[1]
	for _, r := range g.replicas { // without a journal
		if err := g.commitAlone(r, random); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.lead(first); err != nil {
		t.Fatal(err)
	}
	if err := g.work(first.store, random, 50); err != nil {
		t.Fatal(err)
	}
	records := first.store.LogStats().Records
	if err := g.lead(second); !errors.Is(err, journal.ErrDiverged) {
		t.Fatalf("a store with other records: %v", err)
	}
	copied := &replica{dir: filepath.Join(t.TempDir(), "copy")}
	if err := first.store.Backup(t.Context(), copied.dir); err != nil {
		t.Fatal(err)
	}
	if err := g.work(first.store, random, 50); err != nil {
		t.Fatal(err)
	}
	first.end(t)
	if err := g.lead(copied); err != nil {
		t.Fatal(err)
	}
	if n := copied.store.LogStats().Records; n < records {
		t.Errorf("%d records in the copy, the store had %d", n, records)
	}
	copied.end(t)
	if err := standby.Adopt(second.dir); err != nil {
		t.Fatal(err)
	}
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.work(second.store, random, 10), second.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	second.end(t)
	if err := g.lead(first); !errors.Is(err, journal.ErrDiverged) {
		t.Fatalf("a store that is not of the new journal: %v", err)
	}
	j := g.journalOf()
	before, err := j.Extent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, entries := range []uint64{0, before.Last + 1} { // behind the snapshot
		if err := g.lead(second); err != nil {
			t.Fatalf("the adopted store: %v", err)
		}
		for x, err := before, error(nil); x.Last < before.Last+entries; x, err = j.Extent(t.Context()) {
			if err := errors.Join(err, g.work(second.store, random, 10)); err != nil {
				t.Fatal(err)
			}
		}
		s, err := second.member.Save(t.Context())
		if err == nil {
			err = j.Trim(t.Context(), s.First)
		}
		if err != nil {
			t.Fatal(err)
		}
		second.end(t)
		if err := g.lead(first); !errors.Is(err, journal.ErrDiverged) {
			t.Fatalf("the same when the stream does not have its last entry any more, and %d others: %v", entries, err)
		}
	}
}

// TestTurnedOff: a replica that ran without its journal for a while has records that no other has. It is refused, until it is
// adopted or seeded; the others lead without it.
func TestTurnedOff(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	random := rand.New(rand.NewPCG(14, 14))
	first, second := g.replicas[0], g.replicas[1]
	for _, r := range []*replica{second, first} {
		if err := errors.Join(g.lead(r), g.work(r.store, random, 20)); err != nil {
			t.Fatal(err)
		}
		r.end(t)
	}
	committed := g.log
	if err := g.commitAlone(first, random); err != nil {
		t.Fatal(err)
	}
	if err := g.lead(first); !errors.Is(err, journal.ErrDiverged) {
		t.Fatalf("a store that was written without its journal: %v", err)
	}
	if err := os.RemoveAll(first.dir); err != nil {
		t.Fatal(err)
	}
	g.log = committed
	if err := errors.Join(g.lead(second), g.work(second.store, random, 20)); err != nil {
		t.Fatal(err)
	}
	g.same(second, first)
}

// TestAdoptedOnce: a store that was adopted and led, but ended before that was noted, is refused as any other when it has left the journal.
func TestAdoptedOnce(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	random := rand.New(rand.NewPCG(27, 27))
	r := g.replicas[0]
	g.term(r, random)
	if err := standby.Adopt(r.dir); err != nil {
		t.Fatal(err)
	}
	note := filepath.Join(r.dir, "ADOPT")
	g.term(r, random)
	if _, err := os.Stat(note); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("it is not noted that the store is adopted: %v", err)
	}
	if err := os.WriteFile(note, nil, 0o600); err != nil { // as if it had ended before
		t.Fatal(err)
	}
	g.term(r, random)
	if err := g.commitAlone(r, random); err != nil {
		t.Fatal(err)
	}
	if err := g.lead(r); !errors.Is(err, journal.ErrDiverged) {
		t.Errorf("a store that was written without its journal: %v", err)
	}
	r.end(t)
}

// TestAdoptedOther: a folder that was empty when it met the journal, and was used without it and adopted since, has records that no other
// has: it is refused when another store was adopted behind it.
func TestAdoptedOther(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	random := rand.New(rand.NewPCG(32, 32))
	first, second := g.replicas[0], g.replicas[1]
	g.term(first, random)
	js := nodes[0].Connect()
	stream, err := js.Stream(t.Context(), "J")
	if err == nil {
		err = stream.Purge(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	g.open(second, func(*standby.Config) {})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := second.member.Lead(ctx) // it waits for a snapshot
		ended <- err
	}()
	waittest.Until(t, "the empty folder meets the journal", func() bool {
		_, err := os.Stat(filepath.Join(second.dir, "NEW"))
		return err == nil
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	second.member.Close()
	second.member = nil
	if err := g.commitAlone(second, random); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*replica{second, first} {
		if err := standby.Adopt(r.dir); err != nil {
			t.Fatal(err)
		}
		if err := g.lead(r); err != nil {
			t.Fatal(err)
		}
		if _, err := r.member.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.end(t)
	}
	g.refused(second, contents(t, second.dir))
}

// TestAdoptOfNothing: what is no store, or an empty one, begins no journal. Who is taken to have adopted it would remove the stores of the
// other replicas.
func TestAdoptOfNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := standby.Adopt(dir); err == nil {
		t.Error("a folder without a store is adopted")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	empty, err := store.OpenReplica(filepath.Join(dir, "empty"), store.Options{})
	if err == nil {
		err = empty.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := standby.Adopt(filepath.Join(dir, "empty")); err == nil {
		t.Error("a store that is empty is adopted")
	}
}

// TestLeaderPosition: a leader knows the last entry that it has applied at once.
func TestLeaderPosition(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	r := g.replicas[0]
	if err := errors.Join(g.lead(r), g.work(r.store, rand.New(rand.NewPCG(18, 18)), 50)); err != nil {
		t.Fatal(err)
	}
	want := r.store.JournalPosition().Last
	if got := r.member.State().Last; got < want {
		t.Errorf("the leader is at entry %d, by its word at %d", want, got)
	}
	r.end(t)
}

// TestVolumeOfALivingLeader: a replica that finds a directory on another machine than that on which it led last does not take its leader for
// ended: the machine may only seem to be lost. Nor does one whose directory is a copy. It leads when that one is silent, or resigns.
func TestVolumeOfALivingLeader(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(dir string) error{
		"moved": func(dir string) error {
			id, err := os.ReadFile(filepath.Join(dir, "REPLICA"))
			id, _, _ = bytes.Cut(id, []byte(" ")) // and where it was, which is the same on the other machine
			return errors.Join(err, os.WriteFile(filepath.Join(dir, "REPLICA"), id, 0o600),
				os.WriteFile(filepath.Join(dir, "BOOT"), []byte("of another machine"), 0o600))
		},
		"copied": func(string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, one(t))
			random := rand.New(rand.NewPCG(19, 19))
			first, second := g.replicas[0], g.replicas[1]
			if err := errors.Join(g.lead(first), g.work(first.store, random, 20)); err != nil {
				t.Fatal(err)
			}
			first.end(t)
			g.takeOver = patience // above a leader's silence
			err := os.CopyFS(second.dir, os.DirFS(first.dir))
			if err = errors.Join(err, change(second.dir), g.lead(first)); err != nil {
				t.Fatal(err)
			}
			g.open(second, func(*standby.Config) {})
			member, from := second.member, first.store.JournalPosition().Last
			led := make(chan error, 1)
			go func() { led <- g.lead(second) }()
			for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
				s := member.State()
				if s.Leads || first.store.Err() != nil || time.Now().After(end) {
					t.Fatalf("%+v beside a leader whose store has failed: %v", s, first.store.Err())
				}
				if !s.Heard.IsZero() && s.Last > from+2 { // it had all, and read that the leader lives
					break
				}
			}
			if same := member.State().Replica == first.member.State().Replica; same != (name == "moved") {
				t.Errorf("they are one replica: %v", same)
			}
			first.end(t)
			if err := <-led; err != nil {
				t.Fatal(err)
			}
			second.end(t)
		})
	}
}

// TestLeaderInItsPlace: a leader that is killed, and started again on its machine, does not wait for itself.
func TestLeaderInItsPlace(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	r := g.replicas[0]
	if err := errors.Join(g.lead(r), g.work(r.store, rand.New(rand.NewPCG(20, 20)), 20)); err != nil {
		t.Fatal(err)
	}
	r.store.StopAppends() // it does not resign
	r.end(t)
	g.takeOver = 2 * patience
	if err := g.lead(r); err != nil {
		t.Fatal(err)
	}
	r.end(t)
}

// TestAdoptBesideALeader: a store that is adopted while another replica leads takes nothing from it; it begins its journal once the other
// has ended.
func TestAdoptBesideALeader(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	g.takeOver = 2 * time.Second // above a leader's silence
	random := rand.New(rand.NewPCG(15, 15))
	first, second := g.replicas[0], g.replicas[1]
	for _, r := range []*replica{second, first} {
		if err := errors.Join(g.lead(r), g.work(r.store, random, 20)); err != nil {
			t.Fatal(err)
		}
		if r == second {
			r.end(t)
		}
	}
	if err := standby.Adopt(second.dir); err != nil {
		t.Fatal(err)
	}
	if err := g.lead(second); err == nil || !strings.Contains(err.Error(), "another replica leads") {
		t.Errorf("an adopted store beside a leader: %v", err)
	}
	if err := g.work(first.store, random, 20); err != nil {
		t.Errorf("the leader: %v", err)
	}
	first.end(t)
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	second.end(t)
}

// TestFirstReplica: a replica that may not begin a journal follows an empty stream, until a store that has records begins it: an
// upgrade from one replica to two starts the second first.
func TestFirstReplica(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	random := rand.New(rand.NewPCG(16, 16))
	first, second := g.replicas[0], g.replicas[1]
	if err := g.commitAlone(first, random); err != nil {
		t.Fatal(err)
	}
	g.open(second, func(c *standby.Config) { c.Begin = false })
	member, led, began := second.member, make(chan error, 1), time.Now()
	go func() { led <- g.lead(second) }()
	// It has everything, as a follower that is ready, and had it when it would contend otherwise.
	for time.Since(began)-max(member.Lag(), 0) < 4*g.takeOver || member.Lag() < 0 {
		select {
		case err := <-led:
			t.Fatalf("the second has begun the journal: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Since(began) > patience {
			t.Fatal("the second does not know that it has everything")
		}
	}
	if err := errors.Join(g.lead(first), g.work(first.store, random, 20), first.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	first.end(t)
	if err := <-led; err != nil {
		t.Fatal(err)
	}
	g.same(second, first)
}

// TestBeginCutShort: a store with records that ended before it knew that the first entry of its journal is in the stream, or before its disk
// took that, begins it again. No other replica could: it lacks the records.
func TestBeginCutShort(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ended", "disk"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := one(t)
			g := newGroup(t, nodes)
			random := rand.New(rand.NewPCG(24, 24))
			first, second := g.replicas[0], g.replicas[1]
			if err := g.commitAlone(first, random); err != nil {
				t.Fatal(err)
			}
			j := g.journalOf() // it makes the stream
			way := testkit.NewProxy(t, strings.TrimPrefix(nodes[0].URL, "nats://"))
			way.Delay(700 * time.Millisecond) // of answers: less than a request may take
			g.nodes = []*natstest.Node{{URL: "nats://" + way.Addr}}
			var broken atomic.Bool
			g.open(first, func(c *standby.Config) {
				c.Options.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
					if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && filepath.Ext(op.Path) == ".log" {
						return syscall.EIO
					}
					return nil
				}))
			})
			ctx, end := context.WithCancel(t.Context())
			defer end()
			led := make(chan error, 1)
			go func() {
				_, err := first.member.Lead(ctx)
				led <- err
			}()
			for x := (journal.Extent{}); x.Last == 0; time.Sleep(10 * time.Millisecond) {
				var err error
				if x, err = j.Extent(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			want := context.Canceled
			if name == "disk" {
				broken.Store(true)
				want = store.ErrFailed
			} else {
				end()
			}
			if err := <-led; !errors.Is(err, want) {
				t.Fatal(err)
			}
			first.member.Close()
			first.member, g.nodes = nil, nodes
			if at := last(t, first.dir); at.Last > 0 {
				t.Fatalf("it has applied the entry at %d", at.Last)
			}
			if err := g.lead(first); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(g.work(first.store, random, 20), first.member.Keep(t.Context())); err != nil {
				t.Fatal(err)
			}
			g.same(first, second)
		})
	}
}

// TestHold: a leader whose last append is older than half the time-out begins no delivery until the journal answers again.
func TestHold(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	g.takeOver = 4 * time.Second // half of it is above a leader's silence
	way := testkit.NewProxy(t, strings.TrimPrefix(nodes[0].URL, "nats://"))
	g.nodes = []*natstest.Node{{URL: "nats://" + way.Addr}}
	r := g.replicas[0]
	if err := g.lead(r); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	done, end := context.WithCancel(ctx)
	end()
	way.Hang()
	for r.member.Lag() <= g.takeOver/2 {
		time.Sleep(10 * time.Millisecond)
	}
	if err := r.member.Hold(done); err == nil {
		t.Errorf("a delivery may begin %v after the last append", r.member.Lag())
	}
	way.Restore()
	if err := r.member.Hold(ctx); err != nil || r.member.Lag() > g.takeOver/2 {
		t.Errorf("none may begin %v after the last append: %v", r.member.Lag(), err)
	}
	r.end(t)
}

// TestLongerTimeOut: a replica with a shorter time-out does not take over while the leader, which has a longer one, may deliver.
func TestLongerTimeOut(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	way := testkit.NewProxy(t, strings.TrimPrefix(nodes[0].URL, "nats://"))
	first, second := g.replicas[0], g.replicas[1]
	g.nodes = []*natstest.Node{{URL: "nats://" + way.Addr}}
	if err := g.lead(first); err != nil {
		t.Fatal(err)
	}
	first.end(t)
	g.takeOver = 8 * time.Second
	if err := g.lead(first); err != nil { // at once, as it led last
		t.Fatal(err)
	}
	g.nodes, g.takeOver = nodes, 1500*time.Millisecond
	g.open(second, func(*standby.Config) {})
	member, led := second.member, make(chan error, 1)
	go func() { led <- g.lead(second) }()
	for member.State().Leader == "" {
		time.Sleep(10 * time.Millisecond)
	}
	way.Hang()
	if err := <-led; err != nil {
		t.Fatal(err)
	}
	first.deliversNothing(t, "another leads")
	way.Restore()
	first.end(t)
	g.same(second, first)
}

// TestFewConsumers: a replica that hears nothing for long leads where the servers have a limit for consumers: it leaves none of its own.
func TestFewConsumers(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	g.takeOver = 4 * time.Second // an empty stream is waited at for twice that; it is subscribed to again each two seconds
	_, err := nodes[0].Connect().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "J", Subjects: []string{"watcherd.journal.J"}, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew, MaxConsumers: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.lead(g.replicas[0]); err != nil {
		t.Fatal(err)
	}
	g.replicas[0].end(t)
}

// deliversNothing wants no delivery to begin now.
func (r *replica) deliversNothing(t *testing.T, since string) {
	t.Helper()
	done, end := context.WithCancel(t.Context())
	end()
	if err := r.member.Hold(done); err == nil {
		t.Errorf("%s, and a delivery may begin %v after the last append", since, r.member.Lag())
	}
}

// TestAdoptLongerTimeOut: nor does a store that was adopted begin its journal until then.
func TestAdoptLongerTimeOut(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	random := rand.New(rand.NewPCG(31, 31))
	way := testkit.NewProxy(t, strings.TrimPrefix(nodes[0].URL, "nats://"))
	first, second := g.replicas[0], g.replicas[1]
	g.term(second, random)
	g.term(first, random)
	if err := standby.Adopt(second.dir); err != nil {
		t.Fatal(err)
	}
	g.nodes, g.takeOver = []*natstest.Node{{URL: "nats://" + way.Addr}}, 8*time.Second
	if err := g.lead(first); err != nil { // at once, as it led last
		t.Fatal(err)
	}
	way.Hang()
	g.nodes, g.takeOver = nodes, 300*time.Millisecond
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	first.deliversNothing(t, "another has begun its journal")
	way.Restore()
	first.end(t)
	second.end(t)
}

// TestBusyFollower: a follower knows that it keeps up with a leader that is never silent.
func TestBusyFollower(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	g.takeOver = time.Hour // the leader resigns
	first, second := g.replicas[0], g.replicas[1]
	g.open(first, func(c *standby.Config) { c.TakeOverAfter = 0 })
	if err := g.lead(first); err != nil {
		t.Fatal(err)
	}
	g.open(second, func(*standby.Config) {})
	member, led := second.member, make(chan error, 1)
	go func() { led <- g.lead(second) }()
	enough, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-enough:
				ended <- nil
				return
			default:
				if err := g.random(first.store, 100); err != nil {
					ended <- err
					return
				}
			}
		}
	}()
	const some = 100 // entries, of which the follower has read the first
	var since time.Time
	for end := time.Now().Add(patience); since.IsZero() || !member.State().Heard.After(since); time.Sleep(time.Millisecond) {
		if since.IsZero() && member.State().Last > some {
			since = time.Now()
		}
		if time.Now().After(end) {
			t.Errorf("it has read %d entries, and last knew %v ago that it had everything", member.State().Last, member.Lag())
			break
		}
	}
	close(enough)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	first.end(t)
	if err := <-led; err != nil {
		t.Fatal(err)
	}
	g.same(second, first)
}

// TestLargeEntry: a leader whose entry takes longer than the time-out is not replaced amid its parts.
func TestLargeEntry(t *testing.T) {
	t.Parallel()
	nodes := []*natstest.Node{natstest.Start(t, natstest.Spec{Name: "solo", Dir: t.TempDir(), MaxPayload: 64 << 10})}
	g := newGroup(t, nodes)
	g.takeOver = 3 * time.Second
	slow := testkit.NewProxy(t, strings.TrimPrefix(nodes[0].URL, "nats://"))
	first, second := g.replicas[0], g.replicas[1]
	g.nodes = []*natstest.Node{{URL: "nats://" + slow.Addr}}
	if err := g.lead(first); err != nil {
		t.Fatal(err)
	}
	g.nodes = nodes
	led := make(chan error, 1)
	go func() { led <- g.lead(second) }()
	slow.Delay(500 * time.Millisecond)
	if err := g.random(first.store, 640<<10); err != nil {
		t.Errorf("an entry of ten parts: %v", err)
	}
	slow.Delay(0)
	first.end(t)
	if err := <-led; err != nil {
		t.Fatal(err)
	}
	g.same(second, first)
}

// TestUnopened: a replica that begins a term and cannot open its store makes way for another.
func TestUnopened(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	g.takeOver = time.Hour
	first, second := g.replicas[0], g.replicas[1]
	taken := prometheus.NewGauge(prometheus.GaugeOpts{Name: "watcherd_store_bytes", Help: "not the store's"})
	g.open(first, func(c *standby.Config) {
		c.TakeOverAfter = 0
		c.Options.Registerer = prometheus.NewRegistry()
		c.Options.Registerer.MustRegister(taken)
	})
	if err := g.lead(first); err == nil || !strings.Contains(err.Error(), "register metrics of the store") {
		t.Fatal(err)
	}
	if err := g.lead(second); err != nil {
		t.Fatalf("the other does not lead: %v", err)
	}
	second.end(t)
}

// TestPurgedStream: where a stream was purged while no replica led, the replicas refuse it with what to do, and the one that is adopted leads.
func TestPurgedStream(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	random := rand.New(rand.NewPCG(17, 17))
	first, second := g.replicas[0], g.replicas[1]
	for _, r := range []*replica{second, first} {
		if err := errors.Join(g.lead(r), g.work(r.store, random, 20)); err != nil {
			t.Fatal(err)
		}
		r.end(t)
	}
	stream, err := nodes[0].Connect().Stream(t.Context(), "J")
	if err == nil {
		err = stream.Purge(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	g.open(first, func(*standby.Config) {})
	first.member.SetSeedPatience(0)
	if err := g.lead(first); !errors.Is(err, journal.ErrTrimmed) || !strings.Contains(fmt.Sprint(err), "store adopt") {
		t.Errorf("%v", err)
	}
	if err := errors.Join(standby.Adopt(first.dir), os.RemoveAll(second.dir)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.lead(first), g.work(first.store, random, 20), first.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	g.same(first, second)
}

// TestNewerRelease: a replica that meets an entry of a newer release ends with an error that names it, with everything
// before that entry and nothing else, and does not contend, whatever is silent.
func TestNewerRelease(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	random := rand.New(rand.NewPCG(13, 13))
	first, second := g.replicas[0], g.replicas[1]
	g.term(first, random)
	js := nodes[0].Connect()
	m := &nats.Msg{Subject: "watcherd.journal.J", Header: nats.Header{"Watcherd-Entry": {`{"format":2,"kind":{"of":"its own"}}`}}, Data: []byte("?")}
	newer, err := js.PublishMsg(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*replica{second, first, second} {
		if err := g.lead(r); !errors.Is(err, journal.ErrNewer) || !strings.Contains(fmt.Sprint(err), "upgrade this replica") {
			t.Errorf("%v", err)
		}
		if at := last(t, r.dir); at.Last != newer.Sequence-1 {
			t.Errorf("the directory is at %d, the entry is at %d", at.Last, newer.Sequence)
		}
	}
	if x, err := g.journalOf().Extent(t.Context()); err != nil || x.Last != newer.Sequence {
		t.Errorf("the stream ends at %d, the entry is at %d: %v", x.Last, newer.Sequence, err)
	}
	if diff := cmp.Diff(contents(t, first.dir), contents(t, second.dir)); diff != "" {
		t.Errorf("the directories differ:\n%s", diff)
	}
}

// TestOlderLayout: a replica of a release with another layout of the store says what to do, and leaves the stream as it is.
func TestOlderLayout(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	before, err := g.journalOf().Extent(t.Context()) // it makes the stream
	if err != nil {
		t.Fatal(err)
	}
	older := fmt.Sprintf(`{"format":1,"layout":%d,"kind":"term"}`, layout.Version-1)
	m := &nats.Msg{Subject: "watcherd.journal.J", Header: nats.Header{"Watcherd-Entry": {older}}, Data: []byte("?")}
	if _, err := nodes[0].Connect().PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := g.lead(g.replicas[0]); !errors.Is(err, journal.ErrOlder) || !strings.Contains(fmt.Sprint(err), "store.journal.stream") {
		t.Errorf("%v", err)
	}
	if x, err := g.journalOf().Extent(t.Context()); err != nil || x.Last != before.Last+1 {
		t.Errorf("the stream ends at %d: %v", x.Last, err)
	}
}

// TestPurgedWithoutStores: where a stream was purged and no store has records, a replica's error names what to delete, and it
// leads when that is done.
func TestPurgedWithoutStores(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	random := rand.New(rand.NewPCG(19, 19))
	r := g.replicas[0]
	if err := errors.Join(g.lead(r), g.work(r.store, random, 20), r.member.Keep(t.Context()), g.work(r.store, random, 20)); err != nil {
		t.Fatal(err)
	}
	r.end(t)
	js := nodes[0].Connect()
	stream, err := js.Stream(t.Context(), "J")
	if err == nil {
		err = errors.Join(stream.Purge(t.Context()), os.RemoveAll(r.dir))
	}
	if err != nil {
		t.Fatal(err)
	}
	g.open(r, func(*standby.Config) {})
	r.member.SetSeedPatience(0)
	if err := g.lead(r); !strings.Contains(fmt.Sprint(err), "delete the streams J and J-SNAPSHOT") {
		t.Fatalf("no advice: %v", err)
	}
	if err := errors.Join(js.DeleteStream(t.Context(), "J"), js.DeleteStream(t.Context(), "J-SNAPSHOT"), g.lead(r)); err != nil {
		t.Fatal(err)
	}
	r.end(t)
}
