package dynamicfactory_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// A warm start may ask for a list at its version, in place of its own objects: the
// informer begins with what there was then, and the watch brings what came since.
func TestFirstListAtAnExactVersion(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, numbered(700)...)
		at := s.Version()
		s.Delete(configMapPath, "ns", "cm-00000")
		put(s, "cm-00001", "new")
		j, sub := subscribe(t, factory(t, s), configMapKey, remember(&dynamicfactory.WarmStart{ResourceVersion: at, Relist: true}, dynamicfactory.DurableOptions{
			OnGap: func(g dynamicfactory.Gap) { t.Errorf("a gap: %v", g) },
		}))
		told := j.take()
		is(t, "listed", strings.Count(strings.Join(told, ","), "initial"), 700)
		is(t, "since then", strings.Join(told[700:], ","), "delete cm-00000,update cm-00001,add new")
		requests := s.Requests("configmaps", false)
		is(t, "pages", len(requests), 2)
		is(t, "asked for", requests[0].Query["resourceVersion"]+requests[0].Query["resourceVersionMatch"], at+"Exact")
		is(t, "watched from", s.Requests("configmaps", true)[0].Query["resourceVersion"], at)
		is(t, "checkpoint of the list", sub.Checkpoint(1), at)
		is(t, "relists", sub.Status().Relists, 0)
	})
}

// withoutExactLists has a server ignore that a list is to be of one version.
func withoutExactLists(_ http.ResponseWriter, r *http.Request) bool {
	q := r.URL.Query()
	q.Del("resourceVersionMatch")
	r.URL.RawQuery = q.Encode()
	return false
}

// A version that the server does not have gives a list of now, and a gap from there.
func TestFirstListAtAVersionThatIsGone(t *testing.T) {
	for _, tc := range []struct {
		how   string
		spoil func(s *apitest.Server, backup apitest.Saved)
		gap   string
	}{
		{"compacted", func(s *apitest.Server, _ apitest.Saved) { s.Compact() }, "expired 103 104"},
		{"rolled back", func(s *apitest.Server, backup apitest.Saved) { s.Restore(backup) }, "rollback 103 102"},
		{"no version of the server", func(s *apitest.Server, _ apitest.Saved) {
			s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("resourceVersionMatch") == "" {
					return false
				}
				apitest.Fail(w, http.StatusBadRequest, "BadRequest")
				return true
			})
		}, "expired 103 104"},
		{"no exact lists", func(s *apitest.Server, _ apitest.Saved) {
			s.Intercept(withoutExactLists)
		}, "expired 103 104"},
	} {
		t.Run(tc.how, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a", "b")
				backup := s.Save()
				put(s, "c")
				snap := &dynamicfactory.WarmStart{ResourceVersion: s.Version(), Time: time.Now(), Relist: true}
				s.Delete(configMapPath, "ns", "c")
				tc.spoil(s, backup)
				var gaps []string
				j, sub := subscribe(t, factory(t, s), configMapKey, remember(snap, dynamicfactory.DurableOptions{
					OnGap: func(g dynamicfactory.Gap) {
						gaps = append(gaps, fmt.Sprint(g.Cause, " ", g.From, " ", g.To))
						is(t, "known until", g.FromTime, snap.Time)
					},
				}))
				time.Sleep(time.Minute)
				synctest.Wait()
				j.expect(t, "initial a", "initial b")
				is(t, "gaps", strings.Join(gaps, ","), tc.gap)
				is(t, "state", sub.Status().State, dynamicfactory.StateWatching)
			})
		})
	}
}
