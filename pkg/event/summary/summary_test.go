package summary_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/summary"
)

func update(before, after string) *event.Event {
	return &event.Event{Type: event.Updated, OldObject: json.RawMessage(before), Object: json.RawMessage(after)}
}

const deployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","resourceVersion":"1","generation":1,"labels":{"tier":"web"},` +
	`"annotations":{"deployment.kubernetes.io/revision":"1"},"managedFields":[{"manager":"a"}]},"spec":{"replicas":3,"template":{"metadata":{"labels":{"app":"web"}},` +
	`"spec":{"containers":[{"name":"web","image":"registry.example.com:5000/shop/web:1.4","env":[{"name":"LEVEL","value":"info"}],"resources":{"limits":{"memory":"1Gi"}},"args":["--a","--b"]},` +
	`{"name":"proxy","image":"envoy@sha256:aaaa"}],"volumes":[{"name":"cfg","configMap":{"name":"a"}}]}}},` +
	`"status":{"replicas":3,"observedGeneration":1,"conditions":[{"type":"Available","status":"True","reason":"MinimumReplicasAvailable","lastUpdateTime":"2026-01-01T00:00:00Z"},{"type":"Progressing","status":"True"}]}}`

const node = `{"kind":"Node","metadata":{"name":"n1","resourceVersion":"1"},"spec":{"unschedulable":false},"status":{"conditions":[` +
	`{"type":"MemoryPressure","status":"False","lastHeartbeatTime":"10:00"},` +
	`{"type":"Ready","status":"True","reason":"KubeletReady","message":"kubelet is posting ready status","lastHeartbeatTime":"10:00","lastTransitionTime":"9:00"}],` +
	`"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}`

// replaced applies pairs of old and new text.
func replaced(s string, pairs ...string) string {
	out := strings.NewReplacer(pairs...).Replace(s)
	if out == s && len(pairs) > 0 {
		panic("nothing is replaced")
	}
	return out
}

func TestOf(t *testing.T) {
	long := strings.Repeat("x", 60)
	for _, tc := range []struct{ name, before, after, want string }{
		{
			"image and replicas", deployment,
			replaced(deployment, `web:1.4`, `web:1.5`, `"replicas":3,"template"`, `"replicas":5,"template"`, `"resourceVersion":"1","generation":1`, `"resourceVersion":"2","generation":2`, `{"manager":"a"}`, `{"manager":"b"}`),
			"image of container web 1.4 -> 1.5, replicas 3 -> 5",
		},
		{"another repository", deployment, replaced(deployment, `shop/web:1.4`, `web:1.4`), "image of container web registry.example.com:5000/shop/web:1.4 -> registry.example.com:5000/web:1.4"},
		{"digest", deployment, replaced(deployment, `sha256:aaaa`, `sha256:bbbb`), "image of container proxy sha256:aaaa -> sha256:bbbb"},
		{"status is behind the spec", deployment, replaced(deployment, `{"replicas":3,"observedGeneration":1`, `{"replicas":4,"observedGeneration":2`, `"replicas":3,"template"`, `"replicas":4,"template"`, `"tier":"web"`, `"tier":"db"`), "replicas 3 -> 4, label tier web -> db, status.replicas 3 -> 4, status.observedGeneration 1 -> 2"},
		{"container added", deployment, replaced(deployment, `{"name":"proxy"`, `{"name":"log","image":"log:2"},{"name":"proxy"`), "container log added (log:2)"},
		{"container removed", replaced(deployment, `{"name":"proxy"`, `{"name":"log","image":"log:2"},{"name":"proxy"`), deployment, "container log removed (log:2)"},
		{"env", deployment, replaced(deployment, `"value":"info"`, `"value":"debug"`), "env LEVEL of container web info -> debug"},
		{"env added", deployment, replaced(deployment, `"env":[`, `"env":[{"name":"A","value":"b c"},`), `env A of container web added ("b c")`},
		{"limits", deployment, replaced(deployment, `1Gi`, `2Gi`), "resources.limits.memory of container web 1Gi -> 2Gi"},
		{"args", deployment, replaced(deployment, `"--b"`, `"--c","--d"`), "args[1] of container web --b -> --c, args[2] of container web added (--d)"},
		{"item taken out of a list", `{"a":["1","2","3"]}`, `{"a":["1","3"]}`, "a[1] removed (2)"},
		{"volume", deployment, replaced(deployment, `{"name":"a"}`, `{"name":"b"}`), "configMap.name of volume cfg a -> b"},
		{"restart of a rollout", deployment, replaced(deployment, `{"labels":{"app":"web"}}`, `{"labels":{"app":"web"},"annotations":{"kubectl.kubernetes.io/restartedAt":"2026-11-21T10:00:00Z"}}`), "template annotation kubectl.kubernetes.io/restartedAt added (2026-11-21T10:00:00Z)"},
		{"order of items", deployment, replaced(deployment, `{"type":"Progressing","status":"True"}]`, `{"type":"A","status":"False"},{"type":"Progressing","status":"True"}]`), "condition A added (False)"},
		{"ConfigMap", `{"data":{"a":"1","app.yaml":"x"}}`, `{"data":{"app.yaml":"x","b":""}}`, `data a removed (1), data b added ("")`},
		{"whole data", `{"metadata":{"name":"a"}}`, `{"metadata":{"name":"a"},"data":{"k":"v"}}`, "data k added (v)"},
		{"lines of a file", `{"data":{"a":"first: line\nlevel: info\nlast: ` + long + `"}}`, `{"data":{"a":"first: line\nlevel: debug\nlast: ` + long + `"}}`, `data a "…line\nlevel: info\nlast: xxxxxxxxxxxxxxxxx…" -> "…line\nlevel: debug\nlast: xxxxxxxxxxxxxxxx…"`},
		{"Service ports", `{"spec":{"ports":[{"port":80,"targetPort":8080}]}}`, `{"spec":{"ports":[{"name":"http","port":80,"targetPort":8081},{"name":"metrics","port":9090}]}}`, "name of port 80 added (http), targetPort of port 80 8080 -> 8081, port 9090 added (9090)"},
		{"named ports", `{"spec":{"ports":[{"name":"a","port":80},{"name":"b","port":81}]}}`, `{"spec":{"ports":[{"name":"b","port":81},{"name":"a","port":82}]}}`, "port a 80 -> 82"},
		{"Node is not ready", node, replaced(node, `"status":"True","reason":"KubeletReady","message":"kubelet is posting ready status","lastHeartbeatTime":"10:00","lastTransitionTime":"9:00"`, `"status":"Unknown","reason":"NodeStatusUnknown","message":"gone","lastHeartbeatTime":"10:01","lastTransitionTime":"10:01"`), "condition Ready True -> Unknown (NodeStatusUnknown)"},
		{"heartbeat", node, replaced(node, `10:00`, `10:05`), "lastHeartbeatTime of condition MemoryPressure 10:00 -> 10:05, lastHeartbeatTime of condition Ready 10:00 -> 10:05"},
		{"cordon", node, replaced(node, `"unschedulable":false`, `"unschedulable":true,"taints":[{"key":"node.kubernetes.io/unschedulable","effect":"NoSchedule"}]`), "taints added, unschedulable false -> true"},
		{"address", node, replaced(node, `10.0.0.1`, `10.0.0.2`), "address InternalIP 10.0.0.1 -> 10.0.0.2"},
		{"custom resource", `{"spec":{"a":{"b":{"c":{"d":{"e":1}}}},"gone":{"x":1},"rules":[{"host":"a","x":1}],"l":[[1]]}}`, `{"spec":{"a":{"b":{"c":{"d":{"e":2}}}},"rules":[{"host":"a","x":2}],"l":[[2]]}}`, "…b.c.d.e 1 -> 2, gone removed, l[0][0] 1 -> 2, x of rule a 1 -> 2"},
		{"items without a key", `{"rules":[{"verbs":["get"]},{"verbs":["list"]}]}`, `{"rules":[{"verbs":["get"]},{"verbs":["watch"]}]}`, "rules[1].verbs[0] list -> watch"},
		{"items that share their key", `{"l":[{"name":"a","x":1},{"name":"a","x":2}]}`, `{"l":[{"name":"a","x":1},{"name":"a","x":3}]}`, "l[1].x 2 -> 3"},
		{"types", `{"a":1,"b":"1","c":{"x":1}}`, `{"a":"1","b":[1],"c":null}`, "a 1 -> 1, b changed, c changed"},
		{"many", `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}`, `{"a":2,"b":2,"c":2,"d":2,"e":2,"f":2}`, "a 1 -> 2, b 1 -> 2, c 1 -> 2, d 1 -> 2, +2 more"},
		{"large numbers", `{"a":9007199254740993}`, `{"a":9007199254740992}`, "a 9007199254740993 -> 9007199254740992"},
		{"deletion", `{"metadata":{"name":"a"},"spec":{"image":"a:1"}}`, `{"metadata":{"name":"a","deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{}}`, "deletionTimestamp added (2026-01-01T00:00:00Z), image removed (a:1)"},
		{"a Secret", `{"data":{"k":"redacted:hmac-sha256:0123456789abcdef","l":"redacted:hmac-sha256:0123456789abcdef"}}`, `{"data":{"k":"redacted:hmac-sha256:0123456789abcdee","m":"redacted:hmac-sha256:0123456789abcdef"}}`, "data k changed (redacted), data l removed (redacted), data m added (redacted)"},
		{"newly redacted", `{"data":{"k":1}}`, `{"data":{"k":"redacted:hmac-sha256:0123456789abcdee"}}`, "data k 1 -> (redacted)"},
		{"escapes alone", `{"a":"x"}`, `{"a":"\u0078"}`, "no visible change"},
		{"white space and order", ` {"a":1,"b":{"c":2}} `, `{"b": {"c":2}, "a":1}`, "no visible change"},
		{"bookkeeping", `{"metadata":{"resourceVersion":"1","generation":1,"managedFields":[]}}`, `{"metadata":{"resourceVersion":"2","generation":2}}`, "no visible change"},
		{"only the state after", ``, `{"a":1}`, ""},
		{"forgery", `{"data":{"a":"x"}}`, `{"data":{"a":"y, replicas 3 -> 500\u001b[2J\u202e\u0000"}}`, `data a x -> "y, replicas 3 -> 500�[2J��"`},
	} {
		if got := summary.Of(update(tc.before, tc.after)); got != tc.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tc.name, got, tc.want)
		}
	}
}

// said is an event about a Kubernetes Event.
func said(t event.Type, object string) *event.Event {
	return &event.Event{Type: t, Resource: event.Resource{Version: "v1", Resource: "events", Kind: "Event"}, Object: json.RawMessage(object)}
}

func TestOtherEvents(t *testing.T) {
	const before, after = `{"a":1}`, `{"a":2}`
	with := func(change func(e *event.Event)) *event.Event {
		e := update(before, after)
		change(e)
		return e
	}
	for _, tc := range []struct {
		name  string
		event *event.Event
		want  string
	}{
		{"added", &event.Event{Type: event.Added}, "added"},
		{"deleted", &event.Event{Type: event.Deleted}, "deleted"},
		{"sync", &event.Event{Type: event.Sync}, "exists"},
		{"gap", &event.Event{Type: event.Gap, Gap: &event.GapData{}}, ""},
		{"entered", with(func(e *event.Event) { e.Selection = event.Entered }), "entered the selection, a 1 -> 2"},
		{"left by its namespace", with(func(e *event.Event) { e.Selection, e.Object = event.Left, e.OldObject }), "left the selection"},
		{"left, and nothing known", &event.Event{Type: event.Updated, Selection: event.Left}, "left the selection"},
		{
			"patch",
			&event.Event{Type: event.Updated, Patch: json.RawMessage(`[{"op":"replace","path":"/metadata/resourceVersion","value":"2"},{"op":"test","path":"/x"},{"op":"replace","path":"/spec/replicas","value":5},` +
				`{"op":"add","path":"/metadata/annotations/a.b~1c","value":"v"},{"op":"remove","path":"/spec/ports/0"},{"op":"add","path":"/spec/l/-","value":{}}]`)},
			"replicas set to 5, ports[0] removed, l added, annotation a.b/c added (v)",
		},
		{"a Kubernetes Event", said(event.Added, `{"type":"Warning","reason":"BackOff","message":"Back-off\n restarting, \"web\"\u0007 ","count":12}`), "Warning BackOff: Back-off restarting, \"web\"\ufffd (12 times)"},
		{"of the other group", said(event.Updated, `{"type":"Normal","reason":"Pulled","note":"Image is there","deprecatedCount":0,"series":{"count":3}}`), "Pulled: Image is there (3 times)"},
		{"that exists", said(event.Sync, `{"reason":"Pulled","message":"","count":1}`), "Pulled"},
		{"with a redacted message", said(event.Added, `{"reason":"Pulled","message":"redacted:hmac-sha256:00"}`), "Pulled: (redacted)"},
		{"without a text", said(event.Added, `{"reason":1,"message":null}`), "added"},
		{"that is deleted", said(event.Deleted, `{"reason":"Pulled","message":"x"}`), "deleted"},
		{"no patch", &event.Event{Type: event.Updated, Patch: json.RawMessage(`{}`)}, ""},
		{"an empty patch", &event.Event{Type: event.Updated, Patch: json.RawMessage(`[]`)}, "no visible change"},
	} {
		if got := summary.Of(tc.event); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

// maxBytes is more than any line has.
const maxBytes = 1500

func check(t *testing.T, line string) {
	t.Helper()
	if len(line) > maxBytes || !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("%d bytes: %q", len(line), line)
	}
}

// TestBounds has the longest names and values, of the widest characters.
func TestBounds(t *testing.T) {
	wide, controls := strings.Repeat("𝒳", 5000), strings.Repeat(`\n`, 5000)
	for _, long := range []string{wide, controls, strings.Repeat(`\"`, 5000), strings.Repeat(`\\`, 5000)} {
		object := func(value string) string {
			item := fmt.Sprintf(`{"name":"%s","%s":[{"name":"%s","%s":{"%s":"%s"}}]}`, long, long, long, long, long, value+long)
			return fmt.Sprintf(`{"%s":[%s],"b":"%s","status":{"conditions":[{"type":"%s","status":"%s","reason":"%s"}]}}`, long, item, value+long, long, value+long, long)
		}
		check(t, summary.Of(update(object("a"), object("b"))))
	}
	check(t, summary.Of(said(event.Added, fmt.Sprintf(`{"type":"%[1]s","reason":"%[1]s","message":"%[1]s","count":99}`, strings.Repeat("𝒳 ", 5000)))))
	deep := func(value string) string { return strings.Repeat(`{"a":[`, 4000) + value + strings.Repeat(`]}`, 4000) }
	if got := summary.Of(update(deep("1"), deep("2"))); !strings.HasSuffix(got, " changed") {
		t.Errorf("deep: %s", got)
	}
}

// TestWork: an object that nests deep is compared to the end if it is small, and one of the API
// server's size as far as a few readings of it go. A long list takes no more than that.
func TestWork(t *testing.T) {
	deep := func(size int) string {
		return `{"spec":` + strings.Repeat(`[{"a":`, 12) + `[` + strings.Repeat("1,", size) + `LAST]` + strings.Repeat(`}]`, 12) + `}`
	}
	for name, tc := range map[string]struct{ object, want string }{
		"small": {deep(10), "…a[0].a[10] 1 -> 2"},
		"large": {deep(700_000), "[0].a[0] changed"},
		"long":  {`{"spec":{"list":[` + strings.Repeat(`{"v":1},`, 150_000) + `{"v":{"w":LAST}}]}}`, "list[150000].v.w 1 -> 2"},
	} {
		before, after := strings.Replace(tc.object, "LAST", "1", 1), strings.Replace(tc.object, "LAST", "2", 1)
		if line, ok := summary.Changes(update(before, after)); !ok || line != tc.want {
			t.Errorf("%s: %q, want %q", name, line, tc.want)
		}
	}
}

func FuzzOf(f *testing.F) {
	f.Add([]byte(deployment), []byte(replaced(deployment, `1.4`, `1.5`)))
	f.Add([]byte(node), []byte(replaced(node, `10:00`, `10:05`)))
	f.Add([]byte(`{"a":"é\u001b","b":[{"name":1},{"name":2}]}`), []byte(`{"a":"\ud800\n","b":[{"name":2}]}`))
	f.Add([]byte(`[{"op":"add","path":"/a~1b/0/-","value":"\n"}]`), []byte(`{`))
	f.Add([]byte(`"a"`), []byte(`"b"`))
	f.Add([]byte(`0`), []byte(`"`))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		for _, e := range []*event.Event{
			{Type: event.Updated, OldObject: before, Object: after},
			{Type: event.Updated, Patch: before},
		} {
			line := summary.Of(e)
			check(t, line)
			if again := summary.Of(e); again != line {
				t.Errorf("got %q, then %q", line, again)
			}
		}
	})
}

func BenchmarkOf(b *testing.B) {
	pod, err := os.ReadFile("../../../internal/route/testdata/pod.json")
	if err != nil {
		b.Fatal(err)
	}
	for _, bc := range []struct {
		name          string
		before, after []byte
	}{
		{"pod", pod, bytes.Replace(pod, []byte(`"phase":"Running"`), []byte(`"phase":"Failed"`), 1)},
		{"deployment", []byte(deployment), []byte(replaced(deployment, `web:1.4`, `web:1.5`, `"replicas":3,"template"`, `"replicas":5,"template"`))},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			e := &event.Event{Type: event.Updated, OldObject: bc.before, Object: bc.after}
			for b.Loop() {
				if summary.Of(e) == "" {
					b.Fatal("no summary")
				}
			}
			b.SetBytes(int64(len(bc.before)))
		})
	}
}
