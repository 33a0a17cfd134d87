package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/unseen"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// Pipeline is what a Reader reads.
type Pipeline interface {
	// Running is called from any goroutine.
	Running() Running
}

// Running is what a pipeline runs at one moment.
type Running struct {
	State    *plan.State // nil: none was applied
	Feeds    []Feed
	Missing  []Missing
	Warnings map[string][]string         // by watch: ambiguous names, and namespaces that do not exist
	Workers  map[string]*delivery.Worker // by sink
	Scrub    *status.Scrub               // the last one; nil: there never was one
}

// Feed is a feed and its informer.
type Feed struct {
	*commit.Feed
	Informer *dynamicfactory.DurableSubscription // nil: it is not subscribed yet
}

// Missing is why a watch's pattern has no informer.
type Missing struct {
	Watch, Pattern string
	Err            error
	Pending        bool // as status.Missing
}

// Reason is the cause in words for users.
func (x *Missing) Reason() string { return strings.TrimPrefix(x.Err.Error(), factoryPrefix) }

// factoryPrefix begins the errors of names that cannot be resolved. It means
// nothing to users.
const factoryPrefix = "dynamicfactory: "

// Resolver finds the resources that a name means.
type Resolver interface {
	Resolve(name string) ([]dynamicfactory.Resource, error)
}

// Config is what a Reader works with.
type Config struct {
	Pipeline   Pipeline
	Committer  *commit.Committer
	Store      *store.Store
	Resolver   Resolver
	Inflater   *record.Inflater
	Edits      func() *redact.Table // in force
	Registerer prometheus.Registerer
}

// Reader answers what runs, and what was recorded. Any goroutine may use it.
type Reader struct {
	cfg       Config
	committer *commit.Committer
	store     *store.Store
	inflater  *record.Inflater
}

// New makes a Reader and registers what it exports.
func New(cfg Config) (*Reader, error) {
	r := &Reader{cfg, cfg.Committer, cfg.Store, cfg.Inflater}
	return r, errors.Join(cfg.Registerer.Register(collector{r}), cfg.Registerer.Register(routeMetrics{cfg.Pipeline}))
}

// History returns the reader of what was recorded.
func (r *Reader) History() *history.Reader {
	h := history.New(r.store, ledger.New(r.store, r.inflater.Dictionaries), r.inflater)
	h.Reading(r.reading)
	return h
}

// settling is how long an answer waits for what was observed before it to be recorded. Most commits take milliseconds.
const settling = 100 * time.Millisecond

// reading implements history.Reading. It waits for one time for all feeds.
func (r *Reader) reading(settle func(feed string) bool, to time.Time) (feeds map[string]history.Unread, all bool) {
	feeds = map[string]history.Unread{}
	if now := time.Now(); to.After(now) {
		to = now
	}
	wait, cancel := context.WithTimeout(context.Background(), settling)
	defer cancel()
	paused := r.store.Health().Paused
	running := r.cfg.Pipeline.Running()
	for _, s := range running.Feeds {
		if s.Informer == nil {
			feeds[s.ID] = history.Unread{Cause: "its watch has not begun"}
			continue
		}
		w := s.Informer.Watch()
		switch u := (history.Unread{Since: w.UnreadSince, Cause: w.Message, Forbidden: w.State == dynamicfactory.StateForbidden}); {
		case w.State == dynamicfactory.StateWatching && u.Since.IsZero() && !(paused && w.InFlight > 0):
			feeds[s.ID] = history.Unread{}
			if settle == nil || !settle(s.ID) {
				continue
			}
			if since, ok := s.recorded(wait, to, r.committer.UnrecordedLabels); !ok {
				feeds[s.ID] = history.Unread{Since: since, Cause: "what was read is being recorded"}
			}
		default:
			switch {
			case u.Cause != "":
			case !w.PausedSince.IsZero():
				u.Cause = "its watch is paused until the store has taken what was read"
			case w.State == dynamicfactory.StateWatching:
				u.Cause = "the store has no room for them"
			default:
				u.Cause = "its watch lists again"
			}
			feeds[s.ID] = u
		}
	}
	return feeds, running.State != nil && !slices.ContainsFunc(running.Missing, func(m Missing) bool { return m.Pending })
}

// recorded waits until what the feed had observed at a time, and the list that it takes in, is in the history, with what changes of
// namespaces' labels lead to. since: it is not, from then on; zero: from its checkpoint on.
func (s Feed) recorded(ctx context.Context, at time.Time, labels func() (since time.Time, moved <-chan struct{})) (since time.Time, ok bool) {
	since, ok = settled(ctx, at, s.Unrecorded, func() bool { return s.Swept() > 0 && !s.Informer.Watch().ListInFlight })
	if ok && s.SelectsByLabels() {
		return settled(ctx, at, labels, func() bool { return true })
	}
	return since, ok
}

// settled waits until nothing is unrecorded up to a time, of what has been listed.
func settled(ctx context.Context, at time.Time, unrecorded func() (since time.Time, moved <-chan struct{}), listed func() bool) (since time.Time, ok bool) {
	for {
		since, moved := unrecorded()
		switch {
		case !listed():
			since = time.Time{}
		case since.IsZero() || since.After(at):
			return since, true
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return since, false
		}
	}
}

// Status returns the state of the pipeline, for people, probes and scrapes. It may be called
// at any time, from any goroutine.
func (r *Reader) Status() status.Pipeline {
	now := r.cfg.Pipeline.Running()
	st := now.State
	p := status.Pipeline{Applied: st != nil, Caches: []status.Cache{}, Watches: []status.Watch{}, Routes: []status.Route{}, Scrub: now.Scrub}
	p.Beat = r.committer.LastTurn()
	p.Sinks = r.sinkStatuses(st, now.Workers)
	if st == nil {
		return p
	}
	byWatch := map[string][]status.Source{}
	caches := map[string]*status.Cache{}
	for _, s := range now.Feeds {
		one := s.status()
		for _, h := range s.Watches() {
			byWatch[h.Watch.Name] = append(byWatch[h.Watch.Name], one)
		}
		name := s.Key.GVR.GroupResource().String()
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
		for _, x := range now.Missing {
			if x.Watch == w.Name {
				w.Missing = append(w.Missing, status.Missing{Resource: x.Pattern, Reason: x.Reason(), Pending: x.Pending})
			}
		}
		slices.SortFunc(w.Missing, func(a, b status.Missing) int { return cmp.Compare(a.Resource, b.Resource) })
		w.Warnings = append(slices.Sorted(slices.Values(now.Warnings[w.Name])), unmatched(w.Sources)...)
		if n := st.Watches[i].Filter.None(); n > 0 {
			w.Warnings = append(w.Warnings, fmt.Sprintf("its selectors and namespaces selected none of %d changes", n))
		}
		p.Watches = append(p.Watches, w)
	}
	p.Routes = routeStatuses(st, r.cfg.Edits())
	return p
}

func (s Feed) status() status.Source {
	out := status.Source{Resource: s.Resource.String(), Namespace: s.Key.Namespace}
	out.State = dynamicfactory.StateWaiting
	for _, u := range s.Usage() {
		out.Edits = append(out.Edits, status.Edit(u))
	}
	out.Edited = s.Edited()
	if s.Informer == nil {
		return out
	}
	out.Status = s.Informer.Status()
	select {
	case <-s.Informer.Synced():
		out.Synced = s.Listed()
	default:
	}
	return out
}

// unmatched returns a warning for each path of a watch that named no value of its objects.
func unmatched(sources []status.Source) (warnings []string) {
	hits := map[status.Edit]uint64{}
	var objects uint64 // not those that a restart has read from the store as they were edited before
	for i := range sources {
		objects += sources[i].Edited
		for _, e := range sources[i].Edits {
			of := status.Edit{Key: e.Key, Path: e.Path}
			hits[of] += e.Hits
		}
	}
	if objects < unseen.Enough {
		return nil
	}
	for e, n := range hits {
		if u := (redact.Usage{Key: e.Key, Path: e.Path, Hits: n}); u.Suspicious() {
			warnings = append(warnings, fmt.Sprintf("%s: %s has matched nothing in %d objects", e.Key, e.Path, objects))
		}
	}
	slices.Sort(warnings)
	return warnings
}

func routeStatuses(st *plan.State, edits *redact.Table) []status.Route {
	out := make([]status.Route, 0, len(st.Routes))
	stats := st.Router.Stats()
	for i, spec := range st.Routes {
		r := status.Route{Name: spec.Name, Watches: spec.Watches, Sinks: spec.Sinks}
		if i < len(stats) {
			s := stats[i]
			r.Matched, r.Filtered, r.Unchanged, r.Unsampled, r.Missing, r.Errors = s.Matched, s.Filtered, s.Unchanged, s.Unsampled, s.Missing, s.Errors
			r.EmptyLabels = s.EmptyLabels
			for _, u := range s.Unseen {
				r.Unseen = append(r.Unseen, status.Unseen{Key: u.Key, Field: u.Field, Changes: u.Changes})
			}
			usage, events := edits.RouteUsage(spec.Name)
			for _, u := range usage {
				if u.Hits == 0 && events >= unseen.Enough {
					r.Unseen = append(r.Unseen, status.Unseen{Key: u.Key, Field: u.Path, Changes: events})
				}
			}
			if s.FirstError != nil {
				r.FirstError = s.FirstError.Error()
			}
		}
		out = append(out, r)
	}
	return out
}

// sinkStatuses are the configured sinks and those that only have a backlog left.
func (r *Reader) sinkStatuses(st *plan.State, workers map[string]*delivery.Worker) []status.Sink {
	out := []status.Sink{}
	for _, name := range r.store.Sinks() {
		s := status.Sink{Name: name, State: "stopped"}
		if st != nil {
			if spec := st.Sink(name); spec != nil {
				s.Kind, s.Configured = spec.Kind, true
			}
		}
		if w, ok := workers[name]; ok {
			t := w.Status()
			s.State, s.Reason, s.Since, s.Attempts, s.NextAttempt = string(t.State), t.Reason, t.Since, t.Attempts, t.NextAttempt
			s.OnRequest = t.OnRequest
			s.LastError, s.LastErrorTime, s.LastSuccess = t.LastError, t.LastErrorTime, t.LastSuccess
			s.InFlight, s.Blocked, s.Stalled, s.Delivered = t.InFlight, t.Blocked, t.Stalled, t.Delivered
			s.FailingObjects = t.FailingObjects
			for _, f := range t.Failing {
				s.Failing = append(s.Failing, status.Failing(f))
			}
		}
		queue, err := r.store.Queue(name)
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
