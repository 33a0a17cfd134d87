package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// A sink that is taken out of the configuration keeps its queue. When it comes back, it
// is filled from the log with what its routes led on meanwhile. What the log does not
// have of that time is reported to it as a gap: what retention removed, and, if a route that
// led to it was not there all the time, what that one would have taken. A route that
// leads to it only now starts now.

const (
	// routesMeta is where the store keeps the routes that are adopted, as routePrints.
	routesMeta = "routes"
	// leftMeta and the name of a sink that left say what its routes became, as an
	// absence.
	leftMeta = "left/"
)

// routePrints are routes by name.
type routePrints map[string]routePrint

// routePrint is what matters of a route for the sinks that come and go.
type routePrint struct {
	Matching string   `json:"matching"` // identifies the changes that it takes
	Sinks    []string `json:"sinks,omitempty"`
}

// absence is the fate of a sink's routes since it left.
type absence struct {
	// Routes led to the sink when it left, and are there and the same ever since.
	Routes   routePrints `json:"routes"`
	Broken   bool        `json:"broken,omitempty"`   // others did, and are not
	Reported bool        `json:"reported,omitempty"` // its gap is queued

	// Last is the last record before it left; 0 of one that had not been filled yet.
	Last uint64 `json:"last,omitempty"`
	// Behind are the times, by resource, of the first changes that were perhaps not recorded
	// before it left: their watches were behind, or in an outage.
	Behind map[string]time.Time `json:"behind,omitempty"`
}

// since is when the gap of the absence begins for a resource, if the sink left at left.
func (a *absence) since(r event.Resource, left time.Time) time.Time {
	gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
	if behind, ok := a.Behind[gr.String()]; ok && behind.Before(left) {
		return behind
	}
	return left
}

// printRoutes are those of a state. Without sinks the history has every change, if all
// watches keep it, which is what the default route takes.
func printRoutes(st *plan.State) routePrints {
	p := routePrints{}
	for _, spec := range st.Routes {
		p[spec.Name] = routePrint{spec.Matching(), spec.Sinks}
	}
	if len(st.Sinks) == 0 && !slices.ContainsFunc(st.Watches, func(w plan.Watch) bool { return !w.History }) {
		everything := plan.DefaultRoute()
		p[everything.Name] = routePrint{Matching: everything.Matching()}
	}
	return p
}

// leave is the absence of a sink that leaves these routes.
func (p routePrints) leave(sink string) absence {
	a := absence{Routes: routePrints{}, Broken: p == nil}
	for name, r := range p {
		if slices.Contains(r.Sinks, sink) {
			a.Routes[name] = r
		}
	}
	return a
}

// under is the absence after the routes have become others.
func (a absence) under(now routePrints) absence {
	next := absence{Routes: routePrints{}, Broken: a.Broken, Last: a.Last, Behind: a.Behind}
	for name, r := range a.Routes {
		if now[name].Matching == r.Matching {
			next.Routes[name] = r
		} else {
			next.Broken = true
		}
	}
	return next
}

// meta reads a value that is kept as JSON.
func (m *Manager) meta(key string, into any) (found bool, err error) {
	stored, ok, err := m.store.Meta(key)
	if err == nil && ok {
		err = json.Unmarshal(stored, into)
	}
	if err != nil {
		return false, ledger.StoreError(err, "read %s", key)
	}
	return ok, nil
}

// putChanged keeps a value as JSON, if it is another than before.
func putChanged(b *store.Batch, key string, before, now any) {
	is := ledger.Encode(now)
	if !bytes.Equal(ledger.Encode(before), is) {
		b.PutMeta(key, is)
	}
}

// routeNotes are what the store remembers of routes.
type routeNotes struct {
	adopted routePrints        // nil: nothing is known
	left    map[string]absence // by sink
}

func (m *Manager) loadRoutes() (n routeNotes, err error) {
	if _, err := m.meta(routesMeta, &n.adopted); err != nil {
		return n, err
	}
	n.left = map[string]absence{}
	for _, sink := range m.store.Sinks() {
		var a absence
		left, err := m.meta(leftMeta+sink, &a)
		if err != nil {
			return n, err
		}
		if left {
			n.left[sink] = a
		}
	}
	return n, nil
}

// noteRoutes notes which routes there are from now on, and which sinks nothing is
// queued for any more. Nothing is appended meanwhile.
func (m *Manager) noteRoutes(barrier commit.Barrier, next *plan.State) error {
	now := printRoutes(next)
	before, err := m.loadRoutes()
	if err != nil {
		return err
	}
	b := m.store.NewBatch()
	defer b.Discard()
	var leaving []string
	behind := sync.OnceValues(barrier.Behind)
	for _, sink := range m.store.Sinks() {
		away, left := before.left[sink]
		if next.Sink(sink) != nil {
			if left {
				b.DeleteMeta(leftMeta + sink)
			}
			continue
		}
		q, err := m.store.Queue(sink)
		if err != nil {
			return ledger.StoreError(err, "queue of sink %s", sink)
		}
		noted := any(nil)
		if left {
			noted, away = away, away.under(now)
		} else {
			away = before.adopted.leave(sink).under(now)
			if away.Behind, err = behind(); err != nil {
				return err
			}
		}
		if q.Joined() { // also if it was filled, and the process ended before the note was deleted
			away.Last = m.store.LogStats().Last
		}
		putChanged(b, leftMeta+sink, noted, away)
		leaving = append(leaving, sink)
	}
	putChanged(b, routesMeta, before.adopted, now)
	if err := m.store.Commit(b); err != nil {
		return ledger.StoreError(err, "note the routes")
	}
	for _, sink := range leaving { // one that left without a note would have to report a gap
		if err := m.store.LeaveSink(sink); err != nil {
			return ledger.StoreError(err, "sink %s leaves", sink)
		}
	}
	return nil
}

// forgetAbsence deletes the note of a sink that was purged, before there is another of its
// name.
func (m *Manager) forgetAbsence(sink string) error {
	return ledger.StoreError(ledger.DeleteMeta(m.store, leftMeta+sink), "note of the purged sink %s", sink)
}

// reportAbsences reports to the sinks that are back what they have missed for good, after
// they were given the rest. Nothing is appended meanwhile.
func (m *Manager) reportAbsences(next *plan.State, d desired) error {
	now := printRoutes(next)
	before, err := m.loadRoutes()
	if err != nil {
		return err
	}
	for i := range next.Sinks {
		name := next.Sinks[i].Name
		q, err := m.store.Queue(name)
		if err != nil {
			return ledger.StoreError(err, "queue of sink %s", name)
		}
		a, ok := q.Absence()
		away, known := before.left[name]
		if !ok || away.Reported {
			continue // it was not away, or the process ended right after its gap
		}
		away.Broken = away.Broken || !known
		lost, to := a.Lost, a.LostTo
		for route := range away.Routes {
			away.Broken = away.Broken || !slices.Contains(now[route].Sinks, name)
		}
		if away.Broken {
			lost, to = true, m.cfg.Now()
		}
		if !lost {
			m.log.Info("sink is back: resuming its backlog and what was recorded meanwhile", "sink", name, "since", a.Since)
			continue
		}
		m.log.Warn("sink is back, and not everything was recorded meanwhile: reporting a gap to it", "sink", name, "since", a.Since, "to", to)
		away.Reported = true
		if err := m.reportAbsence(next, d, name, away, a.Since, to); err != nil {
			return err
		}
	}
	return nil
}

// reportAbsence queues a gap for every resource and watch that a route leads to the sink, also
// for what is recorded of resources that are not served, or not known yet.
func (m *Manager) reportAbsence(next *plan.State, d desired, sink string, away absence, left, to time.Time) error {
	feeds := slices.SortedFunc(maps.Values(d.feeds), func(a, b *commit.Feed) int { return strings.Compare(a.ID, b.ID) })
	for _, p := range m.store.Partitions() {
		if slices.ContainsFunc(feeds, func(s *commit.Feed) bool { return s.Partition == p }) {
			continue
		}
		gr, scope := ledger.SplitPartition(p)
		s, err := m.committer.FormerFeed(p, next.Watches, func(w *plan.Watch) bool { return m.wantsAs(d.resolved, w, gr, scope) }, true)
		if err != nil {
			return err
		}
		feeds = append(feeds, s)
	}
	b := m.store.NewBatch()
	defer b.Discard()
	b.PutMeta(leftMeta+sink, ledger.Encode(away))
	at := m.cfg.Now()
	reported := map[string]bool{} // by ID: a feed may have a watch once for each namespace
	for _, s := range feeds {
		from := away.since(s.Resource, left)
		// After a return that was interrupted, the next gap begins at the same time, and ends later.
		span := from.UTC().Format(time.RFC3339Nano) + "/" + to.UTC().Format(time.RFC3339Nano)
		for _, h := range s.Watches() {
			if !slices.Contains(next.Router.Sinks(nil, h.Watch.Name, s.Resource), sink) {
				continue
			}
			scope := s.Scope + "/" + h.Watch.Name + "/" + commit.CauseRemoved + "/" + sink
			id := event.ID(m.cfg.Cluster, event.Gap, s.Resource, scope, s.Key.Namespace, span)
			if reported[id] {
				continue
			}
			reported[id] = true
			r := record.Record{
				Event: event.Event{
					ID:   id,
					Type: event.Gap, Time: at, Resource: s.Resource, Namespace: s.Key.Namespace,
					Gap: &event.GapData{Watch: h.Watch.Name, Resource: s.Resource, Namespace: s.Key.Namespace, Cause: commit.CauseRemoved, From: from.UTC(), To: to.UTC()},
				},
				Targets: []record.Target{{Sink: sink}},
			}
			payload, err := record.Append(nil, &r)
			if err != nil {
				return fmt.Errorf("gap for sink %s: %w", sink, err)
			}
			b.Append(store.Record{Time: at, Lane: xxhash.Sum64(r.Event.AppendPartitionKey(nil)), Payload: payload}, []store.Route{{Sink: sink}})
			m.committer.CountGap(h.Watch.Name, s, &dynamicfactory.Gap{Cause: commit.CauseRemoved, FromTime: from, ToTime: to})
		}
	}
	return ledger.StoreError(m.store.Commit(b), "gap for sink %s", sink)
}
