package commit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// Snapshot delivers the recorded state of every object of the feeds as Sync events to one
// sink; of one watch only, unless watch is empty. It returns the number of objects that
// routes lead to the sink, once their events are committed. Changes that happen meanwhile are
// delivered in order with it, object by object. progress, if not nil, is called with the number
// of objects so far.
func (c *Committer) Snapshot(ctx context.Context, feeds []*Feed, sink, watch string, progress func(objects int)) (int, error) {
	total, began := 0, c.store.LogStats().Last+1
	for _, s := range feeds {
		for _, h := range s.Watches() {
			if watch != "" && h.Watch.Name != watch {
				continue
			}
			j := newSnapshot(s, h)
			j.forSink(sink)
			j.began, j.quit = began, ctx.Done()
			err := c.await(ctx, j, func(n int) {
				if progress != nil {
					progress(total + n)
				}
			})
			total += int(j.objects.Load())
			if err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

// await waits for a snapshot by the committer, and calls progress with the growing number
// of objects.
func (c *Committer) await(ctx context.Context, j *snapshot, progress func(objects int)) error {
	if err := c.AtBarrier(func(b Barrier) { b.add(j) }); err != nil {
		return err
	}
	for {
		select {
		case <-j.more:
			progress(int(j.objects.Load()))
		case <-j.done:
			progress(int(j.objects.Load()))
			return j.err
		case <-ctx.Done():
			return ctx.Err()
		case <-c.done:
			return ErrEnded
		}
	}
}

// snapshot delivers the recorded state of every object that a watch sees through a
// feed as Sync events. It is the committer's, but for objects, more and done, and err once
// done is closed.
type snapshot struct {
	feed  *Feed
	watch WatchRef
	was   coverage               // leave out what the watch covered before; nil: nothing
	quit  <-chan struct{}        // closed when the waiting caller gives up; nil: there is none
	only  func(sink string) bool // nil: every sink the watch leads to
	sink  string                 // the one that only admits; "": there is none
	began uint64                 // the first sequence that its events may have; a part of their IDs
	moved bool                   // the watch comes from another part of the ledger
	part  string                 // the namespace that it is of, if that was a feed's alone when it began; "": all of the feed's

	beside []*snapshot // of the same change and feed, this one included, but none that continues
	router Router      // of the change
	over   bool        // it has looked at all objects

	// delivered are the objects that the watch was given since the snapshot began. They are
	// left out. nil: nothing is.
	delivered map[string]struct{}
	cursor    string // the last key looked at
	meta      string // the key under which the store remembers how far it has come; "": it need not

	err     error
	objects atomic.Int64
	more    chan struct{} // gets a value when there are more objects
	done    chan struct{} // closed when all are committed
}

func newSnapshot(s *Feed, h WatchRef) *snapshot {
	return &snapshot{feed: s, watch: h, more: make(chan struct{}, 1), done: make(chan struct{})}
}

func (j *snapshot) forSink(name string) {
	j.sink, j.only = name, func(sink string) bool { return sink == name }
}

// begin adds a snapshot that leaves out what is delivered from now on.
func (g *group) begin(j *snapshot) {
	for _, other := range j.feed.gaining {
		if other.meta == j.meta {
			other.meta = "" // what the store remembers is of the last one
		}
	}
	j.delivered = map[string]struct{}{}
	j.feed.gaining = append(j.feed.gaining, j)
	g.jobs = append(g.jobs, j)
}

// cause distinguishes the events of a snapshot from those of an earlier one: since then, an object
// of the same version may have left the watch. A snapshot that is interrupted keeps it.
func (j *snapshot) cause() string { return "snapshot " + strconv.FormatUint(j.began, 10) }

// gives reports whether the snapshot gives a watch what it has come to cover.
func (j *snapshot) gives(watch string) bool {
	return j.delivered != nil && j.only == nil && j.watch.Watch.Name == watch
}

var errNotWatched = errors.New("the watch does not cover the resource any more")

func (j *snapshot) step(g *group) (more bool, err error) {
	s := j.feed
	now, ok := s.WatchNamed(j.watch.Watch.Name)
	switch {
	case s.ended(): // it may be that the process ends
		j.err = errNotWatched
		return false, nil
	case !ok:
		j.err = errNotWatched
		j.forget(g.batch)
		return false, nil
	case isClosed(j.quit):
		j.err = context.Canceled
		return false, nil
	}
	looked, delivered := 0, 0
	at := g.c.cfg.Now()
	more, err = g.c.ledger.Scan(s.Partition, s.KeyPrefix(), j.cursor, func(key string, o *compact.Object) error {
		if looked == sweepLook || delivered == maxGroup || g.full() {
			return ledger.ErrEnough
		}
		looked++
		j.cursor = key
		if newer, ok := g.overlay[stateID{s.Partition, key}]; ok {
			o = newer
		}
		if _, told := j.delivered[key]; told || o == nil || !j.covers(g.c, o, now, g.c.labelsOf(s, o)) {
			return nil
		}
		delivered++
		if o, err = g.former(s, o); err != nil {
			return err
		}
		return j.give(g, o, at, g.c.labelsOf(s, o))
	})
	if delivered > 0 {
		select {
		case j.more <- struct{}{}:
		default: // there is a value
		}
	}
	if errors.Is(err, store.ErrUnreadable) {
		s.Log.Error("a part of the recorded states cannot be read: a snapshot leaves it out", "watch", j.watch.Watch.Name, "error", err)
	} else if err != nil {
		return false, err
	}
	if more {
		if j.meta != "" {
			g.batch.PutMeta(j.meta, ledger.Encode(j.remember()))
		}
		return true, nil
	}
	if name := now.Watch.Name; err == nil && j.gives(name) &&
		!slices.ContainsFunc(s.gaining, func(other *snapshot) bool { return other != j && other.gives(name) }) {
		selectedBy(s, now.Watch).Put(g.batch, name, s.ID)
	}
	j.over = true
	j.forget(g.batch)
	return false, nil
}

func (j *snapshot) give(g *group, o *compact.Object, at time.Time, nsLabels func(string) (labels.Set, bool)) error {
	hits := []route.Hit{{Watch: j.watch.Watch.Name, Selection: event.Inside}}
	given := transition{t: event.Sync, after: o, cause: j.cause(), keep: j.only == nil && j.watch.Watch.History}
	j.leaveOut(g, &given, at, nsLabels)
	sequence, err := g.deliver(j.feed, at, &given, hits, j.only)
	if j.only == nil || sequence != 0 {
		j.objects.Add(1)
	}
	return err
}

// leaveOut leaves out the sinks, and the history, that another snapshot of the same change has given the object to: watches overlap.
func (j *snapshot) leaveOut(g *group, given *transition, at time.Time, nsLabels func(string) (labels.Set, bool)) {
	if g.c.router != j.router {
		return // by other routes, the others may not have given it
	}
	s, o := j.feed, given.after
	key := ledger.Key(o.GetNamespace(), o.GetName())
	for _, other := range j.beside {
		_, ahead := other.delivered[key]
		now, ok := s.WatchNamed(other.watch.Watch.Name)
		if other == j || other.began != j.began || !(other.over || ahead || key <= other.cursor) || !ok || !other.covers(g.c, o, now, nsLabels) {
			continue
		}
		given.keep = given.keep && !(other.only == nil && other.watch.Watch.History)
		rc := route.Change{
			ID: g.newRecord(s, at, given).Event.ID, Uncounted: true, Type: given.t, Resource: s.Resource, Cluster: g.c.cfg.Cluster, Time: at,
			New: o, Watches: []route.Hit{{Watch: other.watch.Watch.Name, Selection: event.Inside}},
		}
		for _, t := range g.c.router.Route(nil, &rc) {
			if other.only == nil || other.only(t.Sink) {
				given.have = append(given.have, t.Sink)
			}
		}
	}
}

// takeAhead gives an object that is about to be taken through a change of its namespace's
// labels, if it is due: what the watch covered before cannot be judged by the new ones.
func (j *snapshot) takeAhead(g *group, move *relabel, o *compact.Object) error {
	key := ledger.Key(o.GetNamespace(), o.GetName())
	now, ok := j.feed.WatchNamed(j.watch.Watch.Name)
	if _, told := j.delivered[key]; told || !ok || key <= j.cursor {
		return nil
	}
	j.delivered[key] = struct{}{}
	if !j.covers(g.c, o, now, move.before(o)) {
		return nil
	}
	if j.cursor == "" && j.meta != "" { // no step has noted yet when it began
		g.batch.PutMeta(j.meta, ledger.Encode(j.remember()))
	}
	return j.give(g, o, move.At, move.before(o))
}

func (j *snapshot) forget(b *store.Batch) {
	if j.meta != "" {
		b.DeleteMeta(j.meta)
	}
}

// snapshotMeta begins the keys of snapshots that are not finished.
const snapshotMeta = "snapshot/"

// unfinished is what is remembered of a snapshot.
type unfinished struct {
	Source  string `json:"source"`
	Watch   string `json:"watch"`
	Sink    string `json:"sink,omitempty"`
	Rules   string `json:"rules"` // the fingerprint of the watch
	Widened bool   `json:"widened,omitempty"`
	Began   uint64 `json:"began,omitempty"`
	Cursor  string `json:"cursor"`
}

func (u *unfinished) key() string {
	former := ""
	if u.Widened {
		former = "widened"
	}
	return snapshotMeta + strings.Join([]string{u.Source, u.Watch, u.Sink, former}, "/")
}

func (j *snapshot) remember() *unfinished {
	return &unfinished{
		Source: ledger.FeedID(j.feed.Partition, cmp.Or(j.part, j.feed.Key.Namespace)), Watch: j.watch.Watch.Name, Sink: j.sink, Rules: j.watch.Watch.Fingerprint, Widened: j.was != nil,
		Began: j.began, Cursor: j.cursor,
	}
}

// durable makes snapshots outlive the process, in the place of the notes that sinks are
// due one.
func (c *Committer) durable(jobs []*snapshot, due []string) error {
	if len(jobs)+len(due) == 0 {
		return nil
	}
	b := c.store.NewBatch()
	defer b.Discard()
	for _, sink := range due {
		b.DeleteMeta(DueMeta + sink)
	}
	for _, j := range jobs {
		u := j.remember()
		j.meta = u.key()
		b.PutMeta(j.meta, ledger.Encode(u))
	}
	if err := c.oweSelections(b, jobs); err != nil {
		return err
	}
	return ledger.StoreError(c.store.Commit(b), "remember snapshots")
}

// unfinished are the snapshots that the end of a feed, or of the process, cut short,
// of feeds that are about to start. Those of a selection that was widened, or of a watch that was
// taken from its objects meanwhile, begin again: see addedBefore; began has by key when they began. The first snapshot of a sink continues
// under the rules that its watch has now, also with feeds that read other namespaces than the one before.
func (c *Committer) unfinished(st *plan.State, start []*Feed) (jobs []*snapshot, began map[string]uint64, err error) {
	b := c.store.NewBatch()
	defer b.Discard()
	began = map[string]uint64{}
	known, err := c.ledger.Selections()
	if err != nil {
		return nil, nil, err
	}
	err = c.store.ScanMeta(snapshotMeta, func(key string, value []byte) error {
		var u unfinished
		if err := json.Unmarshal(value, &u); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if st.Watch(u.Watch) == nil || u.Sink != "" && st.Sink(u.Sink) == nil {
			b.DeleteMeta(key)
			return nil
		}
		i := slices.IndexFunc(start, func(s *Feed) bool { return s.ID == u.Source })
		if parts := u.parts(start); i < 0 && len(parts) > 0 {
			b.DeleteMeta(key)
			for _, j := range parts {
				next := j.remember()
				b.PutMeta(next.key(), ledger.Encode(next))
			}
			jobs = append(jobs, parts...)
			return nil
		}
		if i < 0 {
			return nil // it is under way, or waits for the resource
		}
		h, ok := start[i].WatchNamed(u.Watch)
		same := ok && h.Watch.Fingerprint == u.Rules
		rules, noted := known[u.Source][u.Watch]
		alone := noted && !rules.Former // else the feed, or another, recorded changes without the watch
		if !ok || u.Widened || u.Sink == "" && !(same && alone) {
			b.DeleteMeta(key) // what the watch covers and was not given is found by its rules
			if same {
				began[key] = u.Began
			}
			return nil
		}
		j := newSnapshot(start[i], h)
		j.began, j.cursor = u.Began, u.Cursor
		if u.Sink != "" {
			j.forSink(u.Sink)
		}
		jobs = append(jobs, j)
		return nil
	})
	if err == nil {
		err = c.store.Commit(b)
	}
	return jobs, began, ledger.StoreError(err, "unfinished snapshots")
}

// parts continues the first snapshot of a sink with the feeds that take the place of the one that it is of: one of all
// namespaces, or those of some.
func (u *unfinished) parts(start []*Feed) (jobs []*snapshot) {
	partition, namespace := ledger.SplitFeed(u.Source)
	for _, s := range start {
		h, ok := s.WatchNamed(u.Watch)
		if !ok || u.Sink == "" || s.Partition != partition || (namespace == "") == (s.Key.Namespace == "") {
			continue
		}
		j := newSnapshot(s, h)
		j.forSink(u.Sink)
		j.began, j.part = u.Began, namespace
		switch {
		case strings.HasPrefix(u.Cursor, s.KeyPrefix()):
			j.cursor = u.Cursor
		case u.Cursor > s.KeyPrefix():
			continue // it has given all of them
		}
		jobs = append(jobs, j)
	}
	return jobs
}

// covers reports whether the object is for the snapshot, and still for the watch
// whose rules are now, by labels of namespaces.
func (j *snapshot) covers(c *Committer, o *compact.Object, now WatchRef, nsLabels func(namespace string) (labels.Set, bool)) bool {
	if j.part != "" && j.part != o.GetNamespace() {
		return false
	}
	in := func(h WatchRef) bool { return c.inForce(j.feed, h, o.GetNamespace(), nsLabels).Covers(o, nsLabels) }
	return !(j.was != nil && j.was.Covers(o, nsLabels)) && in(j.watch) && (now.Watch == j.watch.Watch || in(now))
}

func (j *snapshot) end() {
	s := j.feed
	s.gaining = slices.DeleteFunc(s.gaining, func(other *snapshot) bool { return other == j })
	switch n := j.objects.Load(); {
	case j.quit != nil: // the caller logs it
	case s.ended(): // it continues with the feed's successor
	case j.err != nil:
		s.Log.Warn("a watch was not given all that it covered: it does not cover the resource any more", "watch", j.watch.Watch.Name)
	case n > 0:
		s.Log.Info("recorded objects delivered as sync events", "watch", j.watch.Watch.Name, "objects", n)
	}
	close(j.done)
}
