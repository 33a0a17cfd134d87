package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestKilledWhilePutBack ends the process while a sink is put back whose route was not there
// all the time: the gap is reported once, and after all that it misses.
func TestKilledWhilePutBack(t *testing.T) {
	absent := []route.Spec{leadTo("some", `metadata.name != "w"`, "b")}
	with := []route.Spec{leadTo("some", `metadata.name != "w"`, "a", "b"), leadTo("mine", "true", "a")}
	for name, killed := range map[string]func(l *life, st *plan.State, d desired) error{
		"before the fill": func(*life, *plan.State, desired) error { return nil },
		"in the fill": func(l *life, st *plan.State, _ desired) error {
			_, err := l.Store.Fill(l.Context(), "a", sinceLeft(st, "a"))
			l.put("w", "3")
			return err
		},
		"after the gap": func(l *life, st *plan.State, d desired) error {
			_, err := l.Store.Fill(l.Context(), "a", sinceLeft(st, "a"))
			if err == nil {
				err = l.m.reportAbsences(st, d)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			t.Run("killed", func(t *testing.T) {
				l := lifeOn(t, "store", store.Options{FS: fs}, allServed)
				l.apply(with)
				l.put("v", "1")
				l.apply(absent)
				l.put("u", "2")
				st := l.state(with)
				if err := l.m.makeQueues(st, plan.Diff(l.m.currentState(), st)); err != nil {
					t.Fatal(err)
				}
				d, err := l.m.desire(st)
				if err == nil {
					err = killed(l, st, d)
				}
				if err != nil {
					t.Fatal(err)
				}
			})
			t.Run("again", func(t *testing.T) {
				l := lifeOn(t, "store", store.Options{FS: fs}, allServed)
				l.apply(with)
				l.put("x", "5")
				if got, want := strings.Join(l.queued("a"), ", "), "added v 1, added u 2, gap removed, added x 5"; got != want {
					t.Errorf("the sink gets\n%s, want\n%s", got, want)
				}
			})
		})
	}
}

// TestPutBackWithoutTheAPIServer puts a sink back at a start that finds no API server, and
// ends before there is one: it has its gap all the same, once.
func TestPutBackWithoutTheAPIServer(t *testing.T) {
	absent := []route.Spec{leadTo("some", `metadata.name != "w"`, "b")}
	with := []route.Spec{leadTo("some", `metadata.name != "w"`, "a", "b"), leadTo("mine", "true", "a")}
	fs := vfs.NewMem()
	live := func(name string, resolver Resolver, do func(l *life)) {
		t.Run(name, func(t *testing.T) { do(lifeOn(t, "store", store.Options{FS: fs}, resolver)) })
	}
	live("left", allServed, func(l *life) {
		l.apply(with)
		l.put("v", "1")
		l.apply(absent)
		l.put("u", "2")
	})
	live("back", unknown{}, func(l *life) { l.apply(with) })
	live("later", allServed, func(l *life) {
		l.apply(with)
		l.put("x", "5")
		if got, want := strings.Join(l.queued("a"), ", "), "added v 1, added u 2, gap removed, added x 5"; got != want {
			t.Errorf("the sink gets\n%s, want\n%s", got, want)
		}
	})
}

// TestPutBackBesideNamespaces puts a sink back whose watch reads namespaces one by one, with
// and without the API server: each of its gaps is reported once.
func TestPutBackBesideNamespaces(t *testing.T) {
	absent := []route.Spec{leadTo("some", `metadata.name != "w"`, "b")}
	with := []route.Spec{leadTo("some", `metadata.name != "w"`, "a", "b"), leadTo("mine", "true", "a")}
	for name, tc := range map[string]struct {
		served Resolver
		want   string
	}{"known": {allServed, `["ns" "other"]`}, "not known": {unknown{}, `[""]`}} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			live := func(name string, served Resolver, do func(l *life, apply func([]route.Spec))) {
				t.Run(name, func(t *testing.T) {
					l := lifeOn(t, "store", store.Options{FS: fs}, served)
					do(l, func(routes []route.Spec) {
						st := l.state(routes)
						st.Watches[0].Namespaces = []string{"ns", "other"}
						if err := l.m.Apply(l.Context(), st); err != nil {
							l.Fatal(err)
						}
					})
				})
			}
			live("left", allServed, func(l *life, apply func([]route.Spec)) {
				apply(with)
				l.put("v", "1")
				apply(absent)
			})
			live("back", tc.served, func(l *life, apply func([]route.Spec)) {
				apply(with)
				var of []string
				for _, e := range l.given("a") {
					if e.Gap != nil {
						of = append(of, e.Namespace)
					}
				}
				if got := fmt.Sprintf("%q", of); got != tc.want {
					l.Errorf("gaps of the namespaces %s, want %s", got, tc.want)
				}
			})
		})
	}
}

// TestKilledAfterAPurge purges a sink that left and puts it back, and ends the process
// before that is done; the next configuration is without it. What was noted of the one that
// was purged is not reported to the new one.
func TestKilledAfterAPurge(t *testing.T) {
	absent := []route.Spec{leadTo("some", `metadata.name != "w"`, "b")}
	with := []route.Spec{leadTo("some", `metadata.name != "w"`, "a", "b"), leadTo("mine", "true", "a")}
	fs := vfs.NewMem()
	live := func(name string, do func(l *life)) {
		t.Run(name, func(t *testing.T) { do(lifeOn(t, "store", store.Options{FS: fs}, allServed)) })
	}
	live("killed", func(l *life) {
		l.apply(with)
		l.put("v", "1")
		l.apply(absent)
		if err := l.m.PurgeSink(l.Context(), "a"); err != nil {
			l.Fatal(err)
		}
		st := l.state(with)
		if err := l.m.makeQueues(st, plan.Diff(l.m.currentState(), st)); err != nil {
			l.Fatal(err)
		}
	})
	live("without it", func(l *life) {
		l.apply(absent)
		l.put("u", "2")
	})
	live("back", func(l *life) {
		l.apply(with)
		l.put("x", "5")
		if got, want := strings.Join(l.queued("a"), ", "), "added u 2, added x 5"; got != want {
			l.Errorf("the sink gets\n%s, want\n%s", got, want)
		}
	})
}

// throttled is a route that holds events for an hour.
func throttled(name string, sinks ...string) []route.Spec {
	spec := leadTo(name, "", sinks...)
	spec.Throttle = time.Hour
	return []route.Spec{spec}
}

// upkeep runs the store, which measures the disk, until stop is called.
func (l *life) upkeep() (stop func()) {
	ctx, cancel := context.WithCancel(l.Context())
	var upkeep sync.WaitGroup
	upkeep.Go(func() { _ = l.Store.Run(ctx) })
	return func() {
		cancel()
		upkeep.Wait()
	}
}

// full is apply with a bound of the disk that pauses ingest.
func (l *life) full(routes []route.Spec) {
	l.Helper()
	st := l.state(routes)
	st.Store.MinFree = noRoom
	if err := l.m.Apply(l.Context(), st); err != nil {
		l.Fatal(err)
	}
}

// TestPutBackBehindWhatIsHeld takes a sink out while the store is full, so that what a throttle holds for it is not
// released, and puts it back: it is given that before what was recorded meanwhile.
func TestPutBackBehindWhatIsHeld(t *testing.T) {
	l := newLife(t, t.TempDir())
	stop := l.upkeep()
	defer stop()
	l.apply(throttled("slow", "a", "b"))
	l.put("v", "1")
	l.put("v", "2")
	l.put("w", "3")
	l.put("w", "4")
	l.full(throttled("slow", "a", "b"))
	eventually(t, "the store is full", func() bool { return l.Store.Health().Paused })
	l.full(throttled("slow", "b"))
	l.put("v", "5")
	l.full(throttled("slow", "a", "b"))
	l.apply(throttled("other", "a", "b")) // what the former route holds is due
	want := "added v 1, added w 3, updated v 2, updated w 4, updated v 5"
	var got string
	eventually(t, "what was held is released", func() bool {
		got = strings.Join(l.queued("a"), ", ")
		return strings.Count(got, ",") == strings.Count(want, ",")
	})
	if got != want {
		t.Errorf("the sink gets\n%s, want\n%s", got, want)
	}
}

// TestPurgeEndsWhatIsHeld purges a sink while the store is full, so that what a throttle holds
// for it is not released, and puts it back. The new one is given nothing of the other's, and
// nothing is noted of that one.
func TestPurgeEndsWhatIsHeld(t *testing.T) {
	rows := func(l *life, of string) (n int) {
		l.Helper()
		if err := l.Store.ScanMeta("timer/row/"+of, func(string, []byte) error { n++; return nil }); err != nil {
			l.Fatal(err)
		}
		return n
	}
	dir := t.TempDir()
	live := func(name string, do func(l *life)) {
		t.Run(name, func(t *testing.T) { do(newLife(t, dir)) })
	}
	live("purged", func(l *life) {
		defer l.upkeep()()
		l.apply(throttled("slow", "a", "b"))
		l.put("v", "1")
		l.put("v", "2")
		l.full(throttled("slow", "a", "b"))
		eventually(l.T, "the store is full", func() bool { return l.Store.Health().Paused })
		l.full(throttled("slow", "b"))
		if n := rows(l, "slow/a/"); n == 0 {
			l.Fatal("nothing is held for the sink that left")
		}
		if err := l.m.PurgeSink(l.Context(), "a"); err != nil {
			l.Fatal(err)
		}
		if _, found, err := l.Store.Meta(leftMeta + "a"); found || err != nil {
			l.Errorf("the note of the purged sink stays: %t, %v", found, err)
		}
		l.full(throttled("slow", "a", "b"))
	})
	live("back", func(l *life) {
		l.apply(throttled("slow", "a", "b"))
		l.apply(throttled("other", "a", "b")) // what the former route holds is due
		eventually(l.T, "what was held is given to the other sink", func() bool {
			return rows(l, "slow/") == 0 && strings.Join(l.queued("b"), ", ") == "added v 1, updated v 2"
		})
		if got := l.queued("a"); len(got) > 0 {
			l.Errorf("the new sink gets %q of the purged one", got)
		}
	})
}

// TestKilledAfterTheGapOfAnAbsence ends the process when the gap of a sink that is put back is
// queued, and leaves the sink out of the next configuration: the gap of both absences is
// another event than that of the first one.
func TestKilledAfterTheGapOfAnAbsence(t *testing.T) {
	absent := []route.Spec{leadTo("some", `metadata.name != "w"`, "b")}
	with := []route.Spec{leadTo("some", `metadata.name != "w"`, "a", "b"), leadTo("mine", "true", "a")}
	fs := vfs.NewMem()
	at := time.Unix(1_800_000_000, 0)
	live := func(name string, do func(l *life)) {
		at = at.Add(time.Hour)
		now := at
		t.Run(name, func(t *testing.T) {
			do(lifeOn(t, "store", store.Options{FS: fs, Now: func() time.Time { return now }}, allServed))
		})
	}
	live("killed", func(l *life) {
		l.apply(with)
		l.put("v", "1")
		l.apply(absent)
		l.put("w", "2")
		st := l.state(with)
		if err := l.m.makeQueues(st, plan.Diff(l.m.currentState(), st)); err != nil {
			t.Fatal(err)
		}
		d, err := l.m.desire(st)
		if err == nil {
			_, err = l.Store.Fill(l.Context(), "a", sinceLeft(st, "a"))
		}
		if err == nil {
			err = l.m.reportAbsences(st, d)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	live("without it", func(l *life) {
		l.apply(absent)
		l.put("w", "3")
	})
	live("back", func(l *life) {
		l.apply(with)
		l.put("x", "5")
		gaps := slices.DeleteFunc(l.given("a"), func(e *event.Event) bool { return e.Gap == nil })
		if len(gaps) != 2 || !gaps[1].Gap.To.After(gaps[0].Gap.To) || gaps[0].ID == gaps[1].ID {
			for _, e := range gaps {
				l.Errorf("gap %s from %s to %s", e.ID, e.Gap.From, e.Gap.To)
			}
			l.Errorf("%d gaps, want two with ids of their own", len(gaps))
		}
	})
}
