package event_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	ce "github.com/cloudevents/sdk-go/v2/event"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/watcherd/watcherd/pkg/event"
)

var update = flag.Bool("update", false, "write the golden files anew")

var (
	at          = time.Date(2026, 11, 21, 6, 7, 8, 123456789, time.UTC)
	deployments = event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}
	pods        = event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
)

// samples are events of every shape.
func samples() map[string]*event.Event {
	base := event.Event{
		ID: event.ID("cluster", event.Updated, deployments, "", "uid-1", "42"), Type: event.Updated, Time: at, Sequence: 1234, Cluster: "prod-eu-1",
		Resource: deployments, Namespace: "prod", Name: "web", UID: "uid-1", ResourceVersion: "42",
		Object: json.RawMessage(`{"kind":"Deployment","spec":{"replicas":3}}`),
	}
	with := func(change func(e *event.Event)) *event.Event {
		e := base
		change(&e)
		return &e
	}
	return map[string]*event.Event{
		"updated": with(func(e *event.Event) {
			e.OldObject = json.RawMessage(`{"kind":"Deployment","spec":{"replicas":1}}`)
			e.Patch = json.RawMessage(`[{"op":"replace","path":"/spec/replicas","value":3}]`)
			e.Summary = `replicas 1 -> 3, data k "a\nb…" -> c`
			e.Selection = event.Entered
			e.ChangedBy = &event.ChangedBy{Manager: "kubectl-edit", Operation: "Update", Time: at.Truncate(time.Second)}
		}),
		"lasting":      with(func(e *event.Event) { e.Coalesced, e.For = 3, &event.For{Since: at.Add(-time.Hour)} }),
		"added":        with(func(e *event.Event) { e.Type, e.Resource, e.Sequence = event.Added, pods, 0 }),
		"sync":         with(func(e *event.Event) { e.Type = event.Sync; e.Replay, e.Repair = true, true }),
		"deleted":      with(func(e *event.Event) { e.Type = event.Deleted; e.FinalStateUnknown = true }),
		"no-object":    with(func(e *event.Event) { e.Object = nil }),
		"truncated":    with(func(e *event.Event) { e.Object = nil; e.Truncated = true }),
		"cluster-wide": with(func(e *event.Event) { e.Namespace, e.Name = "", "node-1" }),
		"namespace": with(func(e *event.Event) {
			e.Resource = event.Resource{Version: "v1", Resource: "namespaces", Kind: "Namespace"}
			e.Namespace, e.Name = "prod", "prod"
		}),
		"odd-names": with(func(e *event.Event) {
			// The API server lets roles be called like this.
			e.Resource = event.Resource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles", Kind: "ClusterRole"}
			e.Namespace, e.Name = "", "system:\"quoted\"\\ <tag> é\t日本"
			e.Cluster = "prod \"eu\" é"
		}),
		"enriched": with(func(e *event.Event) {
			rs := event.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "u2"}
			e.Owner = event.OwnerOf([]event.Ref{rs, {APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "u3"}})
			e.InvolvedObject = &event.InvolvedObject{
				APIVersion: "v1", Kind: "Pod", Namespace: "prod", Name: "web-1-a", UID: "u1",
				Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "<&>"}, Owner: event.OwnerOf([]event.Ref{rs}),
			}
			e.Incomplete = true
		}),
		"feed":   with(func(e *event.Event) { e.Feed, e.ClusterUID = "pods", "0b2c7a1e-5d7f-4f4e-9d58-5f3b1f0a9c11" }),
		"no-uid": with(func(e *event.Event) { e.UID = "" }),
		"gap": {
			ID: event.ID("cluster", event.Gap, pods, "", "", "10-20"), Type: event.Gap, Time: at, Sequence: 7, Cluster: "prod-eu-1", Resource: pods,
			Gap: &event.GapData{Watch: "workloads", Resource: pods, FromResourceVersion: "10", ToResourceVersion: "20", Cause: "expired", From: at.Add(-time.Hour), To: at},
		},
	}
}

func names(m map[string]*event.Event) []string {
	var out []string
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// TestGolden keeps the encodings as they are: receivers depend on every byte.
func TestGolden(t *testing.T) {
	all := samples()
	for _, name := range names(all) {
		var got bytes.Buffer
		for _, encoded := range [][]byte{event.AppendCloudEvent(nil, all[name]), event.AppendJSON(nil, all[name])} {
			if err := json.Indent(&got, encoded, "", "  "); err != nil {
				t.Fatalf("%s: %v in %s", name, err, encoded)
			}
			got.WriteByte('\n')
		}
		path := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(path, got.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, &got, want)
		}
	}
}

// TestSchema checks that events of every shape have no member that the schema lacks.
func TestSchema(t *testing.T) {
	cloudEvent, flat := closedSchema(t, ""), closedSchema(t, "#json")
	valid := func(s *jsonschema.Schema, document []byte) error {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
		if err != nil {
			return err
		}
		return s.Validate(v)
	}
	all := samples()
	for _, name := range names(all) {
		if err := valid(cloudEvent, event.AppendCloudEvent(nil, all[name])); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := valid(flat, event.AppendJSON(nil, all[name])); err != nil {
			t.Errorf("%s in the json format: %v", name, err)
		}
		if err := valid(cloudEvent, event.AppendJSON(nil, all[name])); err == nil {
			t.Errorf("%s: the json format is valid as a CloudEvent", name)
		}
	}
	if !strings.Contains(string(event.Schema()), `"const": "`+event.DataSchema+`"`) {
		t.Error("the schema has another name")
	}
	updated := event.AppendCloudEvent(nil, all["updated"])
	for _, change := range [][2]string{{`"name":"web"`, `"name":1`}, {`"name":"web",`, ``}, {`"selection":"entered"`, `"selected":true`}, {`"op":"replace"`, `"op":"exchange"`}, {`"sequence":"0`, `"sequence":"`}} {
		faulty := bytes.Replace(updated, []byte(change[0]), []byte(change[1]), 1)
		if bytes.Equal(faulty, updated) || valid(cloudEvent, faulty) == nil {
			t.Errorf("%s instead of %s is valid", change[1], change[0])
		}
	}
}

// closedSchema is a part of the schema that takes no further members.
func closedSchema(t *testing.T, part string) *jsonschema.Schema {
	t.Helper()
	var root map[string]any
	if err := json.Unmarshal(event.Schema(), &root); err != nil {
		t.Fatal(err)
	}
	at := func(keys ...string) map[string]any {
		m := root
		for _, key := range keys {
			m = m[key].(map[string]any)
		}
		return m
	}
	const closed = "unevaluatedProperties"
	for _, m := range []map[string]any{
		root, at("properties", "data"), at("$defs", "json"), at("$defs", "resource"),
		at("$defs", "owner"), at("$defs", "owner", "properties", "chain", "items"), at("$defs", "change", "properties", "involvedObject"),
		at("$defs", "change", "properties", "changedBy"), at("$defs", "change", "properties", "patch", "items"),
	} {
		m[closed] = false
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	id, _ := root["$id"].(string)
	if err := c.AddResource(id, root); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(id + part)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCloudEventsSDK lets the CloudEvents SDK read what we write.
func TestCloudEventsSDK(t *testing.T) {
	all := samples()
	var batch []*event.Event
	for _, name := range names(all) {
		e := all[name]
		batch = append(batch, e)
		var got ce.Event
		if err := json.Unmarshal(event.AppendCloudEvent(nil, e), &got); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		check := func(what string, got, want any) {
			t.Helper()
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s is %v, want %v", name, what, got, want)
			}
		}
		check("id", got.ID(), e.ID)
		check("source", got.Source(), e.Source())
		check("type", got.Type(), e.Type.CloudEvent())
		check("subject", got.Subject(), e.Subject())
		check("time", got.Time(), e.Time)
		check("sequence", got.Extensions()["sequence"], event.SequenceText(e.Sequence))
		check("partitionkey", got.Extensions()["partitionkey"], e.PartitionKey())
		check("data content type", got.DataContentType(), "application/json")
		check("data", string(got.Data()), string(event.AppendData(nil, e)))
		for _, a := range event.Attributes(e) { // of binary mode: the same
			switch a.Name {
			case "specversion":
				check(a.Name, a.Value, got.SpecVersion())
			case "time":
				check(a.Name, a.Value, e.Time.Format(time.RFC3339Nano))
			case "id", "source", "type", "subject":
				check(a.Name, a.Value, map[string]string{"id": got.ID(), "source": got.Source(), "type": got.Type(), "subject": got.Subject()}[a.Name])
			case "dataschema":
				check(a.Name, a.Value, got.DataSchema())
			default:
				check(a.Name, any(a.Value), got.Extensions()[a.Name])
			}
			if a.Value == "" {
				t.Errorf("%s: attribute %s is empty, which CloudEvents does not allow", name, a.Name)
			}
		}
	}
	var got []ce.Event
	if err := json.Unmarshal(event.AppendBatch(nil, batch), &got); err != nil || len(got) != len(batch) {
		t.Fatalf("a batch of %d is read as %d: %v", len(batch), len(got), err)
	}
	for i := range got {
		if got[i].ID() != batch[i].ID || got[i].Subject() != batch[i].Subject() {
			t.Errorf("event %d of the batch is another", i)
		}
	}
	if empty := event.AppendBatch(nil, nil); string(empty) != "[]" {
		t.Errorf("an empty batch is %s", empty)
	}
}

func TestParse(t *testing.T) {
	all := samples()
	for _, name := range names(all) {
		got, err := event.Parse(event.AppendCloudEvent(nil, all[name]))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want := all[name]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	for _, bad := range []string{``, `{}`, `[]`, `{"specversion":"0.3"}`, `{"specversion":"1.0","type":"other"}`, `{"specversion":"1.0","type":"dev.watcherd.gap","sequence":"x"}`, `{"specversion":"1.0","type":"dev.watcherd.gap","sequence":"1"}`} {
		if e, err := event.Parse([]byte(bad)); err == nil {
			t.Errorf("%s was read as %+v", bad, e)
		}
	}
}

// TestJSONFormat: the json format is data alone plus the documented members.
func TestJSONFormat(t *testing.T) {
	all := samples()
	for _, name := range names(all) {
		e := all[name]
		var got, data map[string]any
		if err := json.Unmarshal(event.AppendJSON(nil, e), &got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := json.Unmarshal(event.AppendData(nil, e), &data); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for key, want := range map[string]any{"type": string(e.Type), "id": e.ID, "cluster": e.Cluster, "sequence": float64(e.Sequence), "time": e.Time.Format(time.RFC3339Nano)} {
			if got[key] != want {
				t.Errorf("%s: %s is %v, want %v", name, key, got[key], want)
			}
			delete(got, key)
		}
		if !reflect.DeepEqual(got, data) {
			t.Errorf("%s: beyond its own members it is %v, data is %v", name, got, data)
		}
	}
}

func TestEncodersOnlyAppend(t *testing.T) {
	e := samples()["updated"]
	before := *e
	prefix := []byte("prefix")
	for _, encode := range []func([]byte, *event.Event) []byte{event.AppendCloudEvent, event.AppendJSON, event.AppendData} {
		if got := encode(slices.Clone(prefix), e); !bytes.HasPrefix(got, prefix) || !json.Valid(got[len(prefix):]) {
			t.Errorf("got %s", got)
		}
	}
	if !reflect.DeepEqual(*e, before) {
		t.Error("an encoder changed the event")
	}
	large := *e
	large.Object = json.RawMessage(`"` + strings.Repeat("x", 100_000) + `"`)
	if n, size := len(event.AppendCloudEvent(nil, &large)), large.Size(); n > size {
		t.Errorf("%d bytes were estimated for %d", size, n)
	}
}

func TestID(t *testing.T) {
	id := func(change ...func(c *string, typ *event.Type, r *event.Resource, scope, uid, version *string)) string {
		c, typ, r, scope, uid, version := "cluster", event.Updated, deployments, "", "uid", "42"
		for _, ch := range change {
			ch(&c, &typ, &r, &scope, &uid, &version)
		}
		return event.ID(c, typ, r, scope, uid, version)
	}
	// Written down: the same change must have this id in every release.
	if got, want := id(), "cd020818f4f3670b2ecf7cbabc65524c"; got != want {
		t.Errorf("the id has changed: got %s, want %s", got, want)
	}
	seen := map[string]int{id(): -1}
	for i, change := range []func(c *string, typ *event.Type, r *event.Resource, scope, uid, version *string){
		func(c *string, _ *event.Type, _ *event.Resource, _, _, _ *string) { *c = "other" },
		func(_ *string, typ *event.Type, _ *event.Resource, _, _, _ *string) { *typ = event.Deleted },
		func(_ *string, _ *event.Type, r *event.Resource, _, _, _ *string) { r.Group = "extensions" },
		func(_ *string, _ *event.Type, r *event.Resource, _, _, _ *string) { r.Resource = "daemonsets" },
		func(_ *string, _ *event.Type, _ *event.Resource, scope, _, _ *string) { *scope = "x" },
		func(_ *string, _ *event.Type, _ *event.Resource, _, uid, _ *string) { *uid = "other" },
		func(_ *string, _ *event.Type, _ *event.Resource, _, _, version *string) { *version = "43" },
		// Parts that run into each other are still different parts.
		func(_ *string, _ *event.Type, _ *event.Resource, scope, uid, _ *string) { *scope, *uid = "u", "id" },
		func(_ *string, _ *event.Type, _ *event.Resource, _, uid, version *string) {
			*uid, *version = "uid4", "2"
		},
	} {
		got := id(change)
		if j, taken := seen[got]; taken {
			t.Errorf("changes %d and %d have one id", i, j)
		}
		seen[got] = i
		if len(got) != 32 || strings.Trim(got, "0123456789abcdef") != "" {
			t.Errorf("id %q", got)
		}
	}
	// Of the resource's parts only what names the object takes part.
	if id() != id(func(_ *string, _ *event.Type, r *event.Resource, _, _, _ *string) { r.Version, r.Kind = "v2", "Other" }) {
		t.Error("the version through which a change is seen changes its id")
	}
}

func TestSubject(t *testing.T) {
	for name, want := range map[string]string{
		"added":        "/api/v1/namespaces/prod/pods/web",
		"updated":      "/apis/apps/v1/namespaces/prod/deployments/web",
		"cluster-wide": "/apis/apps/v1/deployments/node-1",
		"namespace":    "/api/v1/namespaces/prod",
		"gap":          "/api/v1/pods",
		"odd-names":    "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:%22quoted%22%5C%20%3Ctag%3E%20%C3%A9%09%E6%97%A5%E6%9C%AC",
	} {
		if got := samples()[name].Subject(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestSequenceText(t *testing.T) {
	last := ""
	for _, n := range []uint64{0, 1, 9, 10, 99, 12345678901234567890, 1<<64 - 1} {
		got := event.SequenceText(n)
		if len(got) != 20 || got <= last {
			t.Errorf("%d is %q, after %q", n, got, last)
		}
		last = got
	}
}

func TestHeaderValue(t *testing.T) {
	for in, want := range map[string]string{
		"plain/Text-1.0": "plain/Text-1.0", "a b": "a%20b", `"`: "%22", "100%": "100%25", "é€": "%C3%A9%E2%82%AC",
		"a\r\nb": "a%0D%0Ab", "\x7f": "%7F", "\xff": "%EF%BF%BD", "": "",
	} {
		if got := event.HeaderValue(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestPartitionKey names what is in order: everything that has a path, in whatever
// version and life.
func TestPartitionKey(t *testing.T) {
	nodes := event.Resource{Version: "v1", Resource: "nodes"}
	for _, tc := range []struct {
		want string
		e    event.Event
	}{
		{"deployments.apps/prod/web", event.Event{Type: event.Deleted, Resource: deployments, Namespace: "prod", Name: "web", UID: "1"}},
		{"deployments.apps/prod/web", event.Event{Type: event.Added, Resource: event.Resource{Group: "apps", Version: "v2", Resource: "deployments"}, Namespace: "prod", Name: "web", UID: "2"}},
		{"pods/prod/web", event.Event{Resource: pods, Namespace: "prod", Name: "web"}},
		{"nodes/n1", event.Event{Resource: nodes, Name: "n1"}},
		{"pods", event.Event{Type: event.Gap, Resource: pods}},
		{"pods/prod", event.Event{Type: event.Gap, Resource: pods, Namespace: "prod"}},
	} {
		if got := tc.e.PartitionKey(); got != tc.want {
			t.Errorf("%+v has the key %q, want %q", tc.e, got, tc.want)
		}
	}
}

// FuzzParse reads what is not an event, or one that was altered: what is read is the same event when it is written.
func FuzzParse(f *testing.F) {
	for _, e := range []*event.Event{
		{Type: event.Updated, Sequence: 3, Cluster: "a b", Resource: pods, Namespace: "prod", Name: "web", Object: []byte(`{"a":1}`), Patch: []byte(`[]`)},
		{Type: event.Gap, Sequence: 4, Feed: "f", Resource: pods, Gap: &event.GapData{}},
	} {
		f.Add(event.AppendCloudEvent(nil, e))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := event.Parse(data)
		if err != nil {
			return
		}
		once := event.AppendCloudEvent(nil, e)
		again, err := event.Parse(once)
		if err != nil {
			t.Fatalf("%q is read, and written as %q: %v", data, once, err)
		}
		if twice := event.AppendCloudEvent(nil, again); !bytes.Equal(once, twice) {
			t.Errorf("%q is written as %q, and that as %q", data, once, twice)
		}
	})
}
