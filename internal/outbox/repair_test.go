package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// smallTables makes memtables and tables of 256 KiB, and writes stop at 12 tables
// that wait for a compaction.
const smallTables = 16 << 20

// commitOne commits a record for sink a with a ledger entry.
func commitOne(t *testing.T, s *Store, name string, payload []byte) {
	t.Helper()
	b := s.NewBatch()
	b.Append(Record{Time: testEpoch, Payload: append([]byte("record-"+name), payload...)}, []Route{{Sink: "a"}})
	b.PutState("objects", name, append([]byte("state-"+name), payload...))
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
}

// runStore runs a store until the end of the test.
func runStore(t *testing.T, s *Store) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestWritesGoOnOverDamage damages blocks of records and of the ledger, and writes so
// much that compactions have to take in the damaged tables.
func TestWritesGoOnOverDamage(t *testing.T) {
	fs := vfs.NewMem()
	const n, more = 400, 4000
	name := func(i int) string { return fmt.Sprintf("object-%05d|", i) }
	payload := noise(2000)
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables})
	ensure(t, s, "a")
	for i := range n {
		commitOne(t, s, name(i), payload)
	}
	if err := flush(s); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{40, 41, 150, 300} {
		for _, what := range []string{"record-", "state-"} {
			if !damageKeys(t, fs, []byte(what+name(i)), 0) {
				t.Fatalf("%s%s is nowhere", what, name(i))
			}
		}
	}
	var logged logLines
	s = openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	stop := runStore(t, s)
	q := ensure(t, s, "a")
	delivered, after := 0, uint64(0)
	for i := range more {
		commitOne(t, s, name(i%n), payload)
		if i%50 > 0 {
			continue
		}
		for items := read(t, q, after, 64); len(items) > 0; items = read(t, q, after, 64) {
			for _, item := range items {
				after = item.Position
				delivered++
				if err := q.Ack(after); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	compactAll(t, s)
	stop()
	if failed := s.db.Metrics().Compact.FailedCount; failed == 0 || failed > 20 {
		t.Errorf("%d failed compactions", failed)
	}
	more1, lost := drainDamagedOf(t, s, n+more)
	if delivered += more1; lost == 0 || lost > 20 || delivered+lost != n+more {
		t.Errorf("%d delivered, %d lost of %d", delivered, lost, n+more)
	}
	if lines := logged.like("taken out of a table"); len(lines) == 0 || len(lines) > 8 {
		t.Errorf("%d lines of log: %q", len(lines), lines)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := check(fs, "store")
	if err != nil || len(report.Damaged) > 0 {
		t.Errorf("check: %v, %v", err, report.Damaged)
	}
	for _, p := range report.Problems { // the log is counted with its lost records
		if !strings.Contains(p, `counter "cl`) {
			t.Error(p)
		}
	}
}

// compactAll compacts a running store until no damage is left in it.
func compactAll(t *testing.T, s *Store) {
	t.Helper()
	for tries := 0; ; tries++ {
		err := s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)
		if err == nil {
			return
		}
		if !pebble.IsCorruptionError(err) || tries > 20 {
			t.Fatal(err)
		}
		for path, table := s.damaged.next(); table != nil && t.Context().Err() == nil; path, table = s.damaged.next() {
			s.waitForRepair(path)
		}
	}
}
