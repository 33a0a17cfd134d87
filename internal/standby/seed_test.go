package standby_test

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/standby"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
	"github.com/watcherd/watcherd/internal/waittest"
)

// seedEnv makes the test binary a replica instead that is seeded. Its value is a seeding.
const seedEnv = "WATCHERD_TEST_SEED"

type seeding struct {
	Dir  string
	URLs []string
}

// seedUntilKilled reports whether this process was such a replica.
func seedUntilKilled() bool {
	var s seeding
	if json.Unmarshal([]byte(os.Getenv(seedEnv)), &s) != nil {
		return false
	}
	c, err := configOf(s.Dir, s.URLs, 1<<30, time.Hour)
	var m *standby.Member
	if err == nil {
		m, err = standby.New(c)
	}
	if err == nil {
		_, err = m.Lead(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
	return true
}

// journalOf is a client of the group's journal.
func (g *group) journalOf() *journal.Client {
	g.t.Helper()
	c, err := configOf("", g.urls(), g.maxBytes, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	j, err := journal.Open(g.t.Context(), c.Journal)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(j.Close)
	return j
}

// trimmed has a replica lead and work until the stream has been trimmed up to a sequence.
func (g *group) trimmed(r *replica, random *rand.Rand, upTo uint64) {
	g.t.Helper()
	j := g.journalOf()
	for end := time.Now().Add(patience); ; {
		if err := errors.Join(g.work(r.store, random, 50), r.member.Keep(g.t.Context())); err != nil {
			g.t.Fatal(err)
		}
		if x, err := j.Extent(g.t.Context()); err != nil {
			g.t.Fatal(err)
		} else if x.First > upTo {
			return
		}
		if time.Now().After(end) {
			g.t.Fatal("the stream is not trimmed")
		}
	}
}

// last is where a directory that no process uses is.
func last(t *testing.T, dir string) store.Position {
	t.Helper()
	r, err := store.OpenReplica(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return r.Position()
}

// TestSeed: a replica that is behind the trimmed stream, or empty, is seeded, and is the same as the leader in the end.
func TestSeed(t *testing.T) {
	t.Parallel()
	g := newGroup(t, natstest.StartCluster(t))
	g.maxBytes = 128 << 10
	random := rand.New(rand.NewPCG(7, 7))
	first, second := g.replicas[0], g.replicas[1]
	for _, r := range []*replica{second, first} {
		if err := errors.Join(g.lead(r), g.work(r.store, random, 20)); err != nil {
			t.Fatal(err)
		}
		if r == second {
			r.end(t)
		}
	}
	behind := last(t, second.dir)
	g.trimmed(first, random, behind.Last+50)
	g.same(first, second)
	if now := last(t, second.dir); now.Last <= behind.Last {
		t.Errorf("it was at %d and is at %d", behind.Last, now.Last)
	}
	if err := os.RemoveAll(first.dir); err != nil {
		t.Fatal(err)
	}
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	g.same(second, first)
	// Both are lost.
	for _, r := range g.replicas {
		if err := os.RemoveAll(r.dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	g.same(second, first)
}

// TestSeedAfterAdopt: a store that begins a journal with records seeds others, also behind another journal, and one that was empty
// and has read that before there was a snapshot.
func TestSeedAfterAdopt(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	random := rand.New(rand.NewPCG(8, 8))
	first, second := g.replicas[0], g.replicas[1]
	if err := errors.Join(g.lead(first), g.work(first.store, random, 50), first.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	first.end(t)
	before, err := g.journalOf().Extent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := standby.Adopt(first.dir); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.lead(first), g.work(first.store, random, 10)); err != nil {
		t.Fatal(err)
	}
	if s, err := g.journalOf().Snapshot(t.Context()); s != nil || err != nil {
		t.Errorf("the snapshot of the journal before is there: %+v, %v", s, err)
	}
	g.takeOver = time.Hour // leaders resign
	g.open(second, func(*standby.Config) {})
	member, led := second.member, make(chan error, 1)
	go func() { led <- g.lead(second) }()
	for member.State().Last < before.Last {
		select {
		case err := <-led:
			t.Fatalf("the empty replica: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := errors.Join(first.member.Keep(t.Context()), g.work(first.store, random, 10)); err != nil {
		t.Fatal(err)
	}
	first.end(t)
	if err := <-led; err != nil {
		t.Fatal(err)
	}
	g.same(second, first)
}

// TestSeedAfterAdoptAgain: so is one that ends before there is a snapshot, and is started again with what it has read.
func TestSeedAfterAdoptAgain(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	random := rand.New(rand.NewPCG(25, 25))
	first, second := g.replicas[0], g.replicas[1]
	g.term(first, random)
	if err := standby.Adopt(first.dir); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.lead(first), g.work(first.store, random, 10)); err != nil {
		t.Fatal(err)
	}
	g.seededLater(first, second)
}

// TestSnapshotOfTheJournalBefore: a leader whose store has begun the journal makes a snapshot although there is one of the journal before, as
// after that stream was restored from a backup. The journal has the entry of that, but not its past.
func TestSnapshotOfTheJournalBefore(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	random := rand.New(rand.NewPCG(36, 36))
	first, second := g.replicas[0], g.replicas[1]
	if err := errors.Join(g.lead(first), g.work(first.store, random, 20), first.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	js := nodes[0].Connect()
	stream, err := js.Stream(t.Context(), g.journalOf().SnapshotStream())
	if err != nil {
		t.Fatal(err)
	}
	var backup []*nats.Msg
	for seq := stream.CachedInfo().State.FirstSeq; seq <= stream.CachedInfo().State.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		backup = append(backup, &nats.Msg{Subject: m.Subject, Header: nats.Header{"Watcherd-Snapshot": m.Header.Values("Watcherd-Snapshot")}, Data: m.Data})
	}
	first.end(t)
	if err := errors.Join(standby.Adopt(first.dir), g.lead(first), g.work(first.store, random, 10)); err != nil {
		t.Fatal(err)
	}
	for _, m := range backup {
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.member.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.same(first, second)
}

// TestSeedWaits: an empty replica of a journal that began with records waits until the leader has made a snapshot.
func TestSeedWaits(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	random := rand.New(rand.NewPCG(11, 11))
	first, second := g.replicas[0], g.replicas[1]
	if err := g.commitAlone(first, random); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.lead(first), g.work(first.store, random, 20)); err != nil {
		t.Fatal(err)
	}
	led := make(chan error, 1)
	go func() { led <- g.lead(second) }()
	if err := first.member.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-led; err != nil {
		t.Fatal(err)
	}
	if err := g.work(second.store, random, 20); err != nil {
		t.Fatal(err)
	}
	first.end(t)
	g.same(second, first)
}

// seededLater has a replica that begins without a snapshot to be seeded with wait for the leader to make one.
func (g *group) seededLater(leader, second *replica) {
	t := g.t
	t.Helper()
	g.takeOver = time.Hour // leaders resign
	g.open(second, func(*standby.Config) {})
	second.member.SetSeedPatience(0)
	if err := g.lead(second); err == nil || !strings.Contains(err.Error(), "a leader makes a snapshot") {
		t.Fatalf("without a whole snapshot: %v", err)
	}
	if err := leader.member.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	leader.end(t)
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	g.same(second, leader)
}

// TestSeedWithoutParts: so does one that meets a snapshot whose parts another leader took for what was left of one. The leader makes another.
func TestSeedWithoutParts(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	random := rand.New(rand.NewPCG(34, 34))
	first, second := g.replicas[0], g.replicas[1]
	if err := errors.Join(g.lead(first), g.work(first.store, random, 20), first.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	stream, err := nodes[0].Connect().Stream(t.Context(), g.journalOf().SnapshotStream())
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("watcherd.snapshot.J.>"))
	if err != nil {
		t.Fatal(err)
	}
	for subject := range info.State.Subjects {
		if strings.HasSuffix(subject, ".complete") {
			continue
		}
		if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil {
			t.Fatal(err)
		}
	}
	g.seededLater(first, second)
}

// TestSeedKilled kills a replica while it is seeded, at any moment: its directory is as it was, or complete, and it is
// seeded in the end.
func TestSeedKilled(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	random := rand.New(rand.NewPCG(9, 9))
	first, second := g.replicas[0], g.replicas[1]
	if err := errors.Join(g.lead(second), g.work(second.store, random, 20)); err != nil {
		t.Fatal(err)
	}
	second.end(t)
	before := last(t, second.dir)
	old := contents(t, second.dir)
	if err := g.lead(first); err != nil {
		t.Fatal(err)
	}
	b := first.store.NewBatch()
	for i := range 200 { // so that it takes a while
		value := make([]byte, 100<<10)
		for k := range value {
			value[k] = byte(random.Uint32())
		}
		b.PutState("p", fmt.Sprint("large ", i), value)
	}
	if err := errors.Join(first.store.Commit(b), g.work(first.store, random, 20), first.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	j := g.journalOf()
	s, err := j.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Trim(t.Context(), s.First); err != nil {
		t.Fatal(err)
	}
	started, seeded := 0, false
	for kills := 0; !seeded; kills++ {
		text, err := json.Marshal(seeding{second.dir, g.urls()})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), seedEnv+"="+string(text))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(kills) * 20 * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		left, err := filepath.Glob(filepath.Join(second.dir, "db.*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			started++
		}
		at := last(t, second.dir)
		if at == before {
			if diff := fmt.Sprint(contents(t, second.dir)) != fmt.Sprint(old); diff {
				t.Fatalf("kill %d: the directory is neither old nor new", kills)
			}
		} else if at.Last < s.Last {
			t.Fatalf("kill %d: the directory is at %+v", kills, at)
		}
		seeded = at != before
		if left, err := filepath.Glob(filepath.Join(second.dir, "db.*")); err != nil || len(left) > 0 {
			t.Fatalf("kill %d: left are %v, %v", kills, left, err)
		}
	}
	if started == 0 {
		t.Error("no kill was in the middle")
	}
	t.Logf("%d kills in the middle", started)
	g.same(first, second)
}

// TestSeedIsRefused: a snapshot that is damaged, or of another journal, changes nothing, and the error names what to
// do; with another snapshot, the replica is seeded.
func TestSeedIsRefused(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	g.maxBytes = 128 << 10
	random := rand.New(rand.NewPCG(10, 10))
	first, second := g.replicas[0], g.replicas[1]
	g.term(second, random)
	before := contents(t, second.dir)
	behind := last(t, second.dir)
	if err := g.lead(first); err != nil {
		t.Fatal(err)
	}
	g.trimmed(first, random, behind.Last)
	j, js := g.journalOf(), nodes[0].Connect()
	stream, err := js.Stream(t.Context(), j.SnapshotStream())
	if err != nil {
		t.Fatal(err)
	}
	var all []*nats.Msg
	state := stream.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &nats.Msg{Subject: m.Subject, Header: nats.Header{"Watcherd-Snapshot": m.Header.Values("Watcherd-Snapshot")}, Data: m.Data})
	}
	refused := func(want error, advice string) {
		t.Helper()
		err := g.lead(second)
		if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), advice) {
			t.Errorf("%v", err)
		}
		if got := contents(t, second.dir); fmt.Sprint(got) != fmt.Sprint(before) {
			t.Error("the directory has changed")
		}
		if err == nil {
			second.end(t)
		}
	}
	replace := func(with []*nats.Msg) {
		t.Helper()
		if err := stream.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, m := range with {
			if _, err := js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	damaged := *all[0]
	damaged.Data = bytes.Clone(damaged.Data)
	damaged.Data[len(damaged.Data)/2] ^= 1
	replace(append([]*nats.Msg{&damaged}, all[1:]...))
	refused(journal.ErrSnapshot, "delete that stream")

	// One of another journal, with the same key.
	other := newGroup(t, one(t))
	if err := errors.Join(other.lead(other.replicas[0]), other.work(other.replicas[0].store, random, 20), other.replicas[0].member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	oj := other.journalOf()
	s, err := oj.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// With a position that this journal has; the entry there is another.
	mine, err := j.Extent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	forged := s.Position
	forged.First, forged.Last = mine.Last, mine.Last
	replace(nil)
	if _, err := j.Save(t.Context(), func(w io.Writer) (store.Position, error) {
		return forged, oj.Load(t.Context(), s, func(r io.Reader) error { _, err := io.Copy(w, r); return err })
	}); err != nil {
		t.Fatal(err)
	}
	refused(journal.ErrDiverged, "snapshot")
	other.replicas[0].end(t)

	// One with the position of this journal, and the contents of another.
	x, err := first.store.SyncJournal()
	if err != nil {
		t.Fatal(err)
	}
	replace(nil)
	if _, err := j.Save(t.Context(), func(w io.Writer) (store.Position, error) {
		return x, oj.Load(t.Context(), s, func(r io.Reader) error { _, err := io.Copy(w, r); return err })
	}); err != nil {
		t.Fatal(err)
	}
	refused(journal.ErrSnapshot, "delete that stream")

	if err := js.DeleteStream(t.Context(), j.SnapshotStream()); err != nil {
		t.Fatal(err)
	}
	if err := first.member.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.same(first, second)
}

// TestDamagedReplica: a follower that meets a damaged block of its own store is seeded, and takes over with everything.
func TestDamagedReplica(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	random := rand.New(rand.NewPCG(12, 12))
	first, second := g.replicas[0], g.replicas[1]
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	g.takeOver = time.Hour // leaders resign
	for range 20 {
		if err := g.random(second.store, randomSize); err != nil {
			t.Fatal(err)
		}
	}
	second.end(t)
	g.damage(second, g.log[10])
	if err := errors.Join(g.lead(first), g.work(first.store, random, 20), first.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	led := make(chan error, 1)
	go func() { led <- g.lead(second) }()
	if _, err := first.store.EraseReplicas(t.Context()); err != nil { // each compacts its tables
		t.Fatal(err)
	}
	first.end(t)
	if err := <-led; err != nil {
		t.Fatal(err)
	}
	g.same(second, first)
}

// TestSeedAnswers: a replica that is seeded does not answer with what its directory had: the snapshot may have what a scrub is about to
// erase, and that would not wait for it.
func TestSeedAnswers(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	random := rand.New(rand.NewPCG(40, 40))
	first, second := g.replicas[0], g.replicas[1]
	g.term(second, random)
	g.takeOver = time.Hour // leaders resign
	if err := os.WriteFile(filepath.Join(second.dir, "db", "LOSS"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.lead(first), g.work(first.store, random, 20), first.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	seeded, resume := make(chan struct{}), make(chan struct{})
	var once sync.Once
	g.open(second, func(c *standby.Config) {
		c.Options.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if strings.HasPrefix(filepath.Base(filepath.Dir(op.Path)), "db.") {
				once.Do(func() { close(seeded) })
				<-resume
			}
			return nil
		}))
	})
	led := make(chan error, 1)
	go func() { led <- g.lead(second) }()
	<-seeded
	present, err := g.journalOf().Ask(t.Context(), time.Second)
	close(resume)
	if err != nil {
		t.Fatal(err)
	}
	answers := slices.DeleteFunc(present, func(p journal.Present) bool { return p.Replica == first.member.State().Replica })
	if len(answers) != 1 || answers[0].Last != 0 {
		t.Errorf("it answers %+v", answers)
	}
	first.end(t)
	if err := <-led; err != nil {
		t.Fatal(err)
	}
	g.same(second, first)
}

// TestUnusableReplica: a follower is seeded before it has to lead, if it could not for damage.
func TestUnusableReplica(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	first, second := g.replicas[0], g.replicas[1]
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	g.takeOver = time.Hour // leaders resign
	name := crand.Text()
	if _, err := second.store.EnsureSink(name, store.FromNow); err != nil {
		t.Fatal(err)
	}
	for range 3 { // between the names and what every directory needs
		if err := g.random(second.store, randomSize); err != nil {
			t.Fatal(err)
		}
	}
	second.end(t)
	g.damage(second, name)
	if err := errors.Join(g.lead(first), g.random(first.store, randomSize), first.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	led := make(chan error, 1)
	go func() { led <- g.lead(second) }()
	first.end(t)
	if err := <-led; err != nil {
		t.Fatal(err)
	}
	g.same(second, first)
}

// damage damages a text in the tables of a replica that is closed.
func (g *group) damage(r *replica, text string) {
	g.t.Helper()
	last(g.t, r.dir) // what it has is in tables
	damaged := slices.DeleteFunc(holds(g.t, r.dir, text), func(name string) bool { return filepath.Ext(name) != ".sst" })
	for _, name := range damaged {
		content, err := os.ReadFile(name)
		if err != nil {
			g.t.Fatal(err)
		}
		content[bytes.Index(content, []byte(text))] ^= 1
		if err := os.WriteFile(name, content, 0o600); err != nil {
			g.t.Fatal(err)
		}
	}
	if len(damaged) == 0 {
		g.t.Fatal("nothing is damaged")
	}
}

// TestDamagedLeader: a leader that has removed a damaged block replaces no snapshot by one without what that had. When it starts again,
// it is seeded, and has everything.
func TestDamagedLeader(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	g.takeOver = 0
	first, second := g.replicas[0], g.replicas[1]
	if err := g.lead(first); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := g.random(first.store, randomSize); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := first.member.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first.end(t)
	g.damage(first, g.log[10])
	if err := g.lead(first); err != nil {
		t.Fatal(err)
	}
	_ = first.store.EraseObsolete(t.Context()) // it meets the block, which is removed
	for end := time.Now().Add(patience); !errors.Is(first.store.Loss(), store.ErrLoss); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the block is not removed")
		}
	}
	if err := errors.Join(g.random(first.store, randomSize), first.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	if s, err := first.member.Save(t.Context()); !errors.Is(err, store.ErrLoss) {
		t.Errorf("a snapshot without the block: %+v, %v", s, err)
	}
	if s, err := g.journalOf().Snapshot(t.Context()); err != nil || s == nil || s.Position != whole.Position {
		t.Errorf("the snapshot is %+v, %v", s, err)
	}
	first.end(t)
	if err := g.lead(first); err != nil {
		t.Fatal(err)
	}
	if err := first.store.Loss(); err != nil {
		t.Error(err)
	}
	g.same(first, second)
}

// TestDamagedLeaderOffForAWhile: so is one that has lost the note of its own term with the block, and starts when another has led and made a
// snapshot.
func TestDamagedLeaderOffForAWhile(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	random := rand.New(rand.NewPCG(26, 26))
	first, second := g.replicas[0], g.replicas[1]
	for _, r := range []*replica{first, second, first} {
		g.term(r, random)
	}
	db, err := pebble.Open(filepath.Join(first.dir, "db"), &pebble.Options{Merger: layout.NewMerger(), FormatMajorVersion: pebble.FormatNewest})
	if err != nil {
		t.Fatal(err)
	}
	lower, upper := layout.PrefixRange(layout.PrefixTerm)
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		t.Fatal(err)
	}
	it.Last()
	err = db.Delete(it.Key(), pebble.Sync)
	if err := errors.Join(err, it.Close(), db.Close(), os.WriteFile(filepath.Join(first.dir, "db", "LOSS"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	if _, err := second.member.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.same(second, first)
}

// holds reports whether a file below a directory has a text.
func holds(t *testing.T, dir, text string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var content []byte
			if content, err = os.ReadFile(path); bytes.Contains(content, []byte(text)) {
				names = append(names, path)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a store removes files
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// refused checks that a store which is not of the journal is not led with, and left as it is.
func (g *group) refused(r *replica, before []string) {
	g.t.Helper()
	err := g.lead(r)
	if err == nil {
		r.end(g.t)
	}
	if !errors.Is(err, journal.ErrDiverged) {
		g.t.Errorf("a store of another journal: %v", err)
	}
	if diff := cmp.Diff(before, contents(g.t, r.dir)); diff != "" {
		g.t.Errorf("the directory has changed:\n%.1000s", diff)
	}
}

// TestOtherJournal: a store that is not of the journal, whose stream was lost and made again, is refused, also when the journal lacks the
// entry that shows it: the store may be all that is left of the journal before.
func TestOtherJournal(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	g.maxBytes = 128 << 10
	random := rand.New(rand.NewPCG(21, 21))
	first, second := g.replicas[0], g.replicas[1]
	g.term(first, random)
	js := nodes[0].Connect()
	if err := js.DeleteStream(t.Context(), "J"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		g.term(second, random)
	}
	before := contents(t, first.dir)
	g.refused(first, before)
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	g.trimmed(second, random, last(t, first.dir).Last)
	second.end(t)
	g.refused(first, before)
}

// TestOffWhileTheStreamWasRestored: so is the store of a replica that was off from before its stream lost the last entries until others
// had passed them, in a term of the same number, and trimmed the stream.
func TestOffWhileTheStreamWasRestored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	node := natstest.Start(t, natstest.Spec{Name: "solo", Dir: filepath.Join(dir, "now")})
	g := newGroup(t, []*natstest.Node{node})
	g.maxBytes = 128 << 10
	random := rand.New(rand.NewPCG(22, 22))
	first, second := g.replicas[0], g.replicas[1]
	g.term(first, random)
	g.term(second, random)
	node.Kill()
	if err := os.CopyFS(filepath.Join(dir, "backup"), os.DirFS(filepath.Join(dir, "now"))); err != nil {
		t.Fatal(err)
	}
	node.Start()
	g.term(first, random)
	node.Kill()
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, "now")), os.Rename(filepath.Join(dir, "backup"), filepath.Join(dir, "now"))); err != nil {
		t.Fatal(err)
	}
	node.Start()
	before, at := contents(t, first.dir), last(t, first.dir)
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	g.trimmed(second, random, at.Last)
	second.end(t)
	if now := last(t, second.dir); now.Term != at.Term {
		t.Fatalf("it is in term %d, and the other in %d", now.Term, at.Term)
	}
	g.refused(first, before)
	if err := os.RemoveAll(first.dir); err != nil {
		t.Fatal(err)
	}
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	second.end(t)
	if err := g.lead(first); err != nil { // as the error advises
		t.Fatal(err)
	}
	first.end(t)
}

// TestOffSinceTheBeginning: a replica that was off since the journal had fewer entries than it has had leaders by now is seeded as any other.
func TestOffSinceTheBeginning(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	g.maxBytes = 128 << 10
	random := rand.New(rand.NewPCG(23, 23))
	first, second := g.replicas[0], g.replicas[1]
	if err := g.lead(second); err != nil {
		t.Fatal(err)
	}
	second.end(t)
	behind := last(t, second.dir)
	for now := behind; now.Term <= behind.Last; now = last(t, first.dir) {
		if err := g.lead(first); err != nil {
			t.Fatal(err)
		}
		first.end(t)
	}
	if err := g.lead(first); err != nil {
		t.Fatal(err)
	}
	g.trimmed(first, random, behind.Last)
	g.same(first, second)
}

// TestFollowedOther: a folder that was empty when its replica started, and has had everything since, has records that others may lack: it is
// refused, as after a restart, when an old copy of the store was adopted behind it.
func TestFollowedOther(t *testing.T) {
	t.Parallel()
	nodes := one(t)
	g := newGroup(t, nodes)
	random := rand.New(rand.NewPCG(33, 33))
	first, second, old := g.replicas[0], g.replicas[1], &replica{dir: filepath.Join(t.TempDir(), "old")}
	if err := errors.Join(g.lead(first), g.work(first.store, random, 10), first.store.Backup(t.Context(), old.dir)); err != nil {
		t.Fatal(err)
	}
	way := testkit.NewProxy(t, strings.TrimPrefix(nodes[0].URL, "nats://"))
	g.open(second, func(c *standby.Config) {
		c.Journal.NATS.URLs, c.TakeOverAfter = []string{"nats://" + way.Addr}, time.Hour
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := second.member.Lead(ctx)
		ended <- err
	}()
	if err := g.work(first.store, random, 10); err != nil {
		t.Fatal(err)
	}
	end := first.store.JournalPosition().Last
	waittest.Until(t, "the second has everything", func() bool {
		s := second.member.State()
		return s.Last >= end && !s.Heard.IsZero()
	})
	way.Cut()
	first.end(t)
	if err := standby.Adopt(old.dir); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.lead(old), g.work(old.store, random, 10), old.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	way.Restore()
	waittest.Until(t, "the second ends, or has what the old copy has", func() bool {
		return len(ended) > 0 || second.member.State().Last >= old.store.JournalPosition().Last
	})
	cancel()
	if err := <-ended; !errors.Is(err, journal.ErrDiverged) {
		t.Errorf("a replica that has had more than the journal has now: %v", err)
	}
	second.member.Close()
	second.member = nil
	old.end(t)
}

// TestDamagedOther: so is one that has lost keys. It is no copy of its journal, but has records that the adopted store lacks.
func TestDamagedOther(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	random := rand.New(rand.NewPCG(35, 35))
	first, old := g.replicas[0], &replica{dir: filepath.Join(t.TempDir(), "old")}
	if err := errors.Join(g.lead(first), g.work(first.store, random, 10), first.store.Backup(t.Context(), old.dir), g.work(first.store, random, 10)); err != nil {
		t.Fatal(err)
	}
	first.end(t)
	if err := standby.Adopt(old.dir); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.lead(old), g.work(old.store, random, 10), old.member.Keep(t.Context())); err != nil {
		t.Fatal(err)
	}
	old.end(t)
	before := contents(t, first.dir)
	if err := os.WriteFile(filepath.Join(first.dir, "db", "LOSS"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	g.refused(first, before)
}
