package feed

import (
	"encoding/json"
	"fmt"
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
}

// same reports whether both select the same, in whatever version of the resource.
func (s selected) same(other selected) bool {
	s.Resource = other.Resource
	return reflect.DeepEqual(s, other)
}

func selectedBy(s *Feed, w *plan.Watch) selected {
	return selected{Resource: s.resource, Namespaces: w.Namespaces, Rules: w.Selection}
}

func selectionKey(watch, id string) string { return selectedMeta + watch + "/" + id }

func selectionEntry(s *Feed, w *plan.Watch) (key string, value []byte) {
	value, err := json.Marshal(selectedBy(s, w))
	if err != nil { // strings always marshal
		panic(fmt.Sprintf("feed: marshal selection: %v", err))
	}
	return selectionKey(w.Name, s.id), value
}

// hit returns the rules as those of a watch.
func (s *selected) hit(watch string) (WatchRef, error) {
	filter, err := s.Rules.Filter()
	if err != nil {
		return WatchRef{}, fmt.Errorf("rules of watch %s: %w", watch, err)
	}
	h := WatchRef{watch: &plan.Watch{Name: watch, Filter: filter}}
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
	ids map[string]*WatchRef // nil: the watch was not given what that source recorded
}

// known are the ids, none if nothing is known.
func (f *formerly) known() map[string]*WatchRef {
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
func (all selections) formerly(s *Feed, watch string) (*formerly, error) {
	f := &formerly{all: sourceID(s.partition, ""), ids: map[string]*WatchRef{}}
	for id, watches := range all {
		if !strings.HasPrefix(id, f.all) {
			continue
		}
		f.ids[id] = nil
		if rules, ok := watches[watch]; ok {
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

// startGains are the watches of sources that are about to start which may cover
// recorded objects that they were not given.
func (m *Manager) startGains(start []*Feed) ([]AddedWatch, error) {
	if len(start) == 0 {
		return nil, nil
	}
	all, err := m.loadSelections()
	if err != nil {
		return nil, err
	}
	var gained []AddedWatch
	for _, s := range start {
		for _, h := range *s.watches.Load() {
			if before, ok := all[s.id][h.watch.Name]; ok && before.same(selectedBy(s, h.watch)) {
				continue
			}
			was, err := all.formerly(s, h.watch.Name)
			switch {
			case err != nil:
				return nil, err
			case was != nil:
				gained = append(gained, AddedWatch{src: s, watch: h, was: was})
			}
		}
	}
	return gained, nil
}

// given are rules to make durable, by id of the source and name of the watch; nil for
// a watch that is still being given what it gained.
type given map[string]map[string]*selected

// givenBy are the rules of the sources' watches. The committer calls it.
func givenBy(sources []*Feed) given {
	rules := given{}
	for _, s := range sources {
		rules[s.id] = map[string]*selected{}
		for _, h := range *s.watches.Load() {
			rules[s.id][h.watch.Name] = nil
			if !slices.ContainsFunc(s.gaining, func(j *Snapshot) bool { return j.only == nil && j.watch.watch.Name == h.watch.Name }) {
				now := selectedBy(s, h.watch)
				rules[s.id][h.watch.Name] = &now
			}
		}
	}
	return rules
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

func dropSelections(b *outbox.Batch, id string, watches map[string]selected) {
	for name := range watches {
		b.DeleteMeta(selectionKey(name, id))
	}
}
