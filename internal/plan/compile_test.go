package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

var comparable = cmp.Options{
	cmpopts.IgnoreFields(plan.Watch{}, "Fingerprint", "Selection"),
	cmpopts.EquateEmpty(),
	cmpopts.IgnoreFields(plan.Sink{}, "Fingerprint"),
	cmp.Transformer("filter", func(f *selector.Filter) bool { return f != nil }),
}

func TestWatches(t *testing.T) {
	defaults := plan.Watch{
		Name: "w", Resources: []string{"pods"}, Snapshot: true, History: true,
		Edits: redact.DefaultEdits(), // as config.DefaultDrop has them
	}
	with := func(change func(w *plan.Watch)) plan.Watch {
		w := defaults
		change(&w)
		return w
	}
	filtered := with(func(w *plan.Watch) { w.Filter = &selector.Filter{} })
	for text, want := range map[string]plan.Watch{
		"":                defaults,
		"history: false":  with(func(w *plan.Watch) { w.History = false }),
		"snapshot: never": with(func(w *plan.Watch) { w.Snapshot = false }),
		"onMissing: fail": with(func(w *plan.Watch) { w.FailOnMissing = true }),
		"drop: []":        defaults,
		"drop: [status]":  with(func(w *plan.Watch) { w.Edits.Drop = []string{"status", "metadata.managedFields"} }),
		"drop: [status], keep: [metadata.managedFields]":                                     with(func(w *plan.Watch) { w.Edits.Drop = []string{"status"} }),
		`keep: ['metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]']`: with(func(w *plan.Watch) { w.Edits.KeepApplied = true }),
		"excludeResources: [secrets, '*.example.com', {group: apps, version: v1, resource: deployments}]": with(func(w *plan.Watch) {
			w.ExcludeResources = []string{"secrets", "*.example.com", "deployments.v1.apps"}
		}),
		"labelSelector: a": filtered,
		"fieldSelector: metadata.name=a, metadataOnly: true":    with(func(w *plan.Watch) { w.MetadataOnly = true; w.Filter = &selector.Filter{} }),
		"fieldSelector: spec.nodeName!=a":                       filtered,
		"namespaces: {include: [b, a]}":                         with(func(w *plan.Watch) { w.Namespaces = []string{"a", "b"} }),
		"namespaces: {include: [b, a], exclude: [c]}":           filtered,
		"namespaces: {include: [b, a], selector: x}":            filtered,
		"namespaces: {include: [b, a-*]}":                       filtered,
		"namespaces: {exclude: [kube-system]}":                  filtered,
		"namespaces: {selector: env=prod}":                      filtered,
		"namespaces: {include: [a]}, labelSelector: x":          with(func(w *plan.Watch) { w.Namespaces = []string{"a"}; w.Filter = &selector.Filter{} }),
		"selectorSide: server":                                  defaults,
		"selectorSide: server, labelSelector: 'b  in (y,x) ,a'": with(func(w *plan.Watch) { w.ServerLabels = "a,b in (x,y)" }),
		"selectorSide: server, fieldSelector: 'spec.nodeName==n', metadataOnly: true": with(func(w *plan.Watch) {
			w.ServerFields, w.MetadataOnly = "spec.nodeName=n", true
		}),
		"redact: [spec.x], redactPresets: [podEnv]": with(func(w *plan.Watch) {
			w.Edits.Redact = []string{"spec.x", "**.env[*].value"}
		}),
		"redact: [spec.x], exposeSecrets: true": with(func(w *plan.Watch) {
			w.Edits.Redact, w.Edits.ExposeSecrets = []string{"spec.x"}, true
		}),
	} {
		got := compile(t, "watches:\n- {name: w, resources: [pods], "+text+"}\n")
		if diff := cmp.Diff(&want, got.Watch("w"), comparable); diff != "" {
			t.Errorf("%s (-want +got)\n%s", text, diff)
		}
	}
	// What a route needs, another watch of it leaves, or its expression asks for.
	compile(t, `
watches: [{name: w, resources: [pods], drop: [status]}, {name: v, resources: [nodes]}]
sinks: [{name: s, console: {}}]
routes:
- {name: a, sinks: [s], changed: [status], when: object.status.phase == "x"}
- {name: b, sinks: [s], watches: [w], when: '!has(object.status) || object.status.phase == "x" || object.?status.?phase.orValue("") == "y" || metadata.name == "z"'}
`)
	s := compile(t, `watches: [{name: w, resources: ["*", "*.example.com", widgets.v1beta1.example.com, {resource: pods, version: v1}, {group: apps, resource: deployments}, {resource: events}, {group: "", resource: "*"}]}]`)
	want := []string{"*", "*.example.com", "widgets.v1beta1.example.com", "pods.v1", "deployments.apps", "events.", "*."}
	if diff := cmp.Diff(want, s.Watches[0].Resources); diff != "" {
		t.Error(diff)
	}
	if s.Watch("x") != nil || s.Sink("x") != nil {
		t.Error("something was found that is not there")
	}
}

func TestSinks(t *testing.T) {
	s := compile(t, `
watches: [{name: w, resources: [pods]}]
sinks:
- {name: a, post: {url: x}}
- name: b
  post: {url: y}
  format: json
  batch: {maxEvents: 1, maxBytes: 1Ki, maxWait: 0s}
  concurrency: 9
  retry: {initial: 1s, max: 2s, poisonAttempts: 7}
  onOversize: truncate
  startFrom: snapshot
- {name: c, console: {}, batch: {maxEvents: 2}}
`)
	want := []plan.Sink{{
		Name: "a", Kind: "post", Config: &post{URL: "x"}, Format: sinks.CloudEvents,
		Delivery:   sinks.Delivery{MaxEvents: 50, MaxBytes: 2 << 20, MaxWait: time.Second, Concurrency: 3},
		Retry:      delivery.Retry{Initial: 500 * time.Millisecond, Max: 5 * time.Minute, PoisonAttempts: 3},
		OnOversize: delivery.OversizeDeadLetter, StartFrom: plan.StartLatest,
	}, {
		Name: "b", Kind: "post", Config: &post{URL: "y"}, Format: sinks.JSON,
		Delivery:   sinks.Delivery{MaxEvents: 1, MaxBytes: 1024, Concurrency: 9},
		Retry:      delivery.Retry{Initial: time.Second, Max: 2 * time.Second, PoisonAttempts: 7},
		OnOversize: delivery.OversizeTruncate, StartFrom: plan.StartSnapshot,
	}, {
		Name: "c", Kind: "console", Config: &console{}, Format: sinks.CloudEvents, BatchMode: true,
		Delivery:   sinks.Delivery{MaxEvents: 2},
		Retry:      delivery.Retry{Initial: 500 * time.Millisecond, Max: 5 * time.Minute, PoisonAttempts: 3},
		OnOversize: delivery.OversizeDeadLetter, StartFrom: plan.StartLatest,
	}}
	if diff := cmp.Diff(want, s.Sinks, comparable, cmp.AllowUnexported(console{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestTheRest(t *testing.T) {
	s := compile(t, `
cluster: {name: prod}
kubeAPI: {qps: 1.5, burst: 2}
store: {path: /data, maxBytes: 1Gi, retention: {maxAge: 1h, maxBytes: 1Mi}, minFree: 1Ki, redactionKey: {env: KEY}, deadLetters: {maxAge: 2h, maxBytes: 3Mi}}
admin: {listen: ":1", probes: ":2", auth: {readTokenFile: r, commandTokenFile: t, readNames: [a], commandNames: [b]}, tls: {certFile: c, keyFile: k, clientCAFile: ca}}
consistencyCheck: {enabled: false, interval: 2h}
watches: [{name: w, resources: [pods]}]
`)
	s.Watches, s.Router, s.Hash, s.Masked = nil, nil, "", nil
	want := &plan.State{
		Cluster: "prod", KubeAPI: plan.KubeAPI{QPS: 1.5, Burst: 2},
		Store:            plan.Store{Path: "/data", MaxBytes: 1 << 30, RedactionKey: sinks.Secret{Env: "KEY"}, RetentionMaxAge: time.Hour, RetentionMaxBytes: 1 << 20, MinFree: 1 << 10, DeadLetterMaxAge: 2 * time.Hour, DeadLetterMaxBytes: 3 << 20},
		Admin:            plan.Admin{Listen: ":1", Probes: ":2", ReadTokenFile: "r", CommandTokenFile: "t", ReadNames: []string{"a"}, CommandNames: []string{"b"}, CertFile: "c", KeyFile: "k", ClientCAFile: "ca"},
		ConsistencyCheck: plan.ConsistencyCheck{Interval: 2 * time.Hour},
	}
	if diff := cmp.Diff(want, s, comparable); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestNothingIsKept: 0, which is no bound to the store, is the least here.
func TestNothingIsKept(t *testing.T) {
	s := compile(t, `
store: {retention: {maxAge: 0s}}
watches: [{name: w, resources: [pods]}]
`)
	if s.Store.RetentionMaxAge != 1 {
		t.Errorf("delivered events are kept for %v", s.Store.RetentionMaxAge)
	}
}

func TestWithoutRoutesEverythingGoesEverywhere(t *testing.T) {
	const watches = "watches: [{name: w, resources: [pods]}]\n"
	s := compile(t, watches+"sinks: [{name: a, console: {}}, {name: b, console: {}}]\n")
	pods := event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
	targets := s.Router.Route(nil, &route.Change{Type: event.Gap, Resource: pods, Watches: []route.Hit{{Watch: "w"}}})
	if len(targets) != 0 {
		t.Errorf("a gap is no change: %v", targets)
	}
	targets = s.Router.Route(nil, &route.Change{Type: event.Added, Resource: pods, Watches: []route.Hit{{Watch: "w"}}})
	want := []record.Target{
		{Sink: "a", Flags: record.Object, Routes: "default"},
		{Sink: "b", Flags: record.Object, Routes: "default"},
	}
	if diff := cmp.Diff(want, targets); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if s := compile(t, watches); len(s.Routes) != 0 || s.Router == nil {
		t.Errorf("no sinks: %v", s.Routes)
	}
}

func TestRoutes(t *testing.T) {
	s := compile(t, `
watches: [{name: w, resources: [pods, deployments.apps]}]
sinks: [{name: s, console: {}}]
routes:
- name: r
  watches: [w]
  resources: [pods, {group: apps, resource: deployments}]
  events: [added, deleted]
  when: object.status.phase == "Failed"
  onError: drop
  changed: [spec]
  sample: 0.5
  metric: {name: m_total, labels: {a: metadata.name}}
  payload: [object, patch]
  sinks: [s]
`)
	want := []route.Spec{{
		Name: "r", Watches: []string{"w"}, Resources: []string{"pods", "deployments.apps"},
		Events: []event.Type{event.Added, event.Deleted}, When: `object.status.phase == "Failed"`, OnError: route.OnErrorDrop,
		Changed: []string{"spec"}, Sample: 0.5, Metric: &route.Metric{Name: "m_total", Labels: map[string]string{"a": "metadata.name"}, MaxSeries: 1000},
		Payload: []string{"object", "patch"}, Sinks: []string{"s"},
	}}
	if diff := cmp.Diff(want, s.Routes); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(s.Warnings) != 0 {
		t.Errorf("warnings: %v", s.Warnings)
	}
}

// TestCached are the resources that enrichment reads, in the namespaces of the routes'
// watches.
func TestCached(t *testing.T) {
	const watches = `
watches: [{name: a, resources: [pods], namespaces: {include: [one]}}, {name: b, resources: [pods], namespaces: {include: [two, one]}}, {name: all, resources: [events]}]
sinks: [{name: s, console: {}}]
routes:
`
	for _, tc := range []struct {
		routes string
		count  int
		first  plan.CachedResource
	}{
		{"- {name: r, sinks: [s]}", 0, plan.CachedResource{}},
		{"- {name: r, sinks: [s], watches: [a], enrich: [owner]}", 7, plan.CachedResource{"replicasets.apps", []string{"one"}, []string{"r"}}},
		{"- {name: r, sinks: [s], watches: [a], enrich: [owner]}\n- {name: q, sinks: [s], watches: [b], enrich: [involvedObject]}", 14, plan.CachedResource{"replicasets.apps", []string{"one", "two"}, []string{"r", "q"}}},
		{"- {name: r, sinks: [s], watches: [a], enrich: [owner]}\n- {name: q, sinks: [s], enrich: [involvedObject]}", 14, plan.CachedResource{"replicasets.apps", nil, []string{"r", "q"}}},
	} {
		got := compile(t, watches+tc.routes).Cached()
		if len(got) != tc.count {
			t.Errorf("%s: %d resources, want %d", tc.routes, len(got), tc.count)
			continue
		}
		if tc.count > 0 {
			if diff := cmp.Diff(tc.first, got[0]); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.routes, diff)
			}
		}
	}
}

func TestWarnings(t *testing.T) {
	s := compile(t, `
watches: [{name: w, resources: [pods, "*.apps"]}, {name: v, resources: [nodes]}]
sinks: [{name: s, console: {}}, {name: u, console: {}}]
routes: [{name: r, watches: [w], sinks: [s], resources: [pods, deployments.apps]}, {name: q, watches: [w], sinks: [s], resources: ["*.v1", pods.v1]}]
`)
	var got []string
	for _, w := range s.Warnings {
		got = append(got, w.Error())
	}
	want := []string{
		"w.yaml:4:58: watches[1].name: no route takes from watch v: its changes reach no sink",
		"w.yaml:5:40: sinks[1].name: no route leads to sink u",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWarningOfWatchesInNoOrder(t *testing.T) {
	for _, tc := range []struct {
		first, second string
		want          bool
	}{
		{"resources: [pods]", "resources: [pods]", false},
		{"resources: [pods]", "resources: [pods], labelSelector: a=b", false},
		{"resources: [pods]", "resources: [nodes, pods], labelSelector: a=b, selectorSide: server", true},
		{"resources: [pods], labelSelector: a=b, selectorSide: server", "resources: [nodes, pods], labelSelector: a=b, selectorSide: server", false},
		{"resources: [pods], labelSelector: a=b, selectorSide: server", "resources: [nodes, '*'], labelSelector: a=c, selectorSide: server", true},
		{"resources: [pods], namespaces: {include: [x]}", "resources: [nodes, pods], namespaces: {include: [y]}, labelSelector: a=b, selectorSide: server", false},
		{"resources: [pods], namespaces: {include: [x]}", "resources: [nodes, pods], namespaces: {include: [y, x]}, labelSelector: a=b, selectorSide: server", true},
		{"resources: [pods], fieldSelector: metadata.name=x, selectorSide: server", "resources: [nodes, pods], fieldSelector: metadata.name=y, selectorSide: server", false},
		{"resources: [pods], fieldSelector: spec.nodeName=x, selectorSide: server", "resources: [nodes, pods], fieldSelector: spec.nodeName=y, selectorSide: server", true},
		{"resources: [jobs.batch]", "resources: [nodes, jobs.v1.batch]", true},
		{"resources: [jobs.v1.batch]", "resources: [nodes, jobs.v1.batch]", false},
		{"resources: [jobs.batch]", "resources: [nodes, jobs.v1.other]", false},
		{"resources: [nodes]", "resources: ['*.batch', jobs.v1.batch]", true},
		{"resources: [nodes]", "resources: ['*.batch', jobs.batch]", false},
	} {
		watches := fmt.Sprintf("watches: [{name: w, %s}, {name: v, %s}]\nsinks: [{name: s, console: {}}, {name: u, console: {}}]\n", tc.first, tc.second)
		for routes, lead := range map[string]bool{
			"":                                   true,
			"routes: [{name: r, sinks: [s, u]}]": true,
			"routes: [{name: r, watches: [w], sinks: [s]}, {name: q, watches: [v], sinks: [u]}]":                false,
			"routes: [{name: r, watches: [w], sinks: [s]}, {name: q, watches: [v], sinks: [u, s]}]":             true,
			"routes: [{name: r, resources: [services], sinks: [s, u]}, {name: q, watches: [v], sinks: [u, s]}]": false,
		} {
			s, got := compile(t, watches+routes), ""
			for _, warning := range s.Warnings {
				if strings.Contains(warning.Msg, "in no order") {
					got = warning.Path
				}
			}
			ofOne := tc.first == "resources: [nodes]" // the routes part no watch from itself
			if want := tc.want && (lead || ofOne); (got == "watches[1].resources[1]") != want || (got != "") != want {
				t.Errorf("%s%s: warning at %q, want one: %v", watches, routes, got, want)
			}
		}
	}
}

func TestConfigOfAProgram(t *testing.T) {
	program := func(url string) *config.Config {
		c, w, s := config.Default(), config.DefaultWatch(), config.DefaultSink()
		w.Name, w.Resources = "w", []config.Resource{config.ParseResource("pods")}
		s.Name, s.Kind, s.Settings = "s", "post", &post{URL: url}
		c.Watches, c.Sinks = []config.Watch{w}, []config.Sink{s}
		return &c
	}
	a, err := plan.Compile(program("x"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := plan.Compile(program("x"))
	if err != nil {
		t.Fatal(err)
	}
	if !plan.Diff(a, b).Empty() || a.Hash != b.Hash {
		t.Errorf("the same twice differs: %s", plan.Diff(a, b))
	}
	if b, err = plan.Compile(program("y")); err != nil {
		t.Fatal(err)
	}
	if diff := plan.Diff(a, b); len(diff.Sinks.Replace) != 1 || a.Hash == b.Hash {
		t.Errorf("settings are not part of the fingerprint: %s", diff)
	}
}

func TestRouteWaitsInVain(t *testing.T) {
	s := compile(t, `
watches: [{name: w, resources: [pods]}, {name: v, resources: [nodes]}]
sinks: [{name: s, console: {}}]
routes: [{name: r, watches: [w], sinks: [s], resources: [nodes, pods]}, {name: q, sinks: [s], resources: [nodes]}]
`)
	if len(s.Warnings) != 1 || s.Warnings[0].Path != "routes[0].resources[0]" {
		t.Errorf("warnings: %v", s.Warnings)
	}
}
