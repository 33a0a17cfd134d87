package pipeline

import (
	"slices"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// TestDesiredSources shows which informers a set of watches makes, and which
// watches each feeds.
func TestDesiredSources(t *testing.T) {
	watch := func(name string, edit func(*plan.Watch), resources ...string) plan.Watch {
		w := plan.Watch{Name: name, Resources: resources, Edits: redact.DefaultEdits()}
		if edit != nil {
			edit(&w)
		}
		return w
	}
	in := func(namespaces ...string) func(*plan.Watch) {
		return func(w *plan.Watch) { w.Namespaces = namespaces }
	}
	for _, tc := range []struct {
		name    string
		watches []plan.Watch
		want    []string
		missing []string
	}{
		{
			name:    "two watches share an informer",
			watches: []plan.Watch{watch("a", nil, "pods"), watch("b", nil, "pods", "widgets.example.com")},
			want:    []string{"pods#: a b", "widgets.example.com#: b"},
		},
		{
			name:    "plain namespaces get one informer each",
			watches: []plan.Watch{watch("a", in("one", "two"), "pods")},
			want:    []string{"pods#one: a", "pods#two: a"},
		},
		{
			name:    "an informer of the whole cluster serves the namespaced watches too",
			watches: []plan.Watch{watch("a", in("one"), "pods"), watch("b", nil, "pods")},
			want:    []string{"pods#: a b"},
		},
		{
			name:    "a watch of namespaces has nothing to do with nodes",
			watches: []plan.Watch{watch("a", in("one"), "nodes", "pods")},
			want:    []string{"pods#one: a"},
		},
		{
			name: "watches that edit the same objects differently do not both get them",
			watches: []plan.Watch{
				watch("a", nil, "pods"),
				watch("b", func(w *plan.Watch) { w.Edits.Redact = []string{"spec.containers[*].env"} }, "pods"),
			},
			missing: []string{"b/pods"},
			want:    []string{"pods#: a"},
		},
		{
			name:    "a version that is not the preferred one is a feed of its own",
			watches: []plan.Watch{watch("a", nil, "widgets.example.com"), watch("b", nil, "widgets.v2beta1.example.com")},
			want:    []string{"widgets.example.com#: a", "widgets.example.com@v2beta1#: b"},
		},
		{
			name: "edits and metadataOnly are no part of a source's name",
			watches: []plan.Watch{watch("a", func(w *plan.Watch) {
				w.Edits.Drop, w.MetadataOnly, w.ServerLabels, w.ServerFields = nil, true, "tier=web", "spec.nodeName=n"
			}, "pods")},
			want: []string{"pods|l=tier=web;f=spec.nodeName=n#: a"},
		},
		{
			name:    "a version that is the preferred one at present is a feed of its own too",
			watches: []plan.Watch{watch("a", nil, "widgets.example.com"), watch("b", nil, "widgets.v1.example.com")},
			want:    []string{"widgets.example.com#: a", "widgets.example.com@v1#: b"},
		},
		{
			name:    "what is not served is remembered",
			watches: []plan.Watch{watch("a", nil, "pods", "gadgets.example.org")},
			want:    []string{"pods#: a"},
			missing: []string{"a/gadgets.example.org"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, t.TempDir())
			d, err := r.m.desire(&plan.State{Watches: tc.watches})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range d.feeds {
				var names []string
				for _, h := range s.Watches() {
					names = append(names, h.Watch.Name)
				}
				slices.Sort(names)
				got = append(got, s.ID+": "+strings.Join(names, " "))
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("sources are %q, want %q", got, tc.want)
			}
			for _, key := range tc.missing {
				if _, ok := d.missing[key]; !ok || len(d.missing) != len(tc.missing) {
					t.Errorf("missing are %v, want %v", d.missing, tc.missing)
				}
			}
		})
	}
}

// flipping is a Resolver whose cluster prefers another version of a resource from one question
// to the next.
type flipping struct{ versions [2]served }

func (f *flipping) Changed() <-chan struct{} { return nil }

func (f *flipping) Resolve(pattern string) ([]dynamicfactory.Resource, error) {
	return f.Table()(pattern)
}

func (f *flipping) Table() func(string) ([]dynamicfactory.Resource, error) {
	now := f.versions[0]
	f.versions[0], f.versions[1] = f.versions[1], now
	return now.Resolve
}

// TestPreferredVersionChangesMeanwhile: two informers of one resource would judge each other's
// records.
func TestPreferredVersionChangesMeanwhile(t *testing.T) {
	r := newRig(t, t.TempDir())
	older := widgets
	older.GVR.Version = "v1beta1"
	r.m.cfg.Resolver = &flipping{[2]served{{widgets}, {older}}}
	for range 2 {
		d, err := r.m.desire(&plan.State{Watches: []plan.Watch{
			{Name: "a", Resources: []string{"widgets.example.com"}}, {Name: "b", Resources: []string{"widgets.example.com"}},
		}})
		if err != nil || len(d.feeds) != 1 {
			t.Errorf("%d informers, want 1; error %v", len(d.feeds), err)
		}
	}
}

func TestMissingResourceCanFail(t *testing.T) {
	r := newRig(t, t.TempDir())
	_, err := r.m.desire(&plan.State{Watches: []plan.Watch{{Name: "a", Resources: []string{"gadgets.example.org"}, FailOnMissing: true}}})
	if err == nil || !strings.Contains(err.Error(), "gadgets.example.org") {
		t.Errorf("error is %v", err)
	}
}
