package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/testkit"
)

// dumping returns what Save calls for a text.
func dumping(at store.Position, text []byte) func(io.Writer) (store.Position, error) {
	return func(w io.Writer) (store.Position, error) {
		_, err := w.Write(text)
		return at, err
	}
}

// text is one that does not compress.
func text(seed uint64, n int) []byte {
	random := rand.New(rand.NewPCG(seed, seed))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

func save(t *testing.T, j *journal.Client, at store.Position, text []byte) *journal.Snapshot {
	t.Helper()
	var s *journal.Snapshot
	err := connected(func() (err error) {
		s, err = j.Save(t.Context(), dumping(at, text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// connected repeats what failed as the connection was away: a busy machine loses one.
func connected(do func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if err := do(); !errors.Is(err, nats.ErrReconnectBufExceeded) || time.Now().After(end) {
			return err
		}
	}
}

// load returns what the snapshot has; nil for none.
func load(j *journal.Client) (got []byte, err error) {
	err = connected(func() error {
		s, err := j.Snapshot(context.Background())
		if s == nil || err != nil {
			return err
		}
		return j.Load(context.Background(), s, func(r io.Reader) (err error) { got, err = io.ReadAll(r); return err })
	})
	return got, err
}

func wantSnapshot(t *testing.T, j *journal.Client, want []byte) {
	t.Helper()
	got, err := load(j)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the snapshot has %d bytes, want %d: %v", len(got), len(want), err)
	}
}

// messages are those of a stream, in their order.
func messages(t *testing.T, js jetstream.JetStream, name string) (all []*jetstream.RawStreamMsg) {
	t.Helper()
	stream, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	state := stream.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// TestSnapshot: a snapshot is read as it was written, replaces the one before, and nothing is left of that, nor of
// one that was not completed.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	j := open(t, configOf(t, "J", node))
	js := node.Connect()
	wantSnapshot(t, j, nil)
	for i, n := range []int{1, 100, 5 << 20} {
		at := store.Position{First: uint64(i) + 1, Last: uint64(i) + 1, Term: 1, Sum: 7}
		want := text(uint64(i), n)
		s := save(t, j, at, want)
		if s.Position != at {
			t.Errorf("%+v", s)
		}
		wantSnapshot(t, j, want)
		if all := messages(t, js, j.SnapshotStream()); len(all) > 8 || (len(all) > 2) != (n > 1<<20) {
			t.Errorf("%d bytes are %d messages", n, len(all))
		}
	}
	want := text(2, 5<<20)
	before := len(messages(t, js, j.SnapshotStream()))
	broken := errors.New("broken")
	_, err := j.Save(t.Context(), func(w io.Writer) (store.Position, error) {
		_, err := w.Write(text(9, 3<<20))
		return store.Position{}, errors.Join(err, broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("a dump that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = j.Save(ctx, func(w io.Writer) (store.Position, error) {
		_, err := w.Write(text(9, 3<<20))
		cancel()
		return store.Position{First: 9, Last: 9, Term: 1}, err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ends: %v", err)
	}
	if after := len(messages(t, js, j.SnapshotStream())); after != before {
		t.Errorf("%d messages after snapshots that failed, %d before", after, before)
	}
	wantSnapshot(t, j, want)
	// What a process leaves that is killed.
	if _, err := js.Publish(t.Context(), "watcherd.snapshot.J.KILLED", []byte("a part")); err != nil {
		t.Fatal(err)
	}
	wantSnapshot(t, j, want)
	want = text(3, 1000)
	s := save(t, j, store.Position{First: 9, Last: 9, Term: 1}, want)
	wantSnapshot(t, j, want)
	if all := messages(t, js, j.SnapshotStream()); len(all) != 2 {
		t.Errorf("%d messages", len(all))
	}
	if whole, err := j.Whole(t.Context(), s); err != nil || !whole {
		t.Errorf("whole: %v, %v", whole, err)
	}
	// What is left of one whose removal failed.
	if _, err := js.Publish(t.Context(), "watcherd.snapshot.J.BEFORE", []byte("a part")); err != nil {
		t.Fatal(err)
	}
	if err := j.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := messages(t, js, j.SnapshotStream()); len(all) != 3 { // the one that completes it is there twice
		t.Errorf("%d messages", len(all))
	}
	wantSnapshot(t, j, want)
	c := configOf(t, "J", node)
	c.Keys = keysOf(t, "another key, another key")
	if _, err := load(open(t, c)); !errors.Is(err, journal.ErrKey) {
		t.Errorf("another key: %v", err)
	}
	c.Keys = keysOf(t, "another key, another key", "0123456789abcdef")
	j2 := open(t, c)
	if s, err := j2.Snapshot(t.Context()); err != nil || !s.Old {
		t.Errorf("an old key: %+v, %v", s, err)
	}
	wantSnapshot(t, j2, want)
}

// TestSnapshotsOfTwoLeaders: a leader that was replaced does not replace the snapshot of the next.
func TestSnapshotsOfTwoLeaders(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	c := configOf(t, "J", node)
	j, j2 := open(t, c), open(t, c)
	at := func(n uint64) store.Position { return store.Position{First: n, Last: n, Term: 1, Sum: n} }
	save(t, j, at(1), text(1, 100))
	want := text(3, 2<<20)
	_, err := j.Save(t.Context(), func(w io.Writer) (store.Position, error) {
		if _, err := w.Write(text(2, 3<<20)); err != nil {
			return at(2), err
		}
		save(t, j2, at(3), want)
		_, err := w.Write(text(2, 3<<20))
		return at(4), err
	})
	if !errors.Is(err, store.ErrStolen) {
		t.Errorf("the first of two: %v", err)
	}
	wantSnapshot(t, j, want)
	// One completes its snapshot before the other has written parts of its own.
	_, err = j.Save(t.Context(), func(w io.Writer) (store.Position, error) {
		save(t, j2, at(3), want)
		_, err := w.Write(text(2, 100))
		return at(4), err
	})
	if !errors.Is(err, store.ErrStolen) {
		t.Errorf("the last of two: %v", err)
	}
	wantSnapshot(t, j, want)
	if _, err := j.Save(t.Context(), dumping(at(2), text(4, 100))); !errors.Is(err, store.ErrStolen) {
		t.Errorf("an older position: %v", err)
	}
	wantSnapshot(t, j2, want)
	if all := messages(t, node.Connect(), j.SnapshotStream()); len(all) > 5 {
		t.Errorf("%d messages", len(all))
	}
	// One takes the parts of another for what is left of a snapshot.
	_, err = j.Save(t.Context(), func(w io.Writer) (store.Position, error) {
		if _, err := w.Write(text(6, 3<<20)); err != nil {
			return at(4), err
		}
		broken := errors.New("broken")
		if _, err := j2.Save(t.Context(), func(io.Writer) (store.Position, error) { return at(4), broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
		return at(4), nil
	})
	if !errors.Is(err, store.ErrStolen) {
		t.Errorf("without its parts: %v", err)
	}
	wantSnapshot(t, j, want)
	// One replaces the snapshot that another reads.
	s, err := j.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = j.Load(t.Context(), s, func(r io.Reader) error {
		save(t, j2, at(5), text(5, 100))
		_, err := io.Copy(io.Discard, r)
		return err
	})
	if !errors.Is(err, journal.ErrInterrupted) {
		t.Errorf("a snapshot that is replaced while it is read: %v", err)
	}
}

// TestDamagedSnapshot: one that lacks a part, or has another, is refused.
func TestDamagedSnapshot(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	j := open(t, configOf(t, "J", node))
	js := node.Connect()
	at := store.Position{First: 1, Last: 1, Term: 1, Sum: 7}
	save(t, j, at, text(8, 3<<20))
	other := messages(t, js, j.SnapshotStream())
	want := text(7, 3<<20)
	save(t, j, at, want)
	real := messages(t, js, j.SnapshotStream())
	end := len(real) - 1
	if end < 3 {
		t.Fatalf("%d messages", len(real))
	}
	clone := func(m *jetstream.RawStreamMsg) *nats.Msg {
		return &nats.Msg{Subject: m.Subject, Header: nats.Header{"Watcherd-Snapshot": m.Header.Values("Watcherd-Snapshot")}, Data: bytes.Clone(m.Data)}
	}
	newer := func(m *nats.Msg) {
		h := m.Header.Get("Watcherd-Snapshot")
		m.Header.Set("Watcherd-Snapshot", strings.Replace(h, `"format":1`, `"format":2`, 1))
	}
	for name, tc := range map[string]struct {
		edit func([]*nats.Msg) []*nats.Msg
		want error // nil: it is read
	}{
		"as it was":       {func(all []*nats.Msg) []*nats.Msg { return all }, nil},
		"a part twice":    {func(all []*nats.Msg) []*nats.Msg { return append([]*nats.Msg{all[0], all[1], all[0]}, all[1:]...) }, nil},
		"a bit":           {func(all []*nats.Msg) []*nats.Msg { all[1].Data[100] ^= 1; return all }, journal.ErrSnapshot},
		"an empty header": {func(all []*nats.Msg) []*nats.Msg { all[1].Header.Set("Watcherd-Snapshot", "{}"); return all }, journal.ErrOlder},
		"no header":       {func(all []*nats.Msg) []*nats.Msg { all[1].Header = nil; return all }, journal.ErrSnapshot},
		"a part lacks":    {func(all []*nats.Msg) []*nats.Msg { return append(all[:1], all[2:]...) }, journal.ErrSnapshot},
		"its last part":   {func(all []*nats.Msg) []*nats.Msg { return append(all[:end-1], all[end]) }, journal.ErrInterrupted},
		"parts swapped":   {func(all []*nats.Msg) []*nats.Msg { all[0], all[1] = all[1], all[0]; return all }, journal.ErrSnapshot},
		"bodies swapped":  {func(all []*nats.Msg) []*nats.Msg { all[0].Data, all[1].Data = all[1].Data, all[0].Data; return all }, journal.ErrSnapshot},
		"a part of another": {func(all []*nats.Msg) []*nats.Msg {
			m := clone(other[1])
			m.Subject = all[1].Subject
			all[1] = m
			return all
		}, journal.ErrSnapshot},
		"a part as its end": {func(all []*nats.Msg) []*nats.Msg {
			m := *all[1]
			m.Subject = all[end].Subject
			return append(all, &m)
		}, journal.ErrSnapshot},
		"another end": {func(all []*nats.Msg) []*nats.Msg { all[end].Data[3] ^= 1; return all }, journal.ErrSnapshot},
		"more parts": {func(all []*nats.Msg) []*nats.Msg {
			h := all[end].Header.Get("Watcherd-Snapshot")
			all[end].Header.Set("Watcherd-Snapshot", strings.Replace(h, `"parts":`, `"parts":1`, 1))
			return all
		}, journal.ErrSnapshot},
		"an end of a newer release": {func(all []*nats.Msg) []*nats.Msg { newer(all[end]); return all }, journal.ErrNewer},
		"a part of a newer release": {func(all []*nats.Msg) []*nats.Msg { newer(all[1]); return all }, journal.ErrNewer},
	} {
		if err := js.DeleteStream(t.Context(), j.SnapshotStream()); err != nil {
			t.Fatal(err)
		}
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: j.SnapshotStream(), Subjects: []string{"watcherd.snapshot.J.>"}, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew,
		})
		if err != nil {
			t.Fatal(err)
		}
		var all []*nats.Msg
		for _, m := range real {
			all = append(all, clone(m))
		}
		for _, m := range tc.edit(all) {
			if _, err := js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		got, err := load(j)
		if tc.want == nil {
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
			continue
		}
		if !errors.Is(err, tc.want) || errors.Is(err, journal.ErrInterrupted) != errors.Is(tc.want, journal.ErrInterrupted) {
			t.Errorf("%s: %v", name, err)
		}
		if errors.Is(err, journal.ErrNewer) {
			if _, serr := j.Save(t.Context(), dumping(at, want)); name == "an end of a newer release" && !errors.Is(serr, journal.ErrNewer) {
				t.Errorf("%s is replaced: %v", name, serr)
			}
			continue
		}
		save(t, j, at, want)
		wantSnapshot(t, j, want)
	}
}

// TestSnapshotOfAnotherPast: a snapshot that the journal does not continue is replaced, also one of a later term: the journal may have
// been restored from an older backup.
func TestSnapshotOfAnotherPast(t *testing.T) {
	t.Parallel()
	j := open(t, configOf(t, "J", startOne(t)))
	w, _ := contend(t, j, store.Position{})
	at, err := w.Append(t.Context(), []byte("a"))
	if err != nil {
		t.Fatal(err)
	}
	other := at
	other.Term++
	save(t, j, other, text(1, 100))
	want := text(2, 100)
	save(t, j, at, want)
	wantSnapshot(t, j, want)
}

// TestHas: a snapshot of another journal is recognized before it is read.
func TestHas(t *testing.T) {
	t.Parallel()
	j := open(t, configOf(t, "J", startOne(t)))
	w, _ := contend(t, j, store.Position{})
	var all []store.Position
	for i := range 5 {
		p, err := w.Append(t.Context(), fmt.Append(nil, i))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if err := j.Trim(t.Context(), all[2].First); err != nil {
		t.Fatal(err)
	}
	for i, p := range all {
		if has, err := j.Has(t.Context(), p); err != nil || has != (i >= 2) {
			t.Errorf("entry %d: %v, %v", i, has, err)
		}
	}
	other := all[4]
	other.Sum++
	if _, err := j.Has(t.Context(), other); !errors.Is(err, journal.ErrDiverged) {
		t.Errorf("another checksum: %v", err)
	}
	beyond := all[4]
	beyond.First, beyond.Last = 100, 100
	if err := insist(t, func() error { _, err := j.Has(t.Context(), beyond); return err }); !errors.Is(err, journal.ErrDiverged) {
		t.Errorf("beyond the end: %v", err)
	}
}

// TestAsk: replicas answer, and an answer without the key is none.
func TestAsk(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	c := configOf(t, "J", node)
	j := open(t, c)
	ask := func() (n int) {
		t.Helper()
		all, err := j.Ask(t.Context(), 500*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if !strings.HasPrefix(p.Replica, "r") || p.Last == 0 {
				t.Errorf("%+v", p)
			}
		}
		return len(all)
	}
	if n := ask(); n != 0 {
		t.Errorf("%d answers of nobody", n)
	}
	for i := range uint64(2) {
		if err := open(t, c).Answer(func() journal.Present { return journal.Present{Replica: fmt.Sprint("r", i), Last: i + 1} }); err != nil {
			t.Fatal(err)
		}
	}
	c.Keys = keysOf(t, "another key, another key")
	if err := open(t, c).Answer(func() journal.Present { return journal.Present{} }); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ask() != 2; {
		if time.Now().After(end) {
			t.Fatal("not all answer")
		}
	}
}

// TestSnapshotSweptUnseen: the parts of one leader are taken for what is left of a snapshot after it has seen that they are there. It
// replaces none with what has no parts.
func TestSnapshotSweptUnseen(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	c := configOf(t, "J", node)
	j2 := open(t, c)
	way := testkit.NewProxy(t, strings.TrimPrefix(node.URL, "nats://"))
	c.NATS.URLs = []string{"nats://" + way.Addr}
	j := open(t, c)
	at := func(n uint64) store.Position { return store.Position{First: n, Last: n, Term: 1, Sum: n} }
	want := text(1, 100)
	save(t, j2, at(1), want)
	conn := node.Connect().Conn()
	looks, err := conn.SubscribeSync("$JS.API.STREAM.INFO." + j.SnapshotStream())
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	dumped, swept := make(chan struct{}), make(chan error, 1)
	go func() {
		<-dumped
		for {
			m, err := looks.NextMsgWithContext(ctx)
			if err == nil && !bytes.Contains(m.Data, []byte("subjects_filter")) {
				continue
			}
			if err == nil { // its answer is late
				err = j2.Sweep(ctx)
			}
			swept <- err
			return
		}
	}()
	_, err = j.Save(t.Context(), func(w io.Writer) (store.Position, error) {
		for n, _, err := looks.Pending(); n > 0 && err == nil; n-- { // those from before
			if _, err := looks.NextMsgWithContext(ctx); err != nil {
				return at(2), err
			}
		}
		way.Delay(700 * time.Millisecond)
		close(dumped)
		_, err := w.Write(text(2, 100))
		return at(2), err
	})
	if err := <-swept; err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, store.ErrStolen) {
		t.Errorf("the parts are gone: %v", err)
	}
	wantSnapshot(t, j2, want)
}
