package body

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/event"
)

func deployment() *event.Event {
	return &event.Event{
		ID: "5e0d", Type: event.Updated, Time: time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC), Sequence: 7, Cluster: "demo",
		Resource:  event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"},
		Namespace: "prod", Name: "web", UID: "u1", ResourceVersion: "1001",
		Object: json.RawMessage(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"prod","uid":"u1","labels":{"tier":"front"},"creationTimestamp":"2026-02-01T00:00:00Z","generation":4},` +
			`"spec":{"replicas":5,"big":9007199254740993,"ratio":0.5,"text":"a \"b\" → <c>","containers":[{"name":"web","image":"web:1.5"},{"name":"log","image":"log:2"}]}}`),
		OldObject: json.RawMessage(`{"spec":{"replicas":3}}`),
		Patch:     json.RawMessage(`[{"op":"replace","path":"/spec/replicas","value":5}]`),
		Summary:   "replicas 3 -> 5",
		Owner:     event.OwnerOf([]event.Ref{{APIVersion: "v1", Kind: "Rollout", Name: "r", UID: "u2"}, {APIVersion: "v1", Kind: "App", Name: "shop", UID: "u3"}}),
		InvolvedObject: &event.InvolvedObject{
			APIVersion: "v1", Kind: "Pod", Name: "p", Labels: map[string]string{"team": "a"}, Owner: event.OwnerOf([]event.Ref{{Kind: "Job", Name: "j"}}),
		},
		Incomplete: true,
		ChangedBy:  &event.ChangedBy{Manager: "kubectl-edit", Operation: "Update", Time: time.Date(2026, 3, 1, 11, 59, 59, 0, time.UTC)},
	}
}

func compile(t testing.TB, text string) *Body {
	t.Helper()
	b, faults := Compile(text, "")
	if faults != nil {
		t.Fatalf("%s: %v", text, faults)
	}
	return b
}

func TestRender(t *testing.T) {
	for _, test := range []struct{ expr, want string }{
		{`[event.coalesced, has(event.coalesced), has(event.for)]`, `[0,false,false]`},
		{`{"text": event.changedBy.manager + ": " + event.summary}`, `{"text":"kubectl-edit: replicas 3 -> 5"}`},
		{`{"z": 1, "a": [1u, 2.5, true, null, b"hi"], "m": {"y": 1, "b": {}}}`, `{"a":[1,2.5,true,null,"aGk="],"m":{"b":{},"y":1},"z":1}`},
		{`{"o": object.spec, "l": metadata.labels}`, `{"l":{"tier":"front"},"o":{"replicas":5,"big":9007199254740993,"ratio":0.5,"text":"a \"b\" → <c>","containers":[{"name":"web","image":"web:1.5"},{"name":"log","image":"log:2"}]}}`},
		{`object.spec.big`, `9007199254740993`},
		{`patch`, `[{"op":"replace","path":"/spec/replicas","value":5}]`},
		{`[oldObject.spec.replicas, object.spec.replicas]`, `[3,5]`},
		{`[event.time, event.changedBy.time, metadata.creationTimestamp, event.time - event.changedBy.time]`, `["2026-03-01T12:00:00.123456789Z","2026-03-01T11:59:59Z","2026-02-01T00:00:00Z","1.123456789s"]`},
		{
			`[event.id, event.type, event.cluster, event.source, event.subject, event.partitionkey, string(event.sequence), event.namespace, event.name, event.uid, event.resourceVersion]`,
			`["5e0d","updated","demo","/clusters/demo","/apis/apps/v1/namespaces/prod/deployments/web","deployments.apps/prod/web","7","prod","web","u1","1001"]`,
		},
		{`{"ns": string(event.unixNano)}`, `{"ns":"1772366400123456789"}`},
		{`resource`, `{"group":"apps","kind":"Deployment","resource":"deployments","version":"v1"}`},
		{`event.owner.kind + "/" + event.owner.name + " by " + event.owner.chain[0].name`, `App/shop by r`},
		{`[event.involvedObject.labels.team, event.involvedObject.owner.kind, event.involvedObject.annotations.?x.orValue("none"), event.enrichment]`, `["a","Job","none","incomplete"]`},
		{`event.owner`, `{"apiVersion":"v1","chain":[{"apiVersion":"v1","kind":"Rollout","name":"r","uid":"u2"},{"apiVersion":"v1","kind":"App","name":"shop","uid":"u3"}],"kind":"App","name":"shop","uid":"u3"}`},
		{`event.changedBy`, `{"manager":"kubectl-edit","operation":"Update","time":"2026-03-01T11:59:59Z"}`},
		{`event.data.resource.kind + "/" + event.data.name`, `Deployment/web`},
		{`{?"gone": object.?status.?phase, "here": object.?spec.?replicas}`, `{"here":5}`},
		{`"line 1\nline 2 " + string(object.spec.replicas)`, "line 1\nline 2 5"},
		{`""`, ""},
		{`object.spec.containers.map(c, c.image).join(", ")`, "web:1.5, log:2"},
		{`"%s has %d replicas (%.1f)".format([event.name, object.spec.replicas, 0.25])`, "web has 5 replicas (0.2)"},
		{`object.spec.text.replace("b", "x").upperAscii()`, `A "X" → <C>`},
		{`object.spec.containers.transformMap(i, c, c.name)`, `{"0":"web","1":"log"}`},
		{`object.spec.containers.transformMapEntry(i, c, {c.name: c.image})`, `{"log":"log:2","web":"web:1.5"}`},
		{`json.encode({"b": event.name, "a": object.spec.replicas})`, `{"a":5,"b":"web"}`},
		{`base64.encode(bytes(event.name))`, `d2Vi`},
		{`[1, 2, 2, 1].distinct().sort().reverse()`, `[2,1]`},
		{`math.greatest(1, object.spec.replicas)`, `5`},
		{`metadata.name.matches("^w") ? "yes" : "no"`, "yes"},
		{`{"count": events.size(), "ids": events.map(e, e.id), "by": events[0].changedBy.manager}`, `{"by":"kubectl-edit","count":1,"ids":["5e0d"]}`},
	} {
		e := deployment()
		if _, err := compile(t, test.expr).Render(e); err != nil {
			t.Errorf("%s: %v", test.expr, err)
			continue
		}
		if string(e.Body) != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.expr, e.Body, test.want)
		}
		again := deployment()
		if _, err := compile(t, test.expr).Render(again); err != nil || string(again.Body) != test.want {
			t.Errorf("%s: again %s, %v", test.expr, again.Body, err)
		}
	}
}

// TestWhole: an event that is sent as a whole is the CloudEvent.
func TestWhole(t *testing.T) {
	e := deployment()
	if _, err := compile(t, `{"event": event}`).Render(e); err != nil {
		t.Fatal(err)
	}
	want := `{"event":` + string(event.AppendCloudEvent(nil, deployment())) + `}`
	if string(e.Body) != want {
		t.Errorf("got %s\nwant %s", e.Body, want)
	}
}

// TestNothing: null leaves an event out.
func TestNothing(t *testing.T) {
	for expr, sent := range map[string]bool{
		`event.type == "updated" ? dyn(null) : {"a": 1}`:                  false,
		`event.type == "updated" ? optional.none() : optional.of("text")`: false,
		`event.type == "added" ? optional.none() : optional.of("text")`:   true,
		`object.?status`:         false,
		`object.?spec.?replicas`: true,
		`[null]`:                 true,
		`""`:                     true,
	} {
		e := deployment()
		if send, err := compile(t, expr).Render(e); err != nil || send != sent || (e.Body != nil) != sent {
			t.Errorf("%s: send %t, body %q, error %v", expr, send, e.Body, err)
		}
	}
}

func TestContentType(t *testing.T) {
	for _, test := range []struct{ expr, set, want string }{
		{`{"a": 1}`, "", "application/json"},
		{`event.name`, "", "text/plain; charset=utf-8"},
		{`event.name`, "application/x-ndjson", "application/x-ndjson"},
		{`{"a": 1}`, "application/vnd.acme+json", "application/vnd.acme+json"},
	} {
		b, faults := Compile(test.expr, test.set)
		if faults != nil {
			t.Fatal(faults)
		}
		e := deployment()
		if _, err := b.Render(e); err != nil || e.ContentType != test.want {
			t.Errorf("%s: content type %q, error %v; %q is wanted", test.expr, e.ContentType, err, test.want)
		}
	}
}

// TestAbsent: a gap, and an event whose parts were cut off, have empty values.
func TestAbsent(t *testing.T) {
	gap := &event.Event{Type: event.Gap, Gap: &event.GapData{Watch: "w", Cause: "expired"}}
	bare := &event.Event{Type: event.Added, Name: "web", Namespace: "prod", Truncated: true}
	for _, e := range []*event.Event{gap, bare} {
		const expr = `{"name": metadata.name, "labels": metadata.labels, "object": object, "old": oldObject, "patch": patch, "by": event.changedBy.manager, "has": has(event.changedBy) || has(event.owner) || has(event.involvedObject), "owner": event.owner.name + event.involvedObject.owner.kind + event.involvedObject.labels.?x.orValue("") + event.enrichment, "t": event.truncated, "age": metadata.creationTimestamp == timestamp("0001-01-01T00:00:00Z")}`
		if _, err := compile(t, expr).Render(e); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`{"age":true,"by":"","has":false,"labels":{},"name":%q,"object":null,"old":null,"owner":"","patch":null,"t":%t}`, e.Name, e.Truncated)
		if string(e.Body) != want {
			t.Errorf("got %s\nwant %s", e.Body, want)
		}
	}
	if _, err := compile(t, `event.data.cause`).Render(gap); err != nil || string(gap.Body) != "expired" {
		t.Errorf("the cause is %q, %v", gap.Body, err)
	}
}

func TestFaults(t *testing.T) {
	for _, test := range []struct {
		expr      string
		line, col int
		msg       string
	}{
		{"{\"text\":\n  evnt.name}", 2, 3, "undeclared reference to 'evnt'"},
		{`event.nam`, 1, 6, "undefined field 'nam'"},
		{`events.map(e, e.nam)`, 1, 16, "undefined field 'nam'"},
		{`[events.size(), event.name]`, 1, 17, "undeclared reference to 'event'"},
		{`event.name.matches(event.id)`, 1, 19, "literal pattern"},
		{`yaml.parse("a")`, 1, 1, "undeclared reference"},
		{`regex.replace("a", "a", "b")`, 1, 1, "undeclared reference"},
		{`object.a.hasAll(object.b)`, 1, 16, "undeclared reference"}, // compares every item with every other
		{`type(1)`, 1, 1, "cannot be sent"},
		{`{"a": `, 1, 7, "Syntax error"},
	} {
		_, faults := Compile(test.expr, "")
		if len(faults) == 0 || faults[0].Line != test.line || faults[0].Column != test.col || !strings.Contains(faults[0].Msg, test.msg) {
			t.Errorf("%s: faults %v; %d:%d %q is wanted", test.expr, faults, test.line, test.col, test.msg)
		}
	}
}

func TestFailures(t *testing.T) {
	for expr, want := range map[string]string{
		"{\"a\": 1,\n \"b\": object.status.phase}": "line 2, column 20: no such key: status",
		`1 / (size(event.summary) - 15)`:           "line 1, column 3: division by zero",
		`0.0 / double(0)`:                          "has no JSON form",
		`int(object.spec.text)`:                    "line 1, column 4: ",
		`{dyn(1): "a", dyn("1"): "b"}`:             "two keys \"1\"",
	} {
		e := deployment()
		_, err := compile(t, expr).Render(e)
		if err == nil || !strings.Contains(err.Error(), want) || e.Body != nil {
			t.Errorf("%s: error %v, body %s; %q is wanted", expr, err, e.Body, want)
		}
	}
}

// TestBounds: what would take all memory, or minutes, fails.
func TestBounds(t *testing.T) {
	e := deployment()
	items := strings.TrimSuffix(strings.Repeat(`"abcdefghij",`, 20_000), ",")
	rows := strings.TrimSuffix(strings.Repeat("["+strings.Repeat("0,", 115)+"1],", 2000), ",")
	deep := strings.Repeat(`[{"a":`, 100) + "[1" + strings.Repeat(",1", 100) + "]" + strings.Repeat("}]", 100)
	e.Object = json.RawMessage(`{"text":"` + strings.Repeat("a", 1<<20) + `","list":[` + items + `],"rows":[` + rows + `],"deep":` + deep + `}`)
	tight := func(expr string) *Body { // a tenth of the real cost
		b, faults := compileWithin(celexpr.Limits{Cost: 500_000, Memory: 16 << 20}, expr, "")
		if faults != nil {
			t.Fatalf("%s: %v", expr, faults)
		}
		return b
	}
	for _, expr := range []string{
		`object.text.replace("a", object.text)`,
		`object.text.replace("", object.text)`,
		`object.list.join(object.text)`,
		`object.list.map(i, object.text).join("")`,
		`"%s%s%s%s%s".format([object.text, object.text, object.text, object.text, object.text])`,
		`"%s%s%s%s%s".format([[object.text], [object.text], [object.text], [object.text], [object.text]])`,
		`"%s".format([object.deep])`,
		`cel.bind(all, [object.text, object.text, object.text, object.text, object.deep], "%s".format([all]) != "")`,
		`object.deep.flatten(33)`,
		`object.list.distinct()`,
		`object.rows.distinct()`,
		`object.text.indexOf(object.text.substring(0, 500000) + "b")`,
		`object.text.lastIndexOf(object.text.substring(0, 500000) + "b")`,
		`object.list.all(i, json.encode(object) != "")`,
		`object.list.all(i, json.encode(event).size() > 0)`,
		`object.list.all(i, base64.encode(bytes(object.text)).size() > 0)`,
		`object.list.all(i, "%s".format([object.text]).size() > 0)`,
		`object.list.all(i, [object.rows] == [object.rows])`,
		`object.list.map(i, object.list)`,
		`object.list.map(i, object.list).flatten()`,
		`object.list.map(a, object.list.map(b, object.list.map(c, a + b + c)))`,
		`object.list.all(a, object.list.all(b, object.list.all(c, a != b || b != c || true)))`,
		`object.list.all(a, object.list.filter(b, false).size() == 0)`,
		`object.list.all(a, [object.text, object.text].distinct().size() == 1)`,
		`object.list.transformMap(i, v, v)`,
		`object.list.transformMapEntry(i, v, {string(i): v})`,
		`object.rows.map(r, object.list.slice(0, 2000).transformMap(i, v, v).size())`,
		`object.rows.map(r, object.list.slice(0, 2000).transformMapEntry(i, v, {i: v}).size())`,
		`object.list.all(i, object.text.all(c, c != ""))`,
		`[object.text, object.text, object.text, object.text]`,
		`object.text + object.text + object.text + object.text + object.text`,
		`json.encode([object.text, object.text, object.text, object.text, object.text])`,
		`object.text.matches("(?:a?){500}a{500}$")`,
		`lists.range(1000000000)`,
	} {
		if _, err := tight(expr).Render(e); err == nil {
			t.Errorf("%s: %d bytes and no error", expr, len(e.Body))
		} else if len(err.Error()) > 400 {
			t.Errorf("%s: the error is %v", expr, err)
		}
	}
	for _, expr := range []string{`object`, `{"o": object, "e": event.data}`, `object.list.join("\n")`, `object.list.map(i, i + "!")`, `object.list.slice(0, 2000).transformMap(i, v, v)`, `object.list.map(i, i).sort().size()`, `object.list.slice(0, 1000).distinct().size()`, `object.text.replace("a", "b")`} {
		if _, err := compile(t, expr).Render(e); err != nil {
			t.Errorf("%s: %v", expr, err)
		}
	}
}

// TestGuardsOfRefused: a call that prints, joins or flattens nothing of a list does not look at all of it first, for which nothing is charged.
func TestGuardsOfRefused(t *testing.T) {
	e := deployment()
	items := strings.TrimSuffix(strings.Repeat(`[1.5],`, 2000), ",")
	e.Object = json.RawMessage(`{"list":[` + items + `],"depth":"1"}`)
	for _, expr := range []string{`"a".format(object.list) == "a"`, `object.list.join("") == "" || true`, `object.list.flatten(object.depth) == [] || true`} {
		b := compile(t, `object.list.all(i, `+expr+`)`)
		testkit.Allocates(t, 10<<20, func() {
			if _, err := b.Render(e); err != nil || string(e.Body) != "true" {
				t.Errorf("%s: %s, %v", expr, e.Body, err)
			}
		})
	}
}

func TestReads(t *testing.T) {
	const o, old, patch, sum = record.Object, record.OldObject, record.Patch, record.Summary
	for expr, want := range map[string]record.Flags{
		`event.name`:                             0,
		`metadata.name + metadata.uid`:           0,
		`metadata.labels`:                        o,
		`metadata`:                               o,
		`object.spec`:                            o,
		`[object.spec, oldObject.spec]`:          o | old,
		`patch`:                                  patch,
		`event.summary`:                          sum,
		`event.?summary.orValue("")`:             sum,
		`has(event.oldObject)`:                   old,
		`events.map(e, e.summary)`:               sum,
		`events.map(e, e.metadata.labels)`:       o,
		`events.map(e, e.metadata.name)`:         0,
		`events[0].patch[0].path`:                patch,
		`event.data`:                             0,
		`object.spec.containers.map(c, c.image)`: o,
	} {
		if got := compile(t, expr).Reads(); got != want {
			t.Errorf("%s reads %b, not %b", expr, got, want)
		}
	}
}

func TestJoin(t *testing.T) {
	first, second := deployment(), deployment()
	second.Name, second.Object = "api", json.RawMessage(`{"spec":{"replicas":1}}`)
	body, contentType, err := compile(t, `events.map(e, json.encode({"n": e.name, "r": e.object.spec.replicas})).join("\n")`).Join([]*event.Event{first, second})
	if err != nil || string(body) != `{"n":"web","r":5}`+"\n"+`{"n":"api","r":1}` || contentType != "text/plain; charset=utf-8" {
		t.Errorf("body %s of type %s, %v", body, contentType, err)
	}
}

func BenchmarkRender(b *testing.B) {
	e := deployment()
	for name, expr := range map[string]string{
		"text":    `{"text": event.changedBy.manager + ": " + event.summary}`,
		"object":  `{"name": event.name, "spec": object.spec}`,
		"listing": `object.spec.containers.map(c, c.image).join(", ")`,
	} {
		b.Run(name, func(b *testing.B) {
			body := compile(b, expr)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := body.Render(e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// No text makes compiling or rendering panic, and what compiles ends within its bounds.
func FuzzBody(f *testing.F) {
	for _, text := range []string{
		`{"text": event.summary}`, `object.spec.containers.map(c, c.image).join(", ")`, `events.map(e, {"id": e.event.id})`, `json.encode(event)`, `patch`, `null`, `optional.none()`,
		`"a".replace("a", "b")`, `base64.encode(bytes(object.metadata.name))`, `{1: 2}`, `dyn(1u)`, `timestamp("2020-01-01T00:00:00Z")`, `b"\xff"`, "\x00", "((((",
	} {
		f.Add(text, "")
	}
	f.Fuzz(func(t *testing.T, text, contentType string) {
		b, faults := Compile(text, contentType)
		if (b == nil) == (len(faults) == 0) {
			t.Fatalf("neither compiled nor refused, or both: %v", faults)
		}
		if b == nil {
			return
		}
		e := deployment()
		begin := time.Now()
		if send, err := b.Render(e); send != (e.Body != nil && err == nil) {
			t.Errorf("send %t, body %q, error %v", send, e.Body, err)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

// TestRenderOfWhatRoutesHold reads the members that a throttle and a for give an event.
func TestRenderOfWhatRoutesHold(t *testing.T) {
	e := deployment()
	e.Coalesced, e.For = 4, &event.For{Since: e.Time.Add(-10 * time.Minute)}
	_, err := compile(t, `event.name + " for " + string((event.time - event.for.since).getMinutes()) + "m, " + string(event.coalesced)`).Render(e)
	if err != nil || string(e.Body) != "web for 10m, 4" {
		t.Errorf("%s, %v", e.Body, err)
	}
}

// TestOldObjectInALoop: what a loop reads of the old object, or of the patch, is not looked for in all of it each time, which took
// ten seconds and made dead letters of objects of 400 KB.
func TestOldObjectInALoop(t *testing.T) {
	var data strings.Builder
	const keys = 2_000
	for i := range keys {
		fmt.Fprintf(&data, `,"k%d":"v"`, i)
	}
	raw := json.RawMessage(`{"data":{"d":"v"` + data.String() + `}}`)
	e := &event.Event{Type: event.Updated, Object: raw, OldObject: raw, Patch: raw}
	for _, text := range []string{
		`object.data.filter(k, object.data[k] != oldObject.data[k])`,
		`event.object.data.filter(k, event.object.data[k] != event.oldObject.data[k])`,
		`object.data.filter(k, object.data[k] != patch.data[k])`,
		`events[0].object.data.filter(k, events[0].patch.data[k] != events[0].oldObject.data[k])`,
	} {
		b, faults := Compile(text, "")
		if faults != nil {
			t.Fatalf("%s: %v", text, faults)
		}
		testkit.Allocates(t, keys*keys*4, func() {
			if body, _, err := b.Join([]*event.Event{e}); err != nil || string(body) != "[]" {
				t.Errorf("%s: %s, %v", text, body, err)
			}
		})
	}
}
