package dynamicfactory_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// gapsOf collects what OnGap is told.
func gapsOf(gaps *[]string, o dynamicfactory.DurableOptions) dynamicfactory.DurableOptions {
	o.OnGap = func(g dynamicfactory.Gap) {
		*gaps = append(*gaps, fmt.Sprintf("%s %s/%s %s-%s", g.Cause, g.Namespace, g.Name, g.From, g.To))
	}
	return o
}

// One object that cannot be read does not keep its resource from being listed: what
// is known of it stays as it is, it is reported once, and nothing counts as deleted.
func TestListWithAnUnreadableObject(t *testing.T) {
	for _, bad := range []string{"a", "b", "c"} {
		t.Run(bad, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a", "b", "c")
				var broken atomic.Bool
				s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if !broken.Load() || !isList(r) {
						return false
					}
					var items []string
					for _, name := range []string{"a", "b", "c", "d"} {
						fields := `"resourceVersion":"299"`
						if name == bad || name == "d" {
							fields += `,"creationTimestamp":"yesterday"`
						}
						items = append(items, fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"ns","uid":"u",%s}}`, name, fields))
					}
					_, _ = fmt.Fprintf(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"300"},"items":[%s]}`, strings.Join(items, ","))
					return true
				})
				var gaps []string
				j, sub := subscribe(t, factory(t, s), configMapKey, gapsOf(&gaps, dynamicfactory.DurableOptions{}))
				known := j.objects[bad].GetResourceVersion()
				j.take()
				broken.Store(true)
				s.Advance(197)
				s.Compact()
				s.Cut()
				time.Sleep(time.Minute)
				synctest.Wait()
				told := strings.Join(j.take(), ",")
				if strings.Contains(told, "delete") || strings.Contains(told, " d") || strings.Count(told, "update") < 2 {
					t.Errorf("the handler was told %s", told)
				}
				is(t, "what is known", j.objects[bad].GetResourceVersion(), known)
				is(t, "checkpoint of the list", sub.Checkpoint(j.seen()), "300")
				is(t, "gaps", strings.Join(gaps, ", "), fmt.Sprintf("unreadable ns/%s %s-299, unreadable ns/d -299, expired / 103-300", bad, known))
				is(t, "skipped", sub.Status().Skipped, 2)
				gaps = nil
				sub.Relist("doubt")
				time.Sleep(time.Minute)
				synctest.Wait()
				is(t, "gaps of another list", strings.Join(gaps, ", "), "doubt / 300-300")
				broken.Store(false)
				put(s, bad)
				synctest.Wait()
				is(t, "told at last", strings.Contains(strings.Join(j.take(), ","), "update "+bad), true)
			})
		})
	}
}

// An event of which no object can be made is skipped. A deletion
// is handed on with the object that is known.
func TestEventOfAnUnreadableObject(t *testing.T) {
	for _, typ := range []string{"ADDED", "MODIFIED", "DELETED"} {
		t.Run(typ, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a", "b")
				var gaps []string
				j, sub := subscribe(t, factory(t, s), configMapKey, gapsOf(&gaps, dynamicfactory.DurableOptions{}))
				j.expect(t, "initial a", "initial b")
				s.Advance(1)
				s.Inject(configMapPath, typ, `{"metadata":{"name":"b","namespace":"ns","uid":"u","resourceVersion":"103","creationTimestamp":"yesterday"}}`)
				put(s, "c")
				time.Sleep(time.Minute)
				synctest.Wait()
				if typ == "DELETED" {
					j.expect(t, "delete b", "add c")
				} else {
					j.expect(t, "add c")
				}
				is(t, "gaps", strings.Join(gaps, ", "), "unreadable ns/b 102-103")
				is(t, "lists", lists(s), 1)
				st := sub.Status()
				is(t, "unreadable", st.DecodeErrors, 1)
				is(t, "skipped", st.Skipped, 1)
				put(s, "d")
				s.Bookmark()
				synctest.Wait()
				j.expect(t, "add d")
				is(t, "checkpoint", sub.Checkpoint(j.seen()), s.Version())
			})
		})
	}
}

// A Role has a name of any length, and its writer makes as many as the API server takes: those of which no object can be made hold up no
// other one.
func TestEventsOfUnreadableObjects(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		var gaps []string
		j, sub := subscribe(t, factory(t, s), configMapKey, gapsOf(&gaps, dynamicfactory.DurableOptions{}))
		const objects = 20
		for i := range objects {
			s.Advance(1)
			s.Inject(configMapPath, "ADDED", fmt.Sprintf(`{"metadata":{"name":"%s%d","namespace":"ns","uid":"u","resourceVersion":%q}}`, strings.Repeat("x", 1<<17), i, s.Version()))
		}
		put(s, "c")
		synctest.Wait()
		j.expect(t, "add c")
		slices.Sort(gaps)
		is(t, "gaps", len(slices.Compact(gaps)), objects)
		if size := len(strings.Join(gaps, "")); size > objects*2<<10 {
			t.Errorf("the gaps have names of %d bytes", size)
		}
		is(t, "skipped", sub.Status().Skipped, objects)
		is(t, "lists", lists(s), 1)
	})
}

// Thousands of objects that cannot be read are each reported once, and not again by each list.
func TestListsWithManyUnreadableObjects(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		const objects = 3000
		var list strings.Builder
		for i := range objects {
			fmt.Fprintf(&list, `,{"metadata":{"name":"n%d","namespace":"ns","uid":"u%d","resourceVersion":"99","creationTimestamp":"yesterday"}}`, i, i)
		}
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !isList(r) {
				return false
			}
			_, _ = fmt.Fprintf(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"100"},"items":[%s]}`, list.String()[1:])
			return true
		})
		var gaps []string
		_, sub := subscribe(t, factory(t, s), configMapKey, gapsOf(&gaps, dynamicfactory.DurableOptions{}))
		is(t, "gaps", len(gaps), objects)
		gaps = nil
		sub.Relist("doubt")
		time.Sleep(time.Minute)
		synctest.Wait()
		is(t, "gaps of another list", strings.Join(gaps, ", "), "doubt / 100-100")
		version, ok := sub.Skipped("ns", "n0")
		is(t, "skipped", fmt.Sprint(version, ok), "99true")
	})
}

// A watch that is paused for long says so while its history still lasts.
func TestPausedWatchSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, sub := subscribe(t, factory(t, s), configMapKey, window(1))
		is(t, "not paused", sub.Status().PausedSince.IsZero(), true)
		put(s, "a", "b")
		synctest.Wait()
		since := time.Now()
		time.Sleep(time.Minute)
		synctest.Wait()
		is(t, "paused since", sub.Status().PausedSince, since)
		sub.Ack(j.seen())
		synctest.Wait()
		is(t, "paused at last", sub.Status().PausedSince.IsZero(), true)
	})
}

// A source that gets no bookmarks keeps its version fresh while nothing happens, so
// that a restart after a quiet time finds its history.
func TestQuietSourceWithoutBookmarks(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		j, sub := subscribe(t, factory(t, s), configMapKey)
		for range 60 {
			s.Advance(10)
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		behind := func() int {
			var now, then int
			_, _ = fmt.Sscan(s.Version(), &now)
			_, _ = fmt.Sscan(cmp.Or(sub.Quiet(j.seen()), sub.Checkpoint(j.seen())), &then)
			return now - then
		}
		if behind() > 30 {
			t.Errorf("the version is %d behind", behind())
		}
		is(t, "checkpoint", sub.Checkpoint(j.seen()), "101")
		asked := len(s.Requests("configmaps", false)) - 1
		if asked < 20 || asked > 60 {
			t.Errorf("asked for the version %d times in an hour", asked)
		}
		put(s, "b")
		synctest.Wait()
		j.expect(t, "initial a", "add b")
		if older := behind(); older > 31 {
			t.Errorf("after an event, the checkpoint is %d versions behind", older)
		}
		is(t, "quiet after an event", sub.Quiet(j.seen()), "")
		is(t, "relists", sub.Status().Relists, 0)
		for range 60 {
			s.Advance(1)
			s.Bookmark()
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		is(t, "asked of one that gets bookmarks", len(s.Requests("configmaps", false))-1, asked)
	})
}

// An answer counts only if the watch brings nothing for some time after it: the server may
// hold back events of an object that came and went.
func TestQuietSourceThatIsBehind(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		j, sub := subscribe(t, factory(t, s), configMapKey)
		s.Advance(10)
		for range 300 {
			if time.Sleep(time.Second); len(s.Requests("configmaps", false)) > 1 {
				break // it has asked for the version
			}
		}
		time.Sleep(20 * time.Second)
		is(t, "checkpoint after the answer", sub.Checkpoint(j.seen()), "101")
		s.Send(configMapPath, `{"type":"ADDED","object":{"metadata":{"name":"b","namespace":"ns","uid":"u","resourceVersion":"105"}}}`)
		s.Send(configMapPath, `{"type":"DELETED","object":{"metadata":{"name":"b","namespace":"ns","uid":"u","resourceVersion":"106"}}}`)
		time.Sleep(time.Minute)
		j.expect(t, "initial a", "add b", "delete b")
		is(t, "checkpoint after the events", sub.Checkpoint(j.seen()), "105")
	})
}

// Another cluster answers at the address of the API server, while the connection of the watch is not
// broken: the version of its list, which is as empty as the watched resource, is not one to resume from.
func TestQuietSourceBesideAForeignCluster(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, sub := subscribe(t, factory(t, s, dynamicfactory.WithClusterCheck(func(context.Context, string) error { return nil })), configMapKey)
		time.Sleep(time.Minute)
		s.SetUID("cluster-2")
		s.Advance(100)
		time.Sleep(10 * time.Minute)
		is(t, "quiet", sub.Quiet(j.seen()), "")
		is(t, "state", sub.Status().State, dynamicfactory.StateForeign)
		s.SetUID("cluster-1")
		time.Sleep(10 * time.Minute)
		is(t, "quiet of the cluster", sub.Quiet(j.seen()), s.Version())
	})
}

// A server that sends nothing but whole objects, as aggregated API servers without bookmarks
// may, is asked for its version all the same.
func TestQuietSourceWithoutMetadata(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			for accept := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
				if accept == "application/json" {
					return false
				}
			}
			apitest.Fail(w, http.StatusNotAcceptable, "NotAcceptable")
			return true
		})
		put(s, "a", "b")
		j, sub := subscribe(t, factory(t, s), configMapKey)
		s.Advance(10)
		time.Sleep(10 * time.Minute)
		is(t, "quiet", sub.Quiet(j.seen()), s.Version())
		var found []string
		_, err := sub.ListMetadata(t.Context(), "", func() {}, func(m *rawjson.Meta) error {
			found = append(found, string(m.Name)+" "+string(m.ResourceVersion))
			return nil
		})
		is(t, "listed", fmt.Sprint(found, err), "[a 101 b 102] <nil>")
	})
}

// An object that came and went while a server held back what watches are to bring is in no
// list. The events are read when the watch, or a restart, comes to them.
func TestQuietSourceOfAStalledWatchMissesNothing(t *testing.T) {
	for _, tc := range []struct {
		name    string
		restart bool
		expired bool // the history is gone when it restarts
		want    []string
	}{
		{"the watch", false, false, []string{"initial a", "add b", "delete b", "add c"}},
		{"a restart", true, false, []string{"initial a", "add b", "delete b", "add c"}},
		{"a restart without the history", true, true, []string{"initial a", "add c"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a")
				f := factory(t, s)
				j, sub := subscribe(t, f, configMapKey)
				s.Stall(true)
				put(s, "b")
				s.Delete(configMapPath, "ns", "b")
				s.Advance(10)
				time.Sleep(20 * time.Minute)
				is(t, "checkpoint", sub.Checkpoint(j.seen()), "101")
				is(t, "quiet", sub.Quiet(j.seen()), s.Version())
				if tc.restart {
					snap := warmStartOf(sub.Checkpoint(j.seen()), j.objects)
					snap.Quiet = sub.Quiet(j.seen())
					sub.Close()
					if tc.expired {
						s.Compact()
					}
					j, sub = subscribe(t, f, configMapKey, remember(snap, dynamicfactory.DurableOptions{
						OnGap: func(g dynamicfactory.Gap) { t.Errorf("a gap: %v", g) },
					}))
				}
				s.Stall(false)
				put(s, "c")
				synctest.Wait()
				j.expect(t, tc.want...)
				is(t, "quiet after events", sub.Quiet(j.seen()), "")
			})
		})
	}
}

// A server that answers lists while it holds back what watches are to bring: the answer
// does not count, or a restart would resume behind the events.
func TestQuietSourceOfAStalledWatch(t *testing.T) {
	for _, tc := range []struct{ name, written, want string }{
		{"as many objects as before", "a", "update a"},
		{"one more", "b", "add b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a")
				j, sub := subscribe(t, factory(t, s), configMapKey)
				time.Sleep(time.Minute)
				before := sub.Checkpoint(j.seen())
				s.Stall(true)
				put(s, tc.written)
				time.Sleep(20 * time.Minute)
				is(t, "checkpoint during the stall", sub.Checkpoint(j.seen()), before)
				s.Stall(false)
				synctest.Wait()
				j.expect(t, "initial a", tc.want)
			})
		})
	}
}

// A dictionary that cannot be saved is no fault of the objects: none is left out.
func TestDictionaryCannotBeSaved(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		for _, name := range numbered(200) {
			s.Put(configMapPath, "ns", name, map[string]any{"data": map[string]any{"x": strings.Repeat("y", 4000)}})
		}
		var full atomic.Bool
		full.Store(true)
		var gaps []string
		j, sub := subscribe(t, factory(t, s), configMapKey, gapsOf(&gaps, dynamicfactory.DurableOptions{
			Codec: compact.NewCodec(compact.NewDictionaries(func(uint32, []byte) error {
				if full.Load() {
					return errors.New("no space left")
				}
				return nil
			})),
		}))
		time.Sleep(time.Minute)
		synctest.Wait()
		is(t, "told", len(j.take()), 0)
		is(t, "skipped", sub.Status().Skipped, 0)
		full.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		is(t, "told", len(j.take()), 200)
		is(t, "gaps", len(gaps), 0)
	})
}
