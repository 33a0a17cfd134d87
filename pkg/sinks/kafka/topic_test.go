package kafka

import (
	"strings"
	"testing"

	"github.com/watcherd/watcherd/pkg/event"
)

func TestTopic(t *testing.T) {
	e := &event.Event{Cluster: "prod eu/1", Resource: event.Resource{Version: "v1", Resource: "pods"}}
	for text, want := range map[string]string{
		"all":                              "all",
		"k8s.{cluster}.{group}":            "k8s.prod_20eu_2F1.core",
		"{resource}-{version}_{namespace}": "pods-v1__",
	} {
		got, err := parseTopic(text, History)
		if err != nil {
			t.Fatal(err)
		}
		if name := string(got.append(nil, e)); name != want {
			t.Errorf("%s: %s, want %s", text, name, want)
		}
	}
	for text, want := range map[string]string{
		"": "required", "a b": "letters", "a}": "without a {", "{resource": "without a }", "{type}": "unknown token {type}", "..": "dots",
		strings.Repeat("x", 200): "at most", strings.Repeat("{group}", 200): "too many",
	} {
		if _, err := parseTopic(text, History); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %q", text, err, want)
		}
	}
	if _, err := parseTopic("{version}", State); err == nil {
		t.Error("{version} was taken in mode state")
	}
}

// FuzzTopic: whatever the template and the values, a topic has a name that Kafka takes.
func FuzzTopic(f *testing.F) {
	f.Add("k8s.{cluster}.{group}.{version}.{resource}.{namespace}", "prod", "apps", "deployments", "default")
	f.Add("{cluster}{group}", "..", "", "\xff\x00", strings.Repeat("n", 300))
	f.Add("{{resource}}", "", ".", ".", ".")
	f.Fuzz(func(t *testing.T, text, cluster, group, resource, namespace string) {
		parsed, err := parseTopic(text, History)
		if err != nil {
			return
		}
		e := &event.Event{Cluster: cluster, Namespace: namespace, Resource: event.Resource{Group: group, Version: "v1", Resource: resource}}
		name := string(parsed.append([]byte("x"), e))[1:]
		if name == "" || name == "." || name == ".." || len(name) > maxTopic {
			t.Errorf("%q", name)
		}
		for i := range len(name) {
			if !allowed[name[i]] {
				t.Errorf("%q holds %q", name, name[i])
			}
		}
	})
}
