package dynamicfactory_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// A quiet watch on a healthy server is left alone.
func TestQuietWatchIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		_, sub := subscribe(t, factory(t, s), configMapKey)
		time.Sleep(4 * time.Minute)
		is(t, "watches", watches(s), 1)
		is(t, "lists", lists(s), 1)
		is(t, "probes", len(s.Requests("namespaces", false)), 1)
		if quiet := time.Since(sub.Status().LastContact); quiet > 2*time.Minute {
			t.Errorf("last contact %v ago", quiet)
		}
	})
}

// Watches that bring no bookmarks are asked for with a longer timeout.
func TestWatchesWithoutBookmarksLastLonger(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		subscribe(t, factory(t, s), configMapKey)
		time.Sleep(2 * time.Hour)
		if n := watches(s); n < 3 || n > 6 {
			t.Errorf("%d watches in two hours", n)
		}
		is(t, "lists", lists(s), 1)
	})
}

// A watch that has had bookmarks and has none any more is replaced.
func TestWatchFallsSilent(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, sub := subscribe(t, factory(t, s), configMapKey)
		s.Bookmark()
		time.Sleep(4 * time.Minute)
		is(t, "watches", watches(s), 2)
		is(t, "lists", lists(s), 1)
		put(s, "a")
		synctest.Wait()
		j.expect(t, "add a")
		is(t, "state", sub.Status().State, dynamicfactory.StateWatching)
	})
}

// A server that no longer answers is found out although the connection stands.
func TestSilentServer(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		_, sub := subscribe(t, factory(t, s), configMapKey)
		var dead atomic.Bool
		dead.Store(true)
		s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
			if dead.Load() {
				<-r.Context().Done()
			}
			return false
		})
		time.Sleep(10 * time.Minute)
		st := sub.Status()
		is(t, "state", st.State, dynamicfactory.StateBackingOff)
		dead.Store(false)
		time.Sleep(2 * time.Minute)
		is(t, "state at last", sub.Status().State, dynamicfactory.StateWatching)
		is(t, "lists", lists(s), 1)
	})
}

// A watch at a version that the server does not have yet brings nothing for ever.
// That is found out although the connection was never lost.
func TestRollbackUnderAStandingWatch(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		backup := s.Save()
		put(s, "b", "c")
		var gaps []string
		j, _ := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{
			OnGap: func(g dynamicfactory.Gap) { gaps = append(gaps, g.Cause) },
		})
		j.expect(t, "initial a", "initial b", "initial c")
		s.Restore(backup)
		time.Sleep(5 * time.Minute)
		told := strings.Join(j.take(), ",")
		if told != "delete? b,delete? c,update a" && told != "delete? c,delete? b,update a" {
			t.Errorf("the handler was told %s", told)
		}
		is(t, "gaps", strings.Join(gaps, ","), "rollback")
	})
}

// A server that does not end a watch when it should is not waited for.
func TestWatchDoesNotEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") == "" {
				return false
			}
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		})
		subscribe(t, factory(t, s), configMapKey)
		time.Sleep(11 * time.Minute)
		is(t, "watches", watches(s), 2)
		is(t, "lists", lists(s), 1)
	})
}
