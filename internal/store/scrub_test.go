package store

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/internal/testkit"
)

const canary = "plaintext-canary"

func hide(payload []byte) ([]byte, bool) {
	if !bytes.Contains(payload, []byte(canary)) {
		return payload, false
	}
	return bytes.ReplaceAll(payload, []byte(canary), []byte("redacted, and longer than before")), true
}

// appendCanaries commits n records, one a commit, and overwrites a state with each.
func appendCanaries(t *testing.T, s *Store, n int, sinks ...string) {
	t.Helper()
	var routes []Route
	for _, sink := range sinks {
		routes = append(routes, Route{Sink: sink})
	}
	for range n {
		b := s.NewBatch()
		b.Append(Record{Time: testEpoch, Payload: []byte(canary + strings.Repeat("x", 500))}, routes)
		b.PutState("pods", "ns/a", []byte("state of "+canary))
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
}

// rewriteAll rewrites everything and returns how much that was.
func rewriteAll(t *testing.T, s *Store, rewrite Rewrite) (total int) {
	t.Helper()
	steps := []func(uint64, Rewrite) (uint64, int, bool, error){s.RewriteLog}
	for _, q := range s.sinks.all() {
		steps = append(steps, q.RewriteQueue, q.RewriteDeadLetters)
	}
	for _, step := range steps {
		for after := uint64(0); ; {
			last, n, end, err := step(after, rewrite)
			if err != nil {
				t.Fatal(err)
			}
			if total += n; end {
				break
			}
			after = last
		}
	}
	return total
}

// Nothing of what was rewritten stays in any file, and everything else stays as it was.
func TestRewriteEverything(t *testing.T) {
	dir := t.TempDir()
	func() {
		s := openTest(t, dir, Options{})
		q := ensure(t, s, "sink")
		appendCanaries(t, s, 600, "sink")
		items := read(t, q, 0, 6)
		for _, it := range items {
			if err := q.DeadLetter(it.Position, Letter{Reason: "refused: no " + canary}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := q.RetryDeadLetters(0, items[0].Position, items[1].Position); err != nil {
			t.Fatal(err)
		}
		if err := s.db.Flush(); err != nil {
			t.Fatal(err)
		}
		appendCanaries(t, s, 10, "sink")
		log, stats := s.LogStats(), q.Stats()
		if n := rewriteAll(t, s, hide); n != 610+2+4 {
			t.Errorf("%d payloads rewritten, want 616", n)
		}
		if n := rewriteAll(t, s, hide); n != 0 {
			t.Errorf("%d payloads rewritten a second time", n)
		}
		if now := s.LogStats(); now != log {
			t.Errorf("log %+v, was %+v", now, log)
		}
		now := q.Stats()
		if now.DeadLetterBytes <= stats.DeadLetterBytes {
			t.Errorf("dead letters of %d bytes, were %d", now.DeadLetterBytes, stats.DeadLetterBytes)
		}
		if now.DeadLetterBytes = stats.DeadLetterBytes; now != stats {
			t.Errorf("queue %+v, was %+v", now, stats)
		}
		if len(testkit.FilesWith(t, dir, canary)) == 0 {
			t.Fatal("the canary is in no file to begin with")
		}
		b := s.NewBatch()
		b.PutState("pods", "ns/a", []byte("state"))
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
		if err := s.EraseObsolete(t.Context()); err != nil {
			t.Fatal(err)
		}
		if files := testkit.FilesWith(t, dir, canary); len(files) > 0 {
			t.Errorf("the canary is in %v", files)
		}
		for _, it := range read(t, q, 0, 1000) {
			if !bytes.HasPrefix(it.Payload, []byte("redacted,")) || !bytes.HasSuffix(it.Payload, []byte("xxx")) {
				t.Fatalf("entry %d: %s", it.Position, it.Payload)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	report, err := inspect.Check(dir)
	if err != nil || !report.OK() {
		t.Errorf("%v, %v", report.Problems, err)
	}
}

// Whoever takes entries, settles letters and deletes records while they are rewritten
// finds them gone afterwards.
func TestRewriteDuringTraffic(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{RetentionMaxAge: time.Hour})
	q := ensure(t, s, "sink")
	var stop sync.WaitGroup
	done := make(chan struct{})
	stop.Go(func() {
		flip := byte('a')
		for {
			select {
			case <-done:
				return
			default:
			}
			flip ^= 1
			rewriteAll(t, s, func(payload []byte) ([]byte, bool) {
				return append(bytes.Clone(payload), flip), true
			})
		}
	})
	for i := range 30 {
		for range 5 {
			b := s.NewBatch()
			for range 20 {
				b.Append(Record{Time: testEpoch, Payload: []byte("payload")}, []Route{{Sink: "sink"}})
			}
			if err := s.Commit(b); err != nil {
				t.Fatal(err)
			}
		}
		items := read(t, q, 0, 1000)
		if len(items) != 100 && i > 0 && len(items) < 100 {
			t.Fatalf("%d entries, want at least 100", len(items))
		}
		var positions []uint64
		for n, it := range items {
			if n%10 > 0 {
				positions = append(positions, it.Position)
			} else if err := q.DeadLetter(it.Position, Letter{Reason: "test"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := q.Ack(positions...); err != nil {
			t.Fatal(err)
		}
		letters, err := q.DeadLetters(0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for n, l := range letters {
			if n%2 == 0 {
				_, err = q.RetryDeadLetters(0, l.Position)
			} else {
				_, err = q.DropDeadLetters(l.Position)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.retain(testEpoch.Add(1000*time.Hour), s.limits(), 0); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	stop.Wait()
	rewriteAll(t, s, func(payload []byte) ([]byte, bool) { return payload, false })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := inspect.Check(dir)
	if err != nil || !report.OK() {
		t.Errorf("%v, %v", report.Problems, err)
	}
}

// A payload that was read to be copied is rewritten before the copy is written.
func TestRewriteDuringCopy(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	q := ensure(t, s, "sink")
	appendCanaries(t, s, 3, "sink")
	items := read(t, q, 0, 1)
	sl, _ := q.window.get(items[0].Position)
	before := s.rewrites.Load()
	value, err := q.payload(sl)
	if err != nil {
		t.Fatal(err)
	}
	chunk, err := q.attached()
	if err != nil {
		t.Fatal(err)
	}
	rewriteAll(t, s, hide)
	if err := q.setAside(sl, value, before, Letter{Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	if _, moved, err := q.carry(chunk); err != nil || !moved {
		t.Fatal("nothing was detached", err)
	}
	if n := rewriteAll(t, s, hide); n > 0 {
		t.Errorf("%d payloads were copied as they had been", n)
	}
	letters, err := q.DeadLetters(0, 10)
	if err != nil || len(letters) != 1 {
		t.Fatal(letters, err)
	}
	if st := q.Stats(); st.DeadLetterBytes != int64(len(letters[0].Payload)) {
		t.Errorf("dead letters of %d bytes count as %d", len(letters[0].Payload), st.DeadLetterBytes)
	}
}

// Retention leaves alone what is being rewritten: written again after its deletion, it
// would lie below the log's beginning, and a kill would leave it there.
func TestRetentionDuringARewrite(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1})
	for i := range 6 {
		b := s.NewBatch()
		b.Append(Record{Time: testEpoch.Add(time.Duration(i) * 2 * segmentAge), Payload: []byte(canary)}, nil)
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	retain := func() (records int64) {
		t.Helper()
		if _, err := s.retain(testEpoch, Limits{}, 1<<30); err != nil {
			t.Fatal(err)
		}
		return s.LogStats().Records
	}
	_, n, _, err := s.RewriteLog(2, func(payload []byte) ([]byte, bool) {
		if records := retain(); records != 4 {
			t.Errorf("%d records are left while 4 are rewritten", records)
		}
		return hide(payload)
	})
	if err != nil || n != 4 {
		t.Fatalf("%d rewritten, %v", n, err)
	}
	if records := retain(); records != 1 {
		t.Errorf("%d records are left after the rewrite", records)
	}
}

// TestEraseReachesTheLowestLevel rewrites one record of many that lie in the lowest level.
// What a flush brings into a level above leaves the old one where it is.
func TestEraseReachesTheLowestLevel(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{MaxBytes: smallTables})
	appendCanaries(t, s, 1)
	b := s.NewBatch()
	for range 40 {
		b.Append(Record{Time: testEpoch, Payload: noise(64 << 10)}, nil)
	}
	b.PutState("pods", "ns/a", []byte("state"))
	if err := errors.Join(s.Commit(b), flush(s), s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)); err != nil {
		t.Fatal(err)
	}
	if n := rewriteAll(t, s, hide); n != 1 {
		t.Fatalf("%d payloads rewritten", n)
	}
	if err := s.EraseObsolete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if files := testkit.FilesWith(t, dir, canary); len(files) > 0 {
		t.Errorf("the canary is in %v", files)
	}
}

// TestEraseAwaitsRemoval delays the removal of tables. They are gone when the erasure is
// over.
func TestEraseAwaitsRemoval(t *testing.T) {
	var f faulty
	var removed, removing atomic.Int64
	s := openTest(t, "store", Options{FS: errorfs.Wrap(vfs.NewMem(), &f)})
	appendCanaries(t, s, 10)
	if err := flush(s); err != nil {
		t.Fatal(err)
	}
	f.set(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpRemove && strings.HasSuffix(op.Path, ".sst") {
			removing.Add(1)
			time.Sleep(100 * time.Millisecond)
			removed.Add(1)
		}
		return nil
	})
	rewriteAll(t, s, hide)
	if err := s.EraseObsolete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := removed.Load(); n == 0 || n != removing.Load() {
		t.Errorf("%d tables of %d are removed", n, removing.Load())
	}
}
