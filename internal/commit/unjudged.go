package commit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// The order between two watches is open: a new namespace may be seen after what happens in
// it. A watch that selects namespaces by label is given those objects once the labels are
// known, as they are by then. So that nothing is missing, an update or a deletion waits for
// the namespace; where that takes too long, a gap is reported.

const (
	// namespaceWait is how long a change waits for its namespace to be seen.
	namespaceWait = 30 * time.Second

	// namespacePause is how long none waits after one has waited in vain: the namespaces of
	// objects that were deleted while nothing was watched are never seen.
	namespacePause = 5 * time.Minute
)

// CauseNamespace is the cause of a gap in a namespace whose labels were not known.
const CauseNamespace = "namespace"

// awaitNamespace returns when the labels of an object's namespace are known, if a watch
// selects namespaces by label.
func (h *handler) awaitNamespace(o *compact.Object) {
	s, table := h.feed, &h.c.namespaces
	name := o.GetNamespace()
	if name == "" || !slices.ContainsFunc(s.Watches(), func(h WatchRef) bool { return h.mayCover(name) }) || !table.ready() {
		return
	}
	if known, _ := table.await(o); known || time.Since(h.waited) < namespacePause {
		return
	}
	limit := time.NewTimer(namespaceWait)
	defer limit.Stop()
	for {
		known, changed := table.await(o)
		if known {
			return
		}
		select {
		case <-changed:
		case <-s.stopped:
			return
		case <-h.c.done:
			return
		case <-limit.C:
			h.waited = time.Now()
			s.Log.Warn("a namespace in which objects change has not been seen: watches that select namespaces by label are given the objects once it is",
				"namespace", name, "waited", namespaceWait)
			return
		}
	}
}

// mayCover reports whether the watch covers objects of a namespace if its labels are right.
func (h WatchRef) mayCover(namespace string) bool {
	return h.byLabels() && h.Reads(namespace) && h.Watch.Selection.Namespaces.Names(namespace)
}

// unjudged are changes in a namespace that has not been seen, of one part of the ledger.
type unjudged struct {
	First    string    `json:",omitzero"` // the version before the first of them, if a gap is reported up to From
	From     string    // the version before them, or before those behind that gap
	FromTime time.Time // when that was committed
	At       time.Time // of the first
	Lost     bool      // an object had more than one of them, or was deleted
	Former   bool      `json:",omitzero"` // what is lost is of the namespace that has ended, not of the one that is made again
	Judged   bool      `json:",omitzero"` // what is lost was judged by the labels of the one that had ended
}

// unjudgedMeta begins the keys of unjudged changes: the namespace and the part of the ledger
// follow.
const unjudgedMeta = "unjudged/"

// loadUnjudged reads what an earlier life has left.
func (c *Committer) loadUnjudged() error {
	c.unjudged = map[string]map[string]unjudged{}
	err := c.store.ScanMeta(unjudgedMeta, func(key string, value []byte) error {
		var u unjudged
		if err := json.Unmarshal(value, &u); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		namespace, partition, _ := strings.Cut(strings.TrimPrefix(key, unjudgedMeta), "/")
		c.putUnjudged(namespace, partition, u)
		return nil
	})
	if err != nil {
		return fmt.Errorf("load changes in namespaces that were not seen: %w", err)
	}
	return nil
}

// noted are the unjudged changes of a feed's objects in a namespace.
func (c *Committer) noted(namespace string, s *Feed) (u unjudged, ok bool) {
	if s.Key.Namespace != "" && s.Key.Namespace != namespace {
		return unjudged{}, false
	}
	u, ok = c.unjudged[namespace][s.Partition]
	return u, ok
}

func (c *Committer) putUnjudged(namespace, partition string, u unjudged) {
	if c.unjudged[namespace] == nil {
		c.unjudged[namespace] = map[string]unjudged{}
	}
	c.unjudged[namespace][partition] = u
}

// noteUnjudged notes a change that a watch which selects namespaces by label was not given,
// if that is because its namespace has not been seen. An object of the first list is no change.
func (g *group) noteUnjudged(s *Feed, at time.Time, o *transition) {
	namespace := o.subject().GetNamespace()
	lost := o.t == event.Updated || o.t == event.Deleted || o.lost
	if lost && namespace != "" && g.c.namespaces.knows(o.subject()) {
		g.c.noteUngiven(s, o.subject())
	}
	if o.t == event.Sync && !o.lost || namespace == "" || g.c.namespaces.knows(o.subject()) || !g.c.namespaces.ready() {
		return
	}
	u, noted := g.c.noted(namespace, s)
	switch {
	case !noted:
		u = unjudged{From: s.saved.ResourceVersion, FromTime: s.saved.Time, At: at}
		if sub, p := s.informer(), o.subject().Position(); u.From == "" && sub != nil && p > 0 {
			u.From, u.FromTime = sub.Checkpoint(p-1), sub.Known(p-1) // the first list's, with which it is committed
		}
		if u.FromTime.IsZero() {
			u.FromTime = at
		}
	case !lost:
		return
	}
	u.Lost, u.Former, u.Judged = lost, false, false
	g.note(namespace, s.Partition, u)
}

func (g *group) note(namespace, partition string, u unjudged) {
	g.c.putUnjudged(namespace, partition, u)
	g.batch.PutMeta(unjudgedMeta+namespace+"/"+partition, ledger.Encode(u))
}

// endUnjudged notes that a namespace has ended: what its objects lost is judged by its labels.
func (g *group) endUnjudged(namespace string) {
	for partition, u := range g.c.unjudged[namespace] {
		if u.Lost {
			u.Former = true
			g.note(namespace, partition, u)
		}
	}
}

// noteUngiven notes when the newest object was made of which a change was not given to a watch by the labels of its namespace: that may
// have ended before, which is seen later.
func (c *Committer) noteUngiven(s *Feed, o *compact.Object) {
	of := c.ungiven[o.GetNamespace()]
	if of == nil {
		of = map[string]time.Time{}
		c.ungiven[o.GetNamespace()] = of
	}
	if made := o.GetCreationTimestamp().Time; made.After(of[s.Partition]) {
		of[s.Partition] = made
	}
}

// misjudged notes as lost what was judged by the labels of a namespace that had ended by a time.
func (g *group) misjudged(namespace string, at, ended time.Time) {
	of := g.c.ungiven[namespace]
	delete(g.c.ungiven, namespace)
	for partition, made := range of {
		if !made.After(ended) {
			continue
		}
		u, noted := g.c.unjudged[namespace][partition]
		if !noted {
			u = unjudged{FromTime: ended, At: at, Judged: true}
		}
		u.Lost, u.Former = true, false
		g.note(namespace, partition, u)
	}
}

// reportUnjudged reports the changes of a namespace's objects that could not be judged
// before it was seen, once the objects have been given. Those of feeds that are not there
// now are left to [unseenNamespaces], or to the end of a [Farewell]. The notes stay unless the labels of all objects are
// known: then they are of the namespace that was made again, too.
func (g *group) reportUnjudged(namespace string, move *relabel, feeds []*Feed, all bool) error {
	for _, s := range feeds {
		u, ok := g.c.noted(namespace, s)
		if !ok {
			continue
		}
		switch {
		case all:
			g.c.dropUnjudged(g.batch, namespace, s.Partition)
		case u.Former:
			g.note(namespace, s.Partition, unjudged{First: u.First, From: u.From, FromTime: u.FromTime, At: u.At})
		}
		if !u.Lost {
			continue
		}
		err := g.unjudgedGap(s, u, move.At, namespace, func(h WatchRef) bool {
			if !h.byLabels() || !h.Watch.Filter.SelectsNamespace(namespace, move.after) {
				return false
			}
			return !u.Judged || !h.Watch.Filter.SelectsNamespace(namespace, func(string) (labels.Set, bool) { return move.Before, true })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// reportWaiting reports the changes of a feed's objects whose namespaces have not been seen. No
// feed reads these objects again.
func (g *group) reportWaiting(s *Feed) error {
	for namespace := range g.c.unjudged {
		u, ok := g.c.noted(namespace, s)
		if !ok {
			continue
		}
		g.c.dropUnjudged(g.batch, namespace, s.Partition)
		if !u.Lost {
			continue
		}
		if err := g.unjudgedGap(s, u, g.c.cfg.Now(), namespace, func(h WatchRef) bool { return h.mayCover(namespace) }); err != nil {
			return err
		}
	}
	return nil
}

func (c *Committer) dropUnjudged(b *store.Batch, namespace, partition string) {
	b.DeleteMeta(unjudgedMeta + namespace + "/" + partition)
	if delete(c.unjudged[namespace], partition); len(c.unjudged[namespace]) == 0 {
		delete(c.unjudged, namespace)
	}
}

// Expire deletes what is noted of changes in namespaces of a part of the ledger whose states expire: those
// that they were for have been away for too long.
func (b Barrier) Expire(partition string, in func(namespace string) bool) error {
	c := b.g.c
	batch := c.store.NewBatch()
	defer batch.Discard()
	for namespace := range c.unjudged {
		if in(namespace) {
			c.dropUnjudged(batch, namespace, partition)
		}
	}
	return ledger.StoreError(c.store.Commit(batch), "expire %s", partition)
}

// dropUnneeded deletes the notes without a loss that no watch needs, or whose objects are
// recorded no more: nothing else ends them.
func (c *Committer) dropUnneeded(b *store.Batch, watches []plan.Watch) error {
	needed := slices.ContainsFunc(watches, func(w plan.Watch) bool { return w.Filter.NeedsNamespaces() })
	for namespace, of := range c.unjudged {
		for partition, u := range of {
			if u.Lost {
				continue
			}
			empty, err := c.ledger.Empty(partition, ledger.Key(namespace, ""))
			if err != nil {
				return err
			}
			if !needed || empty {
				c.dropUnjudged(b, namespace, partition)
			}
		}
	}
	return nil
}

// laterRules are watches that get rules by which they need not know the labels of namespaces.
// It is a change of its own, before they are in force.
type laterRules []addedWatch

// process reports to them what they were not given because labels were not known: they are
// given the objects as they are when their turn comes.
func (x laterRules) process(g *group) error {
	for _, a := range x {
		for namespace := range g.c.unjudged {
			u, ok := g.c.noted(namespace, a.feed)
			if !ok || !slices.ContainsFunc(a.was.of(namespace), func(h WatchRef) bool { return h.mayCover(namespace) }) {
				continue
			}
			if err := g.unjudgedGap(a.feed, u, g.c.cfg.Now(), namespace, a.watch.sameWatch); err != nil {
				return err
			}
		}
	}
	return nil
}

// cameTo is the newest version of which anything is recorded.
func (s *Feed) cameTo() string {
	to := s.saved.RecordedUpTo()
	if s.newest != nil {
		to = ledger.Later(to, s.newest.GetResourceVersion())
	}
	return to
}

func (g *group) unjudgedGap(s *Feed, u unjudged, at time.Time, namespace string, concerns func(WatchRef) bool) error {
	to := s.cameTo()
	s.Log.Warn("objects changed in a namespace that was not seen: watches that select namespaces by label were not given all of it",
		"namespace", namespace, "fromResourceVersion", u.From, "toResourceVersion", to)
	return g.gap(s, at, &dynamicfactory.Gap{
		Cause: CauseNamespace, Namespace: namespace, From: u.From, To: to, FromTime: u.FromTime, ToTime: at,
	}, concerns)
}

// unseenNamespaces is the job that reports changes in namespaces that are not seen any more:
// they came and went while the watch of namespaces failed. Which watches select them is
// not known, so that each watch of a feed which may has one gap for all of them.
type unseenNamespaces struct{}

// over are the unjudged changes that wait no longer for their namespace, of the feeds that
// there are. A feed that does not run yet has its own reported when it does.
func (c *Committer) over() map[*Feed]unjudged {
	if len(c.unjudged) == 0 || c.relabelsHeld.Load() {
		return nil
	}
	by := map[*Feed]unjudged{}
	for _, s := range append(c.cfg.Running(), c.resting...) {
		for namespace := range c.unjudged {
			u, _ := c.noted(namespace, s)
			if !u.Lost || c.cfg.Now().Sub(u.At) <= namespacePause { // where nothing is lost, the object exists, and its namespace
				continue
			}
			if other, ok := by[s]; !ok || ledger.Newer(other.From, u.From) {
				by[s] = u
			}
		}
	}
	return by
}

func (unseenNamespaces) step(g *group) (more bool, err error) {
	for s, first := range g.c.over() {
		lost := map[string]unjudged{}
		for namespace := range g.c.unjudged {
			if u, _ := g.c.noted(namespace, s); u.Lost {
				lost[namespace] = u
			}
		}
		now := g.c.cfg.Now()
		err := g.unjudgedGap(s, first, now, "", func(h WatchRef) bool {
			return slices.ContainsFunc(slices.Collect(maps.Keys(lost)), h.mayCover)
		})
		if err != nil {
			return false, err
		}
		for namespace, u := range lost {
			if err := g.reported(s, namespace, u, now); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// reported notes that a gap has what was lost in a namespace. What exists there is given once the namespace is seen.
func (g *group) reported(s *Feed, namespace string, u unjudged, at time.Time) error {
	empty, err := g.c.ledger.Empty(s.Partition, ledger.Key(namespace, ""))
	if err != nil {
		return err
	}
	if n, seen := g.c.namespaces.get(namespace); empty || seen && n.Ended.IsZero() {
		g.c.dropUnjudged(g.batch, namespace, s.Partition)
		return nil
	}
	next := unjudged{From: u.From, FromTime: at, At: at}
	if u.From != "" {
		next.First, next.From = cmp.Or(u.First, u.From), ledger.Later(u.From, s.cameTo())
	}
	g.note(namespace, s.Partition, next)
	return nil
}

func (unseenNamespaces) end() {}
