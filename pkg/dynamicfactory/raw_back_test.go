package dynamicfactory_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// lossesOf notes the causes and versions of gaps.
func lossesOf(gaps *[]string) func(dynamicfactory.Gap) {
	return func(g dynamicfactory.Gap) { *gaps = append(*gaps, fmt.Sprint(g.Cause, g.From, " ", g.To)) }
}

// The version of the last event is the server's, although it is not complete: a backup from
// before it is another history.
func TestRollbackBehindTheLastEvent(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprint("stopped ", stopped), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a")
				var gaps []string
				opts := dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)}
				f := factory(t, s)
				j, sub := subscribe(t, f, configMapKey, opts)
				backup := s.Save()
				put(s, "b")
				synctest.Wait()
				j.expect(t, "initial a", "add b")
				is(t, "checkpoint", sub.Checkpoint(j.seen()), "101")
				snap := warmStartOf(sub.Checkpoint(j.seen()), j.objects)
				snap.Recorded = s.Version()
				if stopped {
					sub.Close()
				}
				s.Restore(backup)
				s.Cut()
				if stopped {
					j, _ = subscribe(t, f, configMapKey, remember(snap, opts))
					is(t, "known at first", len(j.take()), 2)
				}
				time.Sleep(time.Minute)
				j.expect(t, "delete? b", "update a")
				is(t, "gaps", strings.Join(gaps, ";"), "rollback101 101")
			})
		})
	}
}

// A server that was set back a little may have passed the version of the last event when it is asked
// again. What it has shows that it is another history.
func TestRollbackThatPassesTheLastEvent(t *testing.T) {
	for name, tc := range map[string]struct {
		write func(s *apitest.Server)
		want  []string
	}{
		"an object is missing":   {func(s *apitest.Server) { put(s, "b") }, []string{"add b", "delete? b", "update a"}},
		"an object has returned": {func(s *apitest.Server) { s.Delete(configMapPath, "ns", "a") }, []string{"delete a", "add a"}},
		"an object is older":     {func(s *apitest.Server) { put(s, "a") }, []string{"update a", "update a"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a")
				var gaps []string
				j, _ := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)})
				backup := s.Save()
				tc.write(s)
				synctest.Wait()
				s.Restore(backup)
				s.Cut()
				time.AfterFunc(time.Second, func() { s.Advance(100) })
				time.Sleep(time.Minute)
				j.expect(t, append([]string{"initial a"}, tc.want...)...)
				is(t, "gaps", len(gaps), 1)
			})
		})
	}
}

// A server that was set back may have lost the history as well, or say so itself before its
// version is asked for.
func TestRollbackWithoutHistory(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		backup := s.Save()
		put(s, "a", "b")
		var gaps []string
		j, _ := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)})
		j.expect(t, "initial a", "initial b")
		s.Restore(backup)
		s.Send(configMapPath, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"too old"}}`)
		time.Sleep(time.Minute)
		j.expect(t, "delete? b", "update a")
		is(t, "gaps", strings.Join(gaps, ";"), "rollback103 101")
	})
}

// One server of a group answers a list from a state that is behind what another one has
// sent: nothing is deleted by such a list.
func TestListIsBehindForAMoment(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		then := s.Version()
		put(s, "a", "b")
		var gaps []string
		j, _ := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)})
		j.expect(t, "initial a", "initial b")
		var behind atomic.Int64
		behind.Store(2)
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			q := r.URL.Query()
			if !strings.HasSuffix(r.URL.Path, "/configmaps") || q.Get("limit") != "500" || behind.Add(-1) < 0 {
				return false
			}
			q.Set("resourceVersion", then)
			q.Set("resourceVersionMatch", "Exact")
			r.URL.RawQuery = q.Encode()
			return false
		})
		s.Send(configMapPath, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"too old"}}`)
		time.Sleep(time.Minute)
		j.expect(t, "update a", "update b") // of the list, unchanged
		is(t, "gaps", strings.Join(gaps, ";"), "expired103 103")
		put(s, "c")
		synctest.Wait()
		j.expect(t, "add c")
	})
}

// A bookmark that is older than what was complete before moves nothing back: what is deleted
// since then does not come again.
func TestBookmarkGoesBack(t *testing.T) {
	bookmark := func(version string) string {
		return `{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"` + version + `"}}}`
	}
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, sub := subscribe(t, factory(t, s), configMapKey)
		put(s, "a", "b")
		s.Delete(configMapPath, "ns", "a")
		s.Bookmark()
		synctest.Wait()
		j.expect(t, "add a", "add b", "delete a")
		s.Send(configMapPath, bookmark("100"))
		synctest.Wait()
		is(t, "checkpoint", sub.Checkpoint(j.seen()), "103")
		time.Sleep(time.Minute)
		s.Cut()
		time.Sleep(time.Minute)
		j.expect(t)
		put(s, "c")
		synctest.Wait()
		j.expect(t, "add c")
	})
}

// An API server that stays up while its storage is set back sends bookmarks of older versions.
func TestBookmarkOfAServerThatWasSetBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		backup := s.Save()
		put(s, "a", "b")
		var gaps []string
		j, _ := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)})
		j.expect(t, "initial a", "initial b")
		s.Restore(backup)
		s.Bookmark()
		time.Sleep(time.Minute)
		j.expect(t, "delete? b", "update a")
		is(t, "gaps", strings.Join(gaps, ";"), "rollback103 101")
	})
}

// A list again of a quiet resource whose version has expired, while the server was set back
// behind the later version that showed no change.
func TestRollbackBehindTheQuietVersion(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		s.Advance(10)
		backup := s.Save()
		s.Advance(1000)
		snap := &dynamicfactory.WarmStart{Relist: true, ResourceVersion: "101", Quiet: s.Version()}
		s.Restore(backup)
		s.Compact()
		var gaps []string
		j, _ := subscribe(t, factory(t, s), configMapKey, remember(snap, dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)}))
		time.Sleep(10 * time.Minute)
		j.expect(t, "initial a")
		is(t, "gaps", strings.Join(gaps, ";"), "rollback101 111")
	})
}

// A server that rejects a version after it has established the watch is listed as one that
// rejects the request.
func TestVersionIsRejectedInTheWatch(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		var reject atomic.Bool
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			q := r.URL.Query()
			if !reject.Load() || q.Get("watch") == "" || q.Get("resourceVersion") != "101" {
				return false
			}
			_, _ = w.Write([]byte(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":400,"reason":"BadRequest","message":"invalid resource version"}}` + "\n"))
			return true
		})
		j, sub := subscribe(t, factory(t, s), configMapKey)
		j.expect(t, "initial a")
		reject.Store(true)
		s.Cut()
		put(s, "b")
		time.Sleep(5 * time.Minute)
		j.expect(t, "update a", "add b")
		is(t, "relists", sub.Status().Relists, 1)
	})
}

// A storage that is restored with its versions moved on, as etcd's documentation advises, has
// no history, and the next list has versions that are later than all before. An object in it
// that is older than it was shows the rollback.
func TestRollbackThatMovesVersionsOn(t *testing.T) {
	for name, tc := range map[string]struct {
		begin func(snap *dynamicfactory.WarmStart, objects map[string]*compact.Object) // nil: the subscription stays
		first int                                                                      // events at the start
		want  []string
	}{
		"running": {nil, 0, []string{"delete? c", "update a", "update b"}},
		"from a snapshot": {
			func(*dynamicfactory.WarmStart, map[string]*compact.Object) {}, 3,
			[]string{"delete? c", "update a", "update b"},
		},
		"from a list": {
			func(snap *dynamicfactory.WarmStart, objects map[string]*compact.Object) {
				snap.Relist, snap.Known = true, func(_, name string) *compact.Object { return objects[name] }
			}, 0,
			[]string{"initial a", "initial b"},
		},
		"from a list of a server without exact lists": {
			func(snap *dynamicfactory.WarmStart, objects map[string]*compact.Object) {
				snap.Relist, snap.Known = true, func(_, name string) *compact.Object { return objects[name] }
			}, 0,
			[]string{"initial a", "initial b"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				if strings.Contains(name, "without exact lists") {
					s.Intercept(withoutExactLists)
				}
				put(s, "a", "b")
				backup := s.Save()
				put(s, "b", "c")
				s.Bookmark()
				var gaps []string
				opts := dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)}
				f := factory(t, s)
				j, sub := subscribe(t, f, configMapKey, opts)
				j.expect(t, "initial a", "initial b", "initial c")
				snap := warmStartOf(sub.Checkpoint(j.seen()), j.objects)
				if tc.begin != nil {
					tc.begin(snap, maps.Clone(j.objects))
					sub.Close()
				}
				s.Restore(backup)
				s.Advance(1_000_000)
				s.Compact()
				s.Cut()
				if tc.begin != nil {
					j, _ = subscribe(t, f, configMapKey, remember(snap, opts))
					if tc.first > 0 {
						is(t, "known at first", len(j.take()), tc.first)
					}
				}
				time.Sleep(time.Minute)
				j.expect(t, tc.want...)
				is(t, "gaps", strings.Join(gaps, ";"), "rollback104 1000102")
			})
		})
	}
}

// One server of a group may be behind the others for as long as it takes to ask twice.
func TestServerIsBehindForASecond(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		var until atomic.Int64
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("limit") != "1" || time.Now().UnixNano() > until.Load() {
				return false
			}
			_, _ = w.Write([]byte(`{"kind":"List","metadata":{"resourceVersion":"7"},"items":[]}`))
			return true
		})
		j, sub := subscribe(t, factory(t, s), configMapKey)
		until.Store(time.Now().Add(time.Second).UnixNano())
		s.Cut()
		put(s, "a")
		time.Sleep(time.Minute)
		j.expect(t, "add a")
		is(t, "relists", sub.Status().Relists, 0)
	})
}

// A watch that stalls, also from its beginning, is given up after minutes. If the history has expired
// by then, what was lost began with the stall.
func TestGapBehindAStalledWatch(t *testing.T) {
	for _, begins := range []bool{false, true} {
		t.Run(fmt.Sprint("from its beginning ", begins), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				var gaps []dynamicfactory.Gap
				j, _ := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{
					OnGap: func(g dynamicfactory.Gap) { gaps = append(gaps, g) },
				})
				s.Bookmark()
				synctest.Wait()
				known := time.Now()
				time.Sleep(time.Second)
				s.Stall(true)
				if begins {
					s.Cut()
					time.Sleep(time.Second)
				}
				put(s, "a", "a")
				s.Compact()
				time.Sleep(15 * time.Minute)
				j.expect(t, "add a")
				if len(gaps) != 1 || !gaps[0].FromTime.Equal(known) {
					t.Errorf("gaps are %+v, want one from %v", gaps, known)
				}
			})
		})
	}
}

// A server of a group that is behind for a second when a list begins again, as after a stop in the
// middle of one, is no rollback, although nothing is cached yet and not everything is recorded.
func TestServerIsBehindWhenAListBeginsAgain(t *testing.T) {
	for name, version := range map[string]string{"at a version": "102", "of a lost position": ""} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a", "b")
				_, sub := subscribe(t, factory(t, s), configMapKey)
				a, err := sub.Lister().ByNamespace("ns").Get("a")
				if err != nil {
					t.Fatal(err)
				}
				sub.Close()
				put(s, "a")
				until := time.Now().Add(time.Second)
				s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
					q := r.URL.Query()
					if isWatch(r) || q.Get("resourceVersionMatch") != "" || q.Has("continue") || time.Now().After(until) {
						return false
					}
					q.Set("resourceVersion", "101")
					q.Set("resourceVersionMatch", "Exact")
					r.URL.RawQuery = q.Encode()
					return false
				})
				var gaps []string
				j, _ := subscribe(t, factory(t, s), configMapKey, remember(&dynamicfactory.WarmStart{
					ResourceVersion: version, Recorded: "103", Relist: true,
					Known: func(_, name string) *compact.Object {
						if name == "a" {
							return must(compact.NewCodec(compact.NewDictionaries(nil)).Encode(must(json.Marshal(a))(t), nil, 0))(t)
						}
						return nil
					},
				}, dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)}))
				time.Sleep(time.Minute)
				want := []string{"initial a", "initial b"}
				if version != "" {
					want = append(want, "update a")
				}
				j.expect(t, want...)
				is(t, "version", j.objects["a"].GetResourceVersion(), "103")
				is(t, "gaps", strings.Join(gaps, ";"), "")
			})
		})
	}
}

// A resource with a storage of its own, whose versions are behind the others', begins again from an
// older state. Its bookmarks show it.
func TestRollbackOfAStorageOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, "/namespaces") {
				return false
			}
			_, _ = w.Write([]byte(`{"kind":"NamespaceList","metadata":{"resourceVersion":"1000000"},"items":[]}`))
			return true
		})
		put(s, "a")
		backup := s.Save()
		put(s, "a", "b")
		var gaps []string
		j, _ := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)})
		j.expect(t, "initial a", "initial b")
		s.Restore(backup)
		s.Cut()
		for range 5 {
			time.Sleep(time.Minute)
			s.Bookmark()
		}
		time.Sleep(time.Minute)
		j.expect(t, "delete? b", "update a")
		is(t, "gaps", strings.Join(gaps, ";"), "rollback103 101")
	})
}

// Bookmarks of version 0, which stands for any version, complete nothing: a watch from there would
// miss deletions.
func TestBookmarkOfAnyVersion(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a", "b")
		j, sub := subscribe(t, factory(t, s), configMapKey)
		s.Send(configMapPath, `{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"0"}}}`)
		synctest.Wait()
		is(t, "checkpoint", sub.Checkpoint(j.seen()), "102")
		s.Cut()
		s.Delete(configMapPath, "ns", "a")
		time.Sleep(time.Minute)
		j.expect(t, "initial a", "initial b", "delete a")
	})
}

// Deletions of some aggregated servers have the object's last version instead of one of their own. A
// watch that resumes does not bring back what is deleted.
func TestVersionsOutOfOrder(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		line := func(typ, name, version string) string {
			return fmt.Sprintf(`{"type":%q,"object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"namespace":"ns","uid":"u-%[2]s","resourceVersion":%q}}}`, typ, name, version)
		}
		lines := []struct {
			version    int
			typ, event string
		}{{101, "ADDED", "a"}, {102, "ADDED", "b"}, {101, "DELETED", "a"}, {102, "DELETED", "b"}}
		var served atomic.Bool
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !isWatch(r) || r.URL.Path != configMapPath {
				return false
			}
			from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
			if err != nil {
				t.Error(err)
			}
			for _, l := range lines {
				if l.version > from {
					_, _ = fmt.Fprintln(w, line(l.typ, l.event, strconv.Itoa(l.version)))
				}
			}
			w.(http.Flusher).Flush()
			if !served.Swap(true) {
				time.Sleep(time.Second)
				return true // the connection ends
			}
			<-r.Context().Done()
			return true
		})
		j, sub := subscribe(t, factory(t, s), configMapKey)
		s.Advance(5)
		time.Sleep(time.Minute)
		j.expect(t, "add a", "add b", "delete a", "delete b")
		is(t, "objects", sub.Status().Objects, 0)
	})
}

// A backup that is restored at a higher version, and without history, as etcd's tool advises: an object
// that had been deleted is there again.
func TestRollbackAtAHigherVersion(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a", "b")
		var gaps []string
		j, _ := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)})
		backup := s.Save()
		s.Delete(configMapPath, "ns", "a")
		s.Bookmark()
		synctest.Wait()
		j.expect(t, "initial a", "initial b", "delete a")
		s.Restore(backup)
		s.Advance(1000)
		s.Compact()
		s.Cut()
		time.Sleep(time.Minute)
		j.expect(t, "add a", "update b")
		is(t, "gaps", strings.Join(gaps, ";"), "rollback103 1102")
	})
}

// A list that makes up for expired history beside a cache that has taken in everything is no rollback, nor is
// one with an object that could not be read before.
func TestExpiredIsNoRollback(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		s.Inject(configMapPath, "ADDED", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"ns","name":"late","uid":"u","resourceVersion":"101"},"data":7x}`)
		var gaps []string
		_, _ = subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)})
		time.Sleep(time.Minute)
		put(s, numbered(600)...)
		s.Compact()
		s.Cut()
		time.Sleep(time.Minute)
		synctest.Wait()
		is(t, "gaps", gaps[len(gaps)-1][:len("expired")], "expired")
	})
}

// A record whose time is in the future, as the clock was set back, is of before a rollback that another watch finds: the
// server has passed its version.
func TestRollbackBehindARecordOfTheFuture(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"of the past": 0, "of the future": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				const secretPath = "/api/v1/secrets"
				s.Serve(secretPath, "v1", "Secret")
				put(s, "a")
				s.Put(secretPath, "ns", "kept", nil)
				backup := s.Save()
				s.Put(secretPath, "ns", "lost", nil)
				var gaps []string
				opts := dynamicfactory.DurableOptions{OnGap: lossesOf(&gaps)}
				f := factory(t, s)
				secrets := dynamicfactory.Key{GVR: schema.GroupVersionResource{Version: "v1", Resource: "secrets"}}
				j, sub := subscribe(t, f, secrets, opts)
				snap := warmStartOf(sub.Checkpoint(j.seen()), j.objects)
				snap.Time = time.Now().Add(ahead)
				sub.Close()
				j, _ = subscribe(t, f, secrets, remember(snap, opts))
				is(t, "known at first", len(j.take()), 2)
				_, _ = subscribe(t, f, configMapKey)
				put(s, "a")
				time.Sleep(time.Minute)
				s.Restore(backup)
				s.Bookmark(configMapPath)
				time.Sleep(4 * time.Second) // it is found
				s.Advance(20)
				time.Sleep(time.Minute)
				j.expect(t, "delete? lost", "update kept")
				is(t, "gaps", strings.Join(gaps, ";"), "rollback103 122")
			})
		})
	}
}
