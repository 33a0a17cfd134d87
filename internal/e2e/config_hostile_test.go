package e2e

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// TestHostileObjects has one tenant create what the API server takes and nobody expects, of
// legal size, while expressions read it. What another tenant creates after that is
// delivered, everywhere and soon; nothing of it is out of place.
func TestHostileObjects(t *testing.T) {
	c := testcluster.Shared(t)
	hostile, other := c.Namespace(t), c.Namespace(t)
	var hook bodies
	bus := newBus(t)
	admin := testkit.Address(t)
	d := newDaemon(t, c.Kubeconfig, fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data}
admin: {listen: %q}
watches:
- name: all
  resources: [configmaps, secrets, roles.rbac.authorization.k8s.io, controllerrevisions.apps, events]
  namespaces: {include: [%s, %s]}
  redactPresets: [podEnv]
routes:
- {name: keys, resources: [configmaps], when: 'object.data.exists(k, object.data[k] == "wanted")', sinks: [wanted]}
- name: all
  payload: [object, oldObject, patch, summary]
  enrich: [owner, involvedObject]
  metric: {name: hostile_changes_total, labels: {name: metadata.name, first: 'object.?data.?number.orValue("")'}}
  sinks: [named, plain, binary, bus, shaped]
- {name: amounts, when: 'quantity(object.data.number).isGreaterThan(quantity("1")) || object.data.number > 1', sinks: [wanted]}
- {name: slow, changed: [data], throttle: {per: 1s}, sinks: [plain]}
sinks:
- {name: wanted, file: {path: ./wanted.jsonl}}
- {name: named, file: {path: "./named/{namespace}/{name}.jsonl"}}
- {name: plain, file: {path: ./plain.jsonl}}
- {name: shaped, file: {path: ./shaped.jsonl}, body: '{"name": metadata.name, "labels": metadata.labels, "summary": event.summary}'}
- {name: binary, format: cloudevents-binary, webhook: {url: %q}}
- {name: bus, nats: {url: %q, subject: "k8s.h.{resource}.{namespace}.{name}", jetstream: {stream: %s}}}
`, admin, hostile, other, hook.serve(t, http.StatusOK), bus.url(), stream))
	d.start()
	eventually(t, func() bool { return strings.Count(d.log.String(), "watch synced") >= 5 }, func() string { return "never synced" })

	dyn := c.Dynamic(t)
	create := func(gvr schema.GroupVersionResource, namespace string, o map[string]any) {
		t.Helper()
		u := &unstructured.Unstructured{Object: o}
		u.SetNamespace(namespace)
		if _, err := dyn.Resource(gvr).Namespace(namespace).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Errorf("%s %.80q: %v", gvr.Resource, u.GetName(), err)
		}
	}
	meta := func(name string) map[string]any { return map[string]any{"name": name} }
	configMap := func(namespace, name string, data, labels map[string]any) {
		m := meta(name)
		m["labels"] = labels
		create(configMaps, namespace, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": m, "data": data})
	}
	roles := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}
	for _, name := range []string{
		"a\nb\r\nX-Evil: 1", "nul\x00", "\x1b[2J\x1b[31mred", "{namespace}", "$(id)", "a>b.*", "...", " ", "ümläut☃", strings.Repeat("long", 20_000), "~", `"quoted"\`, "\u2028\u202e",
	} {
		create(roles, hostile, map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta(name)})
	}
	wide, labels := map[string]any{}, map[string]any{}
	for i := range 10_000 {
		wide[fmt.Sprint("k", i)] = ""
	}
	for i := range 2_000 {
		labels[fmt.Sprint("l", i)] = ""
	}
	for i := range 3 {
		configMap(hostile, fmt.Sprint("wide-", i), wide, nil)
	}
	configMap(hostile, "labelled", nil, labels)
	configMap(hostile, "text", map[string]any{"text": strings.Repeat("a", 900_000)}, nil)
	for i, number := range []string{"1e999999999", "1234567890123456789e999999999", "-1e-999999999", strings.Repeat("9", 400), "NaN", "\u0000", "\x1b[2J"} {
		configMap(hostile, fmt.Sprint("number-", i), map[string]any{"number": number}, nil)
	}
	data, annotations := map[string]any{}, map[string]any{}
	for i := range 15_000 {
		data[fmt.Sprint(i)] = base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%012d", i))
	}
	for i := range 3_000 {
		annotations[fmt.Sprint("a", i)] = "short"
	}
	create(secrets, hostile, map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "many", "annotations": annotations}, "data": data})
	client, err := rest.HTTPClientFor(c.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	for i, raw := range []string{
		`{"env":[{"value":"canary-a","value":"canary-b"}],"env":[{"name":"x","value":"canary-c"}]}`,
		`{"n":1e308,"m":1e-300,"i":12345678901234567890,"s":"\u0000\u001b[2J"}`,
		strings.Repeat(`{"a":`, 4_900) + "{}" + strings.Repeat("}", 4_900),
		strings.Repeat(`[`, 4_900) + strings.Repeat("]", 4_900),
	} {
		body := fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{"name":"r%d"},"revision":1,"data":{"x":%s}}`, i, raw)
		resp, err := client.Post(c.Config(t).Host+"/apis/apps/v1/namespaces/"+hostile+"/controllerrevisions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			t.Errorf("revision %d: %s %.300s", i, resp.Status, answer)
		}
	}
	configMap(other, "last", map[string]any{"a": "wanted"}, nil)

	eventually(t, func() bool {
		for _, file := range []string{"wanted.jsonl", "plain.jsonl", "shaped.jsonl", "named/" + other + "/last.jsonl"} {
			if content, _ := os.ReadFile(d.path(file)); !strings.Contains(string(content), `/last"`) && !strings.Contains(string(content), `"name":"last"`) {
				return false
			}
		}
		return strings.Contains(string(hook.content()), `"last"`)
	}, func() string { return "what another tenant created is not delivered: " + d.log.String() })
	if body, ok := httpGet(t, "http://"+admin+"/livez"); !ok {
		t.Errorf("/livez: %s", body)
	}
	d.stop()
	if log := d.log.String(); strings.Contains(log, "\x1b[2J") || strings.Contains(log, "panic") {
		t.Errorf("the log: %s", log)
	}
}
