package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/testkit"
)

// damageKeys flips a byte behind the nth of the places where a key, or what else
// identifies a block, is written in the tables; it reports whether there is one.
func damageKeys(t *testing.T, fs vfs.FS, key []byte, nth int) bool {
	t.Helper()
	for _, name := range dataFiles(t, fs, ".sst") {
		b := content(t, fs, name)
		if damageKey(b, key, &nth) {
			overwrite(t, fs, name, b)
			return true
		}
	}
	return false
}

// damageKey does so in the content of a table; nth is counted down by the places that it passes.
func damageKey(b, key []byte, nth *int) bool {
	for i := 0; ; i++ {
		at := bytes.Index(b[i:], key)
		if at < 0 {
			return false
		}
		i += at
		if *nth--; *nth < 0 {
			b[i+len(key)+24] ^= 0x55
			return true
		}
	}
}

// damagedThrice makes a closed store of n records and states, in tables of which three
// blocks of either are damaged. At most so many are lost of each.
func damagedThrice(t *testing.T) (fs *vfs.MemFS, n, most int) {
	t.Helper()
	fs = vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	ensure(t, s, "a")
	n = 600
	payload := noise(2000)
	for i := range n {
		b := s.NewBatch()
		b.Append(Record{Time: testEpoch, Payload: append([]byte("record-"+thriceName(i)), payload...)}, []Route{{Sink: "a"}})
		b.PutState("objects", thriceName(i), append([]byte("state-"+thriceName(i)), payload...))
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := reclaim(s, 1, uint64(n)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{40, 300, 560} {
		for _, what := range []string{"record-", "state-"} {
			if !damageKeys(t, fs, []byte(what+thriceName(i)), 0) {
				t.Fatalf("%s%s is nowhere", what, thriceName(i))
			}
		}
	}
	return fs, n, 3 * 4 // a block of 4 KiB has two, or parts of three
}

func thriceName(i int) string { return fmt.Sprintf("object-%04d|", i) }

// TestExportOfFilesBetweenDamages wants everything that lies between bad bytes from the
// export of a store that cannot be opened.
func TestExportOfFilesBetweenDamages(t *testing.T) {
	fs, n, most := damagedThrice(t)
	// Nor is anything left in write-ahead logs that were kept to be written over.
	for _, name := range append(dataFiles(t, fs, "MANIFEST-"), dataFiles(t, fs, ".log")...) {
		if err := fs.Remove("store/db/" + name); err != nil {
			t.Fatal(err)
		}
	}
	lines := exportLines(t, fs)
	records := distinct(lines["record"], func(l inspect.Line) string { return fmt.Sprint(l.Sequence) })
	states := distinct(lines["state"], func(l inspect.Line) string { return l.Key })
	if records < n-most || records == n || states < n-most || states == n {
		t.Errorf("export has %d records and %d states of %d", records, states, n)
	}
	spans := 0
	for _, l := range lines["damage"] {
		if strings.Contains(l.Name, ".sst: log records after") || strings.Contains(l.Name, ".sst: ledger entries after") {
			spans++
		}
	}
	if spans != 6 || len(lines["damage"]) != 7 { // and the store as a whole
		t.Errorf("%d spans in %+v", spans, lines["damage"])
	}
}

// TestExportOfDeletedRanges exports file by file a store of which a sink was purged: who reads that finds which entries are there.
func TestExportOfDeletedRanges(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	ensure(t, s, "a")
	ensure(t, s, "gone")
	const n = 20
	appendN(t, s, n, "a", "gone")
	if err := errors.Join(flush(s), s.PurgeSink("gone"), flush(s), s.Close()); err != nil {
		t.Fatal(err)
	}
	for _, like := range []string{"MANIFEST-", ".log"} {
		for _, name := range dataFiles(t, fs, like) {
			if err := fs.Remove("store/db/" + name); err != nil {
				t.Fatal(err)
			}
		}
	}
	lines := exportLines(t, fs)
	there := slices.DeleteFunc(lines["entry"], func(l inspect.Line) bool {
		id := uint32(1)
		if l.Sink == "gone" {
			id = 2
		}
		key := string(layout.AppendSinkKey(nil, layout.PrefixQueue, id, l.Position))
		return slices.ContainsFunc(lines["deleted-range"], func(r inspect.Line) bool {
			var from, to string
			if _, err := fmt.Sscanf(r.Name, "from %q up to %q", &from, &to); err != nil {
				t.Fatal(err)
			}
			return from <= key && key < to && l.Version < r.Version
		})
	})
	if len(there) != n {
		t.Errorf("%d entries, and %d ranges that are deleted", len(there), len(lines["deleted-range"]))
	}
}

// TestExportWithoutIndex wants the records of a table of which the index, or the end of
// the file, is lost.
func TestExportWithoutIndex(t *testing.T) {
	fs, n, most := damagedThrice(t)
	for _, name := range append(dataFiles(t, fs, "MANIFEST-"), dataFiles(t, fs, ".log")...) {
		if err := fs.Remove("store/db/" + name); err != nil {
			t.Fatal(err)
		}
	}
	names := dataFiles(t, fs, ".sst")
	for _, name := range names {
		b := content(t, fs, name)
		overwrite(t, fs, name, b[:len(b)-1000])
	}
	lines := exportLines(t, fs)
	records := distinct(lines["record"], func(l inspect.Line) string { return fmt.Sprint(l.Sequence) })
	states := distinct(lines["state"], func(l inspect.Line) string { return l.Key })
	if records < n-most || records == n || states < n-most || states == n {
		t.Errorf("export has %d records and %d states of %d", records, states, n)
	}
	for _, l := range lines["record"] {
		if !bytes.HasPrefix(l.Payload, []byte("record-"+thriceName(int(l.Sequence)-1))) {
			t.Fatalf("record %d has payload %.40q", l.Sequence, l.Payload)
		}
	}
	if len(lines["damage"]) != 1+len(names) {
		t.Errorf("damage %+v", lines["damage"])
	}
}

// damageIndex flips a byte of the index of a table.
func damageIndex(t *testing.T, fs vfs.FS, name string) {
	t.Helper()
	flipIn(t, fs, name, func(l *sstable.Layout) []block.Handle { return l.Index[:1] })
}

// TestExportBesideTheIndex wants the same of a store that opens.
func TestExportBesideTheIndex(t *testing.T) {
	fs, n, most := damagedThrice(t)
	names := dataFiles(t, fs, ".sst")
	name := slices.MaxFunc(names, func(a, b string) int { return len(content(t, fs, a)) - len(content(t, fs, b)) })
	damageIndex(t, fs, name)
	lines := exportLines(t, fs)
	records := distinct(lines["record"], func(l inspect.Line) string { return fmt.Sprint(l.Sequence) })
	states := distinct(lines["state"], func(l inspect.Line) string { return l.Key })
	if records < n-most || records == n || states < n-most || states == n {
		t.Errorf("export has %d records and %d states of %d", records, states, n)
	}
	if !slices.ContainsFunc(lines["damage"], func(l inspect.Line) bool { return strings.Contains(l.Name, name) }) {
		t.Errorf("%s is not named: %+v", name, lines["damage"])
	}
}

// TestExportOfLogBetweenDamages wants the commits on both sides of bad bytes in a
// write-ahead log.
func TestExportOfLogBetweenDamages(t *testing.T) {
	fs := storeFiles(t, false)
	names := dataFiles(t, fs, ".log")
	name := names[len(names)-1]
	b := content(t, fs, name)
	const damaged = 3
	for _, record := range []int{90, 110, 130} {
		at := bytes.Index(b, fmt.Appendf(nil, "%d:", record))
		if at < 0 {
			t.Fatalf("record %d is not in the log", record)
		}
		b[at+100] ^= 0x55
	}
	overwrite(t, fs, name, b)
	if _, err := Open("store", Options{FS: fs, firstSequence: 1}); !errors.Is(err, ErrDamaged) {
		t.Fatalf("open: %v", err)
	}
	lines := exportLines(t, fs)
	records := distinct(lines["record"], func(l inspect.Line) string { return fmt.Sprint(l.Sequence) })
	states := distinct(lines["state"], func(l inspect.Line) string { return l.Key })
	if records != damageRecords-damaged || states != damageRecords-damaged {
		t.Errorf("export has %d records and %d states of %d", records, states, damageRecords)
	}
	if len(lines["damage"]) != 1+damaged {
		t.Errorf("damage: %+v", lines["damage"])
	}
}

// TestBetweenTwoDamages wants everything that lies between two bad bytes, from the
// ledger, an export and a check.
func TestBetweenTwoDamages(t *testing.T) {
	fs, n, most := damagedThrice(t)
	name := thriceName
	lines := exportLines(t, fs)
	records := distinct(lines["record"], func(l inspect.Line) string { return fmt.Sprint(l.Sequence) })
	if states := len(lines["state"]); records < n-most || records == n || states < n-most || states == n {
		t.Errorf("export has %d records and %d states of %d", records, states, n)
	}
	if got := len(lines["damage"]); got != 6 {
		t.Errorf("export has %d lines of damage: %+v", got, lines["damage"])
	}
	for _, l := range lines["damage"] {
		if !strings.Contains(l.Name, "after") || !strings.Contains(l.Name, "before") || strings.Contains(l.Error, "\n") {
			t.Errorf("damage %+v", l)
		}
	}
	report, err := inspect.CheckFS(fs, "store")
	if err != nil || report.Records != int64(records) || report.Partitions[0].Entries < int64(n-most) {
		t.Errorf("check: %v, %d records, %d states", err, report.Records, report.Partitions[0].Entries)
	}

	var logged testkit.Log
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	seen, last := 0, ""
	err = s.ScanState("objects", "", func(key string, _ []byte) error {
		if key <= last {
			t.Errorf("%s after %s", key, last)
		}
		seen, last = seen+1, key
		return nil
	})
	if !errors.Is(err, ErrUnreadable) || seen != len(lines["state"]) {
		t.Errorf("scan: %d, %v", seen, err)
	}
	if _, _, err := s.State("objects", name(300), nil); !errors.Is(err, ErrUnreadable) {
		t.Errorf("a damaged entry: %v", err)
	}
	if _, ok, err := s.State("objects", name(200), nil); !ok || err != nil {
		t.Errorf("another entry: %v %v", ok, err)
	}
	// A replay by time, which looks for its beginning from the damage on.
	if from, to, err := s.bounds(ReplayRange{FromTime: testEpoch}); from != 1 || to != uint64(n) || err != nil {
		t.Errorf("replay from %d to %d, %v", from, to, err)
	}
	if from, _, err := s.bounds(ReplayRange{FromTime: testEpoch.Add(1)}); from != uint64(n)+1 || err != nil {
		t.Errorf("replay of later ones from %d, %v", from, err)
	}
	// The log, as who follows it reads it.
	got, holes := 0, 0
	for after := uint64(0); ; {
		items, err := s.ReadLog(after, 100)
		if err != nil {
			t.Fatal(err)
		}
		if len(items) == 0 {
			break
		}
		for _, item := range items {
			after = item.Sequence
			if item.Unreadable {
				holes++
			} else {
				got++
			}
		}
	}
	if got != records || holes != 3 {
		t.Errorf("read %d records with %d holes", got, holes)
	}
	// And one by one.
	single := 0
	for sequence := range uint64(n) {
		switch _, ok, err := s.ReadRecord(sequence + 1); {
		case ok:
			single++
		case !errors.Is(err, ErrUnreadable):
			t.Errorf("record %d: %v", sequence+1, err)
		}
	}
	if single != records {
		t.Errorf("read %d records one by one", single)
	}
	delivered, lost := drainDamagedOf(t, s, n)
	if delivered != records || delivered+lost != n {
		t.Errorf("%d delivered, %d lost", delivered, lost)
	}
	if lines := logged.Like("part of the log cannot be read"); len(lines) != 3 {
		t.Errorf("%d lines of log: %q", len(lines), lines)
	}
}

// drainDamagedOf acknowledges all entries of the queue and counts them and the
// dead letters.
func drainDamagedOf(t *testing.T, s *Store, n int) (delivered, lost int) {
	t.Helper()
	q, err := s.Queue("a")
	if err != nil {
		t.Fatal(err)
	}
	var positions []uint64
	for items := read(t, q, 0, 64); len(items) > 0; items = read(t, q, positions[len(positions)-1], 64) {
		positions = nil
		for _, item := range items {
			positions = append(positions, item.Position)
		}
		delivered += len(positions)
		if err := q.Ack(positions...); err != nil {
			t.Fatal(err)
		}
	}
	letters, err := q.DeadLetters(0, n)
	if err != nil {
		t.Fatal(err)
	}
	if st := q.Stats(); st.Length != 0 || st.DeadLetters != int64(len(letters)) {
		t.Errorf("stats %+v", st)
	}
	return delivered, len(letters)
}

// TestLongDamage reads past more unreadable records than one Read takes.
func TestLongDamage(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	ensure(t, s, "a")
	const n, bad = 1200, 1000
	for i := range n {
		b := s.NewBatch()
		b.Append(Record{Time: testEpoch, Payload: fmt.Appendf(nil, "record-%04d|%s", i, noise(300))}, []Route{{Sink: "a"}})
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := reclaim(s, 1, n); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range dataFiles(t, fs, ".sst") {
		b := content(t, fs, name)
		for i := range bad { // but for the first ones, which share a block with what is vital
			damageKey(b, fmt.Appendf(nil, "record-%04d|", i+30), new(int))
		}
		overwrite(t, fs, name, b)
	}
	var logged testkit.Log
	s = openTest(t, "store", Options{FS: fs, firstSequence: 1, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	q := ensure(t, s, "a")
	if items := read(t, q, 0, 64); len(items) == 0 {
		t.Errorf("the first read returns none; %+v", q.Stats())
	}
	delivered, lost := drainDamagedOf(t, s, n)
	if delivered < n-bad-50 || delivered+lost != n {
		t.Errorf("%d delivered, %d lost", delivered, lost)
	}
	if lines := logged.Like(""); len(lines) > 20 {
		t.Errorf("%d lines of log, the first: %s", len(lines), lines[0])
	}
}

// damagedQueue makes a store in which a block of the queue is damaged.
func damagedQueue(t *testing.T, fs vfs.FS) (entries int) {
	t.Helper()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	ensure(t, s, "a")
	const n = 10_000
	for range n / 1000 {
		b := s.NewBatch()
		for range 1000 {
			b.Append(Record{Time: testEpoch, Payload: []byte("0123456789")}, []Route{{Sink: "a"}})
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := reclaim(s, 1, 2); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !damageKeys(t, fs, append(layout.SinkPrefix(layout.PrefixQueue, 1), 0), 20) {
		t.Fatal("no block of the queue")
	}
	return n
}

// compactApart has the last block of the log, and that of the only queue, hold nothing else.
func compactApart(t *testing.T, fs vfs.FS) {
	t.Helper()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	b := s.NewBatch()
	b.PutMeta("", noise(8000))
	if err := errors.Join(s.Commit(b), reclaim(s, 1, 2), s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false), s.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedEndOfTheLog damages the block with the last record: the store opens, the records before it are delivered, and
// readers of the log come to its end, also after a repair that removes the block.
func TestDamagedEndOfTheLog(t *testing.T) {
	fs := storeFiles(t, true)
	compactApart(t, fs)
	if !damageKeys(t, fs, fmt.Appendf(nil, "%d:", damageRecords), 0) {
		t.Fatal("the last record is nowhere")
	}
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables})
	drained := func() {
		t.Helper()
		unreadable := 0
		last := s.LogStats().Last
		for after := uint64(0); after < last; {
			items, err := s.ReadLog(after, 64)
			if err != nil || len(items) == 0 {
				t.Fatalf("%d items after %d of %d, %v", len(items), after, last, err)
			}
			after = items[len(items)-1].Sequence
			if items[0].Unreadable {
				unreadable++
			}
		}
		if unreadable != 1 || last != damageRecords {
			t.Errorf("%d unreadable runs up to %d", unreadable, last)
		}
	}
	drained()
	amid := ensure(t, s, "amid")
	if n, err := s.Replay(t.Context(), "amid", ReplayRange{FromSequence: damageRecords - 1, ToSequence: damageRecords - 1}, func(*Item) (Selected, bool, error) {
		return Selected{}, true, nil
	}); err != nil || n != 1 || len(read(t, amid, 0, 10)) != 0 || amid.Stats().DeadLetters != 1 {
		t.Errorf("a replay that ends amid the damage has %d events, %+v, %v", n, amid.Stats(), err)
	}
	if delivered, lost := drainDamaged(t, s); delivered+lost != damageRecords || lost == 0 || lost > 10 {
		t.Errorf("%d delivered, %d lost", delivered, lost)
	}
	stop := runStore(t, s)
	compactAll(t, s)
	stop()
	drained()
	if next := appendN(t, s, 1, "a"); next[0] <= damageRecords {
		t.Errorf("sequence %d again", next[0])
	}
}

// TestDamageBesideDeadLetters ends the process after the last entry before the damage, and
// no other, became a dead letter. That one stays beside the dead letter for the damage.
func TestDamageBesideDeadLetters(t *testing.T) {
	fs := vfs.NewMem()
	damagedQueue(t, fs)
	var last uint64 // before the damage
	life := func(name string, f func(t *testing.T, q *Queue)) {
		t.Run(name, func(t *testing.T) { f(t, ensure(t, openTest(t, "store", Options{FS: fs, firstSequence: 1}), "a")) })
	}
	life("refused", func(t *testing.T, q *Queue) {
		items := read(t, q, 0, 1<<20)
		last = items[len(items)-1].Position
		if q.Stats().DeadLetters > 0 {
			t.Fatal("the damage is met already")
		}
		if err := q.DeadLetter(last, Letter{Reason: "refused", First: testEpoch, Time: testEpoch}); err != nil {
			t.Fatal(err)
		}
	})
	life("read again", func(t *testing.T, q *Queue) {
		items := read(t, q, 0, 1<<20)
		read(t, q, items[len(items)-1].Position, 1)
		letters, err := q.DeadLetters(0, 100)
		if err != nil || len(letters) != 2 || q.Stats().DeadLetters != 2 {
			t.Fatalf("%d dead letters, %d are counted, %v", len(letters), q.Stats().DeadLetters, err)
		}
		if l := letters[0]; l.Position != last || l.Reason != "refused" || len(l.Payload) == 0 {
			t.Errorf("dead letter %d at %d: %s", l.Position, last, l.Reason)
		}
	})
}

// TestDamageMetTwice has two readers meet the same damage before either has dealt with it.
func TestDamageMetTwice(t *testing.T) {
	fs := vfs.NewMem()
	damagedQueue(t, fs)
	q := ensure(t, openTest(t, "store", Options{FS: fs, firstSequence: 1}), "a")
	items := read(t, q, 0, 1<<20)
	from := items[len(items)-1].Position + 1
	tail := q.Stats().Tail
	r := queueReader{q: q, max: 1, maxBytes: 1 << 20}
	_, cause := r.entriesFrom(from, tail)
	var ends []uint64
	for range 2 {
		end, err := q.skipDamage(from, tail, cause)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	letters, err := q.DeadLetters(0, 100)
	if err != nil || len(letters) != 1 || q.Stats().DeadLetters != 1 || ends[0] != ends[1] {
		t.Errorf("%d dead letters, %d are counted, up to %d, %v", len(letters), q.Stats().DeadLetters, ends, err)
	}
}

// TestRetryOfLostEntries retries the dead letter that stands for lost entries, in a queue
// that does not get all records: no record reaches the sink that was not for it.
func TestRetryOfLostEntries(t *testing.T) {
	fs := vfs.NewMem()
	t.Run("before", func(t *testing.T) {
		s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
		ensure(t, s, "a")
		for range 10_000 {
			b := s.NewBatch()
			for _, r := range []string{"mine", "another's"} {
				var routes []Route
				if r == "mine" {
					routes = append(routes, Route{Sink: "a"})
				}
				b.Append(Record{Time: testEpoch, Payload: []byte(r)}, routes)
			}
			if err := s.Commit(b); err != nil {
				t.Fatal(err)
			}
		}
		if err := reclaim(s, 1, 2); err != nil {
			t.Fatal(err)
		}
	})
	if !damageKeys(t, fs, append(layout.SinkPrefix(layout.PrefixQueue, 1), 0), 20) {
		t.Fatal("no block of the queue")
	}
	q := ensure(t, openTest(t, "store", Options{FS: fs, firstSequence: 1}), "a")
	for range 2 {
		after := uint64(0)
		for items := read(t, q, after, 4096); len(items) > 0; items = read(t, q, after, 4096) {
			for _, item := range items {
				after = item.Position
				if string(item.Payload) != "mine" {
					t.Fatalf("position %d, sequence %d: %s", item.Position, item.Sequence, item.Payload)
				}
			}
		}
		letters, err := q.DeadLetters(0, 10)
		if err != nil || len(letters) != 1 {
			t.Fatalf("%d dead letters, %v", len(letters), err)
		}
		if n, err := q.RetryDeadLetters(0, letters[0].Position); n != 0 || err != nil {
			t.Errorf("%d are retried, %v", n, err)
		}
	}
}

// TestRecountWhileCommitting damages a block of a queue that grows: its length is
// exact afterwards.
func TestRecountWhileCommitting(t *testing.T) {
	fs := vfs.NewMem()
	damagedQueue(t, fs)
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	q := ensure(t, s, "a")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			b := s.NewBatch()
			b.Append(Record{Time: testEpoch, Payload: []byte("0123456789")}, []Route{{Sink: "a"}})
			if err := s.Commit(b); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	after := uint64(0)
	for q.Stats().DeadLetters == 0 {
		items := read(t, q, after, 512)
		if len(items) == 0 && q.Stats().DeadLetters == 0 {
			t.Fatal("no damage was met")
		}
		if len(items) > 0 {
			after = items[len(items)-1].Position
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	length, total := q.Stats().Length, 0
	for items := read(t, q, 0, 4096); len(items) > 0; items = read(t, q, items[len(items)-1].Position, 4096) {
		total += len(items)
	}
	if length != int64(total) {
		t.Errorf("length %d, but %d entries are there", length, total)
	}
}

// TestCompactionOverDamage acknowledges what it can of a damaged queue on a real
// disk, while compactions run into the damage, and opens the store again and again.
func TestCompactionOverDamage(t *testing.T) {
	t.Chdir(t.TempDir())
	n := damagedQueue(t, vfs.Default)
	var logged testkit.Log
	delivered := 0
	for range 3 {
		s := openTest(t, "store", Options{firstSequence: 1, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		q := ensure(t, s, "a")
		after := uint64(0)
		for range 7 {
			var positions []uint64
			for _, item := range read(t, q, after, 512) {
				after = item.Position
				positions = append(positions, after)
			}
			if err := q.Ack(positions...); err != nil {
				t.Fatal(err)
			}
			delivered += len(positions)
			if err := flush(s); err != nil {
				t.Fatal(err)
			}
		}
		lower, upper := layout.SinkRange(layout.PrefixQueue, q.id)
		if err := s.db.Compact(t.Context(), lower, upper, false); err == nil && delivered == 0 {
			t.Error("nothing is damaged")
		}
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if delivered < n-1000 {
		t.Errorf("%d of %d delivered", delivered, n)
	}
	if len(logged.String()) > 20_000 {
		t.Errorf("%d bytes of log: %.2000s", len(logged.String()), logged.String())
	}
}

// TestDamageAtTheEnd damages the last records that are in tables. What was committed since, and is in memory alone, is delivered.
func TestDamageAtTheEnd(t *testing.T) {
	t.Parallel()
	const since = 5
	end := func(t *testing.T, fs vfs.FS, records int) {
		t.Helper()
		s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
		stop := runStore(t, s)
		defer stop()
		eventually(t, "the store runs", s.running.Load)
		q := ensure(t, s, "a")
		appendN(t, s, since, "a")
		var got []uint64
		for after := uint64(0); ; {
			items := read(t, q, after, 1000)
			if len(items) == 0 {
				break
			}
			for _, it := range items {
				got = append(got, it.Sequence)
			}
			after = items[len(items)-1].Position
		}
		letters, err := q.DeadLetters(0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(got); n <= since || n >= records+since || len(letters) == 0 {
			t.Fatalf("%d of %d records are delivered, and there are %d dead letters", n, records+since, len(letters))
		}
		for i, sequence := range got[len(got)-since:] {
			if want := uint64(records + i + 1); sequence != want {
				t.Errorf("record %d is delivered, not %d", sequence, want)
			}
		}
		for _, l := range letters {
			if l.Sequence > uint64(records) || l.Position > uint64(records) || strings.Contains(l.Reason, fmt.Sprintf("to %d are lost", records+since)) {
				t.Errorf("a dead letter at %d of record %d: %s", l.Position, l.Sequence, l.Reason)
			}
		}
		if st := q.Stats(); st.Length != int64(len(got)) {
			t.Errorf("the queue counts %d entries, and has %d", st.Length, len(got))
		}
	}
	t.Run("log", func(t *testing.T) {
		t.Parallel()
		fs := storeFiles(t, true)
		compactApart(t, fs)
		if !damageKeys(t, fs, fmt.Appendf(nil, "%d:", damageRecords), 0) {
			t.Fatal("there is no last record")
		}
		end(t, fs, damageRecords)
	})
	t.Run("queue", func(t *testing.T) {
		t.Parallel()
		const records = aliveEntries
		fs := closedQueue(t)
		for nth := 0; ; nth++ { // until it is that of the last entry
			damaged := vfs.NewMem()
			if _, err := vfs.Clone(fs, damaged, "store", "store"); err != nil {
				t.Fatal(err)
			}
			if !damageKeys(t, damaged, append(layout.SinkPrefix(layout.PrefixQueue, 1), 0), nth) {
				t.Fatal("no block has the last entry")
			}
			s, err := Open("store", Options{FS: damaged, firstSequence: 1})
			if err != nil {
				continue
			}
			_, _, lost := s.get(layout.AppendSinkKey(nil, layout.PrefixQueue, 1, records))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if lost != nil {
				end(t, damaged, records)
				return
			}
		}
	})
}

// TestDamagedLargeBlock: the records beside a damaged one of a megabyte are delivered, and within minutes (see engine.Options).
func TestDamagedLargeBlock(t *testing.T) {
	t.Parallel()
	const records, damaged = 5, 3
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	ensure(t, s, "a")
	name := func(i int) []byte { return fmt.Appendf(nil, "record %d:", i) }
	for i := range records {
		b := s.NewBatch()
		b.Append(Record{Time: testEpoch, Payload: append(name(i+1), noise(1<<20)...)}, []Route{{Sink: "a"}})
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	compactApart(t, fs)
	if !damageKeys(t, fs, name(damaged), 0) {
		t.Fatal("the record is in no table")
	}
	s = openTest(t, "store", Options{FS: fs, firstSequence: 1})
	var got []uint64
	for _, it := range read(t, ensure(t, s, "a"), 0, 1000) {
		got = append(got, it.Sequence)
	}
	if want := []uint64{1, 2, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("records %d are delivered, want %d", got, want)
	}
}
