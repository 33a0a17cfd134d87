package feed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// Snapshot delivers the recorded state of every object as Sync events to one
// sink; of one watch only, unless watch is empty. It returns the number of
// objects once their events are committed. Changes that happen meanwhile are
// delivered in order with it, object by object. progress, if not nil, is called
// with the number of objects so far.
func (m *Manager) Snapshot(ctx context.Context, sink, watch string, progress func(objects int)) (int, error) {
	st := m.currentState()
	if st == nil || st.Sink(sink) == nil {
		return 0, &UnknownError{"sink", sink}
	}
	if watch != "" && st.Watch(watch) == nil {
		return 0, &UnknownError{"watch", watch}
	}
	total := 0
	for _, s := range m.sourceList() {
		for _, h := range *s.hits.Load() {
			if watch != "" && h.watch.Name != watch {
				continue
			}
			j := newSnapshot(s, h)
			j.forSink(sink)
			j.quit = ctx.Done()
			err := m.await(ctx, j, func(n int) {
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

// await has the committer do a snapshot, and calls progress with the number of
// objects whenever there are more.
func (m *Manager) await(ctx context.Context, j *snapshot, progress func(objects int)) error {
	if err := m.between(func(g *group) { g.jobs = append(g.jobs, j) }); err != nil {
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
		case <-m.committerDone:
			return ErrEnded
		}
	}
}

// snapshot delivers the recorded state of every object that a watch sees through a
// source as Sync events. It is the committer's, but for objects, more and done.
type snapshot struct {
	src  *source
	hit  hit
	was  coverage               // leave out what the watch covered before; nil: nothing
	quit <-chan struct{}        // closed when the caller who waits gives up; nil: nobody waits
	only func(sink string) bool // nil: every sink the watch leads to
	sink string                 // the one that only admits; "": there is none

	// told are the objects of which the watch was told since the snapshot began. They are
	// left out. nil: nothing is.
	told   map[string]struct{}
	cursor string // the last key looked at
	meta   string // the key under which the store remembers how far it has come; "": it need not

	err     error
	objects atomic.Int64
	more    chan struct{} // gets a value when there are more objects
	done    chan struct{} // closed when all are committed
}

func newSnapshot(s *source, h hit) *snapshot {
	return &snapshot{src: s, hit: h, more: make(chan struct{}, 1), done: make(chan struct{})}
}

// forSink has only one sink given the snapshot.
func (j *snapshot) forSink(name string) {
	j.sink, j.only = name, func(sink string) bool { return sink == name }
}

// begin adds a snapshot that leaves out what is delivered from now on.
func (g *group) begin(j *snapshot) {
	j.told = map[string]struct{}{}
	j.src.gaining = append(j.src.gaining, j)
	g.jobs = append(g.jobs, j)
}

var errNotWatched = errors.New("the watch does not cover the resource any more")

func (j *snapshot) step(g *group) (more bool, err error) {
	s := j.src
	now, ok := s.hit(j.hit.watch.Name)
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
	at := g.m.cfg.Now()
	err = g.m.scanAfter(s, s.statePrefix(), j.cursor, func(key string, o *compact.Object) error {
		if looked == sweepLook || delivered == maxGroup {
			return errEnough
		}
		looked++
		j.cursor = key
		if newer, ok := g.overlay[stateID{s.partition, key}]; ok {
			o = newer
		}
		if _, told := j.told[key]; told || o == nil || !j.covers(g.m, o, now) {
			return nil
		}
		selection, ok := j.hit.selection(event.Sync, nil, o, g.m.namespaces.labels)
		if !ok {
			return nil
		}
		delivered++
		if o, err = g.former(s, o); err != nil {
			return err
		}
		hits := []route.Hit{{Watch: j.hit.watch.Name, Selection: selection}}
		return g.deliver(s, at, occurrence{t: event.Sync, after: o}, hits, j.only)
	})
	if delivered > 0 {
		j.objects.Add(int64(delivered))
		select {
		case j.more <- struct{}{}:
		default: // there is a value
		}
	}
	if errors.Is(err, outbox.ErrUnreadable) {
		s.log.Error("a part of the recorded states cannot be read: a snapshot leaves it out", "watch", j.hit.watch.Name, "error", err)
	} else if err != nil && !errors.Is(err, errEnough) {
		return false, err
	}
	if errors.Is(err, errEnough) {
		if j.meta != "" {
			g.batch.PutMeta(j.meta, j.remember())
		}
		return true, nil
	}
	if err == nil && j.told != nil && j.sink == "" && j.only == nil {
		key, value := selectionEntry(s, j.hit.watch)
		g.batch.PutMeta(key, value)
	}
	j.forget(g.batch)
	return false, nil
}

func (j *snapshot) forget(b *outbox.Batch) {
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
	Cursor  string `json:"cursor"`
}

func (j *snapshot) remember() []byte {
	b, err := json.Marshal(unfinished{
		Source: j.src.id, Watch: j.hit.watch.Name, Sink: j.sink, Rules: j.hit.watch.Fingerprint, Widened: j.was != nil, Cursor: j.cursor,
	})
	if err != nil { // strings always marshal
		panic("feed: marshal snapshot: " + err.Error())
	}
	return b
}

// dueMeta and the name of a sink say that the sink begins with a snapshot, which has not
// begun.
const dueMeta = "snapshot-due/"

// oweSnapshot notes that a sink begins with a snapshot, if it does.
func (m *Manager) oweSnapshot(sink *plan.Sink) error {
	if sink.StartFrom != plan.StartSnapshot {
		return nil
	}
	if err := putMeta(m.store, dueMeta+sink.Name, []byte("{}")); err != nil {
		return fmt.Errorf("%w: note the snapshot of sink %s: %w", ErrStore, sink.Name, err)
	}
	return nil
}

// dueSnapshots are the sinks of a state whose first snapshot has not begun.
func (m *Manager) dueSnapshots(st *plan.State) (due []string, err error) {
	for i := range st.Sinks {
		s := &st.Sinks[i]
		if s.StartFrom != plan.StartSnapshot {
			continue
		}
		_, ok, err := m.store.Meta(dueMeta + s.Name)
		if err != nil {
			return nil, fmt.Errorf("%w: snapshot of sink %s: %w", ErrStore, s.Name, err)
		}
		if ok {
			due = append(due, s.Name)
		}
	}
	return due, nil
}

// durable makes snapshots outlive the process, in the place of the notes that sinks are
// due one.
func (m *Manager) durable(jobs []*snapshot, due []string) error {
	if len(jobs)+len(due) == 0 {
		return nil
	}
	b := m.store.NewBatch()
	defer b.Discard()
	for _, sink := range due {
		b.DeleteMeta(dueMeta + sink)
	}
	for _, j := range jobs {
		former := ""
		if j.was != nil {
			former = "widened"
		}
		j.meta = snapshotMeta + strings.Join([]string{j.src.id, j.hit.watch.Name, j.sink, former}, "/")
		b.PutMeta(j.meta, j.remember())
	}
	if err := m.oweSelections(b, jobs); err != nil {
		return err
	}
	if err := m.store.Commit(b); err != nil {
		return fmt.Errorf("%w: remember snapshots: %w", ErrStore, err)
	}
	return nil
}

// unfinished are the snapshots that the end of a source, or of the process, cut short,
// of sources that are about to start. Those of a selection that was widened begin again:
// see startGains. What a sink is due goes on under the rules that its watch has now.
func (m *Manager) unfinished(st *plan.State, start []*source) ([]*snapshot, error) {
	b := m.store.NewBatch()
	defer b.Discard()
	var jobs []*snapshot
	err := m.store.ScanMeta(snapshotMeta, func(key string, value []byte) error {
		var u unfinished
		if err := json.Unmarshal(value, &u); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if st.Watch(u.Watch) == nil || u.Sink != "" && st.Sink(u.Sink) == nil {
			b.DeleteMeta(key)
			return nil
		}
		i := slices.IndexFunc(start, func(s *source) bool { return s.id == u.Source })
		if i < 0 {
			return nil // it is under way, or waits for the resource
		}
		h, ok := start[i].hit(u.Watch)
		if !ok || u.Widened || u.Sink == "" && h.watch.Fingerprint != u.Rules {
			b.DeleteMeta(key) // what the watch covers and was not given is found by its rules
			return nil
		}
		j := newSnapshot(start[i], h)
		j.cursor = u.Cursor
		if u.Sink != "" {
			j.forSink(u.Sink)
		}
		jobs = append(jobs, j)
		return nil
	})
	if err == nil {
		err = m.store.Commit(b)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: unfinished snapshots: %w", ErrStore, err)
	}
	return jobs, nil
}

// covers reports whether the object is for the snapshot, and still for the watch
// whose rules are now.
func (j *snapshot) covers(m *Manager, o *compact.Object, now hit) bool {
	labels := m.namespaces.labels
	return !(j.was != nil && j.was.covers(o, labels)) && j.hit.covers(o, labels) && (now.watch == j.hit.watch || now.covers(o, labels))
}

func (j *snapshot) end() {
	s := j.src
	s.gaining = slices.DeleteFunc(s.gaining, func(other *snapshot) bool { return other == j })
	switch n := j.objects.Load(); {
	case j.quit != nil: // the caller is told
	case s.ended(): // it goes on with the source's successor
	case j.err != nil:
		s.log.Warn("a watch was not given all that it covered: it does not cover the resource any more", "watch", j.hit.watch.Name)
	case n > 0:
		s.log.Info("a watch or a sink was given recorded objects as sync events", "watch", j.hit.watch.Name, "objects", n)
	}
	close(j.done)
}

// firstSnapshots are those that sinks begin with.
func firstSnapshots(due []string, sources []*source, stay map[*source]*[]hit) []*snapshot {
	var jobs []*snapshot
	for _, name := range due {
		for _, s := range sources {
			hits, ok := stay[s]
			if !ok {
				hits = s.hits.Load()
			}
			for _, h := range *hits {
				j := newSnapshot(s, h)
				j.forSink(name)
				jobs = append(jobs, j)
			}
		}
	}
	return jobs
}
