package feed

import (
	"fmt"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
)

const (
	// unwatchedMeta and the name of a part of the ledger say since when no source
	// reads it.
	unwatchedMeta = "unwatched/"

	// forgetInterval is how often the ledger is looked through for such parts.
	forgetInterval = 10 * time.Minute

	// leastKept is how long they are kept at least, so that a watch which was removed
	// by mistake can be put back.
	leastKept = time.Hour
)

// forgetUnwatched forgets the recorded states that no watch asks for any more, when
// that has been so for as long as delivered events are kept. A watch that comes back
// before is told what changed meanwhile, deletions included; after that it starts
// like a new one.
//
// What a watch waits for, as the cluster does not serve it at present, is kept.
// Only the owner goroutine calls it.
func (m *Manager) forgetUnwatched() error {
	st := m.currentState()
	if st == nil || m.undiscovered {
		return nil
	}
	partitions, resources := map[string]bool{}, map[string]bool{}
	for _, s := range m.sourceList() {
		partitions[s.partition] = true
		resources[s.key.GVR.GroupResource().String()] = true
	}
	kept := max(st.Store.RetentionMaxAge, leastKept)
	b := m.store.NewBatch()
	defer b.Discard()
	forgotten := map[string]time.Time{}
	for _, p := range m.store.Partitions() {
		since, marked, err := m.unwatchedSince(p)
		if err != nil {
			return err
		}
		resource := resourceOf(p)
		needed := partitions[p] || !resources[resource] && awaits(st, resource)
		switch {
		case needed && marked:
			b.DeleteMeta(unwatchedMeta + p)
		case !needed && !marked:
			b.PutMeta(unwatchedMeta+p, []byte(m.cfg.Now().UTC().Format(time.RFC3339)))
		case !needed && m.cfg.Now().Sub(since) > kept:
			if err := m.dropCheckpoints(b, p); err != nil {
				return err
			}
			forgotten[p] = since
		}
	}
	// The checkpoints go first: one without the states that belong to it would have a
	// watch resume and miss everything before.
	if err := m.store.Commit(b); err != nil {
		return fmt.Errorf("%w: forget unwatched resources: %w", ErrStore, err)
	}
	for p, since := range forgotten {
		if err := m.store.DeletePartition(p); err != nil {
			return fmt.Errorf("%w: forget %s: %w", ErrStore, p, err)
		}
		m.metrics.forgottenTotal.Inc()
		m.log.Info("recorded states are forgotten, as no watch has read them for longer than events are kept", "feed", p, "unwatchedSince", since)
	}
	return nil
}

func (m *Manager) unwatchedSince(partition string) (since time.Time, marked bool, err error) {
	value, marked, err := m.store.Meta(unwatchedMeta + partition)
	if err != nil {
		return since, false, fmt.Errorf("%w: read %s%s: %w", ErrStore, unwatchedMeta, partition, err)
	}
	if marked {
		if since, err = time.Parse(time.RFC3339, string(value)); err != nil {
			return since, false, fmt.Errorf("%s%s: %w", unwatchedMeta, partition, err)
		}
	}
	return since, marked, nil
}

// dropCheckpoints removes what is remembered besides the states of a partition.
func (m *Manager) dropCheckpoints(b *outbox.Batch, partition string) error {
	b.DeleteMeta(unwatchedMeta + partition)
	err := m.store.ScanMeta(checkpointMeta(partition+"#"), func(key string, _ []byte) error {
		b.DeleteMeta(key)
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: scan checkpoints: %w", ErrStore, err)
	}
	return nil
}

// resourceOf is the group resource that a partition is of; see partitionOf.
func resourceOf(partition string) string {
	if i := strings.IndexAny(partition, "@|"); i >= 0 {
		return partition[:i]
	}
	return partition
}

// awaits reports whether a pattern of a watch could mean the resource.
func awaits(st *plan.State, resource string) bool {
	name, group, _ := strings.Cut(resource, ".")
	for i := range st.Watches {
		for _, pattern := range st.Watches[i].Resources {
			first, rest, more := strings.Cut(pattern, ".")
			if first == name || first == "*" && (!more || rest == group) {
				return true
			}
		}
	}
	return false
}
