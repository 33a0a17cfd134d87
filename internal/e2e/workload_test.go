package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// kinds are the resources of the workload: three built-in ones and a custom one.
var kinds = []kind{
	{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "v1", "ConfigMap"},
	{schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "v1", "Pod"},
	{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, "apps/v1", "Deployment"},
	{schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}, "example.com/v1", "Widget"},
}

// eventKind are Kubernetes' own Events, which expire.
var eventKind = kind{schema.GroupVersionResource{Version: "v1", Resource: "events"}, "v1", "Event"}

type kind struct {
	gvr              schema.GroupVersionResource
	apiVersion, kind string
}

const widgetCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// revision is the annotation that counts an object's writes, so that a reader can
// tell states apart without the server's help.
const revision = "e2e/revision"

// object is a valid object of the kind.
func (k kind) object(namespace, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": k.apiVersion, "kind": k.kind,
		"metadata": map[string]any{
			"namespace": namespace, "name": name,
			"labels":      map[string]any{"app": "e2e"},
			"annotations": map[string]any{revision: "0"},
		},
	}}
	container := []any{map[string]any{"name": "main", "image": "example.com/app:1"}}
	switch k.kind {
	case "Pod":
		u.Object["spec"] = map[string]any{"containers": container}
	case "Event":
		u.Object["involvedObject"] = map[string]any{"kind": "Pod", "name": name, "namespace": namespace}
	case "Deployment":
		u.Object["spec"] = map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": "e2e"}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": "e2e"}},
				"spec":     map[string]any{"containers": container},
			},
		}
	}
	return u
}

// history is the ledger of accepted writes, by object uid.
type history struct {
	mu      sync.Mutex
	objects map[string]*past
	writes  int
}

// past is what happened to one object.
type past struct {
	gvr      schema.GroupVersionResource
	name     string
	versions []string // resourceVersions of the creation and the updates, in order
	deleted  bool
}

func newHistory() *history { return &history{objects: map[string]*past{}} }

// wrote notes an accepted create or update.
func (h *history) wrote(gvr schema.GroupVersionResource, u *unstructured.Unstructured) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writes++
	p, ok := h.objects[string(u.GetUID())]
	if !ok {
		p = &past{gvr: gvr, name: u.GetName()}
		h.objects[string(u.GetUID())] = p
	}
	p.versions = append(p.versions, u.GetResourceVersion())
}

// deleted notes an accepted delete.
func (h *history) removed(u *unstructured.Unstructured) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writes++
	h.objects[string(u.GetUID())].deleted = true
}

// client writes to a namespace and keeps the history.
type client struct {
	t         testing.TB
	dyn       dynamic.Interface
	namespace string
	history   *history
}

func newClient(t testing.TB, c *testcluster.Cluster, namespace string) *client {
	return &client{t: t, dyn: c.Dynamic(t), namespace: namespace, history: newHistory()}
}

func (c *client) create(ctx context.Context, k kind, name string) (*unstructured.Unstructured, error) {
	u, err := c.dyn.Resource(k.gvr).Namespace(c.namespace).Create(ctx, k.object(c.namespace, name), metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create %s %s: %w", k.kind, name, err)
	}
	c.history.wrote(k.gvr, u)
	return u, nil
}

// update counts the object's revision up.
func (c *client) update(ctx context.Context, k kind, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	u = u.DeepCopy()
	notes := u.GetAnnotations()
	n, err := strconv.Atoi(notes[revision])
	if err != nil {
		return nil, err
	}
	notes[revision] = strconv.Itoa(n + 1)
	u.SetAnnotations(notes)
	u, err = c.dyn.Resource(k.gvr).Namespace(c.namespace).Update(ctx, u, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update %s: %w", k.kind, err)
	}
	c.history.wrote(k.gvr, u)
	return u, nil
}

func (c *client) remove(ctx context.Context, k kind, u *unstructured.Unstructured) error {
	now := int64(0)
	err := c.dyn.Resource(k.gvr).Namespace(c.namespace).Delete(ctx, u.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", k.kind, u.GetName(), err)
	}
	c.history.removed(u)
	return nil
}

// churn makes n random writes over all kinds, from one goroutine. Several may run
// at once under different prefixes.
func (c *client) churn(ctx context.Context, prefix string, seed uint64, n int) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	type slot struct {
		k kind
		u *unstructured.Unstructured
	}
	var live []slot
	for i := range n {
		pick := 0
		if len(live) > 0 {
			pick = rng.IntN(len(live))
		}
		switch p := rng.Float64(); {
		case len(live) == 0 || p < 0.3 && len(live) < 40:
			k := kinds[rng.IntN(len(kinds))]
			u, err := c.create(ctx, k, fmt.Sprintf("%s-%d", prefix, i))
			if err != nil {
				return err
			}
			live = append(live, slot{k, u})
		case p < 0.85:
			u, err := c.update(ctx, live[pick].k, live[pick].u)
			if err != nil {
				return err
			}
			live[pick].u = u
		default:
			if err := c.remove(ctx, live[pick].k, live[pick].u); err != nil {
				return err
			}
			live[pick] = live[len(live)-1]
			live = live[:len(live)-1]
		}
	}
	return nil
}
