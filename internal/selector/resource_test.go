package selector

import (
	"testing"

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
	for _, bad := range []string{"", ".apps", "dep*", "*ments", "**", "pods/log", "pods.*", "po ds", "[a-z]"} {
		if p, err := ParseResource(bad); err == nil {
			t.Errorf("ParseResource(%q) = %+v, want an error", bad, p)
		}
	}
}
