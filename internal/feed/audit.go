package feed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// causeAudit is the cause of the gap that an audit's finding leaves.
const causeAudit = "audit"

const (
	// auditPause is how often the audit looks whether one is due.
	auditPause = time.Second

	// auditPatience is how long the watch may take to catch up with the list that
	// it is compared with. Bookmarks come about once a minute.
	auditPatience = 3 * time.Minute
)

// auditLoop compares the ledger with the cluster, one source after the other, as
// often as the configuration says. API servers do lose watch events now and then
// (kubernetes/kubernetes#123072, etcd-io/etcd#18089); nothing else would notice.
func (m *Manager) auditLoop(ctx context.Context) {
	last := m.cfg.Now()
	jitter := 1 + rand.Float64()/4
	tick := time.NewTicker(auditPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		st := m.currentState()
		if st == nil || !st.Audit.Enabled || m.cfg.Now().Sub(last) < time.Duration(float64(st.Audit.Interval)*jitter) {
			continue
		}
		for _, s := range m.sourceList() {
			if err := m.audit(ctx, s); err != nil && ctx.Err() == nil {
				s.log.Warn("audit did not finish; it is tried again", "error", err)
			}
		}
		last = m.cfg.Now()
		jitter = 1 + rand.Float64()/4
	}
}

// head is what an audit needs to know of an object.
type head struct{ uid, version string }

// audit compares the ledger's entries of one source with a consistent list. If it
// finds a difference that the watch should have told and has not, it has the
// informer list again, whose differences are then delivered as repairs.
func (m *Manager) audit(ctx context.Context, s *source) error {
	sub := s.sub.Load()
	if sub == nil || sub.Status().State != dynamicfactory.StateWatching {
		return nil // not well: that is for the status to say
	}
	cluster := map[string]head{}
	version, err := sub.Heads(ctx, func(o *compact.Meta) error {
		cluster[stateKey(string(o.Namespace), string(o.Name))] = head{string(o.UID), string(o.ResourceVersion)}
		return nil
	})
	if err != nil {
		return err
	}
	found, err := m.differences(s, cluster, version)
	if err != nil || found == 0 {
		return err
	}
	// Most of it is on its way. What is left once the watch has come as far as the
	// list is not.
	if !m.caughtUp(ctx, s, version) {
		return nil
	}
	if found, err = m.differences(s, cluster, version); err != nil || found == 0 {
		return err
	}
	s.log.Warn("the audit found changes that the watch did not tell: listing again, the differences are delivered as repairs", "objects", found)
	sub.Relist(causeAudit)
	return nil
}

// differences counts the objects whose recorded state is older than the list. What
// the ledger knows better, because it changed since the list, is none.
func (m *Manager) differences(s *source, cluster map[string]head, version string) (int, error) {
	n, seen := 0, 0
	err := m.scan(s, func(o *compact.Object) error {
		h, ok := cluster[stateKey(o.GetNamespace(), o.GetName())]
		recorded := o.GetResourceVersion()
		switch {
		case ok && (h == head{string(o.GetUID()), recorded}):
			seen++
		case newer(recorded, version):
			if ok {
				seen++
			}
		default:
			n++ // changed, replaced or gone, by the time of the list
			if ok {
				seen++
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("audit: %w", err)
	}
	return n + len(cluster) - seen, nil
}

// caughtUp waits until everything up to version is committed.
func (m *Manager) caughtUp(ctx context.Context, s *source, version string) bool {
	ctx, cancel := context.WithTimeout(ctx, auditPatience)
	defer cancel()
	tick := time.NewTicker(auditPause)
	defer tick.Stop()
	for {
		if complete := s.complete.Load(); complete != nil && !newer(version, *complete) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.stopped:
			return false
		case <-tick.C:
		}
	}
}

// newer reports whether version a is certainly later than b.
func newer(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c > 0
}
