package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// clockCRD has a column of each kind.
const clockCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clocks.past.example.com}
spec:
  group: past.example.com
  scope: Namespaced
  names: {plural: clocks, singular: clock, kind: Clock, shortNames: [ck]}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    additionalPrinterColumns:
    - {name: Zone, type: string, jsonPath: .spec.zone}
    - {name: Hands, type: integer, jsonPath: .spec.hands}
    - {name: Wound, type: date, jsonPath: .spec.wound}
    - {name: Maker, type: string, jsonPath: .spec.maker, priority: 1}
`

// pastClient asks a daemon for the past.
type pastClient struct {
	t       testing.TB
	admin   string
	kubectl string
	home    string
}

// at is the server of a time.
func (p *pastClient) at(t time.Time) string {
	return "http://" + p.admin + "/at/" + t.UTC().Format(time.RFC3339Nano)
}

// run asks with kubectl, of a server.
func (p *pastClient) run(server string, args ...string) (out, stderr string, ok bool) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), p.kubectl, append([]string{"--server", server}, args...)...)
	cmd.Env = []string{"HOME=" + p.home}
	var stdout, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &errs
	err := cmd.Run()
	return stdout.String(), errs.String(), err == nil
}

// expect asks with kubectl and wants texts in its output, or its error.
func (p *pastClient) expect(ok bool, server, args string, texts ...string) string {
	p.t.Helper()
	out, errs, succeeded := p.run(server, strings.Fields(args)...)
	if succeeded != ok {
		p.t.Errorf("kubectl %s: success is %t\n%s%s", args, succeeded, out, errs)
	}
	for _, text := range texts {
		if !regexp.MustCompile(text).MatchString(out + errs) {
			p.t.Errorf("kubectl %s: no %q in\n%s%s", args, text, out, errs)
		}
	}
	return out
}

// recorded waits until the history has n changes of a namespace, and returns a time after
// them.
func (p *pastClient) recorded(namespace string, n int) time.Time {
	p.t.Helper()
	var body string
	eventually(p.t, func() bool {
		body, _ = httpGet(p.t, "http://"+p.admin+"/api/v1/history?namespace="+url.QueryEscape(namespace))
		var page struct{ Items []json.RawMessage }
		return json.Unmarshal([]byte(body), &page) == nil && len(page.Items) >= n
	}, func() string { return body })
	return time.Now()
}

// TestKubectlInThePast reads the states of two times with kubectl and client-go.
func TestKubectlInThePast(t *testing.T) {
	c := testcluster.Shared(t)
	kubectl := testcluster.Tool(t, "kubectl")
	c.Apply(t, clockCRD)
	ns, other := c.Namespace(t), c.Namespace(t)
	p := &pastClient{t, testkit.Address(t), kubectl, t.TempDir()}
	d := newDaemon(t, c.Kubeconfig, fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data}
admin: {listen: %q}
watches:
- {name: spaces, resources: [configmaps, pods, events, clocks.past.example.com], namespaces: {include: [%s]}, redact: [metadata.labels.hidden]}
- {name: whole, resources: [customresourcedefinitions.apiextensions.k8s.io, namespaces]}
- {name: bare, resources: [secrets], metadataOnly: true, namespaces: {include: [%s]}}
- {name: forgetful, resources: [services], history: false}
`, p.admin, ns, ns))
	started := time.Now()
	d.start()
	eventually(t, func() bool {
		_, ok := httpGet(t, "http://"+p.admin+"/readyz")
		return ok
	}, func() string { return d.log.Tail() })

	w := newClient(t, c, ns)
	clocks := schema.GroupVersionResource{Group: "past.example.com", Version: "v1", Resource: "clocks"}
	clock := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "past.example.com/v1", "kind": "Clock", "metadata": map[string]any{"name": "tower", "namespace": ns},
		"spec": map[string]any{"zone": "UTC", "hands": int64(2), "wound": time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), "maker": "us"},
	}}
	create := func(gvr schema.GroupVersionResource, u *unstructured.Unstructured) *unstructured.Unstructured {
		t.Helper()
		u, err := w.dyn.Resource(gvr).Namespace(u.GetNamespace()).Create(t.Context(), u, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	var maps []*unstructured.Unstructured
	for i := range 5 {
		maps = append(maps, create(kinds[0].gvr, kinds[0].object(ns, fmt.Sprint("map-", i))))
	}
	create(kinds[1].gvr, kinds[1].object(ns, "pod"))
	create(clocks, clock)
	happened := eventKind.object(ns, "map-1")
	happened.Object["reason"], happened.Object["message"], happened.Object["type"] = "Ticked", "it did", "Normal"
	happened.Object["involvedObject"] = map[string]any{"kind": "ConfigMap", "name": "map-1", "namespace": ns, "uid": string(maps[1].GetUID())}
	create(eventKind.gvr, happened)
	create(secrets, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "safe", "namespace": ns}, "stringData": map[string]any{"pin": "1234"},
	}})
	then := p.at(p.recorded(ns, 9))

	for _, u := range maps[:2] {
		if err := w.dyn.Resource(kinds[0].gvr).Namespace(ns).Delete(t.Context(), u.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.update(t.Context(), kinds[0], maps[2]); err != nil {
		t.Fatal(err)
	}
	later := p.at(p.recorded(ns, 12))

	t.Run("tables", func(t *testing.T) {
		p := &pastClient{t, p.admin, kubectl, p.home}
		p.expect(true, then, "get cm -n "+ns, `NAME +DATA +AGE\n`, `map-0 +\d+ +\d+s\n`, `map-4 +\d+ +\d+s\n`)
		if out := p.expect(true, later, "get cm -n "+ns, `map-4 `); strings.Contains(out, "map-0") {
			t.Errorf("a deleted object is listed:\n%s", out)
		}
		p.expect(true, then, "get ck tower -n "+ns, `NAME +ZONE +HANDS +WOUND\n`, `tower +UTC +2 +60m`)
		p.expect(true, then, "get clocks -o wide -n "+ns, `NAME +ZONE +HANDS +WOUND +MAKER\n`)
		p.expect(true, then, "get pods,cm --show-labels -n "+ns, `pod/pod .*app=e2e`, `configmap/map-0 .*app=e2e`)
		p.expect(true, then, "get cm -A", `Warning: only the configmaps that watches select are recorded \(watch spaces: namespaces `+ns, ns+` +map-0`)
		p.expect(true, then, "get ns", ns, other)
		p.expect(false, "http://"+p.admin+"/at/-1d", "get cm -n "+ns, `its history begins at`)
		p.expect(true, "http://"+p.admin+"/at/-1ms", "get cm -n "+ns, `map-4 `)
	})
	t.Run("objects", func(t *testing.T) {
		p := &pastClient{t, p.admin, kubectl, p.home}
		p.expect(true, then, "get cm map-2 -o yaml -n "+ns, `kind: ConfigMap`, `e2e/revision: "0"`, `uid: `+string(maps[2].GetUID()))
		p.expect(true, later, "get cm map-2 -o yaml -n "+ns, `e2e/revision: "1"`)
		p.expect(true, then, "get secret safe -o yaml -n "+ns, `Warning: only the metadata is recorded of the secrets that these watches read: bare\n`, `kind: Secret`)
		p.expect(true, then, "describe cm map-1 -n "+ns, `map-1`, `Ticked .* it did`)
		p.expect(true, then, "describe pod pod -n "+ns, `example.com/app:1`, `Events: +<none>`)
		out := p.expect(true, then, "get cm -o name --chunk-size 2 -n "+ns)
		if got := strings.Fields(out); len(got) != 5 || !slices.IsSorted(got) {
			t.Errorf("pages have %q", got)
		}
		if out := p.expect(true, then, "get cm -o name --field-selector metadata.name!=map-1 -l app=e2e,app!=x -n "+ns); len(strings.Fields(out)) != 4 {
			t.Errorf("selected %q", out)
		}
		if out := p.expect(true, then, "get cm -o name -l app=other -n "+ns); out != "" {
			t.Errorf("selected %q", out)
		}
		p.expect(true, then, "api-resources", `clocks +ck +past.example.com/v1 +true +Clock`, `namespaces +ns +v1 +false +Namespace`)
		p.expect(true, then, "get --raw /version", `watcherd`)
	})
	t.Run("refusals", func(t *testing.T) {
		p := &pastClient{t, p.admin, kubectl, p.home}
		p.expect(false, later, "get cm map-0 -n "+ns, `configmaps "map-0" not found`)
		p.expect(false, then, "get cm -n "+other, `NotFound`, `no watch with a history reads configmaps in namespace `+other)
		p.expect(false, then, "get deployments", `doesn't have a resource type "deployments"`)
		p.expect(false, then, "get --raw /apis/apps/v1/deployments", `no watch with a history reads deployments.apps`)
		p.expect(false, then, "get services", `doesn't have a resource type "services"`)
		p.expect(false, then, "get cm --field-selector data.x=y -n "+ns, `field label not supported: data.x`)
		p.expect(false, then, "get cm -l hidden=x -n "+ns, `watch spaces does not record metadata.labels.hidden of the configmaps`)
		p.expect(false, then, "delete cm map-3 -n "+ns, `the past cannot be changed`)
		p.expect(false, then, "get cm --watch-only -n "+ns, `nothing to watch`)
		p.expect(false, p.at(started.Add(-time.Hour)), "get cm -n "+ns, `Expired|Gone`, `its history begins at`)
		p.expect(false, p.at(started.Add(-time.Hour)), "get cm map-4 -n "+ns, `the state of configmaps "map-4" in namespace `+ns+` at .* is unknown`)
		p.expect(false, p.at(time.Now().Add(time.Hour)), "get cm -n "+ns, `in the future`)
		p.expect(false, "http://"+p.admin+"/at/noon", "get cm -n "+ns, `"noon" is neither`)
	})
	t.Run("client-go", func(t *testing.T) {
		dyn, err := dynamic.NewForConfig(&rest.Config{Host: then, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dyn, 0, ns, nil)
		lister := factory.ForResource(kinds[0].gvr).Lister()
		stop := make(chan struct{})
		factory.Start(stop)
		factory.WaitForCacheSync(stop)
		objects, err := lister.ByNamespace(ns).List(labels.Everything())
		if err != nil || len(objects) != 5 {
			t.Errorf("the lister has %d objects, error %v", len(objects), err)
		}
		close(stop)
		factory.Shutdown()
	})
	d.stop()
}
