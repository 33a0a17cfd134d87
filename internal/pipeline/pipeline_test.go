package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a Resolver over a fixed list.
type served []dynamicfactory.Resource

func (s served) Changed() <-chan struct{} { return nil }

func (s served) Table() func(string) ([]dynamicfactory.Resource, error) { return s.Resolve }

// Resolve takes RESOURCE.GROUP for the first version listed, RESOURCE.VERSION.GROUP
// for that one.
func (s served) Resolve(pattern string) ([]dynamicfactory.Resource, error) {
	for _, r := range s {
		pinned := r.GVR.Resource + "." + r.GVR.Version + "." + r.GVR.Group
		if pattern == r.GVR.GroupResource().String() || pattern == pinned {
			return []dynamicfactory.Resource{r}, nil
		}
	}
	return nil, fmt.Errorf("%s is not served", pattern)
}

var (
	pods      = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true}
	nodes     = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, Kind: "Node"}
	widgets   = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}, Kind: "Widget", Namespaced: true}
	widgetsV2 = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Group: "example.com", Version: "v2beta1", Resource: "widgets"}, Kind: "Widget", Namespaced: true}
)

var allServed = served{pods, nodes, widgets, widgetsV2, secretResource, namespaceResource}

// rig is a Manager whose informers never start: tests hand its committer the
// notifications.
type rig struct {
	*committest.Rig
	m      *Manager
	stop   func() // the committer
	joined map[*commit.Feed]bool
}

// newRig makes a rig whose committer runs.
func newRig(t *testing.T, dir string, watches ...plan.Watch) *rig {
	t.Helper()
	r := idleRig(t, dir, store.Options{}, allServed, watches...)
	ended, end := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.m.committer.Run(context.WithoutCancel(t.Context()), ended) }()
	r.stop = sync.OnceFunc(func() {
		r.m.stopScrub()
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	r.adoptRouter(r.m.currentState().Router)
	return r
}

// rigTime is the clock of a rig that has no other.
func rigTime() time.Time { return time.Unix(1_800_000_000, 0) }

func idleRig(t *testing.T, dir string, opts store.Options, resolver Resolver, watches ...plan.Watch) *rig {
	t.Helper()
	if opts.Now == nil {
		opts.Now = rigTime
	}
	st, err := store.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{
		Cluster: "test", REST: &rest.Config{Host: "https://127.0.0.1:1"}, Store: st,
		Resolver: resolver,
		Logger:   slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		Now: opts.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.EnsureSink("sink", store.FromNow); err != nil {
		t.Fatal(err)
	}
	router, err := route.Compile([]route.Spec{{Name: "all", Payload: []string{"object", "oldObject"}, Sinks: []string{"sink"}}})
	if err != nil {
		t.Fatal(err)
	}
	m.setState(&plan.State{Watches: watches, Router: router})
	t.Cleanup(func() {
		m.factory.Shutdown()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return &rig{Rig: committest.New(t, st, m.inflater), m: m, joined: map[*commit.Feed]bool{}}
}

// adoptRouter has the committer route by the router from now on.
func (r *rig) adoptRouter(router *route.Router) {
	r.Helper()
	if err := r.m.committer.AtBarrier(func(b commit.Barrier) { b.Adopt(router) }); err != nil {
		r.Fatal(err)
	}
}

// report is a notification of an informer.
type report struct {
	feed *commit.Feed
	to   func(cache.ResourceEventHandler)
}

func addedTo(s *commit.Feed, o *compact.Object) report {
	return report{s, func(h cache.ResourceEventHandler) { h.OnAdd(o, false) }}
}

// listedBy is of the feed's first list.
func listedBy(s *commit.Feed, o *compact.Object) report {
	return report{s, func(h cache.ResourceEventHandler) { h.OnAdd(o, true) }}
}

func updatedIn(s *commit.Feed, o, old *compact.Object) report {
	return report{s, func(h cache.ResourceEventHandler) { h.OnUpdate(old, o) }}
}

func deletedFrom(s *commit.Feed, o *compact.Object) report {
	return report{s, func(h cache.ResourceEventHandler) { h.OnDelete(o) }}
}

// commit hands over reports and returns when they are committed.
func (r *rig) commit(reports ...report) {
	r.Helper()
	for _, x := range reports {
		if !r.joined[x.feed] {
			r.joined[x.feed] = true
			x.feed.Subscribed(nil)
		}
		x.to(r.m.committer.Handler(x.feed))
	}
	r.m.committer.Flush()
}

// run has the pipeline know the feed as one that runs.
func (r *rig) run(s *commit.Feed) { r.m.informers[s.Key] = &informer{Feed: s} }

// source is the source that the rig's state has for a resource.
func (r *rig) source(res dynamicfactory.Resource) *commit.Feed {
	r.Helper()
	d, err := r.m.desire(r.m.currentState())
	if err != nil {
		r.Fatal(err)
	}
	for k, s := range d.feeds {
		if k.GVR == res.GVR {
			return s
		}
	}
	r.Fatalf("no source for %v among %d", res.GVR, len(d.feeds))
	return nil
}
