package dynamicfactory_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

func TestWatchHandsOnEveryChange(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		j, sub := subscribe(t, factory(t, s), configMapKey)
		put(s, "b", "a")
		s.Delete(configMapPath, "ns", "a")
		synctest.Wait()
		j.expect(t, "initial a", "add b", "update a", "delete a")
		q := s.Requests("configmaps", true)[0].Query
		is(t, "watched from", q["resourceVersion"], "101")
		is(t, "bookmarks", q["allowWatchBookmarks"], "true")
		st := sub.Status()
		is(t, "events", st.Events, 3)
		is(t, "contact", st.LastContact, time.Now())
	})
}

// However a watch ends, it goes on where it was, without a list.
func TestWatchResumes(t *testing.T) {
	for _, tc := range []struct {
		how  string
		end  func(s *apitest.Server)
		asks int // probes of the server
	}{
		{"cut", (*apitest.Server).Cut, 1},
		{"ended early", (*apitest.Server).EndWatches, 1},
		{"ended in its time", func(s *apitest.Server) {
			for range 11 {
				time.Sleep(time.Minute)
				s.Bookmark()
			}
		}, 0},
	} {
		t.Run(tc.how, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				j, sub := subscribe(t, factory(t, s), configMapKey)
				put(s, "a")
				s.Bookmark()
				synctest.Wait()
				tc.end(s)
				put(s, "b")
				time.Sleep(time.Minute)
				j.expect(t, "add a", "add b")
				is(t, "lists", lists(s), 1)
				is(t, "probes", len(s.Requests("namespaces", false)), tc.asks)
				if n := sub.Status().Restarts; n < 1 || n > 2 {
					t.Errorf("%d restarts of the watch", n)
				}
			})
		})
	}
}

// What a watch is refused with is waited out; the cache stays, nothing is listed.
func TestWatchRefused(t *testing.T) {
	for _, tc := range []struct {
		code   int
		reason string
		state  dynamicfactory.State
	}{
		{http.StatusForbidden, "Forbidden", dynamicfactory.StateForbidden},
		{http.StatusUnauthorized, "Unauthorized", dynamicfactory.StateForbidden},
		{http.StatusNotFound, "NotFound", dynamicfactory.StateWaiting},
		{http.StatusInternalServerError, "InternalError", dynamicfactory.StateBackingOff},
		{http.StatusServiceUnavailable, "ServiceUnavailable", dynamicfactory.StateBackingOff},
		{http.StatusTooManyRequests, "TooManyRequests", dynamicfactory.StateBackingOff},
		{http.StatusGatewayTimeout, "Timeout", dynamicfactory.StateBackingOff},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a")
				j, sub := subscribe(t, factory(t, s), configMapKey)
				s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Query().Get("watch") == "" {
						return false
					}
					apitest.Fail(w, tc.code, tc.reason)
					return true
				})
				s.Cut()
				time.Sleep(time.Hour)
				is(t, "state", sub.Status().State, tc.state)
				is(t, "cached", sub.Status().Objects, 1)
				if n := watches(s); n < 60 || n > 1000 {
					t.Errorf("%d attempts in an hour", n)
				}
				s.Intercept(nil)
				put(s, "b")
				time.Sleep(time.Minute)
				j.expect(t, "initial a", "add b")
				is(t, "lists", lists(s), 1)
			})
		})
	}
}

// A watch waits for as long as the server requests, and for a minute at the longest: the history
// of the server does not last for the hours that the maintenance page of a proxy requests.
func TestRetryAfterIsHonoured(t *testing.T) {
	for after, attempts := range map[string]int{"50": 72, "3600": 60} {
		t.Run(after, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Query().Get("watch") == "" {
						return false
					}
					w.Header().Set("Retry-After", after)
					apitest.Fail(w, http.StatusTooManyRequests, "TooManyRequests")
					return true
				})
				subscribe(t, factory(t, s), configMapKey)
				time.Sleep(time.Hour - time.Second)
				is(t, "attempts in an hour", watches(s), attempts)
			})
		})
	}
}

func TestServerIsAway(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, sub := subscribe(t, factory(t, s), configMapKey)
		put(s, "a")
		synctest.Wait()
		var away atomic.Bool
		away.Store(true)
		s.Intercept(func(http.ResponseWriter, *http.Request) bool {
			if away.Load() {
				panic(http.ErrAbortHandler)
			}
			return false
		})
		s.Cut()
		state := func() string { return string(sub.Status().State) + " " + sub.Status().Reason }
		synctest.Wait()
		is(t, "state at once", state(), "backing-off Disconnected")
		time.Sleep(time.Hour)
		is(t, "state", state(), "backing-off Unreachable")
		away.Store(false)
		put(s, "b")
		time.Sleep(time.Minute)
		j.expect(t, "add a", "add b")
		is(t, "lists", lists(s), 1)
	})
}

// A server that answers and hangs up at once is not asked without end.
func TestWatchEndsAtOnceEveryTime(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Query().Get("watch") != "" // 200 and nothing
		})
		_, sub := subscribe(t, factory(t, s), configMapKey)
		time.Sleep(time.Hour)
		if n := watches(s); n < 60 || n > 300 {
			t.Errorf("%d watches in an hour", n)
		}
		is(t, "lists", lists(s), 1)
		is(t, "state", sub.Status().State, dynamicfactory.StateBackingOff)
	})
}

// Lost history is made up for by a list. What vanished meanwhile is told as such,
// and the gap before it.
func TestHistoryIsLost(t *testing.T) {
	for _, how := range []string{"refused with 410", "410 in the stream"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				var told []string
				var j *journal
				onGap := func(g dynamicfactory.Gap) {
					told = append(told, fmt.Sprint(g.Cause, g.From, g.To, " after ", g.ToTime.Sub(g.FromTime) > 0, j.take()))
				}
				put(s, "a", "b", "c")
				var sub *dynamicfactory.DurableSubscription
				f, o := factory(t, s), dynamicfactory.DurableOptions{OnGap: onGap}
				j, sub = subscribe(t, f, configMapKey, o)
				s.Delete(configMapPath, "ns", "c")
				s.Bookmark()
				synctest.Wait()
				j.expect(t, "initial a", "initial b", "initial c", "delete c")
				if how == "410 in the stream" {
					s.Send(configMapPath, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"too old"}}`)
				} else {
					s.Cut()
				}
				s.Delete(configMapPath, "ns", "b")
				put(s, "a", "d")
				s.Compact()
				time.Sleep(time.Minute)
				j.expect(t, "delete? b", "update a", "add d")
				is(t, "gaps", strings.Join(told, "; "), "expired104107 after true []")
				st := sub.Status()
				is(t, "relists", st.Relists, 1)
				is(t, "410s", st.Expired, 1)
				put(s, "e")
				synctest.Wait()
				j.expect(t, "add e")

				told = nil
				put(s, "f")
				synctest.Wait()
				s.Cut()
				s.Compact()
				put(s, "g")
				time.Sleep(time.Minute)
				is(t, "notifications", len(j.take()), 5)
				is(t, "the next gap", strings.Join(told, "; "), "expired108110 after true [add f]")
			})
		})
	}
}

// Several events may share one version. When the connection breaks between them,
// the rest is not lost, and what came before does not come again.
func TestWatchBreaksWithinAVersion(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a", "b", "c")
		var cut atomic.Bool
		var j *journal
		var sub *dynamicfactory.DurableSubscription
		f, o := factory(t, s), dynamicfactory.DurableOptions{Window: 1}
		j, sub = subscribe(t, f, configMapKey, o)
		sub.Ack(1)
		s.Delete(configMapPath, "ns", "a", "b", "c") // the window lets through one
		synctest.Wait()
		j.expect(t, "initial a", "initial b", "initial c", "delete a")
		is(t, "checkpoint within the version", sub.Checkpoint(j.seen()), "103")
		s.Cut()
		cut.Store(true)
		j.mu.Lock()
		j.acks = sub.Ack
		j.mu.Unlock()
		sub.Ack(j.seen())
		time.Sleep(time.Minute)
		j.expect(t, "delete b", "delete c")
		is(t, "lists", lists(s), 1)
		is(t, "checkpoint after the version's last event", sub.Checkpoint(j.seen()), "103")
		s.Bookmark()
		synctest.Wait()
		is(t, "checkpoint after a bookmark", sub.Checkpoint(j.seen()), "104")
	})
}

func TestCheckpointIsBehind(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		j, sub := subscribe(t, factory(t, s), configMapKey)
		list := j.seen()
		put(s, "b")
		synctest.Wait()
		first := j.seen()
		is(t, "after the list", sub.Checkpoint(list), "101")
		is(t, "after an event that may have company", sub.Checkpoint(first), "101")
		put(s, "c")
		synctest.Wait()
		is(t, "after the next event, without it", sub.Checkpoint(first), "102")
		is(t, "after the next event", sub.Checkpoint(j.seen()), "102")
		s.Advance(7)
		s.Bookmark()
		synctest.Wait()
		is(t, "after a bookmark, without the last event", sub.Checkpoint(first), "102")
		is(t, "after a bookmark", sub.Checkpoint(j.seen()), "110")
	})
}

// After a list that found nothing any more, deletions are on their way that carry
// no position of it: the checkpoint waits for the next event.
func TestCheckpointAfterEverythingVanished(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		j, sub := subscribe(t, factory(t, s), configMapKey)
		s.Cut()
		s.Delete(configMapPath, "ns", "a")
		s.Compact()
		time.Sleep(time.Minute)
		j.expect(t, "initial a", "delete? a")
		s.Bookmark()
		synctest.Wait()
		is(t, "checkpoint", sub.Checkpoint(j.seen()), "101")
		put(s, "b")
		put(s, "c")
		synctest.Wait()
		is(t, "checkpoint after two more events", sub.Checkpoint(j.seen()), "103")
	})
}

// Lines that make no sense are read again; when they come again and again, the
// objects are listed instead and the gap is told.
func TestUnreadableEvents(t *testing.T) {
	for name, line := range map[string]string{
		"no json":             `{"type":"ADDED","object":{`,
		"garbage":             "\x00\x01",
		"unknown type":        `{"type":"EXPLODED","object":{"metadata":{"name":"x","resourceVersion":"5"}}}`,
		"no metadata":         `{"type":"ADDED","object":{"kind":"ConfigMap"}}`,
		"number for a name":   `{"type":"ADDED","object":{"metadata":{"name":1,"resourceVersion":"5"}}}`,
		"error of no kind":    `{"type":"ERROR","object":{"a":1}}`,
		"bookmark of nothing": `{"type":"BOOKMARK","object":{}}`,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				var gaps []string
				f, o := factory(t, s), dynamicfactory.DurableOptions{
					OnGap: func(g dynamicfactory.Gap) { gaps = append(gaps, g.Cause) },
				}
				j, sub := subscribe(t, f, configMapKey, o)
				put(s, "a")
				s.Bookmark()
				s.Send(configMapPath, line)
				put(s, "b")
				time.Sleep(time.Minute)
				j.expect(t, "add a", "add b")
				is(t, "unreadable", sub.Status().DecodeErrors, 1)
				is(t, "lists", lists(s), 1)
				for range 3 {
					s.Send(configMapPath, line)
					time.Sleep(time.Minute)
				}
				j.expect(t, "update a", "update b")
				is(t, "lists", lists(s), 2)
				is(t, "gaps", strings.Join(gaps, ","), "unreadable")
				put(s, "c")
				synctest.Wait()
				j.expect(t, "add c")
			})
		})
	}
}

// An error in the stream that is not about history leads to a new watch.
func TestErrorInTheStream(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, _ := subscribe(t, factory(t, s), configMapKey)
		s.Send(configMapPath, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"reason":"InternalError","message":"etcd"}}`)
		time.Sleep(time.Minute)
		put(s, "a")
		synctest.Wait()
		j.expect(t, "add a")
		is(t, "lists", lists(s), 1)
		is(t, "probes", len(s.Requests("namespaces", false)), 1)
	})
}

func TestLongLines(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, sub := subscribe(t, factory(t, s), configMapKey)
		for i, size := range []int{100, 40 << 10, 3 << 20, 10, 33 << 10} {
			s.Put(configMapPath, "ns", fmt.Sprint(i), map[string]any{"data": map[string]any{"x": strings.Repeat("y", size)}})
		}
		synctest.Wait()
		j.expect(t, "add 0", "add 1", "add 2", "add 3", "add 4")
		raw, err := j.objects["2"].AppendJSON(nil)
		if err != nil || len(raw) < 3<<20 {
			t.Errorf("%d bytes, %v", len(raw), err)
		}
		is(t, "unreadable", sub.Status().DecodeErrors, 0)
	})
}

// The edit sees and changes every object before anything is made of it.
func TestEdit(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		editor, err := rawjson.NewEditor(rawjson.Rule{Path: "data"})
		if err != nil {
			t.Fatal(err)
		}
		put(s, "a")
		f, o := factory(t, s), dynamicfactory.DurableOptions{
			Edit: editor.AppendChange,
		}
		j, _ := subscribe(t, f, configMapKey, o)
		put(s, "b")
		synctest.Wait()
		for _, name := range []string{"a", "b"} {
			raw, err := j.objects[name].AppendJSON(nil)
			if err != nil || strings.Contains(string(raw), `"data"`) {
				t.Errorf("%s: %s, %v", name, raw, err)
			}
		}
	})
}

// TestEditWithoutAChange: an edit need not find out who changed an object last, and then that is unknown: no
// object is given what the edit of another has found.
func TestEditWithoutAChange(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		o := dynamicfactory.DurableOptions{Edit: func(dst, raw []byte, by *rawjson.Change) ([]byte, error) {
			if strings.Contains(string(raw), `"name":"a"`) {
				by.Managers, by.Time = append(by.Managers[:0], []byte("kubectl")), []byte("2026-01-02T03:04:05Z")
			}
			return append(dst, raw...), nil
		}}
		j, _ := subscribe(t, factory(t, s), configMapKey, o)
		put(s, "a", "b")
		synctest.Wait()
		is(t, "who changed a", j.objects["a"].LastChange().Manager, "kubectl")
		is(t, "who changed b", j.objects["b"].LastChange().Manager, "")
	})
}

// Several handlers share one list and one watch, whenever they come.
func TestHandlersShareAnInformer(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a", "b")
		f := factory(t, s)
		first, sub := share(t, f, configMapKey)
		put(s, "c")
		synctest.Wait()
		late, lateSub := share(t, f, configMapKey)
		told := late.take()
		slices.Sort(told)
		is(t, "the latecomer was told", strings.Join(told, ","), "initial a,initial b,initial c")
		put(s, "d", "e")
		synctest.Wait()
		first.expect(t, "initial a", "initial b", "add c", "add d", "add e")
		late.expect(t, "add d", "add e")
		is(t, "lists", lists(s), 1)
		is(t, "watches", watches(s), 1)
		sub.Close()
		put(s, "f")
		synctest.Wait()
		late.expect(t, "add f")
		is(t, "statuses", len(f.Statuses()), 1)
		lateSub.Close()
		is(t, "statuses after all have left", len(f.Statuses()), 0)
		synctest.Wait()
		is(t, "watches that run", s.Watches(configMapPath), 0)
		again, _ := share(t, f, configMapKey)
		is(t, "the next one is told", len(again.take()), 6)
		is(t, "lists", lists(s), 2)
	})
}

func TestContextClosesASubscription(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		f := factory(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := f.Subscribe(ctx, configMapKey, newJournal()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		is(t, "watches", s.Watches(configMapPath), 1)
		cancel()
		synctest.Wait()
		is(t, "watches afterwards", s.Watches(configMapPath), 0)
		is(t, "statuses", len(f.Statuses()), 0)
	})
}
