package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
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
				list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, at, after, limit)
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

// The period of a log without records is empty.
func TestPeriodOfAnEmptyLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, time.Hour)
		defer w.end()
		page, err := w.r.Query(t.Context(), Query{Limit: 10})
		w.must(err)
		if !page.From.Equal(page.To) || page.To.After(w.now()) {
			t.Errorf("got %s to %s", page.From, page.To)
		}
		worth, err := w.r.WorthAt(pods, "", w.now())
		w.must(err)
		if worth.Since.After(w.now()) {
			t.Errorf("complete since %s, which is in the future", worth.Since)
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
		list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, at, "", 10)
		w.must(err)
		if len(list.Items) != 1 || list.Items[0].As != Exact {
			t.Errorf("got %+v, want a", list)
		}
	})
}

// What the ledger no longer has, as no watch reads it, is in a list of the past.
func TestListOfWhatIsExpired(t *testing.T) {
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
		list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, at, "", 10)
		w.must(err)
		state, err := w.r.At(t.Context(), pod("a"), at)
		w.must(err)
		if state.As != UnknownBefore || len(list.Items) != 1 || list.Items[0].As != UnknownBefore {
			t.Errorf("got the list %+v and the state %+v, want an unknown one", list, state)
		}
	})
}

// damagedAt cannot read a record.
type damagedAt struct {
	Store
	sequence uint64
}

func (d damagedAt) ReadRecord(sequence uint64) (store.Item, bool, error) {
	if sequence == d.sequence {
		return store.Item{}, false, store.ErrUnreadable
	}
	return d.Store.ReadRecord(sequence)
}

// A version whose record is damaged is among the versions.
func TestVersionsWithADamagedRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		h := w.c.Handler(w.feed)
		a := w.object("a", "u1")
		h.OnAdd(a, false)
		for range 3 {
			time.Sleep(time.Minute)
			next := w.object("a", "u1")
			h.OnUpdate(a, next)
			w.c.Flush()
			a = next
		}
		v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 10})
		w.must(err)
		if len(v.Items) != 4 {
			t.Fatalf("got %+v", v)
		}
		for i := range v.Items {
			w.r.store = damagedAt{w.st, v.Items[i].Sequence}
			damaged, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 10})
			w.must(err)
			sequences := func(all []Version) (list []uint64) {
				for _, x := range all {
					list = append(list, x.Sequence)
				}
				return list
			}
			if diff := cmp.Diff(sequences(v.Items), sequences(damaged.Items)); diff != "" {
				t.Errorf("with record %d damaged: %s", i, diff)
			} else if damaged.Items[i].Summary != unreadable {
				t.Errorf("a damaged record is %+v", damaged.Items[i])
			}
		}
	})
}

// lost has neither records nor headlines of some sequences.
type lost struct {
	*store.Store
	first, last uint64
}

func (l lost) ReadRecord(sequence uint64) (store.Item, bool, error) {
	if l.first <= sequence && sequence <= l.last {
		return store.Item{}, false, store.ErrUnreadable
	}
	return l.Store.ReadRecord(sequence)
}

func (l lost) ScanHeadlines(from, to uint64, newestFirst bool, f func(blocks []byte) error) error {
	var damage error
	err := l.Store.ScanHeadlines(from, to, newestFirst, func(blocks []byte) error {
		var in headline.Reader
		some := false
		err := in.Read(blocks, "", func(row *headline.Row) error {
			some = some || l.first <= row.Sequence && row.Sequence <= l.last
			return nil
		})
		if some {
			damage = store.ErrUnreadable
			return err
		}
		return errors.Join(err, f(blocks))
	})
	return errors.Join(err, damage)
}

// Versions of which nothing is left are not left out silently.
func TestVersionsWithLostRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		h, a := w.c.Handler(w.feed), w.object("a", "u1")
		h.OnAdd(a, false)
		for range 3 {
			w.rest()
			next := w.object("a", "u1")
			h.OnUpdate(a, next)
			a = next
		}
		w.rest()
		all := func() (v Versions) {
			var err error
			v, err = w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 10})
			w.must(err)
			return v
		}
		v := all()
		if len(v.Items) != 4 || len(v.Gaps) != 0 {
			t.Fatalf("got %+v", v)
		}
		w.r.store = lost{w.st, v.Items[2].Sequence, v.Items[1].Sequence}
		if v := all(); len(v.Items) != 4 && len(v.Gaps) == 0 {
			t.Errorf("got %+v, want a gap", v)
		}
	})
}

// What a watch that is gone has left in its part of the ledger is not taken for the present.
func TestStatesOfAnotherPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		ctx, h := t.Context(), w.c.Handler(w.feed)
		entry := func() (value []byte) {
			w.must(w.st.ScanState("pods", "ns/a", func(_ string, v []byte) error {
				value = bytes.Clone(v)
				return nil
			}))
			return value
		}
		put := func(partition string, value []byte) {
			b := w.st.NewBatch()
			if value == nil {
				b.DeleteState(partition, "ns/a")
			} else {
				b.PutState(partition, "ns/a", value)
			}
			w.must(w.st.Commit(b))
		}
		check := func(as As, want string) {
			t.Helper()
			s, err := w.r.At(ctx, pod("a"), w.now())
			w.must(err)
			list, err := w.r.ListAt(ctx, Objects{Resource: pods}, w.now(), "", 10)
			w.must(err)
			if s.As != as || shape(s.Object) != want {
				t.Errorf("got %s %q, want %s %q", s.As, shape(s.Object), as, want)
			}
			if len(list.Items) != 1 || list.Items[0].As != as || shape(list.Items[0].Object) != want {
				t.Errorf("got %+v, want %s %q", list.Items, as, want)
			}
		}
		one, two := w.object("a", "u1"), w.object("a", "u1")
		h.OnAdd(one, false)
		w.c.Flush()
		old := entry()
		time.Sleep(time.Minute)
		h.OnUpdate(one, two)
		w.c.Flush()
		raw, err := two.AppendJSON(nil)
		w.must(err)
		put("pods|l=app;f=", entry())
		check(Exact, shape(raw))
		put("pods", old)
		check(Exact, shape(raw))
		put("pods", entry())
		time.Sleep(time.Minute)
		h.OnDelete(w.object("a", "u1"))
		w.c.Flush()
		check(UnknownBefore, "")
		q, types := VersionQuery{Object: pod("a"), Limit: 1}, []event.Type(nil)
		for {
			v, err := w.r.Versions(ctx, q)
			w.must(err)
			for _, x := range v.Items {
				types = append(types, x.Type)
			}
			if q.Continue = v.Continue; q.Continue == "" {
				break
			}
		}
		if want := []event.Type{event.Deleted, event.Updated, event.Added}; !slices.Equal(types, want) {
			t.Errorf("the versions are %v, want %v", types, want)
		}
		if d, err := w.r.Diff(ctx, pod("a"), time.Time{}, w.now()); err != nil || d.From.Type != event.Updated {
			t.Errorf("before the last change: %+v %v", d.From, err)
		}
	})
}

// The objects that an answer has room for have the states of the period's end, whatever others
// do in between.
func TestChangesOfTooManyObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		h := w.c.Handler(w.feed)
		add := func(name string) {
			w.cluster[name] = w.object(name, fmt.Sprint("u", w.version))
			h.OnAdd(w.cluster[name], false)
		}
		w.rest()
		add("a")
		w.rest()
		w.restart(false) // the history has begun
		h = w.c.Handler(w.feed)
		w.rest()
		from := w.now()
		w.rest()
		h.OnDelete(w.object("a", string(w.cluster["a"].GetUID())))
		w.rest()
		for i := range maxNet {
			add(fmt.Sprint("b", i))
		}
		w.rest()
		add("a")
		w.rest()
		to := w.now()
		w.rest()
		h.OnDelete(w.object("a", string(w.cluster["a"].GetUID())))
		w.c.Flush()
		c, err := w.r.Changes(t.Context(), Filter{From: from, To: to}, false)
		w.must(err)
		if !c.Truncated || len(c.Items) != maxNet || c.Items[0].Name != "a" {
			t.Fatalf("got %d changes (truncated: %t)", len(c.Items), c.Truncated)
		}
		if a := c.Items[0]; a.Change != "changed" || !a.Recreated || a.Count != 2 {
			t.Errorf("got %+v, want that a was created again", a)
		}
	})
}

// What was created in a namespace is not unknown because the history of another one begins later.
func TestChangesBesideAnotherNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.rest()
		w.restart(false) // the history has begun
		from := w.rest()
		w.rest()
		w.c.Handler(w.feed).OnAdd(w.object("a", "u1"), false)
		w.rest()
		w.must(ledger.PutMeta(w.st, ledger.CheckpointMeta(ledger.FeedID("pods", "few")), ledger.Encode(ledger.Checkpoint{HistorySince: w.now()})))
		c, err := w.r.Changes(t.Context(), Filter{Resource: &pods, Namespace: "ns", From: from, To: w.now()}, false)
		w.must(err)
		if !c.Complete || len(c.Items) != 1 || c.Items[0].Change != "created" {
			t.Errorf("got %+v, want that a was created", c)
		}
	})
}

// A period without a beginning that ends before the history does is not in it: that nothing is found there does not show that
// nothing happened.
func TestPeriodUntilBeforeTheHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 30*time.Minute)
		defer w.end()
		before := w.now().Add(-time.Minute)
		time.Sleep(2 * time.Minute)
		w.updates(20, time.Minute)
		ask := func(to time.Time) (found int, complete bool) {
			f := Filter{To: to}
			p, err := w.r.Query(t.Context(), Query{Filter: f, Limit: 100})
			w.must(err)
			h, err := w.r.Histogram(t.Context(), f, 10)
			w.must(err)
			if p.Complete != h.Complete || p.From.After(p.To) {
				t.Errorf("the page is complete from %v to %v: %t, the counts are: %t", p.From, p.To, p.Complete, h.Complete)
			}
			return len(p.Items), p.Complete
		}
		if n, complete := ask(before); n != 0 || complete {
			t.Errorf("until before the start: %d changes, complete: %t", n, complete)
		}
		all, err := w.r.Query(t.Context(), Query{Limit: 100, Oldest: true})
		w.must(err)
		if n, complete := ask(all.Items[5].Time); n != 6 || !complete {
			t.Errorf("until the sixth change: %d changes, complete: %t", n, complete)
		}
		w.trim(all.Items[10].Sequence)
		if n, complete := ask(all.Items[5].Time); n != 0 || complete {
			t.Errorf("until what retention has deleted: %d changes, complete: %t", n, complete)
		}
	})
}

// A period that begins before the history names the time that it is complete from: asked for that
// time, the answer is complete.
func TestPeriodBeforeTheHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		before := w.now().Add(-time.Minute)
		h := w.c.Handler(w.feed)
		time.Sleep(2 * time.Minute)
		h.OnAdd(w.object("a", "u1"), false)
		w.c.Flush()
		time.Sleep(2 * time.Minute)
		c, err := w.r.Changes(t.Context(), Filter{From: before, To: w.now()}, false)
		w.must(err)
		if c.Complete || !c.Since.After(before) || len(c.Items) != 1 || c.Items[0].Change != "unknown" {
			t.Fatalf("since before the history: %+v", c)
		}
		c, err = w.r.Changes(t.Context(), Filter{From: c.Since, To: w.now()}, false)
		w.must(err)
		if !c.Complete || !c.Since.IsZero() || len(c.Items) != 1 || c.Items[0].Change != "created" {
			t.Errorf("since the history: %+v", c)
		}
	})
}

// slow has records that take a while.
type slow struct{ passing }

func (s slow) ReadRecord(sequence uint64) (store.Item, bool, error) {
	time.Sleep(slice / 10)
	return s.passing.ReadRecord(sequence)
}

// A page ends in time however large its changes are, and says where it goes on.
func TestPagesOfSlowChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		for range 20 {
			w.step()
		}
		path, err := rawjson.ParsePath("spec.value")
		w.must(err)
		for _, q := range []Query{{Limit: 1000}, {Limit: 1000, Path: &path}} {
			w.r.store = passing{w.st}
			want, err := w.r.Query(t.Context(), q)
			w.must(err)
			w.r.store = slow{passing{w.st}}
			var got []Change
			for pages := 0; pages == 0 || q.Continue != ""; pages++ {
				began := time.Now()
				p, err := w.r.Query(t.Context(), q)
				w.must(err)
				if took := time.Since(began); took > 2*slice {
					t.Errorf("a page takes %v", took)
				}
				got, q.Continue = append(got, p.Items...), p.Continue
			}
			if diff := cmp.Diff(want.Items, got); diff != "" {
				t.Errorf("(-quick +slow):\n%s", diff)
			}
		}
	})
}

// A list of many objects holds their names, a page of it those of the page, and the changes of
// a period what they list: at most maxNet.
func TestMemoryOfManyObjects(t *testing.T) {
	const objects = 5000
	st, err := store.Open("store", store.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	dicts := compact.NewDictionaries(nil)
	last := fill(t, st, dicts, objects, objects, "")
	r := New(st, ledger.New(st, dicts), &record.Inflater{Dictionaries: dicts})
	live := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	list := func(limit int) (held, n int) {
		before := live()
		_, _, err := r.EachAt(t.Context(), Objects{Resource: pods}, last, "", limit, func(s *State) bool {
			if n++; n == 1 {
				held = live() - before
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		return held, n
	}
	list(1) // fills the caches
	if held, n := list(objects + 1); n != objects || held > 300*objects {
		t.Errorf("a list of %d objects holds %d bytes", n, held)
	}
	if held, n := list(500); n != 500 || held > 300<<10 {
		t.Errorf("a page of %d objects holds %d bytes", n, held)
	}
	before := live()
	c, err := r.Changes(t.Context(), Filter{From: last.Add(-2 * time.Hour), To: last}, false)
	if err != nil {
		t.Fatal(err)
	}
	held := live() - before
	if len(c.Items) != objects || held > 600*objects {
		t.Errorf("%d changes hold %d bytes", len(c.Items), held)
	}
	runtime.KeepAlive(c)
}

// A clock that ran ahead, and was set back, hides no change: what was recorded before a time
// that the clock has shown twice counts as older.
func TestClockThatWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		h := w.c.Handler(w.feed)
		w.rest()
		first, other := w.object("a", "u1"), w.object("b", "u2")
		h.OnAdd(first, false)
		w.rest()
		w.restart(false) // the history has begun
		h = w.c.Handler(w.feed)
		w.rest()
		from := w.now()
		w.skew.Store(int64(24 * time.Hour))
		second := w.object("a", "u1")
		h.OnUpdate(first, second)
		w.c.Flush()
		w.skew.Store(0)
		w.rest()
		h.OnAdd(other, false)
		w.rest()
		raw, err := second.AppendJSON(nil)
		w.must(err)
		at := w.now()
		s, err := w.r.At(t.Context(), pod("a"), at)
		w.must(err)
		list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, at, "", 10)
		w.must(err)
		if s.As != Exact || shape(s.Object) != shape(raw) || len(list.Items) != 2 || shape(list.Items[1].Object) != shape(raw) {
			t.Errorf("got %s %q and %+v, want %q", s.As, shape(s.Object), list.Items, shape(raw))
		}
		c, err := w.r.Changes(t.Context(), Filter{From: from, To: at}, false)
		w.must(err)
		if len(c.Items) != 2 {
			t.Errorf("changes: %+v", c.Items)
		}
		time.Sleep(time.Second)
		third := w.object("a", "u1") // it is no longer the newest
		h.OnUpdate(second, third)
		w.rest()
		if list, err = w.r.ListAt(t.Context(), Objects{Resource: pods}, at, "", 10); err != nil || shape(list.Items[1].Object) != shape(raw) {
			t.Errorf("got %+v %v, want %q", list.Items, err, shape(raw))
		}
	})
}

// A state and a list are of the same record where times are a little out of order.
func TestTimesOutOfOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		a, h := w.object("a", "u1"), w.c.Handler(w.feed)
		h.OnAdd(a, false)
		for _, ms := range []int64{800, 600, 900, 300} {
			w.c.Flush()
			w.skew.Store(ms * int64(time.Millisecond))
			next := w.object("a", "u1")
			h.OnUpdate(a, next)
			a = next
		}
		w.c.Flush()
		w.skew.Store(0)
		for ms := range 10 {
			at := w.now().Add(time.Duration(ms) * 100 * time.Millisecond)
			s, err := w.r.At(t.Context(), pod("a"), at)
			w.must(err)
			list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, at, "", 10)
			w.must(err)
			if s.Sequence == 0 || list.Items[0].Sequence != s.Sequence {
				t.Errorf("after %d ms the state is of record %d, and in the list of %d", ms*100, s.Sequence, list.Items[0].Sequence)
			}
		}
	})
}

// A version is that of its record, and no other's: records share a time, and the clock may have been
// set back.
func TestVersionsByTheirSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		ctx, h := t.Context(), w.c.Handler(w.feed)
		w.rest()
		first := w.object("a", "u1")
		h.OnAdd(first, false)
		h.OnAdd(w.object("b", "u2"), false)
		w.rest()
		second := w.object("a", "u3")
		h.OnUpdate(first, second) // deleted and created again
		w.rest()
		w.skew.Store(-int64(10 * time.Minute))
		third := w.object("a", "u3")
		h.OnUpdate(second, third)
		w.rest()
		v, err := w.r.Versions(ctx, VersionQuery{Object: pod("a"), Limit: 10})
		w.must(err)
		if len(v.Items) != 4 || !v.Items[1].Time.Equal(v.Items[2].Time) || !v.Items[0].Time.Before(v.Items[1].Time) {
			t.Fatalf("got %+v", v)
		}
		for i, want := range []struct {
			of       *compact.Object
			followed bool // a state
		}{{third, true}, {second, false}, {nil, true}, {first, false}} {
			text := ""
			if want.of != nil {
				raw, err := want.of.AppendJSON(nil)
				w.must(err)
				text = shape(raw)
			}
			s, err := w.r.AtVersion(pod("a"), v.Items[i].Sequence)
			w.must(err)
			if s.As != Exact || s.Exists != (text != "") || shape(s.Object) != text {
				t.Errorf("version %d is %s %q, want %q", i, s.As, shape(s.Object), text)
			}
			d, err := w.r.DiffVersion(ctx, pod("a"), 0, v.Items[i].Sequence)
			w.must(err)
			if d.From.Exists != want.followed || d.To.Exists != (text != "") || d.Diff == "" {
				t.Errorf("version %d: got %+v", i, d)
			}
		}
		d, err := w.r.DiffVersion(ctx, pod("a"), v.Items[3].Sequence, v.Items[0].Sequence)
		w.must(err)
		if !strings.Contains(d.Diff, "-  uid: u1") || !strings.Contains(d.Diff, "+  uid: u3") {
			t.Errorf("got %+v", d)
		}
		other, err := w.r.Versions(ctx, VersionQuery{Object: pod("b"), Limit: 1})
		w.must(err)
		for _, sequence := range []uint64{other.Items[0].Sequence, w.st.LogStats().Last + 1} {
			if _, err := w.r.AtVersion(pod("a"), sequence); !errors.Is(err, ErrNoVersion) {
				t.Errorf("%d: %v", sequence, err)
			}
		}
		w.r.store = damagedAt{w.st, v.Items[0].Sequence}
		if d, err := w.r.DiffVersion(ctx, pod("a"), 0, v.Items[0].Sequence); err != nil || d.From.As != Gap || d.To.As != Gap {
			t.Errorf("of a damaged record: %+v %v", d, err)
		}
	})
}

// lost loses the history of ten minutes in which all objects change, and shows them one by one.
func (w *world) lost(shown func(name string)) {
	known, from, h := maps.Clone(w.cluster), w.now(), w.c.Handler(w.feed)
	all := slices.Sorted(maps.Keys(known))
	time.Sleep(10 * time.Minute)
	for _, name := range all {
		w.cluster[name] = w.object(name, string(known[name].GetUID()))
	}
	end := w.seen
	w.list.Store(&dynamicfactory.List{ResourceVersion: fmt.Sprint(w.version), End: end})
	w.c.HistoryLost(w.feed, dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: fmt.Sprint(w.version), FromTime: from, ToTime: w.now(), Position: end})
	for i, name := range all {
		position := uint64(0)
		if i == len(all)-1 {
			position = end
		}
		h.OnUpdate(known[name], w.cluster[name].WithPosition(position))
		w.c.Flush()
		shown(name)
	}
	w.list.Store(nil)
}

// A version before a gap is exact, and the state before one that the list after the gap shows is not.
func TestVersionsAroundAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		time.Sleep(2 * time.Minute)
		w.cluster["a"] = w.object("a", "u1")
		w.c.Handler(w.feed).OnAdd(w.cluster["a"], false)
		w.c.Flush()
		w.lost(func(string) { time.Sleep(time.Minute) })
		v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 10})
		w.must(err)
		if len(v.Items) != 2 {
			t.Fatalf("got %+v", v)
		}
		for i := range v.Items {
			if s, err := w.r.AtVersion(pod("a"), v.Items[i].Sequence); err != nil || s.As != Exact {
				t.Errorf("version %d: %+v %v", i, s, err)
			}
		}
		if d, err := w.r.DiffVersion(t.Context(), pod("a"), 0, v.Items[0].Sequence); err != nil || d.From.As != Gap || d.To.As != Exact {
			t.Errorf("got %+v %v", d, err)
		}
		// A list may last until retention has deleted the gap.
		at, err := w.r.until(w.now())
		w.must(err)
		w.r.known.gaps = nil
		s, err := w.r.judge(&Object{pods, "ns", "a"}, at, State{As: Exact, Exists: true, before: v.Items[1].Sequence, next: v.Items[0].Sequence, blind: true}, nil)
		if err != nil || s.As != Gap {
			t.Errorf("without the gap: %+v %v", s, err)
		}
	})
}

// What changed in a gap is not exact while its list is being taken in, also where the clock is set
// back meanwhile, and a period with the gap is not complete.
func TestClockSetBackAmidAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		time.Sleep(2 * time.Minute)
		for _, name := range []string{"a", "b", "d"} {
			w.cluster[name] = w.object(name, "u-"+name)
			w.c.Handler(w.feed).OnAdd(w.cluster[name], false)
		}
		w.c.Flush()
		time.Sleep(20 * time.Minute)
		var at time.Time
		w.lost(func(name string) {
			switch name {
			case "a":
				w.skew.Store(-int64(20 * time.Minute)) // ten minutes before the gap
			case "b":
				time.Sleep(time.Minute)
				at = w.now()
			}
			time.Sleep(time.Minute)
		})
		if s, err := w.r.At(t.Context(), pod("d"), at); err != nil || s.As != Gap {
			t.Errorf("before the list shows it: %+v %v", s, err)
		}
		c, err := w.r.Changes(t.Context(), Filter{From: at.Add(-5 * time.Minute), To: w.now()}, false)
		w.must(err)
		if c.Complete {
			t.Errorf("got %+v", c)
		}
	})
}

// The state of an object that could not be read is not the one before, until it is read again.
func TestUnreadableObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		h := w.c.Handler(w.feed)
		expect := func(name string, at time.Time, as As) {
			t.Helper()
			if s, err := w.r.At(t.Context(), pod(name), at); err != nil || s.As != as {
				t.Errorf("%s: %+v %v, want %s", name, s, err, as)
			}
		}
		w.rest()
		first := w.object("a", "u1")
		h.OnAdd(first, false)
		h.OnAdd(w.object("b", "u2"), false)
		before := w.rest()
		time.Sleep(time.Second)
		for _, name := range []string{"a", "d"} { // d is new
			w.c.HistoryLost(w.feed, dynamicfactory.Gap{Cause: dynamicfactory.CauseUnreadable, Namespace: "ns", Name: name, To: fmt.Sprint(w.version), FromTime: w.now(), ToTime: w.now()})
		}
		unread := w.rest()
		time.Sleep(time.Second)
		expect("a", unread, Gap)
		expect("d", unread, Gap)
		h.OnUpdate(first, w.object("a", "u1"))
		after := w.rest()
		for _, name := range []string{"a", "b"} {
			expect(name, before, Exact)
			expect(name, after, Exact)
		}
		expect("a", unread, Gap)
		expect("b", unread, Exact)
	})
}

// Hashes of two keys are compared nowhere, also where the clock was set back: not in a diff, and not in blame.
func TestHashesOfTwoKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		h := w.c.Handler(w.feed)
		state := func(hash string) *compact.Object {
			w.version++
			w.shown.Store(int64(w.version))
			return w.encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"%d"},"spec":{"secret":"redacted:hmac-sha256:%s","version":"%d"}}`,
				w.version, strings.Repeat(hash, 16), w.version))
		}
		w.must(ledger.NoteRedactKey(w.st, "a"))
		w.rest()
		was, is := state("a"), state("b")
		h.OnAdd(was, false)
		from := w.rest()
		w.must(ledger.NoteRedactKey(w.st, "b"))
		w.skew.Store(-int64(time.Minute))
		h.OnUpdate(was, is)
		d, err := w.r.Diff(t.Context(), pod("a"), from.Add(-time.Minute-1), w.rest())
		w.must(err)
		if !d.Rekeyed || strings.Contains(d.Diff, "hmac") || !strings.Contains(d.Diff, "+  version:") {
			t.Errorf("got %+v", d)
		}
		v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 10})
		w.must(err)
		if want := "version 101 -> 102, redacted values have another key"; v.Items[0].Summary != want {
			t.Errorf("got %q, want %q", v.Items[0].Summary, want)
		}
		b, err := w.r.Blame(t.Context(), pod("a"))
		w.must(err)
		for _, f := range b.Fields {
			want := map[string]As{"spec.secret": Gap, "spec.version": Exact}[f.Path]
			if want != "" && f.As != want {
				t.Errorf("got %+v, want %s", f, want)
			}
		}
	})
}

// A state whose record is trimmed has the hashes of its own key, also where a record of the next key holds it.
func TestHashesOfTwoKeysOfTrimmedState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 5*time.Minute)
		defer w.end()
		h := w.c.Handler(w.feed)
		state := func(name, hash string) *compact.Object {
			w.version++
			w.shown.Store(int64(w.version))
			return w.encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":%q,"uid":"u","resourceVersion":"%d"},"spec":{"secret":"redacted:hmac-sha256:%s","version":"%d"}}`,
				name, w.version, strings.Repeat(hash, 16), w.version))
		}
		w.must(ledger.NoteRedactKey(w.st, "a"))
		other := state("b", "c")
		h.OnAdd(other, false)
		rest := func() {
			for range 8 {
				next := state("b", "c")
				h.OnUpdate(other, next)
				other = next
				w.c.Flush()
				time.Sleep(30 * time.Second)
			}
		}
		was := state("a", "a")
		h.OnAdd(was, false)
		first := w.st.LogStats().Last
		rest()
		from := w.now()
		w.must(ledger.NoteRedactKey(w.st, "b"))
		h.OnUpdate(was, state("a", "b"))
		rest()
		if !w.r.gone(first + 1) {
			t.Fatal("the log has the first state")
		}
		d, err := w.r.Diff(t.Context(), pod("a"), from.Add(-1), w.now())
		w.must(err)
		if d.From.As != Exact || !d.From.Exists || !d.Rekeyed || strings.Contains(d.Diff, "hmac") {
			t.Errorf("got %+v", d)
		}
	})
}

// A gap of a sink that was not configured is not one of the history.
func TestGapOfASink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.updates(1, time.Minute)
		time.Sleep(2 * time.Minute)
		rec := record.Record{
			Event: event.Event{ID: "00", Type: event.Gap, Time: w.now(), Resource: pods, Gap: &event.GapData{
				Watch: "w", Resource: pods, Cause: record.CauseRemoved, From: w.now().Add(-time.Minute), To: w.now(),
			}},
			Targets: []record.Target{{Sink: "s"}},
		}
		payload, err := record.Append(nil, &rec)
		w.must(err)
		batch := w.st.NewBatch()
		row := rec.Headline(batch.Append(store.Record{Time: rec.Event.Time, Payload: payload}, nil), event.Inside)
		var block headline.Block
		block.Add(&row)
		batch.PutHeadlines(block.Bytes())
		w.must(w.st.Commit(batch))
		if s, err := w.r.At(t.Context(), pod("a"), w.now().Add(-time.Second)); err != nil || s.As != Exact {
			t.Errorf("%+v %v", s, err)
		}
	})
}

// updates has pod a added and updated n times, with a pause before each update.
func (w *world) updates(n int, pause time.Duration) {
	h, a := w.c.Handler(w.feed), w.object("a", "u1")
	h.OnAdd(a, false)
	for range n {
		time.Sleep(pause)
		next := w.object("a", "u1")
		h.OnUpdate(a, next)
		a = next
	}
	w.c.Flush()
}

// Versions and blame of an object whose states take long to read end in time, and report it.
func TestSlowVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.updates(100, 0)
		want, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 1000})
		w.must(err)
		if len(want.Items) != 101 || want.More {
			t.Fatalf("%d versions, more: %t", len(want.Items), want.More)
		}
		some, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 100})
		w.must(err)
		if len(some.Items) != 100 || !some.More {
			t.Errorf("of 101 versions %d, more: %t", len(some.Items), some.More)
		}
		w.r.store = slow{passing{w.st}}
		began := time.Now()
		v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 1000})
		w.must(err)
		if took := time.Since(began); took > 2*patience || !v.More || len(v.Items) == 0 {
			t.Errorf("%d versions in %v, more: %t", len(v.Items), took, v.More)
		}
		if diff := cmp.Diff(want.Items[:len(v.Items)], v.Items); diff != "" {
			t.Errorf("(-quick +slow):\n%s", diff)
		}
		began = time.Now()
		b, err := w.r.Blame(t.Context(), pod("a"))
		w.must(err)
		if took := time.Since(began); took > 2*patience || !b.Truncated || len(b.Fields) == 0 {
			t.Errorf("blame of %d fields in %v, truncated: %t", len(b.Fields), took, b.Truncated)
		}
		from := w.now()
		time.Sleep(time.Minute)
		for i := range 1000 {
			w.c.Handler(w.feed).OnAdd(w.object(fmt.Sprint("pod-", i), fmt.Sprint("u", i)), false)
		}
		w.c.Flush()
		began = time.Now()
		c, err := w.r.Changes(t.Context(), Filter{From: from, To: w.now()}, false)
		w.must(err)
		if took := time.Since(began); took > 11*patience || !c.Truncated || len(c.Items) == 0 {
			t.Errorf("%d changes in %v, truncated: %t", len(c.Items), took, c.Truncated)
		}
	})
}

// counted counts the records that are read.
type counted struct {
	Store
	n int
}

func (c *counted) ReadRecord(sequence uint64) (store.Item, bool, error) {
	c.n++
	return c.Store.ReadRecord(sequence)
}

// The versions of an old period are read without those after it.
func TestOldVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.updates(1000, time.Second)
		all, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 2000})
		w.must(err)
		reads := &counted{Store: w.st}
		w.r.store = reads
		for _, i := range []int{0, 1, 500, 999, 1000} {
			reads.n = 0
			v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), To: all.Items[i].Time, Limit: 1})
			w.must(err)
			if len(v.Items) != 1 || v.Items[0] != all.Items[i] || v.More != (i < 1000) {
				t.Errorf("until version %d: got %+v", i, v)
			}
			if most := 10; reads.n > most && (i < 1000 || reads.n > most+quickSteps) {
				t.Errorf("until version %d: %d records are read", i, reads.n)
			}
		}
	})
}

// The pages of a list have the time of the first, which a relative one is not of the others, and no page follows on what is no
// page of the list.
func TestPagesOfOneTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		h := w.c.Handler(w.feed)
		for _, name := range names {
			w.cluster[name] = w.object(name, "u-"+name)
			h.OnAdd(w.cluster[name], false)
		}
		at := w.rest().Add(-1)
		h.OnDelete(w.object("f", "u-f"))
		later := w.rest()
		got, after := []string{}, ""
		for page := range len(names) {
			list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, []time.Time{at, later}[min(page, 1)], after, 1)
			w.must(err)
			for _, s := range list.Items {
				got = append(got, s.Name)
			}
			if list.Continue != "" {
				after = list.Continue
			}
		}
		if slices.Sort(got); !slices.Equal(got, names) {
			t.Errorf("the pages have %v", got)
		}
		versions, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 1})
		w.must(err)
		for what, tc := range map[string]struct{ namespace, token string }{
			"no place": {"", "ns/a"}, "a version": {"", token(versions.Items[0].Sequence)}, "another list": {"few", after},
			"the future": {"", ListPlace{At: w.now().Add(time.Hour), After: "ns/a"}.Token()},
		} {
			if list, err := w.r.ListAt(t.Context(), Objects{Resource: pods, Namespace: tc.namespace}, later, tc.token, 1); !errors.Is(err, ErrContinue) {
				t.Errorf("%s: %v, %+v", what, err, list)
			}
		}
	})
}

// A page of the objects of one name is that of one read of the ledger.
func TestListOfAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		time.Sleep(2 * time.Minute)
		for i := range 50 {
			w.c.Handler(w.feed).OnAdd(w.object(fmt.Sprintf("pod-%02d", i), fmt.Sprint("u", i)), false)
		}
		w.c.Flush()
		time.Sleep(time.Second)
		reads := &counted{Store: w.st}
		w.r.store = reads
		all := Objects{Resource: pods, Named: func(_, name string) bool { return name == "pod-47" }}
		list, err := w.r.ListAt(t.Context(), all, w.now(), "", 2)
		w.must(err)
		if len(list.Items) != 1 || list.Items[0].Name != "pod-47" || list.Continue != "" || reads.n > 5 {
			t.Errorf("got %+v, of %d records", list, reads.n)
		}
	})
}

// The place to continue a list at is short, whatever names the objects have, also if these are only in the log.
func TestListOfLongNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		time.Sleep(2 * time.Minute)
		long := strings.Repeat("x", 20<<10)
		var objects []*compact.Object
		for _, name := range []string{"a", long, long + "a", long + "b", "y"} {
			o := w.object(name, name[:1]+name[len(name)-1:])
			objects = append(objects, o)
			w.c.Handler(w.feed).OnAdd(o, false)
		}
		w.c.Flush()
		time.Sleep(time.Second)
		at := w.now()
		time.Sleep(time.Second)
		w.c.Handler(w.feed).OnDelete(objects[2])
		w.c.Flush()
		time.Sleep(time.Second)
		all := Objects{Resource: pods}
		next := ""
		for i, o := range objects {
			list, err := w.r.ListAt(t.Context(), all, at, next, 1)
			w.must(err)
			if len(list.Items) != 1 || list.Items[0].Name != o.GetName() || len(list.Continue) > 2<<10 || list.Continue == "" && i < len(objects)-1 {
				t.Fatalf("page %d has %d objects, and continues at %d bytes", i, len(list.Items), len(list.Continue))
			}
			next = list.Continue
		}
		if _, err := w.r.ListAt(t.Context(), all, at, Place("ns/"+long+"c"), 1); !errors.Is(err, ErrContinue) {
			t.Errorf("at an object that is not known: %v", err)
		}
	})
}

// TestAnswersOfLongNames: what is answered at a time has bounds, whatever names the objects have, and a page is followed by the rest.
func TestAnswersOfLongNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		time.Sleep(2 * time.Minute)
		h := w.c.Handler(w.feed)
		h.OnAdd(w.object("a", "u"), false)
		const objects, name = 100, 60 << 10
		for i := range objects {
			h.OnAdd(w.owned(fmt.Sprintf("%03d", i)+strings.Repeat("x", name), fmt.Sprint("u", i), "u"), false)
		}
		w.c.Flush()
		time.Sleep(time.Second)
		found, pages := 0, 0
		for q := (Query{Limit: 1000}); ; pages++ {
			p, err := w.r.Query(t.Context(), q)
			w.must(err)
			if len(p.Items) > pageBytes/name+1 {
				t.Fatalf("a page of %d changes", len(p.Items))
			}
			found += len(p.Items)
			if q.Continue = p.Continue; q.Continue == "" {
				break
			}
		}
		if found != objects+1 || pages < 1 {
			t.Errorf("%d changes on %d pages", found, pages)
		}
		c, err := w.r.Changes(t.Context(), Filter{From: w.begun(), To: w.now()}, false)
		if w.must(err); !c.Truncated || len(c.Items) < 2 || len(c.Items) > pageBytes/name+2 {
			t.Errorf("%d objects that changed, truncated %t", len(c.Items), c.Truncated)
		}
		all, err := w.r.Owned(t.Context(), Object{Resource: pods, Namespace: "ns", Name: "a"}, time.Time{}, 1000)
		if w.must(err); !all.Truncated || len(all.Items) == 0 || len(all.Items) > pageBytes/name+1 {
			t.Errorf("%d owned objects, truncated %t", len(all.Items), all.Truncated)
		}
	})
}

// Owned objects are those of the time that is asked for, of the life that is named, and no more
// than are wanted.
func TestOwned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, time.Hour)
		defer w.end()
		owned := func(name, kind, owner, uid string) *compact.Object {
			w.version++
			w.shown.Store(int64(w.version))
			is := `"apiVersion":"v1","kind":"Pod"`
			if name == "b" {
				is = `"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata"`
			}
			return w.encode(fmt.Appendf(nil, `{%s,"metadata":{"namespace":"ns","name":%q,"uid":"u-%s","resourceVersion":"%d","ownerReferences":[{"apiVersion":"v1","kind":%q,"name":%q,"uid":%q,"controller":true}]}}`,
				is, name, name, w.version, kind, owner, uid))
		}
		h := w.c.Handler(w.feed)
		time.Sleep(2 * time.Minute)
		h.OnAdd(w.object("a", "u1"), false)
		b, c := owned("b", "Pod", "a", "u1"), owned("c", "Pod", "a", "u1")
		for _, o := range []*compact.Object{b, c, owned("d", "Pod", "other", "u1"), owned("e", "Job", "a", "u1"), owned("f", "Pod", "a", "former")} {
			h.OnAdd(o, false)
		}
		w.c.Flush()
		time.Sleep(time.Minute)
		before := w.now()
		time.Sleep(time.Minute)
		h.OnDelete(c)
		w.c.Flush()
		list := func(at time.Time, limit int) (Owned, string) {
			t.Helper()
			got, err := w.r.Owned(t.Context(), pod("a"), at, limit)
			w.must(err)
			names := ""
			for _, o := range got.Items {
				if names += o.Name; o.Resource.Kind != "Pod" || o.Resource.Version != "v1" || o.Namespace != "ns" || !o.Controller || o.As != Exact {
					t.Errorf("got %+v", o)
				}
			}
			return got, names
		}
		if got, names := list(time.Time{}, 10); names != "b" || got.As != Exact || got.Truncated {
			t.Errorf("now: got %+v, want b", got)
		}
		if got, names := list(before, 10); names != "bc" || got.Truncated {
			t.Errorf("before a deletion: got %+v, want b and c", got)
		}
		if got, names := list(before, 1); names != "b" || !got.Truncated {
			t.Errorf("of one: got %+v, want b, truncated", got)
		}
		if got, err := w.r.Owned(t.Context(), Object{pods, "elsewhere", "a"}, time.Time{}, 10); err != nil || len(got.Items) != 0 {
			t.Errorf("in another namespace: got %+v, %v", got, err)
		}
	})
}

// owned is the next version of an object that a controls in a life, or none if that is empty.
func (w *world) owned(name, uid, owner string) *compact.Object {
	w.version++
	w.shown.Store(int64(w.version))
	refs := ""
	if owner != "" {
		refs = fmt.Sprintf(`,"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"a","uid":%q,"controller":true}]`, owner)
	}
	return w.encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":%q,"uid":%q,"resourceVersion":"%d"%s}}`, name, uid, w.version, refs))
}

// Owned objects of a past time are those that named the owner then, whatever has come of them: one that was made again
// with its owner, as the Pods of a StatefulSet are, one that was released, and one that was not selected since.
func TestOwnedOfAnEarlierLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		owned, h := w.owned, w.c.Handler(w.feed)
		w.rest()
		h.OnAdd(w.object("a", "u1"), false)
		was := map[string]*compact.Object{}
		for _, name := range []string{"again", "kept", "released"} {
			was[name] = owned(name, name+"-1", "u1")
			h.OnAdd(was[name], false)
		}
		before := w.rest()
		w.rest()
		h.OnUpdate(was["released"], owned("released", "released-1", ""))
		h.OnDelete(w.object("a", "u1"))
		h.OnDelete(owned("again", "again-1", "u1"))
		w.rest()
		h.OnAdd(w.object("a", "u2"), false)
		h.OnAdd(owned("again", "again-2", "u2"), false)
		h.OnAdd(owned("new", "new-2", "u2"), false)
		after := w.rest()
		v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 10})
		w.must(err)
		names := func(got Owned, err error) (list []string) {
			w.must(err)
			if got.As != Exact || got.Truncated {
				t.Errorf("got %+v", got)
			}
			for _, o := range got.Items {
				list = append(list, o.Name)
			}
			return list
		}
		for what, tc := range map[string]struct{ got, want []string }{
			"before":            {names(w.r.Owned(t.Context(), pod("a"), before, 10)), []string{"again", "kept", "released"}},
			"after":             {names(w.r.Owned(t.Context(), pod("a"), after, 10)), []string{"again", "new"}},
			"now":               {names(w.r.Owned(t.Context(), pod("a"), time.Time{}, 10)), []string{"again", "new"}},
			"the first version": {names(w.r.OwnedVersion(t.Context(), pod("a"), v.Items[2].Sequence, 10)), nil},
			"the deletion":      {names(w.r.OwnedVersion(t.Context(), pod("a"), v.Items[1].Sequence, 10)), []string{"again", "kept"}},
		} {
			if diff := cmp.Diff(tc.want, tc.got); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
		}
	})
}

// Owned objects are of the owner that there was at their time, also if it is recorded while the answer is made.
func TestOwnedOfWhatIsBeingRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		h := w.c.Handler(w.feed)
		w.rest()
		h.OnAdd(w.object("a", "u1"), false)
		w.rest()
		later := func() {
			h.OnDelete(w.object("a", "u1"))
			h.OnAdd(w.object("a", "u2"), false)
			h.OnAdd(w.owned("d", "d1", "u2"), false)
			w.c.Flush()
		}
		w.r.Reading(func(settle func(string) bool, _ time.Time) (map[string]Unread, bool) {
			if settle != nil {
				later()
				later = func() {}
			}
			return map[string]Unread{"pods": {}}, true
		})
		got, err := w.r.Owned(t.Context(), pod("a"), time.Time{}, 10)
		w.must(err)
		if got.As != Exact || len(got.Unread) > 0 || len(got.Items) != 1 {
			t.Errorf("got %+v, want d", got)
		}
	})
}

// The list of owned objects is no more exact than the states that it would have to be made of.
func TestOwnedWithADamagedRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		h := w.c.Handler(w.feed)
		w.rest()
		h.OnAdd(w.object("a", "u1"), false)
		first := w.owned("d", "d1", "u1")
		h.OnAdd(first, false)
		at := w.rest()
		w.rest()
		h.OnUpdate(first, w.owned("d", "d1", "u1"))
		w.rest()
		v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("d"), Limit: 10})
		w.must(err)
		w.r.store = damagedAt{w.st, v.Items[1].Sequence}
		if got, err := w.r.Owned(t.Context(), pod("a"), at, 10); err != nil || got.As != Gap {
			t.Errorf("got %+v %v, want a gap", got, err)
		}
	})
}

// Owned objects of a version are those of its life when it was the last change, whatever the clock showed.
func TestOwnedOfAVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, time.Hour)
		defer w.end()
		h := w.c.Handler(w.feed)
		owned := func(name, owner string) *compact.Object { return w.owned(name, "u-"+name, owner) }
		rest := func() {
			w.c.Flush()
			time.Sleep(time.Minute)
		}
		time.Sleep(20 * time.Minute)
		h.OnAdd(owned("b", "u1"), false)
		h.OnAdd(owned("c", "u2"), false)
		first, second := w.object("a", "u1"), w.object("a", "u2")
		h.OnAdd(first, false)
		rest()
		h.OnUpdate(first, second) // deleted and created again
		rest()
		w.skew.Store(-int64(10 * time.Minute))
		h.OnDelete(owned("b", "u1"))
		h.OnUpdate(second, w.object("a", "u2"))
		rest()
		h.OnAdd(owned("d", "u2"), false)
		rest()
		v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 10})
		w.must(err)
		for i, want := range []string{"c", "c", "bc", "b"} { // of a deletion the uid is not known
			got, err := w.r.OwnedVersion(t.Context(), pod("a"), v.Items[i].Sequence, 10)
			w.must(err)
			names := ""
			for _, o := range got.Items {
				names += o.Name
			}
			if names != want || got.As != Exact {
				t.Errorf("version %d: got %+v, want %s", i, got, want)
			}
		}
		if _, err := w.r.OwnedVersion(t.Context(), pod("a"), w.st.LogStats().Last, 10); !errors.Is(err, ErrNoVersion) {
			t.Errorf("got %v", err)
		}
	})
}

// Status changes are left out on request, and counted either way.
func TestNoise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, time.Hour)
		defer w.end()
		object := func(subresource string) *compact.Object {
			w.version++
			w.shown.Store(int64(w.version))
			return w.encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"%d","managedFields":[{"manager":"kubelet","operation":"Update","subresource":%q,"time":"2026-11-22T09:00:00Z"}]}}`,
				w.version, subresource))
		}
		h, was := w.c.Handler(w.feed), object("")
		h.OnAdd(was, false)
		for i := range 20 {
			next := object([]string{"status", "status", ""}[i%3])
			h.OnUpdate(was, next)
			was = next
		}
		w.c.Flush()
		time.Sleep(time.Second)
		for _, f := range []Filter{{}, {NoNoise: true}, {NoNoise: true, Resource: &pods, Manager: "kubelet"}, {Manager: "kubectl"}} {
			page, err := w.r.Query(t.Context(), Query{Filter: f, Limit: 100})
			w.must(err)
			histogram, err := w.r.Histogram(t.Context(), f, 3)
			w.must(err)
			n := sum(&histogram)
			want, noise := 21, 14
			if f.NoNoise {
				want = 7
			}
			if f.Manager == "kubectl" {
				want, noise = 0, 0
			}
			if len(page.Items) != want || n != want || histogram.Noise != noise {
				t.Errorf("%+v: %d changes, %d counted and %d of noise, want %d and %d", f, len(page.Items), n, histogram.Noise, want, noise)
			}
		}
	})
}

// TestAlike: hashes of two keys are no change, also where the earlier state is the second one.
func TestAlike(t *testing.T) {
	var keys ledger.RedactKeys
	if err := json.Unmarshal([]byte(`[{"id":"a"},{"id":"b","after":10}]`), &keys); err != nil {
		t.Fatal(err)
	}
	state := func(form uint64, hash string) *State {
		return &State{form: form, Object: json.RawMessage(`{"a":"redacted:hmac-sha256:` + strings.Repeat(hash, 16) + `"}`)}
	}
	for name, tc := range map[string]struct {
		was, is uint64
		same    bool
	}{
		"forward":                  {10, 11, true},
		"backward":                 {11, 10, true},
		"after the change":         {11, 12, false},
		"before the change":        {9, 10, false},
		"nothing before the other": {0, 11, false},
	} {
		was, is := state(tc.was, "a"), state(tc.is, "b")
		if alike(keys, was, is) != tc.same || bytes.Equal(was.Object, is.Object) != tc.same {
			t.Errorf("%s: %s and %s", name, was.Object, is.Object)
		}
	}
}

// The state before a record is not exact if the object could not be read in between, also where the clock was
// set back meanwhile.
func TestUnreadableObjectAndClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		h := w.c.Handler(w.feed)
		w.rest()
		first := w.object("a", "u1")
		h.OnAdd(first, false)
		w.rest()
		time.Sleep(time.Hour)
		w.c.HistoryLost(w.feed, dynamicfactory.Gap{Cause: dynamicfactory.CauseUnreadable, Namespace: "ns", Name: "a", To: fmt.Sprint(w.version), FromTime: w.now(), ToTime: w.now()})
		w.rest()
		w.skew.Store(-int64(30 * time.Minute))
		w.rest()
		h.OnAdd(w.object("b", "u2"), false) // a record shows how the clock is set
		w.rest()
		at := w.now()
		time.Sleep(time.Second)
		h.OnUpdate(first, w.object("a", "u1"))
		w.rest()
		if s, err := w.r.At(t.Context(), pod("a"), at); err != nil || s.As != Gap {
			t.Errorf("%+v %v", s, err)
		}
		v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 10})
		w.must(err)
		d, err := w.r.DiffVersion(t.Context(), pod("a"), 0, v.Items[0].Sequence)
		w.must(err)
		if d.From.As != Gap || d.To.As != Exact {
			t.Errorf("%+v", d)
		}
		b, err := w.r.Blame(t.Context(), pod("a"))
		w.must(err)
		for _, f := range b.Fields {
			if f.As == Exact && f.Sequence == v.Items[0].Sequence {
				t.Errorf("blame is exact after what could not be read: %+v", f)
			}
		}
	})
}

// What changed in a gap is not exact in it, also where the clock was set back in the gap to before its beginning.
func TestClockSetBackAmidAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		h := w.c.Handler(w.feed)
		time.Sleep(time.Hour)
		first := w.object("a", "u1")
		h.OnAdd(first, false)
		w.rest()
		early := w.now()
		time.Sleep(time.Hour)
		h.OnAdd(w.object("b", "u2"), false)
		w.c.Flush()
		time.Sleep(time.Second)
		from := w.now()
		time.Sleep(time.Minute)
		another := func() { // of a watch that goes on
			w.put(&record.Record{Event: event.Event{Type: event.Added, Time: w.now(), Resource: event.Resource{Version: "v1", Resource: "nodes", Kind: "Node"}, Name: "n"}})
		}
		another()
		w.skew.Store(-int64(30 * time.Minute))
		another() // shows how the clock is set
		time.Sleep(time.Minute)
		at := w.now()
		time.Sleep(time.Minute)
		w.list.Store(&dynamicfactory.List{ResourceVersion: fmt.Sprint(w.version + 1), End: w.seen})
		second := w.object("a", "u1")
		w.c.HistoryLost(w.feed, dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: fmt.Sprint(w.version), FromTime: from, ToTime: w.now(), Position: w.seen})
		h.OnUpdate(first, second.WithPosition(w.seen))
		w.c.Flush()
		w.list.Store(nil)
		time.Sleep(time.Second)
		if s, err := w.r.At(t.Context(), pod("a"), at); err != nil || s.As != Gap {
			t.Errorf("in the gap: %+v %v", s, err)
		}
		if s, err := w.r.At(t.Context(), pod("a"), early); err != nil || s.As != Exact {
			t.Errorf("before the gap: %+v %v", s, err)
		}
		list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, at, "", 10)
		w.must(err)
		if list.As != Gap {
			t.Errorf("the list: %+v", list)
		}
		if list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, early, "", 10); err != nil || list.As != Exact {
			t.Errorf("the list before the gap: %+v %v", list, err)
		}
		c, err := w.r.Changes(t.Context(), Filter{Resource: &pods, From: at, To: at.Add(time.Second)}, false)
		w.must(err)
		if c.Complete {
			t.Errorf("%+v", c)
		}
	})
}

// A change is found by its time also if a list shows deletions later that have an earlier one, more of them than the log has
// in a segment or two.
func TestChangeBeforeALongList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		list := w.rest()
		put := func(name string, at time.Time, size int) (sequence uint64) {
			e := event.Event{Type: event.Deleted, Time: at, Resource: pods, Namespace: "ns", Name: name, FinalStateUnknown: size > 0}
			return w.put(&record.Record{Event: e, Patch: bytes.Repeat([]byte(" "), size)})
		}
		put("first", list, 0)
		want := put("a", list.Add(30*time.Second), 0)
		for i := range 4 {
			put(fmt.Sprint("gone", i), list, 1<<20)
		}
		w.rest()
		page, err := w.r.Query(t.Context(), Query{Filter: Filter{From: list.Add(10 * time.Second)}, Limit: 10})
		w.must(err)
		if len(page.Items) != 1 || page.Items[0].Sequence != want {
			t.Errorf("complete %t, %+v, want record %d", page.Complete, page.Items, want)
		}
	})
}
