package history

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// A period may begin before and end after all times that a record can have.
func TestHistogramOfAllTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.updates(10, time.Minute)
		for _, from := range []time.Time{time.Unix(0, 1), time.Date(1676, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC)} {
			for _, buckets := range []int{1, 2, 60, MaxBuckets} {
				h, err := w.r.Histogram(t.Context(), Filter{From: from}, buckets)
				w.must(err)
				for i, b := range h.Buckets {
					if i > 0 && !b.From.After(h.Buckets[i-1].From) {
						t.Errorf("from %v bucket %d of %d begins at %v", from, i, buckets, b.From)
					}
				}
				if n := sum(&h); n != 11 {
					t.Errorf("from %v %d changes are in %d buckets, want 11", from, n, buckets)
				}
			}
		}
	})
}

// put appends a state past the committer.
func (w *world) put(rec *record.Record) (sequence uint64) {
	w.Helper()
	rec.Event.ID, rec.Event.UID, rec.State = "00", "u", true
	payload, err := record.Append(nil, rec)
	w.must(err)
	batch := w.st.NewBatch()
	sequence = batch.Append(store.Record{Time: rec.Event.Time, Payload: payload}, nil)
	row := rec.Headline(sequence, event.Inside)
	var block headline.Block
	block.Add(&row)
	batch.PutHeadlines(block.Bytes())
	w.must(w.st.Commit(batch))
	return sequence
}

// The counts of a filter are those of its pages, also of times before that of the first record and of the future,
// which a clock that was set back has shown.
func TestCountsOfPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		at := w.rest()
		later := w.now().Add(time.Hour)
		for _, e := range []event.Event{
			{Type: event.Updated, Time: at, Name: "x"}, {Type: event.Deleted, Time: at.Add(-30 * time.Second), Name: "y", FinalStateUnknown: true}, {Type: event.Updated, Time: later, Name: "z"},
		} {
			e.Resource, e.Namespace = pods, "ns"
			w.put(&record.Record{Event: e})
		}
		for _, f := range []Filter{{}, {From: at}, {From: at.Add(-time.Hour)}, {From: later}, {To: at}, {To: w.now()}, {To: later.Add(-1)}, {To: later}} {
			p, err := w.r.Query(t.Context(), Query{Filter: f, Limit: 10})
			w.must(err)
			h, err := w.r.Histogram(t.Context(), f, 10)
			w.must(err)
			if n := sum(&h); n != len(p.Items) {
				t.Errorf("from %v to %v there are %d changes, and %d in the buckets", f.From, f.To, len(p.Items), n)
			}
		}
	})
}

// Deletions of a list that the store had no room for until long after it hide no change that was recorded before them, and
// do not make the history seem longer than it is once they begin the log.
func TestLateDeletions(t *testing.T) {
	for name, tc := range map[string]struct {
		deletions int
		trimmed   bool
	}{"in more segments than others": {5, false}, "the first of the log": {1, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, time.Hour)
				defer w.end()
				list := w.rest()
				put := func(e event.Event, at time.Time, size int) uint64 {
					e.Time, e.Resource, e.Namespace = at, pods, "ns"
					return w.put(&record.Record{Event: e, Patch: bytes.Repeat([]byte(" "), size)})
				}
				var first, last uint64
				for range 3 {
					time.Sleep(5 * time.Minute)
					last = put(event.Event{Type: event.Updated, Name: "x"}, w.now(), 0)
				}
				for i := range tc.deletions {
					sequence := put(event.Event{Type: event.Deleted, Name: fmt.Sprint("gone", i), FinalStateUnknown: true}, list, 1<<20)
					first = cmp.Or(first, sequence)
				}
				w.rest()
				if tc.trimmed {
					if w.trim(last); w.st.LogStats().First != first {
						t.Fatalf("the log begins at %d, want %d", w.st.LogStats().First, first)
					}
				}
				for i := range 3 {
					page, err := w.r.Query(t.Context(), Query{Filter: Filter{Name: "x", From: list.Add(time.Duration(i)*5*time.Minute + 2*time.Minute)}, Limit: 10})
					w.must(err)
					if page.Complete == tc.trimmed || page.Complete && len(page.Items) != 3-i {
						t.Errorf("there are %d of %d changes, complete: %t", len(page.Items), 3-i, page.Complete)
					}
				}
			})
		})
	}
}

// counts counts the reads of headlines.
type counts struct {
	passing
	scans int
}

func (s *counts) ScanHeadlines(from, to uint64, newestFirst bool, f func(blocks []byte) error) error {
	s.scans++
	return s.passing.ScanHeadlines(from, to, newestFirst, f)
}

// How far the history goes back is read once, from however many records it takes.
func TestHorizonIsReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		at := w.rest()
		for _, e := range []event.Event{{Type: event.Deleted, FinalStateUnknown: true, Time: at}, {Type: event.Updated, Time: at.Add(time.Second)}} {
			e.Resource, e.Namespace, e.Name = pods, "ns", "a"
			s := &counts{passing: passing{w.st}}
			w.r.store = s
			w.put(&record.Record{Event: e})
			for range 2 {
				if _, got, err := w.r.horizon(); err != nil || !got.Equal(e.Time.Add(disorder)) {
					t.Errorf("after %s: %v %v", e.Type, got, err)
				}
			}
			if want := map[event.Type]int{event.Deleted: 2, event.Updated: 1}[e.Type]; s.scans != want {
				t.Errorf("after %s: read %d times, want %d", e.Type, s.scans, want)
			}
		}
	})
}

// trims lets what is read be trimmed when headlines have been read for the n-th time.
type trims struct {
	passing
	after int
	now   func()
}

func (s *trims) ScanHeadlines(from, to uint64, newestFirst bool, f func(blocks []byte) error) error {
	return s.passing.ScanHeadlines(from, to, newestFirst, func(blocks []byte) error {
		if s.after--; s.after == 0 {
			s.now()
		}
		return f(blocks)
	})
}

// holed has lost the headline of a record.
type holed struct {
	*store.Store
	sequence uint64
}

func (s holed) ScanHeadlines(from, to uint64, newestFirst bool, f func(blocks []byte) error) error {
	err := s.Store.ScanHeadlines(from, to, newestFirst, f)
	if max(from, s.LogStats().First) <= s.sequence && s.sequence <= to {
		err = errors.Join(err, store.ErrUnreadable)
	}
	return err
}

// Headlines that were lost make no answer inexact once retention has deleted their records.
func TestLostHeadlinesBesideRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, time.Hour)
		defer w.end()
		w.updates(2, time.Minute)
		first := w.st.LogStats().First
		w.updates(2, 2*time.Minute)
		w.r.store = holed{w.st, first}
		check := func(as As) {
			t.Helper()
			s, err := w.r.At(t.Context(), pod("a"), w.now())
			w.must(err)
			span, err := w.r.span(&pods, "", "", w.now(), w.now())
			w.must(err)
			if s.As != as || span.Complete != (as == Exact) {
				t.Errorf("got %+v, complete: %t, want %s", s, span.Complete, as)
			}
		}
		check(Gap)
		w.trim(first + 1)
		check(Exact)
		w.updates(1, time.Minute)
		check(Exact)
	})
}

// trim lets retention delete the records up to one.
func (w *world) trim(to uint64) {
	h, z := w.c.Handler(w.feed), w.object("z", "u9")
	for h.OnAdd(z, false); w.st.LogStats().First <= to; {
		time.Sleep(time.Minute)
		next := w.object("z", "u9")
		h.OnUpdate(z, next)
		z = next
		w.c.Flush()
	}
}

// Pages that are read while retention deletes what they would have had are not complete, and have
// no changes whose records are gone.
func TestPagesBesideRetention(t *testing.T) {
	run := func(name string, f func(t *testing.T, w *world)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, 30*time.Minute)
				defer w.end()
				w.updates(20, time.Minute)
				f(t, w)
			})
		})
	}
	run("between pages", func(t *testing.T, w *world) {
		q := Query{Limit: 5, Oldest: true}
		first, err := w.r.Query(t.Context(), q)
		w.must(err)
		if !first.Complete || len(first.Items) != 5 {
			t.Fatalf("got %+v", first)
		}
		q.Continue = first.Continue
		w.trim(first.Items[4].Sequence + 3)
		second, err := w.r.Query(t.Context(), q)
		w.must(err)
		if second.Complete {
			t.Errorf("the page after %d begins with %d and is complete", first.Items[4].Sequence, second.Items[0].Sequence)
		}
	})
	run("between pages, newest first", func(t *testing.T, w *world) {
		q := Query{Limit: 5}
		first, err := w.r.Query(t.Context(), q)
		w.must(err)
		q.Continue = first.Continue
		w.trim(first.Items[4].Sequence - 3)
		second, err := w.r.Query(t.Context(), q)
		w.must(err)
		if !first.Complete || second.Complete && !second.From.After(first.From) {
			t.Errorf("the pages are complete from %v and from %v: %t", first.From, second.From, second.Complete)
		}
	})
	none := &Test{Accepts: func(*record.Record) (bool, error) { return false, nil }}
	for name, q := range map[string]Query{"newest first": {}, "oldest first": {Oldest: true}, "newest first, tested": {Test: none}, "oldest first, tested": {Oldest: true, Test: none}} {
		run(name, func(t *testing.T, w *world) {
			all, err := w.r.Query(t.Context(), Query{Limit: 100, Oldest: true})
			w.must(err)
			last := all.Items[10]
			q.Limit, q.To = 100, last.Time
			w.r.store = &trims{passing{w.st}, 1, func() { w.trim(last.Sequence) }}
			p, err := w.r.Query(t.Context(), q)
			w.must(err)
			if w.st.LogStats().First <= last.Sequence || p.Complete || len(p.Items) > 0 {
				t.Errorf("the log begins at %d, the page is complete: %t, and has %+v", w.st.LogStats().First, p.Complete, p.Items)
			}
		})
	}
	run("histogram", func(t *testing.T, w *world) {
		all, err := w.r.Query(t.Context(), Query{Limit: 100, Oldest: true})
		w.must(err)
		w.r.store = &trims{passing{w.st}, 1, func() { w.trim(all.Items[10].Sequence) }}
		if h, err := w.r.Histogram(t.Context(), Filter{}, 10); err != nil || h.Complete {
			t.Errorf("complete from %v: %v", h.From, err)
		}
	})
	run("versions", func(t *testing.T, w *world) {
		w.c.Handler(w.feed).OnDelete(w.object("a", "u1"))
		w.c.Flush()
		w.r.store = &trims{passing{w.st}, 1, func() { w.trim(w.st.LogStats().Last) }}
		v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 100})
		w.must(err)
		if len(v.Items) > 0 || v.Before != UnknownBefore {
			t.Errorf("got %+v", v)
		}
	})
}

// A gap that ends before it begins, by a clock that was set back, is in the period that it ended in.
func TestGapWithAClockThatWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.restart(false)
		time.Sleep(2 * time.Minute)
		w.skew.Store(int64(time.Hour))
		w.updates(1, time.Minute)
		seen := w.now()
		w.skew.Store(0)
		time.Sleep(2 * time.Minute)
		from := w.now()
		time.Sleep(time.Minute)
		w.c.HistoryLost(w.feed, dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "2", FromTime: seen, ToTime: w.now()})
		w.c.Flush()
		w.updates(1, time.Minute)
		p, err := w.r.Query(t.Context(), Query{Filter: Filter{From: from}, Limit: 10})
		w.must(err)
		if p.Complete || len(p.Gaps) != 1 {
			t.Errorf("since %v: complete %t, gaps %+v", from, p.Complete, p.Gaps)
		}
	})
}

// The objects of a list that makes up for a gap come after its end, and what they were before is unknown.
func TestListAfterAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.restart(false)
		h := w.c.Handler(w.feed)
		a, b := w.object("a", "u1"), w.object("b", "u2")
		h.OnAdd(a, false)
		h.OnAdd(b, false)
		w.c.Flush()
		time.Sleep(2 * time.Minute)
		from := w.now()
		time.Sleep(2 * time.Hour) // unseen
		next, other, created := w.object("a", "u1"), w.object("b", "u2"), w.object("c", "u3")
		w.c.HistoryLost(w.feed, dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "2", FromTime: from, ToTime: w.now(), Position: w.seen})
		time.Sleep(time.Second)
		h.OnUpdate(a, next.WithPosition(w.seen))
		w.c.Flush()
		time.Sleep(time.Second)
		between := w.now()
		time.Sleep(time.Second)
		h.OnUpdate(b, other.WithPosition(w.seen))
		h.OnAdd(created.WithPosition(w.seen), false)
		w.c.Flush()
		time.Sleep(time.Minute)
		at := func(name string, t time.Time, want As) {
			w.Helper()
			s, err := w.r.At(w.Context(), pod(name), t)
			w.must(err)
			list, err := w.r.ListAt(w.Context(), Objects{Resource: pods, Named: func(_, n string) bool { return n == name }}, t, "", 10)
			w.must(err)
			if s.As != want || len(list.Items) != 1 && s.Exists || len(list.Items) == 1 && list.Items[0].As != want {
				w.Errorf("%s at %v is %s, and in a list %+v, want %s", name, t, s.As, list.Items, want)
			}
		}
		at("a", from.Add(-1), Exact)
		at("b", from.Add(-1), Exact)
		at("a", between, Exact)
		at("b", between, Gap)
		at("c", between, Gap)
		at("b", w.now(), Exact)
		at("c", w.now(), Exact)
		for _, name := range []string{"a", "b", "c"} {
			blame, err := w.r.Blame(t.Context(), pod(name))
			w.must(err)
			for _, f := range blame.Fields {
				if f.As != Gap {
					t.Errorf("it is %s who set %s of %s last", f.As, f.Path, name)
				}
			}
		}
	})
}

// The versions of a period are those that were recorded before its end, whatever the clock showed:
// each is on one page.
func TestVersionsWithAClockThatWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.restart(false)
		h, a := w.c.Handler(w.feed), w.object("a", "u1")
		h.OnAdd(a, false)
		for _, skew := range []time.Duration{0, time.Hour, time.Hour, 0, 0, 600 * time.Millisecond, 0, -time.Minute, 0} {
			w.c.Flush()
			time.Sleep(500 * time.Millisecond)
			w.skew.Store(int64(skew))
			next := w.object("a", "u1")
			h.OnUpdate(a, next)
			a = next
		}
		w.c.Flush()
		w.skew.Store(0)
		time.Sleep(2 * time.Hour)
		all, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 100})
		w.must(err)
		if len(all.Items) != 10 {
			t.Fatalf("got %+v", all.Items)
		}
		for i, v := range all.Items {
			until, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), To: v.Time, Limit: 100})
			w.must(err)
			state, err := w.r.At(t.Context(), pod("a"), v.Time)
			w.must(err)
			if len(until.Items) == 0 || until.Items[0].Sequence != state.Sequence || len(until.Items) < len(all.Items)-i {
				t.Errorf("until version %d, at %v, with the state of record %d: got %+v", i, v.Time, state.Sequence, until.Items)
			}
			since, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), From: v.Time.Add(1), Limit: 100})
			w.must(err)
			if len(since.Items)+len(until.Items) != len(all.Items) {
				t.Errorf("%d versions until %v and %d since then, of %d", len(until.Items), v.Time, len(since.Items), len(all.Items))
			}
			var paged []Version
			for q := (VersionQuery{Object: pod("a"), To: v.Time, Limit: 2}); ; {
				page, err := w.r.Versions(t.Context(), q)
				w.must(err)
				paged = append(paged, page.Items...)
				if q.Continue = page.Continue; q.Continue == "" {
					break
				}
			}
			if !slices.Equal(paged, until.Items) {
				t.Errorf("until %v in pages: got %+v, want %+v", v.Time, paged, until.Items)
			}
			for _, of := range all.Items { // pages of longer periods end with them
				page, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), To: v.Time, Limit: 100, Continue: token(of.Sequence)})
				if later := slices.ContainsFunc(page.Items, func(v Version) bool { return !slices.Contains(until.Items, v) }); later || !slices.Contains(until.Items, of) && !errors.Is(err, ErrContinue) {
					t.Errorf("until %v behind %d: got %+v %v", v.Time, of.Sequence, page.Items, err)
				}
			}
		}
	})
}

// The last change is compared with the one before it, whatever the clock showed.
func TestLastChangeWithAClockThatWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.restart(false)
		h, a := w.c.Handler(w.feed), w.object("a", "u1")
		h.OnAdd(a, false)
		w.c.Flush()
		for _, skew := range []time.Duration{0, time.Hour, 0, 0, 600 * time.Millisecond, 0, -time.Minute, 0} {
			time.Sleep(500 * time.Millisecond)
			w.skew.Store(int64(skew))
			next := w.object("a", "u1")
			h.OnUpdate(a, next)
			a = next
			w.c.Flush()
			all, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 2})
			w.must(err)
			d, err := w.r.Diff(t.Context(), pod("a"), time.Time{}, w.now())
			w.must(err)
			if d.From.As != Exact || d.From.Sequence != all.Items[1].Sequence || d.To.As != Exact || d.To.Sequence != all.Items[0].Sequence {
				t.Errorf("the difference is from %+v to %+v, want that of %+v", d.From, d.To, all.Items)
			}
		}
	})
}

// What was before the first version does not become exact when the clock is set back.
func TestBeforeTheFirstVersionWithAClockThatWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, time.Second)
		defer w.end()
		w.step()
		w.c.Flush()
		w.trim(w.st.LogStats().Last)
		h, a := w.c.Handler(w.feed), w.object("a", "u1")
		h.OnAdd(a, false)
		w.c.Flush()
		for range 2 {
			v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("a"), Limit: 10})
			w.must(err)
			if v.Before != UnknownBefore {
				t.Errorf("before %+v: %s", v.Items, v.Before)
			}
			w.skew.Store(int64(-time.Minute))
			h.OnUpdate(a, w.object("a", "u1"))
			w.c.Flush()
		}
	})
}

// A question of a client that has gone away ends, also where nothing is found.
func TestNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.updates(10, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		none := Filter{Manager: "nobody", Types: []event.Type{event.Gap}}
		for what, ask := range map[string]func() error{
			"a page":         func() error { _, err := w.r.Query(ctx, Query{Filter: none, Limit: 1}); return err },
			"its pages back": func() error { _, err := w.r.Query(ctx, Query{Filter: none, Limit: 1, Oldest: true}); return err },
			"counts":         func() error { _, err := w.r.Histogram(ctx, none, 1); return err },
			"changes": func() error {
				_, err := w.r.Changes(ctx, Filter{Namespace: "none", From: w.begun().Add(-30 * 365 * 24 * time.Hour)}, false)
				return err
			},
		} {
			if err := ask(); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// The future has no complete answer.
func TestPeriodOfTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.updates(10, time.Minute)
		f := Filter{From: w.now().Add(time.Hour), To: w.now().Add(2 * time.Hour)}
		p, err := w.r.Query(t.Context(), Query{Filter: f, Limit: 10})
		w.must(err)
		h, err := w.r.Histogram(t.Context(), f, 10)
		w.must(err)
		c, err := w.r.Changes(t.Context(), f, false)
		w.must(err)
		if p.Complete || h.Complete || c.Complete {
			t.Errorf("complete: a page %t, counts %t, changes %t", p.Complete, h.Complete, c.Complete)
		}
		f.To = w.now()
		f.From = f.To
		if c, err = w.r.Changes(t.Context(), f, false); err != nil || !c.Complete {
			t.Errorf("of now: %+v %v", c.Span, err)
		}
	})
}

// leaves has the reader go away when headlines have been read for the n-th time.
type leaves struct {
	passing
	after int
	leave func()
	more  int // times that it went on
}

func (s *leaves) ScanHeadlines(from, to uint64, newestFirst bool, f func(blocks []byte) error) error {
	return s.passing.ScanHeadlines(from, to, newestFirst, func(blocks []byte) error {
		if s.after--; s.after == 0 {
			s.leave()
		}
		err := f(blocks)
		if s.after <= 0 && err == nil {
			s.more++
		}
		return err
	})
}

// The log is not read on for a reader that has gone away, whatever it asked for.
func TestReaderGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.updates(5, time.Minute)
		at := w.now()
		w.updates(5, time.Minute)
		_, err := w.r.WorthAt(pods, "", at) // what is read once is
		w.must(err)
		for name, ask := range map[string]func(ctx context.Context) error{
			"a list": func(ctx context.Context) error {
				_, err := w.r.ListAt(ctx, Objects{Resource: pods}, at, "", 10)
				return err
			},
			"an object that is not there": func(ctx context.Context) error { _, err := w.r.At(ctx, pod("none"), at); return err },
			"versions": func(ctx context.Context) error {
				_, err := w.r.Versions(ctx, VersionQuery{Object: pod("a"), To: at, Limit: 10})
				return err
			},
			"changes": func(ctx context.Context) error { _, err := w.r.Changes(ctx, Filter{From: at}, false); return err },
		} {
			left := 0
			for n := 1; ; n++ {
				ctx, leave := context.WithCancel(t.Context())
				s := &leaves{passing: passing{w.st}, after: n, leave: leave}
				w.r.store = s
				err := ask(ctx)
				leave()
				if s.after > 0 {
					w.must(err)
					break
				}
				if left++; !errors.Is(err, context.Canceled) || s.more > 0 {
					t.Errorf("%s, block %d: %d were read on, error %v", name, n, s.more, err)
				}
			}
			if left == 0 {
				t.Errorf("%s reads no headlines", name)
			}
		}
	})
}
