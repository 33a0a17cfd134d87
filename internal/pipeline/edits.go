package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/scrub"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/store"
)

// loadEdits puts the edits in place that were accepted last, for readers that come
// before the first configuration is applied.
func (m *Manager) loadEdits() error {
	stored, ok, err := m.store.Meta(ledger.AcceptedMeta)
	if err != nil || !ok {
		return err
	}
	if m.accepted, err = redact.Parse(stored); err != nil {
		return err
	}
	table, err := redact.Compile(m.accepted, nil, m.redactKey)
	if err != nil {
		return err
	}
	m.edits.Store(table)
	return nil
}

// revision are the edits of a new state, ready to be adopted.
type revision struct {
	accepted  redact.Accepted
	table     *redact.Table
	tightened []schema.GroupResource // of which something is to be hidden that was not
}

// revise works out the edits of a state. It changes nothing.
func (m *Manager) revise(next *plan.State, d desired) (r revision, err error) {
	r.accepted = m.editsOf(next, d)
	r.tightened = r.accepted.Tightened(&m.accepted)
	if r.table, err = redact.Compile(r.accepted, leading(next), m.redactKey); err != nil {
		return r, fmt.Errorf("edits: %w", err)
	}
	r.table.OnUnseen(m.unseenEdit)
	return r, nil
}

// unseenEdit logs, once, a path of a route's edits that no value had.
func (m *Manager) unseenEdit(route string, u redact.Usage, events uint64) {
	if _, logged := m.unseenEdits.LoadOrStore([3]string{route, u.Key, u.Path}, nil); !logged {
		m.log.Warn(unseenField, "route", route, "key", u.Key, "field", u.Path, "changes", events)
	}
}

// editsOf are the edits of a state, with those of what the store holds of others.
func (m *Manager) editsOf(next *plan.State, d desired) (all redact.Accepted) {
	for _, s := range d.feeds {
		for _, h := range s.Watches() {
			all.Add(redact.Resource{
				Group: s.Key.GVR.Group, Resource: s.Key.GVR.Resource, Namespace: s.Key.Namespace, Edits: h.Watch.Edits,
			})
		}
	}
	for _, spec := range next.Routes {
		all.Routes = append(all.Routes, redact.Route{Name: spec.Name, Drop: spec.Drop, Redact: spec.Redact})
	}
	all.Keep(m.accepted, func(gr schema.GroupResource, namespace string) (redact.Edits, bool) {
		if next.Hash != "" && next.Hash == m.applied {
			return redact.Edits{}, false // what is kept was made of this state
		}
		return m.editsAwaiting(next, gr, namespace)
	})
	for _, gr := range m.cached(next) {
		if !slices.ContainsFunc(all.Resources, func(known redact.Resource) bool { return known.GroupResource() == gr }) {
			all.Add(redact.Resource{Group: gr.Group, Resource: gr.Resource, Edits: redact.DefaultEdits()})
		}
	}
	return all
}

// acceptEdits makes the edits of a new state durable, with the task to rewrite what
// they hide and the store holds. No scrub runs meanwhile.
func (m *Manager) acceptEdits(r *revision) error {
	b := m.store.NewBatch()
	defer b.Discard()
	b.PutMeta(ledger.AcceptedMeta, r.accepted.Marshal())
	task := m.scrub.load()
	if len(r.tightened) > 0 {
		task = m.needScrub(b, r.tightened)
	}
	if err := m.store.Commit(b); err != nil {
		return ledger.StoreError(err, "keep the accepted edits")
	}
	m.accepted = r.accepted
	m.scrub.set(task)
	return nil
}

// reviseServed adds to the edits those of resources that the cluster serves only now.
func (m *Manager) reviseServed(st *plan.State, d desired) error {
	if reflect.DeepEqual(m.editsOf(st, d), m.accepted) {
		return nil
	}
	r, err := m.revise(st, d)
	if err != nil {
		return err
	}
	m.stopScrub()
	if err := m.acceptEdits(&r); err != nil {
		return err
	}
	m.adoptEdits(&r)
	return nil
}

// adoptEdits puts the edits in place: what is read from now on is read through them.
func (m *Manager) adoptEdits(r *revision) {
	m.edits.Store(r.table)
	m.editsChanged.Add(1)
	if len(r.tightened) > 0 {
		m.editsTightened.Add(1)
		if st := m.currentState(); st != nil {
			st.Router.Withhold()
		}
	}
}

// editsAwaiting are the edits that watches which wait for a resource would give it in
// a namespace, or in all if that is empty.
func (m *Manager) editsAwaiting(st *plan.State, gr schema.GroupResource, namespace string) (edits redact.Edits, ok bool) {
	for i := range st.Watches {
		w := &st.Watches[i]
		if namespace != "" && len(w.Namespaces) > 0 && !slices.Contains(w.Namespaces, namespace) || excluded(w, m.cfg.Resolver.Resolve)(gr) ||
			!slices.ContainsFunc(w.Resources, func(pattern string) bool { return meansAs(m.resolved, w, pattern, gr) }) {
			continue
		}
		if ok {
			edits = edits.Union(w.Edits)
		} else {
			edits, ok = w.Edits, true
		}
	}
	return edits, ok
}

// leading are the routes that lead to each sink.
func leading(st *plan.State) map[string][]string {
	routes := map[string][]string{}
	for _, spec := range st.Routes {
		for _, sink := range spec.Sinks {
			routes[sink] = append(routes[sink], spec.Name)
		}
	}
	return routes
}

// scrubber is the running scrub. The owner starts and stops it, and changes the task
// while it does not run.
type scrubber struct {
	cancel context.CancelFunc
	ended  chan struct{} // nil: it does not run

	mu    sync.Mutex
	state ledger.Scrub // guarded by mu
}

func (s *scrubber) load() ledger.Scrub {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *scrubber) set(state ledger.Scrub) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
}

func (m *Manager) loadScrub() error {
	stored, ok, err := m.store.Meta(ledger.ScrubMeta)
	if err != nil || !ok {
		return err
	}
	var state ledger.Scrub
	if err := json.Unmarshal(stored, &state); err != nil {
		return fmt.Errorf("state of the scrub: %w", err)
	}
	m.dicts.Retire(func(_ string, id uint32) bool { return slices.Contains(state.Retired, id) })
	m.scrub.set(state)
	return nil
}

// needScrub adds resources to the task. It starts over: what it has looked at may hold
// something that is to be hidden now.
func (m *Manager) needScrub(b *store.Batch, tightened []schema.GroupResource) ledger.Scrub {
	state := m.scrub.load()
	next := ledger.Scrub{Began: m.cfg.Now()}
	if state.Pending() {
		next.Resources, next.Retired = slices.Clone(state.Resources), state.Retired
	}
	for _, gr := range tightened {
		if !next.Concerns(gr.String()) {
			next.Resources = append(next.Resources, gr.String())
		}
	}
	slices.Sort(next.Resources)
	b.PutMeta(ledger.ScrubMeta, ledger.Encode(next))
	return next
}

// startScrub starts the scrub that is pending, once the feeds that recorded by
// earlier edits are stopped. While the served resources are not known it waits: the
// edits of a resource then are those of every watch that may mean it, which is good
// for reading and too much for good. Only the owner calls it.
func (m *Manager) startScrub(ctx context.Context) error {
	state := m.scrub.load()
	if !state.Pending() || m.scrub.ended != nil || m.undiscovered {
		return nil
	}
	if !state.Dictionaries {
		state.Retired = m.dicts.Retire(func(resource string, id uint32) bool {
			resource, _, _ = strings.Cut(resource, " ")
			return state.Concerns(resource) || slices.Contains(state.Retired, id)
		})
		slices.Sort(state.Retired)
		state.Dictionaries = true
		if err := m.committer.AtBarrier(func(commit.Barrier) {}); err != nil { // what is being committed may have one of them
			return err
		}
		if err := m.keepScrub(state); err != nil {
			return ledger.StoreError(err, "keep the retired dictionaries")
		}
		m.log.Info("the configuration hides more than before: rewriting the store", "resources", state.Resources)
	}
	ctx, m.scrub.cancel = context.WithCancel(ctx)
	m.scrub.ended = make(chan struct{})
	m.metrics.scrubbing.Set(1)
	go func() {
		defer close(m.scrub.ended)
		err := m.runScrub(ctx)
		switch {
		case ctx.Err() != nil || errors.Is(err, commit.ErrEnded):
		case errors.Is(err, store.ErrFailed):
			m.fail(ledger.StoreError(err, "rewrite the store"))
		case err != nil:
			m.log.Error("rewriting the store failed; retrying at the next reload or start", "error", err)
		}
	}()
	return nil
}

// stopScrub ends the running scrub, if there is one, and waits for it.
func (m *Manager) stopScrub() {
	if m.scrub.ended == nil {
		return
	}
	m.scrub.cancel()
	<-m.scrub.ended
	m.scrub.ended = nil
}

func (m *Manager) runScrub(ctx context.Context) error {
	state := m.scrub.load()
	run := scrub.New(scrub.Config{
		Store: m.store, Dictionaries: m.dicts, Edits: m.edits.Load(), AtBarrier: m.committer.AtBarrier,
		Keep: m.keepScrub, Erase: m.cfg.Erase, Count: m.metrics.scrubCounted, Now: m.cfg.Now,
	}, state)
	for state.Pending() {
		var err error
		if state, err = run.Next(ctx); err != nil {
			return err
		}
	}
	m.metrics.scrubbing.Set(0)
	m.metrics.scrubbed.Set(float64(state.Done.Unix()))
	log := m.log.Info
	if state.Failed > 0 {
		log = m.log.Warn
	}
	log("what the store holds has been rewritten as the configuration wants it", "resources", state.Resources,
		"rewritten", state.Rewritten, "failed", state.Failed, "took", state.Done.Sub(state.Began))
	return nil
}

// keepScrub makes a scrub's state durable, and shows it.
func (m *Manager) keepScrub(state ledger.Scrub) error {
	m.scrub.set(state)
	return ledger.PutMeta(m.store, ledger.ScrubMeta, ledger.Encode(state))
}

// scrubStatus is the status of the last scrub, nil if there never was one.
func (m *Manager) scrubStatus() *status.Scrub {
	s := m.scrub.load()
	if s.Began.IsZero() {
		return nil
	}
	return &status.Scrub{
		Resources: s.Resources, Began: s.Began, Done: s.Done, Stage: s.Stage, Rewritten: s.Rewritten, Failed: s.Failed,
	}
}
