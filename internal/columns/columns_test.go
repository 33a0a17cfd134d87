package columns

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var made = time.Date(2026, 1, 31, 10, 0, 0, 0, time.UTC)

// TestKinds: the rows of common kinds read as those of kubectl.
func TestKinds(t *testing.T) {
	const container = `"spec":{"nodeName":"n1","initContainers":[{"name":"i"},{"name":"j"}],"containers":[{"name":"c","image":"nginx:3"},{"name":"d","image":"side:1"}]},"status":`
	const sidecar = `"spec":{"initContainers":[{"name":"s","restartPolicy":"Always"}],"containers":[{"name":"c"}]},"status":`
	for _, tc := range []struct{ name, kind, rest, want string }{
		{"unknown kind", "example.com/v1/Widget", `"spec":{}`, "Name=o Age=5h"},
		{"metadata only", "v1/PartialObjectMetadata", `"spec":{}`, "Name=o Age=5h"},
		{"no creation time", "v1/ConfigMap", `"data":{"a":"b"},"binaryData":{"c":""}`, "Name=o Data=2 Age=5h"},
		{"running pod", "v1/Pod", container + `{"phase":"Running","podIP":"10.0.0.1","containerStatuses":[{"ready":true,"restartCount":2,"state":{"running":{}}},{"restartCount":1,"state":{"running":{}}}]}`, "Name=o Ready=1/2 Status=Running Restarts=3 Age=5h IP*=10.0.0.1 Node*=n1"},
		{"crashing pod", "v1/Pod", container + `{"phase":"Running","containerStatuses":[{"state":{"waiting":{"reason":"CrashLoopBackOff"}}},{"ready":true,"state":{"running":{}}}]}`, "Name=o Ready=1/2 Status=CrashLoopBackOff Restarts=0 Age=5h IP*=<none> Node*=n1"},
		{"killed container", "v1/Pod", container + `{"phase":"Running","containerStatuses":[{"state":{"terminated":{"signal":9,"exitCode":137}}}]}`, "Name=o Ready=0/2 Status=Signal:9 Restarts=0 Age=5h IP*=<none> Node*=n1"},
		{"finished container", "v1/Pod", container + `{"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"state":{"terminated":{"reason":"Completed"}}},{"ready":true,"state":{"running":{}}}]}`, "Name=o Ready=1/2 Status=Running Restarts=0 Age=5h IP*=<none> Node*=n1"},
		{"second init container", "v1/Pod", container + `{"phase":"Pending","initContainerStatuses":[{"state":{"terminated":{"exitCode":0}}},{"state":{"running":{}}}]}`, "Name=o Ready=0/2 Status=Init:1/2 Restarts=0 Age=5h IP*=<none> Node*=n1"},
		{"failed init container", "v1/Pod", container + `{"phase":"Pending","initContainerStatuses":[{"state":{"terminated":{"exitCode":3}}}]}`, "Name=o Ready=0/2 Status=Init:ExitCode:3 Restarts=0 Age=5h IP*=<none> Node*=n1"},
		{"gated pod", "v1/Pod", container + `{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"SchedulingGated"}]}`, "Name=o Ready=0/2 Status=SchedulingGated Restarts=0 Age=5h IP*=<none> Node*=n1"},
		{"ready sidecar", "v1/Pod", sidecar + `{"phase":"Running","initContainerStatuses":[{"name":"s","ready":true,"started":true,"restartCount":2,"state":{"running":{}}}],"containerStatuses":[{"ready":true,"restartCount":1,"state":{"running":{}}}]}`, "Name=o Ready=2/2 Status=Running Restarts=3 Age=5h IP*=<none> Node*=<none>"},
		{"sidecar that is not ready", "v1/Pod", sidecar + `{"phase":"Running","initContainerStatuses":[{"name":"s","started":true,"state":{"running":{}}}],"containerStatuses":[{"ready":true,"state":{"running":{}}}]}`, "Name=o Ready=1/2 Status=Running Restarts=0 Age=5h IP*=<none> Node*=<none>"},
		{"crashing init container", "v1/Pod", container + `{"phase":"Pending","initContainerStatuses":[{"restartCount":1,"state":{"terminated":{"exitCode":0,"reason":"Completed"}}},{"restartCount":5,"state":{"waiting":{"reason":"CrashLoopBackOff"}},"lastState":{"terminated":{"finishedAt":"2026-01-31T14:50:00Z"}}}],"containerStatuses":[{"state":{"waiting":{"reason":"PodInitializing"}}}]}`, "Name=o Ready=0/2 Status=Init:CrashLoopBackOff Restarts=6 (10m ago) Age=5h IP*=<none> Node*=n1"},
		{"init container that runs", "v1/Pod", container + `{"phase":"Pending","initContainerStatuses":[{"started":true,"state":{"running":{}}}],"containerStatuses":[{"state":{"waiting":{"reason":"PodInitializing"}}}]}`, "Name=o Ready=0/2 Status=Init:0/2 Restarts=0 Age=5h IP*=<none> Node*=n1"},
		{"pod that was initialized", "v1/Pod", container + `{"phase":"Running","conditions":[{"type":"Initialized","status":"True"}],"initContainerStatuses":[{"restartCount":2,"state":{"terminated":{"exitCode":1,"reason":"Error"}}}],"containerStatuses":[{"ready":true,"state":{"running":{}}}]}`, "Name=o Ready=1/2 Status=Init:Error Restarts=0 Age=5h IP*=<none> Node*=n1"},
		{"restarted pod", "v1/Pod", container + `{"phase":"Running","containerStatuses":[{"ready":true,"restartCount":2,"state":{"running":{}},"lastState":{"terminated":{"finishedAt":"2026-01-31T14:00:00Z"}}}]}`, "Name=o Ready=1/2 Status=Running Restarts=2 (60m ago) Age=5h IP*=<none> Node*=n1"},
		{"finished container of a pod that is not ready", "v1/Pod", container + `{"phase":"Running","conditions":[{"type":"Ready","status":"False"}],"containerStatuses":[{"state":{"terminated":{"reason":"Completed"}}},{"ready":true,"state":{"running":{}}}]}`, "Name=o Ready=1/2 Status=NotReady Restarts=0 Age=5h IP*=<none> Node*=n1"},
		{"finished and failed containers", "v1/Pod", container + `{"phase":"Failed","containerStatuses":[{"state":{"terminated":{"reason":"Completed"}}},{"state":{"terminated":{"reason":"Error","exitCode":1}}}]}`, "Name=o Ready=0/2 Status=Error Restarts=0 Age=5h IP*=<none> Node*=n1"},
		{"evicted pod", "v1/Pod", container + `{"phase":"Failed","reason":"Evicted"}`, "Name=o Ready=0/2 Status=Evicted Restarts=0 Age=5h IP*=<none> Node*=n1"},
		{"deployment", "apps/v1/Deployment", `"spec":{"replicas":3,"template":{"spec":{"containers":[{"image":"nginx:3"},{"image":"side:1"}]}}},"status":{"readyReplicas":2,"updatedReplicas":3,"availableReplicas":2}`, "Name=o Ready=2/3 Up-to-date=3 Available=2 Age=5h Images*=nginx:3,side:1"},
		{"replicas are not set", "apps/v1/StatefulSet", `"status":{}`, "Name=o Ready=0/1 Age=5h Images*=<none>"},
		{"redacted secret", "v1/Secret", `"type":"Opaque","data":{"a":"(redacted)","b":{"hash":1}}`, "Name=o Type=Opaque Data=2 Age=5h"},
		{"service", "v1/Service", `"spec":{"type":"LoadBalancer","clusterIP":"10.0.0.9","selector":{"app":"web"},"ports":[{"port":80,"nodePort":30080,"protocol":"TCP"},{"port":53,"protocol":"UDP"}]}`, "Name=o Type=LoadBalancer Cluster-IP=10.0.0.9 External-IP=<pending> Port(s)=80:30080/TCP,53/UDP Age=5h Selector*=app=web"},
		{"node", "v1/Node", `"spec":{"unschedulable":true},"status":{"conditions":[{"type":"Ready","status":"True"}],"nodeInfo":{"kubeletVersion":"v1.37.0"}}`, "Name=o Status=Ready,SchedulingDisabled Roles=<none> Age=5h Version=v1.37.0 Internal-IP*=<none>"},
		{"event", "v1/Event", `"lastTimestamp":"2026-01-31T14:59:00Z","type":"Warning","reason":"BackOff","involvedObject":{"kind":"Pod","name":"web"},"message":"again\n"`, "Name=o Last Seen=60s Type=Warning Reason=BackOff Object=pod/web Message=again"},
		{"event of a series", "v1/Event", `"eventTime":"2026-01-31T10:00:00.000000Z","series":{"count":7,"lastObservedTime":"2026-01-31T14:59:00.000000Z"},"involvedObject":{"kind":"Node"}`, "Name=o Last Seen=60s Type= Reason= Object=node Message="},
		{"event that was seen once", "v1/Event", `"firstTimestamp":"2026-01-31T14:59:00Z"`, "Name=o Last Seen=60s Type= Reason= Object= Message="},
		{"parallel job", "batch/v1/Job", `"spec":{"parallelism":3}`, "Name=o Status=Running Completions=0/1 of 3 Duration= Age=5h Images*=<none>"},
		{"claim without a volume", "v1/PersistentVolumeClaim", `"status":{"phase":"Pending","capacity":{"storage":"5Gi"}}`, "Name=o Status=Pending Volume= Capacity= StorageClass= Age=5h"},
		{"claim with a volume", "v1/PersistentVolumeClaim", `"spec":{"volumeName":"v","storageClassName":"fast"},"status":{"phase":"Bound","capacity":{"storage":"5Gi"}}`, "Name=o Status=Bound Volume=v Capacity=5Gi StorageClass=fast Age=5h"},
		{"cron job", "batch/v1/CronJob", `"spec":{"schedule":"@daily","suspend":true}`, "Name=o Schedule=@daily Suspend=True Active=0 Last Schedule=<none> Age=5h"},
		{"ingress of all hosts", "networking.k8s.io/v1/Ingress", `"spec":{}`, "Name=o Class=<none> Hosts=* Address= Age=5h"},
		{"job", "batch/v1/Job", `"spec":{"completions":2},"status":{"succeeded":2,"startTime":"2026-01-31T10:00:00Z","completionTime":"2026-01-31T10:01:00Z","conditions":[{"type":"Complete","status":"True"}]}`, "Name=o Status=Complete Completions=2/2 Duration=60s Age=5h Images*=<none>"},
		{"ingress", "networking.k8s.io/v1/Ingress", `"spec":{"rules":[{"host":"a.example"},{}]}`, "Name=o Class=<none> Hosts=a.example,* Address= Age=5h"},
	} {
		i := strings.LastIndexByte(tc.kind, '/')
		gv, err := schema.ParseGroupVersion(tc.kind[:i])
		if err != nil {
			t.Fatal(err)
		}
		raw := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"o","creationTimestamp":%q},%s}`, gv, tc.kind[i+1:], made.Format(time.RFC3339), tc.rest)
		table := Of(schema.GroupKind{Group: gv.Group, Kind: tc.kind[i+1:]}, nil)
		if got := show(t, table, raw); got != tc.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tc.name, got, tc.want)
		}
	}
	for kind := range kinds {
		if got := show(t, Of(kind, nil), `{"kind":"K","metadata":{"name":"o"}}`); !strings.Contains(got, "Name=o") || strings.Count(got, "=<unknown>") > 2 {
			t.Errorf("an empty %s: %s", kind, got)
		}
	}
}

// TestDeletionInRows: a kind that kubectl shows as terminating is that from the request on.
func TestDeletionInRows(t *testing.T) {
	for kind, statuses := range map[schema.GroupKind]map[string]string{
		{Kind: "Pod"}:                   {`{"phase":"Running"}`: "Terminating", `{"phase":"Succeeded"}`: "Succeeded", `{"phase":"Running","reason":"NodeLost"}`: "Unknown"},
		{Kind: "PersistentVolume"}:      {`{"phase":"Bound"}`: "Terminating"},
		{Kind: "PersistentVolumeClaim"}: {`{"phase":"Bound"}`: "Terminating"},
		{Group: "batch", Kind: "Job"}:   {`{}`: "Terminating", `{"conditions":[{"type":"Complete","status":"True"}]}`: "Complete"},
	} {
		for status, want := range statuses {
			raw := fmt.Sprintf(`{"metadata":{"name":"o","deletionTimestamp":%q},"status":%s}`, made.Format(time.RFC3339), status)
			if got := show(t, Of(kind, nil), raw); !strings.Contains(got, " Status="+want+" ") {
				t.Errorf("%s %s: %s", kind, status, got)
			}
		}
	}
}

func show(t *testing.T, table *Table, raw string) string {
	t.Helper()
	row, err := table.Row([]byte(raw), made.Add(5*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if len(row) != len(table.Columns) {
		t.Fatalf("%d cells, %d columns", len(row), len(table.Columns))
	}
	var cells []string
	for i, c := range table.Columns {
		mark := ""
		if c.Priority > 0 {
			mark = "*"
		}
		cells = append(cells, fmt.Sprintf("%s%s=%v", c.Name, mark, row[i]))
	}
	return strings.Join(cells, " ")
}

// TestPrinterColumns: those of the version, and no cell of a value that is missing or of another type.
func TestPrinterColumns(t *testing.T) {
	definition := []byte(`{"spec":{"versions":[{"name":"v1"},{"name":"v2","additionalPrinterColumns":[
		{"name":"Size","type":"string","jsonPath":".spec.size"},{"name":"Count","type":"integer","jsonPath":".spec.size"},
		{"name":"Since","type":"date","jsonPath":".metadata.creationTimestamp","priority":1},{"name":"Broken","type":"string","jsonPath":".spec["}]}]}}`)
	for version, want := range map[string]int{"v1": 0, "v2": 4, "v3": 0} {
		if own, err := OfDefinition(definition, version); err != nil || len(own) != want {
			t.Errorf("%s: %v, %v", version, own, err)
		}
	}
	if _, err := OfDefinition([]byte("["), "v1"); err == nil {
		t.Error("a definition that is not JSON")
	}
	own, err := OfDefinition(definition, "v2")
	if err != nil {
		t.Fatal(err)
	}
	table := Of(schema.GroupKind{Group: "example.com", Kind: "Shirt"}, own)
	for raw, want := range map[string]string{
		`{"metadata":{"name":"a","creationTimestamp":"2026-01-31T11:00:00Z"},"spec":{"size":"big"}}`: "Name=a Size=big Count=<nil> Since*=4h",
		`{"metadata":{"name":"a"},"spec":{"size":7}}`:                                                "Name=a Size=7 Count=7 Since*=<nil>",
	} {
		if diff := cmp.Diff(want, show(t, table, raw)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestColumnOfSeveralValues: a cell has what the API server shows, which is the first value that a path finds.
func TestColumnOfSeveralValues(t *testing.T) {
	for _, tc := range []struct{ kind, path, want string }{
		{"string", `.status.conditions[?(@.type=="Ready")].status`, "True"},
		{"string", ".spec.list[*]", "a"},
		{"string", ".spec.none", "<no value>"},
		{"string", ".spec.list", `["a",2]`},
		{"date", ".spec.list[0]", "<invalid>"},
		{"date", ".spec.list[1]", "<nil>"},
	} {
		table := Of(schema.GroupKind{}, []Column{{Name: "C", Type: tc.kind, JSONPath: tc.path}})
		raw := `{"metadata":{"name":"o"},"spec":{"list":["a",2],"none":null},"status":{"conditions":[{"type":"Ready","status":"True"},{"type":"Ready","status":"False"}]}}`
		if got := show(t, table, raw); got != "Name=o C="+tc.want {
			t.Errorf("%s %s: %s, want %s", tc.kind, tc.path, got, tc.want)
		}
	}
}

// TestHostileColumns: no path takes more than one look at each value of an object, no cell is
// as long as the object, and the number of columns is bounded.
func TestHostileColumns(t *testing.T) {
	for path, shown := range map[string]bool{
		".spec.a": true, ".spec.a[0].b": true, ".spec.a[*].b[1:3]": true, `.spec.a[?(@.b=="c")].d`: true, `.metadata.annotations['a\.b/c']`: true,
		".spec..b": false, "..*..*..*": false, ".spec['a','a']['b','b']": false, "[0,0][0,0]": false, ".a[?(@..b==1)]": false, ".a[?(1==@['b','b'])]": false,
		".a}{range .b[*]}{range .b[*]}{.c}{end}{end}{.d": false, ".a}{end}{.d": false,
	} {
		table := Of(schema.GroupKind{}, []Column{{Name: "c", Type: "string", JSONPath: path}})
		if got := len(table.Columns) == 2; got != shown {
			t.Errorf("%s is shown: %t", path, got)
		}
	}
	many := make([]Column, 1000)
	for i := range many {
		many[i] = Column{Name: "c", Type: "string", JSONPath: ".spec"}
	}
	large := `{"metadata":{"name":"a"},"spec":["` + strings.Repeat("ä", 100_000) + `"]}`
	row, err := Of(schema.GroupKind{}, many).Row([]byte(large), made)
	if err != nil || len(row) != 1+maxColumns {
		t.Fatalf("%d cells, %v", len(row), err)
	}
	if text, ok := row[1].(string); !ok || len(text) > maxCell || !utf8.ValidString(text) {
		t.Errorf("a cell of %d bytes", len(fmt.Sprint(row[1])))
	}
	many[0].JSONPath = strings.Repeat(".spec", maxPaths/5) + ".spec"
	if table := Of(schema.GroupKind{}, many[:1]); len(table.Columns) != 1 {
		t.Error("a path of any length is shown")
	}
}

// TestUnreadableFields: an object with fields of other types, as redaction makes them, has a row, and so has
// one with a number that no type holds.
func TestUnreadableFields(t *testing.T) {
	raw := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"o","creationTimestamp":"2026-01-31T10:00:00Z"},"spec":{"containers":[{"ports":"(redacted)"}]},"status":{"phase":"Running","containerStatuses":[{"restartCount":"(redacted)","ready":true}]}}`
	if got, want := show(t, Of(schema.GroupKind{Kind: "Pod"}, nil), raw), "Name=o Ready=1/1 Status=Running Restarts=0 Age=5h IP*=<none> Node*=<none>"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	own := []Column{{Name: "A", Type: "string", JSONPath: ".a"}}
	if got, want := show(t, Of(schema.GroupKind{}, own), `{"metadata":{"name":"o"},"a":"b","n":1e999}`), "Name=o A=<nil>"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
