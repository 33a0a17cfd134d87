package commit

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var pods = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true}

// rig is a Committer without informers: tests hand it what they would report, and commit
// group by group.
type rig struct {
	*committest.Rig
	c       *Committer
	group   *group
	running []*Feed
	watches []plan.Watch
	edits   *redact.Table // of In
	at      time.Time     // what the clock shows
}

// disk keeps a store over the lives of a test's rigs.
func disk() vfs.FS { return vfs.NewCrashableMem() }

var now = time.Unix(1_800_000_000, 0)

func newRig(t *testing.T, disk vfs.FS, watches ...plan.Watch) *rig {
	t.Helper()
	st, err := store.Open("store", store.Options{FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	dicts, err := ledger.LoadDictionaries(st)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Rig: committest.New(t, st, &record.Inflater{Cluster: "test", Dictionaries: dicts}), watches: watches, at: now}
	r.c, err = New(Config{
		Cluster: "test", Store: st, Ledger: ledger.New(st, dicts), Dictionaries: dicts,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		Now: func() time.Time { return r.at }, Running: func() []*Feed { return slices.Clone(r.running) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.EnsureSink("sink", store.FromNow); err != nil {
		t.Fatal(err)
	}
	r.route(route.Spec{Name: "all", Payload: []string{"object", "oldObject"}, Sinks: []string{"sink"}})
	r.group = newGroup(r.c)
	return r
}

// route replaces the routes.
func (r *rig) route(specs ...route.Spec) *route.Router {
	r.Helper()
	router, err := route.Compile(specs)
	if err != nil {
		r.Fatal(err)
	}
	r.c.adopt(router)
	return router
}

var redactKey = make([]byte, 32)

// feed makes a feed of a resource that feeds the rig's watches.
func (r *rig) feed(res dynamicfactory.Resource) *Feed { return r.feedIn(res, "") }

func (r *rig) feedIn(res dynamicfactory.Resource, namespace string) *Feed {
	r.Helper()
	var refs []WatchRef
	for i := range r.watches {
		refs = append(refs, NewWatchRef(&r.watches[i]))
	}
	id, err := IdentityOf(&r.watches[0], res, "", namespace, redactKey)
	if err != nil {
		r.Fatal(err)
	}
	return r.c.NewFeed(id, refs...)
}

// hide has events read through the edits of the watches.
func (r *rig) hide(watches ...plan.Watch) {
	r.Helper()
	r.watches = watches
	var accepted redact.Accepted
	for _, w := range watches {
		accepted.Add(redact.Resource{Resource: "pods", Edits: w.Edits})
	}
	table, err := redact.Compile(accepted, nil, redactKey)
	if err != nil {
		r.Fatal(err)
	}
	r.edits, r.In.Edit = table, table.Edit
}

// commit commits the changes as one group.
func (r *rig) commit(changes ...change) {
	r.Helper()
	for _, c := range changes {
		r.add(c)
	}
	r.step()
	for len(r.group.jobs) > 0 {
		r.step()
	}
}

// add adds a change to the group, observed now.
func (r *rig) add(c change) { r.group.add(r.now(c)) }

// now has a change be observed now.
func (r *rig) now(c change) change {
	at := r.at
	switch c := c.(type) {
	case *objectSeen:
		c.at = at
	case *objectGone:
		c.at = at
	case *feedSynced:
		c.at = at
	case *gapFound:
		c.at = at
	case *namespaceSeen:
		c.at = at
	case *namespaceGone:
		c.at = at
	case *namespacesSynced:
		c.at = at
	}
	return c
}

// note makes the rules of feeds durable.
func (r *rig) note(rules given) error {
	b := r.Store.NewBatch()
	defer b.Discard()
	if err := r.c.noteSelections(b, rules, func(string, string) (resource, part bool) { return false, false }); err != nil {
		return err
	}
	return r.Store.Commit(b)
}

// meant is a watch's answer for a part of the ledger that it means.
func meant(*plan.Watch) bool { return true }

// wanted is meant for a resource.
// wanted is Wants of watches of one resource.
func wanted(w *plan.Watch, partition string) (resource, part bool) {
	_, scope := ledger.SplitPartition(partition)
	return true, scope == ledger.ScopeOf("", w.ServerLabels, w.ServerFields)
}

func addedTo(s *Feed, o *compact.Object) *objectSeen {
	return &objectSeen{sighting: sighting{feed: s, obj: o}}
}

func updatedIn(s *Feed, o, old *compact.Object) *objectSeen {
	return &objectSeen{sighting: sighting{feed: s, obj: o}, old: old}
}

// listedBy is of the source's first list.
func listedBy(s *Feed, o *compact.Object) *objectSeen {
	return &objectSeen{sighting: sighting{feed: s, obj: o}, initial: true}
}

func deletedFrom(s *Feed, o *compact.Object) *objectGone {
	return &objectGone{sighting{feed: s, obj: o}}
}

// missingFrom is a deletion that a comparison found.
func missingFrom(s *Feed, o *compact.Object) *objectGone {
	return &objectGone{sighting{feed: s, obj: o, unknown: true}}
}

// step commits one group.
func (r *rig) step() {
	r.Helper()
	if err := r.group.commit(true); err != nil {
		r.Fatal(err)
	}
}

// queued are the items of the sink's queue.
func (r *rig) queued() []store.Item {
	r.Helper()
	q, err := r.Store.Queue("sink")
	if err != nil {
		r.Fatal(err)
	}
	items, err := q.Read(0, 10_000, 1<<30)
	if err != nil {
		r.Fatal(err)
	}
	return items
}

// selections are those of the last n events, as the sink is told them.
func (r *rig) selections(n int) []event.Selection {
	r.Helper()
	items := r.queued()
	var list []event.Selection
	for _, it := range items[len(items)-n:] {
		e, err := r.In.Event(it.Sequence, record.Flags(it.Flags), it.Payload, "sink")
		if err != nil {
			r.Fatal(err)
		}
		list = append(list, e.Selection)
	}
	return list
}

// informer is what the committer sees of an informer. Its fields are what it answers.
type informer struct {
	checkpoints map[uint64]string // by the position from which on they hold
	list        *dynamicfactory.List
	empty       *dynamicfactory.List // before list, without objects
	quiet       string
	acked       uint64
	watching    time.Time
	known       time.Time
	paused      time.Time // since when it waits
	away        bool      // the watch fails
	seen        string    // the newest version that the watch has brought
}

func (i *informer) Ack(position uint64) { i.acked = position }

func (i *informer) Checkpoint(position uint64) (version string) {
	for at := range position + 1 {
		if v, ok := i.checkpoints[at]; ok {
			version = v
		}
	}
	return version
}

func (i *informer) Known(uint64) time.Time { return i.known }

func (i *informer) Quiet(uint64) string { return i.quiet }

func (i *informer) NextList(position uint64, withObjects bool) (dynamicfactory.List, bool) {
	if i.empty != nil && position < i.empty.End && !withObjects {
		return *i.empty, true
	}
	if i.list == nil || position >= i.list.End {
		return dynamicfactory.List{}, false
	}
	return *i.list, true
}

func (i *informer) Watch() dynamicfactory.WatchStatus {
	if i.away {
		return dynamicfactory.WatchStatus{State: dynamicfactory.StateBackingOff, Seen: i.seen}
	}
	return dynamicfactory.WatchStatus{State: dynamicfactory.StateWatching, Since: i.watching, PausedSince: i.paused, Seen: i.seen}
}

func (i *informer) Informer() cache.SharedIndexInformer { return emptyInformer{} }

// emptyInformer has an empty cache.
type emptyInformer struct{ cache.SharedIndexInformer }

func (emptyInformer) GetStore() cache.Store { return cache.NewStore(cache.MetaNamespaceKeyFunc) }

// inProd is a watch of namespaces with env=prod, by rules that are recorded.
func inProd(w *plan.Watch) {
	committest.ProdPods(w)
	w.Selection.Namespaces.Selector = "env=prod"
	w.Fingerprint += "prod"
}

// edited is an object as the feed's informer would hold it.
func (r *rig) edited(s *Feed, raw string) *compact.Object {
	r.Helper()
	return r.Edited(s.Partition, s.Key.GVR.GroupResource().String(), s.Edit, raw)
}
