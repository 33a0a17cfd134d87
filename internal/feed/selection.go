package feed

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// selectedMeta, the name of a watch and the id of a source say by which rules the
// watch was given the source's objects. What it covers in addition after a restart
// comes as after a reload. An entry is written with the last of the objects; that of a
// source that has been stopped stays, as nothing of its objects is recorded without it.
const selectedMeta = "selected/"

// selected are the rules by which a watch was given the objects of a source.
type selected struct {
	Resource   event.Resource `json:"resource"`
	Namespaces []string       `json:"namespaces,omitempty"` // none: all
	Rules      plan.Selection `json:"rules,omitzero"`

	// Owed means that the rules are in force and nothing counts as given by them: the watch
	// is still being given its first objects, or what it was given went by labels of
	// namespaces that are not known any more.
	Owed bool `json:"owed,omitempty"`
}

// same reports whether both select the same, in whatever version of the resource.
func (s selected) same(other selected) bool {
	s.Resource = other.Resource
	return reflect.DeepEqual(s, other)
}

func selectedBy(s *source, w *plan.Watch) selected {
	return selected{Resource: s.resource, Namespaces: w.Namespaces, Rules: w.Selection}
}

func selectionKey(watch, id string) string { return selectedMeta + watch + "/" + id }

func selectionEntry(s *source, w *plan.Watch) (key string, value []byte) {
	value, err := json.Marshal(selectedBy(s, w))
	if err != nil { // strings always marshal
		panic(fmt.Sprintf("feed: marshal selection: %v", err))
	}
	return selectionKey(w.Name, s.id), value
}

// hit returns the rules as those of a watch.
func (s *selected) hit(watch string) (hit, error) {
	filter, err := s.Rules.Filter()
	if err != nil {
		return hit{}, fmt.Errorf("rules of watch %s: %w", watch, err)
	}
	h := hit{watch: &plan.Watch{Name: watch, Filter: filter}}
	if len(s.Namespaces) > 0 {
		h.namespaces = make(map[string]struct{}, len(s.Namespaces))
		for _, ns := range s.Namespaces {
			h.namespaces[ns] = struct{}{}
		}
	}
	return h, nil
}

// selections are the rules of watches, by id of the source and name of the watch.
type selections map[string]map[string]selected

// loadSelections returns the rules by which watches were given objects.
func (m *Manager) loadSelections() (selections, error) {
	all := selections{}
	err := m.store.ScanMeta(selectedMeta, func(key string, value []byte) error {
		var s selected
		if err := json.Unmarshal(value, &s); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		watch, id, _ := strings.Cut(strings.TrimPrefix(key, selectedMeta), "/")
		if all[id] == nil {
			all[id] = map[string]selected{}
		}
		all[id][watch] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: load selections: %w", ErrStore, err)
	}
	return all, nil
}

// formerly is what a watch covered of a part of the ledger, by id of the source that
// was the last to record a namespace.
type formerly struct {
	all string          // the id of a source of all namespaces
	ids map[string]*hit // nil: the watch was not given what that source recorded
}

// known are the ids, none if nothing is known.
func (f *formerly) known() map[string]*hit {
	if f == nil {
		return nil
	}
	return f.ids
}

func (f *formerly) covers(o *compact.Object, nsLabels func(string) (labels.Set, bool)) bool {
	h, ok := f.ids[f.all+o.GetNamespace()]
	if !ok {
		h = f.ids[f.all]
	}
	return h != nil && h.covers(o, nsLabels)
}

// formerly collects what a watch covered of a source's part of the ledger; nil if
// nothing is known of it.
func (all selections) formerly(s *source, watch string) (*formerly, error) {
	f := &formerly{all: sourceID(s.partition, ""), ids: map[string]*hit{}}
	for id, watches := range all {
		if !strings.HasPrefix(id, f.all) {
			continue
		}
		f.ids[id] = nil
		if rules, ok := watches[watch]; ok && !rules.Owed {
			h, err := rules.hit(watch)
			if err != nil {
				return nil, err
			}
			f.ids[id] = &h
		}
	}
	if len(f.ids) == 0 {
		return nil, nil
	}
	return f, nil
}

// watch returns next by the rules by which it judged the objects of a part of the ledger,
// nil if it did not.
func (all selections) watch(partition string, next *plan.Watch) (*plan.Watch, error) {
	for _, id := range slices.Sorted(maps.Keys(all)) { // those of one part are alike but for their namespaces
		rules, ok := all[id][next.Name]
		if !ok || rules.Owed && rules.Rules.Namespaces.Selector != "" || !strings.HasPrefix(id, sourceID(partition, "")) {
			continue
		}
		filter, err := rules.Rules.Filter()
		if err != nil {
			return nil, fmt.Errorf("rules of watch %s: %w", next.Name, err)
		}
		w := *next
		w.Namespaces, w.Selection, w.Filter = rules.Namespaces, rules.Rules, filter
		w.Fingerprint += " former"
		return &w, nil
	}
	return nil, nil
}

// parted reports whether parts of the source were the last to record their namespaces.
func (all selections) parted(s *source) bool {
	whole := sourceID(s.partition, "")
	if s.id != whole {
		return false
	}
	for id := range all {
		if id != whole && strings.HasPrefix(id, whole) {
			return true
		}
	}
	return false
}

// startGains are the watches of sources that are about to start which may cover
// recorded objects that they were not given.
func (m *Manager) startGains(start []*source) ([]gain, error) {
	if len(start) == 0 {
		return nil, nil
	}
	all, err := m.loadSelections()
	if err != nil {
		return nil, err
	}
	var gained []gain
	for _, s := range start {
		for _, h := range *s.hits.Load() {
			if before, ok := all[s.id][h.watch.Name]; ok && before.same(selectedBy(s, h.watch)) && !all.parted(s) {
				continue
			}
			was, err := all.formerly(s, h.watch.Name)
			switch {
			case err != nil:
				return nil, err
			case was != nil:
				gained = append(gained, gain{src: s, hit: h, was: was})
			}
		}
	}
	return gained, nil
}

// given are rules to make durable, by id of the source and name of the watch; nil for
// a watch that is still being given what it gained.
type given map[string]map[string]*selected

// givenBy are the rules of the sources' watches. The committer calls it.
func givenBy(sources []*source) given {
	rules := given{}
	for _, s := range sources {
		rules[s.id] = map[string]*selected{}
		for _, h := range *s.hits.Load() {
			rules[s.id][h.watch.Name] = nil
			if !slices.ContainsFunc(s.gaining, func(j *snapshot) bool { return j.only == nil && j.hit.watch.Name == h.watch.Name }) {
				now := selectedBy(s, h.watch)
				rules[s.id][h.watch.Name] = &now
			}
		}
	}
	return rules
}

// oweSelections notes of watches that are about to be given objects, and of which no
// rules are known, that they were not: an end before they are must not look like the
// first start.
func (m *Manager) oweSelections(b *outbox.Batch, jobs []*snapshot) error {
	known, err := m.loadSelections()
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if j.sink != "" {
			continue
		}
		_, own := known[j.src.id][j.hit.watch.Name]
		_, wider := known[sourceID(j.src.partition, "")][j.hit.watch.Name]
		if own || wider {
			continue
		}
		rules := selectedBy(j.src, j.hit.watch)
		rules.Owed = true
		value, err := json.Marshal(rules)
		if err != nil {
			return err
		}
		b.PutMeta(selectionKey(j.hit.watch.Name, j.src.id), value)
	}
	return nil
}

// noteSelections makes the rules of running sources durable. Those of parts of a
// source are of no use any more.
func (m *Manager) noteSelections(rules given) error {
	known, err := m.loadSelections()
	if err != nil {
		return err
	}
	b := m.store.NewBatch()
	defer b.Discard()
	for id, watches := range rules {
		for name, s := range watches {
			if before, ok := known[id][name]; s != nil && (!ok || !reflect.DeepEqual(before, *s)) {
				value, err := json.Marshal(s)
				if err != nil {
					return err
				}
				b.PutMeta(selectionKey(name, id), value)
			}
		}
		for name := range known[id] {
			if _, ok := watches[name]; !ok {
				b.DeleteMeta(selectionKey(name, id))
			}
		}
	}
	for id, watches := range known {
		all := id[:strings.LastIndexByte(id, '#')+1]
		if _, running := rules[all]; running && id != all {
			dropSelections(b, id, watches)
		}
	}
	if err := m.store.Commit(b); err != nil {
		return fmt.Errorf("%w: note selections: %w", ErrStore, err)
	}
	return nil
}

// oweLabels notes that rules by labels of namespaces cannot be judged by any more. No
// watch of the present state has such rules.
func (m *Manager) oweLabels(b *outbox.Batch) error {
	all, err := m.loadSelections()
	if err != nil {
		return err
	}
	st := m.currentState()
	for id, watches := range all {
		for name, s := range watches {
			if s.Rules.Namespaces.Selector == "" {
				continue
			}
			if w := st.Watch(name); w != nil {
				s.Namespaces, s.Rules = w.Namespaces, w.Selection
			}
			s.Owed = true
			value, err := json.Marshal(s)
			if err != nil {
				return err
			}
			b.PutMeta(selectionKey(name, id), value)
		}
	}
	return nil
}

func dropSelections(b *outbox.Batch, id string, watches map[string]selected) {
	for name := range watches {
		b.DeleteMeta(selectionKey(name, id))
	}
}
