package pipeline

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// clusterOf serves pods, the Events about them, and what owns them.
func clusterOf(t *testing.T) (*apitest.Server, served) {
	t.Helper()
	api := apitest.New(t)
	api.Serve(podPath, "v1", "Pod")
	api.Serve("/api/v1/events", "v1", "Event")
	api.Serve("/apis/apps/v1/replicasets", "apps/v1", "ReplicaSet")
	api.Serve("/apis/apps/v1/deployments", "apps/v1", "Deployment")
	named := func(group, resource, kind string) dynamicfactory.Resource {
		return dynamicfactory.Resource{GVR: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, Kind: kind, Namespaced: true}
	}
	return api, served{pods, named("", "events", "Event"), named("apps", "replicasets", "ReplicaSet"), named("apps", "deployments", "Deployment")}
}

// enrichedTo is a state whose route adds all to what the watches see, and leads to the
// sink x.
func enrichedTo(l *live, watches ...plan.Watch) *plan.State {
	l.Helper()
	st := l.state(watches...)
	st.Routes = []route.Spec{{Name: "r", Enrich: []string{"owner", "involvedObject"}, Sinks: []string{"x"}}}
	var err error
	if st.Router, err = route.Compile(st.Routes); err != nil {
		l.Fatal(err)
	}
	return st
}

func owned(name, kind, by, note string) map[string]any {
	meta := map[string]any{"namespace": "ns", "name": name, "uid": "uid-" + name, "annotations": map[string]any{"note": note}}
	if by != "" {
		meta["ownerReferences"] = []any{map[string]any{"apiVersion": "apps/v1", "kind": kind, "name": by, "uid": "uid-" + by, "controller": true}}
	}
	return map[string]any{"metadata": meta}
}

// TestEnrichment shares the informers of watches and caches metadata of what they do not
// have; what a resource's watch hides, it hides in the events of others too, also later.
func TestEnrichment(t *testing.T) {
	const canary = "canary-4711"
	api, resolver := clusterOf(t)
	api.Put("/apis/apps/v1/deployments", "ns", "web", owned("web", "", "", canary))
	api.Put("/apis/apps/v1/replicasets", "ns", "web-1", owned("web-1", "Deployment", "web", canary))
	l := runLive(t, t.TempDir(), store.Options{}, api, resolver)
	q, err := l.store.EnsureSink("x", store.FromNow)
	if err != nil {
		t.Fatal(err)
	}
	watches := func(edits ...func(*plan.Watch)) []plan.Watch {
		return []plan.Watch{committest.PodWatch(edits...), committest.PodWatch(named("events"), func(w *plan.Watch) { w.Resources = []string{"events"} })}
	}
	last := func() *event.Event {
		t.Helper()
		items, err := q.Read(0, 1000, 1<<20)
		if err != nil || len(items) == 0 {
			t.Fatal(len(items), err)
		}
		it := items[len(items)-1]
		e, err := l.m.inflater.Event(it.Sequence, record.Flags(it.Flags), it.Payload, "x")
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	about := func(n int) *event.Event {
		t.Helper()
		pod := fmt.Sprint("pod-", n)
		before := q.Stats().Length
		api.Put(podPath, "ns", pod, owned(pod, "ReplicaSet", "web-1", canary))
		eventually(t, "the pod's event", func() bool { return q.Stats().Length == before+1 })
		if e := last(); e.Owner == nil || e.Owner.Name != "web" || len(e.Owner.Chain) != 2 || e.Incomplete {
			t.Errorf("owner %+v, incomplete %t", e.Owner, e.Incomplete)
		}
		api.Put("/api/v1/events", "ns", pod, map[string]any{"involvedObject": map[string]any{"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": pod, "uid": "uid-" + pod}})
		eventually(t, "the Event's event", func() bool { return q.Stats().Length == before+2 })
		return last()
	}
	shown := func(e *event.Event) string { return string(event.AppendCloudEvent(nil, e)) }

	l.apply(enrichedTo(l, watches()...))
	first := about(1)
	if o := first.InvolvedObject; o == nil || o.Annotations["note"] != canary || o.Owner == nil || o.Owner.Name != "web" || first.Incomplete {
		t.Fatalf("involved object %s", shown(first))
	}
	for resource, metadataOnly := range map[string]bool{"pods": false, "replicasets": true, "deployments": true} {
		requests := api.Requests(resource, true)
		if len(requests) != 1 || strings.Contains(requests[0].Header.Get("Accept"), "as=PartialObjectMetadata") != metadataOnly {
			t.Errorf("watches of %s: %v", resource, requests)
		}
	}

	// The watch of pods comes to hide what was recorded of them in other events.
	hide := func(w *plan.Watch) {
		w.Edits = redact.Edits{Drop: []string{"metadata.managedFields"}, Redact: []string{"metadata.annotations.note"}}
		w.Fingerprint += "hidden"
	}
	l.apply(enrichedTo(l, watches(hide)...))
	if e := last(); e.InvolvedObject == nil || strings.Contains(shown(e), canary) || e.InvolvedObject.Annotations["note"] == "" {
		t.Errorf("event %s", shown(e))
	}
	if e := about(2); e.InvolvedObject == nil || strings.Contains(shown(e), canary) {
		t.Errorf("event %s", shown(e))
	}
	eventually(t, "the scrub", func() bool { s := l.m.scrubStatus(); return s != nil && !s.Done.IsZero() })
	items, err := l.store.ReadLog(0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		if r, err := record.Decode(it.Payload); err != nil || r.About() != nil && strings.Contains(string(r.About().Patch), canary) {
			t.Errorf("record %d has it: %v", it.Sequence, err)
		}
	}

	// Without the route nothing is cached.
	l.apply(toX(l, watches(hide)...))
	if err := l.m.call(t.Context(), func(context.Context) error {
		if len(l.m.caches) != 0 {
			t.Errorf("%d caches stay", len(l.m.caches))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestEnrichmentIsIncomplete does not wait for a cache that cannot list.
func TestEnrichmentIsIncomplete(t *testing.T) {
	api, resolver := clusterOf(t)
	l := runLive(t, t.TempDir(), store.Options{}, api, resolver[:1]) // owners are not served
	q, err := l.store.EnsureSink("x", store.FromNow)
	if err != nil {
		t.Fatal(err)
	}
	l.apply(enrichedTo(l, committest.PodWatch()))
	api.Put(podPath, "ns", "pod", owned("pod", "ReplicaSet", "web-1", ""))
	eventually(t, "the pod's event", func() bool { return q.Stats().Length == 1 })
	items, err := q.Read(0, 10, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	e, err := l.m.inflater.Event(items[0].Sequence, record.Flags(items[0].Flags), items[0].Payload, "x")
	if err != nil || e.Owner == nil || e.Owner.Name != "web-1" || !e.Incomplete {
		t.Errorf("event %+v, %v", e, err)
	}
}
