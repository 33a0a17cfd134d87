package history

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A page ends where the part of the ledger that it saw ends, if its objects are all newer
// than the time.
func TestListOfTheLastObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, time.Hour)
		defer w.end()
		add := func(names ...string) {
			for _, name := range names {
				w.cluster[name] = w.object(name, "uid-"+name)
				w.c.Handler(w.feed).OnAdd(w.cluster[name], false)
			}
			w.c.Flush()
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Minute)
		add("d", "e", "f")
		at := w.now()
		time.Sleep(time.Second)
		add("a", "b", "c")
		for limit := 1; limit <= 6; limit++ {
			var got []string
			after := ""
			for {
				list, err := w.r.ListAt(context.Background(), pods, "", at, after, limit)
				w.must(err)
				for _, s := range list.Items {
					got = append(got, s.Name)
				}
				if after = list.Continue; after == "" {
					break
				}
			}
			if len(got) != 3 {
				t.Errorf("pages of %d: got %v, want d, e and f", limit, got)
			}
		}
	})
}

// deletes lets an object be deleted when headlines have been read for the first time.
type deletes struct {
	Store
	now func()
}

func (d *deletes) ScanHeadlines(from, to uint64, newestFirst bool, f func(blocks []byte) error) error {
	err := d.Store.ScanHeadlines(from, to, newestFirst, f)
	if now := d.now; now != nil {
		d.now = nil
		now()
	}
	return err
}

// An object that is deleted while a list of the past is made is in the list.
func TestListBesideADeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, time.Hour)
		defer w.end()
		time.Sleep(2 * time.Minute)
		a := w.object("a", "u1")
		w.c.Handler(w.feed).OnAdd(a, false)
		w.c.Flush()
		time.Sleep(time.Second)
		at := w.now()
		time.Sleep(time.Second)
		w.r.store = &deletes{w.st, func() {
			w.c.Handler(w.feed).OnDelete(w.object("a", "u1"))
			w.c.Flush()
		}}
		list, err := w.r.ListAt(context.Background(), pods, "", at, "", 10)
		w.must(err)
		if len(list.Items) != 1 || list.Items[0].As != Exact {
			t.Errorf("got %+v, want a", list)
		}
	})
}

// What the ledger has forgotten, as no watch reads it any more, is in a list of the past.
func TestListOfWhatIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.restart(false) // the history has begun
		time.Sleep(2 * time.Minute)
		a := w.object("a", "u1")
		w.c.Handler(w.feed).OnAdd(a, false)
		w.c.Flush()
		time.Sleep(2 * time.Minute)
		at := w.now()
		time.Sleep(2 * time.Minute)
		b := w.st.NewBatch()
		b.DeleteState("pods", "ns/a")
		w.must(w.st.Commit(b))
		list, err := w.r.ListAt(context.Background(), pods, "", at, "", 10)
		w.must(err)
		state, err := w.r.At(context.Background(), pod("a"), at)
		w.must(err)
		if state.As != UnknownBefore || len(list.Items) != 1 || list.Items[0].As != UnknownBefore {
			t.Errorf("got the list %+v and the state %+v, want an unknown one", list, state)
		}
	})
}
