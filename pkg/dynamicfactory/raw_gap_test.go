package dynamicfactory_test

import (
	"net/http"
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
