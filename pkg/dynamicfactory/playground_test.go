package dynamicfactory_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// journal is a handler that remembers what it was told and acknowledges at once.
type journal struct {
	mu       sync.Mutex
	sub      *dynamicfactory.Subscription
	lines    []string
	objects  map[string]*compact.Object
	position uint64
}

func newJournal() *journal { return &journal{objects: map[string]*compact.Object{}} }

func (j *journal) note(verb string, obj any) {
	unknown := ""
	if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj, unknown = t.Obj, "?"
	}
	o := obj.(*compact.Object)
	j.mu.Lock()
	defer j.mu.Unlock()
	if verb == "delete" {
		delete(j.objects, o.GetName())
	} else {
		j.objects[o.GetName()] = o
	}
	j.lines = append(j.lines, verb+unknown+" "+o.GetName())
	j.position = max(j.position, o.Position())
	if j.sub != nil {
		j.sub.Ack(j.position)
	}
}

func (j *journal) OnAdd(obj any, initial bool) {
	if initial {
		j.note("initial", obj)
		return
	}
	j.note("add", obj)
}
func (j *journal) OnUpdate(_, obj any) { j.note("update", obj) }
func (j *journal) OnDelete(obj any)    { j.note("delete", obj) }

func (j *journal) has(lines ...string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return fmt.Sprint(j.lines) == fmt.Sprint(lines)
}

func (j *journal) told() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.lines...)
}

func configMap(ns, name, value string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"namespace": ns, "name": name},
		"data":     map[string]any{"key": value},
	}}
}

func TestSmoke(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	client := c.Dynamic(t).Resource(configMaps).Namespace(ns)
	mustCreate := func(name string) {
		if _, err := client.Create(t.Context(), configMap(ns, name, "x"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	mustCreate("a")
	f, err := dynamicfactory.NewForConfig(c.Config(t), dynamicfactory.WithCompactStore())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Shutdown()
	j := newJournal()
	sub, err := f.Subscribe(context.Background(), dynamicfactory.Key{GVR: configMaps, Namespace: ns}, j)
	if err != nil {
		t.Fatal(err)
	}
	<-sub.Synced()
	mustCreate("b")
	if err := client.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "events", func() bool { return len(j.told()) == 3 })
	t.Log(j.told(), sub.Checkpoint(j.position), sub.Status())
	u, err := sub.Lister().ByNamespace(ns).Get("b")
	t.Log(u, err)
	sub.Close()
	t.Log(len(f.Statuses()))

	r, err := dynamicfactory.NewResolver(c.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	<-r.Changed()
	for _, p := range []string{"pods", "Pod", "po", "deployments.apps", "deployments.v1.apps", "pods.v1", "*.apps", "*", "nope", "tokenreviews", "a b"} {
		l, err := r.Resolve(p)
		t.Log(p, len(l), l[:min(3, len(l))], err)
	}
	cancel()
	t.Log(<-done)
}
