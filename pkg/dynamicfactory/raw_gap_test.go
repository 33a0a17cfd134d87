package dynamicfactory_test

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// TestGapTimes has the server away for a while, and then without its history: the gap
// begins where the last event was seen, however often the server was asked since.
func TestGapTimes(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		var gaps []dynamicfactory.Gap
		f, o := factory(t, s), dynamicfactory.DurableOptions{
			OnGap: func(g dynamicfactory.Gap) { gaps = append(gaps, g) },
		}
		put(s, "a")
		j, sub := subscribe(t, f, configMapKey, o)
		time.Sleep(10 * time.Second)
		put(s, "b")
		synctest.Wait()
		known := time.Now()
		s.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
			apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
			return true
		})
		s.Cut()
		time.Sleep(24 * time.Second)
		s.Advance(100)
		s.Compact()
		back := time.Now()
		s.Intercept(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		is(t, "gaps", len(gaps), 1)
		g := gaps[0]
		if !g.FromTime.Equal(known) || g.ToTime.Before(back) {
			t.Errorf("the gap is from %v to %v, want from %v", g.FromTime, g.ToTime, known)
		}
		is(t, "position", g.Position, j.seen())
		sub.Close()
	})
}

// The events that the server has kept for a paused watch are old when they are read: a gap behind them
// begins before the pause.
func TestGapBehindAPausedWatch(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		var gaps []dynamicfactory.Gap
		j, sub := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{
			Window: 1, OnGap: func(g dynamicfactory.Gap) { gaps = append(gaps, g) },
		})
		put(s, "a")
		synctest.Wait()
		known := time.Now()
		time.Sleep(time.Second)
		put(s, "b")
		time.Sleep(10 * time.Minute)
		put(s, "c")
		s.Delete(configMapPath, "ns", "c")
		s.Compact()
		s.Cut()
		for range 10 {
			sub.Ack(j.seen())
			time.Sleep(time.Second)
		}
		synctest.Wait()
		is(t, "gaps", len(gaps), 1)
		if g := gaps[0]; !g.FromTime.Equal(known) {
			t.Errorf("the gap is from %v, want %v", g.FromTime, known)
		}
		time.Sleep(time.Minute) // what comes then is of the present again
		put(s, "d")
		synctest.Wait()
		known = time.Now()
		time.Sleep(time.Second)
		s.Advance(1)
		s.Compact()
		s.Cut()
		sub.Ack(j.seen())
		time.Sleep(time.Minute)
		synctest.Wait()
		is(t, "gaps", len(gaps), 2)
		if g := gaps[1]; !g.FromTime.Equal(known) {
			t.Errorf("the next gap is from %v, want %v", g.FromTime, known)
		}
	})
}

// A list of minutes has the state of its beginning: a gap behind it begins there.
func TestGapBehindALongList(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, numbered(3000)...)
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			switch {
			case isWatch(r):
				apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
				return true
			case r.URL.Query().Has("continue"):
				time.Sleep(time.Minute)
			}
			return false
		})
		var gaps []dynamicfactory.Gap
		known := time.Now()
		_, sub := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{
			OnGap: func(g dynamicfactory.Gap) { gaps = append(gaps, g) },
		})
		<-sub.Synced()
		s.Intercept(nil)
		put(s, "a")
		s.Delete(configMapPath, "ns", "a")
		s.Compact()
		time.Sleep(time.Minute)
		synctest.Wait()
		is(t, "gaps", len(gaps), 1)
		if g := gaps[0]; !g.FromTime.Equal(known) {
			t.Errorf("the gap is from %v, want %v", g.FromTime, known)
		}
	})
}

// TestGapBehindARestart has history lost while a watch still reads what happened before it was resumed: neither
// the gap nor the time that is recorded for the next restart says that this is of now.
func TestGapBehindARestart(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		f := factory(t, s)
		j, sub := subscribe(t, f, configMapKey)
		snap := warmStartOf(sub.Checkpoint(j.seen()), j.objects)
		snap.Time = time.Now()
		is(t, "known", sub.Known(j.seen()), snap.Time)
		sub.Close()
		for range 20 {
			time.Sleep(time.Minute)
			put(s, "a")
		}
		var gaps []dynamicfactory.Gap
		j, sub = subscribe(t, f, configMapKey, remember(snap, dynamicfactory.DurableOptions{
			Window: 1, OnGap: func(g dynamicfactory.Gap) { gaps = append(gaps, g) },
		}))
		for range 9 {
			sub.Ack(j.seen())
			synctest.Wait()
		}
		is(t, "checkpoint", sub.Checkpoint(j.seen()), "110")
		is(t, "known amid the events of before", sub.Known(j.seen()), snap.Time)
		s.Compact()
		s.Cut()
		for range 20 {
			sub.Ack(j.seen())
			time.Sleep(time.Second)
		}
		synctest.Wait()
		is(t, "gaps", len(gaps), 1)
		if g := gaps[0]; !g.FromTime.Equal(snap.Time) {
			t.Errorf("the gap is from %v, want %v", g.FromTime, snap.Time)
		}
		time.Sleep(time.Minute)
		s.Bookmark()
		synctest.Wait()
		is(t, "known", sub.Known(j.seen()), time.Now())
	})
}

// TestGapBehindAListOfThePast has history lost behind the list of a version of long ago, with which a start
// begins: the gap begins at the time of that version.
func TestGapBehindAListOfThePast(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		f := factory(t, s)
		j, sub := subscribe(t, f, configMapKey)
		snap := warmStartOf(sub.Checkpoint(j.seen()), j.objects)
		snap.Time, snap.Relist = time.Now(), true
		sub.Close()
		time.Sleep(20 * time.Minute)
		put(s, "b")
		s.Delete(configMapPath, "ns", "b")
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if isWatch(r) {
				apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
			}
			return isWatch(r)
		})
		var gaps []dynamicfactory.Gap
		j, sub = subscribe(t, f, configMapKey, remember(snap, dynamicfactory.DurableOptions{
			OnGap: func(g dynamicfactory.Gap) { gaps = append(gaps, g) },
		}))
		j.expect(t, "initial a")
		is(t, "known", sub.Known(j.seen()), snap.Time)
		s.Compact()
		s.Intercept(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		is(t, "gaps", len(gaps), 1)
		if g := gaps[0]; !g.FromTime.Equal(snap.Time) {
			t.Errorf("the gap is from %v, want %v", g.FromTime, snap.Time)
		}
	})
}

// TestTimeOfTheQuietVersion has a watch without bookmarks fail behind a quiet time: what is recorded for the
// next restart is of a list that showed no change, however late it is recorded.
func TestTimeOfTheQuietVersion(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		j, sub := subscribe(t, factory(t, s), configMapKey)
		s.Advance(10)
		var listed []time.Time
		s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == configMapPath && !isWatch(r) {
				listed = append(listed, time.Now())
			}
			return false
		})
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		is(t, "quiet", sub.Quiet(j.seen()), s.Version())
		known := sub.Known(j.seen())
		if !slices.ContainsFunc(listed, known.Equal) {
			t.Errorf("known up to %v, want one of %v", known, listed)
		}
		s.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
			apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
			return true
		})
		s.Cut()
		time.Sleep(10 * time.Minute)
		is(t, "known", sub.Known(j.seen()), known)
	})
}

// TestGapBehindAStall has a watch hold events back for minutes, and its history lost right after it has delivered
// them, or before: the gap does not begin with these events, nor when the server was asked meanwhile.
func TestGapBehindAStall(t *testing.T) {
	for name, released := range map[string]bool{"delivers": true, "stays": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				var gaps []dynamicfactory.Gap
				_, _ = subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{
					OnGap: func(g dynamicfactory.Gap) { gaps = append(gaps, g) },
				})
				put(s, "a")
				synctest.Wait()
				known := time.Now()
				s.Stall(true)
				time.Sleep(time.Second)
				put(s, "b")
				time.Sleep(20 * time.Minute)
				s.Stall(!released)
				synctest.Wait()
				s.Advance(1)
				s.Compact()
				s.Cut()
				time.Sleep(time.Minute)
				synctest.Wait()
				is(t, "gaps", len(gaps), 1)
				if g := gaps[0]; !g.FromTime.Equal(known) {
					t.Errorf("the gap is from %v, want %v", g.FromTime, known)
				}
			})
		})
	}
}
