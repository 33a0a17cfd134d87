package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/watcherd/watcherd/config"
)

const header = "apiVersion: watcherd.dev/v1alpha1\nkind: WatcherConfig\n"

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Parse("w.yaml", []byte(text), kinds())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// sameConfig compares what a file says, not how and where.
var sameConfig = cmp.Options{
	cmpopts.IgnoreUnexported(config.Config{}),
	cmpopts.IgnoreFields(config.Watch{}, "Raw"),
	cmpopts.IgnoreFields(config.Sink{}, "Raw"),
	cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }),
	cmp.Comparer(func(a, b config.Resource) bool { return a.String() == b.String() }),
	cmp.AllowUnexported(lakeConfig{}, size{}),
}

func TestSmallestConfigHasEveryDefault(t *testing.T) {
	got := parse(t, header+"watches:\n- {name: w, resources: [pods]}\nsinks:\n- name: s\n  console:\nroutes:\n- {name: r, sinks: [s]}\n")
	want := config.Default()
	w, s, r := config.DefaultWatch(), config.DefaultSink(), config.DefaultRoute()
	w.Name, w.Resources = "w", []config.Resource{config.ParseResource("pods")}
	s.Name, s.Kind, s.Settings = "s", "console", consoleConfig{}
	r.Name, r.Sinks = "r", []string{"s"}
	want.Watches, want.Sinks, want.Routes = []config.Watch{w}, []config.Sink{s}, []config.Route{r}
	if diff := cmp.Diff(&want, got, sameConfig); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err := got.Validate(); err != nil {
		t.Errorf("what Parse accepts, Validate refuses: %v", err)
	}
}

func TestEveryKey(t *testing.T) {
	got := parse(t, header+`
cluster: {name: prod-eu-1}
kubeAPI: {qps: 12.5, burst: 7}
store:
  path: /var/lib/watcherd
  maxBytes: 20Gi
  retention: {maxAge: 3d, maxBytes: "1073741824"}
  deadLetters: {maxAge: 1h, maxBytes: 2Gi}
  minFree: 1G
  redactionKey: {file: /key}
admin:
  listen: 0.0.0.0:8080
  probes: :8081
  auth: {readTokenFile: /read, commandTokenFile: /command, readNames: [a], commandNames: [b]}
  insecure: true
  tls: {certFile: c, keyFile: k, clientCAFile: ca}
consistencyCheck: {enabled: false, interval: 30m}
watches:
- name: w
  resources: [deployments.apps, "*.example.com", {group: apps, version: v1, resource: deployments}]
  namespaces: {include: [team-*], exclude: [kube-system], selector: env=prod}
  labelSelector: tier=web
  fieldSelector: spec.nodeName=node-1
  selectorSide: server
  snapshot: never
  history: false
  metadataOnly: true
  drop: []
  redact: ["spec.template.spec.containers[*].env[*].value"]
  redactPresets: [podEnv]
  exposeSecrets: true
  onMissing: fail
routes:
- name: r
  watches: [w]
  resources: [pods]
  events: [added, updated, deleted, sync]
  when: object.status.phase == "Failed"
  onError: drop
  changed: [spec]
  sample: 0.25
  metric: {name: rollouts_total, labels: {team: metadata.labels.team}, maxSeries: 7}
  drop: [status]
  redact: ["data[*]"]
  payload: [object, oldObject, patch, summary]
  enrich: [owner, involvedObject]
  sinks: [s]
sinks:
- name: s
  lake:
    url: https://lake.example.com
    token: {env: TOKEN}
    headers: {Authorization: {file: /auth}}
    labels: {a: b}
    timeout: 1m
    maxBytes: 1Mi
    level: -5
    port: 443
    ratio: 2
    mode: fast
    size: [3, 4]
    extra: {a: [1, 2.5, x, null, true]}
    tls: {caFile: ca.pem}
    steps: [{do: a}, {do: b, left: 1}]
    groups: {a: [b]}
    compress: false
  format: json
  batch: {maxEvents: 100, maxBytes: 1Mi, maxWait: 200ms}
  retry: {initial: 1s, max: 10m, poisonAttempts: 9}
  rateLimit: {events: 3, per: 2s}
  concurrency: 4
  onOversize: truncate
  startFrom: earliest
`)
	q := resource.MustParse
	batchBytes, events, lanes, wait, sample := q("1Mi"), 100, 4, 200*time.Millisecond, 0.25
	want := &config.Config{
		APIVersion: config.APIVersion, Kind: config.Kind,
		Cluster: config.Cluster{Name: "prod-eu-1"},
		KubeAPI: config.KubeAPI{QPS: 12.5, Burst: 7},
		Store: config.Store{
			Path: "/var/lib/watcherd", MaxBytes: q("20Gi"), MinFree: q("1G"),
			RedactionKey: &config.Secret{File: "/key"},
			Retention:    config.Retention{MaxAge: 72 * time.Hour, MaxBytes: q("1Gi")},
			DeadLetters:  config.DeadLetters{MaxAge: time.Hour, MaxBytes: q("2Gi")},
		},
		Admin: config.Admin{
			Listen: "0.0.0.0:8080", Probes: ":8081",
			Auth: &config.AdminAuth{ReadTokenFile: "/read", CommandTokenFile: "/command", ReadNames: []string{"a"}, CommandNames: []string{"b"}}, Insecure: true,
			TLS: &config.AdminTLS{CertFile: "c", KeyFile: "k", ClientCAFile: "ca"},
		},
		ConsistencyCheck: config.ConsistencyCheck{Interval: 30 * time.Minute},
		Watches: []config.Watch{{
			Name: "w",
			Resources: []config.Resource{
				config.ParseResource("deployments.apps"), config.ParseResource("*.example.com"),
				{Group: "apps", Version: "v1", Resource: "deployments"},
			},
			Namespaces:    config.Namespaces{Include: []string{"team-*"}, Exclude: []string{"kube-system"}, Selector: "env=prod"},
			LabelSelector: "tier=web", FieldSelector: "spec.nodeName=node-1", SelectorSide: config.SideServer,
			Snapshot: config.SnapshotNever, MetadataOnly: true, Drop: []string{},
			Redact:        []string{"spec.template.spec.containers[*].env[*].value"},
			RedactPresets: []string{config.PresetPodEnv},
			ExposeSecrets: true, OnMissing: config.MissingFail,
		}},
		Routes: []config.Route{{
			Name: "r", Watches: []string{"w"}, Resources: []config.Resource{config.ParseResource("pods")},
			Events: []string{"added", "updated", "deleted", "sync"}, When: `object.status.phase == "Failed"`, OnError: config.ErrorDrop,
			Changed: []string{"spec"}, Sample: &sample, Metric: &config.RouteMetric{Name: "rollouts_total", Labels: map[string]string{"team": "metadata.labels.team"}, MaxSeries: 7},
			Drop: []string{"status"}, Redact: []string{"data[*]"}, Payload: []string{"object", "oldObject", "patch", "summary"}, Sinks: []string{"s"},
			Enrich: []string{"owner", "involvedObject"},
		}},
		Sinks: []config.Sink{{
			Name: "s", Kind: "lake", Format: config.FormatJSON,
			Batch:     config.Batch{MaxEvents: &events, MaxBytes: &batchBytes, MaxWait: &wait},
			Retry:     config.Retry{Initial: time.Second, Max: 10 * time.Minute, PoisonAttempts: 9},
			RateLimit: &config.RateLimit{Events: 3, Per: 2 * time.Second}, Concurrency: &lanes, OnOversize: config.OversizeTruncate, StartFrom: config.StartEarliest,
			Settings: &lakeConfig{
				URL: "https://lake.example.com", Token: &secret{Env: "TOKEN"}, Headers: map[string]secret{"Authorization": {File: "/auth"}},
				Labels: map[string]string{"a": "b"}, Timeout: time.Minute, MaxBytes: q("1Mi"), Level: -5, Port: 443, Ratio: 2,
				Mode: "fast", Size: size{3, 4}, Extra: map[string]any{"a": []any{1, 2.5, "x", nil, true}},
				TLS: &tlsBlock{CAFile: "ca.pem"}, Steps: []step{{"a", 7}, {"b", 1}}, Groups: map[string][]string{"a": {"b"}},
			},
		}},
	}
	if diff := cmp.Diff(want, got, sameConfig); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if r := got.Watches[0].Resources[2].String(); r != "deployments.v1.apps" {
		t.Errorf("the mapping reads %q", r)
	}
}

func TestNullMeansNotMentioned(t *testing.T) {
	got := parse(t, header+"store:\ncluster: ~\nroutes:\nadmin: {auth: , tls: null, listen: }\nwatches:\n- {name: w, resources: [pods], drop: , namespaces: null}\n")
	if diff := cmp.Diff(config.Default().Admin, got.Admin); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(config.DefaultWatch().Drop, got.Watches[0].Drop); diff != "" {
		t.Error(diff)
	}
}

func TestRetentionFitsTheStore(t *testing.T) {
	const watches = "watches:\n- {name: w, resources: [pods]}\n"
	for text, want := range map[string]string{
		"store: {maxBytes: 1Gi}":                               "512Mi",
		"store: {maxBytes: 1Gi, retention: {maxAge: 1h}}":      "512Mi",
		"store: {maxBytes: 1Gi, retention: {maxBytes: 1000M}}": "1000M",
		"store: {maxBytes: 100Gi}":                             "4Gi",
	} {
		if got := parse(t, header+watches+text).Store.Retention.MaxBytes; got.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%s: %s, want %s", text, got.String(), want)
		}
	}
}

func TestAliasStandsForItsValue(t *testing.T) {
	got := parse(t, header+"watches:\n- {name: a, resources: &r [pods, nodes]}\n- {name: b, resources: *r}\n")
	if diff := cmp.Diff(got.Watches[0].Resources, got.Watches[1].Resources, sameConfig); diff != "" {
		t.Error(diff)
	}
	if string(got.Watches[1].Raw) != `{"name":"b","resources":["pods","nodes"]}` {
		t.Errorf("raw: %s", got.Watches[1].Raw)
	}
}

func TestRawIsWhatTheBlockSays(t *testing.T) {
	const start = header + "watches:\n- {name: w, resources: [pods]}\nsinks:\n"
	a := parse(t, start+"- {name: s, lake: {url: x, level: 0x10, token: {env: T}}, format: json}\n")
	b := parse(t, start+"- name: s\n  format: 'json' # a comment\n  lake:\n    token:\n      env: \"T\"\n    level: 16\n    url: x\n")
	if string(a.Sinks[0].Raw) != string(b.Sinks[0].Raw) {
		t.Errorf("%s\n%s", a.Sinks[0].Raw, b.Sinks[0].Raw)
	}
	for _, other := range []string{
		"- {name: s, lake: {url: y, level: 16, token: {env: T}}, format: json}\n",
		"- {name: s, lake: {url: x, level: 16, token: {env: U}}, format: json}\n",
		"- {name: s, lake: {url: x, level: 16, token: {env: T}}, format: cloudevents}\n",
		"- {name: s, lake: {url: x, level: 16, token: {env: T}}}\n",
	} {
		if c := parse(t, start+other); string(c.Sinks[0].Raw) == string(a.Sinks[0].Raw) {
			t.Errorf("%s is the same as before", other)
		}
	}
}

func TestErrorAt(t *testing.T) {
	c := parse(t, header+`watches:
- name: w
  resources:
  - pods
  -   nodes
routes:
- {name: r, sinks: [s], when: "a == 'b'"}
- name: q
  sinks: [s]
  when: |
    object.a == 1 &&
      object.b == 2
- name: p
  sinks: [s]
  when: >
    folded
    text
- name: o
  sinks: [s]
  when: object.é == "a"
sinks:
- name: s
  lake: {url: x, headers: {"X-Odd.Name": {env: A}}}
`)
	for path, want := range map[string]string{
		"watches[0].resources[1]":  "w.yaml:7:7",
		"watches[0].resources[9]":  "w.yaml:6:3",
		"watches[0].labelSelector": "w.yaml:4:3",
		"watches[7]":               "w.yaml:4:1",
		"nothing.of.the.kind":      "w.yaml:1:1",
		"":                         "w.yaml:1:1",
		"routes[0].when":           "w.yaml:9:31",
		`sinks[0].lake.headers["X-Odd.Name"].env`: "w.yaml:25:48",
		"sinks[0].name[3]":                        "w.yaml:24:9",
		"watches[x]":                              "w.yaml:4:1",
	} {
		got := c.ErrorAt(path, "oh")
		if want += ": " + path + ": oh"; strings.ReplaceAll(want, ": : ", ": ") != got.Error() {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	for _, tc := range []struct {
		path         string
		line, column int
		want         string
	}{
		{"routes[0].when", 1, 6, "w.yaml:9:37"},
		{"routes[1].when", 1, 8, "w.yaml:13:12"},
		{"routes[1].when", 2, 3, "w.yaml:14:7"},
		{"routes[1].when", 9, 1, "w.yaml:12:9"},
		{"routes[2].when", 1, 5, "w.yaml:17:9"},
		{"routes[3].when", 1, 11, "w.yaml:22:19"},
		{"routes[3].when", 0, 0, "w.yaml:22:9"},
		{"routes[9].when", 1, 1, "w.yaml:9:1"},
	} {
		got := c.ErrorWithin(tc.path, tc.line, tc.column, "oh")
		if want := tc.want + ": " + tc.path + ": oh"; want != got.Error() {
			t.Errorf("%s %d:%d: %s, want %s", tc.path, tc.line, tc.column, got, want)
		}
	}
}

func TestConfigOfAProgram(t *testing.T) {
	c := config.Default()
	w := config.DefaultWatch()
	w.Name, w.Resources = "w", []config.Resource{{Resource: "pods"}}
	c.Watches = []config.Watch{w}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	c.Watches[0].Name = "No Good"
	c.ConsistencyCheck.Interval = -1
	err := c.Validate()
	list, ok := errors.AsType[*config.Errors](err)
	if !ok || len(list.List) != 2 || list.List[0].Line != 0 {
		t.Fatalf("%v", err)
	}
	if got := list.List[0].Error(); got != "consistencyCheck.interval: must be above 0; to turn the check off set consistencyCheck.enabled: false" {
		t.Error(got)
	}
	if one, ok := errors.AsType[*config.Error](err); !ok || one != list.List[0] {
		t.Error("a single problem is not found in the list")
	}
}

func TestErrorsPrint(t *testing.T) {
	if err := config.NewErrors(); err != nil {
		t.Errorf("no problems are an error: %#v", err)
	}
	err := config.NewErrors(
		&config.Error{File: "b.yaml", Line: 1, Column: 1, Msg: "m"},
		&config.Error{File: "a.yaml", Line: 20, Column: 3, Path: "p", Msg: "m"},
		&config.Error{File: "a.yaml", Line: 3, Column: 20, Path: "p", Msg: "m"},
		&config.Error{File: "a.yaml", Line: 3, Column: 20, Path: "p", Msg: "m"},
		&config.Error{Line: 7, Column: 8, Path: "q", Msg: "m"},
		&config.Error{Path: "r", Msg: "m"},
	)
	want := "r: m\n7:8: q: m\na.yaml:3:20: p: m\na.yaml:20:3: p: m\nb.yaml:1:1: m"
	if err.Error() != want {
		t.Errorf("got\n%s\nwant\n%s", err, want)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "watcherd.yaml")
	if _, err := config.Load(file, kinds()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := config.Load(dir, kinds()); err == nil {
		t.Error("a folder was loaded")
	}
	text := header + "watches:\n- {name: w, resources: [pods]}\n"
	for _, tc := range []struct {
		size int
		ok   bool
	}{{config.MaxSize, true}, {config.MaxSize + 1, false}, {3 * config.MaxSize, false}} {
		if err := os.WriteFile(file, []byte(text+strings.Repeat("#", tc.size-len(text)-1)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := config.Load(file, kinds())
		if tc.ok && err != nil || !tc.ok && (err == nil || err.Error() != file+":1:1: the file is larger than 1048576 bytes") {
			t.Errorf("%d bytes: %v", tc.size, err)
		}
	}
}

func TestKindsMayBeMissing(t *testing.T) {
	_, err := config.Parse("w.yaml", []byte(header+"watches:\n- {name: w, resources: [pods]}\nsinks:\n- {name: s, console: {}}\n"), nil)
	if err == nil || !strings.Contains(err.Error(), "sinks[0].console: unknown key") {
		t.Error(err)
	}
}
