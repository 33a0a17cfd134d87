package dynamicfactory_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// isList reports whether a request reads a list of config maps, not their version.
func isList(r *http.Request) bool {
	q := r.URL.Query()
	return r.URL.Path == configMapPath && q.Get("watch") == "" && q.Get("limit") != "1"
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

// A server stalls for more than three minutes. When it comes back, the watchdog's
// probe is answered and the watch brings its backlog at the same time.
func TestStallAndBurst(t *testing.T) {
	const events = 400
	for range 20 {
		bubble(t, func(t *testing.T, s *apitest.Server) {
			var armed atomic.Bool
			burst := func() {
				at, reply := rand.IntN(events), make(chan struct{})
				go func() {
					for i, n := range numbered(events) {
						if i == at {
							close(reply)
						}
						put(s, n)
						runtime.Gosched()
					}
				}()
				<-reply
			}
			s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/api/v1/namespaces" && !isWatch(r) && armed.CompareAndSwap(true, false) {
					burst()
				}
				return false
			})
			j, _ := subscribe(t, factory(t, s), configMapKey, window(2048))
			s.Bookmark()
			synctest.Wait()
			armed.Store(true)
			time.Sleep(10 * time.Minute)
			is(t, "notifications", len(j.take()), events)
		})
	}
}

// A watch request that is never answered, not even with headers, is given up.
func TestWatchWithoutHeaders(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, _ := subscribe(t, factory(t, s), configMapKey)
		var hang atomic.Bool
		hang.Store(true)
		s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
			if isWatch(r) && hang.CompareAndSwap(true, false) {
				<-r.Context().Done()
				return true
			}
			return false
		})
		s.Cut()
		put(s, "a")
		time.Sleep(4 * time.Minute)
		j.expect(t, "add a")
		is(t, "watches", watches(s), 3)
		is(t, "lists", lists(s), 1)
	})
}

// Pages of several versions, as some aggregated servers send them: what was made
// while the pages were read comes by the watch.
func TestPagesOfSeveralVersions(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		page := func(w http.ResponseWriter, rv, next, name string) {
			_, _ = fmt.Fprintf(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":%q,"continue":%q},"items":[`+
				`{"metadata":{"name":%q,"namespace":"ns","uid":"u-%[3]s","resourceVersion":"90"}}]}`, rv, next, name)
		}
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			switch {
			case !isList(r):
				return false
			case r.URL.Query().Get("continue") == "":
				page(w, "100", "more", "a")
				put(s, "between")
			default:
				page(w, s.Version(), "", "b")
			}
			return true
		})
		j, _ := subscribe(t, factory(t, s), configMapKey)
		j.expect(t, "initial a", "initial b", "add between")
	})
}

// A page that is refused is asked for again by itself: the list does not begin again.
func TestRefusedPages(t *testing.T) {
	for name, refuse := range map[string]func(w http.ResponseWriter, r *http.Request, page func()){
		"too many requests": func(w http.ResponseWriter, _ *http.Request, _ func()) {
			w.Header().Set("Retry-After", "1")
			apitest.Fail(w, http.StatusTooManyRequests, "TooManyRequests")
		},
		"unavailable": func(w http.ResponseWriter, _ *http.Request, _ func()) {
			apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
		},
		"reset": func(http.ResponseWriter, *http.Request, func()) { panic(http.ErrAbortHandler) },
		"broken off": func(_ http.ResponseWriter, _ *http.Request, page func()) {
			page()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, numbered(10_000)...)
				var first, refused, n atomic.Int64
				s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if !isList(r) {
						return false
					}
					if r.URL.Query().Get("continue") == "" {
						first.Add(1)
					}
					if n.Add(1)%10 != 5 {
						return false
					}
					refused.Add(1)
					refuse(w, r, func() { // some objects, more than is read ahead of them
						_, _ = fmt.Fprint(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1","continue":"x"},"items":[`)
						for i := range 100 {
							_, _ = fmt.Fprintf(w, `{"metadata":{"name":"x-%d","namespace":"ns","uid":"x","resourceVersion":"90"}},`, i)
						}
						_, _ = fmt.Fprint(w, "{")
						w.(http.Flusher).Flush()
					})
					return true
				})
				f := factory(t, s)
				j, sub := subscribe(t, f, configMapKey)
				<-sub.Synced()
				synctest.Wait()
				told := j.take()
				is(t, "objects", len(told), 10_000)
				for i, name := range numbered(10_000) {
					is(t, "object", told[i], "initial "+name)
				}
				is(t, "lists begun", first.Load(), 1)
				is(t, "requests", lists(s), 20+int(refused.Load()))
				is(t, "checkpoint of the list", sub.Checkpoint(j.seen()), s.Version())
				is(t, "state", sub.Status().State, dynamicfactory.StateWatching)

				n.Store(0)
				seen, before := 0, len(s.Requests("configmaps", false))
				refused.Store(0)
				for page := (dynamicfactory.MetadataPage{}); ; {
					ofPage := 0
					var err error
					page, err = sub.ListMetadata(t.Context(), page.Continue, func() { ofPage = 0 }, func(*rawjson.Meta) error { ofPage++; return nil })
					if err != nil {
						t.Fatal(err)
					}
					if seen += ofPage; page.Continue == "" {
						break
					}
				}
				is(t, "heads", seen, 10_000)
				is(t, "requests for heads", len(s.Requests("configmaps", false))-before, 20+int(refused.Load()))
			})
		})
	}
}

// A server that refuses a list, or a page of one, is asked again when it says, and after
// a minute at the latest.
func TestRetryAfterOfAList(t *testing.T) {
	for _, later := range []bool{false, true} {
		for after, least := range map[string]time.Duration{"20": 20 * time.Second, "600": time.Minute} {
			t.Run(fmt.Sprintf("a later page %t, after %s", later, after), func(t *testing.T) {
				bubble(t, func(t *testing.T, s *apitest.Server) {
					put(s, numbered(600)...)
					var mu sync.Mutex
					var asked []time.Time
					s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
						if !isList(r) || r.URL.Query().Has("continue") != later {
							return false
						}
						mu.Lock()
						defer mu.Unlock()
						asked = append(asked, time.Now())
						if len(asked) > 3 {
							return false
						}
						w.Header().Set("Retry-After", after)
						apitest.Fail(w, http.StatusTooManyRequests, "TooManyRequests")
						return true
					})
					_, sub := subscribe(t, factory(t, s), configMapKey)
					<-sub.Synced()
					mu.Lock()
					defer mu.Unlock()
					for i := range 3 {
						if d := asked[i+1].Sub(asked[i]); d < least || d > 2*time.Minute {
							t.Errorf("asked again after %v", d)
						}
					}
				})
			})
		}
	}
}

// A server that refuses one page for good is asked a bounded number of times, at
// growing intervals, before the list begins again; a page that cannot succeed fails
// at once.
func TestPageIsRefusedForGood(t *testing.T) {
	for _, tc := range []struct {
		code   int
		reason string
		asked  bool // again with the page's token
	}{
		{http.StatusServiceUnavailable, "ServiceUnavailable", true},
		{http.StatusForbidden, "Forbidden", false},
		{http.StatusNotFound, "NotFound", false},
		{http.StatusBadRequest, "BadRequest", false},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, numbered(600)...)
				var first, second atomic.Int64
				s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					switch {
					case !isList(r):
						return false
					case r.URL.Query().Get("continue") == "":
						first.Add(1)
						return false
					}
					second.Add(1)
					apitest.Fail(w, tc.code, tc.reason)
					return true
				})
				_, sub := subscribe(t, factory(t, s), configMapKey)
				time.Sleep(15 * time.Minute)
				is(t, "asked again by token", second.Load() > first.Load(), tc.asked)
				if second.Load() > 125 || first.Load() < 2 {
					t.Errorf("%d lists begun, %d second pages in a quarter of an hour", first.Load(), second.Load())
				}
				is(t, "reason", sub.Status().Reason, tc.reason)
			})
		})
	}
}

// Events without uid that share a version are told apart by their objects.
func TestEventsWithoutUID(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		j, sub := subscribe(t, factory(t, s), configMapKey)
		for _, name := range []string{"a", "b", "a"} {
			s.Send(configMapPath, fmt.Sprintf(`{"type":"ADDED","object":{"metadata":{"name":%q,"namespace":"ns","resourceVersion":"105"}}}`, name))
		}
		synctest.Wait()
		j.expect(t, "add a", "add b")
		is(t, "repeated", sub.Status().Repeated, 1)
	})
}

// A version that the server cannot make sense of is healed by a list; a server that
// refuses every watch is not listed without end.
func TestWatchRefusedAsInvalid(t *testing.T) {
	for _, forGood := range []bool{false, true} {
		t.Run(fmt.Sprint("for good ", forGood), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a")
				var gaps []string
				j, _ := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{
					OnGap: func(g dynamicfactory.Gap) { gaps = append(gaps, g.Cause) },
				})
				old := s.Version()
				s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if !isWatch(r) || !forGood && r.URL.Query().Get("resourceVersion") != old {
						return false
					}
					apitest.Fail(w, http.StatusBadRequest, "BadRequest")
					return true
				})
				s.Cut()
				put(s, "b")
				if !forGood {
					time.Sleep(time.Minute)
					j.expect(t, "initial a", "update a", "add b")
					is(t, "gaps", strings.Join(gaps, ","), "expired")
					is(t, "lists", lists(s), 2)
					return
				}
				time.Sleep(3 * time.Hour)
				if n := lists(s); n < 3 || n > 10 {
					t.Errorf("%d lists in three hours", n)
				}
			})
		})
	}
}

// Watches that lose their connections together come back over a time that grows with
// their number; one alone comes back at once.
func TestReconnectsAreSpread(t *testing.T) {
	for _, tc := range []struct {
		watches     int
		least, most time.Duration // until the last one is back
	}{
		{1, 0, 250 * time.Millisecond},
		{1000, 1500 * time.Millisecond, 2 * time.Second},
	} {
		t.Run(fmt.Sprint(tc.watches), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				listing(t, factory(t, s, dynamicfactory.WithListConcurrency(1000)), tc.watches)
				synctest.Wait()
				var last, n atomic.Int64
				var began time.Time
				s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
					if isWatch(r) {
						last.Store(int64(time.Since(began)))
						n.Add(1)
					}
					return false
				})
				began = time.Now()
				s.Cut()
				time.Sleep(time.Minute)
				is(t, "watches", int(n.Load()), tc.watches)
				if d := time.Duration(last.Load()); d < tc.least || d > tc.most {
					t.Errorf("the last of %d watches is back after %v", tc.watches, d)
				}
			})
		})
	}
}

// A list whose connection breaks between two pages does not go on with another
// cluster.
func TestListGoesOnWithTheSameCluster(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, numbered(600)...)
		var once atomic.Bool
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("continue") != "" && !once.Swap(true) {
				s.SetUID("cluster-2")
				_, _ = w.Write([]byte(`{"items":[`))
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
			return false
		})
		j, sub := subscribe(t, factory(t, s, dynamicfactory.WithClusterCheck(func(_ context.Context, uid string) error {
			if uid != "cluster-1" {
				return errors.New("another cluster")
			}
			return nil
		})), configMapKey)
		time.Sleep(time.Minute)
		synctest.Wait()
		is(t, "told", len(j.take()), 0)
		is(t, "state", sub.Status().State, dynamicfactory.StateForeign)
	})
}
