package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// canary is a value that must not get out, in all its forms.
type canary struct{ text string }

func newCanary() canary { return canary{"canary-" + rand.Text()} }

func (c canary) base64() string { return base64.StdEncoding.EncodeToString([]byte(c.text)) }

// in tells whether the content has the canary in it. Random text is not made
// shorter by compression, so that it shows in compressed content too.
func (c canary) in(content []byte) bool {
	for _, form := range []string{c.text, c.base64(), strings.TrimPrefix(c.text, "canary-"), fmt.Sprintf("%x", c.text)} {
		if bytes.Contains(content, []byte(form)) {
			return true
		}
	}
	return false
}

// copies are annotations of a Secret that repeat its values in other forms.
func copies(hidden canary) map[string]any {
	manifest := fmt.Sprintf(`{"data":{"password":%q},"type":"Opaque"}`, hidden.base64())
	quoted, _ := json.Marshal(map[string]string{"spec": manifest})
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = w.Write([]byte(manifest))
	_ = w.Close()
	return map[string]any{
		"kopf.zalando.org/last-handled-configuration": manifest,
		"example.com/plain":                           "the password is " + hidden.text,
		"example.com/json":                            fmt.Sprintf(`{"password":%q}`, hidden.text),
		"example.com/quoted":                          string(quoted),
		"example.com/base64":                          base64.StdEncoding.EncodeToString([]byte(manifest)),
		"example.com/release":                         base64.StdEncoding.EncodeToString(zipped.Bytes()),
		"example.com/cut":                             manifest[:len(manifest)-20],
	}
}

// planted are the n-th objects with the canary in every place that is to be redacted, and
// another value in one that is not. The last is in a namespace of which only metadata is
// watched.
func planted(namespace, metadataOnly string, n int, hidden, visible canary) []*unstructured.Unstructured {
	meta := func(name string) map[string]any {
		return map[string]any{"namespace": namespace, "name": name, "annotations": map[string]any{
			"kubectl.kubernetes.io/last-applied-configuration": fmt.Sprintf(`{"data":{"password":%q},"stringData":{"pin":%q}}`, hidden.base64(), hidden.text),
			"example.com/token": hidden.text,
		}}
	}
	secret := func(namespace string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": meta("planted"), "type": "Opaque",
			"data":       map[string]any{"password": hidden.base64()},
			"stringData": map[string]any{"pin": hidden.text},
		}}
		u.SetNamespace(namespace)
		maps.Copy(u.Object["metadata"].(map[string]any)["annotations"].(map[string]any), copies(hidden))
		return u
	}
	mentioned := secret(namespace)
	mentioned.SetLabels(map[string]string{"planted": hidden.text})
	env := []any{map[string]any{"name": "PASSWORD", "value": hidden.text}}
	return []*unstructured.Unstructured{
		mentioned,
		{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("planted"),
			"data": map[string]any{"password": hidden.text, "user": visible.text},
		}},
		{Object: map[string]any{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("planted"),
			"spec": map[string]any{
				"selector": map[string]any{"matchLabels": map[string]any{"app": "e2e"}},
				"template": map[string]any{
					"metadata": map[string]any{"labels": map[string]any{"app": "e2e"}},
					"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": "example.com/app:1", "env": env}}},
				},
			},
		}},
		{Object: map[string]any{
			"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": meta(fmt.Sprint("planted-", n)), "revision": int64(n),
			"data": map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
				"containers": []any{map[string]any{"name": "main", "env": env}}, "initContainers": []any{map[string]any{"name": "init", "env": env}},
			}}}},
		}},
		{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": meta("planted"),
			"spec": map[string]any{"keys": []any{map[string]any{"secret": hidden.text}}, "note": visible.text},
		}},
		secret(metadataOnly),
		{Object: map[string]any{
			"apiVersion": "v1", "kind": "Event", "metadata": meta(fmt.Sprint("planted-", n)), "type": "Normal", "reason": "Planted", "message": "it is " + visible.text,
			"involvedObject": map[string]any{"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "name": "planted"},
		}},
	}
}

// receivers are where the daemon of the canary delivers to, apart from files.
type receivers struct{ good, bad, nats, kafka, otlp string }

func canaryConfig(namespace, metadataOnly, admin string, to receivers) string {
	return fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data}
admin: {listen: %q}
watches:
- name: all
  resources: [secrets, configmaps, deployments.apps, controllerrevisions.apps, widgets.example.com, events]
  namespaces: {include: [%s]}
  redact:
  - data.password
  - metadata.annotations["example.com/token"]
  - "**.keys[*].secret"
  redactPresets: [podEnv]
- name: metadata
  resources: [secrets]
  namespaces: {include: [%s]}
  metadataOnly: true
routes:
- {name: metadata, watches: [metadata], payload: [object, oldObject, patch, summary], sinks: [plain, hook]}
- {name: all, watches: [all], payload: [object, oldObject, patch, summary], enrich: [owner, involvedObject], sinks: [archive, plain, console, hook, bus, topics, newest, logs, records]}
- {name: failing, watches: [all], when: int(object.data.password) > 0, onError: pass, sinks: [refusing]}
- {name: calm, watches: [all], throttle: {per: 1h}, payload: [object, oldObject, patch, summary], enrich: [owner, involvedObject], sinks: [rare]}
- {name: lasting, watches: [all], when: size(metadata.name) > 0, for: 1s, payload: [object, oldObject, patch, summary], enrich: [owner, involvedObject], sinks: [lasted]}
- name: shapes
  watches: [all]
  enrich: [owner, involvedObject]
  metric: {name: canary_changes_total, labels: {password: 'object.?data.?password.orValue("")', user: 'object.?data.?user.orValue("")', token: 'metadata.?annotations["example.com/token"].orValue("")'}}
  sinks: [shaped, misshaped]
sinks:
- {name: archive, file: {path: "./events/{resource}.jsonl"}}
- {name: plain, format: json, file: {path: "./plain/{resource}.jsonl"}}
- {name: shaped, file: {path: "./shaped/{resource}.jsonl"}, body: '[object, oldObject, patch, event.summary, metadata.annotations, json.encode(event)]'}
- {name: misshaped, file: {path: "./misshaped/{resource}.jsonl"}, body: int(object.data.password)}
- {name: rare, file: {path: "./rare/{resource}.jsonl"}}
- {name: lasted, file: {path: "./lasted/{resource}.jsonl"}}
- {name: console, stdout: {pretty: true}}
- {name: bus, nats: {url: %q, jetstream: {stream: %s}}}
- {name: topics, kafka: {brokers: [%q], topic: "history.{resource}", create: {partitions: 1}}}
- {name: newest, kafka: {brokers: [%q], topic: "state.{resource}", mode: state, create: {partitions: 1}}}
- {name: logs, otlp: {endpoint: %q}}
- {name: records, otlp: {endpoint: %q, structured: true}}
- {name: hook, webhook: {url: %q, headers: {X-Canary: {env: CANARY_KEY}}}}
- {name: refusing, webhook: {url: %q, headers: {X-Canary: {env: CANARY_KEY}}}, retry: {initial: 10ms, max: 50ms}}
`, admin, namespace, metadataOnly, to.nats, stream, to.kafka, to.kafka, to.otlp, to.otlp, to.good, to.bad)
}

// bodies collects what a webhook gets, and answers with a status. Where it
// refuses, it sends back what it was sent.
type bodies struct {
	mu   sync.Mutex
	all  bytes.Buffer
	keys map[string]bool
}

func (b *bodies) serve(t testing.TB, status int) string {
	b.keys = map[string]bool{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		b.mu.Lock()
		b.all.Write(body)
		b.keys[req.Header.Get("X-Canary")] = true
		b.mu.Unlock()
		w.WriteHeader(status)
		if status != http.StatusOK {
			_, _ = w.Write(body)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func (b *bodies) content() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.all.Bytes())
}

// TestCanary plants secrets in every place that is redacted and looks for them
// wherever the daemon leaves something. That what is not redacted is found shows
// that the search works; a Secret whose values change is still an update.
func TestCanary(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns, metadataOnly := c.Namespace(t), c.Namespace(t)
	key, visible := newCanary(), newCanary()
	t.Setenv("CANARY_KEY", key.text)
	var good, bad bodies
	address := testkit.Address(t)
	bus, kafka, collector := newBus(t), testservers.StartKafka(t, testservers.KafkaSpec{}), testservers.StartCollector(t, testservers.CollectorSpec{})
	records := topics(t, kafka.Addr, "^(history|state)\\..*")
	d := newDaemon(t, c.Kubeconfig, canaryConfig(ns, metadataOnly, address, receivers{
		good: good.serve(t, http.StatusOK), bad: bad.serve(t, http.StatusBadRequest), nats: bus.url(), kafka: kafka.Addr, otlp: "http://" + collector.Addr,
	}))
	dyn := c.Dynamic(t)

	var hidden []canary
	write := func() { // all objects, with new values
		hidden = append(hidden, newCanary())
		var controller []metav1.OwnerReference
		for _, u := range planted(ns, metadataOnly, len(hidden), hidden[len(hidden)-1], visible) {
			if u.GetKind() == "ControllerRevision" {
				u.SetOwnerReferences(controller)
			}
			r := dyn.Resource(resourceOf(u)).Namespace(u.GetNamespace())
			if old, err := r.Get(t.Context(), u.GetName(), metav1.GetOptions{}); err == nil {
				u.SetResourceVersion(old.GetResourceVersion())
				if _, err = r.Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				continue
			}
			created, err := r.Create(t.Context(), u, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if u.GetKind() == "Deployment" {
				controller = []metav1.OwnerReference{*metav1.NewControllerRef(created, created.GroupVersionKind())}
			}
		}
	}
	answers := map[string]string{}
	asked := newDoors(t, address)
	ask := func(life string) {
		for _, path := range []string{
			"/metrics", "/readyz?verbose", "/livez?verbose", "/api/v1/status", "/api/v1/config", "/api/v1/deadletters/refusing",
			"/api/v1/objects/secrets", "/api/v1/objects/configmaps/" + ns + "/planted", "/api/v1/objects/deployments", "/api/v1/objects/widgets",
			"/api/v1/deadletters/misshaped", "/api/v1/deadletters/refusing?events=true", "/api/v1/deadletters/misshaped?events=true",
			"/api/v1/events?follow=false&since=1h", "/api/v1/events?follow=false&since=1h&view=feed", "/api/v1/history?limit=1000", "/api/v1/history?path=data.password",
			"/api/v1/history/histogram?from=1h", "/api/v1/changes?from=1h", "/api/v1/objects/secrets?at=-1s", "/api/v1/objects/configmaps/" + ns + "/planted?at=-1s",
			"/at/-1s/api/v1/secrets", "/at/-1s/api/v1/namespaces/" + ns + "/configmaps/planted",
			"/api/v1/objects/secrets/" + ns + "/planted/versions", "/api/v1/objects/secrets/" + ns + "/planted/diff", "/api/v1/objects/configmaps/" + ns + "/planted/diff?from=1h",
			"/api/v1/objects/secrets/" + ns + "/planted/blame", "/api/v1/objects/configmaps/" + ns + "/planted/blame", "/api/v1/objects/configmaps/" + ns + "/planted/versions",
			"/api/v1/changes?from=1h&group=owner", "/api/v1/history?when=" + url.QueryEscape(`int(object.data.password) > 0`),
			"/api/v1/history/histogram?from=1h&resource=secrets", "/at/-1s/api", "/at/-1s/apis", "/at/-1s/apis/apps/v1",
			"/at/-1s/apis/apps/v1/controllerrevisions", "/at/-1s/apis/example.com/v1/widgets", "/at/-1s/api/v1/events", "/", "/ui/", "/api/openapi.json",
			"/api/v1/objects/deployments/" + ns + "/planted/owned", "/api/v1/objects/deployments/" + ns + "/planted/owned?at=-1s", "/api/v1/objects/secrets/" + ns + "?columns=true&metadata=true",
		} {
			asked.note(http.MethodGet, path)
			if strings.HasPrefix(path, "/at/-1s/api") {
				for _, form := range []string{"Table", "PartialObjectMetadataList"} {
					answers[life+path+" as "+form], _ = httpGet(t, "http://"+address+path+"?includeObject=Object", "application/json;as="+form+";g=meta.k8s.io;v=v1", "application/json")
				}
			}
			eventually(t, func() bool {
				body, ok := httpGet(t, "http://"+address+path)
				answers[life+path] = body
				return ok
			}, func() string { return path + " doesn't answer: " + answers[life+path] })
		}
	}
	run := func(args ...string) {
		t.Helper()
		out, errs, code := command(t, args...)
		if code != 0 {
			t.Errorf("%q ends with code %d: %s%s", args, code, out, errs)
		}
		answers[strings.Join(args, " ")] = out + errs
	}
	// read asks the commands for the past of a store or a recording.
	read := func(dir string, resources ...string) {
		t.Helper()
		for _, r := range resources {
			run("history", r, "planted", "-n", ns, "--store", dir, "-o", "json")
			run("diff", r, "planted", "-n", ns, "--since", "1s", "--store", dir)
			run("blame", r, "planted", "-n", ns, "--store", dir)
			run("get", r, "-n", ns, "--at", "1ms", "--store", dir, "-o", "yaml")
		}
		run("changes", "--since", "1h", "--group", "owner", "-o", "json", "--store", dir)
	}
	// deadLettered waits for what the refusing sink refuses.
	deadLettered := func(n float64) {
		eventually(t, func() bool { return scrape(t, address)[`watcherd_sink_dead_letters_kept{sink="refusing"}`] >= n },
			func() string { return "what is refused is no dead letter" })
	}
	secretEvents := func() []json.RawMessage { return objectsOf(t, d.path("events/secrets.jsonl")) }

	write()
	d.start("--log-level", "debug")
	waitForSecrets := func(n int) {
		eventually(t, func() bool { return len(secretEvents()) >= n && bytes.Contains(good.content(), []byte(`"secrets"`)) },
			func() string { return fmt.Sprintf("%d events of secrets, want %d", len(secretEvents()), n) })
	}
	waitForSecrets(1)
	write()
	waitForSecrets(2)
	deadLettered(2)
	ask("first")
	sequence := regexp.MustCompile(`"sequence":"?(\d+)`)
	for _, at := range sequence.FindAllStringSubmatch(answers["first/api/v1/history?limit=1000"], -1) {
		path := "/api/v1/events/" + at[1] + "/explain"
		asked.note(http.MethodGet, path)
		answers["explain "+at[1]], _ = httpGet(t, "http://"+address+path)
	}
	candidate := d.path("candidate.yaml")
	if err := os.WriteFile(candidate, fmt.Appendf(nil, `
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {path: ./data}
watches: [{name: all, resources: [secrets, configmaps, widgets.example.com, controllerrevisions.apps, events], exposeSecrets: true}]
routes:
- {name: all, payload: [object, oldObject, patch, summary], enrich: [owner, involvedObject], sinks: [shaped, misshaped]}
- {name: calm, throttle: {per: 1h}, enrich: [owner, involvedObject], sinks: [rare]}
- {name: failing, when: int(object.data.password) > 0, sinks: [shaped]}
sinks:
- {name: shaped, file: {path: ./never.jsonl}, body: '[object, oldObject, patch, event.summary, metadata.annotations, json.encode(event)]'}
- {name: rare, file: {path: ./never.jsonl}, body: '[oldObject, patch, event.summary, json.encode(event)]'}
- {name: misshaped, file: {path: ./never.jsonl}, body: int(object.data.password)}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	run("backtest", "--config", candidate, "--since", "1h", "-o", "json", "--admin", "http://"+address)
	tailed, errs, code := command(t, "tail", "--no-follow", "--limit", "1000", "-o", "json", "--admin", "http://"+address)
	if code != 0 {
		t.Fatalf("tail ends with code %d: %s", code, errs)
	}
	if err := os.WriteFile(d.path("tailed.jsonl"), []byte(tailed), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, sink := range []string{"shaped", "rare", "plain"} {
		run("body", "--config", d.path("watcherd.yaml"), "--sink", sink, "--event", d.path("tailed.jsonl"))
	}
	run("deadletters", "list", "--sink", "refusing", "--admin", "http://"+address)
	run("deadletters", "list", "--sink", "refusing", "--events", "--admin", "http://"+address)
	run("status", "--admin", "http://"+address)
	run("record", "--kubeconfig", c.Kubeconfig, "-n", ns, "--resource", "secrets", "--out", d.path("recording"), "--", "sleep", "1")
	read(d.path("recording"), "secrets")
	var watched testcluster.Output
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	watch := exec.CommandContext(t.Context(), bin, "watch", "secrets", "-n", ns, "--present", "-o", "json", "--kubeconfig", c.Kubeconfig)
	watch.Stdout, watch.Stderr = &watched, &watched
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return strings.Contains(watched.String(), "redacted:") }, watched.String)
	if err := errors.Join(watch.Process.Signal(os.Interrupt), watch.Wait()); err != nil {
		t.Error(err)
	}
	answers["watch"] = watched.String()
	eventually(t, func() bool {
		for _, resource := range []string{"configmaps", "events", "controllerrevisions"} {
			if len(d.events("lasted/"+resource+".jsonl")) == 0 {
				return false
			}
		}
		return true
	}, func() string { return "no match is reported" })
	d.stop()
	write() // while it is away
	d.start("--log-level", "debug")
	waitForSecrets(3)
	if err := dyn.Resource(secrets).Namespace(ns).Delete(t.Context(), "planted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForSecrets(4)
	newClient(t, c, ns).settle(d.path("events"), kinds[0], kinds[2], kinds[3])
	ask("second")
	run("store", "backup", d.path("copy"), "--admin", "http://"+address)
	configuration, err := json.Marshal(string(bytes.ReplaceAll(mustRead(t, candidate), []byte("[secrets,"), []byte("[secrets, pods,"))))
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range [][2]string{
		{"plan", fmt.Sprintf(`{"configuration":%s}`, configuration)},
		{"reload", `{}`},
		{"backtest", fmt.Sprintf(`{"from":%q,"bodies":[{"sink":"shaped","body":"json.encode(object)"}]}`, time.Now().Add(-time.Hour).Format(time.RFC3339))},
		{"replay", `{"sink":"plain","fromSequence":1}`},
		{"snapshot", `{"sink":"plain"}`},
		{"backup", fmt.Sprintf(`{"dir":%q}`, d.path("another-copy"))},
		{"deadletters/refusing/retry", `{"all":true}`},
		{"sinks/refusing/pause", ``},
		{"sinks/refusing/resume", ``},
		{"sinks/refusing/skip", `{}`},
		{"sinks/refusing/purge", ``},
		{"deadletters/refusing/drop", `{"all":true}`},
	} {
		answers["POST "+command[0]] = asked.post("/api/v1/"+command[0], command[1])
	}
	asked.complete()
	d.stop()
	read(d.path("data"), "secrets", "configmaps")

	checkHashes(t, secretEvents())
	checkEnrichment(t, d)
	contents := map[string][]byte{"log and standard output": []byte(d.log.String()), "webhook": good.content(), "refusing webhook": bad.content()}
	for _, message := range bodiesOf(t, bus.tap()) {
		contents["nats"] = append(contents["nats"], message...)
	}
	eventually(t, func() bool {
		for _, r := range records() {
			contents["kafka"] = fmt.Append(contents["kafka"], r.Topic, string(r.Key), string(r.Value), r.Headers)
		}
		return bytes.Contains(contents["kafka"], []byte("state.secrets")) && bytes.Contains(contents["kafka"], []byte("history.secrets")) && visible.in(contents["kafka"])
	}, func() string { return "the topics have no secrets" })
	for _, r := range collector.Accepted() {
		contents["otlp"] = fmt.Append(contents["otlp"], r)
	}
	for path, body := range answers {
		contents["GET "+path] = []byte(body)
	}
	exported, stored := storeContents(t, d)
	contents["store export"], contents["store, inflated"], contents["held, inflated"] = exported, stored, heldContents(t, d)
	err = filepath.WalkDir(d.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		contents[strings.TrimPrefix(path, d.dir)], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for where, content := range contents {
		for i, h := range append(hidden, key) {
			if h.in(content) {
				t.Errorf("value %d of %d is in: %s", i, len(hidden)+1, where)
			}
		}
	}
	for _, where := range []string{
		"webhook", "store, inflated", "GET first/api/v1/objects/configmaps/" + ns + "/planted", "/events/configmaps.jsonl", "/plain/widgets.jsonl", "nats", "kafka", "otlp", "GET second/api/v1/events?follow=false&since=1h", "GET second/api/v1/objects/configmaps/" + ns + "/planted?at=-1s",
		"GET first/metrics", "GET first/api/v1/objects/configmaps/" + ns + "/planted/blame", "GET first/at/-1s/api/v1/namespaces/" + ns + "/configmaps/planted", "GET first/at/-1s/api/v1/events as Table",
		"/shaped/configmaps.jsonl", "/rare/configmaps.jsonl", "/lasted/configmaps.jsonl", "held, inflated", "GET body --config " + d.path("watcherd.yaml") + " --sink shaped --event " + d.path("tailed.jsonl"), "GET blame configmaps planted -n " + ns + " --store " + d.path("data"),
	} {
		if !visible.in(contents[where]) {
			t.Errorf("what is not redacted is not in: %s, so the search proves nothing:\n%.2000s", where, contents[where])
		}
	}
	for _, where := range []string{
		"watch", "backtest --config " + candidate + " --since 1h -o json --admin http://" + address, "blame secrets planted -n " + ns + " --store " + d.path("recording"),
	} {
		if !strings.Contains(answers[where], "redacted:hmac-sha256:") {
			t.Errorf("nothing is redacted in: %s\n%.5000s", where, answers[where])
		}
	}
	if !good.keys[key.text] {
		t.Error("the receiver was not sent the header")
	}
	if len(d.log.String()) == 0 || !strings.Contains(d.log.String(), "a route's expression failed") {
		t.Error("the log doesn't tell of the failing expression")
	}
}

// doors are the operations of the HTTP interface, and which of them were asked.
type doors struct {
	t     testing.TB
	admin string
	mux   *http.ServeMux
	asked map[string]bool // by pattern
}

func newDoors(t testing.TB, address string) *doors {
	d := &doors{t, address, http.NewServeMux(), map[string]bool{}}
	for _, op := range admin.Operations() {
		d.mux.Handle(op.Pattern, http.NotFoundHandler())
	}
	return d
}

func (d *doors) note(method, path string) *http.Request {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), method, "http://"+d.admin+path, http.NoBody)
	if err != nil {
		d.t.Fatal(err)
	}
	_, pattern := d.mux.Handler(req)
	d.asked[pattern] = true
	return req
}

// post returns the answer to a command, which may be an error.
func (d *doors) post(path, body string) string {
	d.t.Helper()
	req := d.note(http.MethodPost, path)
	req.Header.Set("Content-Type", "application/json")
	req.Body = io.NopCloser(strings.NewReader(body))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.Status + "\n" + string(answer)
}

// complete fails the test for each operation that was not asked.
func (d *doors) complete() {
	d.t.Helper()
	for _, op := range admin.Operations() {
		if !d.asked[op.Pattern] {
			d.t.Errorf("%s was not asked", op.Pattern)
		}
	}
}

func bodiesOf(t testing.TB, p *tap) [][]byte {
	t.Helper()
	bodies, err := p.more()
	if err != nil {
		t.Fatal(err)
	}
	return bodies
}

func resourceOf(u *unstructured.Unstructured) schema.GroupVersionResource {
	return u.GroupVersionKind().GroupVersion().WithResource(strings.ToLower(u.GetKind()) + "s")
}

// objectsOf are the objects of the events in a file.
func objectsOf(t testing.TB, file string) []json.RawMessage {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	var objects []json.RawMessage
	for in := bufio.NewReader(f); ; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return objects
		}
		var e struct {
			Data struct{ Object json.RawMessage }
		}
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, e.Data.Object)
	}
}

// checkHashes expects that each new value of a Secret has another hash, another one in
// each place, that the deletion shows the last one, and that all annotations, which
// repeat the value, are hashes.
func checkHashes(t testing.TB, objects []json.RawMessage) {
	t.Helper()
	var hashes []string
	for _, raw := range objects {
		var o struct {
			Data     map[string]string
			Metadata struct{ Annotations, Labels map[string]string }
		}
		if err := json.Unmarshal(raw, &o); err != nil {
			t.Fatal(err)
		}
		if o.Data["password"] == "" || o.Data["password"] == o.Data["pin"] {
			t.Errorf("a value has the hashes %q and %q", o.Data["password"], o.Data["pin"])
		}
		for name, value := range o.Metadata.Annotations {
			if !strings.HasPrefix(value, "redacted:") {
				t.Errorf("annotation %s is %s", name, value)
			}
		}
		if len(o.Metadata.Annotations) != 2+len(copies(canary{})) || !strings.HasPrefix(o.Metadata.Labels["planted"], "redacted:") {
			t.Errorf("the metadata is %+v", o.Metadata)
		}
		hashes = append(hashes, o.Data["password"])
	}
	if len(hashes) != 4 || hashes[0] == hashes[1] || hashes[1] == hashes[2] || hashes[2] != hashes[3] {
		t.Errorf("the hashes are %q, want three different ones and the last again", hashes)
	}
}

// checkEnrichment expects that Events have the metadata of the Secret that they are about, as
// hashes, and revisions their owner.
func checkEnrichment(t testing.TB, d *daemon) {
	t.Helper()
	for _, folder := range []string{"events", "lasted"} {
		hashed, owned := 0, 0
		for _, e := range d.events(folder + "/events.jsonl") {
			if o := e.InvolvedObject; o != nil && strings.HasPrefix(o.Annotations["example.com/plain"], "redacted:") && strings.HasPrefix(o.Labels["planted"], "redacted:") {
				hashed++
			}
		}
		for _, e := range d.events(folder + "/controllerrevisions.jsonl") {
			if e.Owner != nil && e.Owner.Kind == "Deployment" {
				owned++
			}
		}
		if hashed == 0 || owned == 0 {
			t.Errorf("%s: %d events have the metadata of their Secret and %d revisions their owner, so the search proves nothing of them", folder, hashed, owned)
		}
	}
	for _, name := range []string{"/shaped/events.jsonl", "/shaped/controllerrevisions.jsonl"} {
		want := map[string]string{"/shaped/events.jsonl": `\"involvedObject\":{`, "/shaped/controllerrevisions.jsonl": `\"owner\":{`}[name]
		if !bytes.Contains(mustRead(t, d.path(name)), []byte(want)) {
			t.Errorf("%s has no %s", name, want)
		}
	}
}

// heldContents is what the routes hold, as it was before it was compressed.
func heldContents(t testing.TB, d *daemon) []byte {
	t.Helper()
	st, err := store.Open(d.path("data"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}()
	dictionaries, err := ledger.LoadDictionaries(st)
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	inflater, held := record.Inflater{Cluster: "e2e", Dictionaries: dictionaries}, 0
	err = timer.NewTable(st).Rows(nil, "", func(key string, row *timer.Row) error {
		if row == nil {
			return fmt.Errorf("row %s is damaged", key)
		}
		fmt.Fprintln(&all, key, row.Matching)
		if len(row.Record) == 0 {
			return nil
		}
		e, err := inflater.Event(1, record.Object|record.OldObject|record.Patch|record.Summary|record.Owner|record.InvolvedObject, row.Record, "")
		if err != nil {
			return err
		}
		all.Write(event.AppendData(nil, e))
		if row.Sequence != 0 {
			held++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if held == 0 {
		t.Error("nothing is held, so the search proves nothing of it")
	}
	return all.Bytes()
}

// storeContents is what `watcherd store export` prints, and all that the store
// holds as it was before it was compressed.
func storeContents(t testing.TB, d *daemon) (exported, inflated []byte) {
	t.Helper()
	out, errs, code := command(t, "store", "export", "--store", d.path("data"))
	if code != 0 {
		t.Fatalf("store export: exit code %d: %s", code, errs)
	}
	type line struct {
		Type, Key string
		Payload   []byte
	}
	var lines []line
	dictionaries := compact.NewDictionaries(func(uint32, []byte) error { return nil })
	var all bytes.Buffer
	for text := range strings.Lines(out) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		all.Write(l.Payload)
		lines = append(lines, l)
		if id, ok := strings.CutPrefix(l.Key, "dictionary/"); ok && l.Type == "meta" {
			n, err := strconv.ParseUint(id, 10, 32)
			if err == nil {
				err = dictionaries.Load(uint32(n), l.Payload)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	codec, inflater := compact.NewCodec(dictionaries), record.Inflater{Cluster: "e2e", Dictionaries: dictionaries}
	records, states := 0, 0
	for _, l := range lines {
		switch l.Type {
		case "record":
			e, err := inflater.Event(1, record.Object|record.OldObject|record.Patch|record.Summary, l.Payload, "")
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&all, "%s\n%s\n%s\n%s\n", e.Object, e.OldObject, e.Patch, e.Summary)
			records++
		case "state":
			o, err := codec.Decode(l.Payload)
			if err != nil {
				t.Fatal(err)
			}
			content, err := o.AppendJSON(nil)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(content)
			states++
		}
	}
	if records == 0 || states == 0 {
		t.Errorf("the store has %d records and %d states", records, states)
	}
	return []byte(out), all.Bytes()
}
