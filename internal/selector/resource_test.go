package selector

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/pkg/event"
)

func TestResource(t *testing.T) {
	metrics := event.Resource{Group: "metrics.k8s.io", Version: "v1beta1", Resource: "pods", Kind: "PodMetrics"}
	widgets := event.Resource{Group: "example.com", Version: "v1beta1", Resource: "widgets", Kind: "Widget"}
	for pattern, want := range map[string][]bool{
		//                       pods   metrics deploy widgets
		"pods":                        {true, true, false, false},
		"pods.v1":                     {true, false, false, false},
		"pods.v1.":                    {true, false, false, false},
		"pods.":                       {true, false, false, false},
		"pods.metrics.k8s.io":         {false, true, false, false},
		"deployments":                 {false, false, true, false},
		"deployments.apps":            {false, false, true, false},
		"deployments.v1.apps":         {false, false, true, false},
		"deployments.v1beta1.apps":    {false, false, false, false},
		"deployments.extensions":      {false, false, false, false},
		"widgets.v1beta1.example.com": {false, false, false, true},
		"*.example.com":               {false, false, false, true},
		"*.v1beta1.metrics.k8s.io":    {false, true, false, false},
		"*.apps":                      {false, false, true, false},
		"*":                           {true, true, true, true},
		"pod":                         {false, false, false, false},
	} {
		p, err := ParseResource(pattern)
		if err != nil {
			t.Errorf("ParseResource(%q): %v", pattern, err)
			continue
		}
		for i, r := range []event.Resource{{Version: "v1", Resource: "pods", Kind: "Pod"}, metrics, {Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}, widgets} {
			if got := p.Matches(r); got != want[i] {
				t.Errorf("%q matches %s: %t, want %t", pattern, r, got, want[i])
			}
		}
	}
	for _, bad := range []string{"", ".apps", "dep*", "*ments", "**", "pods/log", "pods.*", "po ds", "[a-z]", "pods-", "pods..v1", "9s"} {
		if p, err := ParseResource(bad); err == nil {
			t.Errorf("ParseResource(%q) = %+v, want an error", bad, p)
		}
	}
}

func TestResourceParts(t *testing.T) {
	for pattern, want := range map[string]struct {
		name, group    string
		bare, wildcard bool
	}{
		"Pods":                {"pods", "", true, false},
		"pods.v1":             {"pods", "", false, false},
		"deployments.apps":    {"deployments", "apps", false, false},
		"deployments.v1.apps": {"deployments", "apps", false, false},
		"*.apps":              {"*", "apps", false, true},
		"*":                   {"*", "", true, true},
	} {
		p, err := ParseResource(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if p.Name() != want.name || p.Group() != want.group || p.Bare() != want.bare || p.Wildcard() != want.wildcard {
			t.Errorf("%q has the name %q and group %q, bare %t, a wildcard %t", pattern, p.Name(), p.Group(), p.Bare(), p.Wildcard())
		}
	}
	gateways := schema.GroupResource{Group: "v1.example.com", Resource: "gateways"} // a group that begins like a version
	p := ResourceOf(gateways)
	if !p.Names(gateways) || !p.Matches(event.Resource{Group: gateways.Group, Version: "v2", Resource: "gateways"}) || p.Matches(event.Resource{Group: "example.com", Version: "v1", Resource: "gateways"}) {
		t.Errorf("%v is not what it was made of", p)
	}
}
