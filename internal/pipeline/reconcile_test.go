package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// TestReconcile changes what the cluster serves under one state, which watches pods and
// widgets.
func TestReconcile(t *testing.T) {
	for _, tc := range []struct {
		name     string
		insisted bool // on the widgets
		unknown  bool // the resources are not known when the state is applied
		before   []dynamicfactory.Resource
		after    []dynamicfactory.Resource
		want     []string // the feeds
		missing  []string
		ends     string // how Run ends
	}{
		{
			name: "a resource is served now", before: []dynamicfactory.Resource{pods}, after: []dynamicfactory.Resource{pods, widgets},
			want: []string{"pods.v1", "widgets.v1.example.com"},
		},
		{
			name: "a resource is not served any more", before: []dynamicfactory.Resource{pods, widgets}, after: []dynamicfactory.Resource{pods},
			want: []string{"pods.v1"}, missing: []string{"widgets.example.com"},
		},
		{
			name: "nor one that is insisted on", insisted: true, before: []dynamicfactory.Resource{pods, widgets}, after: []dynamicfactory.Resource{pods},
			want: []string{"pods.v1"}, missing: []string{"widgets.example.com"},
		},
		{
			name: "another version is preferred", before: []dynamicfactory.Resource{pods, widgets}, after: []dynamicfactory.Resource{pods, widgetsV2},
			want: []string{"pods.v1", "widgets.v2beta1.example.com"},
		},
		{
			name: "nothing changes", before: []dynamicfactory.Resource{pods, widgets}, after: []dynamicfactory.Resource{pods, widgets},
			want: []string{"pods.v1", "widgets.v1.example.com"},
		},
		{
			name: "the resources are known at last", unknown: true, after: []dynamicfactory.Resource{pods},
			want: []string{"pods.v1"}, missing: []string{"widgets.example.com"},
		},
		{
			name: "one that is insisted on turns out to be missing", unknown: true, insisted: true, after: []dynamicfactory.Resource{pods},
			ends: "start: watch w: resource widgets.example.com: the cluster does not serve",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			resolver := serving(tc.before...)
			if tc.unknown {
				resolver = unfound()
			}
			l := lifeOn(t, t.TempDir(), store.Options{}, resolver)
			st := l.state(nil)
			st.Watches[0].Resources, st.Watches[0].FailOnMissing = []string{"pods", "widgets.example.com"}, tc.insisted
			if err := l.m.Apply(t.Context(), st); err != nil {
				t.Fatal(err)
			}
			kept := l.m.informerList()
			resolver.mu.Lock()
			resolver.err = nil
			resolver.mu.Unlock()
			resolver.set(tc.after...)
			if tc.ends != "" {
				if err := <-l.ended; err == nil || !strings.HasPrefix(err.Error(), tc.ends) {
					t.Errorf("the pipeline ends with %v", err)
				}
				l.ended <- nil
				return
			}
			eventually(t, "the feeds", func() bool { return cmp.Equal(tc.want, feedNames(l.m)) })
			eventually(t, fmt.Sprintf("%q are missing", tc.missing), func() bool {
				var missing []string
				for _, x := range l.m.Running().Missing {
					missing = append(missing, x.Pattern)
				}
				return cmp.Equal(tc.missing, missing)
			})
			for _, s := range kept {
				if slices.Contains(tc.want, s.Resource.String()) && !slices.Contains(l.m.informerList(), s) {
					t.Errorf("the informer of %s is another one", s.Resource)
				}
			}
		})
	}
}

func feedNames(m *Manager) (names []string) {
	for _, s := range m.informerList() {
		names = append(names, s.Resource.String())
	}
	slices.Sort(names)
	return names
}

// TestCompare sorts what a state asks for by what runs.
func TestCompare(t *testing.T) {
	r := newRig(t, t.TempDir(), committest.PodWatch(), plan.Watch{Name: "n", Resources: []string{"nodes"}})
	running := r.source(nodes)
	r.run(running)
	former := committest.PodWatch()
	id, err := commit.IdentityOf(&former, widgets, "", "", r.m.redactKey)
	if err != nil {
		t.Fatal(err)
	}
	r.run(r.m.committer.NewFeed(id))
	wider := plan.Watch{Name: "wider", Resources: []string{"nodes"}}
	next := *r.m.currentState()
	next.Watches = append(slices.Clone(next.Watches), wider)
	d, err := r.m.desire(&next)
	if err != nil {
		t.Fatal(err)
	}
	start, stop, stay := r.m.compare(d)
	got := []string{}
	for _, s := range start {
		got = append(got, "start "+s.ID)
	}
	for _, s := range stop {
		got = append(got, "stop "+s.ID)
	}
	for s, watches := range stay {
		for _, w := range watches {
			got = append(got, fmt.Sprintf("stay %s %s", s.ID, w.Watch.Name))
		}
	}
	want := []string{"start pods#", "stop widgets.example.com#", "stay nodes# n", "stay nodes# wider"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	clear(r.m.informers) // they never ran
}

// TestDefinitionGoneBeforeItsChangesAreRead takes a definition away while the watch of its
// objects lags: each deletion comes once, whether the API server had not sent it yet, or it
// waited for the committer.
func TestDefinitionGoneBeforeItsChangesAreRead(t *testing.T) {
	const objects, deleted = 3000, 2500
	for _, lag := range []string{"the stream", "the committer"} {
		t.Run(lag, func(t *testing.T) {
			api := apitest.New(t)
			api.ServeCustom(widgetPath, "example.com/v1", "Widget")
			names := make([]string, objects)
			for i := range names {
				names[i] = fmt.Sprintf("widget-%05d", i)
				api.Put(widgetPath, "ns", names[i], nil)
			}
			resolver := serving(widgets)
			l := runLive(t, t.TempDir(), store.Options{}, api, resolver).withX()
			l.apply(l.routed(watchOf("w", nil, "widgets.example.com")))
			l.checkpointed("widgets.example.com#", "v1")
			l.defined("widgets.example.com")
			held, released := make(chan error, 1), make(chan struct{})
			if lag == "the committer" {
				go func() {
					_ = l.m.committer.AtBarrier(func(b commit.Barrier) {
						held <- b.Take(maxGroup)
						<-released
					})
				}()
			}
			api.Stall(lag == "the stream")
			for _, name := range names[:deleted] {
				api.Delete(widgetPath, "ns", name)
			}
			if lag == "the committer" {
				if err := <-held; err != nil {
					t.Fatal(err)
				}
				eventually(t, "the committer's queue is full", l.m.committer.Backlogged)
			}
			s := l.m.informerList()[0]
			api.Unserve(widgetPath)
			resolver.set()
			<-s.Stopped()
			close(released)
			eventually(t, "the partition is gone", func() bool { return len(l.store.Partitions()) == 0 })
			h := l.queued()
			for _, name := range names {
				if h.types(name) != "sync deleted" {
					t.Fatalf("%s: %q", name, h[name])
				}
			}
		})
	}
}
