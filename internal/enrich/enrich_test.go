package enrich

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// world is caches of some kinds by the name of the kind.
type world struct {
	testing.TB
	dicts  *compact.Dictionaries
	stores map[string]cache.Store
	Enricher
}

func newWorld(t testing.TB, resources ...event.Resource) *world {
	w := &world{TB: t, dicts: compact.NewDictionaries(nil), stores: map[string]cache.Store{}}
	var caches []Cache
	for i, r := range resources {
		store := cache.NewStore(cache.MetaNamespaceKeyFunc)
		w.stores[r.Kind] = store
		caches = append(caches, Cache{Resource: r, Edits: uint64(i + 1), Store: func() cache.Store { return store }})
	}
	caches = append(caches, Cache{Resource: resources[0], Store: func() cache.Store { return nil }}) // not subscribed yet
	w.Use(caches)
	return w
}

func (w *world) object(raw string) *compact.Object {
	w.Helper()
	o, err := compact.NewCodec(w.dicts).Encode([]byte(raw), nil, 0)
	if err != nil {
		w.Fatal(err)
	}
	return o
}

func (w *world) add(kind, raw string) {
	w.Helper()
	if err := w.stores[kind].Add(w.object(raw)); err != nil {
		w.Fatal(err)
	}
}

// enriched is what an event of the object has after it was recorded.
func (w *world) enriched(about event.Resource, o *compact.Object, want record.Flags) *event.Event {
	w.Helper()
	r := &record.Record{Event: event.Event{ID: "00", Type: event.Added, Resource: about, Namespace: o.GetNamespace(), Name: o.GetName()}}
	if err := w.Enrich(r, o, want); err != nil {
		w.Fatal(err)
	}
	payload, err := record.Append(nil, r)
	if err != nil {
		w.Fatal(err)
	}
	e, err := (&record.Inflater{Dictionaries: w.dicts}).Event(1, want, payload, "sink")
	if err != nil {
		w.Fatal(err)
	}
	return e
}

var (
	pods        = event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
	events      = event.Resource{Version: "v1", Resource: "events", Kind: "Event"}
	replicaSets = event.Resource{Group: "apps", Version: "v1", Resource: "replicasets", Kind: "ReplicaSet"}
	deployments = event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}
)

func metadata(name, uid, more string) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"ns","name":%q,"uid":%q,"resourceVersion":"1"%s}}`, name, uid, more)
}

func ownedBy(apiVersion, kind, name, uid string) string {
	return fmt.Sprintf(`,"ownerReferences":[{"apiVersion":"v1","kind":"Other","name":"o","uid":"o"},{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"controller":true}]`, apiVersion, kind, name, uid)
}

func TestOwner(t *testing.T) {
	w := newWorld(t, replicaSets, deployments)
	w.add("ReplicaSet", metadata("web-1", "u2", ownedBy("apps/v1", "Deployment", "web", "u3")))
	w.add("Deployment", metadata("web", "u3", ""))
	rs, deployment := event.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "u2"}, event.Ref{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "u3"}
	node := event.Ref{APIVersion: "v1", Kind: "Node", Name: "n", UID: "n"}
	for _, tc := range []struct {
		name, refs string
		chain      []event.Ref
		incomplete bool
	}{
		{"of nothing", "", nil, false},
		{"of another than a controller", `,"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-1","uid":"u2"}]`, nil, false},
		{"of a ReplicaSet", ownedBy("apps/v1", "ReplicaSet", "web-1", "u2"), []event.Ref{rs, deployment}, false},
		{"of an earlier ReplicaSet of that name", ownedBy("apps/v1", "ReplicaSet", "web-1", "u1"), []event.Ref{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "u1"}}, true},
		{"of a kind that is not cached", ownedBy("example.com/v1", "ReplicaSet", "web-1", "u2"), []event.Ref{{APIVersion: "example.com/v1", Kind: "ReplicaSet", Name: "web-1", UID: "u2"}}, true},
		{"of a node", ownedBy("v1", "Node", "n", "n"), []event.Ref{node}, false},
	} {
		e := w.enriched(pods, w.object(metadata("web-1-a", "u1", tc.refs)), record.Owner)
		if diff := cmp.Diff(event.OwnerOf(tc.chain), e.Owner); diff != "" || e.Incomplete != tc.incomplete {
			t.Errorf("%s: incomplete %t (-want +got)\n%s", tc.name, e.Incomplete, diff)
		}
		if e := w.enriched(pods, w.object(metadata("web-1-a", "u1", tc.refs)), record.Object); e.Owner != nil || e.Incomplete {
			t.Errorf("%s: an owner that was not asked for: %+v", tc.name, e.Owner)
		}
	}
	if w.Incomplete() != 2 {
		t.Errorf("%d events are incomplete", w.Incomplete())
	}
	w.Use(nil)
	if e := w.enriched(pods, w.object(metadata("a", "u1", ownedBy("apps/v1", "ReplicaSet", "web-1", "u2"))), record.Owner); !e.Incomplete || e.Owner.Name != "web-1" {
		t.Errorf("without caches: %+v", e)
	}
}

func TestInvolvedObject(t *testing.T) {
	w := newWorld(t, pods, replicaSets, event.Resource{Version: "v1", Resource: "nodes", Kind: "Node"})
	w.add("Pod", metadata("a", "u1", `,"labels":{"app":"web"},"annotations":{"note":"<x>"}`+ownedBy("apps/v1", "ReplicaSet", "web-1", "u2")))
	w.add("Pod", metadata("loud", "u9", `,"annotations":{"note":"`+strings.Repeat("x", maxMap)+`"}`))
	w.add("Pod", `{"metadata":{"namespace":"other","name":"secret","uid":"u8","resourceVersion":"1","labels":{"of":"another"}}}`)
	w.add("Pod", metadata("tagged", "u10", `,"labels":{"note":"`+strings.Repeat("x", maxMap)+`"}`+ownedBy("apps/v1", "ReplicaSet", strings.Repeat("x", maxRef), "u2")))
	w.add("Pod", metadata("copied", "u11", `,"annotations":{"a":"b","kubectl.kubernetes.io/last-applied-configuration":"{\"spec\":\"canary\"}"}`))
	w.add("ReplicaSet", metadata("web-1", "u2", ""))
	w.add("Node", `{"metadata":{"name":"n","uid":"u7","resourceVersion":"1","labels":{"zone":"a"}}}`)
	pod := &event.InvolvedObject{
		APIVersion: "v1", Kind: "Pod", Namespace: "ns", Name: "a", UID: "u1", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "<x>"},
		Owner: event.OwnerOf([]event.Ref{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "u2"}}),
	}
	for _, tc := range []struct {
		name, group, body string
		want              *event.InvolvedObject
		incomplete        bool
	}{
		{"a pod", "", `"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"ns","name":"a","uid":"u1"}`, pod, false},
		{"a pod without a uid", "", `"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"ns","name":"a"}`, pod, false},
		{"a pod, the newer way", "events.k8s.io", `"regarding":{"apiVersion":"v1","kind":"Pod","namespace":"ns","name":"a","uid":"u1"}`, pod, false},
		{"another pod of that name", "", `"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"ns","name":"a","uid":"u0"}`, nil, true},
		{"a kind that is not cached", "", `"involvedObject":{"apiVersion":"v1","kind":"Secret","namespace":"ns","name":"a"}`, nil, true},
		{"a pod of another namespace, by its key", "", `"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"ns","name":"other/secret"}`, nil, true},
		{"a pod of another namespace", "", `"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"other","name":"secret"}`, nil, true},
		{"a pod of another namespace, by its uid", "events.k8s.io", `"regarding":{"apiVersion":"v1","kind":"Pod","namespace":"other","name":"secret","uid":"u8"}`, nil, true},
		{"a pod of another namespace, by its uid alone", "", `"involvedObject":{"apiVersion":"v1","kind":"Pod","name":"secret","uid":"u8"}`, nil, true},
		{"a node in another namespace", "", `"involvedObject":{"apiVersion":"v1","kind":"Node","namespace":"other","name":"n","uid":"u7"}`, nil, true},
		{"a node in a namespace, by its name", "", `"involvedObject":{"apiVersion":"v1","kind":"Node","namespace":"ns","name":"n","uid":"n"}`, nil, true},
		{"a node in a namespace", "", `"involvedObject":{"apiVersion":"v1","kind":"Node","namespace":"ns","name":"n","uid":"u7"}`, &event.InvolvedObject{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u7", Labels: map[string]string{"zone": "a"}}, false},
		{"nothing", "", `"reason":"x"`, nil, true},
		{"a node, by its name", "", `"involvedObject":{"apiVersion":"v1","kind":"Node","name":"n","uid":"n"}`, &event.InvolvedObject{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u7", Labels: map[string]string{"zone": "a"}}, false},
		{"too many annotations", "", `"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"ns","name":"loud"}`, &event.InvolvedObject{APIVersion: "v1", Kind: "Pod", Namespace: "ns", Name: "loud", UID: "u9"}, true},
		{"too many labels, too long a name", "", `"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"ns","name":"tagged"}`, &event.InvolvedObject{APIVersion: "v1", Kind: "Pod", Namespace: "ns", Name: "tagged", UID: "u10"}, true},
		{"a copy of its spec", "", `"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"ns","name":"copied"}`, &event.InvolvedObject{APIVersion: "v1", Kind: "Pod", Namespace: "ns", Name: "copied", UID: "u11", Annotations: map[string]string{"a": "b"}}, false},
	} {
		about := events
		about.Group = tc.group
		e := w.enriched(about, w.object(`{"metadata":{"namespace":"ns","name":"e","uid":"e","resourceVersion":"1"},`+tc.body+`}`), record.InvolvedObject|record.Owner)
		if diff := cmp.Diff(tc.want, e.InvolvedObject); diff != "" || e.Incomplete != tc.incomplete || e.Owner != nil {
			t.Errorf("%s: incomplete %t, owner %v (-want +got)\n%s", tc.name, e.Incomplete, e.Owner, diff)
		}
	}
	if e := w.enriched(pods, w.object(metadata("a", "u1", "")), record.InvolvedObject); e.InvolvedObject != nil || e.Incomplete {
		t.Errorf("a pod is about %+v", e.InvolvedObject)
	}
}

// Chains are those of a model, in forests with cycles of which a part is cached.
func TestChainModel(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for range 300 {
		w := newWorld(t, pods)
		n := 1 + random.IntN(15)
		parents, cached := make([]int, n), make([]bool, n) // of each object; n: it has none
		raw := make([]string, n)
		ref := func(i int) event.Ref {
			return event.Ref{APIVersion: "v1", Kind: "Pod", Name: fmt.Sprint("p", i), UID: fmt.Sprint("u", i)}
		}
		for i := range n {
			parents[i], cached[i] = random.IntN(n+1), random.IntN(5) > 0
			refs := ""
			if p := parents[i]; p < n {
				refs = ownedBy("v1", "Pod", ref(p).Name, ref(p).UID)
			}
			raw[i] = metadata(ref(i).Name, ref(i).UID, refs)
			if cached[i] {
				w.add("Pod", raw[i])
			}
		}
		for i := range n {
			var want []event.Ref
			complete := true
			for at := parents[i]; at < n; at = parents[at] {
				if len(want) == maxChain {
					complete = false
					break
				}
				want = append(want, ref(at))
				if !cached[at] {
					complete = false
					break
				}
			}
			e := w.enriched(pods, w.object(raw[i]), record.Owner)
			var got []event.Ref
			if e.Owner != nil {
				got = e.Owner.Chain
			}
			if !slices.Equal(got, want) || e.Incomplete == complete {
				t.Fatalf("parents %v, cached %v: the chain of %d is %v, incomplete %t; want %v", parents, cached, i, got, e.Incomplete, want)
			}
		}
	}
}

// What the edits of now hide is not shown, also of what was recorded.
func TestEditsOfRecordedEnrichment(t *testing.T) {
	w := newWorld(t, pods, replicaSets)
	w.add("Pod", metadata("a", "u1", `,"labels":{"app":"canary"},"annotations":{"note":"canary"}`+ownedBy("apps/v1", "ReplicaSet", "canary", "u2")))
	o := w.object(`{"metadata":{"namespace":"ns","name":"e","uid":"e","resourceVersion":"1"` + ownedBy("apps/v1", "ReplicaSet", "canary", "u2") + `},"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"ns","name":"a"}}`)
	r := &record.Record{Event: event.Event{ID: "00", Type: event.Added, Resource: events, Namespace: "ns", Name: "e"}}
	if err := w.Enrich(r, o, record.Owner|record.InvolvedObject); err != nil {
		t.Fatal(err)
	}
	payload, err := record.Append(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	in := &record.Inflater{Dictionaries: w.dicts, Edit: func(r *record.Record, sink string) record.Edit {
		asked = append(asked, r.Event.Resource.Resource+" for "+sink)
		return nothing{}
	}}
	e, err := in.Event(1, record.Owner|record.InvolvedObject, payload, "sink")
	if err != nil {
		t.Fatal(err)
	}
	if text := string(event.AppendCloudEvent(nil, e)); strings.Contains(text, "canary") || e.InvolvedObject.Name != "a" {
		t.Errorf("event %s", text)
	}
	if !slices.Contains(asked, "events for sink") || !slices.Contains(asked, "pods for sink") {
		t.Errorf("asked for the edits of %v", asked)
	}
}

// nothing is an edit that leaves nothing.
type nothing struct{}

func (nothing) Object(dst, _ []byte) ([]byte, error) { return append(dst, "{}"...), nil }
func (nothing) Part(dst, _ []byte) ([]byte, error)   { return append(dst, "{}"...), nil }
func (nothing) Patch(_, _, _ []byte) ([]byte, bool)  { return nil, false }

// FuzzEnrich: references of an object, as tenants write them, that lead to others and to itself, are recorded within bounds and can be read.
func FuzzEnrich(f *testing.F) {
	for _, seed := range []string{
		metadata("a", "u", ownedBy("v1", "Pod", "a", "u")),
		metadata("a", "u", ownedBy("v1", "Event", "ns/b", "")),
		strings.TrimSuffix(metadata("a", "u", `,"labels":{"a":"b"},"annotations":{"`+copied+`":"x"}`), "}") + `,"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"ns","name":"a","uid":"u"},"regarding":{"kind":"Pod"}}`,
	} {
		f.Add(seed, "Event")
	}
	f.Fuzz(func(t *testing.T, raw, kind string) {
		w := newWorld(t, pods, events)
		o, err := compact.NewCodec(w.dicts).Encode([]byte(raw), nil, 0)
		if err != nil {
			return
		}
		for _, store := range w.stores {
			if err := store.Add(o); err != nil {
				t.Fatal(err)
			}
		}
		e := w.enriched(event.Resource{Version: "v1", Kind: kind}, o, record.Owner|record.InvolvedObject)
		if e.Owner != nil && len(e.Owner.Chain) > maxChain || len(event.AppendCloudEvent(nil, e)) > 6*(maxChain*maxRef+2*maxMap)+2*len(raw)*6+1000 {
			t.Fatalf("%d bytes of %d", len(event.AppendCloudEvent(nil, e)), len(raw))
		}
	})
}

func BenchmarkOwner(b *testing.B) {
	w := newWorld(b, replicaSets, deployments)
	w.add("ReplicaSet", metadata("web-1", "u2", `,"labels":{"app":"web"},"annotations":{"deployment.kubernetes.io/revision":"1"}`+ownedBy("apps/v1", "Deployment", "web", "u3")))
	w.add("Deployment", metadata("web", "u3", `,"labels":{"app":"web"}`))
	spec, err := json.Marshal(strings.Repeat("a container and its settings ", 150))
	if err != nil {
		b.Fatal(err)
	}
	pod := w.object(strings.TrimSuffix(metadata("web-1-a", "u1", ownedBy("apps/v1", "ReplicaSet", "web-1", "u2")), "}") + `,"spec":` + string(spec) + `}`)
	b.ReportAllocs()
	for b.Loop() {
		r := &record.Record{Event: event.Event{Resource: pods, Namespace: "ns"}}
		if err := w.Enrich(r, pod, record.Owner); err != nil || r.Enrichment.Incomplete {
			b.Fatal(err)
		}
	}
}
