package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/prom"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// sinkWorker is a running delivery worker and the way to end it.
type sinkWorker struct {
	worker *delivery.Worker
	cancel context.CancelFunc
	done   chan struct{} // closed when the worker's Run has returned
}

// makeQueues makes the queues of the sinks that are new to the store, and has those
// that are back filled. Of both it notes which begin with a snapshot.
func (m *Manager) makeQueues(next *plan.State, diff plan.Plan) error {
	for _, name := range slices.Concat(diff.Sinks.Add, diff.Sinks.Replace) {
		from := store.FromNow
		if next.Sink(name).StartFrom == plan.StartEarliest {
			from = store.FromLogStart
		}
		if _, err := m.store.Queue(name); err != nil { // new to the store
			if err := errors.Join(m.forgetAbsence(name), m.oweSnapshot(next.Sink(name))); err != nil {
				return err
			}
		}
		q, err := m.store.EnsureSink(name, from)
		if err != nil {
			return ledger.StoreError(err, "sink %s", name)
		}
		if err := m.store.RejoinSink(name, from); err != nil {
			return ledger.StoreError(err, "sink %s", name)
		}
		if _, back := q.Absence(); back {
			if err := m.oweSnapshot(next.Sink(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// startSinks starts workers for new sinks, and replaces those whose block
// changed: the old worker ends before the new one begins, because two would
// deliver one queue. Sinks that have to be filled first are returned instead.
func (m *Manager) startSinks(ctx context.Context, next *plan.State, diff plan.Plan) (unfilled []string) {
	m.stopSinks(diff.Sinks.Replace)
	for _, name := range slices.Concat(diff.Sinks.Add, diff.Sinks.Replace) {
		if q, err := m.store.Queue(name); err == nil && q.Filling() {
			unfilled = append(unfilled, name)
			continue
		}
		m.startSink(ctx, next.Sink(name))
	}
	return unfilled
}

// startSink starts a sink's worker on its queue, which makeQueues has made.
func (m *Manager) startSink(ctx context.Context, spec *plan.Sink) {
	queue, err := m.store.EnsureSink(spec.Name, store.FromNow)
	if err != nil {
		m.fail(ledger.StoreError(err, "queue of sink %s", spec.Name))
		return
	}
	_, paused, err := m.store.Meta(pausedMeta + spec.Name)
	if err != nil {
		m.fail(ledger.StoreError(err, "pause of sink %s", spec.Name))
		return
	}
	kind := prom.NewGroup(prometheus.WrapRegistererWith(prometheus.Labels{"sink": spec.Name}, m.cfg.Registerer))
	w := delivery.New(m.deliveryOf(spec, queue, paused, kind))    //nolint:contextcheck // what may be sent is asked without waiting
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it ends after the informers
	sw := &sinkWorker{worker: w, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(sw.done)
		defer kind.Close()
		if err := w.Run(ctx); err != nil {
			m.fail(ledger.StoreError(err, "sink %s", spec.Name))
		}
	}()
	m.mu.Lock()
	m.sinks[spec.Name] = sw
	m.mu.Unlock()
}

// deliveryOf configures a sink's worker. kind takes the metrics of the sink's kind.
func (m *Manager) deliveryOf(spec *plan.Sink, queue *store.Queue, paused bool, kind prometheus.Registerer) delivery.Config {
	log := m.log.With("sink", spec.Name)
	var (
		render func(*event.Event) (bool, error)
		join   sinks.Join
		reads  record.Flags
	)
	if b := spec.Body; b != nil {
		render, reads = b.Render, b.Reads()
		if b.ReadsList() {
			join = b.Join
		}
	}
	var maySend func() error
	if m.cfg.Hold != nil {
		maySend = func() error { return delivery.Free(m.cfg.Hold) }
	}
	return delivery.Config{
		Name:  spec.Name,
		Queue: queue,
		Open: func(ctx context.Context) (sinks.Sink, error) {
			return spec.Config.Open(ctx, sinks.Options{
				Name: spec.Name, Cluster: m.cfg.Cluster, Format: spec.Format, BatchMode: spec.BatchMode, Join: join,
				Logger: log, Stdout: m.cfg.Stdout, Dir: m.cfg.Dir,
				Registerer: kind, MaySend: maySend,
			})
		},
		Previous:    m.previous(spec.Name),
		Fingerprint: spec.Fingerprint,
		Format:      spec.Format,
		Decode: func(it store.Item) (*event.Event, error) {
			it.Flags |= uint32(reads) // of a record that was made for another body
			return query.Decode(m.inflater, spec.Name, it)
		},
		Render:       render,
		Decoding:     m.editsChanged.Load,
		Hidden:       m.editsTightened.Load,
		Delivery:     spec.Delivery,
		Retry:        spec.Retry,
		Rate:         spec.Rate,
		Hold:         m.cfg.Hold,
		Paused:       paused,
		Oversize:     spec.OnOversize,
		Heartbeat:    delivery.Heartbeat{Every: spec.Heartbeat, Make: func() *event.Event { return m.heartbeat(spec.Name, queue) }},
		DrainTimeout: m.cfg.Drain / 2,
		CloseTimeout: m.cfg.Drain / 8, // it is waited for up to twice
		Logger:       log,
		Registerer:   m.cfg.Registerer,
	}
}

// previous is closed when no write of the sink's last worker is in progress; nil:
// there was none.
func (m *Manager) previous(name string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leaving[name]
}

// stopSinks ends workers and waits for them, for all at once: each may take as long as a
// write in flight. Their queues stay.
func (m *Manager) stopSinks(names []string) {
	stopped := make(map[string]*sinkWorker, len(names))
	m.mu.Lock()
	for _, name := range names {
		if sw, ok := m.sinks[name]; ok {
			stopped[name] = sw
			m.draining[name] = sw
			delete(m.sinks, name)
		}
	}
	m.mu.Unlock()
	for _, sw := range stopped {
		sw.cancel()
	}
	for name, sw := range stopped {
		<-sw.done
		m.mu.Lock()
		delete(m.draining, name)
		select {
		case <-sw.worker.Closed():
		default:
			m.leaving[name] = sw.worker.Closed()
		}
		m.mu.Unlock()
	}
}

// removeSinks ends the workers of sinks that are no longer configured. Their
// backlog is kept until it is purged.
func (m *Manager) removeSinks(names []string) {
	m.stopSinks(names)
	for _, name := range names {
		m.log.Warn("sink removed from the configuration: its backlog is kept until it is purged, and resumed if it returns", "sink", name)
	}
}

// fillSinks queues what the log holds for new sinks that start from its beginning and
// for those that are back, if there are any. Then adopt puts the routes to them in
// place, and their workers start.
//
// What routes still hold for a sink that left is older, and is queued before.
//
// The last part of it and adopt happen between two commits: what is recorded
// before is the log's and queued from there, what is recorded after is routed, and
// so a sink gets each event once and in order. What it has missed for good is reported then, too:
// until the new routes are in place, that grows.
func (m *Manager) fillSinks(ctx context.Context, next *plan.State, d desired, names []string, adopt func(commit.Barrier) error) error {
	total, chosen, past := map[string]int{}, map[string]store.Selector{}, map[string]*retrace.Target{}
	for _, name := range names {
		var err error
		if chosen[name], past[name], err = m.filler(next, name); err != nil {
			return fmt.Errorf("sink %s: %w", name, err)
		}
	}
	for _, name := range names {
		var err error
		ended := m.committer.AtBarrier(func(b commit.Barrier) { err = b.ReleaseHeld(name) })
		if err := errors.Join(err, ended); err != nil {
			return err
		}
	}
	fill := func() error {
		for _, name := range names {
			n, err := m.store.Fill(ctx, name, chosen[name])
			if total[name] += n; err != nil {
				return ledger.StoreError(err, "queue the log for sink %s", name)
			}
		}
		return nil
	}
	// Most of it while the watches continue, and then what came meanwhile.
	for range 2 {
		if err := fill(); err != nil {
			return err
		}
	}
	var err error
	ended := m.committer.AtBarrier(func(b commit.Barrier) {
		if err = fill(); err != nil {
			return
		}
		if err = m.reportAbsences(next, d); err != nil {
			return
		}
		for _, name := range names {
			if err = m.store.Filled(name); err != nil {
				err = ledger.StoreError(err, "sink %s", name)
				return
			}
		}
		err = adopt(b)
	})
	if err := errors.Join(err, ended); err != nil {
		return err
	}
	for _, name := range names {
		m.log.Info("a sink starts with what the event log holds for it", "sink", name, "events", total[name])
		if t := past[name]; t != nil && t.Plain > 0 {
			m.log.Warn("the store has no room for the former states of all events that a new sink starts with: later ones lack oldObject and patch",
				"sink", name, "events", t.Plain)
		}
		m.startSink(ctx, next.Sink(name))
	}
	return nil
}

// filler selects what of the log a sink gets that is new or back: what its routes take, if
// it starts from the log's beginning, and what it would have been given, had it been there.
// What was recorded before it left is a replay. A fill cannot wait for room, which its sink
// makes only when it runs: the target that selects from the beginning does with less then.
func (m *Manager) filler(st *plan.State, sink string) (store.Selector, *retrace.Target, error) {
	missed := sinceLeft(st, sink)
	if st.Sink(sink).StartFrom != plan.StartEarliest {
		return orUnreadable(missed), nil, nil
	}
	if blind := m.unjudged(st); blind != "" {
		m.log.Warn("a sink starts with the log, and the labels of namespaces are not known yet: of what is selected by them it is only given what it missed since it left",
			"sink", sink, "watch", blind)
	}
	target, err := m.past.NewTarget(st, m.WatchesOf(st), sink, false)
	if err != nil {
		return nil, nil, err
	}
	target.Full = func() bool { return m.store.Health().Paused }
	var away absence
	if _, err := m.meta(leftMeta+sink, &away); err != nil {
		return nil, nil, err
	}
	return orUnreadable(func(it *store.Item) (store.Selected, bool, error) {
		chosen, ok, err := target.Select(it)
		if ok && it.Sequence <= away.Last {
			chosen.Flags |= uint32(record.Replay) // it may have been given it, or a later state
		}
		if ok || err != nil || away.Last == 0 || it.Sequence <= away.Last {
			return chosen, ok, err
		}
		return missed(it) // the watches, labels and routes of now do not select all that it would have been given
	}), target, nil
}

// orUnreadable selects unreadable records too: the queue's reader makes a dead letter of each
// run of them, as for a sink that was there. What they were, and for whom, is not known.
func orUnreadable(selected store.Selector) store.Selector {
	return func(it *store.Item) (store.Selected, bool, error) {
		if it.Unreadable {
			return store.Selected{}, true, nil
		}
		return selected(it)
	}
}

// sinceLeft selects what was recorded for a sink that is back, as if it had been there:
// also what was recorded while there were no sinks, if it gets everything.
func sinceLeft(st *plan.State, sink string) store.Selector {
	leading := leadingFlags(st, sink)
	all := plan.DefaultRoute()
	everything, takesAll := leading[all.Name]
	takesAll = takesAll && printRoutes(st)[all.Name].Matching == all.Matching()
	return func(it *store.Item) (chosen store.Selected, ok bool, err error) {
		r, err := record.Decode(it.Payload)
		switch {
		case err != nil:
			return chosen, false, nil //nolint:nilerr // the event stream reports it
		case r.Event.Gap != nil && (r.Event.Gap.Cause == record.CauseRemoved || record.OfHistory(r.Event.Gap.Cause)):
			return chosen, false, nil // queued for the sink that it is for, or for none
		case r.Event.Gap != nil:
			return chosen, getsGap(st, r, sink), nil
		case r.Rerecorded:
			return chosen, false, nil // no event
		case len(r.Targets) == 0:
			return store.Selected{Flags: uint32(everything)}, takesAll, nil
		}
		flags, given, ok := pick(r, sink, leading)
		if given {
			flags |= record.Replay
		}
		return store.Selected{Flags: uint32(flags)}, ok, nil
	}
}

// getsGap reports whether a sink gets a gap, which no route selects: its watch leads there now or, if that is gone, one
// that may have its resource.
func getsGap(st *plan.State, r *record.Record, sink string) bool {
	watch := r.Event.Gap.Watch
	if st.Watch(watch) == nil {
		watch = ""
	}
	return slices.Contains(st.Router.Sinks(nil, watch, r.Event.Resource), sink)
}
