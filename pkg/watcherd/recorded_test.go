package watcherd_test

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
)

// More discovery: of a resource whose objects are in no namespace, and one that two groups have.
var (
	moreCore = strings.Replace(core, `}}]}]}]}`, `}},
 {"resource":"services","singularResource":"service","scope":"Namespaced","verbs":["get","list","watch"],"responseKind":{"group":"","version":"v1","kind":"Service"}},
 {"resource":"nodes","singularResource":"node","scope":"Cluster","verbs":["get","list","watch"],"responseKind":{"group":"","version":"v1","kind":"Node"}}]}]}]}`, 1)
	knative = strings.NewReplacer(`"metadata":{}`, `"metadata":{"name":"serving.knative.dev"}`, "pod", "service", "Pod", "Service", `"group":""`, `"group":"serving.knative.dev"`).Replace(core)
)

// TestRecordedResources: the history of a resource is read by its name, of objects with and without a namespace, also once no
// watch reads it, and while the API server is away.
func TestRecordedResources(t *testing.T) {
	const nodePath, knativePath = "/api/v1/nodes", "/apis/serving.knative.dev/v1/services"
	api := newCluster(t)
	api.Serve(nodePath, "v1", "Node")
	api.Serve("/api/v1/services", "v1", "Service")
	api.Serve(knativePath, "serving.knative.dev/v1", "Service")
	api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if api.answer.Load() != 0 {
			w.WriteHeader(int(api.answer.Load()))
			return true
		}
		body, ok := map[string]string{"/api": moreCore, "/apis": knative}[r.URL.Path]
		if ok {
			w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
			_, _ = io.WriteString(w, body)
		}
		return ok
	})
	api.Put(podPath, "ns", "web", nil)
	api.Put(nodePath, "", "worker", nil)
	api.Put(knativePath, "ns", "hello", nil)
	p := newProcess(t, api, newReceiver(t), "resources: [pods, nodes, services.serving.knative.dev], redact: [metadata.labels.hidden]")
	check := func(all map[string]string) {
		t.Helper()
		for path, want := range all {
			if _, body := p.get("/api/v1/" + path); !strings.Contains(body, want) {
				t.Errorf("%s lacks %s: %s", path, want, body)
			}
		}
	}
	running := func() {
		t.Helper()
		p.start()
		p.until("it runs", func() bool { code, _ := p.get("/api/v1/history"); return code == http.StatusOK })
	}
	ends := func() {
		t.Helper()
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
	}

	running()
	p.until("all are recorded", func() bool {
		_, body := p.get("/api/v1/history")
		return strings.Contains(body, `"name":"web"`) && strings.Contains(body, `"name":"worker"`) && strings.Contains(body, `"name":"hello"`)
	})
	_, versions := p.get("/api/v1/objects/nodes/-/worker/versions")
	found := regexp.MustCompile(`"sequence":(\d+)`).FindStringSubmatch(versions)
	if found == nil {
		t.Fatalf("no version of the node: %s", versions)
	}
	check(map[string]string{
		"objects/nodes/-/worker":                          `"uid":"uid-worker`,
		"objects/nodes/worker":                            `"uid":"uid-worker`,
		"objects/nodes/-/worker?at=0s":                    `"exists":true`,
		"objects/nodes/worker?at=0s":                      `"exists":true`,
		"objects/nodes/-/worker?version=" + found[1]:      `"exists":true`,
		"objects/nodes/-/worker/diff?version=" + found[1]: `+  name: worker`,
		"objects/pods/ns/web?at=0s":                       `"exists":true`,
		"objects/pods?at=0s&labelSelector=team!=x":        `"name":"web"`,
		"objects/pods?at=0s&labelSelector=hidden=x":       "does not record metadata.labels.hidden of the pods",
		"history?resource=nodes&namespace=ns":             `"name":"worker"`,
	})
	ends()

	config, err := os.ReadFile(p.config())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.config(), bytes.Replace(config, []byte("pods, nodes, services.serving.knative.dev"), []byte("nodes"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	running()
	p.until("the configuration is applied", func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK })
	check(map[string]string{
		"objects/pods":                                       "no watch reads it",
		"history?resource=po":                                `"name":"web"`,
		"history?resource=pods&from=1ms":                     `"complete":false`,
		"history/histogram?resource=pods":                    `"sync":1`,
		"objects/pods/ns/web/versions":                       `"type":"sync"`,
		"objects/pods/ns/web?at=0s":                          `"exists":true`,
		"objects/pods?at=0s":                                 `"name":"web"`,
		"events?resource=pods&since=1&follow=false":          `/web`,
		"events?resource=pods&since=1&follow=false&name=web": `/web`,
		"history?resource=pdos":                              "does not serve",
		"history?resource=services":                          "no watch reads it",
		"history?resource=services.serving.knative.dev":      `"name":"hello"`,
	})
	ends()

	api.away(http.StatusServiceUnavailable)
	running()
	check(map[string]string{
		"history?resource=nodes":                `"name":"worker"`,
		"objects/nodes/-/worker?at=0s":          `"exists":true`,
		"objects/nodes":                         "are not known yet",
		"history?resource=gadgets.example.com":  "are not known yet",
		"objects/Node/-/worker/diff?from=1h":    `"diff":`,
		"objects/Node/-/worker/blame":           `"path":"metadata.name"`,
		"changes?from=1h&resource=pods":         `"name":"web"`,
		"history?resource=nodes&name=elsewhere": `"items":[]`,
	})
	ends()
}
