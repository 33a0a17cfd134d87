package commit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
)

// carried are the former rules of watches that select by the labels of namespaces now, for
// namespaces of which objects are recorded and that were not seen: a namespace was deleted
// before the namespaces were listed, or the watch of namespaces is behind that of the objects.
// The present rules cannot judge those objects, so that the former ones stay in force until
// the labels are known. They are by namespace, and by carriedName.
type carried map[string]map[string]WatchRef

// carriedMeta begins the keys of carried rules: the namespace and the name follow.
const carriedMeta = "carried/"

func carriedName(watch, partition string) string { return watch + "/" + partition }

// loadCarried reads what an earlier life has left.
func (c *Committer) loadCarried() error {
	c.carried = carried{}
	err := c.store.ScanMeta(carriedMeta, func(key string, value []byte) error {
		namespace, name, _ := strings.Cut(strings.TrimPrefix(key, carriedMeta), "/")
		watch, _, _ := strings.Cut(name, "/")
		var rules ledger.Selected
		if err := json.Unmarshal(value, &rules); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		h, err := watchRef(&rules, watch)
		c.carried.add(namespace, name, h)
		return err
	})
	if err != nil {
		return fmt.Errorf("load carried rules: %w", err)
	}
	return nil
}

func (c carried) add(namespace, name string, rules WatchRef) {
	if c[namespace] == nil {
		c[namespace] = map[string]WatchRef{}
	}
	c[namespace][name] = rules
}

// inForce is a watch by the rules that are in force for the objects of a namespace.
func (c *Committer) inForce(s *Feed, h WatchRef, namespace string, nsLabels func(string) (labels.Set, bool)) WatchRef {
	of := c.carried[namespace]
	if len(of) == 0 || !h.byLabels() {
		return h
	}
	former, ok := of[carriedName(h.Watch.Name, s.Partition)]
	if !ok {
		return h
	}
	if _, known := nsLabels(namespace); known {
		return h
	}
	w := *h.Watch
	w.Filter = former.Watch.Filter
	return WatchRef{Watch: &w, namespaces: former.namespaces}
}

// carry has watches that select by the labels of namespaces from now on keep their former
// rules where they cannot judge, and drops what is carried for other watches than those of a
// state, or of which no object is left.
func (c *Committer) carry(watches []plan.Watch, changed []addedWatch) error {
	b := c.store.NewBatch()
	defer b.Discard()
	for namespace, of := range c.carried {
		for name := range of {
			watch, partition, _ := strings.Cut(name, "/")
			needed := slices.ContainsFunc(watches, func(w plan.Watch) bool { return w.Name == watch && w.Filter.NeedsNamespaces() })
			empty, err := c.ledger.Empty(partition, ledger.Key(namespace, ""))
			if err != nil {
				return err
			}
			if !needed || empty {
				c.drop(b, namespace, name)
			}
		}
	}
	if err := c.dropUnneeded(b, watches); err != nil {
		return err
	}
	for _, a := range changed {
		if a.was != nil && a.watch.byLabels() {
			if err := c.carryOver(b, a); err != nil {
				return err
			}
		}
	}
	return ledger.StoreError(c.store.Commit(b), "carry rules")
}

// carryOver looks at the objects of namespaces whose labels are not known, or not those of all
// objects, or have not been applied to all.
func (c *Committer) carryOver(b *store.Batch, a addedWatch) error {
	s, after := a.feed, ""
	look := func(key string, o *compact.Object) error {
		namespace, _, _ := strings.Cut(key, "/")
		n, seen := c.namespaces.get(namespace)
		if seen && (!n.Ended.IsZero() || c.relabels[namespace] != nil) {
			if _, judged := c.labelsOf(s, o)(namespace); judged {
				return nil // others may not be
			}
			seen = false
		}
		may := namespace != "" && a.watch.mayCover(namespace)
		if rules := a.was.of(namespace); !seen && may && len(rules) > 0 {
			if was := rules[len(rules)-1]; !was.byLabels() && was.Reads(namespace) {
				name := carriedName(a.watch.Watch.Name, s.Partition)
				c.carried.add(namespace, name, was)
				b.PutMeta(carriedMeta+namespace+"/"+name, ledger.Encode(selectedBy(s, was.Watch)))
			}
		}
		after = namespace + "/\xff" // no name of an object is behind it
		return ledger.ErrEnough
	}
	for {
		more, err := c.ledger.Scan(s.Partition, s.KeyPrefix(), after, look)
		if !more {
			return ledger.IgnoreUnreadable(err)
		}
	}
}

func (c *Committer) drop(b *store.Batch, namespace, name string) {
	b.DeleteMeta(carriedMeta + namespace + "/" + name)
	if delete(c.carried[namespace], name); len(c.carried[namespace]) == 0 {
		delete(c.carried, namespace)
	}
}

// dropCarried drops what is carried for a namespace whose labels have been applied to all
// objects.
func (g *group) dropCarried(namespace string) {
	for name := range g.c.carried[namespace] {
		g.c.drop(g.batch, namespace, name)
	}
}
