package pretty_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/pretty"
)

func TestMain(m *testing.M) {
	time.Local = time.UTC // lines show local time
	os.Exit(m.Run())
}

func sample(change func(e *event.Event)) *event.Event {
	e := &event.Event{
		Type: event.Updated, Time: time.Date(2026, 11, 21, 6, 7, 8, 90e6, time.UTC),
		Resource:  event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"},
		Namespace: "prod", Name: "web", UID: "uid", ResourceVersion: "42",
	}
	if change != nil {
		change(e)
	}
	return e
}

func objects(old, cur string) func(e *event.Event) {
	return func(e *event.Event) { e.OldObject, e.Object = json.RawMessage(old), json.RawMessage(cur) }
}

func TestLines(t *testing.T) {
	for _, test := range []struct {
		name  string
		event *event.Event
		want  string
	}{
		{"added", sample(func(e *event.Event) { e.Type = event.Added }), "06:07:08.090 ADDED   Deployment   prod/web"},
		{"sync", sample(func(e *event.Event) { e.Type = event.Sync }), "06:07:08.090 SYNC    Deployment   prod/web"},
		{"rounded up", sample(func(e *event.Event) { e.Type, e.Time = event.Added, e.Time.Add(1) }), "06:07:08.091 ADDED   Deployment   prod/web"},
		{"cluster-wide", sample(func(e *event.Event) { e.Type, e.Namespace = event.Added, "" }), "06:07:08.090 ADDED   Deployment   web"},
		{"deleted", sample(func(e *event.Event) { e.Type, e.FinalStateUnknown = event.Deleted, true }), "06:07:08.090 DELETED Deployment   prod/web  final state unknown"},
		{"marks", sample(func(e *event.Event) { e.Type, e.Selection, e.Replay, e.Repair = event.Added, event.Entered, true, true }), "06:07:08.090 ADDED   Deployment   prod/web  entered selection  replay  repair"},
		{"long kind", sample(func(e *event.Event) { e.Type, e.Resource.Kind = event.Added, "CustomResourceDefinition" }), "06:07:08.090 ADDED   CustomResourceDefinition prod/web"},
		{"nothing known", sample(nil), "06:07:08.090 UPDATED Deployment   prod/web  version 42"},
		{"only the new object", sample(objects("", `{"a":1}`)), "06:07:08.090 UPDATED Deployment   prod/web  version 42"},
		{"the summary alone", sample(func(e *event.Event) { e.Summary = "left the selection, replicas 3 -> 5" }), "06:07:08.090 UPDATED Deployment   prod/web  left the selection, replicas 3 -> 5"},
		{
			"diff",
			sample(objects(
				`{"metadata":{"resourceVersion":"1","generation":1,"managedFields":[{"a":1}]},"spec":{"replicas":3,"list":[1,2],"gone":"x"}}`,
				`{"metadata":{"resourceVersion":"2","generation":2,"managedFields":[{"a":2}]},"spec":{"replicas":5,"list":[1,9],"new":{}}}`)),
			"06:07:08.090 UPDATED Deployment   prod/web  gone removed (x), list[1] 2 -> 9, new added, replicas 3 -> 5",
		},
		{"null and empty", sample(objects(`{"a":null,"b":""}`, `{"a":1,"b":true}`)), `06:07:08.090 UPDATED Deployment   prod/web  a null -> 1, b "" -> true`},
		{"only bookkeeping", sample(objects(`{"metadata":{"resourceVersion":"1"}}`, `{"metadata":{"resourceVersion":"2"}}`)), "06:07:08.090 UPDATED Deployment   prod/web"},
		{
			"patch",
			sample(func(e *event.Event) {
				e.Patch = json.RawMessage(`[{"op":"replace","path":"/metadata/resourceVersion","value":"2"},{"op":"test","path":"/x"},{"op":"add","path":"/metadata/annotations/a.b~1c","value":"v"},{"op":"remove","path":"/spec/ports/0"}]`)
			}),
			"06:07:08.090 UPDATED Deployment   prod/web  ports[0] removed, annotation a.b/c added (v)",
		},
		{"gap", sample(func(e *event.Event) {
			e.Type = event.Gap
			e.Gap = &event.GapData{Resource: event.Resource{Version: "v1", Resource: "pods"}, FromResourceVersion: "10", ToResourceVersion: "20", Cause: "expired"}
			e.Gap.From, e.Gap.To = e.Time.Add(-time.Minute), e.Time
		}), "06:07:08.090 GAP     pods.v1  nothing is known from 06:06:08.090 to 06:07:08.090 (expired, version 10 to 20)"},
		{"gap of an object since another day", sample(func(e *event.Event) {
			e.Type = event.Gap
			e.Gap = &event.GapData{Resource: event.Resource{Version: "v1", Resource: "pods"}, Namespace: "prod", Name: "web", Cause: "unreadable"}
			e.Gap.From, e.Gap.To = e.Time.Add(-24*time.Hour), e.Time
		}), "06:07:08.090 GAP     pods.v1 prod/web  nothing is known from 2026-11-20 06:07:08.090 to 06:07:08.090 (unreadable)"},
		{"gap that no list shows a change of", sample(func(e *event.Event) {
			e.Type = event.Gap
			e.Gap = &event.GapData{Resource: event.Resource{Version: "v1", Resource: "pods"}, Cause: "quiet"}
			e.Gap.From, e.Gap.To = e.Time.Add(-time.Minute), e.Time
		}), "06:07:08.090 GAP     pods.v1  no change was missed, except of objects that came and went, from 06:06:08.090 to 06:07:08.090 (quiet)"},
		{"gap of a sink in a namespace", sample(func(e *event.Event) {
			e.Type = event.Gap
			e.Gap = &event.GapData{Resource: event.Resource{Version: "v1", Resource: "pods"}, Namespace: "prod", Cause: "removed"}
			e.Gap.From, e.Gap.To = e.Time.Add(-time.Minute), e.Time
		}), "06:07:08.090 GAP     pods.v1 in prod  nothing is known from 06:06:08.090 to 06:07:08.090 (removed)"},
	} {
		if got := string(pretty.Printer{}.Append(nil, test.event)); got != test.want+"\n" {
			t.Errorf("%s: got\n%swant\n%s", test.name, got, test.want)
		}
	}
}

// TestGaps: the gaps of an outage are one line, over all of its time; one alone is as it is.
func TestGaps(t *testing.T) {
	gap := func(resource string, from, to time.Duration) *event.Event {
		return sample(func(e *event.Event) {
			e.Type = event.Gap
			e.Gap = &event.GapData{Resource: event.Resource{Version: "v1", Resource: resource}, Namespace: "prod", FromResourceVersion: "1", ToResourceVersion: "9", Cause: "quiet"}
			e.Gap.From, e.Gap.To = e.Time.Add(from), e.Time.Add(to)
		})
	}
	gaps := []*event.Event{gap("pods", -50*time.Second, -time.Second), gap("jobs", -60*time.Second, -2*time.Second), gap("pods", -40*time.Second, 0), gap("nodes", -50*time.Second, -time.Second)}
	for n, want := range map[int]string{
		1: "06:07:08.090 GAP     pods.v1 in prod  no change was missed, except of objects that came and went, from 06:06:18.090 to 06:07:07.090 (quiet, version 1 to 9)\n",
		4: "06:07:08.090 GAP     pods.v1 and 2 more  no change was missed, except of objects that came and went, from 06:06:08.090 to 06:07:08.090 (quiet)\n",
	} {
		if got := string(pretty.Printer{}.AppendGaps(nil, gaps[:n])); got != want {
			t.Errorf("%d: got\n%swant\n%s", n, got, want)
		}
	}
}

func TestColor(t *testing.T) {
	got := string(pretty.Printer{Color: true}.Append(nil, sample(func(e *event.Event) { e.Type = event.Deleted })))
	if want := "\x1b[2m06:07:08.090\x1b[0m \x1b[31mDELETED\x1b[0m Deployment   prod/web\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, typ := range []event.Type{event.Added, event.Updated, event.Deleted, event.Sync, "unknown"} {
		e := sample(func(e *event.Event) { e.Type = typ })
		colored := string(pretty.Printer{Color: true}.Append(nil, e))
		for _, code := range []string{"2", "31", "32", "33", "36", "0"} {
			colored = strings.ReplaceAll(colored, "\x1b["+code+"m", "")
		}
		if plain := string(pretty.Printer{}.Append(nil, e)); colored != plain {
			t.Errorf("%s: colours change more than colours: %q, %q", typ, colored, plain)
		}
	}
}

// TestHarmless: no text of an object reaches the terminal as anything but text.
func TestHarmless(t *testing.T) {
	evil := "\x1b]0;title\x07\x1b[2J\u009b31m\r\nforged ADDED line\u202e\xff"
	quoted, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []*event.Event{
		sample(func(e *event.Event) {
			e.Name, e.Namespace, e.Resource.Kind, e.ResourceVersion = evil, evil, evil, evil
		}),
		sample(objects(`{"a":1}`, fmt.Sprintf(`{"a":%s,%s:1}`, quoted, quoted))),
		sample(func(e *event.Event) {
			e.Patch = fmt.Appendf(nil, `[{"op":%s,"path":%s,"from":%s,"value":%s},{"op":"move","path":"/a","from":%s}]`, quoted, quoted, quoted, quoted, quoted)
		}),
		sample(func(e *event.Event) { e.Summary = evil }),
		sample(func(e *event.Event) {
			e.Type, e.Gap = event.Gap, &event.GapData{Resource: event.Resource{Resource: evil}, Cause: evil, FromResourceVersion: evil, ToResourceVersion: evil}
		}),
	} {
		line := string(pretty.Printer{}.Append(nil, e))
		if strings.Count(line, "\n") != 1 || strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q", line)
		}
	}
}

func TestTerminal(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if pretty.IsTerminal(f) || pretty.WantsColor(f) || pretty.IsTerminal(&strings.Builder{}) {
		t.Error("a file or a buffer passes for a terminal")
	}
}
