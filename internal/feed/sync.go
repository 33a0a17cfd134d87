package feed

import (
	"strings"

	"github.com/watcherd/watcherd/pkg/compact"
)

// sourceSynced handles the end of a source's initial list: every object of the
// list is before this in the queue.
func (g *group) sourceSynced(c *change) error {
	s := c.src
	g.touched[s] = struct{}{}
	if !s.warm {
		if err := g.sweep(c); err != nil {
			return err
		}
	}
	s.synced, s.handed = true, nil
	s.log.Info("watch synced", "objects", s.objects(), "fromLedger", s.warm)
	return nil
}

// sweep finds the deletions that an informer which started from nothing cannot
// see: objects that the ledger has in the source's scope and the cluster has not.
// An informer that started from the ledger finds them itself.
func (g *group) sweep(c *change) error {
	s := c.src
	sub := s.sub.Load()
	if sub == nil {
		return nil
	}
	exists := sub.Informer().GetStore()
	var missing []*compact.Object
	err := g.m.scan(s, func(o *compact.Object) error {
		key := strings.TrimPrefix(stateKey(o.GetNamespace(), o.GetName()), "/")
		_, found, err := exists.GetByKey(key)
		if err != nil {
			return err
		}
		if !found {
			missing = append(missing, o)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, o := range missing {
		gone := change{src: s, kind: objectDeleted, obj: o, unknown: true, at: c.at}
		if err := g.gone(&gone); err != nil {
			return err
		}
	}
	return nil
}

// objects is the number of objects in the source's cache.
func (s *source) objects() int {
	sub := s.sub.Load()
	if sub == nil {
		return 0
	}
	return len(sub.Informer().GetStore().ListKeys())
}
