package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// selectedMeta, the name of a watch and the id of a feed say by which rules the
// watch was given the feed's objects. What it covers in addition after a restart
// comes as after a reload. An entry is written with the last of the objects; that of a
// feed that has been stopped stays, as nothing of its objects is recorded without it.
const selectedMeta = "selected/"

// Selected are the rules by which a watch was given the objects of a feed.
type Selected struct {
	Resource   event.Resource `json:"resource"`
	Namespaces []string       `json:"namespaces,omitempty"` // none: all
	Rules      plan.Selection `json:"rules,omitzero"`

	// Owed means that the rules are in force and nothing counts as given by them: the watch
	// is still being given its first objects, or what it was given went by labels of
	// namespaces that are not known any more.
	Owed bool `json:"owed,omitempty"`
}

// Same reports whether both select the same, in any version of the resource.
func (s Selected) Same(other Selected) bool {
	s.Resource = other.Resource
	return reflect.DeepEqual(s, other)
}

// Put adds the rules by which a watch was given the objects of a feed to the batch.
func (s Selected) Put(b *store.Batch, watch, id string) {
	b.PutMeta(SelectionKey(watch, id), Encode(s))
}

// SelectionKey is the key of the rules by which a watch was given a feed's objects.
func SelectionKey(watch, id string) string { return selectedMeta + watch + "/" + id }

// Selections are the rules of watches, by id of the feed and name of the watch.
type Selections map[string]map[string]Selected

// Selections returns the rules by which watches were given objects. Each compiles.
func (l *Ledger) Selections() (Selections, error) {
	all := Selections{}
	err := l.store.ScanMeta(selectedMeta, func(key string, value []byte) error {
		var s Selected
		err := json.Unmarshal(value, &s)
		if err == nil {
			_, err = s.Rules.Filter()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		watch, id, _ := strings.Cut(strings.TrimPrefix(key, selectedMeta), "/")
		if all[id] == nil {
			all[id] = map[string]Selected{}
		}
		all[id][watch] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: load selections: %w", ErrStore, err)
	}
	return all, nil
}

// DropSelections removes the rules by which watches were given a feed's objects.
func DropSelections(b *store.Batch, id string, watches map[string]Selected) {
	for name := range watches {
		b.DeleteMeta(SelectionKey(name, id))
	}
}

// Watch returns next by the rules by which it judged the objects of a part of the ledger,
// nil if it did not.
func (all Selections) Watch(partition string, next *plan.Watch) (*plan.Watch, error) {
	for _, id := range slices.Sorted(maps.Keys(all)) { // those of one part are alike but for their namespaces
		rules, ok := all[id][next.Name]
		if !ok || rules.Owed && rules.Rules.Namespaces.Selector != "" || !strings.HasPrefix(id, FeedID(partition, "")) {
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

// Parted reports whether feeds of parts of a partition's namespaces were the last to record
// them.
func (all Selections) Parted(partition string) bool {
	whole := FeedID(partition, "")
	for id := range all {
		if id != whole && strings.HasPrefix(id, whole) {
			return true
		}
	}
	return false
}
