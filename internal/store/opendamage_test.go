package store

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// spaces returns the keyspaces that are in each data block of the tables.
func spaces(t *testing.T, fs vfs.FS) (all []string) {
	t.Helper()
	for _, name := range dataFiles(t, fs, ".sst") {
		if err := salvage.DataBlocks(content(t, fs, name), func(_ int, data []byte) error {
			var in []byte
			err := salvage.BlockKeys(data, func(_ pebble.InternalKeyKind, key, _ []byte, _ uint64) error {
				if !bytes.Contains(in, key[:1]) {
					in = append(in, key[0])
				}
				return nil
			})
			all = append(all, string(in))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestDamagedMarks damages each block of marks of the log in turn, but for the one with the version of the layout: the store
// opens with the same marks, made of the records.
func TestDamagedMarks(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	ensure(t, s, "a")
	at := testEpoch
	for i := range 1000 {
		if i%3 > 0 { // some segments have several records
			at = at.Add(segmentAge)
		}
		b := s.NewBatch()
		b.Append(Record{Time: at, Payload: noise(10)}, []Route{{Sink: "a"}})
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	compactAll(t, s)
	settled(t, s)
	want := slices.Clone(s.log.marks)
	first, err := s.marksOf(1, nil, want[100:])
	if err != nil || !slices.Equal(first, want[:100]) {
		t.Errorf("the first marks: %v (%v), want %v", first, err, want[:100])
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	damaged := 0
	for nth, in := range spaces(t, fs) {
		if in != string(layout.PrefixMark) && in != "kl" {
			continue
		}
		damaged++
		broken := copyFS(t, fs)
		damageBlock(t, broken, nth)
		s := openTest(t, "store", Options{FS: broken, firstSequence: 1, Now: func() time.Time { return at }})
		if !slices.Equal(s.log.marks, want) {
			t.Errorf("block %d, of %q: %d marks, want %d: %v", nth, in, len(s.log.marks), len(want), s.log.marks)
		}
		q := ensure(t, s, "a")
		for _, item := range read(t, q, 0, 1000) {
			if err := q.Ack(item.Position); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.retain(at, Limits{RetentionMaxBytes: 1}, 0); err != nil {
			t.Fatal(err)
		}
		if st := s.LogStats(); st.Records > 2 || st.Bytes != 10*st.Records { // those of the last segment
			t.Errorf("block %d, of %q: %+v", nth, in, st)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if damaged < 3 {
		t.Errorf("%d blocks were damaged", damaged)
	}
}

// TestDamagedPins damages a block of pins: the store opens, and the records of replays stay until they are delivered.
func TestDamagedPins(t *testing.T) {
	const records = 400
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	ensure(t, s, "a")
	for i := range records {
		b := s.NewBatch()
		b.Append(Record{Time: testEpoch.Add(time.Duration(i) * segmentAge), Payload: noise(10)}, nil)
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(records) { // the pins in the middle are of the first records
		record := 1 + max(i, records/2) - min(i, records/2)
		if _, err := s.Replay(t.Context(), "a", ReplayRange{FromSequence: record, ToSequence: record}, func(*Item) (Selected, bool, error) {
			return Selected{}, true, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	compactAll(t, s)
	settled(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	all := spaces(t, fs)
	last := -1
	for nth, in := range all {
		if in == string(layout.PrefixPin) {
			last = nth
		}
	}
	if last < 0 {
		t.Fatalf("no block of pins alone: %q", all)
	}
	damageBlock(t, fs, last)
	s = openTest(t, "store", Options{FS: fs, firstSequence: 1})
	q := ensure(t, s, "a")
	for after := uint64(0); q.Stats().Length > 0; {
		if _, err := s.retain(testEpoch, Limits{RetentionMaxBytes: 1}, 0); err != nil {
			t.Fatal(err)
		}
		items := read(t, q, after, 50)
		if len(items) == 0 {
			t.Fatalf("%+v", q.Stats())
		}
		for _, item := range items {
			after = item.Position
			if err := q.Ack(after); err != nil {
				t.Fatal(err)
			}
		}
	}
	if letters := q.Stats().DeadLetters; letters > 0 {
		t.Errorf("%d of the records are lost", letters)
	}
	if _, err := s.retain(testEpoch, Limits{RetentionMaxBytes: 1}, 0); err != nil {
		t.Fatal(err)
	}
	if st := s.LogStats(); st.Records > 2 {
		t.Errorf("%+v", st)
	}
}
