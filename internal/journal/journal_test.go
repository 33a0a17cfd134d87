package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
	"github.com/watcherd/watcherd/pkg/sinks/nats/natsclient/natsconfig"
)

func TestMain(m *testing.M) { natstest.VerifyMain(m) }

// patience is for elections in a cluster of servers on a loaded machine.
const patience = time.Minute

func keysOf(t *testing.T, secrets ...string) journal.Keys {
	t.Helper()
	var all [][]byte
	for _, s := range secrets {
		all = append(all, []byte(s))
	}
	k, err := journal.NewKeys(all...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// configOf is a journal on servers; one server has streams of one replica.
func configOf(t *testing.T, stream string, nodes ...*natstest.Node) journal.Config {
	t.Helper()
	c := journal.Config{
		NATS: natsconfig.Config{Name: t.Name(), Timeout: 2 * time.Second, Log: slog.New(slog.DiscardHandler)}, Stream: stream,
		Replicas: len(nodes), MaxBytes: 1 << 30, Keys: keysOf(t, "0123456789abcdef"), Log: slog.New(slog.DiscardHandler),
	}
	for _, n := range nodes {
		c.NATS.URLs = append(c.NATS.URLs, n.URL)
	}
	return c
}

// open waits until the cluster has a leader.
func open(t *testing.T, c journal.Config) *journal.Client {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		j, err := journal.Open(t.Context(), c)
		if err == nil {
			t.Cleanup(j.Close)
			return j
		}
		if time.Now().After(end) || errors.Is(err, journal.ErrStream) {
			t.Fatal(err)
		}
	}
}

func startOne(t *testing.T) *natstest.Node {
	t.Helper()
	return natstest.Start(t, natstest.Spec{Name: "solo", Dir: t.TempDir()})
}

// contend begins the next term behind all that is there, and returns what was read.
func contend(t *testing.T, j *journal.Client, at store.Position) (*journal.Writer, []*journal.Entry) {
	t.Helper()
	r := j.Read(at)
	defer r.Close()
	got := read(t, r)
	w, e, err := r.Contend(t.Context(), t.Name(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return w, append(got, e)
}

// read returns all that is there.
func read(t *testing.T, r *journal.Reader) (got []*journal.Entry) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		if time.Now().After(end) {
			t.Fatal("the journal is not read to its end")
		}
		e, err := r.Next(t.Context(), 50*time.Millisecond)
		if err != nil {
			t.Logf("next: %v", err)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if e != nil {
			got = append(got, e)
			continue
		}
		if done, err := r.CaughtUp(t.Context()); err == nil && done {
			return got
		}
	}
}

func check(t *testing.T, got []*journal.Entry, want [][]byte) {
	t.Helper()
	var batches [][]byte
	for _, e := range got {
		if e.Kind == journal.Batch {
			batches = append(batches, e.Batch)
		}
	}
	if len(batches) != len(want) {
		t.Fatalf("%d batches, want %d", len(batches), len(want))
	}
	for i := range want {
		if !bytes.Equal(batches[i], want[i]) {
			t.Fatalf("batch %d differs: %d bytes, want %d", i, len(batches[i]), len(want[i]))
		}
	}
}

// TestTerms: what writers append is read in their order, large batches in parts; a writer that was replaced can append
// nothing; nothing of it is readable on the servers' disks.
func TestTerms(t *testing.T) {
	t.Parallel()
	j := open(t, configOf(t, "J", startOne(t)))
	random := rand.New(rand.NewPCG(1, 1))
	var want [][]byte
	var at store.Position
	var writers []*journal.Writer
	for term := range uint64(5) {
		w, got := contend(t, j, at)
		if e := got[len(got)-1]; e.Term != term+1 || e.Kind != journal.Term {
			t.Fatalf("%+v", e)
		}
		for _, old := range writers {
			if _, err := old.Append(t.Context(), []byte("old")); !errors.Is(err, store.ErrStolen) {
				t.Fatalf("a writer that was replaced: %v", err)
			}
		}
		writers = append(writers, w)
		for range 20 {
			batch := make([]byte, random.IntN(20))
			if random.IntN(5) == 0 {
				batch = make([]byte, 3<<20)
			}
			for i := range batch {
				batch[i] = byte(random.Uint32())
			}
			p, err := w.Append(t.Context(), batch)
			if err != nil {
				t.Fatal(err)
			}
			if parts := p.Last - p.First + 1; len(batch) > 2<<20 != (parts > 2) {
				t.Errorf("%d bytes in %d parts", len(batch), parts)
			}
			want = append(want, batch)
		}
		if w.Age() > patience {
			t.Errorf("the last append was %v ago", w.Age())
		}
		r := j.Read(store.Position{})
		got = read(t, r)
		check(t, got, want)
		r.Close()
		at = got[len(got)/2].Position
		r = j.Read(at)
		if rest := read(t, r); len(rest) != len(got)-len(got)/2-1 {
			t.Errorf("%d entries behind the middle of %d", len(rest), len(got))
		}
		r.Close()
	}
	// What followed a writer is trimmed.
	x, err := j.Extent(t.Context())
	if err == nil {
		err = j.Trim(t.Context(), x.Last)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience/2)
	defer cancel()
	if _, err := writers[0].Append(ctx, []byte("old")); !errors.Is(err, store.ErrStolen) {
		t.Errorf("a writer that was replaced, of which the stream has nothing: %v", err)
	}
}

// TestReadAhead: a reader that is far behind, and has taken one entry, has few of the large ones behind it in memory.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	j := open(t, configOf(t, "J", node))
	w, _ := contend(t, j, store.Position{})
	const entries, most = 100, 40
	noise := make([]byte, 900<<10) // about max_payload
	for range entries {
		for i := range noise {
			noise[i] = byte(rand.Uint32())
		}
		if _, err := w.Append(t.Context(), noise); err != nil {
			t.Fatal(err)
		}
	}
	r := j.Read(store.Position{})
	defer r.Close()
	for end := time.Now().Add(patience); ; {
		e, err := r.Next(t.Context(), time.Second)
		if err != nil || time.Now().After(end) {
			t.Fatal(err)
		}
		if e != nil {
			break
		}
	}
	stream, err := node.Connect().Stream(t.Context(), "J")
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		var sent uint64
		var asked int // requests that the server has not answered in full
		list := stream.ListConsumers(t.Context())
		for info := range list.Info() {
			sent, asked = sent+info.Delivered.Consumer, asked+info.NumWaiting
		}
		if err := list.Err(); err != nil || time.Now().After(end) {
			t.Fatal("the server sends nothing", err)
		}
		if sent > most {
			t.Fatalf("%d entries were sent to a reader that has taken one", sent)
		}
		if sent > 0 && asked == 0 {
			return
		}
	}
}

// TestSubjectOfAnotherStream: a writer whose stream is gone appends nothing to one of another name that takes its subject and is as long.
func TestSubjectOfAnotherStream(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	js := node.Connect()
	w, _ := contend(t, open(t, configOf(t, "J", node)), store.Position{})
	if err := js.DeleteStream(t.Context(), "J"); err != nil {
		t.Fatal(err)
	}
	other, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"watcherd.journal.J"}})
	if err == nil {
		_, err = js.Publish(t.Context(), "watcherd.journal.J", nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if p, err := w.Append(ctx, []byte("batch")); err == nil {
		t.Errorf("it appends at %+v", p)
	}
	if info, err := other.Info(t.Context()); err != nil || info.State.Msgs != 1 {
		t.Errorf("the other stream has %+v, %v", info, err)
	}
}

// TestOthersPast: a directory follows only the journal that it is a part of.
func TestOthersPast(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	c := configOf(t, "J", node)
	j := open(t, c)
	w, got := contend(t, j, store.Position{})
	var last store.Position
	for i := range 10 {
		var err error
		if last, err = w.Append(t.Context(), fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	next := func(j *journal.Client, p store.Position) error {
		r := j.Read(p)
		defer r.Close()
		for {
			if e, err := r.Next(t.Context(), time.Second); err != nil || e == nil {
				return err
			}
		}
	}
	if err := next(j, last); err != nil {
		t.Errorf("at the end: %v", err)
	}
	other := last
	other.Sum++
	if err := next(j, other); !errors.Is(err, journal.ErrDiverged) {
		t.Errorf("another checksum: %v", err)
	}
	beyond := last
	beyond.First, beyond.Last = last.First+1, last.Last+1
	ahead := open(t, c)
	if err := insist(t, func() error { return next(ahead, beyond) }); !errors.Is(err, journal.ErrDiverged) {
		t.Errorf("beyond the end: %v", err)
	}
	c.Keys = keysOf(t, "another key, another key")
	if err := next(open(t, c), last); !errors.Is(err, journal.ErrKey) {
		t.Errorf("another key: %v", err)
	}
	c.Keys = keysOf(t, "another key, another key", "0123456789abcdef")
	if err := next(open(t, c), got[0].Position); err != nil {
		t.Errorf("with the old key: %v", err)
	}
	if err := j.Trim(t.Context(), last.First); err != nil {
		t.Fatal(err)
	}
	if err := next(j, last); err != nil {
		t.Errorf("at the end of what is trimmed: %v", err)
	}
	for _, p := range []store.Position{{}, got[0].Position} {
		if err := next(j, p); !errors.Is(err, journal.ErrTrimmed) {
			t.Errorf("trimmed: %v", err)
		}
	}
	// Somebody without the key appends.
	js := node.Connect()
	stream, err := js.Stream(t.Context(), "J")
	if err != nil {
		t.Fatal(err)
	}
	real, err := stream.GetMsg(t.Context(), last.Last)
	if err != nil {
		t.Fatal(err)
	}
	forged := &nats.Msg{Subject: real.Subject, Header: nats.Header{"Watcherd-Entry": real.Header["Watcherd-Entry"]}, Data: bytes.Clone(real.Data)}
	forged.Data[len(forged.Data)-1] ^= 1
	if _, err := js.PublishMsg(t.Context(), forged); err != nil {
		t.Fatal(err)
	}
	if err := next(j, last); !errors.Is(err, journal.ErrDiverged) {
		t.Errorf("forged: %v", err)
	}
	if _, err := w.Append(t.Context(), nil); !errors.Is(err, store.ErrStolen) {
		t.Errorf("an append behind it: %v", err)
	}
	// The stream is made anew, and has as many messages.
	if err := js.DeleteStream(t.Context(), "J"); err != nil {
		t.Fatal(err)
	}
	j2 := open(t, c)
	if _, err := w.Append(t.Context(), nil); !errors.Is(err, journal.ErrDiverged) {
		t.Errorf("an append to an empty stream: %v", err)
	}
	w2, _ := contend(t, j2, store.Position{})
	for i := range 20 {
		if _, err := w2.Append(t.Context(), fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := next(j2, last); !errors.Is(err, journal.ErrDiverged) {
		t.Errorf("a stream that was made anew: %v", err)
	}
}

// TestReadOfAStreamThatGoes reads for a second each, and then there is no stream: a read returns and says so.
func TestReadOfAStreamThatGoes(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	j := open(t, configOf(t, "J", node))
	contend(t, j, store.Position{})
	r := j.Read(store.Position{})
	defer r.Close()
	read(t, r)
	if err := node.Connect().DeleteStream(t.Context(), "J"); err != nil {
		t.Fatal(err)
	}
	for returned := make(chan error, 1); ; {
		go func() {
			_, err := r.Next(t.Context(), time.Second)
			returned <- err
		}()
		select {
		case err := <-returned:
			if err != nil {
				return
			}
		case <-time.After(patience):
			t.Fatal("a read for a second does not return")
		}
	}
}

// TestStreamIsRefused: streams that lose entries are not used.
func TestStreamIsRefused(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	js := node.Connect()
	for name, edit := range map[string]func(*jetstream.StreamConfig){
		"subjects": func(c *jetstream.StreamConfig) { c.Subjects = []string{"a", "b"} },
		"memory":   func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"old":      func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld },
		"age":      func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"purges":   func(c *jetstream.StreamConfig) { c.DenyPurge = true },
		"messages": func(c *jetstream.StreamConfig) { c.MaxMsgSize = 64 << 10 },
		"small":    func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 },
		"replicas": func(*jetstream.StreamConfig) {},
	} {
		s := jetstream.StreamConfig{Name: name, Subjects: []string{"watcherd.journal." + name}, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew}
		edit(&s)
		if _, err := js.CreateStream(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		c := configOf(t, name, node)
		if name == "replicas" {
			c.Replicas = 3
		}
		j, err := journal.Open(t.Context(), c)
		if err == nil {
			j.Close()
		}
		if !errors.Is(err, journal.ErrStream) || !strings.Contains(err.Error(), "stream "+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStreamIsChanged: settings that would be refused at the next start are logged, once.
func TestStreamIsChanged(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	js := node.Connect()
	var log bytes.Buffer
	c := configOf(t, "J", node)
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	j := open(t, c)
	stream, err := js.Stream(t.Context(), "J")
	if err != nil {
		t.Fatal(err)
	}
	changed := stream.CachedInfo().Config
	changed.Discard = jetstream.DiscardOld
	if _, err := js.UpdateStream(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := j.Extent(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "discards old messages"); n != 1 {
		t.Errorf("%d messages about it:\n%s", n, log.String())
	}
}

// TestServersFail: a cluster whose servers are killed, stopped and wiped, one at a time, loses and doubles no entry.
func TestServersFail(t *testing.T) {
	if testing.Short() {
		t.Skip("elections take their time")
	}
	t.Parallel()
	nodes := natstest.StartCluster(t)
	j := open(t, configOf(t, "J", nodes...))
	w, _ := contend(t, j, store.Position{})
	var want [][]byte
	appendSome := func(n int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for range n {
			batch := fmt.Appendf(nil, "batch %d", len(want))
			if _, err := w.Append(ctx, batch); err != nil {
				t.Fatal(err)
			}
			want = append(want, batch)
		}
	}
	r := j.Read(store.Position{})
	defer r.Close()
	appendSome(50)
	got := read(t, r)
	for i, n := range nodes {
		switch i {
		case 0:
			n.Kill()
			appendSome(50)
			n.Start()
		case 1:
			n.Freeze()
			appendSome(50)
			n.Thaw()
		case 2:
			n.Kill()
			n.Wipe()
			appendSome(50)
			n.Start()
		}
		appendSome(50)
		got = append(got, read(t, r)...)
		check(t, got, want)
		fresh := j.Read(store.Position{})
		check(t, read(t, fresh), want)
		fresh.Close()
	}
}

// told is a log that reports its lines.
type told chan string

func (c told) Write(line []byte) (int, error) {
	select {
	case c <- string(line):
	default: // it is not waited for
	}
	return len(line), nil
}

// TestLostAnswer: a writer whose append is in the stream, but was not answered, led for sure when it sent it first. Another may
// lead by the time that it learns of its success.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	solo := startOne(t)
	p := testkit.NewProxy(t, strings.TrimPrefix(solo.URL, "nats://"))
	c := configOf(t, "J", solo)
	direct := open(t, c)
	c.NATS.URLs = []string{"nats://" + p.Addr}
	lines := make(told, 1)
	c.Log = slog.New(slog.NewTextHandler(lines, nil))
	w, _ := contend(t, open(t, c), store.Position{})
	p.HangAnswers()
	appended := make(chan error, 1)
	go func() {
		_, err := w.Append(t.Context(), []byte("batch"))
		appended <- err
	}()
	r := direct.Read(store.Position{})
	defer r.Close()
	var batches int
	for end := time.Now().Add(patience); batches == 0; {
		if time.Now().After(end) {
			t.Fatal("the batch is not in the stream")
		}
		for _, e := range read(t, r) {
			if e.Kind == journal.Batch {
				batches++
			}
		}
	}
	there := time.Now()
	for line := ""; !strings.Contains(line, "does not take anything"); {
		select {
		case line = <-lines:
		case <-time.After(patience):
			t.Fatal("the lost answer is not noticed")
		}
	}
	p.Restore()
	if err := <-appended; err != nil {
		t.Fatal(err)
	}
	since := time.Since(there)
	if age := w.Age(); age < since {
		t.Errorf("the writer led %v ago, and its batch was in the stream %v ago", age, since)
	}
}

// TestBeginBehindALook: a journal begins only behind what was seen of the stream. A leader that comes back after that is not begun over.
func TestBeginBehindALook(t *testing.T) {
	t.Parallel()
	j := open(t, configOf(t, "J", startOne(t)))
	leader, _ := contend(t, j, store.Position{})
	x, err := j.Extent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leader.Append(t.Context(), []byte("late")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := j.Begin(t.Context(), "adopted", x.Last, []byte("all of it")); !errors.Is(err, store.ErrStolen) {
		t.Errorf("another was there: %v", err)
	}
	if _, err := leader.Append(t.Context(), []byte("later")); err != nil {
		t.Errorf("the leader of before: %v", err)
	}
	if x, err = j.Extent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := j.Begin(t.Context(), "adopted", x.Last, []byte("all of it")); err != nil {
		t.Error(err)
	}
	if ok, _, err := j.Begun(t.Context(), "adopted", x.Last+1); err != nil || !ok {
		t.Errorf("it has begun: %v, %v", ok, err)
	}
}
