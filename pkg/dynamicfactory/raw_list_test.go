package dynamicfactory_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

func TestListIsPagedAndConsistent(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, numbered(1201)...)
		j, sub := subscribe(t, factory(t, s), configMapKey)
		is(t, "objects", len(j.take()), 1201)
		requests := s.Requests("configmaps", false)
		is(t, "pages", len(requests), 3)
		for i, r := range requests {
			_, versioned := r.Query["resourceVersion"]
			_, continued := r.Query["continue"]
			if r.Query["limit"] != "500" || versioned || continued != (i > 0) {
				t.Errorf("page %d was asked for with %v", i, r.Query)
			}
		}
		is(t, "version", sub.Status().ResourceVersion, s.Version())
		o := j.objects["cm-00000"]
		is(t, "kind of an item without one", o.APIVersion()+" "+o.Kind(), "v1 ConfigMap")
		raw, err := o.AppendJSON(nil)
		if err != nil {
			t.Fatal(err)
		}
		want := `{"kind":"ConfigMap","apiVersion":"v1",`
		is(t, "beginning of an item", string(raw[:len(want)]), want)
	})
}

// Only the last object of a list carries its position, so a subscriber that has
// the half of it safe has nothing.
func TestListIsCompleteWithItsLastObject(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, numbered(3)...)
		j, sub := subscribe(t, factory(t, s), configMapKey)
		is(t, "position of the first", j.objects["cm-00000"].Position(), 0)
		last := j.objects["cm-00002"].Position()
		is(t, "position of the last", last, 1)
		is(t, "checkpoint of nothing", sub.Checkpoint(0), "")
		is(t, "checkpoint of the list", sub.Checkpoint(last), s.Version())
	})
}

func TestEmptyListIsCompleteAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		_, sub := subscribe(t, factory(t, s), configMapKey)
		is(t, "checkpoint", sub.Checkpoint(0), "100")
		s.Advance(5)
		s.Bookmark()
		synctest.Wait()
		is(t, "checkpoint after a bookmark", sub.Checkpoint(0), "105")
	})
}

// A continue token that expires makes the list begin anew; when that goes on, it
// is read in one piece. Pages of different versions are never mixed.
func TestListExpiresWhileItIsPaged(t *testing.T) {
	for _, expirations := range []int{1, 3, 100} {
		t.Run(fmt.Sprint(expirations), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, numbered(600)...)
				var left atomic.Int64
				left.Store(int64(expirations))
				s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Query().Get("continue") == "" || left.Add(-1) < 0 {
						return false
					}
					apitest.Fail(w, http.StatusGone, "Expired")
					return true
				})
				j, sub := subscribe(t, factory(t, s), configMapKey)
				is(t, "objects", len(j.take()), 600)
				requests := s.Requests("configmaps", false)
				last := requests[len(requests)-1].Query
				_, limited := last["limit"]
				is(t, "the last request has a limit", limited, expirations < 4)
				is(t, "expirations counted", sub.Status().Expired, uint64(min(expirations, 4)))
			})
		})
	}
}

// The server is set back between two pages of a list, and has the version of the first page again before it answers with the second: what that
// page had of another past is not listed.
func TestRollbackBetweenPages(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, numbered(600)...)
		backup := s.Save()
		put(s, "a-lost-one")
		var once sync.Once
		s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Has("continue") {
				once.Do(func() {
					s.Restore(backup)
					s.Cut()
					panic(http.ErrAbortHandler)
				})
			}
			return false
		})
		time.AfterFunc(20*time.Second, func() { s.Advance(100) })
		j, _ := subscribe(t, factory(t, s), configMapKey)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if _, lost := j.objects["a-lost-one"]; lost || len(j.objects) != 600 {
			t.Errorf("%d objects, the lost one among them: %t", len(j.objects), lost)
		}
	})
}

// A server that lists an object twice lists it once, in its newest state, and the end of the
// list stays where it is.
func TestListHasAnObjectTwice(t *testing.T) {
	for _, items := range []string{"a:101 a:103 b:102", "a:103 a:101 b:102", "b:102 a:101 a:103", "a:103 b:102 a:101"} {
		t.Run(items, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				s.Advance(10)
				put(s, "a")
				var twice atomic.Bool
				s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if !twice.Load() || !isList(r) {
						return false
					}
					var list []string
					for item := range strings.FieldsSeq(items) {
						name, version, _ := strings.Cut(item, ":")
						list = append(list, fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"ns","uid":"u","resourceVersion":"1%s"}}`, name, version))
					}
					_, _ = fmt.Fprintf(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":%q},"items":[%s]}`, s.Version(), strings.Join(list, ","))
					return true
				})
				j, sub := subscribe(t, factory(t, s), configMapKey)
				j.take()
				twice.Store(true)
				s.Advance(1200)
				s.Compact()
				s.Cut()
				time.Sleep(time.Minute)
				synctest.Wait()
				told := j.take()
				slices.Sort(told)
				is(t, "told", strings.Join(told, ", "), "add b, update a")
				is(t, "version", j.objects["a"].GetResourceVersion(), "1103")
				is(t, "checkpoint of the list", sub.Checkpoint(j.seen()), s.Version())
			})
		})
	}
}

// Failing lists are tried again until they succeed, and meanwhile tell why.
func TestListFails(t *testing.T) {
	for _, tc := range []struct {
		code   int
		reason string
		state  dynamicfactory.State
		counts string
	}{
		{http.StatusForbidden, "Forbidden", dynamicfactory.StateForbidden, "forbidden"},
		{http.StatusUnauthorized, "Unauthorized", dynamicfactory.StateForbidden, "forbidden"},
		{http.StatusNotFound, "NotFound", dynamicfactory.StateWaiting, "not found"},
		{http.StatusInternalServerError, "InternalError", dynamicfactory.StateBackingOff, ""},
		{http.StatusTooManyRequests, "TooManyRequests", dynamicfactory.StateBackingOff, ""},
		{http.StatusNotAcceptable, "NotAcceptable", dynamicfactory.StateBackingOff, ""},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a")
				s.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
					apitest.Fail(w, tc.code, tc.reason)
					return true
				})
				j, sub := subscribe(t, factory(t, s), configMapKey)
				st := sub.Status()
				is(t, "state", st.State, tc.state)
				is(t, "reason", st.Reason, tc.reason)
				is(t, "refusals", st.Forbidden > 0, tc.counts == "forbidden")
				is(t, "absences", st.NotFound > 0, tc.counts == "not found")
				j.expect(t)
				s.Intercept(nil)
				<-sub.Synced()
				synctest.Wait()
				j.expect(t, "initial a")
				is(t, "state at last", sub.Status().State, dynamicfactory.StateWatching)
			})
		})
	}
}

// While an attempt lasts, the state is what the last one ended with.
func TestStateOfALongAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		var asked atomic.Int64
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			switch asked.Add(1) {
			case 1:
				time.Sleep(10 * time.Second)
				apitest.Fail(w, http.StatusForbidden, "Forbidden")
				return true
			case 2:
				time.Sleep(10 * time.Second)
			}
			return false
		})
		_, sub := subscribe(t, factory(t, s), configMapKey)
		is(t, "at first", sub.Status().State, dynamicfactory.StateListing)
		time.Sleep(15 * time.Second)
		is(t, "during the second attempt", sub.Status().State, dynamicfactory.StateForbidden)
		is(t, "requests", asked.Load(), 2)
		time.Sleep(10 * time.Second)
		is(t, "at last", sub.Status().State, dynamicfactory.StateWatching)
	})
}

// The namespace of the factory is that of keys without one.
func TestNamespaceOfTheFactory(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		s.Put(configMapPath, "other", "b", nil)
		f := factory(t, s, dynamicfactory.WithNamespace("ns"))
		j, sub := subscribe(t, f, configMapKey)
		j.expect(t, "initial a")
		is(t, "namespace", sub.Key().Namespace, "ns")
		elsewhere := configMapKey
		elsewhere.Namespace = "other"
		j, _ = subscribe(t, f, elsewhere)
		j.expect(t, "initial b")
	})
}

// An item that cannot even be named makes the list fail as a whole: what is cached
// stays, and nothing counts as deleted.
func TestListWithAnItemWithoutName(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a", "b")
		var broken atomic.Bool
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !broken.Load() || !isList(r) {
				return false
			}
			_, _ = w.Write([]byte(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"300"},"items":[` +
				`{"metadata":{"name":"a","resourceVersion":"299"}},{"metadata":{"name":5,"resourceVersion":"299"}}]}`))
			return true
		})
		j, sub := subscribe(t, factory(t, s), configMapKey)
		j.expect(t, "initial a", "initial b")
		broken.Store(true)
		s.Advance(1)
		s.Compact()
		s.Cut()
		time.Sleep(time.Minute)
		j.expect(t)
		st := sub.Status()
		is(t, "cached", st.Objects, 2)
		is(t, "state", string(st.State)+" "+st.Reason, "backing-off Unreadable")
		if st.DecodeErrors < 2 {
			t.Errorf("%d lists that could not be read in a minute", st.DecodeErrors)
		}
		s.Delete(configMapPath, "ns", "b")
		broken.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		j.expect(t, "delete? b", "update a")
	})
}

func TestMetadataOnly(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{MetadataOnly: true})
		is(t, "list", s.Requests("configmaps", false)[0].Header.Get("Accept"), "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
		is(t, "watch", s.Requests("configmaps", true)[0].Header.Get("Accept"), "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	})
}

func TestSelectorsAndNamespace(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		s.Put(configMapPath, "other", "b", nil)
		k := dynamicfactory.Key{GVR: configMaps, Namespace: "ns", LabelSelector: "a in (b,c)", FieldSelector: "metadata.name!=x"}
		j, _ := subscribe(t, factory(t, s), k)
		j.expect(t, "initial a")
		for _, isWatch := range []bool{false, true} {
			r := s.Requests("configmaps", isWatch)[0]
			is(t, "request", fmt.Sprint(r.Namespace, r.Query["labelSelector"], r.Query["fieldSelector"]), "ns"+k.LabelSelector+k.FieldSelector)
		}
	})
}

// However many informers there are, only so many pages are read at a time.
func TestListsShareASemaphore(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		var now, most atomic.Int64
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("limit") == "500" {
				most.Store(max(most.Load(), now.Add(1)))
				w.(http.Flusher).Flush() // the response begins
				time.Sleep(10 * time.Second)
				now.Add(-1)
			}
			return false
		})
		listing(t, factory(t, s, dynamicfactory.WithListConcurrency(2)), 5)
		time.Sleep(25 * time.Second)
		is(t, "lists in 25 seconds", lists(s), 5)
		is(t, "pages at a time", most.Load(), 2)
	})
}

// listing begins n informers.
func listing(t *testing.T, f *dynamicfactory.RESTFactory, n int) {
	t.Helper()
	for range n {
		if _, err := f.SubscribeDurable(t.Context(), configMapKey, newJournal(), dynamicfactory.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A page that hangs in the middle holds up the others for its time at most.
func TestPageHangs(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		var asked atomic.Int64
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("limit") == "500" && asked.Add(1) <= 2 {
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				return true
			}
			return false
		})
		f := factory(t, s, dynamicfactory.WithListConcurrency(2))
		listing(t, f, 5)
		time.Sleep(119 * time.Second)
		is(t, "lists", lists(s), 2)
		time.Sleep(1500 * time.Millisecond)
		is(t, "lists after the page's time", lists(s), 5)
		time.Sleep(time.Minute)
		for _, st := range f.Statuses() {
			is(t, "state", st.State, dynamicfactory.StateWatching)
		}
	})
}

// The lists of an API whose backend or conversion webhook hangs fail after half a minute each. They do
// not hold up those of the other resources.
func TestListsBesideAnAPIThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, numbered(5000)...)
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasPrefix(r.URL.Path, "/apis/example.com/") {
				return false
			}
			select {
			case <-time.After(30 * time.Second):
				apitest.Fail(w, http.StatusInternalServerError, "InternalError")
			case <-r.Context().Done():
			}
			return true
		})
		f := factory(t, s)
		for i := range 30 {
			k := dynamicfactory.Key{GVR: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: fmt.Sprintf("kind%ds", i)}}
			if _, err := f.SubscribeDurable(t.Context(), k, newJournal(), dynamicfactory.DurableOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour) // the attempts of those lists are spread
		began := time.Now()
		_, sub := subscribe(t, f, configMapKey)
		<-sub.Synced()
		if d := time.Since(began); d > time.Minute {
			t.Errorf("the list of ten pages took %v", d)
		}
	})
}
