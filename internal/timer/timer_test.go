package timer

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T) (st *store.Store, commit func(change func(Batch))) {
	t.Helper()
	st, err := store.Open("store", store.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st, func(change func(Batch)) {
		b := st.NewBatch()
		defer b.Discard()
		change(b)
		if err := st.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
}

var began = time.Unix(1_800_000_000, 0)

func after(d time.Duration) time.Time { return began.Add(d) }

func keys(t *testing.T, due []Due, err error) []string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, d := range due {
		list = append(list, d.Key)
	}
	return list
}

// TestDue reads the index in parts, and when the next timer is due.
func TestDue(t *testing.T) {
	st, commit := open(t)
	table := NewTable(st)
	b := &Bucket{Name: Name{"r", "s"}, After: time.Minute}
	other := &Bucket{Name: Name{"r", "s-2"}, After: time.Minute}
	rows := map[string]*Row{}
	commit(func(w Batch) {
		for i := range 5 {
			key := fmt.Sprintf("pods/ns/%d", i)
			rows[key] = &Row{Start: after(time.Duration(i) * time.Second), Armed: true, UID: "u", Sequence: uint64(i), Record: []byte("x")}
			table.Put(w, b, key, nil, rows[key])
		}
		table.Put(w, other, "pods/ns/9", nil, &Row{Start: began, Armed: true})
	})
	table.Committed()
	due, more, err := table.Due(b, after(63*time.Second), nil, 3)
	if got := keys(t, due, err); !slices.Equal(got, []string{"pods/ns/0", "pods/ns/1", "pods/ns/2"}) || !more {
		t.Errorf("due are %q, more: %v", got, more)
	}
	due, more, err = table.Due(b, after(63*time.Second), &due[2], 3)
	if got := keys(t, due, err); !slices.Equal(got, []string{"pods/ns/3"}) || more || !b.Next().Equal(after(64*time.Second)) {
		t.Errorf("due are %q, more: %v, the next at %s", got, more, b.Next())
	}
	commit(func(w Batch) {
		moved, fired := *rows["pods/ns/0"], *rows["pods/ns/1"]
		moved.Start, fired.Armed = began.Add(-time.Second), false
		table.Put(w, b, "pods/ns/0", rows["pods/ns/0"], &moved)
		table.Put(w, b, "pods/ns/1", rows["pods/ns/1"], &fired)
		table.Put(w, b, "pods/ns/2", rows["pods/ns/2"], nil)
		if row, err := table.Row(b, "pods/ns/2"); row != nil || err != nil {
			t.Errorf("a row that the batch deletes is %v, %v", row, err)
		}
	})
	table.Committed()
	due, _, err = table.Due(b, after(time.Hour), nil, 9)
	if got := keys(t, due, err); !slices.Equal(got, []string{"pods/ns/0", "pods/ns/3", "pods/ns/4"}) {
		t.Errorf("due are %q", got)
	}
	ahead, err := table.Ahead(b, after(3*time.Second), 9)
	if got := keys(t, ahead, err); !slices.Equal(got, []string{"pods/ns/4"}) {
		t.Errorf("ahead are %q", got)
	}
	names, err := table.Names()
	if err != nil || !slices.Equal(names, []Name{{"r", "s-2"}, {"r", "s"}}) {
		t.Errorf("names are %v, %v", names, err)
	}
	row, err := table.Row(b, "pods/ns/4")
	if want := rows["pods/ns/4"]; err != nil || row.UID != want.UID || row.Sequence != want.Sequence || !row.Start.Equal(want.Start) || string(row.Record) != "x" {
		t.Errorf("the row is %+v, %v", row, err)
	}
}

func TestDamagedRow(t *testing.T) {
	st, commit := open(t)
	b := &Bucket{Name: Name{"r", "s"}}
	sound := (&Row{Start: began, UID: "u", Version: "1", Matching: "m"}).encode()
	for cut := range sound {
		commit(func(w Batch) { w.PutMeta(rowPrefix+b.String()+"k", sound[:cut]) })
		if row, err := NewTable(st).Row(b, "k"); !errors.Is(err, ErrMalformed) {
			t.Fatalf("%d bytes of a row are %+v, %v", cut, row, err)
		}
	}
}

// FuzzRow reads rows of a damaged store: what is read is written as it was.
func FuzzRow(f *testing.F) {
	f.Add((&Row{Armed: true, Start: time.Unix(0, 1), Sequence: 2, UID: "u", Version: "3", Matching: "m", Record: []byte("record")}).encode())
	f.Add((&Row{}).encode())
	f.Add([]byte{rowVersion})
	f.Fuzz(func(t *testing.T, value []byte) {
		row, err := decode(value)
		if err != nil {
			return
		}
		again, err := decode(row.encode())
		if err != nil || !reflect.DeepEqual(again, row) {
			t.Errorf("%+v becomes %+v, %v", row, again, err)
		}
	})
}
