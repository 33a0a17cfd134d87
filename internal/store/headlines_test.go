package store

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// appendTitled appends n records at a time, in one batch, whose headlines are their
// sequences.
func appendTitled(t *testing.T, s *Store, at time.Time, n, size int) (sequences []uint64) {
	t.Helper()
	b := s.NewBatch()
	defer b.Discard()
	var block []byte
	for range n {
		sequence := b.Append(Record{Time: at, Payload: make([]byte, size)}, nil)
		sequences = append(sequences, sequence)
		block = binary.BigEndian.AppendUint64(block, sequence)
	}
	b.PutHeadlines(block)
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	return sequences
}

// headlines are the sequences that a scan shows, within its bounds.
func headlines(t *testing.T, s *Store, from, to uint64, newestFirst bool) (got []uint64, values int) {
	t.Helper()
	err := s.ScanHeadlines(from, to, newestFirst, func(blocks []byte) error {
		values++
		var rows []uint64
		for ; len(blocks) > 0; blocks = blocks[8:] {
			if sequence := binary.BigEndian.Uint64(blocks); sequence >= from && sequence <= to {
				rows = append(rows, sequence)
			}
		}
		if newestFirst {
			slices.Reverse(rows)
		}
		got = append(got, rows...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, values
}

func TestHeadlines(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	now := testEpoch
	var want []uint64
	for i := range 200 {
		want = append(want, appendTitled(t, s, now, 1+i%3, 100)...)
		now = now.Add(10 * time.Second)
	}
	check := func() (values int) {
		t.Helper()
		for _, bounds := range [][2]int{{0, len(want) - 1}, {17, 17}, {5, 300}, {100, len(want) - 1}, {0, 0}} {
			from, to := want[bounds[0]], want[bounds[1]]
			got, _ := headlines(t, s, from, to, false)
			if !slices.Equal(got, want[bounds[0]:bounds[1]+1]) {
				t.Errorf("from %d to %d: %d headlines, want %d", from, to, len(got), bounds[1]+1-bounds[0])
			}
			back, _ := headlines(t, s, from, to, true)
			slices.Reverse(back)
			if !slices.Equal(back, got) {
				t.Errorf("from %d to %d, the newest first: %d headlines, want %d", from, to, len(back), len(got))
			}
		}
		_, values = headlines(t, s, 0, math.MaxUint64, false)
		return values
	}
	before := check()
	for range 200 {
		if err := s.joinHeadlines(); err != nil {
			t.Fatal(err)
		}
	}
	if after := check(); after > before/4 {
		t.Errorf("%d values after they were joined, %d before", after, before)
	}
	// Trimmed with the records.
	if _, err := s.retain(now, Limits{RetentionMaxAge: 10 * time.Minute}, 0); err != nil {
		t.Fatal(err)
	}
	first := s.LogStats().First
	i, ok := slices.BinarySearch(want, first)
	if !ok || i == 0 {
		t.Fatalf("the log begins at %d", first)
	}
	if got, _ := headlines(t, s, 0, math.MaxUint64, false); !slices.Equal(got, want[i:]) {
		t.Errorf("%d headlines of %d records", len(got), len(want)-i)
	}
}

// The state before each record of the retention time is in the log or in the record, if
// those older than Old are.
func TestOldRecordsLeaveNoGap(t *testing.T) {
	const age = 30 * time.Minute
	for name, limits := range map[string]Limits{"by age": {RetentionMaxAge: age}, "by bytes": {RetentionMaxBytes: 8 << 20}} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, t.TempDir(), Options{RetentionMaxAge: limits.RetentionMaxAge, RetentionMaxBytes: limits.RetentionMaxBytes})
			now := testEpoch
			type appended struct {
				at       time.Time
				sequence uint64
				old      uint64 // what Old said
			}
			var all []appended
			for i := range 600 {
				old := s.Old(now)
				for _, sequence := range appendTitled(t, s, now, 1, (1+i%7)*10_000) {
					all = append(all, appended{now, sequence, old})
				}
				now = now.Add(time.Duration(1+i%13) * 5 * time.Second)
				if _, err := s.retain(now, limits, 0); err != nil {
					t.Fatal(err)
				}
			}
			first, begin := s.LogStats().First, now.Add(-age)
			if limits.RetentionMaxBytes > 0 {
				half := all[slices.IndexFunc(all, func(a appended) bool { return a.sequence >= first })]
				begin = half.at.Add(now.Sub(half.at) / 4) // a quarter of what is kept
			}
			covered := 0
			for _, a := range all {
				if a.at.Before(begin) {
					continue
				}
				covered++
				if a.sequence < first || a.old < first {
					t.Fatalf("record %d of %v: the log begins at %d, and what is older than %d was not explained", a.sequence, now.Sub(a.at), first, a.old)
				}
			}
			if covered == 0 || first == all[0].sequence {
				t.Errorf("%d records in the time, the log begins at %d", covered, first)
			}
		})
	}
}

func TestHeadlinesOfClosedStore(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.ScanHeadlines(0, 1, false, func([]byte) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, _, err := s.ReadRecord(1); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestReadRecord(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	sequences := append(appendTitled(t, s, testEpoch, 2, 10), appendTitled(t, s, testEpoch.Add(time.Hour), 1, 20)...)
	for i, sequence := range sequences {
		item, ok, err := s.ReadRecord(sequence)
		if want := 10 + 10*(i/2); err != nil || !ok || item.Sequence != sequence || len(item.Payload) != want || item.Time.IsZero() {
			t.Errorf("record %d: %+v, %t, %v; a payload of %d bytes is wanted", sequence, item, ok, err, want)
		}
	}
	if _, err := s.retain(testEpoch.Add(2*time.Hour), Limits{RetentionMaxAge: time.Minute}, 0); err != nil {
		t.Fatal(err)
	}
	for _, sequence := range []uint64{0, sequences[0], sequences[1], sequences[2] + 1, math.MaxUint64} {
		if item, ok, err := s.ReadRecord(sequence); ok || err != nil {
			t.Errorf("record %d: %+v, %v, want none", sequence, item, err)
		}
	}
}

// TestRecords: records that are read one by one, backwards, forwards and in any order, are those of
// lookups, with none where there is none or retention has deleted it.
func TestRecords(t *testing.T) {
	now := testEpoch
	s := openTest(t, t.TempDir(), Options{Now: func() time.Time { return now }, firstSequence: 1})
	ensure(t, s, "a")
	for i := range 300 {
		b := s.NewBatch()
		sequence := b.Append(Record{Time: now, Payload: binary.BigEndian.AppendUint64(nil, uint64(i))}, nil)
		for range i % 12 { // entries take positions, too
			b.Enqueue(Record{Time: now, Payload: []byte("later")}, sequence, Route{Sink: "a"})
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
		now = now.Add(10 * time.Second)
	}
	last := s.LogStats().Last
	var orders [3][]uint64
	for sequence := range last + 2 {
		orders[0] = append(orders[0], sequence)
	}
	orders[1], orders[2] = slices.Clone(orders[0]), slices.Clone(orders[0])
	slices.Reverse(orders[1])
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(orders[2]), func(i, k int) { orders[2][i], orders[2][k] = orders[2][k], orders[2][i] })
	check := func(r *Records) (found int) {
		for i, order := range orders {
			for _, sequence := range order {
				want, ok, err := s.ReadRecord(sequence)
				if err != nil {
					t.Fatal(err)
				}
				got, gotOK, err := r.ReadRecord(sequence)
				if err != nil && (ok || !errors.Is(err, ErrUnreadable)) || gotOK != ok || !reflect.DeepEqual(got, want) {
					t.Fatalf("order %d: record %d is %+v (%t, %v), want %+v (%t)", i, sequence, got, gotOK, err, want, ok)
				}
				if ok {
					found++
				}
			}
		}
		return found
	}
	r, err := s.Records()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n := check(r); n != 3*300 {
		t.Errorf("%d records, want %d", n, 3*300)
	}
	if _, err := s.retain(now, Limits{RetentionMaxAge: 20 * time.Minute}, 0); err != nil {
		t.Fatal(err)
	}
	if n := check(r); n == 0 || n >= 3*300 {
		t.Errorf("%d records after retention", n)
	}
}
