package query

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/unseen"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

var (
	pods    = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true, Categories: []string{"all"}}
	widgets = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}, Kind: "Widget", Namespaced: true, Categories: []string{"all"}}
)

// served resolves names of resources, alone or in full, and * to all of them.
type served []dynamicfactory.Resource

func (s served) Resolve(name string) ([]dynamicfactory.Resource, error) {
	if name == "*" {
		return s, nil
	}
	for _, r := range s {
		if full := r.GVR.Resource + "." + r.GVR.Version + "." + r.GVR.Group; name == r.GVR.Resource || name == full {
			return []dynamicfactory.Resource{r}, nil
		}
	}
	return nil, fmt.Errorf("%w %q", dynamicfactory.ErrNotServed, name)
}

// rig is a Reader of a pipeline that a test describes.
type rig struct {
	*testing.T
	*Reader
	store    *store.Store
	dicts    *compact.Dictionaries
	registry *prometheus.Registry
	running  Running
	edits    *redact.Table
}

func (r *rig) Running() Running {
	now := r.running
	now.Feeds = slices.Clone(now.Feeds) // they are the caller's
	return now
}

func newRig(t *testing.T) *rig {
	t.Helper()
	st, err := store.Open("store", store.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &rig{T: t, store: st, dicts: compact.NewDictionaries(nil), registry: prometheus.NewRegistry()}
	committer, err := commit.New(commit.Config{
		Cluster: "test", Store: st, Ledger: ledger.New(st, r.dicts), Dictionaries: r.dicts,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Reader, err = New(Config{
		Pipeline: r, Committer: committer, Store: st, Resolver: served{pods, widgets},
		Inflater: &record.Inflater{Cluster: "test", Dictionaries: r.dicts}, Edits: func() *redact.Table { return r.edits },
		Registerer: r.registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// feed has the pipeline run a feed of the resource, which has no informer yet.
func (r *rig) feed(res dynamicfactory.Resource, w *plan.Watch) {
	r.Helper()
	id, err := commit.IdentityOf(w, res, "", "", make([]byte, ledger.RedactKeyLen))
	if err != nil {
		r.Fatal(err)
	}
	r.running.Feeds = append(r.running.Feeds, Feed{Feed: r.committer.NewFeed(id, commit.NewWatchRef(w))})
}

// state is one with two watches, one of which waits for a resource, and a route.
func (r *rig) state() *plan.State {
	r.Helper()
	st := &plan.State{
		Watches: []plan.Watch{{Name: "w", Edits: redact.Edits{Redact: []string{"data[*]"}}}, {Name: "v"}},
		Routes:  []route.Spec{{Name: "r", Watches: []string{"w"}, Sinks: []string{"a"}}},
		Sinks:   []plan.Sink{{Name: "a", Kind: "file"}},
	}
	var err error
	if st.Router, err = route.Compile(st.Routes); err != nil {
		r.Fatal(err)
	}
	for _, name := range []string{"a", "former"} {
		if _, err := r.store.EnsureSink(name, store.FromNow); err != nil {
			r.Fatal(err)
		}
	}
	return st
}

func TestStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stopped := status.Sink{Name: "former", State: "stopped"}
	st := r.state()
	want := status.Pipeline{
		Caches: []status.Cache{}, Watches: []status.Watch{}, Routes: []status.Route{},
		Sinks: []status.Sink{{Name: "a", State: "stopped"}, stopped},
	}
	if diff := cmp.Diff(want, r.Status()); diff != "" {
		t.Errorf("before a state is applied (-want +got):\n%s", diff)
	}
	r.running.State = st
	r.feed(pods, &st.Watches[0])
	r.running.Missing = []Missing{{Watch: "v", Pattern: "gadgets", Err: fmt.Errorf("%w %q", dynamicfactory.ErrNotServed, "gadgets")}}
	r.running.Warnings = map[string][]string{"v": {"z", "b"}}
	want = status.Pipeline{
		Applied: true,
		Caches:  []status.Cache{{Resource: "pods"}},
		Watches: []status.Watch{
			{Name: "w", Sources: []status.Source{{Resource: "pods.v1", Status: dynamicfactory.Status{WatchStatus: dynamicfactory.WatchStatus{State: dynamicfactory.StateWaiting}}, Edits: []status.Edit{{Key: "redact", Path: "data[*]"}}}}},
			{Name: "v", Missing: []status.Missing{{Resource: "gadgets", Reason: `the cluster does not serve "gadgets"`}}, Warnings: []string{"b", "z"}},
		},
		Routes: []status.Route{{Name: "r", Watches: []string{"w"}, Sinks: []string{"a"}}},
		Sinks:  []status.Sink{{Name: "a", Kind: "file", Configured: true, State: "stopped"}, stopped},
	}
	if diff := cmp.Diff(want, r.Status()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestUnmatched warns of paths that matched nothing of a watch, once that has objects.
func TestUnmatched(t *testing.T) {
	t.Parallel()
	source := func(edited uint64, edits ...status.Edit) status.Source {
		s := status.Source{Edits: edits, Edited: edited}
		s.Objects = 1000 // most of them as they were edited before a restart
		return s
	}
	env := func(hits uint64) status.Edit { return status.Edit{Key: "redact", Path: "**.env[*].value", Hits: hits} }
	managed := status.Edit{Key: "drop", Path: "metadata.managedFields"}
	for _, tc := range []struct {
		sources []status.Source
		want    []string
	}{
		{[]status.Source{source(99, env(0))}, nil},
		{[]status.Source{source(60, env(0), managed), source(40, env(0), managed)}, []string{"redact: **.env[*].value has matched nothing in 100 objects"}},
		{[]status.Source{source(60, env(0)), source(40, env(1))}, nil},
	} {
		if diff := cmp.Diff(tc.want, unmatched(tc.sources)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tc.sources, diff)
		}
	}
}

// TestMetrics exports the status: a sink that is not configured any more has orphaned
// events, and a resource that is waited for is in a state of its own.
func TestMetrics(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.running.State = r.state()
	r.running.Missing = []Missing{{Watch: "v", Pattern: "gadgets", Err: dynamicfactory.ErrNotServed}}
	b := r.store.NewBatch()
	b.Append(store.Record{Time: time.Now(), Payload: []byte("x")}, []store.Route{{Sink: "a"}, {Sink: "former"}})
	if err := r.store.Commit(b); err != nil {
		t.Fatal(err)
	}
	if err := testutil.GatherAndCompare(r.registry, strings.NewReader(`
# HELP watcherd_sink_orphaned_events Pending events of a sink that is no longer configured; 0 for a configured sink.
# TYPE watcherd_sink_orphaned_events gauge
watcherd_sink_orphaned_events{sink="a"} 0
watcherd_sink_orphaned_events{sink="former"} 1
# HELP watcherd_watch_synced 1 once the initial list is complete.
# TYPE watcherd_watch_synced gauge
watcherd_watch_synced{resource="gadgets",watch="v"} 0
`), "watcherd_sink_orphaned_events", "watcherd_watch_synced"); err != nil {
		t.Error(err)
	}
}

// TestRouteMetrics exports the metrics of routes, which continue under another state.
func TestRouteMetrics(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	compile := func(metrics ...*route.Metric) *route.Router {
		var specs []route.Spec
		for i, m := range metrics {
			specs = append(specs, route.Spec{Name: fmt.Sprint("r", i), Metric: m, Sinks: []string{"a"}})
		}
		router, err := route.Compile(specs)
		if err != nil {
			t.Fatal(err)
		}
		return router
	}
	kinds := &route.Metric{Name: "kinds_total", Labels: map[string]string{"kind": "resource.kind"}, MaxSeries: 2}
	first, next := compile(kinds, &route.Metric{Name: "all_total", MaxSeries: 1}), compile(kinds)
	for i, kind := range []string{"Pod", "Pod", "Node", "Job", "Secret"} {
		router := first
		if i == 3 {
			next.Continue(first)
		}
		if i >= 3 {
			router = next
		}
		router.Route(nil, &route.Change{Type: event.Added, Resource: event.Resource{Kind: kind}, Watches: []route.Hit{{Watch: "w"}}})
	}
	for router, want := range map[*route.Router]string{
		first: "# HELP all_total Events that route r1 has taken since the process started.\n# TYPE all_total counter\nall_total 3\n",
		next:  "",
	} {
		r.running.State = &plan.State{Router: router}
		if err := testutil.GatherAndCompare(r.registry, strings.NewReader(want+`
# HELP kinds_total Events that route r0 has taken since the process started.
# TYPE kinds_total counter
kinds_total{kind="Pod"} 2
kinds_total{kind="Node"} 1
kinds_total{kind="_overflow"} 2
`), "all_total", "kinds_total"); err != nil {
			t.Error(err)
		}
	}
}

func TestView(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, want := range map[string]string{
		"pods":    "pods: no watch reads it; the watches read nothing yet",
		"*":       `"*" means 2 resources: name one`,
		"gadgets": `the cluster does not serve "gadgets"`,
	} {
		if _, err := r.View(name); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	// The fullest source is asked first.
	for _, w := range []*plan.Watch{{Name: "metadata", MetadataOnly: true}, {Name: "selected", ServerLabels: "a=b"}, {Name: "all"}} {
		r.feed(pods, w)
	}
	v, err := r.View("pods")
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, s := range v.feeds {
		order = append(order, s.Watches()[0].Watch.Name)
	}
	if diff := cmp.Diff([]string{"all", "selected", "metadata"}, order); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
	about, namespaced, unsynced := v.About()
	if diff := cmp.Diff(event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, about); diff != "" || !namespaced || unsynced == "" {
		t.Errorf("namespaced %t, unsynced %q (-want +got):\n%s", namespaced, unsynced, diff)
	}
	if len(v.List("", labels.Everything())) != 0 || v.Get("ns", "a") != nil {
		t.Error("objects without an informer")
	}
	if _, err := r.View("widgets"); !errors.Is(err, ErrNotWatched) || !strings.HasSuffix(err.Error(), "the watches read pods") {
		t.Errorf("a resource that is served and not watched: %v", err)
	}
	if _, err := r.View("pdos"); err == nil || err.Error() != `the cluster does not serve "pdos"; did you mean pods?` {
		t.Errorf("a misspelt name: %v", err)
	}
	if _, err := r.View("web"); err == nil || err.Error() != `the cluster does not serve "web"; an object is RESOURCE/NAME, such as pods/web; the watches read pods` {
		t.Errorf("a name in place of a resource: %v", err)
	}
	r.feed(widgets, &plan.Watch{Name: "w"})
	if _, err := r.View("all"); err == nil || err.Error() != `the cluster does not serve "all"; of that category the watches read pods,widgets.example.com` {
		t.Errorf("a category: %v", err)
	}
	r.running.Missing = []Missing{{Watch: "later", Pattern: "gadgets.example.com", Err: dynamicfactory.ErrNotServed}}
	for _, name := range []string{"gadgets", "gadgets.example.com"} {
		if _, err := r.View(name); err == nil || !strings.HasSuffix(err.Error(), "; watch later waits for gadgets.example.com") {
			t.Errorf("what a watch waits for: %v", err)
		}
	}
	// A resource that is not served any more is still known.
	r.cfg.Resolver = served{}
	if _, err := r.View("pods"); err != nil {
		t.Error(err)
	}
}

// TestLogEvent reads a record of the log with all that was recorded of it.
func TestLogEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, err := compact.NewCodec(r.dicts).Encode([]byte(`{"metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"5"}}`), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := record.Append(nil, &record.Record{
		Event:   event.Event{ID: "00ff", Type: event.Updated, Time: time.Unix(1, 0).UTC(), Resource: event.Resource{Version: "v1", Resource: "pods"}, Namespace: "ns", Name: "a"},
		Object:  o.Body(),
		Targets: []record.Target{{Sink: "x", Routes: "one,two", Flags: record.Flags(0).WithSelection(event.Entered)}, {Sink: "y", Routes: "three"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	item := store.Item{Sequence: 7, Payload: payload}
	var routes []string
	e, err := r.LogEvent(item, func(_ *event.Event, by []string) bool { routes = by; return true })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"one", "two", "three"}, routes); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
	if e.Selection != event.Entered || e.Sequence != 7 || !strings.Contains(string(e.Object), `"uid":"u"`) || e.OldObject != nil {
		t.Errorf("event %+v", e)
	}
	if e, err := r.LogEvent(item, func(*event.Event, []string) bool { return false }); e != nil || err != nil {
		t.Errorf("a refused one: %v, %v", e, err)
	}
	item.Payload = []byte("damaged")
	if _, err := r.LogEvent(item, nil); err == nil || !strings.HasPrefix(err.Error(), "event 7: ") {
		t.Errorf("a damaged one: %v", err)
	}
}

// TestLetterReason leaves out the text of a reason that may quote what is hidden.
func TestLetterReason(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	payload, err := record.Append(nil, &record.Record{Event: event.Event{Type: event.Deleted, Resource: event.Resource{Version: "v1", Resource: "secrets"}}, Edits: 1, Patch: []byte("[]")})
	if err != nil {
		t.Fatal(err)
	}
	l := &store.DeadLetter{}
	l.Payload, l.Reason = payload, "refused: it says p4ssw0rd"
	for hidden, want := range map[bool]string{false: l.Reason, true: "refused"} {
		var accepted redact.Accepted
		if hidden {
			accepted.Add(redact.Resource{Resource: "secrets", Edits: redact.Edits{Drop: []string{"data"}}})
		}
		if r.edits, err = redact.Compile(accepted, nil, make([]byte, ledger.RedactKeyLen)); err != nil {
			t.Fatal(err)
		}
		if got := r.LetterReason(l); got != want {
			t.Errorf("hidden %t: %q, want %q", hidden, got, want)
		}
	}
}

// TestRouteEditsThatMatchNothing: a path of a route that no value had is reported once many
// events were edited, as that of a watch is.
func TestRouteEditsThatMatchNothing(t *testing.T) {
	t.Parallel()
	specs := []route.Spec{{Name: "r", Sinks: []string{"s"}, Drop: []string{"spec.x"}, Redact: []string{"spec.typo"}}}
	router, err := route.Compile(specs)
	if err != nil {
		t.Fatal(err)
	}
	edits, err := redact.Compile(redact.Accepted{Routes: []redact.Route{{Name: "r", Drop: specs[0].Drop, Redact: specs[0].Redact}}}, nil, make([]byte, ledger.RedactKeyLen))
	if err != nil {
		t.Fatal(err)
	}
	for n := range unseen.Enough {
		if unseen := routeStatuses(&plan.State{Routes: specs, Router: router}, edits)[0].Unseen; unseen != nil {
			t.Fatalf("after %d events: %v", n, unseen)
		}
		edit := edits.Edit(&record.Record{Targets: []record.Target{{Sink: "s", Routes: "r"}}}, "s")
		if _, err := edit.Object(nil, []byte(`{"spec":{"x":1}}`)); err != nil {
			t.Fatal(err)
		}
	}
	want := []status.Unseen{{Key: "redact", Field: "spec.typo", Changes: unseen.Enough}}
	if diff := cmp.Diff(want, routeStatuses(&plan.State{Routes: specs, Router: router}, edits)[0].Unseen); diff != "" {
		t.Errorf("unseen (-want +got):\n%s", diff)
	}
}
