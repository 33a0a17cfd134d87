package dynamicfactory_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// life is what an earlier run of the program has left: a warm start of what its
// informer had when it ended.
func life(t *testing.T, s *apitest.Server) *dynamicfactory.WarmStart {
	t.Helper()
	f := factory(t, s)
	j, sub := subscribe(t, f, configMapKey)
	s.Bookmark()
	synctest.Wait()
	snap := warmStartOf(sub.Checkpoint(j.seen()), j.objects)
	snap.Time = time.Now()
	sub.Close()
	return snap
}

// An informer that begins with a warm start asks for no list: it watches from the
// warm start's version, and is told what happened since.
func TestWarmStartNeedsNoList(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a", "b")
		snap := life(t, s)
		before := lists(s)
		put(s, "c")
		s.Delete(configMapPath, "ns", "a")
		time.Sleep(time.Hour) // whoever is away loses nothing while the history lasts

		f, o := factory(t, s), remember(snap, dynamicfactory.DurableOptions{
			OnGap: func(g dynamicfactory.Gap) { t.Errorf("a gap: %v", g) },
		})
		var subs []*dynamicfactory.DurableSubscription
		var journals []*journal
		for range 20 {
			j, sub := subscribe(t, f, configMapKey, o)
			journals, subs = append(journals, j), append(subs, sub)
		}
		for i, j := range journals {
			told := strings.Join(j.take(), ",")
			if !strings.HasSuffix(told, "add c,delete a") || strings.Count(told, "initial") != 2 {
				t.Errorf("informer %d was told %s", i, told)
			}
			is(t, "checkpoint", subs[i].Checkpoint(j.seen()), "103")
			is(t, "relists", subs[i].Status().Relists, 0)
		}
		is(t, "lists", lists(s), before)
		if n := len(s.Requests("namespaces", false)); n != 1 {
			t.Errorf("20 informers asked the server %d times whether it is the same", n)
		}
		q := s.Requests("configmaps", true)[1].Query
		is(t, "watched from", q["resourceVersion"], snap.ResourceVersion)
	})
}

func TestEmptyWarmStart(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, sub := subscribe(t, factory(t, s), configMapKey, remember(&dynamicfactory.WarmStart{ResourceVersion: "100"}, dynamicfactory.DurableOptions{}))
		select {
		case <-sub.Synced():
		default:
			t.Error("not synced")
		}
		is(t, "checkpoint", sub.Checkpoint(0), "100")
		is(t, "lists", lists(s), 0)
		put(s, "a")
		synctest.Wait()
		j.expect(t, "add a")
	})
}

// When the history since the warm start is gone, a list shows exactly what became
// different.
func TestWarmStartIsTooOld(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a", "b", "c")
		snap := life(t, s)
		ended := time.Now()
		time.Sleep(time.Hour)
		put(s, "b", "d")
		s.Delete(configMapPath, "ns", "c")
		s.Compact()
		var gap dynamicfactory.Gap
		j, _ := subscribe(t, factory(t, s), configMapKey, remember(snap, dynamicfactory.DurableOptions{
			OnGap: func(g dynamicfactory.Gap) { gap = g },
		}))
		is(t, "known at first", len(j.take()), 3)
		time.Sleep(time.Minute)
		j.expect(t, "delete? c", "update a", "update b", "add d") // a's is the relist's: its version is the same
		is(t, "gap", fmt.Sprint(gap.Cause, gap.From, " ", gap.To, gap.FromTime.Equal(ended)), "expired103 106true")
	})
}

// The list that follows on a loss of history has nothing: no object carries its
// position, so a subscriber that knows of no object moves on by itself.
func TestEmptyListAfterObjects(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, sub := subscribe(t, factory(t, s), configMapKey)
		is(t, "list after the empty first one", nextList(sub, j.seen()), dynamicfactory.List{}) // nothing to acknowledge
		is(t, "checkpoint", sub.Checkpoint(j.seen()), s.Version())
		put(s, "a")
		synctest.Wait()
		is(t, "list after an event", nextList(sub, j.seen()), dynamicfactory.List{})

		s.Delete(configMapPath, "ns", "a")
		synctest.Wait()
		behind := sub.Checkpoint(j.seen())
		for range 2 { // the second list takes the place of the first
			s.Advance(10)
			s.Compact()
			s.Cut()
			time.Sleep(time.Minute)
			is(t, "checkpoint of the last event", sub.Checkpoint(j.seen()), behind)
			next := nextList(sub, j.seen())
			next.ResourceVersion = "" // that of the first one, while neither is acknowledged
			is(t, "list after the last event", next, dynamicfactory.List{End: j.seen() + 1, Last: true})
			is(t, "checkpoint of the list", sub.Checkpoint(next.End), s.Version())
			_, ok := sub.NextList(j.seen(), true)
			is(t, "list with objects", ok, false)
		}
		put(s, "b")
		synctest.Wait()
		is(t, "last after an event", nextList(sub, j.seen()-2).Last, false)
	})
}

func nextList(sub *dynamicfactory.DurableSubscription, position uint64) dynamicfactory.List {
	list, _ := sub.NextList(position, false)
	return list
}

// A server whose versions went back is not resumed from, at the start as little as
// after a lost connection: what is there now is compared with what was known.
func TestRollback(t *testing.T) {
	for _, when := range []string{"while stopped", "while running"} {
		t.Run(when, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a", "b")
				backup := s.Save()
				put(s, "a", "c")
				s.Delete(configMapPath, "ns", "b")
				var gaps []string
				opts := dynamicfactory.DurableOptions{
					OnGap: func(g dynamicfactory.Gap) {
						gaps = append(gaps, fmt.Sprint(g.Cause, g.From, " ", g.To))
					},
				}
				var j *journal
				if when == "while stopped" {
					snap := life(t, s)
					s.Restore(backup)
					j, _ = subscribe(t, factory(t, s), configMapKey, remember(snap, opts))
					is(t, "known at first", len(j.take()), 2)
				} else {
					j, _ = subscribe(t, factory(t, s), configMapKey, opts)
					j.expect(t, "initial a", "initial c")
					s.Cut()
					s.Restore(backup)
				}
				time.Sleep(time.Minute)
				j.expect(t, "delete? c", "update a", "add b")
				is(t, "gaps", strings.Join(gaps, ";"), "rollback105 102")
				put(s, "d")
				synctest.Wait()
				j.expect(t, "add d")
			})
		})
	}
}

// A server that goes away between two watches may come back as another one, too.
func TestRollbackBetweenWatches(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		backup := s.Save()
		put(s, "a")
		seconds := int64(10)
		j, _ := subscribe(t, factory(t, s, dynamicfactory.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.TimeoutSeconds = &seconds
		})), configMapKey)
		var away atomic.Bool
		away.Store(true)
		s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
			if away.Load() {
				panic(http.ErrAbortHandler)
			}
			return false
		})
		time.Sleep(time.Minute)
		s.Restore(backup)
		away.Store(false)
		time.Sleep(time.Minute)
		j.expect(t, "initial a", "delete? a")
	})
}

// A resource with a storage of its own, whose versions are ahead of the rest's, is
// no rollback.
func TestResourceWithItsOwnStorage(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "namespaces") {
				_, _ = w.Write([]byte(`{"kind":"NamespaceList","metadata":{"resourceVersion":"7"},"items":[]}`))
				return true
			}
			return false
		})
		j, sub := subscribe(t, factory(t, s), configMapKey)
		s.Cut()
		put(s, "a")
		time.Sleep(time.Minute)
		j.expect(t, "add a")
		is(t, "relists", sub.Status().Relists, 0)
	})
}

// Who may not list namespaces asks about the resource itself.
func TestProbeIsRefused(t *testing.T) {
	for _, rolledBack := range []bool{false, true} {
		t.Run(fmt.Sprint(rolledBack), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if strings.HasSuffix(r.URL.Path, "/namespaces") {
						apitest.Fail(w, http.StatusForbidden, "Forbidden")
						return true
					}
					return false
				})
				backup := s.Save()
				put(s, "a")
				j, sub := subscribe(t, factory(t, s), configMapKey)
				s.Cut()
				if rolledBack {
					s.Restore(backup)
				}
				time.Sleep(time.Minute)
				if rolledBack {
					j.expect(t, "initial a", "delete? a")
				} else {
					j.expect(t, "initial a")
				}
				is(t, "relists", sub.Status().Relists > 0, rolledBack)
			})
		})
	}
}

// One server of a group may be behind the others for a moment: an old version counts
// if it is given twice.
func TestServerIsBehindForAMoment(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		var asked atomic.Int64
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			q := r.URL.Query()
			if q.Get("limit") != "1" || strings.HasSuffix(r.URL.Path, "/configmaps") && asked.Add(1) > 1 {
				return false
			}
			_, _ = w.Write([]byte(`{"kind":"List","metadata":{"resourceVersion":"7"},"items":[]}`))
			return true
		})
		j, sub := subscribe(t, factory(t, s), configMapKey)
		s.Cut()
		put(s, "a")
		time.Sleep(time.Minute)
		j.expect(t, "add a")
		is(t, "relists", sub.Status().Relists, 0)
		is(t, "questions", asked.Load(), 2)
	})
}

// Versions that are not numbers are resumed on trust.
func TestVersionsThatAreNotNumbers(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/configmaps") && r.URL.Query().Get("watch") == "" {
				_, _ = w.Write([]byte(`{"kind":"ConfigMapList","metadata":{"resourceVersion":"zebra"},"items":[{"metadata":{"name":"a","resourceVersion":"yak"}}]}`))
				return true
			}
			return false
		})
		j, sub := subscribe(t, factory(t, s), configMapKey)
		s.Cut()
		time.Sleep(time.Minute)
		j.expect(t, "initial a")
		is(t, "checkpoint", sub.Checkpoint(j.seen()), "zebra")
		is(t, "watched from", s.Requests("configmaps", true)[1].Query["resourceVersion"], "zebra")
		is(t, "state", sub.Status().State, dynamicfactory.StateWatching)
	})
}

// Of a foreign cluster nothing is listed or resumed; the right one is taken up
// where it was.
func TestForeignClusterAtTheStart(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		snap := life(t, s)
		before := lists(s) + watches(s)
		s.SetUID("cluster-2")
		var asked atomic.Value
		f := factory(t, s, dynamicfactory.WithClusterCheck(func(_ context.Context, uid string) error {
			asked.Store(uid)
			if uid != "cluster-1" {
				return errors.New("not ours")
			}
			return nil
		}))
		j, sub := subscribe(t, f, configMapKey, remember(snap, dynamicfactory.DurableOptions{}))
		time.Sleep(time.Hour)
		j.expect(t)
		is(t, "asked about", asked.Load().(string), "cluster-2")
		st := sub.Status()
		is(t, "state", string(st.State)+" "+st.Reason, "foreign ForeignCluster")
		if !strings.Contains(st.Message, dynamicfactory.ErrForeignCluster.Error()) || !strings.Contains(st.Message, "not ours") {
			t.Errorf("message: %s", st.Message)
		}
		is(t, "requests for config maps", lists(s)+watches(s), before)
		s.SetUID("cluster-1")
		time.Sleep(time.Minute)
		j.expect(t, "initial a")
	})
}

func TestForeignClusterLater(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		j, sub := subscribe(t, factory(t, s, dynamicfactory.WithClusterCheck(func(context.Context, string) error { return nil })), configMapKey)
		s.SetUID("cluster-2")
		s.Cut()
		s.Delete(configMapPath, "ns", "a")
		s.Compact()
		time.Sleep(time.Hour)
		j.expect(t, "initial a")
		is(t, "state", sub.Status().State, dynamicfactory.StateForeign)
		is(t, "lists", lists(s), 1)
		s.SetUID("cluster-1")
		time.Sleep(2 * time.Minute)
		j.expect(t, "delete? a")
	})
}

// An API server whose storage was made anew serves requests before it has made kube-system. It is not
// that of the cluster, which had one.
func TestClusterWithoutKubeSystem(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		anew := s.Save()
		put(s, "a")
		j, sub := subscribe(t, factory(t, s, dynamicfactory.WithClusterCheck(func(context.Context, string) error { return nil })), configMapKey)
		var missing atomic.Bool
		missing.Store(true)
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool { return missing.Load() && noNamespaces(w, r) })
		s.Restore(anew)
		s.Cut()
		time.Sleep(time.Minute)
		j.expect(t, "initial a")
		is(t, "state", sub.Status().State, dynamicfactory.StateForeign)
		s.SetUID("cluster-2")
		missing.Store(false)
		time.Sleep(time.Minute)
		j.expect(t)
		is(t, "state", sub.Status().State, dynamicfactory.StateForeign)
	})
}

// TestRelistDuringAList asks for a list while another is under way, which may be older than what is asked about.
func TestRelistDuringAList(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		_, sub := subscribe(t, factory(t, s), configMapKey)
		time.Sleep(time.Minute)
		var lists atomic.Int64
		s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
			if !isWatch(r) && r.URL.Path == configMapPath && lists.Add(1) == 1 {
				sub.Relist("test")
			}
			return false
		})
		sub.Relist("test")
		time.Sleep(time.Minute)
		is(t, "lists", lists.Load(), 2)
		is(t, "relists", sub.Status().Relists, 2)
	})
}

// TestRelistBehindALoss asks for a list while one for another cause is yet to begin: that is not what was asked for.
func TestRelistBehindALoss(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		var gaps []string
		_, sub := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{
			OnGap: func(g dynamicfactory.Gap) { gaps = append(gaps, g.Cause) },
		})
		time.Sleep(time.Minute)
		var refused atomic.Bool
		refused.Store(true)
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if refused.Load() && !isWatch(r) && r.URL.Path == configMapPath {
				apitest.Fail(w, http.StatusTooManyRequests, "TooManyRequests")
				return true
			}
			return false
		})
		s.Send(configMapPath, `{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"reason":"Expired"}}`)
		time.Sleep(time.Minute)
		sub.Relist("test")
		time.Sleep(time.Minute)
		refused.Store(false)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		is(t, "gaps", strings.Join(gaps, ","), "expired,test")
	})
}

// noNamespaces answers as a server without namespaces.
func noNamespaces(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path != "/api/v1/namespaces" || isWatch(r) {
		return false
	}
	_, _ = w.Write([]byte(`{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"100"},"items":[]}`))
	return true
}

// TestForeignClusterBehindAWatch has another cluster answer at the address of the API server, while the
// connections of watches are not broken: neither a list nor the watch that follows one is of that cluster.
func TestForeignClusterBehindAWatch(t *testing.T) {
	for name, lead := range map[string]func(s *apitest.Server, sub *dynamicfactory.DurableSubscription){
		"a list is requested": func(_ *apitest.Server, sub *dynamicfactory.DurableSubscription) { sub.Relist("test") },
		"the history has expired": func(s *apitest.Server, _ *dynamicfactory.DurableSubscription) {
			s.Send(configMapPath, `{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"reason":"Expired"}}`)
		},
		"the watch ends in its time": func(s *apitest.Server, _ *dynamicfactory.DurableSubscription) {
			for range 11 {
				time.Sleep(time.Minute)
				s.Bookmark()
			}
			s.Mute(false)
			put(s, "b")
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a")
				j, sub := subscribe(t, factory(t, s, dynamicfactory.WithClusterCheck(func(context.Context, string) error { return nil })), configMapKey)
				time.Sleep(time.Minute)
				s.Mute(true) // the established watch is of the former cluster
				s.SetUID("cluster-2")
				s.Delete(configMapPath, "ns", "a")
				lead(s, sub)
				time.Sleep(time.Minute)
				j.expect(t, "initial a")
				is(t, "state", sub.Status().State, dynamicfactory.StateForeign)
			})
		})
	}
}

// TestForeignClusterHasExpired has another cluster, which takes over as a watch ends, answer that the version has expired: what happened in
// the right one is resumed, not listed.
func TestForeignClusterHasExpired(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		j, sub := subscribe(t, factory(t, s, dynamicfactory.WithClusterCheck(func(context.Context, string) error { return nil })), configMapKey)
		time.Sleep(time.Minute)
		s.Bookmark()
		synctest.Wait()
		var over sync.Once
		s.Intercept(func(w http.ResponseWriter, r *http.Request) (answered bool) {
			if isWatch(r) {
				over.Do(func() {
					s.SetUID("cluster-2")
					http.Error(w, `{"kind":"Status","status":"Failure","code":410,"reason":"Expired"}`, http.StatusGone)
					answered = true
				})
			}
			return answered
		})
		time.Sleep(11 * time.Minute)
		is(t, "state", sub.Status().State, dynamicfactory.StateForeign)
		s.SetUID("cluster-1")
		put(s, "b")
		time.Sleep(time.Minute)
		j.expect(t, "initial a", "add b")
		is(t, "lists", lists(s), 1)
	})
}

// TestForeignClusterBehindAProbe has another cluster take over right after the cluster was asked for, so
// that a list relies on that answer: no list is of that cluster, the first one included.
func TestForeignClusterBehindAProbe(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		f := factory(t, s, dynamicfactory.WithClusterCheck(func(context.Context, string) error { return nil }))
		j, sub := subscribe(t, f, configMapKey)
		time.Sleep(time.Minute)
		if err := f.CheckCluster(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		s.Mute(true) // the established watch is of the former cluster
		s.SetUID("cluster-2")
		s.Delete(configMapPath, "ns", "a")
		put(s, "a")
		sub.Relist("test")
		late, _ := subscribe(t, f, configMapKey)
		time.Sleep(time.Minute)
		j.expect(t, "initial a")
		late.expect(t)
		is(t, "state", sub.Status().State, dynamicfactory.StateForeign)
		s.SetUID("cluster-1")
		time.Sleep(time.Minute)
		j.expect(t, "update a")
		late.expect(t, "initial a")
	})
}

// TestForeignClusterBehindARequest has another cluster take over between the last probe and the request of
// a watch, however the one before it ended: no event is of that cluster.
func TestForeignClusterBehindARequest(t *testing.T) {
	for name, end := range map[string]func(s *apitest.Server){
		"the watch ends in its time": func(*apitest.Server) { time.Sleep(11 * time.Minute) },
		"the connection is lost":     func(s *apitest.Server) { s.Cut(); time.Sleep(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a")
				j, sub := subscribe(t, factory(t, s, dynamicfactory.WithClusterCheck(func(context.Context, string) error { return nil })), configMapKey)
				time.Sleep(time.Minute)
				s.Bookmark() // else the watch is a longer one
				synctest.Wait()
				var over sync.Once
				s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
					if isWatch(r) {
						over.Do(func() {
							s.SetUID("cluster-2")
							put(s, "a", "b")
						})
					}
					return false
				})
				end(s)
				j.expect(t, "initial a")
				is(t, "state", sub.Status().State, dynamicfactory.StateForeign)
				s.SetUID("cluster-1")
				time.Sleep(time.Minute)
				j.expect(t, "update a", "add b")
			})
		})
	}
}

func TestWarmStartFails(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		var fail atomic.Bool
		fail.Store(true)
		f, o := factory(t, s), dynamicfactory.DurableOptions{
			WarmStart: func(context.Context) (*dynamicfactory.WarmStart, error) {
				if fail.Load() {
					return nil, errors.New("the disk")
				}
				return nil, nil
			},
		}
		j, sub := subscribe(t, f, configMapKey, o)
		time.Sleep(time.Minute)
		j.expect(t)
		is(t, "lists", lists(s), 0)
		if m := sub.Status().Message; !strings.Contains(m, "the disk") {
			t.Errorf("message: %s", m)
		}
		fail.Store(false)
		time.Sleep(2 * time.Minute)
		j.expect(t, "initial a")
	})
}
