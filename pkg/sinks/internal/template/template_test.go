package template

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/pkg/event"
)

func TestTemplate(t *testing.T) {
	t.Parallel()
	letters := NewCharset(func(c byte) bool { return 'a' <= c && c <= 'z' })
	e := &event.Event{
		Cluster: "prod", Type: event.Added, Time: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC),
		Resource: event.Resource{Version: "v1", Resource: "pods"}, Name: "a/b",
	}
	for text, want := range map[string]string{
		"plain":                       "plain",
		"{cluster}-{group}/{version}": "prod-core/v%31",
		"{resource}{namespace}{name}": "pods_a%2Fb",
		"{type} on {date}":            "added on 2026-01-02",
		"":                            "",
	} {
		parsed, err := Parse(text, Cluster, Group, Version, Resource, Namespace, Name, Type, Date)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(parsed.Append(nil, e, letters.Percent)); got != want {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
	}
	parsed, err := Parse("a{name}.{type}", Name, Type)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Template{{Text: "a"}, {Token: Name}, {Text: "."}, {Token: Type}}, parsed); diff != "" || parsed.Sample("*") != "a*.*" {
		t.Errorf("sample %q (-want +got):\n%s", parsed.Sample("*"), diff)
	}
	for text, want := range map[string]string{
		"a}b":    "has a } without a {",
		"a{name": "has a { without a }",
		"{date}": "has the unknown token {date}; known are {name} {type}",
	} {
		if _, err := Parse(text, Name, Type); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// FuzzTemplate: whatever text is a template makes one text of an event, and no value gets
// past the escape.
func FuzzTemplate(f *testing.F) {
	f.Add("events/{cluster}/{resource}-{namespace}.jsonl", "a/b")
	f.Add("{{}", "..")
	f.Add("}{name}{", "\x00")
	f.Fuzz(func(t *testing.T, text, name string) {
		tpl, err := Parse(text, "cluster", "namespace", "name", "resource")
		if err != nil {
			return
		}
		e := &event.Event{Cluster: name, Namespace: name, Name: name, Resource: event.Resource{Resource: name, Group: name}}
		safe := NewCharset(func(c byte) bool { return c >= 'a' && c <= 'z' })
		fixed := 0
		for _, p := range tpl {
			fixed += len(p.Text)
		}
		got := tpl.Append(nil, e, safe.Percent)
		if fixed == 0 && strings.ContainsAny(string(got), "/\x00. ") {
			t.Errorf("%q with %q is %q", text, name, got)
		}
	})
}
