package dynamicfactory_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// forgetful has the server refuse watches from versions that are older than a time,
// as kube-apiserver's watch cache does. It returns what puts an object.
func forgetful(s *apitest.Server, history, page time.Duration) (put func(name string, size int)) {
	put, watch := remembering(s, history)
	s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if isList(r) {
			time.Sleep(page)
			return false
		}
		return watch(w, r)
	})
	return put
}

// remembering returns what puts an object, and what refuses watches from before the history.
func remembering(s *apitest.Server, history time.Duration) (put func(name string, size int), watch func(http.ResponseWriter, *http.Request) bool) {
	var mu sync.Mutex
	since := map[string]time.Time{} // when a version was the present one
	watch = func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		at, ok := since[r.URL.Query().Get("resourceVersion")]
		if isWatch(r) && ok && time.Since(at) > history {
			apitest.Fail(w, http.StatusGone, "Expired")
			return true
		}
		return false
	}
	put = func(name string, size int) {
		mu.Lock()
		defer mu.Unlock()
		s.Put(configMapPath, "ns", name, map[string]any{"data": map[string]any{"x": strings.Repeat("y", size)}})
		since[s.Version()] = time.Now()
	}
	return put, watch
}

// A list that takes longer than the server remembers is followed by the watch all the
// same: that has begun with the list's first page.
func TestListSlowerThanTheHistory(t *testing.T) {
	for _, paused := range []bool{false, true} {
		t.Run(fmt.Sprint("paused ", paused), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put := forgetful(s, 75*time.Second, 12*time.Second)
				for _, name := range numbered(4000) { // 8 pages
					put(name, 10)
				}
				opts := dynamicfactory.DurableOptions{OnGap: func(g dynamicfactory.Gap) { t.Errorf("a gap: %v", g) }}
				if paused {
					opts.Window = 10
				}
				j, sub := subscribe(t, factory(t, s), configMapKey, opts)
				time.Sleep(12500 * time.Millisecond) // the first page is read
				for i := range 200 {                 // a change a second
					time.Sleep(time.Second)
					put(fmt.Sprintf("new-%03d", i), 10)
				}
				<-sub.Synced()
				synctest.Wait()
				told := j.take()
				is(t, "listed", strings.Count(strings.Join(told, ","), "initial"), 4000)
				if paused {
					is(t, "events up to the window", len(told), 4010)
					j.mu.Lock()
					j.acks = sub.Ack
					j.mu.Unlock()
					sub.Ack(j.seen())
					synctest.Wait()
					told = append(told, j.take()...)
				}
				for i, line := range told[4000:] {
					is(t, "event", line, fmt.Sprintf("add new-%03d", i))
				}
				is(t, "told", len(told), 4200)
				is(t, "pages", lists(s), 8)
				is(t, "watches", watches(s), 1)
				is(t, "state", sub.Status().State, dynamicfactory.StateWatching)
			})
		})
	}
}

// A server that expires the version of every list before the second page is listed as a
// whole. That takes longer than it remembers, too: the watch begins with the head of the list.
func TestWholeListSlowerThanTheHistory(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		const objects, pause = 600, 200 * time.Millisecond // two minutes in all
		put, watch := remembering(s, 75*time.Second)
		for _, name := range numbered(objects) {
			put(name, 10)
		}
		version := s.Version()
		var whole atomic.Int64
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			q := r.URL.Query()
			switch {
			case !isList(r):
				return watch(w, r)
			case q.Get("continue") != "":
				apitest.Fail(w, http.StatusGone, "Expired")
				return true
			case q.Get("limit") != "":
				return false
			}
			whole.Add(1)
			_, _ = fmt.Fprintf(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":%q},"items":[`, version)
			for i, name := range numbered(objects) {
				comma := ","
				if i == 0 {
					comma = ""
				}
				_, _ = fmt.Fprintf(w, `%s{"metadata":{"name":%q,"namespace":"ns","uid":%q,"resourceVersion":%q}}`, comma, name, name, version)
				w.(http.Flusher).Flush()
				time.Sleep(pause)
			}
			_, _ = w.Write([]byte("]}"))
			return true
		})
		j, sub := subscribe(t, factory(t, s), configMapKey, dynamicfactory.DurableOptions{
			OnGap: func(g dynamicfactory.Gap) { t.Errorf("a gap: %v", g) },
		})
		time.Sleep(10 * time.Second) // the head is read
		for i := range 150 {         // a change a second
			time.Sleep(time.Second)
			put(fmt.Sprintf("new-%03d", i), 10)
		}
		<-sub.Synced()
		synctest.Wait()
		told := j.take()
		for i, line := range told[min(objects, len(told)):] {
			is(t, "event", line, fmt.Sprintf("add new-%03d", i))
		}
		is(t, "told", len(told), objects+150)
		is(t, "whole lists", whole.Load(), 1)
	})
}

// What a waiting watch brings beyond what fits in memory goes to files, which are
// gone when it has been handed on. Without room for files the watch is not read
// meanwhile, and nothing is lost either.
func TestSlowListOfABusyResource(t *testing.T) {
	for _, room := range []bool{true, false} {
		t.Run(fmt.Sprint("room ", room), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				dir := t.TempDir()
				if !room {
					dir += "/missing"
				}
				put := forgetful(s, time.Hour, 10*time.Second)
				for _, name := range numbered(1100) { // 3 pages
					put(name, 10)
				}
				j, sub := subscribe(t, factory(t, s, dynamicfactory.WithSpoolDir(dir)), configMapKey)
				time.Sleep(15 * time.Second) // the first page is read
				const n, size = 100, 1 << 20
				for i := range n {
					put(fmt.Sprintf("new-%03d", i), size)
				}
				<-sub.Synced()
				synctest.Wait()
				told := j.take()
				for i, line := range told[1100:] {
					is(t, "event", line, fmt.Sprintf("add new-%03d", i))
					is(t, "size", j.objects[line[4:]].RawLen() > size, true)
				}
				is(t, "told", len(told), 1100+n)
				is(t, "watches", watches(s), 1)
				s.Cut()
				synctest.Wait()
				if left, err := os.ReadDir(dir); room && (err != nil || len(left) > 0) {
					t.Errorf("left in the folder: %v, %v", left, err)
				}
			})
		})
	}
}

// A stop amid events that wait in files, before and while they are handed on, leaves
// no file and no watch behind. The next start has every event that was not acknowledged.
func TestStopWhileEventsWaitInFiles(t *testing.T) {
	for _, listed := range []bool{false, true} {
		t.Run(fmt.Sprint("listed ", listed), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				dir := t.TempDir()
				put := forgetful(s, time.Hour, 10*time.Second)
				for _, name := range numbered(1100) { // 3 pages
					put(name, 10)
				}
				opts := window(10)
				j, sub := subscribe(t, factory(t, s, dynamicfactory.WithSpoolDir(dir)), configMapKey, opts)
				time.Sleep(15 * time.Second) // the first page is read
				const n, size = 80, 1 << 20
				for i := range n {
					put(fmt.Sprintf("new-%03d", i), size)
				}
				snap := &dynamicfactory.WarmStart{}
				told := 1100 + n
				if listed {
					<-sub.Synced()
					synctest.Wait()
					sub.Ack(j.seen())
					synctest.Wait()
					seen := j.take()
					snap.ResourceVersion = sub.Checkpoint(j.seen())
					told -= len(seen) - 1 // more events may have the last version
					for _, o := range j.objects {
						if o.GetName() != seen[len(seen)-1][len("add "):] {
							snap.Objects = append(snap.Objects, o)
						}
					}
				}
				sub.Close()
				synctest.Wait()
				is(t, "watches at last", s.Watches(configMapPath), 0)
				if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
					t.Errorf("left in the folder: %v, %v", left, err)
				}
				next, again := subscribe(t, factory(t, s, dynamicfactory.WithSpoolDir(dir)), configMapKey, remember(snap, dynamicfactory.DurableOptions{}))
				<-again.Synced()
				time.Sleep(time.Minute)
				is(t, "objects", len(next.objects), 1100+n)
				is(t, "told", len(next.take()), told+len(snap.Objects))
			})
		})
	}
}

// A waiting watch that is refused is asked for again with the next page. If it is
// refused because the history is gone, the list begins again.
func TestWatchOfASlowListIsRefused(t *testing.T) {
	for _, tc := range []struct {
		code         int
		reason       string
		begun, asked int
	}{
		{http.StatusServiceUnavailable, "ServiceUnavailable", 1, 2},
		{http.StatusForbidden, "Forbidden", 1, 2},
		{http.StatusGone, "Expired", 2, 2},
		{0, "error line", 2, 2},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, numbered(1100)...)
				var begun atomic.Int64
				var refused atomic.Bool
				s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					switch {
					case isList(r):
						if r.URL.Query().Get("continue") == "" {
							begun.Add(1)
						}
						time.Sleep(time.Second)
						return false
					case !isWatch(r) || refused.Swap(true):
						return false
					case tc.code != 0:
						apitest.Fail(w, tc.code, tc.reason)
					default:
						_, _ = fmt.Fprintln(w, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired"}}`)
					}
					return true
				})
				j, sub := subscribe(t, factory(t, s), configMapKey)
				time.Sleep(2500 * time.Millisecond)
				put(s, "late")
				<-sub.Synced()
				synctest.Wait()
				told := len(j.take())
				is(t, "told", told, 1101)
				is(t, "lists begun", int(begun.Load()), tc.begun)
				is(t, "watches", watches(s), tc.asked)
			})
		})
	}
}

// An informer that stops while its list is read leaves no watch behind.
func TestStopWhileAWatchWaits(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, numbered(600)...)
		s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("continue") != "" {
				time.Sleep(10 * time.Second)
			}
			return false
		})
		_, sub := subscribe(t, factory(t, s), configMapKey)
		is(t, "watches", s.Watches(configMapPath), 1)
		sub.Close()
		synctest.Wait()
		is(t, "watches at last", s.Watches(configMapPath), 0)
	})
}

// A list without pages may take as long as it needs while something comes.
func TestLongListWithoutPages(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, numbered(600)...)
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			switch q := r.URL.Query(); {
			case !isList(r):
				return false
			case q.Get("continue") != "":
				apitest.Fail(w, http.StatusGone, "Expired")
				return true
			case q.Get("limit") != "":
				return false
			}
			_, _ = fmt.Fprint(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"700"},"items":[`)
			for i := range 10 {
				_, _ = fmt.Fprintf(w, `{"metadata":{"name":"a%d","namespace":"ns","uid":"a","resourceVersion":"600"}},`, i)
				w.(http.Flusher).Flush()
				time.Sleep(time.Minute)
			}
			_, _ = fmt.Fprint(w, `{"metadata":{"name":"b","namespace":"ns","uid":"b","resourceVersion":"600"}}]}`)
			return true
		})
		_, sub := subscribe(t, factory(t, s), configMapKey)
		time.Sleep(11 * time.Minute)
		is(t, "objects", sub.Status().Objects, 11)
	})
}
