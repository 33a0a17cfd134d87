package commit

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/compact"
)

// namespacesKnownKey notes that all namespaces are below ledger.NamespaceMeta.
const namespacesKnownKey = "namespaces-known"

// maxGone bounds how many namespaces that are gone are remembered. Some are
// remembered because the deletions of their objects may be seen later than theirs:
// in another watch, or after a downtime.
const maxGone = 10_000

// namespace is what is remembered of a namespace.
type namespace struct {
	Labels  labels.Set `json:"labels,omitempty"`
	UID     types.UID  `json:"uid,omitempty"`   // "" if it is not known
	Version string     `json:"resourceVersion"` // that brought the labels
	Epoch   int        `json:"epoch,omitempty"` // how often the version went backwards
	Gone    time.Time  `json:"gone,omitzero"`   // when it was found to be deleted
	Ended   time.Time  `json:"ended,omitzero"`  // objects that were made later are in another one, which was not seen
}

// idVersion is the part of event ids that is of the namespace. After the cluster was set back, versions are used again for something else.
func (n namespace) idVersion() string {
	if n.Epoch == 0 {
		return n.Version
	}
	return n.Version + "#" + strconv.Itoa(n.Epoch)
}

// LabelsIn returns the labels of a namespace that a value of the store has, by its key; none if it has no such labels.
func LabelsIn(key string, value []byte) (name string, all []labels.Set, err error) {
	name, ok := strings.CutPrefix(key, ledger.NamespaceMeta)
	if ok {
		var n namespace
		err = json.Unmarshal(value, &n)
		return name, []labels.Set{n.Labels}, err
	}
	if name, ok = strings.CutPrefix(key, relabelMeta); !ok {
		return "", nil, nil
	}
	var r relabelling
	err = json.Unmarshal(value, &r)
	for i := range r.Moves {
		all = append(all, r.Moves[i].Before, r.Moves[i].After)
	}
	return name, all, err
}

// madeAfter reports whether an object was made after its namespace ended, so that it is in
// another one of that name. If the end is not known, it is zero.
func madeAfter(o *compact.Object, ended time.Time) bool {
	return !ended.IsZero() && o.GetCreationTimestamp().After(ended)
}

// namespaceTable holds the labels by which watches select namespaces, as the
// committer has recorded them. The committer writes it, and before the first state is applied
// its owner (Committer.LoadNamespaces). Any goroutine may read it.
type namespaceTable struct {
	mu       sync.RWMutex // guards what is below
	known    map[string]namespace
	complete bool          // all namespaces are in it, or were in an earlier life
	gone     int           // how many of known are gone
	changed  chan struct{} // closed by the next put; nil: nothing waits
}

// ready reports whether labels gives true answers.
func (t *namespaceTable) ready() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.complete
}

// labels returns the labels of a namespace, those it had at last if it is gone. ok
// is false if it is not known.
func (t *namespaceTable) labels(name string) (labels.Set, bool) {
	n, ok := t.get(name)
	return n.Labels, ok
}

func (t *namespaceTable) get(name string) (namespace, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n, ok := t.known[name]
	return n, ok
}

// of is labels by an object in the namespace: if it was made after that namespace ended, the
// labels of the one that it is in are not known.
func (t *namespaceTable) of(o *compact.Object) func(name string) (labels.Set, bool) {
	return func(name string) (labels.Set, bool) {
		if n, ok := t.get(name); ok && !madeAfter(o, n.Ended) {
			return n.Labels, true
		}
		return nil, false
	}
}

// knows reports whether the labels of an object's namespace are known.
func (t *namespaceTable) knows(o *compact.Object) bool {
	_, known := t.of(o)(o.GetNamespace())
	return known
}

// await reports whether the labels of an object's namespace are known; if not, changed is
// closed by the next namespace that is recorded.
func (t *namespaceTable) await(o *compact.Object) (known bool, changed <-chan struct{}) {
	if t.knows(o) {
		return true, nil
	}
	t.mu.Lock()
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	changed = t.changed
	t.mu.Unlock()
	return t.knows(o), changed
}

// put records a namespace. It returns the names of those that it deletes for it.
func (t *namespaceTable) put(name string, n namespace) (forgotten []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil {
		t.known = map[string]namespace{}
	}
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
	if before, ok := t.known[name]; ok && !before.Gone.IsZero() {
		t.gone--
	}
	if !n.Gone.IsZero() {
		t.gone++
	}
	t.known[name] = n
	if t.gone <= maxGone {
		return nil
	}
	// Some at once, so that looking for the oldest is rare.
	names := slices.SortedFunc(maps.Keys(t.known), func(a, b string) int { return t.known[a].Gone.Compare(t.known[b].Gone) })
	names = slices.DeleteFunc(names, func(name string) bool { return t.known[name].Gone.IsZero() })
	forgotten = names[:maxGone/10]
	for _, name := range forgotten {
		delete(t.known, name)
	}
	t.gone -= len(forgotten)
	return forgotten
}

func (t *namespaceTable) existing() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var names []string
	for name, n := range t.known {
		if n.Gone.IsZero() {
			names = append(names, name)
		}
	}
	return names
}

// markComplete reports whether it was not complete before.
func (t *namespaceTable) markComplete() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	news := !t.complete
	t.complete = true
	return news
}

func (t *namespaceTable) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known, t.complete, t.gone = nil, false, 0
}

// LoadNamespaces fills the table with what the store remembers.
func (c *Committer) LoadNamespaces() error {
	err := c.store.ScanMeta(ledger.NamespaceMeta, func(key string, value []byte) error {
		var n namespace
		if err := json.Unmarshal(value, &n); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		c.namespaces.put(strings.TrimPrefix(key, ledger.NamespaceMeta), n)
		return nil
	})
	known := false
	if err == nil {
		_, known, err = c.store.Meta(namespacesKnownKey)
	}
	if known {
		c.namespaces.markComplete()
	}
	return ledger.StoreError(err, "load namespaces")
}

// ForgetNamespaces empties the table: labels without an informer become untrue, and what
// was to be delivered for changes of them is not. None of the present watches needs them.
func (b Barrier) ForgetNamespaces(watches []plan.Watch) error {
	c := b.g.c
	batch := c.store.NewBatch()
	defer batch.Discard()
	batch.DeleteMeta(namespacesKnownKey)
	var err error
	for _, prefix := range [...]string{ledger.NamespaceMeta, relabelMeta, aheadMeta, carriedMeta, unjudgedMeta} {
		err = errors.Join(err, c.store.ScanMeta(prefix, func(key string, _ []byte) error {
			batch.DeleteMeta(key)
			return nil
		}))
	}
	if err == nil {
		err = c.oweLabels(batch, watches)
	}
	if err == nil {
		err = c.store.Commit(batch)
	}
	if err != nil {
		return ledger.StoreError(err, "delete namespaces")
	}
	c.namespaces.clear()
	clear(c.relabels)
	clear(c.carried)
	clear(c.unjudged)
	clear(c.ungiven)
	for _, j := range b.g.jobs {
		if j, ok := j.(*snapshot); ok && j.was != nil && j.was.byLabels() {
			j.was = &formerly{} // by other labels it would leave out what was not given
		}
	}
	return nil
}

// NamespacesReady reports whether the labels of all namespaces are known.
func (c *Committer) NamespacesReady() bool { return c.namespaces.ready() }

// NamespacesKnown gets a value when the labels of all namespaces have become known.
func (c *Committer) NamespacesKnown() <-chan struct{} { return c.namespacesKnown }

// NamespaceLabels returns the labels of a namespace, those it had at last if it is gone.
// ok is false if it is not known. Any goroutine may call it.
func (c *Committer) NamespaceLabels(name string) (labels.Set, bool) { return c.namespaces.labels(name) }
