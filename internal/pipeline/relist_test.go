package pipeline

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// relisting is a cluster whose watch of pods lists again, while pods change and go.
type relisting struct {
	api   *apitest.Server
	names []string
	want  map[string]string // the types of what happens to a pod; all others: sync
}

func newRelisting(t *testing.T, n int) *relisting {
	t.Helper()
	r := &relisting{want: map[string]string{}}
	r.api, r.names = podServer(t, n)
	return r
}

// beforeList has pods change and go between the end of a watch and the list. The list
// shows the last states only.
func (r *relisting) beforeList() {
	for i := 0; i < len(r.names); i += 3 {
		n := r.names[i]
		r.api.Put(podPath, "ns", n, phase("1"))
		r.api.Put(podPath, "ns", n, phase("2"))
		r.want[n] = "sync updated"
	}
	for i := 1; i < len(r.names); i += 3 {
		n := r.names[i]
		r.api.Put(podPath, "ns", n, phase("1"))
		r.api.Delete(podPath, "ns", n)
		r.want[n] = "sync deleted"
	}
}

func (r *relisting) afterList() {
	for i := 0; i < len(r.names); i += 9 {
		r.api.Put(podPath, "ns", r.names[i], phase("3"))
		r.want[r.names[i]] += " updated"
	}
	for i := 3; i < len(r.names); i += 9 {
		r.api.Delete(podPath, "ns", r.names[i])
		r.want[r.names[i]] += " deleted"
	}
}

// run relists, has the committer take so many notifications of the list, and holds it
// there until release is called.
func (r *relisting) run(l *live, notifications int) (release func()) {
	l.Helper()
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	l.caughtUp()
	var once sync.Once
	r.api.Intercept(func(_ http.ResponseWriter, req *http.Request) bool {
		if req.URL.Path == podPath && req.URL.Query().Get("watch") == "" {
			once.Do(r.beforeList)
		}
		return false
	})
	taken, released := make(chan error, 1), make(chan struct{})
	go func() {
		_ = l.m.committer.AtBarrier(func(b commit.Barrier) {
			taken <- b.Take(notifications)
			<-released
		})
	}()
	l.m.informerList()[0].sub.Load().Relist(commit.CauseConsistencyCheck)
	if err := <-taken; err != nil {
		l.Fatal(err)
	}
	return func() { close(released) }
}

// TestStopDuringRelist ends watcherd, by a signal and by a kill, while a list that it
// has asked for again is being committed. Nothing is told twice after it, invented or
// told in another order.
func TestStopDuringRelist(t *testing.T) {
	for _, killed := range []bool{false, true} {
		for _, stopAt := range []int{2, 600, 1700} {
			for _, compacted := range []bool{false, true} {
				t.Run(fmt.Sprintf("killed=%t/at=%d/compacted=%t", killed, stopAt, compacted), func(t *testing.T) {
					t.Parallel()               // they wait for client-go to try again
					r := newRelisting(t, 3000) // more than a committer takes that ends
					fs := vfs.NewCrashableMem()
					l := runLive(t, "store", store.Options{FS: fs}, r.api, served{pods})
					release := r.run(l, stopAt)
					if killed {
						fs = fs.CrashClone(vfs.CrashCloneCfg{})
					}
					s := l.m.informerList()[0]
					stopped := make(chan struct{})
					go func() {
						l.stop()
						close(stopped)
					}()
					<-s.Stopped()
					release()
					<-stopped
					r.afterList()
					if compacted {
						r.api.Compact()
					}
					l = runLive(t, "store", store.Options{FS: fs}, r.api, served{pods})
					l.apply(l.state(committest.PodWatch()))
					l.caughtUp()
					l.synced() // the sweep, too
					r.check(l, compacted)
				})
			}
		}
	}
}

func (r *relisting) check(l *live, compacted bool) {
	l.Helper()
	h := l.log()
	wrong := 0
	for _, n := range r.names {
		want := r.want[n]
		if want == "" {
			want = "sync"
		}
		got := h.types(n)
		ok := got == want
		if compacted { // states in between may be lost, as the gap says
			ok = ok || lossy(want) == lossy(got)
		}
		if !ok || !rising(h[n]) {
			if wrong++; wrong < 4 {
				l.Logf("%s: %q, want %s", n, h[n], want)
			}
		}
	}
	if wrong > 0 {
		l.Errorf("%d of %d pods have a wrong history", wrong, len(r.names))
	}
}

// lossy is a history without updates.
func lossy(types string) string { return strings.ReplaceAll(types, " updated", "") }

// rising reports whether the versions of lines of "type version" do not go back, and
// nothing is told twice.
func rising(lines []string) bool {
	last, seen := "", map[string]bool{}
	for _, line := range lines {
		f := strings.Fields(line)
		if ledger.Newer(last, f[1]) || seen[line] {
			return false
		}
		last, seen[line] = f[1], true
	}
	return true
}

// TestRollbackIsFollowed sets the API server back: the older states are recorded, and
// watcherd that ends in the middle of it goes on with them.
func TestRollbackIsFollowed(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped=%t", stopped), func(t *testing.T) {
			api, names := podServer(t, 1500)
			dir := t.TempDir()
			l := runLive(t, dir, store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch()))
			l.synced()
			saved := api.Save()
			for _, n := range names {
				api.Put(podPath, "ns", n, phase("lost"))
			}
			l.caughtUp()
			api.Restore(saved)
			api.Cut()
			before := l.committed()
			eventually(t, "the first of the older states", func() bool { return l.committed() > before+1 })
			if stopped {
				l.stop()
				l = runLive(t, dir, store.Options{}, api, served{pods})
				l.apply(l.state(committest.PodWatch()))
			}
			eventually(t, "the older states", func() bool { return l.committed() >= before+2+len(names) })
			l.synced()
			h := l.log()
			if got := fmt.Sprint(h[""]); got != "[gap rollback]" {
				t.Errorf("gaps %s", got)
			}
			for i, n := range names {
				if want := fmt.Sprintf("updated %d", 101+i); len(h[n]) != 3 || h[n][2] != want {
					t.Fatalf("%s: %q, want the last to be %s", n, h[n], want)
				}
			}
		})
	}
}

// TestRollbackOfWhatIsNotWatched sets the cluster back while a resource is not watched, and has it pass the version that the resource had
// come to: its watch does not resume from there.
func TestRollbackOfWhatIsNotWatched(t *testing.T) {
	for name, different := range map[string]bool{"the objects differ": true, "they are the same": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api := podsAndWidgets(t)
				api.Put(widgetPath, "ns", "w", nil)
				api.Put(podPath, "ns", "kept", nil)
				saved := api.Save()
				api.Advance(1)
				objects := 2
				if different {
					api.Put(podPath, "ns", "lost", nil)
					objects++
				}
				l := runLive(t, t.TempDir(), store.Options{}, api, serving(pods, widgets))
				both := l.both()
				l.apply(both)
				eventually(t, "sync", func() bool { return len(l.log()) == objects })
				l.apply(l.state(watchOf("w", nil, "widgets.example.com")))
				time.Sleep(10 * time.Minute) // the gap is a long one
				api.Restore(saved)
				api.Cut()
				eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) == 1 })
				if different {
					api.Put(podPath, "ns", "new", nil)
				}
				api.Advance(10)
				l.apply(both)
				eventually(t, "the gap of pods", func() bool { return len(l.log()[""]) == 2 })
				l.synced()
				if different {
					eventually(t, "the new one", func() bool { return l.log().types("new") != "" })
				}
				h := l.log()
				if got := fmt.Sprint(h[""]); got != "[gap rollback gap rollback]" {
					t.Errorf("gaps %s", got)
				}
				got := fmt.Sprint(h.types("kept"), ", ", h.types("lost"), ", ", h.types("new"))
				if want := map[bool]string{true: "sync, sync deleted, added", false: "sync, , "}[different]; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

// TestRollbackOfLeftNamespaces sets the cluster back while a watch reads one namespace of all that it had read, and gives it all of them
// back: the older states of the others are recorded, and so are the changes behind them at versions that were there before.
func TestRollbackOfLeftNamespaces(t *testing.T) {
	api := apitest.New(t)
	api.Serve(podPath, "v1", "Pod")
	api.Put(podPath, "a", "here", nil)
	api.Put(podPath, "b", "there", nil)
	api.Put(podPath, "b", "kept", nil)
	saved := api.Save()
	api.Advance(20)
	api.Put(podPath, "b", "there", phase("lost"))
	api.Put(podPath, "b", "lost", nil)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	l.apply(l.state(committest.PodWatch(only("a"))))
	eventually(t, "a watch of the namespace", func() bool { return api.Watches(podPath) == 1 && l.m.informerList()[0].Key.Namespace == "a" })
	api.Restore(saved)
	api.Cut()
	eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) == 1 })
	api.Put(podPath, "a", "here", phase("1"))
	eventually(t, "a change", func() bool { return l.log().types("here") == "sync updated" })
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	api.Put(podPath, "b", "there", phase("1"))
	l.caughtUp()
	h := l.log()
	for name, want := range map[string]string{"here": "sync updated", "there": "sync updated updated", "kept": "sync", "lost": "sync deleted", "": "gap gap"} {
		if got := h.types(name); got != want {
			t.Errorf("%q: %q, want %s", name, h[name], want)
		}
	}
}

// TestRollbackOfWhatCannotBeWatched sets the cluster back while a resource must not be read, and has it pass the version that the resource had
// come to while nothing runs: its watch does not resume from there.
func TestRollbackOfWhatCannotBeWatched(t *testing.T) {
	for name, passed := range map[string]bool{"it is allowed in a later life": true, "it is allowed again": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api := podsAndWidgets(t)
				api.Put(podPath, "ns", "pod", nil)
				api.Put(widgetPath, "ns", "w", nil)
				saved := api.Save()
				api.Advance(1)
				api.Put(widgetPath, "ns", "w", phase("lost"))
				api.Put(widgetPath, "ns", "lost", nil)
				fs := vfs.NewCrashableMem()
				l := runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
				both := l.both()
				l.apply(both)
				eventually(t, "sync", func() bool { return len(l.log()) == 3 })
				l.checkpointed("widgets.example.com#", "v1")
				var forbidden atomic.Bool
				forbidden.Store(true)
				forbid(api, func(r *http.Request) bool { return forbidden.Load() && r.URL.Path == widgetPath })
				api.Cut()
				eventually(t, "the widgets are not watched", func() bool { return api.Watches(widgetPath) == 0 })
				time.Sleep(10 * time.Minute)
				api.Restore(saved)
				api.Cut()
				eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) == 1 })
				time.Sleep(time.Minute)
				if passed {
					l.stop()
					api.Advance(20)
				}
				forbidden.Store(false)
				for range 2 { // once it is known, there is no second gap
					if passed {
						l = runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
						l.apply(both)
					}
					eventually(t, "the state of before", func() bool { return l.log().types("w") == "sync updated" })
					eventually(t, "its list is durable", func() bool {
						cp, ok, err := l.m.ledger.Checkpoint("widgets.example.com#")
						return err == nil && ok && cp.Synced && cp.Gap == nil && cp.Listing == nil
					})
					time.Sleep(time.Minute)
					h := l.log()
					if got := fmt.Sprint(h[""], h.types("lost")); got != "[gap rollback gap rollback]sync deleted" {
						t.Errorf("got %s", got)
					}
					if passed {
						l.stop()
					}
				}
			})
		})
	}
}

// TestRollbackPassedWhileRefused sets the cluster back while a resource must not be read, and has it pass the version that the resource had
// come to before it may be read again: the older version of then counts.
func TestRollbackPassedWhileRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		code    int
		changed bool
	}{
		"an object is missing, and there is a new one": {code: http.StatusForbidden},
		"the server fails": {code: http.StatusInternalServerError},
		"an object has another state, of a version then": {code: http.StatusForbidden, changed: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api := podsAndWidgets(t)
				api.Put(podPath, "ns", "pod", nil)
				api.Put(widgetPath, "ns", "w", nil)
				saved := api.Save()
				api.Advance(1)
				api.Put(widgetPath, "ns", "w", phase("lost"))
				api.Put(widgetPath, "ns", "lost", nil)
				objects, want := 3, "[gap rollback gap rollback] sync updated/sync deleted/added"
				if tc.changed {
					api.Delete(widgetPath, "ns", "lost")
					objects, want = 2, "[gap rollback gap rollback] sync updated//"
				}
				l := runLive(t, t.TempDir(), store.Options{}, api, serving(pods, widgets))
				l.apply(l.both())
				eventually(t, "sync", func() bool { return len(l.log()) == objects })
				l.checkpointed("widgets.example.com#", "v1")
				var refused atomic.Bool
				refused.Store(true)
				api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if refused.Load() && r.URL.Path == widgetPath {
						apitest.Fail(w, tc.code, map[int]string{http.StatusForbidden: "Forbidden"}[tc.code])
						return true
					}
					return false
				})
				api.Cut()
				eventually(t, "the widgets are not watched", func() bool { return api.Watches(widgetPath) == 0 })
				time.Sleep(10 * time.Minute)
				api.Restore(saved)
				api.Cut()
				eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) == 1 })
				if tc.changed {
					api.Advance(2)
					api.Put(widgetPath, "ns", "w", phase("1"))
				} else {
					api.Put(widgetPath, "ns", "new", nil)
				}
				time.Sleep(time.Minute) // it is refused again
				api.Advance(20)
				time.Sleep(time.Minute)
				refused.Store(false)
				eventually(t, "the widgets are watched", func() bool { return api.Watches(widgetPath) == 1 })
				l.checkpointed("widgets.example.com#", "v1")
				h := l.log()
				if got := fmt.Sprintf("%v %s/%s/%s", h[""], h.types("w"), h.types("lost"), h.types("new")); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

// TestRollbackThatAnotherWatchFinds sets the cluster back, has it pass the version that a resource had come to before the watch of that
// can find it, and has another watch find it: the resource is compared, and follows.
func TestRollbackThatAnotherWatchFinds(t *testing.T) {
	for name, tc := range map[string]struct{ refused, killed, between bool }{
		"its connection is dead":                           {},
		"the version passes between two looks at it":       {between: true},
		"its connection is dead, and the process ends":     {killed: true},
		"it must not be read, nor the namespaces":          {refused: true},
		"neither must be read, and the process ends early": {refused: true, killed: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api := podsAndWidgets(t)
				api.Put(podPath, "ns", "pod", nil)
				api.Put(widgetPath, "ns", "w", nil)
				saved := api.Save()
				api.Advance(1)
				api.Put(widgetPath, "ns", "w", phase("lost"))
				api.Put(widgetPath, "ns", "lost", nil)
				var refused, back atomic.Bool
				forbid(api, func(r *http.Request) bool {
					if r.URL.Path == widgetPath && r.URL.Query().Get("limit") == "1" && tc.between && back.CompareAndSwap(true, false) {
						api.Advance(20)
					}
					return tc.refused && r.URL.Path != podPath && (r.URL.Path != widgetPath || refused.Load())
				})
				fs := vfs.NewCrashableMem()
				l := runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
				both := l.both()
				l.apply(both)
				eventually(t, "sync", func() bool { return len(l.log()) == 3 })
				l.checkpointed("widgets.example.com#", "v1")
				l.checkpointed("pods#", "v1")
				if tc.refused {
					refused.Store(true)
					api.Cut()
					eventually(t, "the widgets are not watched", func() bool { return api.Watches(widgetPath) == 0 && api.Watches(podPath) == 1 })
				}
				time.Sleep(10 * time.Minute)
				api.Restore(saved)
				back.Store(true)
				api.Bookmark(podPath)
				eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) > 0 })
				if !tc.between {
					api.Advance(20)
				}
				if tc.killed {
					fs = fs.CrashClone(vfs.CrashCloneCfg{})
					l.stop()
					l = runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
					l.apply(both)
				}
				time.Sleep(time.Minute)
				refused.Store(false)
				time.Sleep(10 * time.Minute)
				h := l.log()
				if got, want := fmt.Sprint(h[""], h.types("w"), ", ", h.types("lost")), "[gap rollback gap rollback]sync updated, sync deleted"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

// TestChangesBeforeARollbackComeLate sets the cluster back while changes of a resource wait for the committer, and another watch finds it
// before they are committed: the next life of the resource, which must not be read until then, does not resume behind them.
func TestChangesBeforeARollbackComeLate(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := podsAndWidgets(t)
		api.Put(podPath, "ns", "pod", nil)
		api.Put(widgetPath, "ns", "w", nil)
		saved := api.Save()
		api.Advance(1)
		var refused atomic.Bool
		api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != widgetPath || !refused.Load() {
				return false
			}
			apitest.Fail(w, http.StatusForbidden, "Forbidden")
			return true
		})
		fs := vfs.NewCrashableMem()
		l := runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
		both := l.both()
		l.apply(both)
		eventually(t, "sync", func() bool { return len(l.log()) == 2 })
		l.checkpointed("widgets.example.com#", "v1")
		held, released := make(chan struct{}), make(chan struct{})
		go func() {
			_ = l.m.committer.AtBarrier(func(commit.Barrier) { close(held); <-released })
		}()
		<-held
		const changes = 1000 // more than wait in the committer's queue
		for i := range changes {
			api.Put(widgetPath, "ns", "w", phase(fmt.Sprint("lost ", i)))
		}
		passed := api.Version()
		time.Sleep(time.Minute)
		refused.Store(true)
		api.Restore(saved)
		api.Cut()
		time.Sleep(time.Minute)
		close(released)
		eventually(t, "the changes", func() bool { return len(l.log()["w"]) == 1+changes })
		l.m.committer.Flush()
		eventually(t, "the rollback shows", func() bool { return fmt.Sprint(l.log()[""]) == "[gap rollback]" })
		time.Sleep(time.Minute) // checkpoints are written
		fs = fs.CrashClone(vfs.CrashCloneCfg{})
		l.stop()
		for api.Version() != passed {
			api.Advance(1)
		}
		api.Advance(10)
		refused.Store(false)
		l = runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
		l.apply(both)
		time.Sleep(time.Minute)
		h := l.log()
		if got := fmt.Sprint(h[""]); got != "[gap rollback gap rollback]" || len(h["w"]) != 2+changes {
			t.Errorf("gaps %s, %d changes, the last is %s", got, len(h["w"]), h["w"][len(h["w"])-1])
		}
	})
}

// proxyTo answers requests as another server does.
func proxyTo(t *testing.T, elsewhere *apitest.Server) http.Handler {
	t.Helper()
	transport, err := rest.TransportFor(elsewhere.Config())
	if err != nil {
		t.Fatal(err)
	}
	host, err := url.Parse(elsewhere.Config().Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(host)
	proxy.Transport, proxy.FlushInterval = transport, -1
	return proxy
}

// stored is a resource that may have a storage of its own.
type stored struct {
	pattern, path, apiVersion, kind string
	resource                        dynamicfactory.Resource
}

// elsewhere returns an API server with pods, and the one that it has the resource from. before is called with each request; nil: nothing is.
func (own *stored) elsewhere(t *testing.T, before func(api *apitest.Server, r *http.Request)) (api, elsewhere *apitest.Server) {
	t.Helper()
	api, elsewhere = apitest.New(t), apitest.New(t)
	proxy := proxyTo(t, elsewhere)
	api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if before != nil {
			before(api, r)
		}
		if r.URL.Path == own.path {
			proxy.ServeHTTP(w, r)
		}
		return r.URL.Path == own.path
	})
	api.Serve(podPath, "v1", "Pod")
	elsewhere.Serve(own.path, own.apiVersion, own.kind)
	return api, elsewhere
}

// storedElsewhere are those.
var storedElsewhere = []stored{
	{"events", "/api/v1/events", "v1", "Event", resource("", "events")},
	{"routes.api.test", "/apis/api.test/v1/routes", "api.test/v1", "Route", resource("api.test", "routes")}, // of an aggregated API
}

// TestRollbackOfAStorageOfItsOwn sets back a resource that is stored elsewhere, at later versions: a watch of another resource goes on as if
// nothing had happened.
func TestRollbackOfAStorageOfItsOwn(t *testing.T) {
	for _, own := range storedElsewhere {
		t.Run(own.path, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var set atomic.Bool
				var gone sync.Once
				api, elsewhere := own.elsewhere(t, func(api *apitest.Server, r *http.Request) {
					if r.URL.Path == podPath && !r.URL.Query().Has("watch") && set.Load() { // what reads the objects finds that one has gone
						gone.Do(func() { api.Delete(podPath, "ns", "pod") })
					}
				})
				api.Put(podPath, "ns", "pod", nil)
				api.Put(podPath, "ns", "other", nil)
				elsewhere.Advance(1000)
				elsewhere.Put(own.path, "ns", "first", nil)
				l := runLive(t, t.TempDir(), store.Options{}, api, serving(pods, own.resource))
				l.apply(l.state(watchOf("p", nil, "pods"), watchOf("o", nil, own.pattern)))
				eventually(t, "sync", func() bool { return len(l.log()) == 3 })
				saved := elsewhere.Save()
				elsewhere.Put(own.path, "ns", "second", nil)
				eventually(t, "the second object", func() bool { return l.log().types("second") == "added" })
				elsewhere.Restore(saved)
				elsewhere.Cut()
				eventually(t, "the rollback", func() bool { return len(l.log()[""]) > 0 })
				set.Store(true)
				api.Put(podPath, "ns", "other", phase("1"))
				time.Sleep(10 * time.Minute)
				if got := fmt.Sprint(l.log()[""]); got != "[gap rollback]" {
					t.Errorf("gaps: %s", got)
				}
			})
		})
	}
}
