package feed

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// namespaceSeen records a namespace, and delivers what its labels change for
// watches that select by them: the objects in it enter or leave.
func (g *group) namespaceSeen(c *change) error {
	name := c.obj.GetName()
	before, known := g.m.namespaces.get(name)
	after := namespace{Labels: c.obj.GetLabels(), Version: c.obj.GetResourceVersion()}
	same := known && maps.Equal(before.Labels, after.Labels)
	if same && before.Gone.IsZero() {
		return nil
	}
	g.putNamespace(name, after)
	if same || !g.m.namespaces.ready() {
		return nil
	}
	move := relabel{name: name, version: after.Version, at: c.at, added: !known}
	move.before = func(string) (labels.Set, bool) { return before.Labels, known }
	move.after = func(string) (labels.Set, bool) { return after.Labels, true }
	sources := g.m.sourceList()
	slices.SortFunc(sources, func(a, b *source) int { return strings.Compare(a.id, b.id) })
	for _, s := range sources {
		if err := g.reselect(s, &move); err != nil {
			return err
		}
	}
	return nil
}

// relabel is a change of a namespace's labels.
type relabel struct {
	name    string
	version string // of the namespace
	at      time.Time

	// added: nothing was known of the namespace. Objects in it may have been seen
	// before it was, as the order between watches is open, and no watch that selects
	// by label was given them.
	added bool

	before, after func(string) (labels.Set, bool)
}

// reselect delivers the objects of a namespace for which a change of its labels
// makes a difference to one source's watches.
func (g *group) reselect(s *source, move *relabel) error {
	var hits []hit
	for _, h := range *s.hits.Load() {
		if h.watch.Filter.NeedsNamespaces() {
			hits = append(hits, h)
		}
	}
	if len(hits) == 0 || s.key.Namespace != "" && s.key.Namespace != move.name {
		return nil
	}
	objects, err := g.objectsIn(s, move.name)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if move.added {
			err = g.addLate(s, move, o, hits)
		} else {
			err = g.move(s, move, o, hits)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// move delivers an object to the watches that it enters or leaves. Its version has
// been delivered before, so that the namespace's takes part in the event's ID.
func (g *group) move(s *source, move *relabel, o *compact.Object, hits []hit) error {
	var changed []route.Hit
	for _, h := range hits {
		was, is := h.covers(o, move.before), h.covers(o, move.after)
		if was == is {
			continue
		}
		selection := event.Left
		if is {
			selection = event.Entered
		}
		g.m.metrics.watched(h.watch.Name, event.Updated)
		changed = append(changed, route.Hit{Watch: h.watch.Name, Selection: selection})
	}
	return g.deliver(s, move.at, occurrence{t: event.Updated, before: o, after: o, cause: "namespace " + move.version}, changed, nil)
}

// addLate delivers an object as it would have been if the namespace had been known.
func (g *group) addLate(s *source, move *relabel, o *compact.Object, hits []hit) error {
	t := event.Added
	if !s.synced {
		t = event.Sync
	}
	var covered []route.Hit
	for _, h := range hits {
		if t == event.Sync && !h.watch.Snapshot {
			continue
		}
		if selection, ok := h.selection(t, nil, o, move.after); ok {
			g.m.metrics.watched(h.watch.Name, t)
			covered = append(covered, route.Hit{Watch: h.watch.Name, Selection: selection})
		}
	}
	return g.deliver(s, move.at, occurrence{t: t, after: o}, covered, nil)
}

// objectsIn are the recorded objects of a namespace as this group will leave them,
// by name.
func (g *group) objectsIn(s *source, namespace string) ([]*compact.Object, error) {
	prefix := stateKey(namespace, "")
	var objects []*compact.Object
	err := g.m.scanPrefix(s, prefix, func(o *compact.Object) error {
		if _, newer := g.overlay[stateID{s.partition, stateKey(o.GetNamespace(), o.GetName())}]; !newer {
			objects = append(objects, o)
		}
		return nil
	})
	if errors.Is(err, outbox.ErrUnreadable) {
		s.log.Error("a part of the recorded states cannot be read: objects in it do not follow a change of their namespace", "namespace", namespace, "error", err)
	} else if err != nil {
		return nil, err
	}
	for id, o := range g.overlay {
		if o != nil && id.partition == s.partition && strings.HasPrefix(id.key, prefix) {
			objects = append(objects, o)
		}
	}
	slices.SortFunc(objects, func(a, b *compact.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	return objects, nil
}

// namespaceGone keeps the labels of a namespace for the deletions of its objects.
func (g *group) namespaceGone(name string, at time.Time) {
	if n, known := g.m.namespaces.get(name); known && n.Gone.IsZero() {
		n.Gone = at
		g.putNamespace(name, n)
	}
}

// namespacesSynced notes that all namespaces are known, and which are no more.
func (g *group) namespacesSynced(c *change) {
	for _, name := range g.m.namespaces.existing() {
		if _, exists := c.listed[name]; !exists {
			g.namespaceGone(name, c.at)
		}
	}
	g.batch.PutMeta(namespacesKnownKey, []byte("{}"))
	if g.m.namespaces.markComplete() {
		select {
		case g.m.namespaces.synced <- struct{}{}:
		default: // told already
		}
	}
}

func (g *group) putNamespace(name string, n namespace) {
	value, err := json.Marshal(n)
	if err != nil { // strings and a time always marshal
		panic(fmt.Sprintf("feed: marshal namespace: %v", err))
	}
	g.batch.PutMeta(namespaceMeta+name, value)
	for _, old := range g.m.namespaces.put(name, n) {
		g.batch.DeleteMeta(namespaceMeta + old)
	}
}
