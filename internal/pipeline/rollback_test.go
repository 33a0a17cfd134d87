package pipeline

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
)

// TestRollbackBesideAWatchThatHadNotComeFurther sets the cluster back to what one of two watches had come to, and ends the process before the
// feeds are checked: that watch has missed nothing, and resumes.
func TestRollbackBesideAWatchThatHadNotComeFurther(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := podsAndWidgets(t)
		api.Put(podPath, "ns", "pod", nil)
		api.Put(widgetPath, "ns", "w", nil)
		saved := api.Save()
		fs := vfs.NewCrashableMem()
		l := runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
		both := l.both()
		l.apply(both)
		eventually(t, "sync", func() bool { return len(l.log()) == 2 })
		api.Put(podPath, "ns", "lost", nil)
		eventually(t, "the one that is lost", func() bool { return l.log().types("lost") == "added" })
		api.Restore(saved)
		api.Bookmark(podPath)
		eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) > 0 })
		api.Put(widgetPath, "ns", "w", phase("1"))
		api.Put(widgetPath, "ns", "w", phase("2"))
		api.Bookmark()
		l.checkpointed("widgets.example.com#", "v1")
		fs = fs.CrashClone(vfs.CrashCloneCfg{})
		l.stop()
		l = runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
		l.apply(both)
		time.Sleep(10 * time.Minute)
		h := l.log()
		if got, want := fmt.Sprint(h[""], h.types("w"), ", ", h.types("lost")), "[gap rollback]sync updated updated, added deleted"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// passing is a server of pods and widgets with one more of each than in a backup, which the server can go back to, and pass all versions before
// the watch of widgets finds it by an object.
type passing struct {
	*apitest.Server
	saved   apitest.Saved
	expired atomic.Bool // the next watch of widgets finds no history
	refused atomic.Bool // the metadata of pods are not listed
}

func newPassing(t *testing.T) *passing {
	p := &passing{Server: podsAndWidgets(t)}
	p.Put(podPath, "ns", "kept", nil)
	p.Put(widgetPath, "ns", "w", nil)
	p.saved = p.Save()
	p.Put(podPath, "ns", "lost", nil)
	p.Put(widgetPath, "ns", "w", phase("lost"))
	p.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch watch := r.URL.Query().Has("watch"); {
		case r.URL.Path == widgetPath && watch && p.expired.CompareAndSwap(true, false):
			apitest.Fail(w, http.StatusGone, "Expired")
		case r.URL.Path == podPath && !watch && p.refused.Load() && strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList"):
			apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
		default:
			return false
		}
		return true
	})
	return p
}

func (p *passing) goBack(l *live) {
	p.Restore(p.saved)
	p.Advance(20)
	p.expired.Store(true)
	p.Cut()
	eventually(l.T, "the rollback shows", func() bool { return len(l.log()[""]) == 1 })
}

func (p *passing) expect(l *live) {
	l.Helper()
	h := l.log()
	if got, want := fmt.Sprint(h[""], h.types("lost"), ", ", h.types("kept")), "[gap rollback gap rollback]sync deleted, sync"; got != want {
		l.Errorf("got %s, want %s", got, want)
	}
}

// TestRollbackThatHasPassed sets the cluster back and has it pass all versions before a watch finds it by an object: a resource that is not
// watched meanwhile does not resume.
func TestRollbackThatHasPassed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPassing(t)
		l := runLive(t, t.TempDir(), store.Options{}, p.Server, serving(pods, widgets))
		both := l.both()
		l.apply(both)
		eventually(t, "sync", func() bool { return len(l.log()) == 3 })
		l.apply(l.state(watchOf("w", nil, "widgets.example.com")))
		p.goBack(l)
		l.apply(both)
		time.Sleep(time.Minute)
		p.expect(l)
	})
}

// TestRollbackThatHasPassedAndTheEnd is TestRollbackThatHasPassed with a resource that is watched, and with a process that ends before the resource is
// checked: the next one, which records the objects in another form, does not take the list for that of changes that were seen.
func TestRollbackThatHasPassedAndTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, fs := newPassing(t), vfs.NewCrashableMem()
		l := runLive(t, "store", store.Options{FS: fs}, p.Server, serving(pods, widgets))
		l.apply(l.both())
		eventually(t, "sync", func() bool { return len(l.log()) == 3 })
		l.checkpointed("pods#", "v1")
		p.goBack(l)
		time.Sleep(20 * time.Second) // checkpoints are written
		fs = fs.CrashClone(vfs.CrashCloneCfg{})
		l.stop()
		l = runLive(t, "store", store.Options{FS: fs}, p.Server, serving(pods, widgets))
		l.apply(l.state(watchOf("p", func(w *plan.Watch) { w.Edits.Drop = append(w.Edits.Drop, "spec.a") }, "pods"), watchOf("w", nil, "widgets.example.com")))
		time.Sleep(10 * time.Minute)
		p.expect(l)
	})
}

// TestRollbackAndTheEndBeforeItsList finds a rollback by the version, or by an object that the consistency check meets, and has the process end before there is
// a list, and the cluster pass all versions before the next one begins: that one does not resume.
func TestRollbackAndTheEndBeforeItsList(t *testing.T) {
	for name, checked := range map[string]bool{"by the version": false, "by an object": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api := podsAndWidgets(t)
				api.Put(podPath, "ns", "kept", nil)
				saved := api.Save()
				api.Put(podPath, "ns", "kept", phase("lost"))
				api.Put(podPath, "ns", "lost", nil)
				var refused atomic.Bool
				api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					metadata := strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList")
					if !refused.Load() || r.URL.Path != podPath || r.URL.Query().Get("limit") != "500" || metadata {
						return false
					}
					apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
					return true
				})
				fs := vfs.NewCrashableMem()
				l := runLive(t, "store", store.Options{FS: fs}, api, serving(pods))
				st := l.state(watchOf("p", nil, "pods"))
				st.ConsistencyCheck = plan.ConsistencyCheck{Enabled: checked, Interval: time.Minute}
				l.apply(st)
				eventually(t, "sync", func() bool { return len(l.log()) == 2 })
				l.checkpointed("pods#", "v1")
				refused.Store(true)
				api.Restore(saved)
				if checked {
					api.Advance(20)
				} else {
					api.Cut()
				}
				time.Sleep(5 * time.Minute)
				fs = fs.CrashClone(vfs.CrashCloneCfg{})
				l.stop()
				api.Advance(20)
				refused.Store(false)
				l = runLive(t, "store", store.Options{FS: fs}, api, serving(pods))
				l.apply(l.state(watchOf("p", nil, "pods")))
				time.Sleep(10 * time.Minute)
				h := l.log()
				if got, want := fmt.Sprint(h[""], h.types("lost"), ", ", h.types("kept")), "[gap rollback]sync deleted, sync updated"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

// TestRollbackFoundByAListInAnotherForm has a feed that records its objects again, as its edits have changed, find a rollback before its list, which fails until the cluster
// has passed all versions: in this life, or in the next one.
func TestRollbackFoundByAListInAnotherForm(t *testing.T) {
	for name, killed := range map[string]bool{"it goes on": false, "the process ends": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api := apitest.New(t)
				api.Serve(podPath, "v1", "Pod")
				api.Put(podPath, "ns", "kept", nil)
				saved := api.Save()
				api.Put(podPath, "ns", "lost", nil)
				var refused atomic.Bool
				api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					metadata := strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList")
					if !refused.Load() || r.URL.Path != podPath || r.URL.Query().Get("limit") != "500" || metadata {
						return false
					}
					apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
					return true
				})
				fs := vfs.NewCrashableMem()
				l := runLive(t, "store", store.Options{FS: fs}, api, serving(pods))
				l.apply(l.state(watchOf("p", nil, "pods")))
				eventually(t, "sync", func() bool { return len(l.log()) == 2 })
				l.checkpointed("pods#", "v1")
				l.stop()
				api.Restore(saved)
				refused.Store(true)
				edited := watchOf("p", func(w *plan.Watch) { w.Edits.Drop = append(w.Edits.Drop, "spec.a") }, "pods")
				l = runLive(t, "store", store.Options{FS: fs}, api, serving(pods))
				l.apply(l.state(edited))
				time.Sleep(time.Minute)
				if killed {
					fs = fs.CrashClone(vfs.CrashCloneCfg{})
					l.stop()
				}
				api.Advance(20)
				refused.Store(false)
				if killed {
					l = runLive(t, "store", store.Options{FS: fs}, api, serving(pods))
					l.apply(l.state(edited))
				}
				time.Sleep(10 * time.Minute)
				h := l.log()
				if got, want := fmt.Sprint(h[""], h.types("lost"), ", ", h.types("kept")), "[gap rollback]sync deleted, sync"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

// TestCheckAfterARollbackIsRepeated refuses the lists that the check of a resource behind a rollback needs: the check is repeated.
func TestCheckAfterARollbackIsRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPassing(t)
		l := runLive(t, t.TempDir(), store.Options{}, p.Server, serving(pods, widgets))
		st := l.both()
		st.ConsistencyCheck = plan.ConsistencyCheck{Enabled: true, Interval: time.Hour}
		l.apply(st)
		eventually(t, "sync", func() bool { return len(l.log()) == 3 })
		p.refused.Store(true)
		p.goBack(l)
		p.Put(podPath, "ns", "new", nil)
		p.Bookmark()
		time.Sleep(3 * time.Hour)
		if l.m.setBack() == nil {
			t.Error("all count as checked")
		}
		var c checks
		if _, err := l.m.meta(checksMeta, &c); err != nil || time.Since(c.Began) > 100*time.Minute {
			t.Errorf("the last check of all feeds began %v ago, %v", time.Since(c.Began), err)
		}
		p.refused.Store(false)
		time.Sleep(10 * time.Minute)
		eventually(t, "the end of the checks", func() bool { return l.m.setBack() == nil })
		h := l.log()
		if got, want := h.types("lost"), "sync deleted"; got != want || len(h[""]) != 2 {
			t.Errorf("got %s, gaps %s, want %s", got, h[""], want)
		}
	})
}

// TestRollbackBesideAFeedThatNeverWatches sets the cluster back beside a resource that must not be read: the others are checked, and resume in the
// next life.
func TestRollbackBesideAFeedThatNeverWatches(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := podsAndWidgets(t)
		forbid(api, func(r *http.Request) bool { return r.URL.Path == "/api/v1/nodes" })
		api.Put(podPath, "ns", "pod", nil)
		api.Put(widgetPath, "ns", "w", nil)
		saved := api.Save()
		api.Put(widgetPath, "ns", "w", phase("lost"))
		dir, resources := t.TempDir(), serving(pods, widgets, resource("", "nodes"))
		l := runLive(t, dir, store.Options{}, api, resources)
		st := l.state(watchOf("p", nil, "pods"), watchOf("w", nil, "widgets.example.com"), watchOf("n", nil, "nodes"))
		st.ConsistencyCheck = plan.ConsistencyCheck{Enabled: true, Interval: time.Hour}
		l.apply(st)
		eventually(t, "sync", func() bool { return len(l.log()) == 2 })
		api.Restore(saved)
		api.Advance(20)
		api.Send(widgetPath, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"too old"}}`)
		eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) == 1 })
		for range 20 {
			time.Sleep(time.Minute)
			api.Bookmark()
		}
		l.stop()
		api.Put(podPath, "ns", "pod", phase("1"))
		api.Put(podPath, "ns", "pod", phase("2"))
		l = runLive(t, dir, store.Options{}, api, resources)
		l.apply(st)
		time.Sleep(10 * time.Minute)
		h := l.log()
		if got, want := fmt.Sprint(h[""], h.types("pod")), "[gap rollback]sync updated updated"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestRollbackOfAStorageOfItsOwnAndTheEnd sets back a resource that is stored elsewhere, at earlier versions than those of the others, and ends the process before the
// feeds are checked: they have missed nothing, and resume.
func TestRollbackOfAStorageOfItsOwnAndTheEnd(t *testing.T) {
	for _, own := range storedElsewhere {
		t.Run(own.path, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api, elsewhere := own.elsewhere(t, nil)
				api.Advance(1000)
				api.Put(podPath, "ns", "pod", nil)
				elsewhere.Put(own.path, "ns", "first", nil)
				fs := vfs.NewCrashableMem()
				l := runLive(t, "store", store.Options{FS: fs}, api, serving(pods, own.resource))
				st := l.state(watchOf("p", nil, "pods"), watchOf("o", nil, own.pattern))
				l.apply(st)
				eventually(t, "sync", func() bool { return len(l.log()) == 2 })
				l.checkpointed("pods#", "v1")
				saved := elsewhere.Save()
				elsewhere.Put(own.path, "ns", "second", nil)
				eventually(t, "the second object", func() bool { return l.log().types("second") == "added" })
				elsewhere.Restore(saved)
				elsewhere.Bookmark()
				eventually(t, "the rollback", func() bool { return len(l.log()[""]) > 0 })
				time.Sleep(20 * time.Second) // checkpoints are written
				fs = fs.CrashClone(vfs.CrashCloneCfg{})
				l.stop()
				api.Put(podPath, "ns", "pod", phase("1"))
				api.Put(podPath, "ns", "pod", phase("2"))
				l = runLive(t, "store", store.Options{FS: fs}, api, serving(pods, own.resource))
				l.apply(st)
				time.Sleep(10 * time.Minute)
				h := l.log()
				if got, want := fmt.Sprint(h[""], h.types("pod")), "[gap rollback]sync updated updated"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

// TestRollbackBesideAStorageOfItsOwn sets the cluster back beside a resource that is stored elsewhere, at later versions, and ends the process before the feeds are
// checked: that resource has missed nothing, and resumes. It is watched when the rollback is found, it is not because its connection is lost, or it is not in the configuration.
func TestRollbackBesideAStorageOfItsOwn(t *testing.T) {
	for _, own := range storedElsewhere {
		for _, other := range []string{"watched", "lost", "removed"} {
			t.Run(own.path+" "+other, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					var refused atomic.Bool
					api, elsewhere := own.elsewhere(t, nil)
					elsewhere.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
						if refused.Load() {
							apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
						}
						return refused.Load()
					})
					elsewhere.Advance(1000)
					elsewhere.Put(own.path, "ns", "o", nil)
					api.Put(podPath, "ns", "pod", nil)
					saved := api.Save()
					fs := vfs.NewCrashableMem()
					l := runLive(t, "store", store.Options{FS: fs}, api, serving(pods, own.resource))
					alone, both := l.state(watchOf("p", nil, "pods")), l.state(watchOf("p", nil, "pods"), watchOf("o", nil, own.pattern))
					l.apply(both)
					eventually(t, "sync", func() bool { return len(l.log()) == 2 })
					time.Sleep(time.Minute)
					elsewhere.Bookmark()
					api.Put(podPath, "ns", "lost", nil)
					eventually(t, "the one that is lost", func() bool { return l.log().types("lost") == "added" })
					time.Sleep(20 * time.Second) // checkpoints are written
					switch other {
					case "lost":
						refused.Store(true)
						elsewhere.Cut()
						time.Sleep(time.Second)
					case "removed":
						l.apply(alone)
					}
					api.Restore(saved)
					api.Bookmark(podPath)
					eventually(t, "the rollback", func() bool { return len(l.log()[""]) > 0 })
					l.m.committer.Flush()
					fs = fs.CrashClone(vfs.CrashCloneCfg{})
					l.stop()
					refused.Store(false)
					elsewhere.Put(own.path, "ns", "o", phase("1"))
					elsewhere.Put(own.path, "ns", "o", phase("2"))
					l = runLive(t, "store", store.Options{FS: fs}, api, serving(pods, own.resource))
					l.apply(both)
					time.Sleep(10 * time.Minute)
					h := l.log()
					if got, want := fmt.Sprint(h[""], h.types("o"), ", ", h.types("lost")), "[gap rollback]sync updated updated, added deleted"; got != want {
						t.Errorf("got %s, want %s", got, want)
					}
				})
			})
		}
	}
}

// deletesBesideCheck has an object deleted before the first list of metadata at path is answered, once what it returns is set.
func deletesBesideCheck(api *apitest.Server, path, name string) (back *atomic.Bool) {
	back = new(atomic.Bool)
	var gone sync.Once
	api.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == path && back.Load() && strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
			gone.Do(func() { api.Delete(path, "ns", name) })
		}
		return false
	})
	return back
}

// TestRollbackBesideDeletions sets the cluster back to what one of two watches had come to. That watch goes on, is checked behind the rollback that the other one
// finds, and has an object deleted meanwhile: it has missed nothing.
func TestRollbackBesideDeletions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := podsAndWidgets(t)
		back := deletesBesideCheck(api, podPath, "pod")
		api.Put(podPath, "ns", "pod", nil)
		api.Put(podPath, "ns", "other", nil)
		api.Put(widgetPath, "ns", "w", nil)
		api.Put(podPath, "ns", "other", phase("0"))
		saved := api.Save()
		l := runLive(t, t.TempDir(), store.Options{}, api, serving(pods, widgets))
		l.apply(l.both())
		eventually(t, "sync", func() bool { return len(l.log()) == 3 })
		time.Sleep(time.Minute)
		api.Put(widgetPath, "ns", "w", phase("lost"))
		eventually(t, "the change", func() bool { return l.log().types("w") == "sync updated" })
		api.Restore(saved)
		api.Cut()
		eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) == 1 })
		back.Store(true)
		api.Put(podPath, "ns", "other", phase("1"))
		for range 10 {
			time.Sleep(time.Minute)
			api.Bookmark()
		}
		h := l.log()
		if got, want := fmt.Sprint(h[""], h.types("pod"), ", ", h.types("other")), "[gap rollback]sync deleted, sync updated"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestRollbackBesideAnUnreadableObject sets the cluster back to what one of two watches had come to. That watch goes on, and is checked behind the rollback that the other one
// finds: an object that it has skipped proves nothing.
func TestRollbackBesideAnUnreadableObject(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := podsAndWidgets(t)
		api.Spoil("bad")
		api.Put(podPath, "ns", "bad", nil)
		api.Put(podPath, "ns", "pod", nil)
		api.Put(widgetPath, "ns", "w", nil)
		saved := api.Save()
		l := runLive(t, t.TempDir(), store.Options{}, api, serving(pods, widgets))
		l.apply(l.both())
		eventually(t, "sync", func() bool { return len(l.log()) == 3 })
		api.Put(widgetPath, "ns", "w", phase("lost"))
		eventually(t, "the change", func() bool { return l.log().types("w") == "sync updated" })
		api.Restore(saved)
		api.Cut()
		eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) == 1 })
		api.Put(podPath, "ns", "pod", phase("1"))
		time.Sleep(10 * time.Minute)
		h := l.log()
		if got, want := fmt.Sprint(h[""], h["bad"], h.types("pod")), "[gap rollback] [gap unreadable]sync updated"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestDeletionsOfAStorageOfItsOwn sets the cluster back beside a resource that is stored elsewhere, at later versions, and has objects deleted.
func TestDeletionsOfAStorageOfItsOwn(t *testing.T) {
	for _, own := range storedElsewhere {
		t.Run(own.path, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api, elsewhere := own.elsewhere(t, nil)
				back := deletesBesideCheck(elsewhere, own.path, "gone")
				elsewhere.Advance(1000)
				elsewhere.Put(own.path, "ns", "gone", nil)
				elsewhere.Put(own.path, "ns", "kept", nil)
				api.Put(podPath, "ns", "pod", nil)
				saved := api.Save()
				l := runLive(t, t.TempDir(), store.Options{}, api, serving(pods, own.resource))
				l.apply(l.state(watchOf("p", nil, "pods"), watchOf("o", nil, own.pattern)))
				eventually(t, "sync", func() bool { return len(l.log()) == 3 })
				time.Sleep(time.Minute)
				elsewhere.Bookmark()
				time.Sleep(10 * time.Second)
				api.Put(podPath, "ns", "lost", nil)
				eventually(t, "the one that is lost", func() bool { return l.log().types("lost") == "added" })
				api.Restore(saved)
				back.Store(true)
				api.Bookmark(podPath)
				eventually(t, "the rollback", func() bool { return len(l.log()[""]) > 0 })
				time.Sleep(10 * time.Minute)
				h := l.log()
				if got, want := fmt.Sprint(h[""], h.types("kept")), "[gap rollback]sync"; got != want || !strings.HasPrefix(h.types("gone"), "sync") {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

// TestVersionFromBeforeTheLastChange has the feed of one namespace take the place of that of all, right after changes: the version of the
// storage that the sources share is older than those, and the list that is to tell is refused. An object that is deleted until the next
// attempt is no sign that the cluster was set back.
func TestVersionFromBeforeTheLastChange(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := podsAndWidgets(t)
		api.Put(podPath, "ns", "kept", nil)
		var refused atomic.Bool
		api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			q := r.URL.Query()
			if !strings.Contains(r.URL.Path, "pods") || q.Get("timeoutSeconds") != "1" && (q.Get("limit") != "1" || !refused.Swap(false)) {
				return false // others than the list of one object and the watch for the history
			}
			apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
			return true
		})
		narrow := func(w *plan.Watch) { w.Namespaces, w.Fingerprint = []string{"ns"}, "narrow" }
		l := runLive(t, t.TempDir(), store.Options{}, api, serving(pods, widgets))
		l.apply(l.both())
		eventually(t, "sync", func() bool { return len(l.log()) == 1 })
		time.Sleep(time.Minute)
		l.apply(l.state(watchOf("p", nil, "pods"), watchOf("w", narrow, "widgets"))) // asks for the version
		synctest.Wait()
		api.Put(podPath, "ns", "gone", nil)
		api.Put(podPath, "ns", "kept", phase("1"))
		eventually(t, "the changes", func() bool { return l.log().types("kept") == "sync updated" && l.log().types("gone") == "added" })
		refused.Store(true)
		l.apply(l.state(watchOf("p", narrow, "pods"), watchOf("w", narrow, "widgets")))
		synctest.Wait()
		api.Delete(podPath, "ns", "gone")
		time.Sleep(10 * time.Minute)
		h := l.log()
		if got, want := fmt.Sprint(h[""], h.types("kept"), ", ", h.types("gone")), "[]sync updated, added deleted"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestReloadBesideTheChecksOfARollback replaces the feeds that are to be checked after a rollback, which takes a while: their successors are to be checked.
func TestReloadBesideTheChecksOfARollback(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api, _ := podServer(t, 3)
		l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
		checking := func(st *plan.State) *plan.State {
			st.ConsistencyCheck = plan.ConsistencyCheck{Enabled: true, Interval: 1000 * time.Hour}
			return st
		}
		l.apply(checking(l.state(watchOf("p", nil, "pods"))))
		l.synced()
		time.Sleep(2 * time.Minute) // checks begin when watches are established
		held, released, applied := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			_ = l.m.committer.AtBarrier(func(commit.Barrier) { close(held); <-released })
		}()
		<-held
		go func() {
			defer close(applied)
			l.apply(checking(l.state(watchOf("p", nil, "nodes"))))
			l.apply(checking(l.state(watchOf("p", nil, "pods"))))
		}()
		eventually(t, "the feed ends", func() bool { return len(l.m.informerList()) == 0 })
		if err := ledger.PutMeta(l.store, ledger.SetBackMeta, []byte(`"2027-01-01T00:00:00Z"`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		noted := l.m.setBack() != nil
		close(released)
		<-applied
		if !noted {
			t.Error("no feed was checked, and none is to be")
		}
	})
}

// TestRollbackBesideAnEventThatIsNotCommitted has another watch find a rollback while an event of a later version waits to be committed, and ends the process before
// the feed of that event is checked: its object is of another past.
func TestRollbackBesideAnEventThatIsNotCommitted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := podsAndWidgets(t)
		api.Put(podPath, "ns", "kept", nil)
		api.Put(widgetPath, "ns", "w", nil)
		saved := api.Save()
		var refused atomic.Bool
		api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != podPath || !refused.Load() {
				return false
			}
			apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
			return true
		})
		fs := vfs.NewCrashableMem()
		l := runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
		both := l.both()
		l.apply(both)
		eventually(t, "sync", func() bool { return len(l.log()) == 2 })
		l.checkpointed("pods#", "v1")
		api.Put(widgetPath, "ns", "w", phase("lost"))
		eventually(t, "the update", func() bool { return l.log().types("w") == "sync updated" })
		held, released := make(chan struct{}), make(chan struct{})
		go func() {
			_ = l.m.committer.AtBarrier(func(commit.Barrier) { close(held); <-released })
		}()
		<-held
		api.Put(podPath, "ns", "lost", nil)
		time.Sleep(time.Second)
		refused.Store(true)
		api.Restore(saved)
		api.Bookmark(widgetPath)
		time.Sleep(8 * time.Second)
		close(released)
		eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) == 1 && l.log().types("lost") == "added" })
		l.m.committer.Flush()
		fs = fs.CrashClone(vfs.CrashCloneCfg{})
		l.stop()
		api.Advance(20)
		refused.Store(false)
		l = runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
		l.apply(both)
		time.Sleep(10 * time.Minute)
		h := l.log()
		if got, want := fmt.Sprint(h[""], h.types("lost"), ", ", h.types("kept")), "[gap rollback gap rollback]added deleted, sync"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestRollbackFoundByAList has a watch whose history has expired find a rollback by its list: another one, whose version the server passes before the connection is
// lost, compares its objects.
func TestRollbackFoundByAList(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := podsAndWidgets(t)
		api.Put(podPath, "ns", "kept", nil)
		api.Put(widgetPath, "ns", "w", nil)
		saved := api.Save()
		l := runLive(t, t.TempDir(), store.Options{}, api, serving(pods, widgets))
		l.apply(l.both())
		eventually(t, "sync", func() bool { return len(l.log()) == 2 })
		api.Put(widgetPath, "ns", "w", phase("lost"))
		api.Put(podPath, "ns", "lost", nil)
		eventually(t, "the changes", func() bool { return l.log().types("w") == "sync updated" && l.log().types("lost") == "added" })
		api.Restore(saved)
		api.Send(widgetPath, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"too old"}}`)
		eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) == 1 })
		api.Advance(20)
		api.Cut()
		time.Sleep(10 * time.Minute)
		h := l.log()
		if got, want := fmt.Sprint(h[""], h.types("lost"), ", ", h.types("kept")), "[gap rollback gap rollback]added deleted, sync"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestSecondRollback sets the cluster back twice, the second time further. One watch finds the first rollback, and another, which had not come to that, the
// second: the first one compares its objects, although the cluster passes its version before its connection is looked at.
func TestSecondRollback(t *testing.T) {
	for name, killed := range map[string]bool{"it goes on": false, "the process ends": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api := podsAndWidgets(t)
				api.Put(podPath, "ns", "pod", nil)
				api.Put(widgetPath, "ns", "w", nil)
				older := api.Save()
				api.Put(podPath, "ns", "pod", phase("1"))
				newer := api.Save()
				api.Put(widgetPath, "ns", "w", phase("1"))
				fs := vfs.NewCrashableMem()
				l := runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
				both := l.both()
				l.apply(both)
				eventually(t, "sync", func() bool { return len(l.log()) == 2 })
				l.checkpointed("widgets.example.com#", "v1")
				time.Sleep(time.Minute)
				api.Restore(newer)
				api.Bookmark(widgetPath)
				eventually(t, "the first rollback shows", func() bool { return len(l.log()[""]) == 1 })
				api.Put(widgetPath, "ns", "lost", nil)
				eventually(t, "the one that is lost", func() bool { return l.log().types("lost") == "added" })
				l.checkpointed("widgets.example.com#", "v1")
				api.Restore(older)
				api.Bookmark(podPath)
				eventually(t, "the second rollback shows", func() bool { return len(l.log()[""]) == 2 })
				api.Advance(20)
				if killed {
					fs = fs.CrashClone(vfs.CrashCloneCfg{})
					l.stop()
					l = runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
					l.apply(both)
				}
				time.Sleep(10 * time.Minute)
				h := l.log()
				if got, want := fmt.Sprint(h[""], h.types("lost")), "[gap rollback gap rollback gap rollback]added deleted"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

// TestRollbackToTheSameBackup sets the cluster back twice, to the same version. A watch that had not come further the first time, and has since, finds the second rollback:
// the one that found the first compares its objects, although the cluster passes its version before its connection is looked at.
func TestRollbackToTheSameBackup(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := podsAndWidgets(t)
		api.Put(podPath, "ns", "pod", nil)
		api.Put(widgetPath, "ns", "w", nil)
		saved := api.Save()
		l := runLive(t, t.TempDir(), store.Options{}, api, serving(pods, widgets))
		l.apply(l.both())
		eventually(t, "sync", func() bool { return len(l.log()) == 2 })
		api.Put(widgetPath, "ns", "w", phase("1"))
		eventually(t, "the change", func() bool { return l.log().types("w") == "sync updated" })
		api.Restore(saved)
		api.Bookmark(widgetPath)
		eventually(t, "the first rollback shows", func() bool { return len(l.log()[""]) == 1 })
		time.Sleep(time.Minute)
		api.Put(podPath, "ns", "pod", phase("1"))
		api.Put(widgetPath, "ns", "lost", nil)
		eventually(t, "the changes", func() bool { return l.log().types("pod") == "sync updated" && l.log().types("lost") == "added" })
		api.Restore(saved)
		api.Bookmark(podPath)
		eventually(t, "the second rollback shows", func() bool { return len(l.log()[""]) == 2 })
		api.Advance(20)
		api.Cut()
		time.Sleep(10 * time.Minute)
		h := l.log()
		if got, want := fmt.Sprint(h[""], h.types("lost")), "[gap rollback gap rollback gap rollback]added deleted"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestRollbackFoundByAnObject has a watch find a rollback by an object of its list, at a version that it had not come to. Another one had come further: it compares
// its objects, although the cluster passes its version before the connection is lost.
func TestRollbackFoundByAnObject(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPassing(t)
		l := runLive(t, t.TempDir(), store.Options{}, p.Server, serving(pods, widgets))
		l.apply(l.both())
		eventually(t, "sync", func() bool { return len(l.log()) == 3 })
		p.Advance(40)
		p.Put(podPath, "ns", "late", nil)
		eventually(t, "the last change", func() bool { return l.log().types("late") == "added" })
		p.Restore(p.saved)
		p.Advance(20)
		p.Send(widgetPath, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"too old"}}`)
		eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) == 1 })
		p.Advance(40)
		p.Cut()
		time.Sleep(10 * time.Minute)
		p.expect(l)
	})
}

// TestRollbackFoundByAComparison has the cluster pass the version of a watch that found it set back and could not read its resource then. Its objects show the rollback: another
// watch, whose connection lasts until then, compares its own.
func TestRollbackFoundByAComparison(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPassing(t)
		l := runLive(t, t.TempDir(), store.Options{}, p.Server, serving(pods, widgets))
		l.apply(l.both())
		eventually(t, "sync", func() bool { return len(l.log()) == 3 })
		p.refused.Store(true)
		p.Restore(p.saved)
		p.Send(podPath, "{")
		time.Sleep(10 * time.Second)
		p.Advance(20)
		p.refused.Store(false)
		eventually(t, "the rollback shows", func() bool { return len(l.log()[""]) == 1 })
		p.Cut()
		time.Sleep(10 * time.Minute)
		p.expect(l)
		if got := l.log().types("w"); got != "sync updated" {
			t.Errorf("the widget: %s", got)
		}
	})
}
