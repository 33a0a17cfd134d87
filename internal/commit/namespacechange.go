package commit

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// process records a namespace, and delivers what its labels change for watches that
// select by them: the objects in it enter or leave.
func (c *namespaceSeen) process(g *group) error {
	name := c.obj.GetName()
	before, known := g.c.namespaces.get(name)
	again := known && before.UID != "" && before.UID != c.obj.GetUID() && ledger.Newer(c.obj.GetResourceVersion(), before.Version)
	if again && before.Gone.IsZero() { // as a list has found
		if err := g.namespaceGone(name, c.at, c.obj.GetCreationTimestamp().Add(-1)); err != nil {
			return err
		}
		before, _ = g.c.namespaces.get(name)
	}
	after := namespace{Labels: c.obj.GetLabels(), UID: c.obj.GetUID(), Version: c.obj.GetResourceVersion(), Epoch: before.Epoch}
	same := known && maps.Equal(before.Labels, after.Labels)
	if same && before.Gone.IsZero() && before.UID == after.UID {
		return nil
	}
	if known && !ledger.Newer(after.Version, before.Version) {
		after.Epoch++
	}
	g.putNamespace(name, after)
	if same && before.Ended.IsZero() || !g.c.namespaces.ready() {
		return nil
	}
	r := g.c.relabels[name]
	if r == nil {
		r = &relabelling{}
		g.c.relabels[name] = r
		g.resume(name)
	}
	r.Moves = append(r.Moves, relabel{Before: before.Labels, After: after.Labels, Known: known, Ended: before.Ended, Version: after.idVersion(), At: c.at})
	g.putRelabelling(name, r)
	return nil
}

// relabel is a change of a namespace's labels.
type relabel struct {
	Before, After labels.Set
	Version       string // of the namespace, see namespace.idVersion
	At            time.Time

	// Known is false if nothing was known of the namespace before. Objects in it may
	// have been seen before it was, as the order between watches is open, and no watch
	// that selects by label was given them.
	Known bool

	// Ended is when the one before ended that had the name. The labels of now are the first that
	// are known of objects that were made after that.
	Ended time.Time `json:",omitzero"`
}

// first reports whether the labels are the first that are known of some of the objects.
func (r *relabel) first() bool { return !r.Known || !r.Ended.IsZero() }

// judgesAll reports whether the labels of all of a namespace's objects are known once its first
// move is complete: it may have been deleted and made again since.
func (g *group) judgesAll(namespace string, r *relabelling) bool {
	n, _ := g.c.namespaces.get(namespace)
	return n.Ended.IsZero() && !slices.ContainsFunc(r.Moves[1:], func(m relabel) bool { return m.first() })
}

// knows reports whether the labels before are those of the object's namespace.
func (r *relabel) knows(o *compact.Object) bool { return r.Known && !madeAfter(o, r.Ended) }

func (r *relabel) before(o *compact.Object) func(string) (labels.Set, bool) {
	return func(string) (labels.Set, bool) {
		if r.knows(o) {
			return r.Before, true
		}
		return nil, false
	}
}

// cause is that of the events of objects that enter or leave.
func (r *relabel) cause() string { return "namespace " + r.Version }

func (r *relabel) after(string) (labels.Set, bool) { return r.After, true }

// relabelling is what remains to be delivered of a namespace's objects for the changes of its
// labels: a group takes a part of them, in the order of partitions and keys. A change of
// an object takes that object ahead, so that it is judged by the new labels after it
// has entered or left. The committer's goroutine has it.
type relabelling struct {
	Moves     []relabel // in order; the first is under way
	Base      int       // how many are complete
	Partition string    // how far the first has come: a part of the ledger
	Key       string    // and the key of an object

	ahead map[string]int // objects taken ahead: how many moves they have been given
}

const (
	relabelMeta = "relabel/"       // and the namespace
	aheadMeta   = "relabel-ahead/" // and the namespace, the part of the ledger and the key
)

// resume adds the job of a namespace's relabelling.
func (g *group) resume(namespace string) { g.jobs = append(g.jobs, &reselection{namespace: namespace}) }

// HoldRelabels has the changes of namespaces' labels wait while feeds do not run whose
// objects they concern. Call it before a feed ends. It waits for nothing.
func (c *Committer) HoldRelabels() { c.relabelsHeld.Store(true) }

// ResumeRelabels continues, once feeds run, what waits or an earlier life has left. means
// reports whether a watch means a part of the ledger.
func (c *Committer) ResumeRelabels(watches []plan.Watch, means func(w *plan.Watch, partition string) bool) error {
	resting, err := c.restingFeeds(watches, means)
	if err != nil {
		return err
	}
	return c.AtBarrier(func(b Barrier) {
		g := b.g
		c.relabelsHeld.Store(false)
		c.resting = resting
		for name := range c.relabels {
			if !slices.ContainsFunc(g.jobs, func(j job) bool { r, ok := j.(*reselection); return ok && r.namespace == name }) {
				g.resume(name)
			}
		}
	})
}

// restingFeeds are those of resources that are not served at present and of which watches
// that mean them and select namespaces by label were given objects.
func (c *Committer) restingFeeds(watches []plan.Watch, means func(w *plan.Watch, partition string) bool) (resting []*Feed, err error) {
	if !slices.ContainsFunc(watches, func(w plan.Watch) bool { return w.Filter.NeedsNamespaces() }) {
		return nil, nil
	}
	running := map[string]bool{}
	for _, s := range c.cfg.Running() {
		running[s.Partition] = true
	}
	for _, p := range c.store.Partitions() {
		if running[p] {
			continue
		}
		s, err := c.FormerFeed(p, watches, func(w *plan.Watch) bool { return means(w, p) }, false)
		if err != nil {
			return nil, err
		}
		if len(s.selecting()) == 0 {
			continue
		}
		cp, _, err := c.ledger.Checkpoint(s.ID)
		if ledger.IgnoreUnreadable(err) != nil {
			return nil, err
		}
		s.epoch, s.synced = cp.Epoch, cp.Synced
		resting = append(resting, s)
	}
	return resting, nil
}

// loadRelabels reads what an earlier life has left of the changes of namespaces' labels.
func (c *Committer) loadRelabels() error {
	c.relabels = map[string]*relabelling{}
	err := c.store.ScanMeta(relabelMeta, func(key string, value []byte) error {
		r := &relabelling{}
		c.relabels[strings.TrimPrefix(key, relabelMeta)] = r
		return json.Unmarshal(value, r)
	})
	if err == nil {
		err = c.store.ScanMeta(aheadMeta, func(key string, value []byte) error {
			namespace, object, _ := strings.Cut(strings.TrimPrefix(key, aheadMeta), "/")
			r := c.relabels[namespace]
			if r == nil {
				return nil
			}
			n, err := strconv.Atoi(string(value))
			r.setAhead(object, n)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("load relabelled namespaces: %w", err)
	}
	return nil
}

func (r *relabelling) setAhead(object string, moves int) {
	if r.ahead == nil {
		r.ahead = map[string]int{}
	}
	r.ahead[object] = moves
}

func (g *group) putRelabelling(namespace string, r *relabelling) {
	g.batch.PutMeta(relabelMeta+namespace, ledger.Encode(r))
}

// takeAhead gives an object that changes what its namespace's relabelling still has
// for it. before is its state before the change; nil: there was none.
func (g *group) takeAhead(s *Feed, o, before *compact.Object) error {
	r := g.c.relabels[o.GetNamespace()]
	if r == nil {
		return nil
	}
	key := ledger.Key(o.GetNamespace(), o.GetName())
	object := s.Partition + "/" + key
	end := r.end()
	for next := r.next(s, key); next < end && before != nil; next++ {
		if err := g.reselect(s, &r.Moves[next-r.Base], before); err != nil {
			return err
		}
	}
	r.setAhead(object, end)
	g.batch.PutMeta(aheadMeta+o.GetNamespace()+"/"+object, strconv.AppendInt(nil, int64(end), 10))
	return nil
}

// next is how many changes of labels an object has been taken through.
func (r *relabelling) next(s *Feed, key string) int {
	next := r.Base
	if s.Partition < r.Partition || s.Partition == r.Partition && key <= r.Key {
		next++
	}
	return max(next, r.ahead[s.Partition+"/"+key])
}

// end is how many there are.
func (r *relabelling) end() int { return r.Base + len(r.Moves) }

// labelsOf returns the labels of namespaces by which an object was judged last: those
// before the changes that it must still be taken through.
func (c *Committer) labelsOf(s *Feed, o *compact.Object) func(namespace string) (labels.Set, bool) {
	if r := c.relabels[o.GetNamespace()]; r != nil {
		if next := r.next(s, ledger.Key(o.GetNamespace(), o.GetName())); next < r.end() {
			return r.Moves[next-r.Base].before(o)
		}
	}
	return c.namespaces.of(o)
}

// reselection is the job of a relabelling.
type reselection struct {
	namespace string
	begun     bool
}

func (j *reselection) step(g *group) (more bool, err error) {
	running := g.c.cfg.Running()
	if g.c.relabelsHeld.Load() { // else they are all that run: see HoldRelabels
		return false, nil // ResumeRelabels adds another one
	}
	r := g.c.relabels[j.namespace]
	if r == nil {
		return false, nil // the labels are of no use any more
	}
	if !j.begun { // the group's own objects are not in the ledger yet
		j.begun = true
		return true, nil
	}
	feeds := append(running, g.c.resting...)
	slices.SortFunc(feeds, func(a, b *Feed) int { return strings.Compare(a.Partition, b.Partition) })
	looked := 0
	for _, s := range feeds {
		if s.Partition < r.Partition || !s.selects(j.namespace) {
			continue
		}
		if s.Partition > r.Partition {
			r.Partition, r.Key = s.Partition, ""
		}
		more, err := g.c.ledger.Scan(s.Partition, ledger.Key(j.namespace, ""), r.Key, func(key string, o *compact.Object) error {
			if looked == maxGroup || g.full() {
				return ledger.ErrEnough
			}
			looked++
			r.Key = key
			newer, ok := g.overlay[stateID{s.Partition, key}]
			if ok {
				o = newer
			}
			if o == nil || r.ahead[s.Partition+"/"+key] > r.Base {
				return nil
			}
			if !ok {
				var err error
				if o, err = g.former(s, o); err != nil {
					return err
				}
			}
			return g.reselect(s, &r.Moves[0], o)
		})
		switch {
		case more:
			g.putRelabelling(j.namespace, r)
			return true, nil
		case errors.Is(err, store.ErrUnreadable):
			s.Log.Error("a part of the recorded states cannot be read: its objects do not enter or leave with their namespace's labels", "namespace", j.namespace, "error", err)
		case err != nil:
			return false, err
		}
	}
	move := &r.Moves[0]
	if err := g.oweUnfollowed(j.namespace, move, feeds); err != nil {
		return false, err
	}
	if move.first() {
		all := g.judgesAll(j.namespace, r)
		if all {
			g.dropCarried(j.namespace)
		}
		if err := g.reportUnjudged(j.namespace, move, feeds, all); err != nil {
			return false, err
		}
	}
	r.Moves, r.Base, r.Partition, r.Key = r.Moves[1:], r.Base+1, "", ""
	if len(r.Moves) > 0 {
		g.putRelabelling(j.namespace, r)
		return true, nil
	}
	g.batch.DeleteMeta(relabelMeta + j.namespace)
	for object := range r.ahead {
		g.batch.DeleteMeta(aheadMeta + j.namespace + "/" + object)
	}
	delete(g.c.relabels, j.namespace)
	return false, nil
}

func (j *reselection) end() {}

// selecting are the watches of the feed that select namespaces by label.
func (s *Feed) selecting() []WatchRef {
	return slices.DeleteFunc(slices.Clone(s.Watches()), func(h WatchRef) bool { return !h.byLabels() })
}

// SelectsByLabels reports whether watches of the feed select namespaces by label. Any goroutine may call it.
func (s *Feed) SelectsByLabels() bool { return slices.ContainsFunc(s.Watches(), WatchRef.byLabels) }

// selects reports whether watches of the feed select the namespace by label, or are given
// objects.
func (s *Feed) selects(namespace string) bool {
	in := s.Key.Namespace == "" || s.Key.Namespace == namespace
	return in && (len(s.selecting()) > 0 || len(s.gaining) > 0)
}

// reselect delivers an object to those of one feed's watches for which a change of
// its namespace's labels makes a difference. Snapshots that must still come to it give
// it before that, as their watches and those they took the place of saw it.
func (g *group) reselect(s *Feed, move *relabel, o *compact.Object) error {
	for _, j := range s.gaining {
		if err := j.takeAhead(g, move, o); err != nil {
			return err
		}
	}
	if !move.knows(o) {
		return g.addLate(s, move, o, s.selecting())
	}
	return g.move(s, move, o, s.selecting())
}

// move delivers an object to the watches that it enters or leaves. Its version has
// been delivered before, so that the namespace's is part of the event's ID.
func (g *group) move(s *Feed, move *relabel, o *compact.Object, hits []WatchRef) error {
	keep := false
	var changed []route.Hit
	for _, h := range hits {
		was, is := h.Covers(o, move.before(o)), h.Covers(o, move.after)
		if was == is {
			continue
		}
		selection := event.Left
		if is {
			selection = event.Entered
		}
		g.c.metrics.watched(h.Watch.Name, event.Updated)
		changed = append(changed, route.Hit{Watch: h.Watch.Name, Selection: selection})
		keep = keep || h.Watch.History
	}
	_, err := g.deliver(s, move.At, &transition{t: event.Updated, before: o, after: o, cause: move.cause(), keep: keep}, changed, nil)
	return err
}

// addLate delivers an object as it would have been if the namespace had been known, but to
// watches that have it by rules that are carried. It was added since then, or the watches
// that select it came later. Where objects were updated since, it may be one of those: it enters.
func (g *group) addLate(s *Feed, move *relabel, o *compact.Object, hits []WatchRef) error {
	late := transition{t: event.Added, after: o}
	u, noted := g.c.noted(o.GetNamespace(), s)
	after := func(version string) bool { return version == "" || ledger.Newer(o.GetResourceVersion(), version) }
	switch {
	case !s.synced || !noted || !after(cmp.Or(u.First, u.From)):
		late.t = event.Sync
	case u.Lost && !u.Former || !after(u.From):
		late.t, late.before, late.cause = event.Updated, o, move.cause()
	}
	var covered []route.Hit
	for _, h := range hits {
		if g.c.inForce(s, h, o.GetNamespace(), move.before(o)).Covers(o, move.before(o)) {
			continue
		}
		if late.t == event.Sync && !h.Watch.Snapshot {
			continue
		}
		selection, ok := h.Selection(late.t, nil, o, move.after)
		if !ok {
			continue
		}
		g.c.metrics.watched(h.Watch.Name, late.t)
		covered = append(covered, route.Hit{Watch: h.Watch.Name, Selection: selection})
		late.keep = late.keep || h.Watch.History
	}
	_, err := g.deliver(s, move.At, &late, covered, nil)
	return err
}

func (c *namespaceGone) process(g *group) error {
	ended := c.at // a list has found that
	if deleted := c.obj.GetDeletionTimestamp(); deleted != nil {
		ended = deleted.Time
	}
	return g.namespaceGone(c.obj.GetName(), c.at, ended)
}

// ended is from when on what is made is in another namespace than the one of a name that had ended by a time, and whose end
// was observed later. Objects of that other one that are recorded already were judged by the labels of the one that
// ended, so that only what was made after them is not; where they cannot be looked at, what was made before the observation counts as they do.
func (g *group) ended(namespace string, ended, observed time.Time) (time.Time, error) {
	unknown := ended
	if observed.After(ended) {
		unknown = observed
	}
	if g.c.relabelsHeld.Load() {
		return unknown, nil
	}
	prefix, looked := ledger.Key(namespace, ""), 0
	look := func(o *compact.Object) {
		if o != nil && madeAfter(o, ended) {
			ended = o.GetCreationTimestamp().Time
		}
	}
	for _, s := range append(g.c.cfg.Running(), g.c.resting...) {
		if !s.selects(namespace) {
			continue
		}
		more, err := g.c.ledger.Scan(s.Partition, prefix, "", func(_ string, o *compact.Object) error {
			if looked++; looked > maxGroup {
				return ledger.ErrEnough
			}
			look(o)
			return nil
		})
		switch {
		case more, errors.Is(err, store.ErrUnreadable):
			return unknown, nil
		case err != nil:
			return time.Time{}, err
		}
	}
	for id, o := range g.overlay {
		if strings.HasPrefix(id.key, prefix) {
			look(o)
		}
	}
	return ended, nil
}

// namespaceGone keeps the labels of a namespace for the deletions of its objects. It had ended by a time.
func (g *group) namespaceGone(name string, at, ended time.Time) error {
	n, known := g.c.namespaces.get(name)
	if !known || !n.Gone.IsZero() {
		return nil
	}
	judged, err := g.ended(name, ended, at)
	if err != nil {
		return err
	}
	n.Gone, n.Ended = at, judged
	g.putNamespace(name, n)
	g.endUnjudged(name)
	g.misjudged(name, at, ended)
	return nil
}

// process notes that all namespaces are known, and which are no more.
func (c *namespacesSynced) process(g *group) error {
	for _, name := range g.c.namespaces.existing() {
		if _, exists := c.names[name]; !exists {
			if err := g.namespaceGone(name, c.at, c.at); err != nil {
				return err
			}
		}
	}
	g.batch.PutMeta(namespacesKnownKey, []byte("{}"))
	if g.c.namespaces.markComplete() {
		select {
		case g.c.namespacesKnown <- struct{}{}:
		default: // there is a value
		}
	}
	return nil
}

func (g *group) putNamespace(name string, n namespace) {
	g.batch.PutMeta(ledger.NamespaceMeta+name, ledger.Encode(n))
	for _, old := range g.c.namespaces.put(name, n) {
		g.batch.DeleteMeta(ledger.NamespaceMeta + old)
	}
}
