package pipeline

import (
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
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
	return r, nil
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
		return fmt.Errorf("%w: keep the accepted edits: %w", ledger.ErrStore, err)
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
	}
}

// editsAwaiting are the edits that watches which wait for a resource would give it in
// a namespace, or in all if that is empty.
func (m *Manager) editsAwaiting(st *plan.State, gr schema.GroupResource, namespace string) (edits redact.Edits, ok bool) {
	for i := range st.Watches {
		w := &st.Watches[i]
		if namespace != "" && len(w.Namespaces) > 0 && !slices.Contains(w.Namespaces, namespace) || m.excluded(w)(gr) ||
			!slices.ContainsFunc(w.Resources, func(pattern string) bool { return m.means(w, pattern, gr) }) {
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

// editRecord is what a reader has to do with a record's content. It implements
// record.Inflater.Edit.
func (m *Manager) editRecord(r *record.Record, sink string) record.Edit {
	return m.edits.Load().Edit(r, sink)
}
