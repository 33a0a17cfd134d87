package feed

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/status"
)

// Status tells how the pipeline is doing. It looks at every cached object, so it
// is for people, probes and scrapes, every few seconds. It may be called at any
// time, from any goroutine.
func (m *Manager) Status() status.Pipeline {
	m.mu.Lock()
	st := m.state
	missed := make([]missing, 0, len(m.missing))
	for _, x := range m.missing {
		missed = append(missed, x)
	}
	ambiguous := slices.Collect(maps.Values(m.ambiguous))
	m.mu.Unlock()

	p := status.Pipeline{Applied: st != nil, Caches: []status.Cache{}, Watches: []status.Watch{}, Routes: []status.Route{}, Scrub: m.scrubStatus()}
	if beat := m.heartbeat.Load(); beat != 0 {
		p.Beat = time.Unix(0, beat)
	}
	p.Sinks = m.sinkStatuses(st)
	if st == nil {
		return p
	}
	byWatch := map[string][]status.Source{}
	caches := map[string]*status.Cache{}
	for _, s := range m.sourceList() {
		one := s.status()
		for _, h := range *s.watches.Load() {
			byWatch[h.watch.Name] = append(byWatch[h.watch.Name], one)
		}
		name := s.key.GVR.GroupResource().String()
		if caches[name] == nil {
			caches[name] = &status.Cache{Resource: name}
		}
		caches[name].Objects += one.Objects
		caches[name].Bytes += one.Bytes
	}
	for _, name := range slices.Sorted(maps.Keys(caches)) {
		p.Caches = append(p.Caches, *caches[name])
	}
	for i := range st.Watches {
		w := status.Watch{Name: st.Watches[i].Name, Sources: byWatch[st.Watches[i].Name]}
		slices.SortFunc(w.Sources, func(a, b status.Source) int {
			return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Namespace, b.Namespace))
		})
		for _, x := range missed {
			if x.watch == w.Name {
				w.Missing = append(w.Missing, status.Missing{Resource: x.pattern, Reason: x.reason()})
			}
		}
		slices.SortFunc(w.Missing, func(a, b status.Missing) int { return cmp.Compare(a.Resource, b.Resource) })
		for i := range ambiguous {
			if ambiguous[i].watch == w.Name {
				w.Warnings = append(w.Warnings, ambiguous[i].String())
			}
		}
		slices.Sort(w.Warnings)
		p.Watches = append(p.Watches, w)
	}
	p.Routes = routeStatuses(st)
	return p
}

// factoryPrefix begins the errors of names that cannot be resolved. It tells users
// nothing.
const factoryPrefix = "dynamicfactory: "

// reason is why there is no informer.
func (x *missing) reason() string { return strings.TrimPrefix(x.err.Error(), factoryPrefix) }

func (s *Feed) status() status.Source {
	out := status.Source{Resource: s.resource.String(), Namespace: s.key.Namespace, State: "waiting"}
	sub := s.sub.Load()
	if sub == nil {
		return out
	}
	t := sub.Status()
	select {
	case <-sub.Synced():
		out.Synced = true
	default:
	}
	out.State, out.Reason, out.Message, out.Since, out.LastContact = t.State, t.Reason, t.Message, t.Since, t.LastContact
	out.ResourceVersion, out.Objects, out.Bytes, out.InFlight = t.ResourceVersion, t.Objects, t.Bytes, t.InFlight
	out.Events, out.Bookmarks, out.Relists, out.Expired = t.Events, t.Bookmarks, t.Relists, t.Expired410
	out.Forbidden, out.NotFound, out.DecodeErrors, out.Restarts = t.Forbidden, t.NotFound, t.DecodeErrors, t.WatchRestarts
	out.Skipped, out.PausedSince = t.Skipped, t.PausedSince
	return out
}

func routeStatuses(st *plan.State) []status.Route {
	out := make([]status.Route, 0, len(st.Routes))
	stats := st.Router.Stats()
	for i, spec := range st.Routes {
		r := status.Route{Name: spec.Name, Watches: spec.Watches, Sinks: spec.Sinks}
		if i < len(stats) {
			s := stats[i]
			r.Matched, r.Filtered, r.Unchanged, r.Missing, r.Errors = s.Matched, s.Filtered, s.Unchanged, s.Missing, s.Errors
			if s.FirstError != nil {
				r.FirstError = s.FirstError.Error()
			}
		}
		out = append(out, r)
	}
	return out
}

// sinkStatuses are the configured sinks and those that only have a backlog left.
func (m *Manager) sinkStatuses(st *plan.State) []status.Sink {
	m.mu.Lock()
	workers := maps.Clone(m.sinks)
	m.mu.Unlock()
	out := []status.Sink{}
	for _, name := range m.store.Sinks() {
		s := status.Sink{Name: name, State: "stopped"}
		if st != nil {
			if spec := st.Sink(name); spec != nil {
				s.Kind, s.Configured = spec.Kind, true
			}
		}
		if w, ok := workers[name]; ok {
			t := w.worker.Status()
			s.State, s.Reason, s.Since, s.Attempts, s.NextAttempt = string(t.State), t.Reason, t.Since, t.Attempts, t.NextAttempt
			s.LastError, s.LastErrorTime, s.LastSuccess = t.LastError, t.LastErrorTime, t.LastSuccess
			s.InFlight, s.Blocked, s.Stalled, s.Delivered = t.InFlight, t.Blocked, t.Stalled, t.Delivered
			s.FailingObjects = t.FailingObjects
			for _, f := range t.Failing {
				s.Failing = append(s.Failing, status.Failing(f))
			}
		}
		queue, err := m.store.Queue(name)
		if err != nil {
			continue // purged this moment
		}
		q := queue.Stats()
		s.Queued, s.QueuedBytes, s.Oldest, s.DeadLetters = q.Length, q.Bytes, q.OldestTime, q.DeadLetters
		s.HeldBytes, s.HeldSince = q.HeldBytes, q.HeldSince
		out = append(out, s)
	}
	return out
}
