package history

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

const deployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","uid":"u","labels":{"app.kubernetes.io/name":"web"},"finalizers":["a","b"],
"managedFields":[{}],"generation":3},"spec":{"empty":{},"none":[],"nil":null,"text":"a\nb\n","matrix":[[1,2],[{"x":1}]],
"containers":[{"name":"web","image":"web:1","ports":[{"containerPort":80,"protocol":"TCP"}],"args":["-v","-v"]},{"name":"side","image":"side:1"}]}}`

// TestBlameText: heads and texts are the YAML of the object, and paths name its values.
func TestBlameText(t *testing.T) {
	var b Blame
	if err := b.state([]byte(deployment)); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	var paths []string
	for _, f := range b.Fields {
		if f.Head != "" {
			out.WriteString(f.Head + "\n")
		}
		out.WriteString(f.Text + "\n")
		paths = append(paths, f.Path)
	}
	got, err := yaml.YAMLToJSON([]byte(out.String()))
	if err != nil {
		t.Fatalf("%v in\n%s", err, out.String())
	}
	v, err := decoded([]byte(deployment))
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the text is\n%s", out.String())
	}
	const list = `apiVersion kind metadata.finalizers[=a] metadata.finalizers[=b] metadata.labels["app.kubernetes.io/name"] metadata.name metadata.uid ` +
		`spec.containers[name=web].args[0] spec.containers[name=web].args[1] spec.containers[name=web].image spec.containers[name=web].name ` +
		`spec.containers[name=web].ports[containerPort=80].containerPort spec.containers[name=web].ports[containerPort=80].protocol ` +
		`spec.containers[name=side].image spec.containers[name=side].name spec.empty spec.matrix[0][=1] spec.matrix[0][=2] spec.matrix[1][0].x spec.nil spec.none spec.text`
	if got := strings.Join(paths, " "); got != list {
		t.Errorf("the paths are %s", got)
	}
}

// TestDifferences: a field differs from an older state by its place in the object, that of items
// by their names.
func TestDifferences(t *testing.T) {
	for _, tc := range []struct{ older, want string }{
		{deployment, ""},
		{strings.Replace(deployment, `["a","b"]`, `["b"]`, 1), "metadata.finalizers[=a]"},
		{strings.Replace(deployment, `{"name":"side","image":"side:1"}`, `{"image":"side:0","name":"side"},{"name":"old"}`, 1), "spec.containers[name=side].image"},
		{strings.Replace(deployment, `"matrix":[[1,2],[{"x":1}]],`, ``, 1), "spec.matrix[0][=1] spec.matrix[0][=2] spec.matrix[1][0].x"},
		{strings.Replace(deployment, `"empty":{}`, `"empty":{"a":1}`, 1), "spec.empty"},
		{strings.Replace(deployment, `"image":"web:1"`, `"image":{"is":"web:1"}`, 1), "spec.containers[name=web].image"},
		{strings.Replace(deployment, `"nil":null,`, ``, 1), "spec.nil"},
	} {
		var b Blame
		if err := b.state([]byte(deployment)); err != nil {
			t.Fatal(err)
		}
		older, err := decoded([]byte(tc.older))
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		all := b.root.open
		b.root.differ(older, func(n *node, _ any, _ bool) { found = append(found, b.Fields[n.field].Path) })
		if got := strings.Join(found, " "); got != tc.want || b.root.open != all-len(found) {
			t.Errorf("%d of %d fields are left, %q differ, want %q", b.root.open, all, got, tc.want)
		}
	}
}

// TestManagedFields: what the history has no answer for is attributed to the manager that wrote
// last of those that have the field.
func TestManagedFields(t *testing.T) {
	since := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	entry := func(manager string, at time.Time, fields string) string {
		return fmt.Sprintf(`{"manager":%q,"operation":"Apply","time":%q,"fieldsType":"FieldsV1","fieldsV1":%s}`, manager, at.Format(time.RFC3339), fields)
	}
	managed := "[" + strings.Join([]string{
		entry("late", since.Add(time.Hour), `{"f:spec":{"f:containers":{"k:{\"name\":\"side\"}":{".":{},"f:name":{},"f:image":{}}}}}`),
		entry("helm", since.Add(-2*time.Hour), `{"f:metadata":{"f:labels":{"f:app.kubernetes.io/name":{}},"f:finalizers":{"v:\"a\"":{}}},"f:spec":{"f:matrix":{},"f:empty":{},"f:text":{},"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:image":{},"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{"f:containerPort":{}}}}}}}`),
		entry("edit", since.Add(-time.Hour), `{"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{"f:image":{}}}}}`),
	}, ",") + "]"
	b := Blame{since: since}
	if err := b.state([]byte(deployment)); err != nil {
		t.Fatal(err)
	}
	if !b.Open() {
		t.Error("the fields are not open")
	}
	b.Manage("u", []byte(managed))
	got := map[string]string{}
	for _, f := range b.Fields {
		if f.Manager != "" {
			got[f.Path] = f.Manager
			if f.Time.IsZero() != (f.Manager == "late") || f.As != UnknownBefore || !f.Before.Equal(since) {
				t.Errorf("got %+v", f)
			}
		}
	}
	for path, want := range map[string]string{
		"metadata.labels[\"app.kubernetes.io/name\"]": "helm", "metadata.finalizers[=a]": "helm", "metadata.finalizers[=b]": "", "metadata.name": "",
		"spec.matrix[0][=1]": "helm", "spec.matrix[1][0].x": "helm", "spec.empty": "helm", "spec.text": "helm", "spec.none": "",
		"spec.containers[name=web].image": "edit", "spec.containers[name=web].name": "", "spec.containers[name=side].image": "late",
		"spec.containers[name=web].ports[containerPort=80].containerPort": "helm", "spec.containers[name=web].ports[containerPort=80].protocol": "",
	} {
		if got[path] != want {
			t.Errorf("%s is of %q, want %q", path, got[path], want)
		}
	}
	for uid, text := range map[string]string{"v": managed, "u": "[{"} {
		if b.Manage(uid, []byte(text)); b.Unmanaged == "" {
			t.Errorf("the managed fields of %s are taken", uid)
		}
		b.Unmanaged = ""
	}
}

// TestGroups folds changes below owners, over owners that ended as they began.
func TestGroups(t *testing.T) {
	one := func(kind, name, change string, owners ...Ref) *net {
		group, version := "", "v1"
		if kind == "Deployment" || kind == "ReplicaSet" {
			group = "apps"
		}
		return &net{NetChange: NetChange{
			Resource:  event.Resource{Group: group, Version: version, Resource: strings.ToLower(kind) + "s", Kind: kind},
			Namespace: "ns", Name: name, Change: change,
		}, owners: owners}
	}
	controlled := func(apiVersion, kind, name string) string {
		return fmt.Sprintf(`{"metadata":{"name":"x","ownerReferences":[{"apiVersion":"v1","kind":"Other","name":"o"},{"apiVersion":%q,"kind":%q,"name":%q,"controller":true}]}}`, apiVersion, kind, name)
	}
	owners := func(kind, raw string) []Ref { return ownersOf(&event.Resource{Kind: kind}, "ns", []byte(raw)) }
	rs, pod := owners("Pod", controlled("apps/v1", "ReplicaSet", "web-1")), owners("Event", `{"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"ns","name":"web-1-a"}}`)
	slice := owners("EndpointSlice", strings.Replace(controlled("v1", "Service", "web"), `{"metadata"`, `{"endpoints":[{"targetRef":{"kind":"Pod","namespace":"ns","name":"web-1-a"}}],"metadata"`, 1))
	groups, err := grouped([]*net{
		one("Pod", "web-1-a", "created", rs...),
		one("Event", "e", "created", pod...),
		one("Deployment", "web", "changed"),
		one("ReplicaSet", "web-1", "", owners("ReplicaSet", controlled("apps/v1", "Deployment", "web"))...),
		one("EndpointSlice", "s", "changed", slice...),
		one("Pod", "job-a", "deleted", Ref{"batch/v1", "Job", "ns", "job"}),
		one("Pod", "came-and-went", "", rs...),
		one("Pod", "alone", ""),
		one("Event", "n", "created", owners("Event", `{"regarding":{"kind":"Node","apiVersion":"v1","name":"n1"},"involvedObject":7}`)...),
	}, func(*Ref) (*Ref, error) { return nil, nil }) //nolint:nilnil // nothing else is recorded
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range groups {
		raw, err := json.Marshal(g.Counts)
		if err != nil {
			t.Fatal(err)
		}
		own := ""
		if g.Change != nil {
			own = g.Change.Change
		}
		got = append(got, fmt.Sprintf("%s/%s %s %d %s", g.Owner.Kind, g.Owner.Name, own, len(g.Items), raw))
	}
	want := []string{
		`Deployment/web changed 3 {"endpointslices":{"changed":1},"events":{"created":1},"pods":{"churned":1,"created":1},"replicasets.apps":{"churned":1}}`,
		`Job/job  1 {"pods":{"deleted":1}}`, `Node/n1  1 {"events":{"created":1}}`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

// TestGroupsOverUnchangedOwners: a change is below the owner of its owner, although that one did not change in the period.
func TestGroupsOverUnchangedOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		add := func(name, owner string) {
			w.version++
			w.shown.Store(int64(w.version))
			w.c.Handler(w.feed).OnAdd(w.encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":%q,"uid":"u-%s","resourceVersion":"%d","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":%q,"controller":true}]}}`,
				name, name, w.version, owner)), false)
			w.rest()
		}
		add("top", "elsewhere") // which is not recorded
		add("between", "top")
		from := w.now().Add(-time.Minute)
		add("below", "between")
		to := w.now().Add(-time.Minute)
		add("elsewhere", "later")
		c, err := w.r.Changes(t.Context(), Filter{From: from, To: to}, true)
		w.must(err)
		if len(c.Groups) != 1 || c.Groups[0].Owner.Name != "elsewhere" || len(c.Groups[0].Items) != 1 {
			t.Errorf("got %+v", c.Groups)
		}
	})
}

// TestBlameOfALaterLife: what an object has that was found in place of a deleted one of its name was not set in the life of that one.
func TestBlameOfALaterLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.updates(2, time.Minute)
		w.c.Handler(w.feed).OnDelete(w.object("a", "u1"))
		w.rest()
		w.cluster["a"] = w.object("a", "u2")
		w.watch.ServerLabels = "app" // has another part of the ledger
		w.restart(false)
		found := w.moments[len(w.moments)-1].at
		b, err := w.r.Blame(t.Context(), pod("a"))
		w.must(err)
		if b.Deleted || len(b.Fields) == 0 {
			t.Fatalf("got %+v", b)
		}
		for _, f := range b.Fields {
			if f.As != UnknownBefore || f.Sequence != 0 || !f.Before.Equal(found) {
				t.Errorf("got %+v, want what was set before %v", f, found)
			}
		}
	})
}

// TestBlameOfAnUnreadableObject: what was set last is not known as long as the object cannot be read.
func TestBlameOfAnUnreadableObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.c.Handler(w.feed).OnAdd(w.object("a", "u1"), false)
		check := func(what string, as As) {
			t.Helper()
			w.rest()
			b, err := w.r.Blame(t.Context(), pod("a"))
			w.must(err)
			for _, f := range b.Fields {
				if f.As != as {
					t.Errorf("%s: %+v, want %s", what, f, as)
				}
			}
			if len(b.Fields) == 0 {
				t.Errorf("%s: no fields", what)
			}
		}
		check("read", Exact)
		w.c.HistoryLost(w.feed, dynamicfactory.Gap{Cause: dynamicfactory.CauseUnreadable, Namespace: "ns", Name: "a", To: fmt.Sprint(w.version), FromTime: w.now(), ToTime: w.now()})
		check("unreadable", Gap)
	})
}

// TestReferencesAreBounded: what one object refers to does not make the groups of all others slow.
func TestReferencesAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"endpoints":[{}`)
	for i := range 5 * maxRefs {
		fmt.Fprintf(&b, `,{"targetRef":{"kind":"Pod","name":"p%d"}}`, i)
	}
	b.WriteString(`]}`)
	list := ownersOf(&event.Resource{Kind: "EndpointSlice"}, "ns", []byte(b.String()))
	if len(list) != maxRefs || list[0].Name != "p0" {
		t.Errorf("%d references", len(list))
	}
}

// Objects whose fields, or whose YAML, would be thousands of times as long are refused.
func TestBlameOfLongPaths(t *testing.T) {
	ones := func(n int) string { return "[" + strings.Repeat("1,", n) + "1]" }
	text := strings.Repeat(`a\n`, 200_000)
	for name, tc := range map[string]struct {
		raw    string
		blamed bool // has a blame
		yaml   bool // has a diff
	}{
		"deep":             {raw: strings.Repeat(`{"a":`, 4900) + ones(300_000) + strings.Repeat("}", 4900)},
		"values of a name": {raw: `{"l":[{"name":"` + strings.Repeat("n", 100_000) + `","x":` + ones(1000) + `}]}`, yaml: true},
		"lines":            {raw: strings.Repeat(`{"a":`, 200) + `"` + text + `"` + strings.Repeat("}", 200)},
		"shallow lines":    {raw: `{"data":{"a":"` + text + `"}}`, blamed: true, yaml: true},
		"names of names":   {raw: `{"l":` + strings.Repeat(`[{"name":`, 500) + `"` + strings.Repeat("n", 20_000) + `"` + strings.Repeat("}]", 500) + "}", blamed: true, yaml: true},
	} {
		var b Blame
		if err := b.state([]byte(tc.raw)); (err == nil) != tc.blamed {
			t.Errorf("%s: blame: %v", name, err)
		}
		size := 0
		for i := range b.Fields {
			size += len(b.Fields[i].Path) + len(b.Fields[i].Text) + len(b.Fields[i].Head)
		}
		if size > maxPaths {
			t.Errorf("%s: %d bytes of fields", name, size)
		}
		if out, err := unified(nil, []byte(tc.raw), "a", "b"); (err == nil) != tc.yaml || len(out) > 2*maxPaths {
			t.Errorf("%s: diff: %d bytes, %v", name, len(out), err)
		}
	}
}

// What names an item is a scalar: a map or a list would be part of the path of all its own values.
func TestBlameNamesByScalars(t *testing.T) {
	var b Blame
	if err := b.state([]byte(`{"l":[{"name":{"k":[1,2]},"key":"x"},{"name":{"k":3},"key":["y"]}]}`)); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for i := range b.Fields {
		paths = append(paths, b.Fields[i].Path)
	}
	if got, want := strings.Join(paths, " "), "l[0].key l[0].name.k[=1] l[0].name.k[=2] l[1].key[=y] l[1].name.k"; got != want {
		t.Errorf("paths %s\nwant  %s", got, want)
	}
}

// FuzzBlame attributes the fields of states, and by managed fields, that clients write.
func FuzzBlame(f *testing.F) {
	f.Add(deployment, `{"spec":{"containers":[{"name":"side","image":"side:1"}],"matrix":[[2]]}}`, `[{"manager":"a","fieldsV1":{"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:image":{}}},"f:matrix":{}}}}]`)
	f.Add(`{"a":[1,{"b":null}],"":{"":[]}}`, `{"a":{"b":1}}`, `[{"time":"2026-01-31T12:00:00Z","fieldsV1":{"f:a":{"v:1":{},"i:1":{}}}}]`)
	f.Fuzz(func(t *testing.T, state, older, managed string) {
		var b Blame
		if b.state([]byte(state)) != nil || b.root == nil {
			return
		}
		leaves := len(b.Fields)
		if before, err := decoded([]byte(older)); err == nil {
			b.root.differ(before, func(n *node, _ any, _ bool) { b.Fields[n.field].attribute(Field{As: Exact}) })
		}
		b.Manage(b.uid, []byte(managed))
		if len(b.Fields) != leaves || b.root.open > leaves {
			t.Errorf("%d fields of %d, %d open", len(b.Fields), leaves, b.root.open)
		}
		if _, err := json.Marshal(&b); err != nil {
			t.Error(err)
		}
		if _, err := unified([]byte(state), []byte(older), "a", "b"); err != nil && json.Valid([]byte(older)) && strings.HasPrefix(older, "{") {
			t.Error(err)
		}
	})
}
