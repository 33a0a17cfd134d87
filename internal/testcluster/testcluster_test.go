package testcluster_test

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/waittest"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	gadgets    = schema.GroupVersionResource{Group: "testcluster.example.com", Version: "v1", Resource: "gadgets"}
)

const gadgetDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.testcluster.example.com}
spec:
  group: testcluster.example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

func TestApplyWaitsForNewKinds(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	applied := c.Apply(t, gadgetDefinition+`
---
# nothing
---
apiVersion: testcluster.example.com/v1
kind: Gadget
metadata: {name: g1, namespace: `+ns+`}
spec: {size: 1}
`)
	if len(applied) != 2 {
		t.Fatalf("got %d objects, want 2", len(applied))
	}
	got, err := c.Dynamic(t).Resource(gadgets).Namespace(ns).Get(t.Context(), "g1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, _, err := unstructured.NestedInt64(got.Object, "spec", "size"); n != 1 || err != nil {
		t.Errorf("spec.size = %d, %v, want 1 in %v", n, err, got.Object)
	}
}

func TestRequestCounts(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	c.Apply(t, gadgetDefinition+"---\n"+gadget(ns, "counted"))
	client := c.Dynamic(t).Resource(gadgets).Namespace(ns)
	before := c.RequestCounts(t, gadgets)

	if _, err := client.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	open := before
	eventually(t, "a list and an open watch are counted", func() bool {
		open = c.RequestCounts(t, gadgets) // the client repeats what the server refuses of a resource that is new
		return open.List > before.List && open.Watch > before.Watch && open.OpenWatch == before.OpenWatch+1
	})
	w.Stop()
	eventually(t, "the watch is counted once when it has ended", func() bool {
		now := c.RequestCounts(t, gadgets)
		return now.Watch == open.Watch && now.OpenWatch == before.OpenWatch
	})
}

func TestUsersHaveNoRightsOfTheirOwn(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	eve := configMapsOf(t, c.UserConfig(t, "eve", "readers"), ns)
	if _, err := eve.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("got %v, want forbidden", err)
	}
	c.Apply(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: `+ns+`}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: `+ns+`}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: readers}]
`)
	eventually(t, "the binding takes effect", func() bool {
		_, err := eve.List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
}

func TestRestartContinues(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t)
	url := c.URL
	client := configMapsOf(t, c.Config(t), "default")
	first := apply(t, c, "kept")

	c.Restart(t)
	if c.URL != url {
		t.Errorf("the URL changed from %s to %s", url, c.URL)
	}
	got, err := client.Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("after a restart: %v", err)
	}
	if got.GetResourceVersion() != first.GetResourceVersion() {
		t.Errorf("resource version %s, want %s", got.GetResourceVersion(), first.GetResourceVersion())
	}

	c.Kill(t)
	c.Kill(t) // of a dead server: nothing to do
	c.Restart(t)
	if _, err := client.Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Fatalf("after a crash: %v", err)
	}
}

func TestRestoreEtcdRollsBack(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t)
	client := configMapsOf(t, c.Config(t), "default")
	saved := apply(t, c, "old")
	snapshot := c.SaveEtcd(t)
	apply(t, c, "new")

	c.RestoreEtcd(t, snapshot)
	if _, err := client.Get(t.Context(), "new", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v for what was made after the snapshot, want not found", err)
	}
	got, err := client.Get(t.Context(), "old", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetResourceVersion() != saved.GetResourceVersion() {
		t.Errorf("resource version %s, want %s", got.GetResourceVersion(), saved.GetResourceVersion())
	}
}

func TestCompactEndsHistory(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t, "--watch-cache=false")
	old := apply(t, c, "a").GetResourceVersion()
	apply(t, c, "b")
	apply(t, c, "c")
	client := configMapsOf(t, c.Config(t), "default")

	if e := firstEvent(t, client, old); e.Type != watch.Added {
		t.Fatalf("before compacting: got %v, want ADDED", e)
	}
	c.Compact(t, 0)
	if e := firstEvent(t, client, old); !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Fatalf("after compacting: got %v, want an expired version", e)
	}
}

// A killed test binary can't stop its server: the end of the pipe must.
func TestServerEndsWithItsParent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := exec.Command(testcluster.Binary(t), "serve", "--lifeline", "--dir", dir)
	var said strings.Builder
	server.Stderr = &said
	lifeline, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	// Amid its start a part of it could fail for the end.
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || !strings.HasPrefix(line, "ready ") {
		t.Fatalf("the server is not ready: %q, %v: %s", line, err, said.String())
	}
	if err := lifeline.Close(); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Errorf("%v: %s", err, said.String())
	}
}

func TestUnexpectedEndIsReported(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t)
	err := testcluster.EndBehindItsBack(c)
	if err == nil || !strings.Contains(err.Error(), "ended by itself") {
		t.Fatalf("got %v, want a report", err)
	}
}

func configMapsOf(t *testing.T, cfg *rest.Config, namespace string) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(configMaps).Namespace(namespace)
}

func apply(t *testing.T, c *testcluster.Cluster, name string) *unstructured.Unstructured {
	t.Helper()
	return c.Apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+name+"}\n")[0]
}

func gadget(namespace, name string) string {
	return "apiVersion: testcluster.example.com/v1\nkind: Gadget\nmetadata: {name: " + name + ", namespace: " + namespace + "}\n"
}

func firstEvent(t *testing.T, client dynamic.ResourceInterface, version string) watch.Event {
	t.Helper()
	w, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	select {
	case e := <-w.ResultChan():
		return e
	case <-time.After(30 * time.Second):
		t.Fatal("no event")
		return watch.Event{}
	}
}

var eventually = waittest.Until
