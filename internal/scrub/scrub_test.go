package scrub

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestStages goes through the stages from where a state has come to. What is removed from
// the store in the end is tested with the pipeline.
func TestStages(t *testing.T) {
	t.Parallel()
	st, err := store.Open("store", store.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	at := time.Unix(1_800_000_000, 0)
	for _, tc := range []struct {
		from string
		want []string
	}{
		// That of the files is kept again without the dictionaries that it has removed.
		{"", append(Stages[:], Files, "")},
		{"of another version", append(Stages[:], Files, "")},
		{Ledger, []string{Ledger, Sinks, Files, Files, ""}},
		{Files, []string{Files, Files, ""}},
	} {
		var kept []string
		cfg := Config{
			Store: st, Dictionaries: compact.NewDictionaries(nil),
			AtBarrier: func(do func(commit.Barrier)) error { do(commit.Barrier{}); return nil },
			Keep:      func(s ledger.Scrub) error { kept = append(kept, s.Stage); return nil },
			Count:     func(int, int) {}, Now: func() time.Time { return at },
		}
		run, state := New(cfg, ledger.Scrub{Began: at, Stage: tc.from, Retired: []uint32{7}}), ledger.Scrub{Began: at}
		for state.Pending() {
			if state, err = run.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(tc.want, kept); diff != "" {
			t.Errorf("from %q (-want +got):\n%s", tc.from, diff)
		}
		if diff := cmp.Diff(ledger.Scrub{Began: at, Done: at}, state); diff != "" {
			t.Errorf("from %q (-want +got):\n%s", tc.from, diff)
		}
		full := errors.New("full")
		cfg.Keep = func(ledger.Scrub) error { return full }
		if state, err = New(cfg, ledger.Scrub{Began: at}).Next(t.Context()); !errors.Is(err, full) || !state.Pending() {
			t.Errorf("without progress that is kept: %+v, %v", state, err)
		}
	}
}

// TestDamagedRows damages a block of what routes hold: the scrub looks at the rest of it, and
// counts what it could not read.
func TestDamagedRows(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	open := func(do func(st *store.Store)) {
		t.Helper()
		st, err := store.Open("store", store.Options{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		do(st)
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
	const rows = 2000
	key := func(i int) string { return fmt.Sprintf("held by a route/%08d", i) }
	open(func(st *store.Store) {
		b := st.NewBatch()
		for i := range rows {
			timer.Revise(b, key(i), &timer.Row{Start: time.Unix(1_800_000_000, int64(i)), UID: strings.Repeat("u", 50)}, nil)
		}
		if err := st.Commit(b); err != nil {
			t.Fatal(err)
		}
	})
	open(func(*store.Store) {}) // its log becomes a table
	if !damageTable(t, fs, key(rows/2)) {
		t.Fatal("no table has the row")
	}
	open(func(st *store.Store) {
		failed := 0
		run := New(Config{
			Store: st, Dictionaries: compact.NewDictionaries(nil),
			AtBarrier: func(do func(commit.Barrier)) error { do(commit.Barrier{}); return nil },
			Keep:      func(ledger.Scrub) error { return nil },
			Count:     func(_, n int) { failed += n }, Now: time.Now,
		}, ledger.Scrub{Began: time.Now(), Stage: Held})
		state, err := run.Next(t.Context())
		if err != nil || state.Stage != Ledger || failed == 0 {
			t.Errorf("the scrub is at %q, %d rows failed, %v", state.Stage, failed, err)
		}
		read := 0
		if err := timer.NewTable(st).Rows(nil, "", func(string, *timer.Row) error { read++; return nil }); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("the rows are read with %v", err)
		}
		if read < rows/2+1 || read >= rows {
			t.Errorf("%d of %d rows are read", read, rows)
		}
	})
}

// damageTable flips a bit behind a key in a table, and reports whether there is one.
func damageTable(t *testing.T, fs vfs.FS, key string) bool {
	t.Helper()
	names, err := fs.List("store/db")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		name = fs.PathJoin("store/db", name)
		f, err := fs.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		at := bytes.Index(content, []byte(key[len(key)-4:]))
		if at < 0 {
			continue
		}
		content[at+20] ^= 0x55
		out, err := fs.Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		_, err = out.Write(content)
		if err := errors.Join(err, out.Close()); err != nil {
			t.Fatal(err)
		}
		return true
	}
	return false
}

// TestWhatASinkMoves has a sink hold what is hidden in its queue and its dead letters, and
// move it from where it is looked for to where that is over: it is found.
func TestWhatASinkMoves(t *testing.T) {
	const raw = `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"1"},"spec":{"password":"hunter2"}}`
	for name, tc := range map[string]struct {
		dead  bool
		retry int // the number of steps before it leaves the dead letters
	}{
		"in the queue":                  {},
		"in the dead letters":           {dead: true},
		"to the queue behind the scrub": {dead: true, retry: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st, err := store.Open("store", store.Options{FS: vfs.NewMem()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = st.Close() })
			dicts := compact.NewDictionaries(nil)
			o, err := compact.NewCodec(dicts).Encode([]byte(raw), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			pods := event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
			payload, err := record.Append(nil, &record.Record{Event: event.Event{Type: event.Added, Resource: pods, Namespace: "ns", Name: "a"}, Object: o.Body()})
			if err != nil {
				t.Fatal(err)
			}
			q, err := st.EnsureSink("sink", store.FromNow)
			if err != nil {
				t.Fatal(err)
			}
			b := st.NewBatch()
			b.Enqueue(store.Record{Payload: payload}, 1, store.Route{Sink: "sink"})
			if err := st.Commit(b); err != nil {
				t.Fatal(err)
			}
			items, err := q.Read(0, 1, 1<<20)
			if err != nil || len(items) != 1 {
				t.Fatalf("%d items, %v", len(items), err)
			}
			if tc.dead {
				if err := q.DeadLetter(items[0].Position, store.Letter{Reason: "refused"}); err != nil {
					t.Fatal(err)
				}
			}
			edits := hiding(t)
			steps := 0
			run := New(Config{
				Store: st, Dictionaries: dicts, Edits: edits, Keep: func(ledger.Scrub) error { return nil }, Now: time.Now,
				Count: func(int, int) {
					if steps++; steps != tc.retry {
						return
					}
					if n, err := q.RetryDeadLetters(0, items[0].Position); n != 1 || err != nil {
						t.Errorf("retried %d, %v", n, err)
					}
				},
			}, ledger.Scrub{Stage: Sinks})
			if _, err := run.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			var found [][]byte
			letters, err := q.DeadLetters(0, 10)
			for _, l := range letters {
				found = append(found, l.Payload)
			}
			if err == nil {
				items, err = q.Read(0, 10, 1<<20)
			}
			for _, it := range items {
				found = append(found, it.Payload)
			}
			if err != nil || len(found) != 1 {
				t.Fatalf("%d payloads, %v", len(found), err)
			}
			if _, changed, err := redact.NewReviser(edits, dicts).Record(found[0]); changed || err != nil {
				t.Errorf("the payload shows what is hidden, %v", err)
			}
		})
	}
}

// TestLedgerWaitsForRoom begins with the ledger while the store has no room: nothing is
// rewritten before there is some.
func TestLedgerWaitsForRoom(t *testing.T) {
	const states = 3 * ledgerStep
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(27 * 366 * 24 * time.Hour) // the store takes earlier times for a clock that was not set
		st, err := store.Open("store", store.Options{FS: vfs.NewMem()})
		if err != nil {
			t.Fatal(err)
		}
		running, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- st.Run(running) }()
		defer func() {
			stop()
			if err := errors.Join(<-ended, st.Close()); err != nil {
				t.Error(err)
			}
		}()
		dicts := compact.NewDictionaries(nil)
		codec := compact.NewCodec(dicts)
		pods := schema.GroupResource{Resource: "pods"}
		partition := ledger.Partition(pods, "")
		b := st.NewBatch()
		defer b.Discard()
		for i := range states {
			o, err := codec.Encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"%03d","uid":"u","resourceVersion":"1"},"spec":{"password":"hunter2"}}`, i), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			b.PutState(partition, fmt.Sprintf("ns/%03d", i), o.AppendBinary(nil))
		}
		if err := st.Commit(b); err != nil {
			t.Fatal(err)
		}
		edits := hiding(t)
		counted := 0
		run := New(Config{
			Store: st, Dictionaries: dicts, Edits: edits, Keep: func(ledger.Scrub) error { return nil }, Now: time.Now,
			AtBarrier: func(do func(commit.Barrier)) error { do(commit.Barrier{}); return nil },
			Count:     func(n, failed int) { counted += n - failed*states },
		}, ledger.Scrub{Stage: Ledger, Resources: []string{"pods"}})
		st.SetLimits(store.Limits{MaxBytes: 1})
		scrubbed := make(chan error, 1)
		go func() {
			_, err := run.Next(t.Context())
			scrubbed <- err
		}()
		time.Sleep(time.Hour)
		synctest.Wait()
		if counted != 0 {
			t.Errorf("%d states were rewritten without room", counted)
		}
		st.SetLimits(store.Limits{})
		if err := <-scrubbed; err != nil || counted != states {
			t.Errorf("%d of %d states were rewritten, %v", counted, states, err)
		}
		if err := st.ScanState(partition, "", func(key string, value []byte) error {
			_, changed, err := redact.NewReviser(edits, dicts).State(pods, value)
			if changed || err != nil {
				t.Errorf("the state of %s shows what is hidden, %v", key, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// TestStatesInSmallBatches rewrites large states, and large records that a route holds, in a small store. A batch is no larger
// than a memtable, give or take one of them: it would be on the disk several times until compactions are done.
func TestStatesInSmallBatches(t *testing.T) {
	t.Parallel()
	const items = 48
	st, err := store.Open("store", store.Options{FS: vfs.NewMem(), MaxBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	noise := make([]byte, 16<<10)
	_, _ = rand.Read(noise)
	dicts := compact.NewDictionaries(nil)
	o, err := compact.NewCodec(dicts).Encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"1"},"spec":{"password":"hunter2","noise":"%x"}}`, noise), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := record.Append(nil, &record.Record{Event: event.Event{
		Type: event.Added, Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Namespace: "ns", Name: "a",
	}, Object: o.Body()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range items {
		b := st.NewBatch()
		b.PutState(ledger.Partition(schema.GroupResource{Resource: "pods"}, ""), fmt.Sprint(i), o.AppendBinary(nil))
		timer.Revise(b, fmt.Sprint("held by a route/", i), &timer.Row{Start: time.Now(), UID: "u"}, payload)
		if err := st.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	size, counted := len(noise), 0
	run := New(Config{
		Store: st, Dictionaries: dicts, Edits: hiding(t), Keep: func(ledger.Scrub) error { return nil }, Now: time.Now,
		AtBarrier: func(do func(commit.Barrier)) error { do(commit.Barrier{}); return nil },
		Count: func(n, _ int) {
			if counted += n; n*size > st.BatchBytes()+size {
				t.Errorf("%d items of more than %d bytes are a batch, with a memtable of %d", n, size, st.BatchBytes())
			}
		},
	}, ledger.Scrub{Stage: Held, Resources: []string{"pods"}})
	for range 2 {
		if _, err := run.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if counted != 2*items {
		t.Errorf("%d items were rewritten, want %d", counted, 2*items)
	}
}

// TestScrubMakesRoom rewrites a log that a sink holds, and that takes most of the budget. What is overwritten takes the
// rest: the scrub makes room of it, which neither retention nor ingest, which waits, would do.
func TestScrubMakesRoom(t *testing.T) {
	const budget, size = 64 << 20, 32 << 10
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(27 * 366 * 24 * time.Hour) // the store takes earlier times for a clock that was not set
		st, err := store.Open("store", store.Options{FS: vfs.NewMem(), MaxBytes: budget})
		if err != nil {
			t.Fatal(err)
		}
		running, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- st.Run(running) }()
		defer func() {
			stop()
			if err := errors.Join(<-ended, st.Close()); err != nil {
				t.Error(err)
			}
		}()
		if _, err := st.EnsureSink("dead", store.FromNow); err != nil {
			t.Fatal(err)
		}
		dicts := compact.NewDictionaries(nil)
		codec := compact.NewCodec(dicts)
		noise := make([]byte, size/2)
		records := 0
		for st.Health().Bytes < budget/2*8/10 {
			if err := st.WaitIngest(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, _ = rand.Read(noise)
			o, err := codec.Encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"1"},"spec":{"password":"hunter2","noise":"%x"}}`, noise), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			payload, err := record.Append(nil, &record.Record{Event: event.Event{
				Type: event.Added, Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Namespace: "ns", Name: "a",
			}, Object: o.Body()})
			if err != nil {
				t.Fatal(err)
			}
			b := st.NewBatch()
			b.Append(store.Record{Time: time.Now(), Payload: payload}, []store.Route{{Sink: "dead"}})
			if err := st.Commit(b); err != nil {
				t.Fatal(err)
			}
			records++
		}
		rewritten := 0
		run := New(Config{
			Store: st, Dictionaries: dicts, Edits: hiding(t), Keep: func(ledger.Scrub) error { return nil }, Now: time.Now,
			Count: func(n, failed int) { rewritten += n - failed*records },
		}, ledger.Scrub{Stage: Log, Resources: []string{"pods"}})
		scrubbed := make(chan error, 1)
		go func() {
			_, err := run.Next(t.Context())
			scrubbed <- err
		}()
		select {
		case err := <-scrubbed:
			if err != nil || rewritten != records {
				t.Errorf("%d of %d records were rewritten, %v", rewritten, records, err)
			}
		case <-time.After(time.Hour):
			t.Errorf("%d of %d records were rewritten in an hour: %+v", rewritten, records, st.Health())
		}
	})
}

// hiding are edits that hide passwords of pods.
func hiding(t *testing.T) *redact.Table {
	t.Helper()
	edits, err := redact.Compile(redact.Accepted{Resources: []redact.Resource{{Resource: "pods", Edits: redact.Edits{Redact: []string{"spec.password"}}}}}, nil, make([]byte, redact.MinKey))
	if err != nil {
		t.Fatal(err)
	}
	return edits
}
