package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/nearest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/store"
)

// UnknownError means that nothing has a name.
type UnknownError struct {
	What, Name string
	Known      []string // names that would do
}

func (e *UnknownError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("there is no %s, and so none named %q", e.What, e.Name)
	}
	return fmt.Sprintf("no %s named %q; known: %s", e.What, e.Name, strings.Join(nearest.First(e.Name, e.Known), ", "))
}

// unknownSink is the error of a sink that a state, which may be nil, does not have.
func unknownSink(st *plan.State, name string) *UnknownError {
	e := &UnknownError{What: "sink", Name: name}
	if st != nil {
		for i := range st.Sinks {
			e.Known = append(e.Known, st.Sinks[i].Name)
		}
	}
	return e
}

// ErrConfigured means that something cannot be removed because it is in use.
var ErrConfigured = errors.New("it is configured")

// PurgeSink deletes a sink that is not configured any more, with its backlog, its dead
// letters and what routes hold for it. It fails with [ErrConfigured] if the sink is, and with
// [ErrNotApplied] while that is not known.
func (m *Manager) PurgeSink(ctx context.Context, name string) error {
	return m.call(ctx, func(context.Context) error {
		switch st := m.currentState(); {
		case st == nil:
			return ErrNotApplied
		case st.Sink(name) != nil:
			return fmt.Errorf("sink %s: %w; remove it from the configuration first", name, ErrConfigured)
		}
		if err := ledger.DeleteMeta(m.store, pausedMeta+name); err != nil { // first: a purge that is interrupted leaves a sink that can be purged
			return err
		}
		var err error
		if ended := m.committer.AtBarrier(func(b commit.Barrier) { err = b.DropHeld(name) }); ended != nil || err != nil {
			return errors.Join(ended, err)
		}
		switch err := m.store.PurgeSink(name); {
		case errors.Is(err, store.ErrUnknownSink):
			return &UnknownError{"removed sink", name, m.removedSinks()}
		case err != nil:
			return err
		}
		if err := m.forgetAbsence(name); err != nil { // last: without it, one that is not purged would miss its gap
			return err
		}
		m.log.Warn("sink purged: its backlog and its dead letters are gone", "sink", name)
		return nil
	})
}

// removedSinks are the sinks that the store keeps and that are not configured, once a configuration is in force.
func (m *Manager) removedSinks() []string {
	st := m.currentState()
	return slices.DeleteFunc(m.store.Sinks(), func(name string) bool { return st.Sink(name) != nil })
}

// SkipEvent moves a sink past the event with this sequence, or with 0 past the one
// that blocks it: it becomes a dead letter.
func (m *Manager) SkipEvent(ctx context.Context, name string, sequence uint64) (delivery.Skipped, error) {
	sw := m.sinkWorker(name)
	if sw == nil {
		if st := m.currentState(); st == nil || st.Sink(name) == nil {
			return delivery.Skipped{}, unknownSink(st, name)
		}
		return delivery.Skipped{}, fmt.Errorf("sink %s: %w", name, delivery.ErrNotDelivering)
	}
	s, err := sw.worker.Skip(ctx, sequence)
	if err != nil {
		return s, fmt.Errorf("sink %s: %w", name, err)
	}
	return s, nil
}

// pausedMeta and the name of a sink are the store's note of a pause on request.
const pausedMeta = "paused/"

// PauseSink ends deliveries to a sink until it is resumed, restarts and reloads included.
func (m *Manager) PauseSink(ctx context.Context, name string) error {
	return m.call(ctx, func(context.Context) error {
		if st := m.currentState(); st == nil || st.Sink(name) == nil {
			return unknownSink(st, name)
		}
		if err := ledger.PutMeta(m.store, pausedMeta+name, nil); err != nil {
			return err
		}
		if sw := m.sinkWorker(name); sw != nil { // or it starts as paused
			sw.worker.Pause()
		}
		m.log.Warn("sink paused on request: its backlog is kept until it is resumed", "sink", name)
		return nil
	})
}

// ResumeSink ends the pause of a sink, and has one that waits for its next attempt tried
// now.
func (m *Manager) ResumeSink(ctx context.Context, name string) error {
	if sw := m.sinkWorker(name); sw != nil && !sw.worker.Status().OnRequest {
		sw.worker.Retry()
		return nil
	}
	return m.call(ctx, func(context.Context) error {
		if st := m.currentState(); st == nil || st.Sink(name) == nil {
			return unknownSink(st, name)
		}
		if err := ledger.DeleteMeta(m.store, pausedMeta+name); err != nil {
			return err
		}
		if sw := m.sinkWorker(name); sw != nil { // or it starts so
			sw.worker.Resume()
		}
		m.log.Info("sink resumed on request", "sink", name)
		return nil
	})
}

// sinkWorker returns the worker of a sink, nil if it has none, as while it is replaced.
func (m *Manager) sinkWorker(name string) *sinkWorker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sinks[name]
}

// Snapshot delivers the recorded state of every object as Sync events to one
// sink; of one watch only, unless watch is empty. It returns the number of
// objects once their events are committed. Changes that happen meanwhile are
// delivered in order with it, object by object. progress, if not nil, is called
// with the number of objects so far.
func (m *Manager) Snapshot(ctx context.Context, sink, watch string, progress func(objects int)) (int, error) {
	st := m.currentState()
	if st == nil || st.Sink(sink) == nil {
		return 0, unknownSink(st, sink)
	}
	if watch != "" && st.Watch(watch) == nil {
		e := &UnknownError{What: "watch", Name: watch}
		for i := range st.Watches {
			e.Known = append(e.Known, st.Watches[i].Name)
		}
		return 0, e
	}
	return m.committer.Snapshot(ctx, m.running(), sink, watch, progress)
}

// oweSnapshot notes whether a sink begins with a snapshot. One that it left, or that a purged one of its name
// had to begin with, is not owed any more.
func (m *Manager) oweSnapshot(sink *plan.Sink) error {
	key := commit.DueMeta + sink.Name
	var err error
	if sink.StartFrom == plan.StartSnapshot {
		err = ledger.PutMeta(m.store, key, []byte("{}"))
	} else {
		err = ledger.DeleteMeta(m.store, key)
	}
	return ledger.StoreError(err, "note the snapshot of sink %s", sink.Name)
}

// dueSnapshots are the sinks of a state whose first snapshot has not begun.
func (m *Manager) dueSnapshots(st *plan.State) (due []string, err error) {
	for i := range st.Sinks {
		s := &st.Sinks[i]
		if s.StartFrom != plan.StartSnapshot {
			continue
		}
		_, ok, err := m.store.Meta(commit.DueMeta + s.Name)
		if err != nil {
			return nil, ledger.StoreError(err, "snapshot of sink %s", s.Name)
		}
		if ok {
			due = append(due, s.Name)
		}
	}
	return due, nil
}

// Replay delivers recorded events to a sink again, in their order, marked as a replay:
// those that the routes which lead to it now take. It returns how many were queued, and
// calls progress, if not nil, with the number so far.
func (m *Manager) Replay(ctx context.Context, sink string, r store.ReplayRange, progress func(events int)) (int, error) {
	st := m.currentState()
	if st == nil || st.Sink(sink) == nil {
		return 0, unknownSink(st, sink)
	}
	if blind := m.unjudged(st); blind != "" {
		return 0, fmt.Errorf("watch %s: %w", blind, ErrNamespacesUnknown)
	}
	target, err := m.past.NewTarget(st, m.WatchesOf(st), sink, true)
	if err != nil {
		return 0, err
	}
	count := 0
	n, err := m.store.Replay(ctx, sink, r, func(it *store.Item) (store.Selected, bool, error) {
		chosen, ok, err := target.Select(it)
		if ok {
			count++
			if progress != nil {
				progress(count)
			}
		}
		return chosen, ok, errors.Join(err, ctx.Err())
	})
	if err != nil {
		return n, fmt.Errorf("replay to sink %s: %w", sink, err)
	}
	return n, nil
}

// WatchesOf are the watches of a state, for what is recorded.
func (m *Manager) WatchesOf(st *plan.State) *retrace.Watches {
	m.mu.Lock()
	resolved := maps.Clone(m.resolved)
	m.mu.Unlock()
	for i := range st.Watches {
		w := &st.Watches[i]
		for _, pattern := range w.Resources { // those of a state that is not applied
			key := patternKey(w.Name, pattern)
			if p, err := selector.ParseResource(pattern); err != nil || p.Wildcard() || resolved[key] != "" {
				continue
			}
			if found, err := m.cfg.Resolver.Resolve(pattern); err == nil && len(found) > 0 {
				resolved[key] = found[0].GVR.GroupResource().String()
			}
		}
	}
	return retrace.NewWatches(st.Watches, func(w *plan.Watch, gr schema.GroupResource, scope string) bool {
		return m.wantsAs(resolved, w, gr, scope)
	}, m.committer.NamespaceLabels)
}

// Explain returns what the watches and routes of now make of a recorded event, by its
// sequence or its id.
func (m *Manager) Explain(ctx context.Context, name string) (*retrace.Explanation, error) {
	st := m.currentState()
	if st == nil {
		return nil, ErrNotApplied
	}
	if blind := m.unjudged(st); blind != "" {
		return nil, fmt.Errorf("watch %s: %w", blind, ErrNamespacesUnknown)
	}
	return m.past.Explain(ctx, st, m.WatchesOf(st), name)
}

// Past returns the reader of recorded changes.
func (m *Manager) Past() *retrace.Reader { return m.past }

// Backtest runs a configuration over the records from one time to another.
func (m *Manager) Backtest(ctx context.Context, p *retrace.Proposal, from, to time.Time, progress func(records int)) (*retrace.Backtest, error) {
	st := m.currentState()
	if st == nil {
		return nil, ErrNotApplied
	}
	next, err := p.State()
	if err != nil {
		return nil, err
	}
	for _, one := range []*plan.State{st, next} {
		if blind := m.unjudged(one); blind != "" {
			return nil, fmt.Errorf("watch %s: %w", blind, ErrNamespacesUnknown)
		}
	}
	return m.past.Rehearse(ctx, st, next, m.WatchesOf(st), m.WatchesOf(next), from, to, progress)
}

// ErrNotApplied means that no configuration is in force yet.
var ErrNotApplied = errors.New("no configuration is in force yet")

// ErrNamespacesUnknown means that the labels are not known by which a watch selects.
var ErrNamespacesUnknown = errors.New("the labels of namespaces, by which it selects, are not known: no watch that runs reads them, or they are not listed yet")

// unjudged is a watch that selects by labels of namespaces that are not known yet, "" if
// there is none.
func (m *Manager) unjudged(st *plan.State) string {
	i := slices.IndexFunc(st.Watches, func(w plan.Watch) bool { return w.Filter.NeedsNamespaces() })
	if i < 0 || m.committer.NamespacesReady() {
		return ""
	}
	return st.Watches[i].Name
}

// leadingFlags are the routes that lead to a sink, with what they ask for.
func leadingFlags(st *plan.State, sink string) map[string]record.Flags {
	leading := map[string]record.Flags{}
	for _, spec := range st.Routes {
		if slices.Contains(spec.Sinks, sink) {
			leading[spec.Name] = spec.PartsFor(sink)
		}
	}
	return leading
}

// pick decides what a sink gets of a record, and whether it was given it when it was
// recorded.
func pick(r *record.Record, sink string, leading map[string]record.Flags) (flags record.Flags, given, ok bool) {
	for _, t := range r.Targets {
		if t.Sink == sink {
			return t.Flags, true, true
		}
		for name := range t.RouteNames() {
			if asked, leads := leading[name]; leads {
				flags |= asked.WithSelection(t.Flags.Selection())
				ok = true
			}
		}
	}
	return flags, false, ok
}
