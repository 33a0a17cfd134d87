package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watcherd/watcherd/internal/testcluster"
)

var namespaceGVR = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// selectConfig has one watch of ConfigMaps, and one of everything to tell when all
// is through.
func selectConfig(watch string) string {
	return fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data}
admin: {listen: ""}
watches:
- {name: some, resources: [configmaps], %s}
- {name: all, resources: [configmaps]}
routes:
- {name: some, watches: [some], sinks: [some]}
- {name: all, watches: [all], sinks: [archive]}
sinks:
- {name: some, file: {path: "./some.jsonl"}}
- {name: archive, file: {path: "./events/{resource}.jsonl"}}
`, watch)
}

// cast puts objects through changes and keeps them by name.
type cast struct {
	*client
	d    *daemon
	objs map[string]*unstructured.Unstructured
	read int // events of the watch that were looked at

	killed bool // events may come again
}

func newCast(t testing.TB, c *testcluster.Cluster, config, namespace string) *cast {
	return &cast{client: newClient(t, c, namespace), d: newDaemon(t, c.Kubeconfig, config), objs: map[string]*unstructured.Unstructured{}}
}

// put creates an object, or gives it other labels and a later revision.
func (c *cast) put(namespace, name, label, value string) {
	c.t.Helper()
	r := c.dyn.Resource(kinds[0].gvr).Namespace(namespace)
	key := namespace + "/" + name
	u, known := c.objs[key]
	if !known {
		u = kinds[0].object(namespace, name)
	}
	u.SetLabels(map[string]string{label: value})
	u.SetAnnotations(map[string]string{revision: u.GetResourceVersion()})
	var err error
	if known {
		u, err = r.Update(c.t.Context(), u, metav1.UpdateOptions{})
	} else {
		u, err = r.Create(c.t.Context(), u, metav1.CreateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.objs[key] = u
}

func (c *cast) drop(namespace, name string) {
	c.t.Helper()
	delete(c.objs, namespace+"/"+name)
	if err := c.dyn.Resource(kinds[0].gvr).Namespace(namespace).Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// makeNamespace creates a namespace, or labels it anew.
func (c *cast) makeNamespace(name, env string) {
	c.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name, "labels": map[string]any{"env": env}}}}
	_, err := c.dyn.Resource(namespaceGVR).Apply(c.t.Context(), name, u, metav1.ApplyOptions{FieldManager: "e2e", Force: true})
	if err != nil {
		c.t.Fatal(err)
	}
}

// endNamespace deletes a namespace at once, which leaves its objects behind: there
// is no controller that would see to them.
func (c *cast) endNamespace(name string) {
	c.t.Helper()
	r := c.dyn.Resource(namespaceGVR)
	if err := r.Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
	u, err := r.Get(c.t.Context(), name, metav1.GetOptions{})
	if err == nil {
		u.Object["spec"] = map[string]any{"finalizers": []any{}}
		_, err = r.Update(c.t.Context(), u, metav1.UpdateOptions{}, "finalize")
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// expect waits until the watch has delivered these events, in this order, after
// those that were expected before. What other tests have left in their namespaces,
// whose deletion nobody waits for, does not count.
func (c *cast) expect(want ...string) {
	c.t.Helper()
	var got []string
	eventually(c.t, func() bool {
		read := readFull
		if c.killed {
			read = readOnce
		}
		events := slices.DeleteFunc(read(c.t, c.d, "some.jsonl"), func(e full) bool { return !strings.HasPrefix(e.Data.Namespace, c.namespace) })
		got = summary(events)
		got = got[min(c.read, len(got)):]
		return len(got) >= len(want)
	}, func() string { return fmt.Sprintf("the events are %q, want %q", got, want) })
	if !slices.Equal(got, want) {
		c.t.Fatalf("the events are %q, want %q", got, want)
	}
	c.read += len(want)
}

// nothing expects that all that was done since the last expectation is no event.
func (c *cast) nothing() {
	c.t.Helper()
	c.settle(c.d.path("events"), kinds[0])
	c.expect()
}

func TestClientSideSelector(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	x := newCast(t, c, selectConfig("labelSelector: tier=web"), ns)
	x.put(ns, "before", "tier", "web")
	x.put(ns, "never", "tier", "db")
	x.d.start()
	x.expect("sync before")
	x.put(ns, "a", "tier", "web")
	x.put(ns, "a", "tier", "web")
	x.expect("added a", "updated a")
	x.put(ns, "a", "tier", "db")
	x.expect("updated a left")
	x.put(ns, "a", "tier", "db")
	x.put(ns, "never", "tier", "db")
	x.nothing()
	x.put(ns, "a", "tier", "web")
	x.expect("updated a entered")
	x.put(ns, "before", "tier", "db")
	x.expect("updated before left")
	x.drop(ns, "before")
	x.drop(ns, "never")
	x.nothing()
	x.drop(ns, "a")
	x.expect("deleted a")
	x.d.stop()
}

// TestWidenedSelection changes nothing but what a watch selects, and has the file
// loaded again. What the watch covers only now is given to it as at its first start;
// what it no longer covers is not heard of any more, as a deletion least of all.
func TestWidenedSelection(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	other := ns + "-other"
	x := newCast(t, c, selectConfig("labelSelector: tier=web"), ns)
	x.makeNamespace(other, "")
	x.put(ns, "web", "tier", "web")
	x.put(ns, "db", "tier", "db")
	x.put(other, "far", "tier", "db")
	reload := func(watch string) { t.Helper(); x.d.reload(selectConfig(watch)) }
	x.d.start("--reload-interval", "100ms")
	x.expect("sync web")

	reload("labelSelector: 'tier in (web, db)', namespaces: {include: ['" + ns + "*'], exclude: ['" + other + "']}")
	x.expect("sync db")
	reload("labelSelector: 'tier in (web, db)', namespaces: {include: ['" + ns + "*']}")
	x.expect("sync far")
	x.put(other, "far", "tier", "db")
	x.expect("updated far")

	reload("labelSelector: tier=web")
	x.put(ns, "db", "tier", "db")
	x.drop(other, "far")
	x.nothing()
	reload("labelSelector: 'tier in (web, db)', snapshot: never")
	x.nothing()
	x.put(ns, "db", "tier", "db")
	x.put(ns, "web", "tier", "web")
	x.expect("updated db", "updated web")
	x.d.stop()
}

func TestServerSideSelector(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	x := newCast(t, c, selectConfig("labelSelector: tier=web, selectorSide: server"), ns)
	x.put(ns, "before", "tier", "web")
	x.d.start()
	x.expect("sync before")
	x.put(ns, "a", "tier", "web")
	x.put(ns, "a", "tier", "web")
	x.expect("added a unknown", "updated a")
	x.put(ns, "a", "tier", "db")
	x.expect("deleted a unknown")
	x.put(ns, "a", "tier", "web")
	x.expect("added a unknown")
	x.d.stop()
}

func TestNamespacePatterns(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	x := newCast(t, c, selectConfig(fmt.Sprintf("namespaces: {include: ['%[1]s-*'], exclude: ['*-skip']}", ns)), ns)
	x.makeNamespace(ns+"-old", "")
	x.put(ns+"-old", "a", "n", "1")
	x.put(ns, "outside", "n", "1")
	x.d.start()
	x.expect("sync a")
	x.makeNamespace(ns+"-new", "")
	x.makeNamespace(ns+"-skip", "")
	x.put(ns+"-skip", "b", "n", "1")
	x.put(ns+"-new", "c", "n", "1")
	x.expect("added c")
	x.put(ns, "outside", "n", "2")
	x.drop(ns+"-skip", "b")
	x.nothing()
	x.d.stop()
}

// TestScale scales a Deployment, which leaves an entry of its managed fields without a time.
func TestScale(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	d := newDaemon(t, c.Kubeconfig, strings.ReplaceAll(selectConfig("namespaces: {include: ["+ns+"]}"), "configmaps", "deployments"))
	x := newClient(t, c, ns)
	deployments := x.dyn.Resource(kinds[2].gvr).Namespace(ns)
	if _, err := deployments.Create(t.Context(), kinds[2].object(ns, "web"), metav1.CreateOptions{FieldManager: "author"}); err != nil {
		t.Fatal(err)
	}
	d.start()
	managers := func() (all []string) {
		for _, e := range readFull(t, d, "some.jsonl") {
			all = append(all, strings.TrimSpace(e.Type+" "+e.Data.ChangedBy.Manager+" "+e.Data.ChangedBy.Subresource))
		}
		return all
	}
	for i, want := range []string{"sync", "updated scaler scale", "updated author"} {
		begin := time.Now().Unix()
		eventually(t, func() bool { return time.Now().Unix() > begin }, func() string { return "changes of one second are told apart by no time" })
		var err error
		switch i {
		case 1:
			_, err = deployments.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`), metav1.PatchOptions{FieldManager: "scaler"}, "scale")
		case 2:
			_, err = deployments.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"paused":true}}`), metav1.PatchOptions{FieldManager: "author"})
		}
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return len(managers()) > i }, func() string { return fmt.Sprintf("the events are %q", managers()) })
		if got := managers()[i]; !strings.HasSuffix(got, want) {
			t.Errorf("event %d is %q, want %q", i, got, want)
		}
	}
	d.stop()
}

// TestNamespaceSelector follows the labels of namespaces, live and over restarts.
func TestNamespaceSelector(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	x := newCast(t, c, selectConfig("namespaces: {selector: env=prod-"+ns+"}"), ns)
	prod := "prod-" + ns
	one, two := ns+"-one", ns+"-two"
	x.makeNamespace(one, prod)
	x.put(one, "a", "n", "1")
	x.d.start()
	x.expect("sync a")

	// A namespace that comes to be selected brings its objects; one that no longer
	// is takes them away.
	x.makeNamespace(two, "dev")
	x.put(two, "b", "n", "1")
	x.nothing()
	x.makeNamespace(two, prod)
	x.expect("updated b entered")
	x.put(two, "b", "n", "2")
	x.expect("updated b")
	x.makeNamespace(one, "dev")
	x.expect("updated a left")
	x.put(one, "a", "n", "2")
	x.nothing()

	// The same while the daemon is away.
	x.d.stop()
	x.makeNamespace(one, prod)
	x.d.start()
	x.expect("updated a entered")

	// A namespace that is new, at once with an object in it.
	three := ns + "-three"
	x.makeNamespace(three, prod)
	x.put(three, "c", "n", "1")
	x.expect("added c")

	// Deletions that come after the namespace's own, live and after a restart.
	x.endNamespace(three)
	x.drop(three, "c")
	x.expect("deleted c")
	x.d.stop()
	x.endNamespace(two)
	x.drop(two, "b")
	x.d.start()
	x.expect("deleted b")
	x.d.stop()
	if log := x.d.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("errors in the log:\n%s", log)
	}
}
