package pipeline

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// checked runs a consistency check of the pods, in which meanwhile is called between two pages,
// and expects it to have the pods listed that many times.
func (l *live) checked(relists uint64, meanwhile func()) {
	l.Helper()
	var once sync.Once
	l.api.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == podPath && r.URL.Query().Get("continue") != "" && strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
			once.Do(meanwhile)
		}
		return false
	})
	defer l.api.Intercept(nil)
	s := l.m.informerList()[0]
	before := s.sub.Load().Status().Relists
	done := make(chan error, 1)
	go func() { done <- l.m.checkFeed(l.Context(), s, 0, &checks{}) }()
	var err error
	eventually(l.T, "the check ends", func() bool {
		l.api.Bookmark() // the watch catches up
		select {
		case err = <-done:
			return true
		default:
			return false
		}
	})
	if err != nil {
		l.Error(err)
	}
	listed := func() uint64 { return s.sub.Load().Status().Relists - before }
	eventually(l.T, "the list", func() bool { return listed() >= relists })
	l.caughtUp()
	if n := listed(); n != relists {
		l.Errorf("the pods were listed %d times, want %d", n, relists)
	}
}

// TestConsistencyCheckOfAHealthyWatch changes the pods while the pages of the check's list are
// read: it finds nothing.
func TestConsistencyCheckOfAHealthyWatch(t *testing.T) {
	changes := map[string]func(l *live){
		"nothing": func(*live) {},
		"made":    func(l *live) { l.api.Put(podPath, "ns", "a-new", nil); l.api.Put(podPath, "ns", "z-new", nil) },
		"changed": func(l *live) {
			l.api.Put(podPath, "ns", "pod-00000", phase("x"))
			l.api.Put(podPath, "ns", "pod-01100", phase("x"))
		},
		"deleted":   func(l *live) { l.api.Delete(podPath, "ns", "pod-00001", "pod-01101") },
		"recreated": func(l *live) { l.api.Delete(podPath, "ns", "pod-00002"); l.api.Put(podPath, "ns", "pod-00002", nil) },
		"brief":     func(l *live) { l.api.Put(podPath, "ns", "brief", nil); l.api.Delete(podPath, "ns", "brief") },
		"expired": func(l *live) {
			l.api.Delete(podPath, "ns", "pod-00003", "pod-01103")
			l.api.Put(podPath, "ns", "z-new", nil)
			l.caughtUp() // the watch is past it, so that it does not expire as well
			l.api.Bookmark()
			l.api.Compact()
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			api, _ := podServer(t, 1200)
			l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch()))
			l.synced()
			l.checked(0, func() { change(l); l.caughtUp() })
		})
	}
}

// TestConsistencyCheckOfUnreadableObjects: an object that the watch skips is no missed change, and is not waited for.
func TestConsistencyCheckOfUnreadableObjects(t *testing.T) {
	api, names := podServer(t, 1200)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	api.Spoil(names[1100])
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	l.checked(0, func() {})
	if err := l.m.CatchUp(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestConsistencyCheckFindsLosses keeps changes from the watch; the check finds them, and nothing
// else is reported.
func TestConsistencyCheckFindsLosses(t *testing.T) {
	losses := map[string]struct {
		change func(api *apitest.Server)
		want   map[string]string
	}{
		"creation": {func(api *apitest.Server) { api.Put(podPath, "ns", "lost", nil) }, map[string]string{"lost": "added"}},
		"update":   {func(api *apitest.Server) { api.Put(podPath, "ns", "pod-00700", phase("x")) }, map[string]string{"pod-00700": "sync updated"}},
		"deletion": {func(api *apitest.Server) { api.Delete(podPath, "ns", "pod-00000") }, map[string]string{"pod-00000": "sync deleted"}},
		"last":     {func(api *apitest.Server) { api.Delete(podPath, "ns", "pod-01199") }, map[string]string{"pod-01199": "sync deleted"}},
		"another life": {func(api *apitest.Server) {
			api.Delete(podPath, "ns", "pod-00600")
			api.Put(podPath, "ns", "pod-00600", nil)
		}, map[string]string{"pod-00600": "sync deleted added"}},
	}
	for name, tc := range losses {
		t.Run(name, func(t *testing.T) {
			api, names := podServer(t, 1200)
			l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch()))
			l.synced()
			api.Mute(true)
			tc.change(api)
			api.Mute(false)
			l.checked(1, func() { api.Put(podPath, "ns", "other", phase("x")) })
			for name, want := range tc.want {
				eventually(t, "the repair", func() bool { return l.log().types(name) == want })
			}
			var repaired []string
			for name := range tc.want {
				repaired = append(repaired, name)
			}
			// The list brings what happened between it and the end of the watch.
			if got := slices.DeleteFunc(l.repairs(), func(name string) bool { return name == "marker" }); !slices.Equal(got, repaired) {
				t.Errorf("repairs of %q, want %q", got, repaired)
			}
			h := l.log()
			if got := h[""]; len(got) != 1 {
				t.Errorf("gaps: %q", got)
			}
			for _, name := range append(names, "lost") {
				want := tc.want[name]
				if want == "" && name != "lost" {
					want = "sync"
				}
				if got := h.types(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
		})
	}
}

// TestConsistencyCheckRestoresRecordedStates: damage takes the recorded state of an object of which nothing is missed. The check
// has it recorded again, without an event, and the next one finds nothing.
func TestConsistencyCheckRestoresRecordedStates(t *testing.T) {
	const name = "pod-00700"
	key := ledger.Key("ns", name)
	for damage, change := range map[string]func(b *store.Batch, earlier []byte){
		"earlier":    func(b *store.Batch, earlier []byte) { b.PutState("pods", key, earlier) },
		"unreadable": func(b *store.Batch, _ []byte) { b.PutState("pods", key, []byte("damaged")) },
	} {
		t.Run(damage, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api, _ := podServer(t, 1200)
				l := runLive(t, "store", store.Options{FS: vfs.NewMem()}, api, served{pods})
				l.apply(l.state(committest.PodWatch()))
				l.synced()
				earlier, _, err := l.store.State("pods", key, nil)
				if err != nil {
					t.Fatal(err)
				}
				api.Put(podPath, "ns", name, phase("x"))
				l.caughtUp()
				b := l.store.NewBatch()
				change(b, earlier)
				if err := l.store.Commit(b); err != nil {
					t.Fatal(err)
				}
				l.checked(1, func() {})
				l.checked(0, func() {})
				h := l.log()
				if got := h.types(name); got != "sync updated" {
					t.Errorf("events are %q", got)
				}
				if gaps := h[""]; len(gaps) > 0 {
					t.Errorf("gaps: %q", gaps)
				}
			})
		})
	}
}

// TestGapOfACheckBeginsWithTheLastOne has changes kept from the watch long before a check finds one of them: the
// gap begins with the last check that found nothing, also of an earlier life, and is of an unknown beginning
// where there was none.
func TestGapOfACheckBeginsWithTheLastOne(t *testing.T) {
	for _, name := range []string{"a check before", "a check in an earlier life", "no check before"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait for client-go to try again
			api, _ := podServer(t, 600)
			disk := vfs.NewCrashableMem()
			l := runLive(t, "store", store.Options{FS: disk}, api, served{pods})
			l.apply(l.state(committest.PodWatch()))
			l.synced()
			before, version := time.Now(), ""
			if name != "no check before" {
				version = api.Version()
				l.checked(0, func() { api.Put(podPath, "ns", "pod-00001", phase("x")) })
			}
			after := time.Now()
			if name == "a check in an earlier life" {
				l.stop()
				l = runLive(t, "store", store.Options{FS: disk}, api, served{pods})
				l.apply(l.state(committest.PodWatch()))
				eventually(t, "a watch", func() bool { return api.Watches(podPath) == 1 })
			}
			api.Mute(true)
			api.Put(podPath, "ns", "brief", nil)
			api.Delete(podPath, "ns", "brief")
			api.Put(podPath, "ns", "pod-00300", phase("x"))
			api.Mute(false)
			l.caughtUp() // the watch is past it
			l.checked(1, func() {})
			eventually(t, "the repair", func() bool { return l.log().types("pod-00300") == "sync updated" })
			var gaps []event.GapData
			items, err := l.store.ReadLog(0, 10_000)
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range items {
				if r, err := record.Decode(it.Payload); err != nil {
					t.Fatal(err)
				} else if r.Event.Gap != nil {
					gaps = append(gaps, *r.Event.Gap)
				}
			}
			if len(gaps) != 1 || gaps[0].FromResourceVersion != version {
				t.Fatalf("gaps are %+v, want one from version %q", gaps, version)
			}
			if from := gaps[0].From; version == "" && !from.IsZero() || version != "" && (from.Before(before) || from.After(after)) {
				t.Errorf("the gap is from %v", from)
			}
		})
	}
}

// TestConsistencyCheckFindsOvertakenRollback restores the server behind the daemon's back, and
// lets it pass the version that the daemon has seen: the check sees that an object is
// older than recorded, and the rollback is reported as a gap.
func TestConsistencyCheckFindsOvertakenRollback(t *testing.T) {
	api, names := podServer(t, 700)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	saved := api.Save()
	api.Put(podPath, "ns", names[600], phase("x"))
	l.caughtUp()
	api.Restore(saved)
	api.Advance(100)
	l.checked(1, func() {})
	eventually(t, "the state of the restored server", func() bool { return l.log().types(names[600]) == "sync updated updated" })
	if got := fmt.Sprint(l.log()[""]); got != "[gap rollback]" {
		t.Errorf("gaps: %s", got)
	}
	if s := l.m.informerList()[0]; s.sub.Load().Status().State != dynamicfactory.StateWatching {
		t.Errorf("the watch is %s", s.sub.Load().Status().State)
	}
}

// restoredWhileAway restores the server of a pod and a widget while the daemon is away, and lets it pass the version that the pods had come to, not
// that of the widgets. start starts the daemon again; no check is due.
func restoredWhileAway(t *testing.T, api *apitest.Server) (start func() *live) {
	t.Helper()
	api.Put(podPath, "ns", "pod", nil)
	api.Put(widgetPath, "ns", "widget", nil)
	fs := vfs.NewCrashableMem()
	start = func() *live {
		l := runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
		st := l.both()
		st.ConsistencyCheck = plan.ConsistencyCheck{Enabled: true, Interval: 1000 * time.Hour}
		l.apply(st)
		return l
	}
	l := start()
	eventually(t, "sync", func() bool { return len(l.log()) == 2 })
	saved := api.Save()
	api.Put(podPath, "ns", "pod", phase("x"))
	for n := range 10 {
		api.Put(widgetPath, "ns", "widget", phase(fmt.Sprint(n)))
	}
	eventually(t, "the updates", func() bool {
		return l.log().types("pod") == "sync updated" && strings.Count(l.log().types("widget"), "updated") == 10
	})
	l.stop()
	api.Restore(saved)
	api.Advance(5) // of ten
	return start
}

// TestRollbackHasTheOthersChecked restores the server while the daemon is away, and lets it pass the version that one of two resources had
// come to, not that of the other: the rollback that this one shows has the other checked long before a check is due.
func TestRollbackHasTheOthersChecked(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := podsAndWidgets(t)
		start := restoredWhileAway(t, api)
		l := start()
		eventually(t, "the state of the restored server", func() bool { return l.log().types("pod") == "sync updated updated" })
		if got := fmt.Sprint(l.log()[""]); got != "[gap rollback gap rollback]" {
			t.Errorf("gaps: %s", got)
		}
		eventually(t, "the end of the checks", func() bool { return l.m.setBack() == nil })
	})
}

// TestRollbackHasAnotherCheckedThatIsNotWatched is TestRollbackHasTheOthersChecked with a resource that is refused when the others are checked:
// it is checked once it is watched, and those that are checked are not checked again meanwhile.
func TestRollbackHasAnotherCheckedThatIsNotWatched(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := podsAndWidgets(t)
		var refused atomic.Bool
		forbid(api, func(r *http.Request) bool {
			return r.URL.Path == podPath && r.URL.Query().Has("watch") && refused.Load()
		})
		start := restoredWhileAway(t, api)
		refused.Store(true)
		l := start()
		checks := func() float64 { return l.metric("watcherd_consistency_checks_total") }
		eventually(t, "the check of the other", func() bool { return checks() > 0 })
		time.Sleep(10 * time.Minute)
		if n := checks(); n != 1 {
			t.Errorf("the other is checked %v times", n)
		}
		refused.Store(false)
		eventually(t, "the state of the restored server", func() bool { return l.log().types("pod") == "sync updated updated" })
		eventually(t, "the end of the checks", func() bool { return l.m.setBack() == nil })
	})
}

// TestConsistencyCheckFindsARollbackOfAStorageOfItsOwn sets a resource back whose versions are behind those of the
// others, so that the version of the storage does not show it, and whose watch sends no bookmarks: the
// check sees that the list is older than what is recorded.
func TestConsistencyCheckFindsARollbackOfAStorageOfItsOwn(t *testing.T) {
	api, names := podServer(t, 3)
	api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/api/v1/namespaces" {
			return false
		}
		_, _ = w.Write([]byte(`{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"1000000"},"items":[]}`))
		return true
	})
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	saved := api.Save()
	api.Put(podPath, "ns", names[1], phase("x"))
	l.caughtUp()
	api.Restore(saved)
	if err := l.m.checkFeed(t.Context(), l.m.informerList()[0], 0, &checks{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the state of the restored storage", func() bool { return l.log().types(names[1]) == "sync updated updated" })
	if got := fmt.Sprint(l.log()[""]); got != "[gap rollback]" {
		t.Errorf("gaps: %s", got)
	}
}

// checked is a pipeline whose consistency check of 2,600 pods, in six pages, is due after two
// minutes or somewhat later.
type checked struct {
	*live
	disk     *vfs.MemFS
	interval time.Duration

	mu      sync.Mutex
	pages   []string // the tokens that were asked for
	times   []time.Time
	away    bool // the API server refuses them
	listing bool // it refuses lists of whole objects
	refused int  // how many of these
}

func runChecked(t *testing.T, interval time.Duration) *checked {
	t.Helper()
	api, _ := podServer(t, 2600)
	c := &checked{disk: vfs.NewCrashableMem(), interval: interval}
	api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != podPath || r.URL.Query().Get("fieldSelector") != "" || r.URL.Query().Has("watch") {
			return false
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
			if c.listing {
				c.refused++
				apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
			}
			return c.listing
		}
		if c.away {
			apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
			return true
		}
		c.pages, c.times = append(c.pages, r.URL.Query().Get("continue")), append(c.times, time.Now())
		return false
	})
	c.live = c.start(t, api)
	return c
}

func (c *checked) start(t *testing.T, api *apitest.Server) *live {
	t.Helper()
	l := runLive(t, "store", store.Options{FS: c.disk}, api, served{pods})
	l.apply(c.checking(l.state(committest.PodWatch())))
	return l
}

func (c *checked) checking(st *plan.State) *plan.State {
	st.ConsistencyCheck = plan.ConsistencyCheck{Enabled: true, Interval: c.interval}
	return st
}

// until waits for what takes minutes, with bookmarks.
func (c *checked) until(what string, f func() bool) {
	c.Helper()
	for range 600 {
		if f() {
			return
		}
		time.Sleep(time.Second)
		c.api.Bookmark()
	}
	c.Fatal("never: ", what)
}

func (c *checked) read() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pages)
}

func (c *checked) refuse(away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = away
}

// TestConsistencyCheckIsSpread reads the pages of a check over half of the interval.
func TestConsistencyCheckIsSpread(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := runChecked(t, 2*time.Minute)
		began := time.Now()
		c.until("a check", func() bool { return c.metric("watcherd_consistency_checks_total") == 1 })
		if n := c.read(); n != 6 {
			t.Fatalf("%d pages", n)
		}
		if first := c.times[0].Sub(began); first < 2*time.Minute || first > 3*time.Minute {
			t.Errorf("the check began after %v", first)
		}
		for i := range c.times[1:] {
			if pause := c.times[i+1].Sub(c.times[i]); pause != 10*time.Second {
				t.Errorf("page %d is read %v after the one before", i+2, pause)
			}
		}
	})
}

// TestConsistencyCheckGoesOn cuts a check off: it goes on where it was, and what it had found is
// found.
func TestConsistencyCheckGoesOn(t *testing.T) {
	for _, cut := range []string{"a stop", "a kill", "a lost connection"} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lost %t", cut, lost), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					c := runChecked(t, 2*time.Minute)
					c.synced()
					if lost { // of the second page
						c.api.Mute(true)
						c.api.Delete(podPath, "ns", "pod-00600")
						c.api.Mute(false)
					}
					c.until("three pages", func() bool { return c.read() == 3 })
					switch cut {
					case "a lost connection":
						c.refuse(true)
						c.until("the check gives up", func() bool { return c.metric("watcherd_consistency_checks_total") == 1 })
						c.refuse(false)
					case "a kill":
						c.disk = c.disk.CrashClone(vfs.CrashCloneCfg{})
						fallthrough
					default:
						c.stop()
						c.live = c.start(t, c.api)
					}
					if lost {
						c.until("the repair", func() bool { return c.log().types("pod-00600") == "sync deleted" })
						if c.read() != 8 { // from the second on
							t.Errorf("pages %q", c.pages)
						}
						return
					}
					before := c.metric("watcherd_consistency_checks_total")
					c.until("the rest", func() bool { return c.metric("watcherd_consistency_checks_total") > before })
					if sorted := slices.Sorted(slices.Values(c.pages)); len(sorted) != 6 || len(slices.Compact(sorted)) != 6 {
						t.Errorf("pages %q", c.pages)
					}
				})
			})
		}
	}
}

// TestRelistOfACheckIsCutShort narrows a watch while the list that a check asked for fails: what the check had found is
// found again long before the next one.
func TestRelistOfACheckIsCutShort(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := runChecked(t, time.Hour)
		c.synced()
		c.api.Mute(true)
		c.api.Put(podPath, "ns", "pod-00600", phase("x"))
		c.api.Mute(false)
		c.caughtUp()
		refuse := func(listing bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.listing = listing
		}
		refuse(true)
		for c.read() == 0 {
			time.Sleep(time.Minute)
			c.api.Bookmark()
		}
		c.until("a relist", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.refused > 0
		})
		w := committest.PodWatch()
		w.Namespaces, w.Fingerprint = []string{"ns"}, "narrower"
		c.apply(c.checking(c.state(w)))
		refuse(false)
		c.until("the repair", func() bool { return c.log().types("pod-00600") == "sync updated" })
	})
}

// TestConsistencyCheckIsBounded compares a list that lacks most of what is recorded: a bounded number
// of differences waits for a second look, and none is left out.
func TestConsistencyCheckIsBounded(t *testing.T) {
	const lost = maxSuspects + 10
	api, names := podServer(t, lost+1000)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	api.Mute(true)
	api.Delete(podPath, "ns", names[500:500+lost]...)
	api.Mute(false)
	s := l.m.informerList()[0]
	a, differences := comparison{m: l.m, s: s, sub: s.sub.Load()}, 0
	for more := true; more; {
		var err error
		if more, err = a.page(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(a.suspects) > maxSuspects || len(a.keys) > checkPage {
			t.Fatalf("%d differences, %d heads", len(a.suspects), len(a.keys))
		}
		if len(a.suspects) == maxSuspects || !more {
			differences += len(a.suspects)
			a.suspects = a.suspects[:0]
		}
	}
	if differences != lost {
		t.Errorf("%d differences, want %d", differences, lost)
	}
}

// TestConsistencyCheckOfAnUnorderedList refuses to judge by a list whose order it does not know.
func TestConsistencyCheckOfAnUnorderedList(t *testing.T) {
	api, _ := podServer(t, 3)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("watch") != "" {
			return false
		}
		_, _ = fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":%q},"items":[%s,%s]}`, api.Version(),
			`{"metadata":{"namespace":"ns","name":"b","uid":"b","resourceVersion":"1"}}`, `{"metadata":{"namespace":"ns","name":"a","uid":"a","resourceVersion":"1"}}`)
		return true
	})
	s := l.m.informerList()[0]
	eventually(t, "the watch is open", func() bool { return s.sub.Load().Watch().State == dynamicfactory.StateWatching })
	if err := l.m.checkFeed(t.Context(), s, 0, &checks{}); err == nil || s.sub.Load().Status().Relists != 0 {
		t.Errorf("the check ended with %v and %d lists", err, s.sub.Load().Status().Relists)
	}
	if err := l.m.CatchUp(t.Context()); err != nil {
		t.Errorf("catching up ends with %v", err)
	}
}

// TestWaitsEndWithTheirResource has a resource leave while a caller waits for its first list, or
// for its changes, to be recorded.
func TestWaitsEndWithTheirResource(t *testing.T) {
	serve := func(t *testing.T) (*live, *changing) {
		api, _ := podServer(t, 10)
		resolver := &changing{changed: make(chan struct{}), list: []dynamicfactory.Resource{pods}}
		return runLive(t, t.TempDir(), store.Options{}, api, resolver), resolver
	}
	ends := func(t *testing.T, wait func(context.Context) error, leave func()) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		waiting := make(chan error, 1)
		go func() { waiting <- wait(ctx) }()
		leave()
		if err := <-waiting; err != nil {
			t.Errorf("the wait ends with %v", err)
		}
	}
	t.Run("first list", func(t *testing.T) {
		l, resolver := serve(t)
		l.store.SetLimits(store.Limits{MinFree: noRoom})
		eventually(t, "paused", func() bool { return l.store.Health().Paused })
		full := l.state(committest.PodWatch())
		full.Store.MinFree = noRoom
		l.apply(full)
		<-l.m.informerList()[0].sub.Load().Synced()
		ends(t, l.m.CatchUp, func() { resolver.set() })
	})
	t.Run("changes", func(t *testing.T) {
		l, resolver := serve(t)
		l.apply(l.state(committest.PodWatch()))
		l.synced()
		eventually(t, "watching", func() bool { return l.m.informerList()[0].sub.Load().Watch().State == dynamicfactory.StateWatching })
		read := make(chan struct{})
		l.api.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
				close(read)
			}
			return false
		})
		l.api.Stall(true)
		l.api.Put(podPath, "ns", "pod-00003", phase("Running"))
		ends(t, l.m.CatchUp, func() { <-read; resolver.set() })
	})
	t.Run("definition", func(t *testing.T) {
		l, _ := serve(t)
		l.apply(l.state(committest.PodWatch()))
		l.synced()
		eventually(t, "watching", func() bool { return l.m.informerList()[0].sub.Load().Watch().State == dynamicfactory.StateWatching })
		l.api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
				return false
			}
			apitest.Fail(w, http.StatusNotFound, "NotFound")
			return true
		})
		ends(t, l.m.CatchUp, func() {})
	})
}

// TestCatchUpWaitsForEveryObject has one of several objects that the watch misses go while the others are waited for.
func TestCatchUpWaitsForEveryObject(t *testing.T) {
	api, _ := podServer(t, 3)
	var down atomic.Bool
	var asked atomic.Int32
	api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=missed-0") && asked.Add(1) == 2 {
			api.Delete(podPath, "ns", "missed-0")
		}
		if r.URL.Path != podPath || r.URL.Query().Get("watch") != "true" || !down.Load() {
			return false
		}
		apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
		return true
	})
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	down.Store(true)
	api.Cut()
	s := l.m.informerList()[0]
	eventually(t, "down", func() bool { return s.sub.Load().Watch().State == dynamicfactory.StateBackingOff })
	for i := range 3 {
		api.Put(podPath, "ns", fmt.Sprintf("missed-%d", i), nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- l.m.CatchUp(ctx) }()
	eventually(t, "the next object is waited for", func() bool {
		return len(ended) > 0 || slices.ContainsFunc(api.Requests("pods", false), func(r apitest.Request) bool {
			return strings.HasPrefix(r.Query["fieldSelector"], "metadata.name=missed-1")
		})
	})
	cancel()
	if err := <-ended; err == nil {
		t.Error("the watch is down, and has caught up")
	}
}

// TestCatchUpWithoutAWatch: a watch that is down has not caught up, and a resource that never
// could be listed is left out.
func TestCatchUpWithoutAWatch(t *testing.T) {
	api, _ := podServer(t, 3)
	api.Serve("/api/v1/nodes", "v1", "Node")
	var down atomic.Bool
	api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/api/v1/nodes" {
			apitest.Fail(w, http.StatusForbidden, "Forbidden")
			return true
		}
		if r.URL.Path != podPath || r.URL.Query().Get("watch") != "true" || !down.Load() {
			return false
		}
		apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
		return true
	})
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods, nodes})
	w := committest.PodWatch()
	w.Resources = []string{"pods", "nodes"}
	l.apply(l.state(w))
	l.synced()
	of := func(resource string) *informer {
		for _, s := range l.m.informerList() {
			if s.Resource.Resource == resource {
				return s
			}
		}
		return nil
	}
	eventually(t, "forbidden", func() bool { return of("nodes").sub.Load().Watch().State == dynamicfactory.StateForbidden })
	if err := l.m.CatchUp(t.Context()); err != nil {
		t.Fatalf("a live watch: %v", err)
	}
	down.Store(true)
	api.Cut()
	eventually(t, "down", func() bool { return of("pods").sub.Load().Watch().State == dynamicfactory.StateBackingOff })
	const missed = "missed,a=b" // as an object without a DNS name may be named
	api.Put(podPath, "ns", missed, nil)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := l.m.CatchUp(short); err == nil {
		t.Error("the watch is down, and has caught up")
	}
	down.Store(false)
	if err := l.m.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := l.log().types(missed); got != "added" {
		t.Errorf("after catching up: %q", got)
	}
}
