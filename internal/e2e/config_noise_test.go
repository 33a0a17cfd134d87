package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/event"
)

const noiseConfig = `
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data}
admin: {listen: "ADMIN"}
watches:
- name: all
  resources: [configmaps, leases.coordination.k8s.io, pods, events]
  namespaces: {include: [NS]}
  redact: ['metadata.annotations["example.com/token"]']
routes:
- {name: leases, resources: [leases.coordination.k8s.io], changed: meaningful, sinks: [leases]}
- {name: counted, resources: [configmaps], metric: {name: e2e_maps_total, labels: {team: 'metadata.labels.?team.orValue("")', type: event.type}}, payload: [PAYLOAD], sinks: [slow]}
- {name: sampled, resources: [configmaps], sample: 0.3, sinks: [sampled]}
- {name: enriched, resources: [pods, events], enrich: [owner, involvedObject], sinks: [enriched]}
sinks:
- {name: leases, file: {path: ./leases.jsonl}}
- {name: slow, file: {path: ./slow.jsonl}, rateLimit: {events: 5, per: 1s}}
- {name: sampled, file: {path: ./sampled.jsonl}}
- {name: enriched, file: {path: ./enriched.jsonl}}
`

// events are the events of a file, in order.
func (d *daemon) events(file string) (list []*event.Event) {
	d.t.Helper()
	content, err := os.ReadFile(d.path(file))
	if err != nil && !os.IsNotExist(err) {
		d.t.Fatal(err)
	}
	for line := range bytes.Lines(content) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		e, err := event.Parse(line)
		if err != nil {
			d.t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// TestNoise leaves out, counts, samples, bounds, pauses and enriches, over a reload and a
// restart.
func TestNoise(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	admin := testkit.Address(t)
	config := func(payload string) string {
		return strings.NewReplacer("NS", ns, "ADMIN", admin, "PAYLOAD", payload).Replace(noiseConfig)
	}
	dyn := c.Dynamic(t)
	ctx := t.Context()
	create := func(gvr schema.GroupVersionResource, apiVersion, kind, name, more string) *unstructured.Unstructured {
		t.Helper()
		u := &unstructured.Unstructured{}
		raw := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"namespace":%q,"name":%q%s}`, apiVersion, kind, ns, name, more)
		if err := json.Unmarshal([]byte(raw), &u.Object); err != nil {
			t.Fatal(err)
		}
		made, err := dyn.Resource(gvr).Namespace(ns).Create(ctx, u, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	command := func(args ...string) {
		t.Helper()
		bin, err := binary()
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(ctx, bin, append(args, "--admin", "http://"+admin)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	maps := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			create(kinds[0].gvr, "v1", "ConfigMap", fmt.Sprintf("m-%03d", i), `,"labels":{"team":"a"}}`)
		}
	}
	leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	create(leases, "coordination.k8s.io/v1", "Lease", "before", `},"spec":{"holderIdentity":"a"}`)
	hidden := newCanary()

	d := newDaemon(t, c.Kubeconfig, config("object"))
	d.start()
	eventually(t, func() bool { _, ok := httpGet(t, "http://"+admin+"/readyz"); return ok }, func() string { return "it is not ready" })

	// A lease is renewed, and then taken over.
	lease := create(leases, "coordination.k8s.io/v1", "Lease", "l", `},"spec":{"holderIdentity":"a","renewTime":"2026-01-01T00:00:00.000000Z"}`)
	for i, holder := range []string{"a", "a", "b"} {
		lease.Object["spec"] = map[string]any{"holderIdentity": holder, "renewTime": fmt.Sprintf("2026-01-01T00:00:0%d.000000Z", i+1)}
		var err error
		if lease, err = dyn.Resource(leases).Namespace(ns).Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { return len(d.events("leases.jsonl")) >= 2 }, func() string { return "the lease's events do not come" })
	if got := d.events("leases.jsonl"); len(got) != 2 || got[0].Type != event.Added || got[1].Type != event.Updated || !strings.Contains(string(got[1].Object), `"holderIdentity":"b"`) {
		t.Errorf("the events of leases are %d: %v", len(got), got)
	}

	// Of a sink that is paused everything stays, over a restart too; another one is bounded.
	command("sinks", "pause", "sampled")
	const all = 30
	maps(0, all/2)
	d.configure(config("object, patch"))
	command("reload")
	maps(all/2, all)
	const total = `e2e_maps_total{team="a",type="added"}`
	eventually(t, func() bool { return scrape(t, admin)[total] == all }, func() string { return fmt.Sprint(total, " is ", scrape(t, admin)[total]) })
	eventually(t, func() bool { return len(d.events("slow.jsonl")) >= all }, func() string { return fmt.Sprint(len(d.events("slow.jsonl")), " events came") })
	if waits := scrape(t, admin)[`watcherd_sink_rate_limit_waits_total{sink="slow"}`]; waits < 1 {
		t.Errorf("the bounded sink waited %v times", waits)
	}
	d.stop()
	d.start()
	eventually(t, func() bool { return scrape(t, admin)[`watcherd_sink_paused_on_request{sink="sampled"}`] == 1 }, func() string { return "the pause did not last" })
	if got := d.events("sampled.jsonl"); len(got) > 0 {
		t.Errorf("a paused sink got %d events", len(got))
	}
	command("sinks", "resume", "sampled")
	drained(t, admin)
	sample := map[string]bool{}
	for _, e := range d.events("sampled.jsonl") {
		sample[e.ID] = true
	}
	created := 0
	for _, e := range d.events("slow.jsonl") {
		if e.Type != event.Added {
			continue
		}
		created++
		if hash := e.ID[:8]; sample[e.ID] != (hash < "4ccccccc") {
			t.Errorf("event %s is in the sample: %t", e.ID, sample[e.ID])
		}
	}
	if created != all {
		t.Errorf("%d additions, want %d", created, all)
	}

	// What owns a pod, and what an Event is about. Caches may be behind: then it is said.
	deployment := create(kinds[2].gvr, "apps/v1", "Deployment", "web", `},"spec":{"selector":{"matchLabels":{"app":"e2e"}},"template":{"metadata":{"labels":{"app":"e2e"}},"spec":{"containers":[{"name":"main","image":"x"}]}}}`)
	owned := func(apiVersion, kind string, by *unstructured.Unstructured) string {
		return fmt.Sprintf(`,"annotations":{"example.com/token":%q,"note":"n"},"labels":{"app":"e2e"},"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"controller":true}]}`,
			hidden.text, apiVersion, kind, by.GetName(), by.GetUID())
	}
	replicaSets := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
	rs := create(replicaSets, "apps/v1", "ReplicaSet", "web-1", owned("apps/v1", "Deployment", deployment)+`,"spec":{"selector":{"matchLabels":{"app":"e2e"}},"template":{"metadata":{"labels":{"app":"e2e"}},"spec":{"containers":[{"name":"main","image":"x"}]}}}`)
	var whole *event.Event
	attempt := 0
	eventually(t, func() bool {
		attempt++
		name := fmt.Sprint("web-1-", attempt)
		pod := create(kinds[1].gvr, "v1", "Pod", name, owned("apps/v1", "ReplicaSet", rs)+`,"spec":{"containers":[{"name":"main","image":"x"}]}`)
		eventually(t, func() bool { return bytes.Contains(mustRead(t, d.path("enriched.jsonl")), []byte(name)) }, func() string { return "the pod's event does not come" })
		create(eventKind.gvr, "v1", "Event", name, fmt.Sprintf(`},"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":%q,"name":%q,"uid":%q}`, ns, name, pod.GetUID()))
		for _, e := range d.events("enriched.jsonl") {
			if e.InvolvedObject != nil && e.InvolvedObject.Owner != nil && e.InvolvedObject.Owner.Kind == "Deployment" {
				whole = e
			}
		}
		return whole != nil
	}, func() string { return fmt.Sprintf("no event is complete of %d", attempt) })
	o := whole.InvolvedObject
	if whole.Incomplete || o.Owner.Name != "web" || len(o.Owner.Chain) != 2 || o.Labels["app"] != "e2e" || o.Annotations["note"] != "n" || o.Annotations["example.com/token"] == "" {
		t.Errorf("involved object %+v, incomplete %t", o, whole.Incomplete)
	}

	// A replay has the same after the owners are gone.
	for gvr, name := range map[schema.GroupVersionResource]string{replicaSets: "web-1", kinds[2].gvr: "web"} {
		if err := dyn.Resource(gvr).Namespace(ns).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	command("replay", "--sink", "enriched", "--from-sequence", fmt.Sprint(whole.Sequence))
	drained(t, admin)
	replayed := false
	for _, e := range d.events("enriched.jsonl") {
		if e.ID == whole.ID && e.Replay {
			replayed = true
			e.Replay = false
			if got, want := event.AppendData(nil, e), event.AppendData(nil, whole); !bytes.Equal(got, want) {
				t.Errorf("replayed\n%s\nwant\n%s", got, want)
			}
		}
	}
	if !replayed {
		t.Error("the event is not replayed")
	}
	d.stop()
	if hidden.in(mustRead(t, d.path("enriched.jsonl"))) {
		t.Error("a redacted value is in the enrichment")
	}
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return content
}
