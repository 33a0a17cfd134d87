package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	past "github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

const widgetPath = "/apis/example.com/v1/widgets"

// names is a Resolver over resources that a test changes, by plural with or without
// group, by other names, and by wildcard.
type names struct {
	changed chan struct{}

	mu    sync.Mutex
	list  []dynamicfactory.Resource
	other map[string]string // such as short names → RESOURCE.GROUP
	err   error             // of what is not served; nil: ErrNotServed
}

func serving(list ...dynamicfactory.Resource) *names {
	return &names{changed: make(chan struct{}, 1), list: list, other: map[string]string{}}
}

func (n *names) Changed() <-chan struct{} { return n.changed }

func (n *names) set(list ...dynamicfactory.Resource) {
	n.mu.Lock()
	n.list = list
	n.mu.Unlock()
	n.changed <- struct{}{}
}

func (n *names) Resolve(pattern string) ([]dynamicfactory.Resource, error) { return n.Table()(pattern) }

func (n *names) Table() func(string) ([]dynamicfactory.Resource, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := &names{list: n.list, err: n.err, other: maps.Clone(n.other)}
	return now.resolve
}

func (n *names) resolve(pattern string) ([]dynamicfactory.Resource, error) {
	if full, ok := n.other[pattern]; ok {
		pattern = full
	}
	p, err := selector.ParseResource(pattern)
	if err != nil {
		return nil, err
	}
	var found []dynamicfactory.Resource
	for _, r := range n.list {
		version := p.Version(r.GVR.Group)
		switch {
		case !p.Names(r.GVR.GroupResource()) || version != "" && version != r.GVR.Version:
		case slices.ContainsFunc(found, func(f dynamicfactory.Resource) bool { return f.GVR.GroupResource() == r.GVR.GroupResource() }):
		case len(found) == 0 || p.Wildcard():
			found = append(found, r)
		default:
			found[0].Also = append(found[0].Also, r.GVR.GroupResource())
		}
	}
	if len(found) == 0 && n.err != nil {
		return nil, n.err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w %q", dynamicfactory.ErrNotServed, pattern)
	}
	return found, nil
}

func resource(group, name string) dynamicfactory.Resource {
	return dynamicfactory.Resource{GVR: schema.GroupVersionResource{Group: group, Version: "v1", Resource: name}, Kind: "Widget", Namespaced: true}
}

func watchOf(name string, edit func(*plan.Watch), resources ...string) plan.Watch {
	w := plan.Watch{Name: name, Resources: resources, Snapshot: true, History: true, Edits: redact.DefaultEdits()}
	if edit != nil {
		edit(&w)
	}
	return w
}

// selects has a watch select by label.
func selects(t *testing.T, labels string) func(*plan.Watch) {
	return func(w *plan.Watch) {
		w.Selection = plan.Selection{Labels: labels}
		var err error
		if w.Filter, err = w.Selection.Filter(); err != nil {
			t.Fatal(err)
		}
	}
}

// checkpointed waits until a source has recorded all that the API server has.
func (l *live) checkpointed(id, form string) {
	l.Helper()
	version := l.api.Version()
	eventually(l.T, id+" is at "+version+" in the form "+form, func() bool {
		cp, ok, err := l.m.ledger.Checkpoint(id)
		short, _, _ := strings.Cut(cp.Form, " key ")
		return err == nil && ok && (cp.Form == form || short == form) && cp.Synced && (cp.ListVersion() == version || !ledger.Newer(version, cp.ResourceVersion))
	})
}

// becomes waits until the log holds what is wanted.
func (l *live) becomes(want history) {
	l.Helper()
	var got history
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if got = l.log(); cmp.Equal(want, got) {
			return
		}
	}
	l.Errorf("events (-want +got):\n%s", cmp.Diff(want, got))
}

// states are the recorded objects of a partition, as JSON, by name.
func (l *live) states(partition string) map[string]string {
	l.Helper()
	states := map[string]string{}
	err := l.store.ScanState(partition, "", func(_ string, value []byte) error {
		o, err := compact.NewCodec(l.m.dicts).Decode(value)
		if err != nil {
			return err
		}
		raw, err := o.AppendJSON(nil)
		states[o.GetName()] = string(raw)
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
	return states
}

func spec(a, b string) map[string]any {
	return map[string]any{"spec": map[string]any{"a": a, "b": b}}
}

// TestEditsAreNotIdentity changes what a watch drops, redacts or strips, by a reload
// and over a restart: each state is recorded in the new form, and no event tells of
// anything but the changes of the objects.
func TestEditsAreNotIdentity(t *testing.T) {
	drop := func(w *plan.Watch) { w.Edits.Drop = append(w.Edits.Drop, "spec.b") }
	redact := func(w *plan.Watch) { w.Edits.Redact = []string{"spec.b"} }
	metadata := func(w *plan.Watch) { w.MetadataOnly = true }
	for _, tc := range []struct {
		name          string
		before, after func(*plan.Watch)
		hidden        string // text that is not to be seen afterwards
	}{
		{"drop", nil, drop, "secret"},
		{"redact", nil, redact, "secret"},
		{"loosened", redact, nil, "redacted"},
		{"to metadata", nil, metadata, ""},
		{"from metadata", metadata, nil, ""},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", tc.name, restart), func(t *testing.T) {
				api := apitest.New(t)
				api.Serve(podPath, "v1", "Pod")
				for _, name := range []string{"stays", "changes", "goes"} {
					api.Put(podPath, "ns", name, spec("1", "secret"))
				}
				dir := t.TempDir()
				before, after := watchOf("w", tc.before, "pods"), watchOf("w", tc.after, "pods")
				after.Fingerprint = "other"
				l := runLive(t, dir, store.Options{}, api, served{pods})
				l.apply(l.state(before))
				l.checkpointed("pods#", formOf(t, &before, pods))
				want := history{
					"stays":   {"sync 101"},
					"changes": {"sync 102", "updated 104", "updated 106"},
					"goes":    {"sync 103", "deleted 105"},
					"comes":   {"added 107"},
				}
				if restart {
					l.stop()
				}
				api.Put(podPath, "ns", "changes", spec("2", "secret"))
				api.Delete(podPath, "ns", "goes")
				if restart {
					l = runLive(t, dir, store.Options{}, api, served{pods})
				} else {
					l.checkpointed("pods#", formOf(t, &before, pods))
				}
				l.apply(l.state(after))
				l.checkpointed("pods#", formOf(t, &after, pods))
				api.Put(podPath, "ns", "changes", spec("3", "secret"))
				api.Put(podPath, "ns", "comes", spec("3", "secret"))
				l.checkpointed("pods#", formOf(t, &after, pods))
				l.becomes(want)
				states := l.states("pods")
				if len(states) != 3 {
					t.Errorf("recorded are %v", states)
				}
				for name, raw := range states {
					if tc.hidden != "" && strings.Contains(raw, tc.hidden) || strings.Contains(raw, "spec") == after.MetadataOnly {
						t.Errorf("%s is recorded as %s", name, raw)
					}
				}
				if parts := l.store.Partitions(); len(parts) != 1 {
					t.Errorf("partitions are %v", parts)
				}
			})
		}
	}
}

// TestRecordedAgainAfterAStop stops between a change of edits and the end of its
// list: the list is taken again.
func TestRecordedAgainAfterAStop(t *testing.T) {
	api := apitest.New(t)
	api.Serve(podPath, "v1", "Pod")
	for i := range 1200 {
		api.Put(podPath, "ns", fmt.Sprint("pod-", i), spec("1", "secret"))
	}
	dir := t.TempDir()
	before := watchOf("w", nil, "pods")
	after := watchOf("w", func(w *plan.Watch) { w.Edits.Drop = append(w.Edits.Drop, "spec.b") }, "pods")
	l := runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(before))
	l.checkpointed("pods#", "v1")
	l.stop()

	refused := make(chan struct{})
	once := sync.OnceFunc(func() { close(refused) })
	api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != podPath || r.URL.Query().Get("continue") == "" {
			return false
		}
		once()
		apitest.Fail(w, http.StatusForbidden, "Forbidden")
		return true
	})
	l = runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(after))
	<-refused
	l.stop()

	api.Intercept(nil)
	l = runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(after))
	l.checkpointed("pods#", formOf(t, &after, pods))
	h := l.log()
	for name, raw := range l.states("pods") {
		if strings.Contains(raw, "secret") || len(h[name]) != 1 {
			t.Errorf("%s: events %v, recorded as %s", name, h[name], raw)
		}
	}
}

// TestAnotherRedactionKey starts with another key: the objects are recorded again, without
// events, and the hashes of the former key stay in no state.
func TestAnotherRedactionKey(t *testing.T) {
	api := apitest.New(t)
	api.Serve(podPath, "v1", "Pod")
	api.Put(podPath, "ns", "a", spec("1", "secret"))
	api.Put(podPath, "ns", "b", spec("1", "secret"))
	dir := t.TempDir()
	w := watchOf("w", func(w *plan.Watch) { w.Edits.Redact = []string{"spec.b"} }, "pods")
	l := runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(w))
	l.checkpointed("pods#", formOf(t, &w, pods))
	l.becomes(history{"a": {"sync 101"}, "b": {"sync 102"}})
	began := time.Now()
	api.Put(podPath, "ns", "a", spec("2", "secret"))
	l.becomes(history{"a": {"sync 101", "updated 103"}, "b": {"sync 102"}})
	before := l.states("pods")
	if before["a"] == before["b"] || strings.Contains(before["a"], "secret") {
		t.Errorf("recorded: %v", before)
	}
	l.stop()

	key := bytes.Repeat([]byte("k"), redact.MinKey)
	id, err := commit.IdentityOf(&w, pods, "", "", key)
	if err != nil {
		t.Fatal(err)
	}
	l = runKeyed(t, dir, store.Options{}, api, served{pods}, key)
	l.apply(l.state(w))
	l.checkpointed("pods#", id.Form)
	after := l.states("pods")
	for name, raw := range after {
		if raw == before[name] || strings.Contains(raw, "secret") {
			t.Errorf("%s is recorded as %s, and was as %s", name, raw, before[name])
		}
	}
	l.becomes(history{"a": {"sync 101", "updated 103"}, "b": {"sync 102"}})
	api.Put(podPath, "ns", "a", spec("3", "secret"))
	l.becomes(history{"a": {"sync 101", "updated 103", "updated 104"}, "b": {"sync 102"}})
	hash := regexp.MustCompile(`redacted:[^"]*`)
	if now := l.states("pods")["a"]; hash.FindString(now) != hash.FindString(after["a"]) {
		t.Errorf("an equal value is recorded as %s, and was as %s", now, after["a"])
	}
	// A comparison with what was recorded before does not call the value changed.
	reader := l.m.Reader().History()
	d, err := reader.Diff(t.Context(), past.Object{Resource: event.Resource{Resource: "pods"}, Namespace: "ns", Name: "a"}, began, time.Now())
	if err != nil || !strings.Contains(d.Diff, `-  a: "1"`) || strings.Contains(d.Diff, "-  b") {
		t.Errorf("difference: %v\n%s", err, d.Diff)
	}
	changes, err := reader.Changes(t.Context(), past.Filter{From: began}, false)
	if err != nil || len(changes.Items) != 1 || changes.Items[0].Summary != "a 1 -> 3" {
		t.Errorf("changes: %v, %+v", err, changes.Items)
	}
}

// TestNewPreferredVersion has a definition get another version, which becomes the
// preferred one, while one watch names the version and one does not: each gets every
// change once.
func TestNewPreferredVersion(t *testing.T) {
	api := apitest.New(t)
	api.Serve(widgetPath, "example.com/v1", "Widget")
	api.Serve("/apis/example.com/v2beta1/widgets", "example.com/v2beta1", "Widget")
	both := func(do func(path string)) {
		do(widgetPath)
		do("/apis/example.com/v2beta1/widgets")
	}
	resolver := serving(widgetsV2)
	l := runLive(t, t.TempDir(), store.Options{}, api, resolver)
	l.apply(l.state(watchOf("pinned", nil, "widgets.v2beta1.example.com"), watchOf("any", nil, "widgets.example.com")))
	for _, list := range [][]dynamicfactory.Resource{{widgetsV2}, {widgets, widgetsV2}} {
		if len(list) > 1 {
			resolver.set(list...)
		}
		eventually(t, "two sources run", func() bool {
			ids := map[string]bool{}
			for _, s := range l.m.informerList() {
				if s.sub.Load() != nil && s.Key.GVR.Version == list[0].GVR.Version || s.Scope != "" {
					ids[s.ID] = true
				}
			}
			return len(ids) == 2
		})
	}
	eventually(t, "both are watched", func() bool {
		return api.Watches(widgetPath) == 1 && api.Watches("/apis/example.com/v2beta1/widgets") == 1
	})
	both(func(path string) { api.Put(path, "ns", "a", nil) })
	both(func(path string) { api.Put(path, "ns", "a", spec("1", "2")) })
	both(func(path string) { api.Delete(path, "ns", "a") })
	byVersion := func() map[string]string {
		out := map[string]string{}
		items, err := l.store.ReadLog(0, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range items {
			r, err := record.Decode(it.Payload)
			if err != nil {
				t.Fatal(err)
			}
			out[r.Event.Resource.Version] += string(r.Event.Type) + " "
		}
		return out
	}
	want := map[string]string{"v1": "added updated deleted ", "v2beta1": "added updated deleted "}
	eventually(t, "three events each", func() bool {
		return len(byVersion()["v1"]) >= len(want["v1"]) && len(byVersion()["v2beta1"]) >= len(want["v1"])
	})
	if diff := cmp.Diff(want, byVersion()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestPreferredVersionChangesWhileAway restarts a watch of each kind after another
// version has become the preferred one.
func TestPreferredVersionChangesWhileAway(t *testing.T) {
	for _, tc := range []struct{ pattern, before, after string }{
		{"widgets.v2beta1.example.com", "v2beta1", "v2beta1"},
		{"widgets.example.com", "v2beta1", "v1"},
	} {
		t.Run(tc.pattern, func(t *testing.T) {
			api := apitest.New(t)
			for _, version := range []string{"v1", "v2beta1"} {
				path := "/apis/example.com/" + version + "/widgets"
				api.Serve(path, "example.com/"+version, "Widget")
				if version == tc.before {
					api.Put(path, "ns", "stays", nil)
					api.Put(path, "ns", "goes", nil)
				}
			}
			dir := t.TempDir()
			l := runLive(t, dir, store.Options{}, api, serving(widgetsV2))
			l.apply(l.state(watchOf("w", nil, tc.pattern)))
			id := "widgets.example.com#"
			if tc.before == tc.after {
				id = "widgets.example.com@v2beta1#"
			}
			l.checkpointed(id, tc.before)
			l.stop()

			from, to := "/apis/example.com/"+tc.before+"/widgets", "/apis/example.com/"+tc.after+"/widgets"
			if from == to {
				api.Delete(from, "ns", "goes")
			} else {
				api.Move(from, to)
				api.Delete(to, "ns", "goes")
			}
			l = runLive(t, dir, store.Options{}, api, serving(widgets, widgetsV2))
			l.apply(l.state(watchOf("w", nil, tc.pattern)))
			l.checkpointed(id, tc.after)
			want := history{"stays": {"sync 101"}, "goes": {"sync 102", "deleted 103"}}
			l.becomes(want)
		})
	}
}

// TestOverlapsThatDiscoveryShows are refused when a state is applied, and wait when
// they come later.
func TestOverlapsThatDiscoveryShows(t *testing.T) {
	api := apitest.New(t)
	api.Serve(podPath, "v1", "Pod")
	api.Serve(widgetPath, "example.com/v1", "Widget")
	resolver := serving(pods)
	resolver.other["po"] = "pods"
	resolver.other["wd"] = "widgets.example.com"
	drop := func(w *plan.Watch) { w.Edits.Drop = []string{"spec"} }
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, resolver)
	err := l.m.Apply(t.Context(), l.state(watchOf("a", nil, "pods"), watchOf("b", drop, "po")))
	if err == nil || !strings.Contains(err.Error(), "watch b and watch a both watch pods") {
		t.Errorf("error is %v", err)
	}
	if l.m.currentState() != nil || len(l.m.informerList()) != 0 {
		t.Error("something runs")
	}
	st := l.state(watchOf("a", nil, "pods", "*.example.com"), watchOf("b", drop, "wd"))
	st.Hash = "accepted"
	l.apply(st)
	waiting := func() {
		t.Helper()
		eventually(t, "the earlier watch has the resource, and the later one waits", func() bool {
			var status string
			for _, w := range l.m.reader.Status().Watches {
				status += fmt.Sprint(w.Name, ":", len(w.Sources), ";")
				for _, x := range w.Missing {
					status += x.Resource + " " + x.Reason
				}
			}
			return strings.HasPrefix(status, "a:2;b:0;widgets.example.com watch b and watch a both watch widgets.example.com, and their drop differ")
		})
	}
	resolver.set(pods, widgets)
	waiting()
	l.stop()
	l = runLive(t, dir, store.Options{}, api, resolver) // what was accepted does not end the daemon
	l.apply(st)
	waiting()
}

// TestExcludedResources are not watched, by whatever name they are excluded.
func TestExcludedResources(t *testing.T) {
	for _, excluded := range []string{"widgets", "widgets.example.com", "widgets.v1.example.com", "*.example.com", "wd"} {
		r := newRig(t, t.TempDir())
		resolver := serving(pods, nodes, widgets)
		resolver.other["wd"] = "widgets.example.com"
		r.m.cfg.Resolver = resolver
		w := watchOf("w", func(w *plan.Watch) { w.ExcludeResources = []string{excluded, "unheard", "*.unheard.com"} }, "*")
		d, err := r.m.desire(&plan.State{Watches: []plan.Watch{w, watchOf("v", func(w *plan.Watch) { w.MetadataOnly = true }, "widgets")}})
		if err != nil || len(d.overlaps) > 0 {
			t.Errorf("%s: %v, %v", excluded, err, d.overlaps)
		}
		var ids []string
		for _, s := range d.feeds {
			ids = append(ids, s.ID)
		}
		slices.Sort(ids)
		if want := []string{"nodes#", "pods#", "widgets.example.com#"}; !slices.Equal(ids, want) {
			t.Errorf("%s: sources are %v, want %v", excluded, ids, want)
		}
	}
}

// TestBareNameStays has a second group serve a name that a watch gives without a
// group: the watch stays with the first, over a restart too, and says so.
func TestBareNameStays(t *testing.T) {
	api := apitest.New(t)
	first, second := resource("networking.istio.io", "gateways"), resource("gateway.networking.k8s.io", "gateways")
	for _, r := range []dynamicfactory.Resource{first, second} {
		api.Serve("/apis/"+r.GVR.Group+"/v1/gateways", r.GVR.Group+"/v1", "Gateway")
	}
	resolver := serving(first)
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, resolver)
	st := l.state(watchOf("w", nil, "gateways"))
	l.apply(st)
	if got := l.m.reader.Status().Watches[0].Warnings; len(got) != 0 {
		t.Errorf("warnings are %v", got)
	}
	stays := func() {
		t.Helper()
		eventually(t, "a warning", func() bool { return len(l.m.reader.Status().Watches[0].Warnings) == 1 })
		if got, want := l.m.reader.Status().Watches[0].Warnings[0], "gateways means gateways.networking.istio.io; gateways.gateway.networking.k8s.io goes by the same name: write the one that is meant with its group"; got != want {
			t.Errorf("warning is %q, want %q", got, want)
		}
		if sources := l.m.reader.Status().Watches[0].Sources; len(sources) != 1 || sources[0].Resource != "gateways.v1.networking.istio.io" {
			t.Errorf("sources are %v", sources)
		}
	}
	resolver.set(second, first)
	stays()
	l.stop()
	l = runLive(t, dir, store.Options{}, api, resolver)
	l.apply(st)
	stays()
	resolver.set(second) // the first is gone
	eventually(t, "the second", func() bool {
		sources := l.m.reader.Status().Watches[0].Sources
		return len(sources) == 1 && sources[0].Resource == "gateways.v1.gateway.networking.k8s.io"
	})
}

// age makes the notes with a prefix older.
func (l *live) age(prefix string, by time.Duration) {
	l.Helper()
	ageNotes(l.T, l.store, prefix, by)
}

// ageNotes sets back the time of the notes whose keys begin with prefix.
func ageNotes(t *testing.T, st *store.Store, prefix string, by time.Duration) {
	t.Helper()
	err := st.ScanMeta(prefix, func(key string, value []byte) error {
		since, err := time.Parse(time.RFC3339, string(value))
		if err != nil {
			return err
		}
		return ledger.PutMeta(st, key, noteTime(since.Add(-by)))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (l *live) forget() {
	l.Helper()
	if err := l.m.call(l.Context(), func(context.Context) error { return l.m.forgetUnwatched() }); err != nil {
		l.Fatal(err)
	}
}

// TestNamespaceTakenOut narrows a watch and widens it again: within the retention it
// is told what happened, later it starts anew, and the states are not kept.
func TestNamespaceTakenOut(t *testing.T) {
	in := func(namespaces ...string) plan.Watch {
		w := watchOf("w", func(w *plan.Watch) { w.Namespaces = namespaces }, "pods")
		w.Fingerprint = fmt.Sprint(namespaces)
		return w
	}
	for _, tc := range []struct {
		name       string
		wide, slim plan.Watch
	}{
		{"of all", in(), in("ns")},
		{"of two", in("ns", "other"), in("ns")},
	} {
		for _, away := range []time.Duration{30 * time.Minute, 2 * time.Hour} {
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %v, restart %t", tc.name, away, restart), func(t *testing.T) {
					api := apitest.New(t)
					api.Serve(podPath, "v1", "Pod")
					api.Put(podPath, "ns", "a", nil)
					api.Put(podPath, "other", "b", nil)
					api.Put(podPath, "other", "c", nil)
					dir := t.TempDir()
					l := runLive(t, dir, store.Options{}, api, served{pods})
					l.apply(l.state(tc.wide))
					eventually(t, "sync", func() bool { return len(l.log()) == 3 })
					l.apply(l.state(tc.slim))
					l.forget()
					api.Delete(podPath, "other", "b")
					l.age("unwatched", away)
					late := away > time.Hour
					if restart {
						l.stop()
						l = runLive(t, dir, store.Options{}, api, served{pods})
					} else if late {
						l.forget()
						if states := l.states("pods"); len(states) != 1 {
							t.Errorf("recorded are %v", states)
						}
					}
					l.apply(l.state(tc.wide))
					want := history{"a": {"sync 101"}, "b": {"sync 102", "deleted 102 unknown"}, "c": {"sync 103"}}
					want["b"][1] = "deleted 104" // the namespace is watched from where it was left
					if late {
						want["b"], want["c"] = []string{"sync 102"}, []string{"sync 103", "sync 103"}
						if len(tc.wide.Namespaces) == 0 {
							want["b"] = []string{"sync 102", "sync 102", "deleted 104"} // the whole begins where the part had come to
						}
					}
					l.becomes(want)
					eventually(t, "the watch covers the namespace again", func() bool { return len(l.states("pods")) == 2 })
				})
			}
		}
	}
}

// TestExpiredNamespaceStartsAnew expires a namespace before the rest of the whole that was
// watched before it: a watch that returns to it does not go by the whole's position.
func TestExpiredNamespaceStartsAnew(t *testing.T) {
	api := apitest.New(t)
	api.Serve(podPath, "v1", "Pod")
	api.Put(podPath, "ns", "a", nil)
	api.Put(podPath, "other", "b", nil)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	for _, namespaces := range [][]string{nil, {"ns", "other"}, {"ns"}} {
		l.apply(l.state(committest.PodWatch(only(namespaces...))))
		eventually(t, "sync", func() bool { return len(l.log()) == 2 })
	}
	l.age("unwatched-in/pods#other", 2*time.Hour)
	l.forget()
	if states := l.states("pods"); len(states) != 1 {
		t.Errorf("recorded are %v", states)
	}
	l.apply(l.state(committest.PodWatch(only("ns", "other"))))
	l.becomes(history{"a": {"sync 101"}, "b": {"sync 102", "sync 102"}})
}

// TestSelectionChangedWhileAway does over a restart what a reload does: what a watch
// covers in addition comes as sync events.
func TestSelectionChangedWhileAway(t *testing.T) {
	for _, tc := range []struct {
		name          string
		before, after []plan.Watch
		want          history
	}{
		{
			"selector",
			[]plan.Watch{watchOf("w", selects(t, "tier=web"), "pods")},
			[]plan.Watch{watchOf("w", nil, "pods")},
			history{"web": {"sync 101"}, "db": {"sync 102"}, "other": {"sync 103"}},
		},
		{
			"another watch",
			[]plan.Watch{watchOf("w", nil, "pods")},
			[]plan.Watch{watchOf("w", nil, "pods"), watchOf("v", selects(t, "tier=db"), "pods")},
			history{"web": {"sync 101"}, "db": {"sync 102", "sync 102"}, "other": {"sync 103"}},
		},
		{
			"namespaces",
			[]plan.Watch{watchOf("w", func(w *plan.Watch) { w.Namespaces = []string{"ns"} }, "pods"), watchOf("v", func(w *plan.Watch) { w.Namespaces = []string{"else"} }, "pods")},
			[]plan.Watch{watchOf("w", nil, "pods"), watchOf("v", func(w *plan.Watch) { w.Namespaces = []string{"else"} }, "pods")},
			history{"web": {"sync 101"}, "db": {"sync 102"}, "other": {"sync 103", "sync 103"}},
		},
		{
			"narrower",
			[]plan.Watch{watchOf("w", nil, "pods")},
			[]plan.Watch{watchOf("w", selects(t, "tier=db"), "pods")},
			history{"web": {"sync 101"}, "db": {"sync 102"}, "other": {"sync 103"}},
		},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", tc.name, restart), func(t *testing.T) {
				for i := range tc.after {
					tc.after[i].Fingerprint = "after"
				}
				api := apitest.New(t)
				api.Serve(podPath, "v1", "Pod")
				put := func(ns, name string) {
					api.Put(podPath, ns, name, map[string]any{"metadata": map[string]any{
						"namespace": ns, "name": name, "uid": "u-" + name, "labels": map[string]any{"tier": name},
					}})
				}
				put("ns", "web")
				put("ns", "db")
				put("else", "other")
				dir := t.TempDir()
				l := runLive(t, dir, store.Options{}, api, served{pods})
				l.apply(l.state(tc.before...))
				eventually(t, "all are recorded", func() bool { return len(l.states("pods")) == 3 })
				if restart {
					l.stop()
					l = runLive(t, dir, store.Options{}, api, served{pods})
				}
				for range 2 {
					l.apply(l.state(tc.after...))
					l.caughtUp()
					var diff string
					t.Cleanup(func() {
						if diff != "" {
							t.Logf("events (-want +got):\n%s", diff)
						}
					})
					eventually(t, "the snapshot of a watch that is new is done, too", func() bool {
						h := l.log()
						delete(h, "marker")
						diff = cmp.Diff(tc.want, h)
						return diff == ""
					})
				}
			})
		}
	}
}

// TestDefinitionGone takes a resource away: its recorded objects are reported as deleted if its
// definition is certainly gone, and are kept otherwise. A resource of an aggregated API never
// had a definition.
func TestDefinitionGone(t *testing.T) {
	definition := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com"
	for _, tc := range []struct {
		name    string
		pattern string
		api     bool  // the resource is of an aggregated API
		server  int   // status of the answer about the definition; 0: not found
		page    bool  // the answer is a page of a proxy
		resolve error // the resolver's about the resource; nil: not served
		aged    time.Duration
		ahead   time.Duration // the clock
		deleted bool
	}{
		{name: "a wildcard", pattern: "*", deleted: true},
		{name: "a group", pattern: "*.example.com", deleted: true},
		{name: "a name", pattern: "widgets.example.com", deleted: true},
		{name: "a version", pattern: "widgets.v1.example.com", deleted: true},
		{name: "the definition exists", pattern: "*", server: http.StatusOK},
		{name: "the server fails", pattern: "*", server: http.StatusServiceUnavailable},
		{name: "a proxy does not find it", pattern: "*", server: http.StatusNotFound, page: true},
		{name: "forbidden", pattern: "*", server: http.StatusForbidden},
		{name: "forbidden for long", pattern: "*", server: http.StatusForbidden, aged: 2 * time.Hour, deleted: true},
		{name: "forbidden, and the clock is ahead", pattern: "*", server: http.StatusForbidden, ahead: 2 * time.Hour},
		{name: "an aggregated API", pattern: "*", api: true},
		{name: "an aggregated API for long", pattern: "*", api: true, aged: 2 * time.Hour, deleted: true},
		{name: "discovery fails", pattern: "*", resolve: fmt.Errorf("%w; %w", dynamicfactory.ErrNotServed, dynamicfactory.ErrUncertain)},
		{name: "discovery is not known", pattern: "*", resolve: dynamicfactory.ErrNotReady},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", tc.name, restart), func(t *testing.T) {
				api := apitest.New(t)
				if api.ServeCustom(widgetPath, "example.com/v1", "Widget"); tc.api {
					api.Unserve(widgetPath)
					api.Serve(widgetPath, "example.com/v1", "Widget")
				}
				for i := range 600 {
					api.Put(widgetPath, "ns", fmt.Sprint("w-", i), nil)
				}
				resolver := serving(widgets)
				dir := t.TempDir()
				var ahead atomic.Int64
				opts := store.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}
				l := runLive(t, dir, opts, api, resolver)
				st := l.state(watchOf("w", nil, tc.pattern))
				l.apply(st)
				eventually(t, "sync", func() bool { return len(l.log()) == 600 })
				if !tc.api {
					l.defined("widgets.example.com")
				}
				asked := make(chan struct{}, 1)
				api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path != definition {
						return false
					}
					select {
					case asked <- struct{}{}:
					default:
					}
					switch {
					case tc.page:
						http.Error(w, "404 page not found", tc.server)
					case tc.server == 0:
						return false
					case tc.server == http.StatusOK:
						w.Header().Set("Content-Type", "application/json")
						_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets.example.com"}})
					default:
						apitest.Fail(w, tc.server, map[int]string{http.StatusForbidden: "Forbidden"}[tc.server])
					}
					return true
				})
				resolver.mu.Lock()
				resolver.err = tc.resolve
				resolver.mu.Unlock()
				if restart {
					l.stop()
					api.Unserve(widgetPath)
					resolver = serving()
					resolver.err = tc.resolve
					l = runLive(t, dir, opts, api, resolver)
					l.apply(st)
				} else {
					api.Unserve(widgetPath)
					resolver.set()
				}
				eventually(t, "nothing is watched", func() bool { return len(l.m.informerList()) == 0 })
				if tc.resolve == nil {
					eventually(t, "the definition is looked for", func() bool { return len(asked) > 0 })
				}
				begun := 0
				_ = l.m.call(t.Context(), func(context.Context) error { begun = len(l.m.farewells); return nil }) // it has been dealt with
				if begun > 0 && (!tc.deleted || tc.aged > 0) {
					t.Error("the objects are being reported as deleted")
				}
				if tc.aged+tc.ahead > 0 {
					l.age("unserved/", tc.aged)
					ahead.Store(int64(tc.ahead))
					if err := l.m.call(t.Context(), func(ctx context.Context) error {
						_, err := l.m.reportGone(ctx)
						begun = len(l.m.farewells)
						return err
					}); err != nil {
						t.Fatal(err)
					}
					if begun > 0 != tc.deleted {
						t.Errorf("%d resources are being reported as deleted", begun)
					}
				}
				parts := 1
				if tc.deleted {
					parts = 0
				}
				eventually(t, fmt.Sprint(parts, " partitions"), func() bool { return len(l.store.Partitions()) == parts })
				events, deleted, gaps := 0, 0, 0 // of the history alone: what came before the deletions was not observed
				for _, lines := range l.log() {
					if strings.HasPrefix(lines[0], "gap") {
						gaps += len(lines)
						continue
					}
					events += len(lines)
					if len(lines) > 1 && strings.HasPrefix(lines[1], "deleted") && strings.HasSuffix(lines[1], "unknown") {
						deleted++
					}
				}
				if tc.deleted && (events != 1200 || deleted != 600 || gaps != 1) || !tc.deleted && (events != 600 || gaps != 0) {
					t.Errorf("%d events, %d deletions, %d gaps", events, deleted, gaps)
				}
			})
		}
	}
}

// TestDefinitionReplacedByAnAggregatedAPI has an aggregated API take a custom resource over while
// nothing is watched: as soon as it is watched for a while, a missing definition proves nothing.
func TestDefinitionReplacedByAnAggregatedAPI(t *testing.T) {
	api := apitest.New(t)
	api.ServeCustom(widgetPath, "example.com/v1", "Widget")
	dir := t.TempDir()
	for _, custom := range []bool{true, false} {
		resolver := serving(widgets)
		l := runLive(t, dir, store.Options{}, api, resolver)
		l.apply(l.state(watchOf("w", nil, "widgets.example.com")))
		l.defined("widgets.example.com")
		if custom {
			l.checkpointed("widgets.example.com#", "v1")
			l.stop()
			api.Unserve(widgetPath)
			api.Serve(widgetPath, "example.com/v1", "Widget")
			api.Put(widgetPath, "ns", "a", nil)
			continue
		}
		eventually(t, "sync", func() bool { return len(l.log()) == 1 && l.m.informerList()[0].served() })
		looks := map[*informer]look{}
		for _, want := range []bool{true, true, false} {
			if again, err := l.m.noteDefinitions(t.Context(), looks); err != nil || again != want {
				t.Fatalf("again %t, %v; want %t", again, err, want)
			}
			if _, noted, err := l.store.Meta(definedMeta + "widgets.example.com"); err != nil || noted != want {
				t.Fatalf("noted %t, %v; want %t", noted, err, want)
			}
			if len(l.store.Partitions()) != 1 {
				t.Fatal("no partition")
			}
			for s, x := range looks {
				if !x.over && want {
					x.absent = x.absent.Add(-goneRetry / 2)
				}
				looks[s] = x
			}
		}
		resolver.set()
		eventually(t, "the resource is waited for", func() bool { return len(l.m.informerList()) == 0 })
		if err := l.m.call(t.Context(), func(ctx context.Context) error {
			again, err := l.m.reportGone(ctx)
			if !again {
				t.Error("the resource is not looked for again")
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		l.becomes(history{"a": {"added 101"}})
	}
}

// TestForbiddenDefinitions forbids to read all definitions but one, whose resource has one.
func TestForbiddenDefinitions(t *testing.T) {
	api := apitest.New(t)
	api.ServeCustom(widgetPath, "example.com/v1", "Widget")
	forbid(api, func(r *http.Request) bool { return strings.Contains(r.URL.Path, "customresourcedefinitions/gadgets") })
	list := []dynamicfactory.Resource{widgets}
	names := []string{"widgets.example.com"}
	for i := range 9 { // they are looked at in any order
		gadgets := widgets
		gadgets.GVR.Resource = fmt.Sprint("gadgets", i)
		api.ServeCustom("/apis/example.com/v1/"+gadgets.GVR.Resource, "example.com/v1", "Gadget")
		list, names = append(list, gadgets), append(names, gadgets.GVR.GroupResource().String())
	}
	l := runLive(t, t.TempDir(), store.Options{}, api, serving(list...))
	l.apply(l.state(watchOf("w", nil, names...)))
	if _, err := l.m.noteDefinitions(t.Context(), map[*informer]look{}); err != nil {
		t.Fatal(err)
	}
	if _, noted, err := l.store.Meta(definedMeta + "widgets.example.com"); err != nil || !noted {
		t.Errorf("that the resource has a definition is noted: %t, %v", noted, err)
	}
}

// TestDefinitionDeletedAsAWatchStarts deletes a definition before its feed has started, and discovery
// is late: that the resource had one stays known.
func TestDefinitionDeletedAsAWatchStarts(t *testing.T) {
	api := apitest.New(t)
	api.ServeCustom(widgetPath, "example.com/v1", "Widget")
	dir := t.TempDir()
	st := func(l *live) *plan.State { return l.state(watchOf("w", nil, "widgets.example.com")) }
	l := runLive(t, dir, store.Options{}, api, serving(widgets))
	l.apply(st(l))
	l.defined("widgets.example.com")
	l.checkpointed("widgets.example.com#", "v1")
	l.stop()
	api.Unserve(widgetPath)
	l = runLive(t, dir, store.Options{}, api, serving(widgets))
	l.apply(st(l))
	looks := map[*informer]look{}
	for range 2 {
		if again, err := l.m.noteDefinitions(t.Context(), looks); err != nil || !again {
			t.Errorf("again %t, %v", again, err)
		}
		for s, x := range looks {
			x.absent = x.absent.Add(-goneRetry)
			looks[s] = x
		}
	}
	if _, noted, err := l.store.Meta(definedMeta + "widgets.example.com"); !noted || err != nil {
		t.Errorf("noted %t, %v", noted, err)
	}
}

// TestServedAgainBesideAnUnknownDefinition has one resource served, or watched no more, whose absence is noted
// while the API server does not answer about another: the note ends, so that the next absence begins anew.
func TestServedAgainBesideAnUnknownDefinition(t *testing.T) {
	api := apitest.New(t)
	gadgets := widgets
	gadgets.GVR.Resource, gadgets.Kind = "gadgets", "Gadget"
	api.ServeCustom(widgetPath, "example.com/v1", "Widget")
	api.ServeCustom("/apis/example.com/v1/gadgets", "example.com/v1", "Gadget")
	api.Put(widgetPath, "ns", "a", nil)
	api.Put("/apis/example.com/v1/gadgets", "ns", "b", nil)
	api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "customresourcedefinitions") {
			return false
		}
		apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
		return true
	})
	resolver := serving(gadgets, widgets)
	l := runLive(t, t.TempDir(), store.Options{}, api, resolver)
	l.apply(l.state(watchOf("g", nil, "gadgets.example.com"), watchOf("w", nil, "widgets.example.com")))
	eventually(t, "sync", func() bool { return len(l.log()) == 2 })
	resolver.set(widgets)
	eventually(t, "a resource is waited for", func() bool { return len(l.m.informerList()) == 1 })
	for _, st := range []*plan.State{nil, l.state(watchOf("g", nil, "gadgets.example.com"))} {
		if err := ledger.PutMeta(l.store, unservedMeta+"widgets.example.com", noteTime(time.Now())); err != nil {
			t.Fatal(err)
		}
		if st != nil {
			l.apply(st)
		}
		if err := l.m.call(t.Context(), func(ctx context.Context) error {
			_, err := l.m.reportGone(ctx)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if _, noted, err := l.store.Meta(unservedMeta + "widgets.example.com"); noted || err != nil {
			t.Errorf("watched: %t; the note that it is not served stays: %v", st == nil, err)
		}
	}
}

// TestWaitingWatchKeepsItsStates has a resource go away for longer than events are
// kept, whatever name the watch has for it.
func TestWaitingWatchKeepsItsStates(t *testing.T) {
	for _, pattern := range []string{"widgets.example.com", "widgets", "widget", "wd", "wd.example.com", "*.example.com"} {
		t.Run(pattern, func(t *testing.T) {
			api := apitest.New(t)
			api.Serve(widgetPath, "example.com/v1", "Widget")
			api.Serve(podPath, "v1", "Pod")
			api.Put(widgetPath, "ns", "stays", nil)
			api.Put(widgetPath, "ns", "goes", nil)
			resolver := serving(pods, widgets)
			resolver.err = fmt.Errorf("%w; %w", dynamicfactory.ErrNotServed, dynamicfactory.ErrUncertain)
			for _, name := range []string{"widget", "wd", "wd.example.com"} {
				resolver.other[name] = "widgets.example.com"
			}
			l := runLive(t, t.TempDir(), store.Options{}, api, resolver)
			l.apply(l.state(watchOf("w", nil, pattern), watchOf("v", func(w *plan.Watch) { w.Namespaces = []string{"else"} }, "pods")))
			l.checkpointed("widgets.example.com#", "v1")
			resolver.set(pods)
			eventually(t, "the resource is waited for", func() bool { return len(l.m.informerList()) == 1 })
			for range 3 {
				l.forget()
				l.age("unwatched", 100*time.Hour)
			}
			api.Delete(widgetPath, "ns", "goes")
			resolver.set(pods, widgets)
			want := history{"stays": {"sync 101"}, "goes": {"sync 102", "deleted 103"}}
			eventually(t, "the deletion", func() bool { return len(l.log()["goes"]) > 1 })
			l.checkpointed("widgets.example.com#", "v1")
			l.becomes(want)
		})
	}
}

// testKey is the redaction key of every life, so that its forms are known.
var testKey = make([]byte, ledger.RedactKeyLen)

// formOf is the form in which a watch has a resource recorded.
func formOf(t *testing.T, w *plan.Watch, r dynamicfactory.Resource) string {
	t.Helper()
	id, err := commit.IdentityOf(w, r, "", "", testKey)
	if err != nil {
		t.Fatal(err)
	}
	return id.Form
}
