package commit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
)

// addedWatch is a watch that a feed now feeds too, or feeds by other rules.
type addedWatch struct {
	feed  *Feed
	watch WatchRef
	was   coverage // what it covered before; nil: nothing
}

type coverage interface {
	Covers(o *compact.Object, nsLabels func(string) (labels.Set, bool)) bool
	byLabels() bool                 // of namespaces
	of(namespace string) []WatchRef // the rules of a namespace, those in force last; none: it covers nothing there
}

// added are those of next that are not among the watches of the feed, or are by
// another definition.
func (s *Feed) added(next []WatchRef) []addedWatch {
	var gained []addedWatch
	before := s.Watches()
	for _, h := range next {
		switch i := slices.IndexFunc(before, h.sameWatch); {
		case i < 0:
			gained = append(gained, addedWatch{feed: s, watch: h})
		case before[i].Watch.Fingerprint != h.Watch.Fingerprint:
			gained = append(gained, addedWatch{feed: s, watch: h, was: &before[i]})
		}
	}
	return gained
}

func selectedBy(s *Feed, w *plan.Watch) ledger.Selected {
	return ledger.Selected{Resource: s.Resource, Namespaces: w.Namespaces, Rules: w.Selection}
}

// watchRef returns rules as those of a watch.
func watchRef(s *ledger.Selected, watch string) (WatchRef, error) {
	filter, err := s.Rules.Filter()
	if err != nil {
		return WatchRef{}, fmt.Errorf("rules of watch %s: %w", watch, err)
	}
	return NewWatchRef(&plan.Watch{Name: watch, Filter: filter, Namespaces: s.Namespaces, Selection: s.Rules}), nil
}

// formerly is what a watch covered of a part of the ledger, by id of the feed that
// was the last to record a namespace: what all of several rules select.
type formerly struct {
	all string                // the id of a feed of all namespaces
	ids map[string][]WatchRef // none: the watch was not given what that feed recorded
}

// known are the ids, none if nothing is known.
func (f *formerly) known() map[string][]WatchRef {
	if f == nil {
		return nil
	}
	return f.ids
}

func (f *formerly) Covers(o *compact.Object, nsLabels func(string) (labels.Set, bool)) bool {
	rules := f.of(o.GetNamespace())
	return len(rules) > 0 && !slices.ContainsFunc(rules, func(h WatchRef) bool { return !h.Covers(o, nsLabels) })
}

func (f *formerly) of(namespace string) []WatchRef {
	if h, ok := f.ids[f.all+namespace]; ok {
		return h
	}
	return f.ids[f.all]
}

func (f *formerly) byLabels() bool {
	for _, rules := range f.ids {
		if slices.ContainsFunc(rules, WatchRef.byLabels) {
			return true
		}
	}
	return false
}

// nothing reports whether a watch covered nothing before.
func nothing(was coverage) bool {
	f, ok := was.(*formerly)
	return was == nil || ok && !slices.ContainsFunc(slices.Collect(maps.Values(f.ids)), func(rules []WatchRef) bool { return len(rules) > 0 })
}

// formerlyCovered is what a watch covered of a part of the ledger; nil if
// nothing is known of it.
func formerlyCovered(all ledger.Selections, partition string, watch *plan.Watch) (*formerly, error) {
	f := &formerly{all: ledger.FeedID(partition, ""), ids: map[string][]WatchRef{}}
	for id, watches := range all {
		if !strings.HasPrefix(id, f.all) {
			continue
		}
		f.ids[id] = nil
		rules, ok := watches[watch.Name]
		if !ok || rules.Owed {
			continue
		}
		for _, r := range rules.All() {
			h, err := watchRef(&r, watch.Name)
			if err != nil {
				return nil, err
			}
			f.ids[id] = append(f.ids[id], h)
		}
	}
	if len(f.ids) == 0 {
		return nil, nil
	}
	return f, nil
}

// addedBefore are the watches of feeds that are about to start which may cover
// recorded objects that they were not given.
func (c *Committer) addedBefore(start []*Feed) ([]addedWatch, error) {
	if len(start) == 0 {
		return nil, nil
	}
	all, err := c.ledger.Selections()
	if err != nil {
		return nil, err
	}
	var gained []addedWatch
	for _, s := range start {
		for _, h := range s.Watches() {
			if before, ok := all[s.ID][h.Watch.Name]; ok && before.Same(selectedBy(s, h.Watch)) && !(s.Key.Namespace == "" && all.Parted(s.Partition)) {
				continue
			}
			was, err := formerlyCovered(all, s.Partition, h.Watch)
			switch {
			case err != nil:
				return nil, err
			case was != nil:
				gained = append(gained, addedWatch{feed: s, watch: h, was: was})
			}
		}
	}
	return gained, nil
}

// given are rules to make durable, by id of the feed and name of the watch.
type given map[string]map[string]givenRules

// givenRules are the rules of a watch that are in force.
type givenRules struct {
	ledger.Selected
	partly bool // it is still being given what it gained by them
}

// givenBy are the rules of the feeds' watches. The committer calls it.
func givenBy(feeds []*Feed) given {
	rules := given{}
	for _, s := range feeds {
		rules[s.ID] = map[string]givenRules{}
		for _, h := range s.Watches() {
			partly := slices.ContainsFunc(s.gaining, func(j *snapshot) bool { return j.gives(h.Watch.Name) })
			rules[s.ID][h.Watch.Name] = givenRules{selectedBy(s, h.Watch), partly}
		}
	}
	return rules
}

// after are the rules to remember where others were remembered before: with those, as long as not
// all is given that the new ones cover. Nothing counts as given if what parts of the feed had been
// given is remembered no more.
func (r givenRules) after(before ledger.Selected, parted bool) ledger.Selected {
	switch {
	case !r.partly:
		return r.Selected
	case before.Owed || parted:
		r.Owed = true
		return r.Selected
	default:
		return before.Then(r.Selected)
	}
}

// oweSelections notes of watches that are about to be given objects, and of which no
// rules are known, that they were not: an end before they are must not look like the
// first start. Those that moved are noted with their gap, and others are known then.
func (c *Committer) oweSelections(b *store.Batch, jobs []*snapshot) error {
	known, err := c.ledger.Selections()
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if j.sink != "" || j.moved {
			continue
		}
		_, own := known[j.feed.ID][j.watch.Watch.Name]
		_, wider := known[ledger.FeedID(j.feed.Partition, "")][j.watch.Watch.Name]
		if own || wider {
			continue
		}
		rules := selectedBy(j.feed, j.watch.Watch)
		rules.Owed = true
		rules.Put(b, j.watch.Watch.Name, j.feed.ID)
	}
	return nil
}

// oweLabels notes that rules by labels of namespaces cannot be judged by any more. None
// of the present watches has such rules; one that has been removed is a new one when it returns, if others read what it was given.
func (c *Committer) oweLabels(b *store.Batch, watches []plan.Watch) error {
	all, err := c.ledger.Selections()
	if err != nil {
		return err
	}
	named := func(name string) int {
		return slices.IndexFunc(watches, func(w plan.Watch) bool { return w.Name == name })
	}
	for id, given := range all {
		readOn := slices.ContainsFunc(slices.Collect(maps.Keys(given)), func(name string) bool { return named(name) >= 0 })
		for name, s := range given {
			if !slices.ContainsFunc(s.All(), func(r ledger.Selected) bool { return r.Rules.Namespaces.Selector != "" }) {
				continue
			}
			i := named(name)
			if i < 0 && readOn {
				b.DeleteMeta(ledger.SelectionKey(name, id))
				continue
			}
			s = s.Owing()
			if i >= 0 {
				s.Namespaces, s.Rules = watches[i].Namespaces, watches[i].Selection
			}
			s.Put(b, name, id)
		}
	}
	return nil
}

// oweUnfollowed notes of watches that were given objects of a namespace by its labels, and that none of the
// feeds gives them to now, that what they were given is not known any more: the labels have changed since.
func (g *group) oweUnfollowed(namespace string, move *relabel, feeds []*Feed) error {
	all, err := g.c.ledger.Selections()
	if err != nil {
		return err
	}
	before := func(string) (labels.Set, bool) { return move.Before, !move.first() }
	for id, given := range all {
		partition, part := ledger.SplitFeed(id)
		if part != "" && part != namespace {
			continue
		}
		for name, s := range given {
			follows := func(f *Feed) bool {
				_, fed := f.WatchNamed(name)
				return fed && f.covers(place{partition, namespace})
			}
			if s.Owed || slices.ContainsFunc(feeds, follows) {
				continue
			}
			for _, rules := range s.All() {
				h, err := watchRef(&rules, name)
				if err != nil {
					return err
				}
				filter := h.Watch.Filter
				if h.mayCover(namespace) && filter.SelectsNamespace(namespace, before) != filter.SelectsNamespace(namespace, move.after) {
					s.Owing().Put(g.batch, name, id)
					break
				}
			}
		}
	}
	return nil
}

// selectionsNote has the rules of feeds noted.
type selectionsNote struct {
	feeds  []*Feed
	wanted func(watch, partition string) (resource, part bool) // see WatchesChange
}

func (x *selectionsNote) process(g *group) error {
	return g.c.noteSelections(g.batch, givenBy(x.feeds), x.wanted)
}

// noteSelections makes the rules of running feeds durable. Those of parts of a
// feed are of no use any more, and those of a feed that others took the place of are former ones. Of watches that
// want the resource and that a feed feeds no more, or one of another part of the ledger, it stays where they had come to.
func (c *Committer) noteSelections(b *store.Batch, rules given, wanted func(watch, partition string) (resource, part bool)) error {
	known, err := c.ledger.Selections()
	if err != nil {
		return err
	}
	wants := func(name, id string) bool {
		partition, _ := ledger.SplitFeed(id)
		resource, _ := wanted(name, partition)
		return resource
	}
	movedFrom := func(name, id string) bool {
		partition, _ := ledger.SplitFeed(id)
		gr, _ := ledger.SplitPartition(partition)
		resource, part := wanted(name, partition)
		return resource && !part && slices.ContainsFunc(slices.Collect(maps.Keys(rules)), func(other string) bool {
			_, fed := rules[other][name]
			to, _ := ledger.SplitFeed(other)
			of, _ := ledger.SplitPartition(to)
			return fed && of == gr
		})
	}
	leave := func(name, id string, s ledger.Selected) error {
		return c.leave(b, name, id, s, wants(name, id))
	}
	for id, watches := range rules {
		partition, namespace := ledger.SplitFeed(id)
		parted := namespace == "" && known.Parted(partition)
		for name, now := range watches {
			before, own := known[id][name]
			ok := own
			if known[id] == nil { // it takes the place of the whole
				before, ok = known[ledger.FeedID(partition, "")][name]
			}
			if !ok && now.partly {
				before.Owed = true // as oweSelections notes it
			}
			if next := now.after(before, parted); !own || !reflect.DeepEqual(before, next) {
				next.Put(b, name, id)
			}
		}
		for name, s := range known[id] {
			if _, ok := watches[name]; ok {
				continue
			}
			if gaveUp := s.Left == nil && readOn(known, id, s); gaveUp {
				b.DeleteMeta(ledger.SelectionKey(name, id))
			} else if err := leave(name, id, s); err != nil {
				return err
			}
		}
	}
	ids := slices.Collect(maps.Keys(rules))
	for id, watches := range known {
		partition, _ := ledger.SplitFeed(id)
		all := ledger.FeedID(partition, "")
		switch {
		case rules[id] != nil:
		case rules[all] != nil:
			ledger.DropSelections(b, id, watches)
			for name, s := range watches {
				if _, ok := rules[all][name]; ok || known[all][name].Left != nil {
					continue
				}
				if err := leave(name, all, s); err != nil { // its checkpoint has gone into that of the whole
					return err
				}
			}
		case slices.ContainsFunc(ids, func(other string) bool { return strings.HasPrefix(other, all) }):
			for name, s := range watches {
				fed := slices.ContainsFunc(ids, func(other string) bool {
					_, ok := rules[other][name]
					return ok && strings.HasPrefix(other, all)
				})
				if s.Left == nil && !fed && wants(name, id) && gave(known, partition, name, nil) { // else it had given that up
					if err := leave(name, id, s); err != nil {
						return err
					}
					continue
				}
				s.Former = true
				s.Put(b, name, id)
			}
		default: // what it is given elsewhere may be older than what it was given here
			for name, s := range watches {
				if s.Left != nil || !movedFrom(name, id) {
					continue
				}
				if err := leave(name, id, s); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// DueMeta and the name of a sink say that the sink begins with a snapshot, which has not
// begun.
const DueMeta = "snapshot-due/"

// firstSnapshots are those that sinks begin with.
func firstSnapshots(due []string, feeds []*Feed, stay map[*Feed][]WatchRef) []*snapshot {
	var jobs []*snapshot
	for _, name := range due {
		for _, s := range feeds {
			hits, ok := stay[s]
			if !ok {
				hits = s.Watches()
			}
			for _, h := range hits {
				j := newSnapshot(s, h)
				j.forSink(name)
				jobs = append(jobs, j)
			}
		}
	}
	return jobs
}

// noteFirst notes the snapshots that sinks begin with of recorded resources that no feed reads at present, as the cluster does not serve
// them: they begin with their feeds.
func (c *Committer) noteFirst(x *WatchesChange, due []string) error {
	if len(due) == 0 {
		return nil
	}
	known, err := c.ledger.Selections()
	if err != nil {
		return err
	}
	b := c.store.NewBatch()
	defer b.Discard()
	for id, watches := range known {
		partition, _ := ledger.SplitFeed(id)
		if slices.ContainsFunc(x.feeds, func(s *Feed) bool { return s.Partition == partition }) {
			continue
		}
		for name, given := range watches {
			if resource, _ := x.wanted(name, partition); given.Former || !resource {
				continue
			}
			for _, sink := range due {
				u := unfinished{Source: id, Watch: name, Sink: sink}
				b.PutMeta(u.key(), ledger.Encode(u))
			}
		}
	}
	return ledger.StoreError(c.store.Commit(b), "note snapshots")
}

// WatchesChange is a change of the watches that feeds feed, ready to be put in place.
type WatchesChange struct {
	feeds     []*Feed
	stay      map[*Feed][]WatchRef
	snapshots []*snapshot

	watches []plan.Watch // of the state
	wants   Wants
	changed []addedWatch
	moved   movedWatches
}

// Wants reports whether a watch means the resource of a part of the ledger, and whether it means that part.
type Wants func(w *plan.Watch, partition string) (resource, part bool)

// wanted is Wants of a watch of the state; of another one, nothing.
func (x *WatchesChange) wanted(watch, partition string) (resource, part bool) {
	i := slices.IndexFunc(x.watches, func(w plan.Watch) bool { return w.Name == watch })
	if i < 0 {
		return false, false
	}
	return x.wants(&x.watches[i], partition)
}

// PrepareChange prepares a change to feeds that are about to start, and to new watches of
// those that stay. It makes durable what the change has to deliver: what is recorded and
// watches come to cover, and a first snapshot to each of the sinks that are due one.
func (c *Committer) PrepareChange(st *plan.State, wants Wants, start []*Feed, stay map[*Feed][]WatchRef, due []string) (*WatchesChange, error) {
	x := &WatchesChange{feeds: slices.Clone(start), stay: stay, watches: st.Watches, wants: wants}
	resumed, began, err := c.unfinished(st, start)
	if err != nil {
		return nil, err
	}
	resumed = slices.DeleteFunc(resumed, func(j *snapshot) bool { return slices.Contains(due, j.sink) })
	gained, err := c.addedBefore(start)
	if err != nil {
		return nil, err
	}
	gained = slices.DeleteFunc(gained, func(a addedWatch) bool {
		return slices.ContainsFunc(resumed, func(j *snapshot) bool {
			return j.feed == a.feed && j.sink == "" && j.watch.Watch.Name == a.watch.Watch.Name
		})
	})
	for s, watches := range stay {
		x.feeds = append(x.feeds, s)
		gained = append(gained, s.added(watches)...)
	}
	x.changed = gained
	if x.moved, err = c.moved(start, stay); err != nil {
		return nil, err
	}
	for _, a := range gained {
		if a.watch.Watch.Snapshot {
			j := newSnapshot(a.feed, a.watch)
			j.was = a.was
			j.began = began[j.remember().key()]
			j.moved = slices.ContainsFunc(x.moved, func(m movedWatch) bool { return m.feed == a.feed && m.name == a.watch.Watch.Name })
			x.snapshots = append(x.snapshots, j)
		}
	}
	first := slices.DeleteFunc(firstSnapshots(due, x.feeds, stay), func(j *snapshot) bool { // a watch that is given all of it gives it to the sink, too
		return slices.ContainsFunc(x.snapshots, func(all *snapshot) bool {
			return all.feed == j.feed && all.watch.sameWatch(j.watch) && nothing(all.was)
		})
	})
	x.snapshots = append(x.snapshots, first...)
	x.snapshots = append(x.snapshots, resumed...)
	if err := c.noteFirst(x, due); err != nil {
		return nil, err
	}
	return x, c.durable(x.snapshots, due)
}

// ReadNotes reads what the store remembers of watches and snapshots and a change goes by,
// so that a damaged note is found before the change begins.
func (c *Committer) ReadNotes() error {
	_, err := c.ledger.Selections()
	if err != nil {
		return err
	}
	err = c.store.ScanMeta(snapshotMeta, func(key string, value []byte) error {
		if err := json.Unmarshal(value, new(unfinished)); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	return ledger.StoreError(err, "unfinished snapshots")
}

// Change puts a change in place. It fails only with the store.
func (b Barrier) Change(x *WatchesChange) error {
	if len(b.g.c.unjudged) > 0 {
		later := laterRules(slices.DeleteFunc(slices.Clone(x.changed), func(a addedWatch) bool { return a.was == nil || a.watch.byLabels() }))
		if err := b.g.commitAlone(later); err != nil { // carry and the new rules end the notes
			return err
		}
	}
	if err := b.g.c.carry(x.watches, x.changed); err != nil {
		return err
	}
	for s, watches := range x.stay {
		s.watches.Store(&watches)
	}
	if err := b.noteKept(x.stay); err != nil {
		return err
	}
	next, beside := b.g.c.store.LogStats().Last+1, map[*Feed][]*snapshot{}
	for _, j := range x.snapshots {
		if j.cursor == "" {
			beside[j.feed] = append(beside[j.feed], j)
		}
	}
	for _, j := range x.snapshots {
		j.began, j.beside, j.router = cmp.Or(j.began, next), beside[j.feed], b.g.c.router
		b.g.begin(j)
	}
	return b.g.commitAlone(x.moved, &selectionsNote{x.feeds, x.wanted}) // before a snapshot ends, and notes them itself
}

// noteKept makes durable that feeds keep the history by other rules than before, which readers of the history go by, before
// anything is judged by them.
func (b Barrier) noteKept(feeds map[*Feed][]WatchRef) error {
	changed := false
	for s := range feeds {
		if s.begun.Load() && !s.saved.KeepsOnly(s.kept()) {
			changed, b.g.touched[s] = true, struct{}{}
		}
	}
	if !changed {
		return nil
	}
	return b.g.commitAlone()
}
