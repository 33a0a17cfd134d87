package pipeline

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
)

const (
	// forgetInterval is how often the ledger is looked through for such parts.
	forgetInterval = 10 * time.Minute

	// leastKept is how long they are kept at least, so that a watch which was removed
	// by mistake can return.
	leastKept = time.Hour

	// forgetBatch is how many states are removed at a time.
	forgetBatch = 1000
)

// forgetUnwatched expires the recorded states that no watch asks for any more, when
// that has been so for as long as delivered events are kept. A watch that comes back
// before is given what changed meanwhile, deletions included; after that it starts
// like a new one.
//
// What a watch waits for, as the cluster does not serve it at present, is kept.
// Only the owner goroutine calls it.
func (m *Manager) forgetUnwatched() error {
	st := m.currentState()
	if st == nil || m.undiscovered {
		return nil
	}
	if err := m.markUnwatched(st); err != nil {
		return err
	}
	return m.expireUnwatched(st)
}

// markUnwatched notes since when parts of the ledger are unwatched, and removes the
// notes of those that are watched again. Before resources are discovered it only removes:
// what no watch matches is not known then.
func (m *Manager) markUnwatched(st *plan.State) error {
	running := m.runningIn()
	b := m.store.NewBatch()
	defer b.Discard()
	now := noteTime(m.cfg.Now())
	parts, err := m.parts()
	if err != nil {
		return err
	}
	for _, p := range parts {
		namespaces, needed := m.wantedOf(st, p)
		for ns := range running[p] {
			needed = true
			namespaces[ns] = true
		}
		_, marked, err := m.unwatchedSince(ledger.UnwatchedMeta + p)
		if err != nil {
			return err
		}
		switch {
		case needed && marked:
			b.DeleteMeta(ledger.UnwatchedMeta + p)
		case !needed && !marked && !m.undiscovered:
			b.PutMeta(ledger.UnwatchedMeta+p, now)
		}
		if needed {
			if err := m.markNamespaces(b, p, namespaces, now); err != nil {
				return err
			}
		}
	}
	return ledger.StoreError(m.store.Commit(b), "note unwatched resources")
}

// parts are the parts of the ledger, with those that have a checkpoint alone, as no object was recorded, or
// a note alone, as their removal was interrupted.
func (m *Manager) parts() ([]string, error) {
	parts := m.store.Partitions()
	err := m.store.ScanMeta(ledger.UnwatchedMeta, func(key string, _ []byte) error {
		parts = append(parts, strings.TrimPrefix(key, ledger.UnwatchedMeta))
		return nil
	})
	if ledger.IgnoreUnreadable(err) != nil {
		return nil, ledger.StoreError(err, "scan notes of unwatched resources")
	}
	err = m.ledger.Checkpoints(func(feed string, _ ledger.Checkpoint) error {
		p, _ := ledger.SplitFeed(feed)
		parts = append(parts, p)
		return nil
	})
	slices.Sort(parts)
	return slices.Compact(parts), ledger.IgnoreUnreadable(err)
}

// markNamespaces is markUnwatched for the namespaces of a part that is watched in
// some; "" among them stands for all.
func (m *Manager) markNamespaces(b *store.Batch, partition string, watched map[string]bool, now []byte) error {
	all := ledger.FeedID(partition, "")
	unwatched := map[string]bool{}
	if !watched[""] {
		unwatched[all] = true
		ids, err := m.ledger.FeedIDs(ledger.CheckpointMeta(all))
		if ledger.IgnoreUnreadable(err) != nil {
			return err
		}
		for id := range ids {
			unwatched[id] = !watched[strings.TrimPrefix(id, all)]
		}
	}
	marked, err := m.ledger.FeedIDs(ledger.UnwatchedInMeta + all)
	if ledger.IgnoreUnreadable(err) != nil {
		return err
	}
	for id := range marked {
		if !unwatched[id] {
			b.DeleteMeta(ledger.UnwatchedInMeta + id)
		}
	}
	for id, is := range unwatched {
		if is && !marked[id] && !m.undiscovered {
			b.PutMeta(ledger.UnwatchedInMeta+id, now)
		}
	}
	return nil
}

// runningIn are the namespaces of the running feeds, by part of the ledger.
func (m *Manager) runningIn() map[string]map[string]bool {
	running := map[string]map[string]bool{}
	for _, s := range m.informerList() {
		if running[s.Partition] == nil {
			running[s.Partition] = map[string]bool{}
		}
		running[s.Partition][s.Key.Namespace] = true
	}
	return running
}

// expireUnwatched removes what has been unwatched for too long and no feed reads.
// It goes by the notes alone: what a watch is about to ask for again is removed too
// if it comes too late.
func (m *Manager) expireUnwatched(st *plan.State) error {
	kept := max(st.Store.RetentionMaxAge, leastKept)
	running := m.runningIn()
	parts, err := m.parts()
	if err != nil {
		return err
	}
	for _, p := range parts {
		since, late, err := m.expired(ledger.UnwatchedMeta+p, kept)
		switch {
		case err != nil:
			return err
		case late && running[p] == nil:
			err := m.dropPartition(p, since)
			if errors.Is(err, store.ErrUnreadable) {
				continue // it stays until that is repaired
			}
			if err != nil {
				return err
			}
			m.metrics.forgottenTotal.Inc()
			m.log.Info("recorded states expired, as no watch has read them for longer than events are kept", "feed", p, "unwatchedSince", since)
		case running[p][""]:
		default:
			if err := m.expireNamespaces(p, running[p], kept); ledger.IgnoreUnreadable(err) != nil {
				return err
			}
		}
	}
	return nil
}

// expireNamespaces removes the states of namespaces that have been unwatched for too
// long. running are those that are watched.
func (m *Manager) expireNamespaces(partition string, running map[string]bool, kept time.Duration) error {
	all := ledger.FeedID(partition, "")
	ids, err := m.ledger.FeedIDs(ledger.UnwatchedInMeta + all)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return nil
	}
	own, err := m.ledger.FeedIDs(ledger.CheckpointMeta(all))
	if err != nil {
		return err
	}
	given, err := m.ledger.Selections()
	if err != nil {
		return err
	}
	for id := range ids {
		ns := strings.TrimPrefix(id, all)
		since, late, err := m.expired(ledger.UnwatchedInMeta+id, kept)
		if err != nil {
			return err
		}
		if !late || running[ns] {
			continue
		}
		prefix, gone := ledger.Key(ns, ""), func(string) bool { return true }
		if ns == "" {
			prefix, gone = "", func(in string) bool { return in != "" && !running[in] && !own[all+in] }
		}
		if err := m.dropCheckpoints(partition, ledger.ExpiredMeta+id, since, id, all); err != nil { // all: or a watch of the namespace resumes by it
			return err
		}
		n, err := m.deleteStates(partition, prefix, gone)
		if err != nil {
			return err
		}
		in := func(namespace string) bool { return namespace == ns || ns == "" && gone(namespace) }
		if err := m.expireNotes(partition, in); err != nil {
			return err
		}
		b := m.store.NewBatch()
		b.DeleteMeta(ledger.UnwatchedInMeta + id)
		ledger.DropSelections(b, id, given[id])
		if err := m.store.Commit(b); err != nil {
			return ledger.StoreError(err, "expire %s", id)
		}
		if n > 0 {
			m.metrics.forgottenTotal.Inc()
			m.log.Info("recorded states expired, as no watch has read their namespace for longer than events are kept", "feed", id, "objects", n, "unwatchedSince", since)
		}
	}
	return nil
}

// deleteStates removes the states whose keys begin with prefix and whose namespaces
// are gone, and returns their number. Those that cannot be read stay.
func (m *Manager) deleteStates(partition, prefix string, gone func(namespace string) bool) (n int, err error) {
	b := m.store.NewBatch()
	defer func() { b.Discard() }()
	inBatch := 0
	var failed error // of a commit
	err = m.store.ScanState(partition, prefix, func(key string, _ []byte) error {
		if ns, _, _ := strings.Cut(key, "/"); !gone(ns) {
			return nil
		}
		b.DeleteState(partition, key)
		n++
		if inBatch++; inBatch < forgetBatch {
			return nil
		}
		inBatch = 0
		failed = m.store.Commit(b)
		b = m.store.NewBatch()
		return failed
	})
	if err = errors.Join(failed, ledger.IgnoreUnreadable(err)); err == nil {
		err = m.store.Commit(b)
	}
	if err != nil && !errors.Is(err, ledger.ErrStore) {
		err = ledger.StoreError(err, "expire states of %s", partition)
	}
	return n, err
}

// expireNotes removes what the committer notes of namespaces of a part of the ledger.
func (m *Manager) expireNotes(partition string, in func(namespace string) bool) error {
	var err error
	ended := m.committer.AtBarrier(func(b commit.Barrier) { err = b.Expire(partition, in) })
	return errors.Join(ended, err)
}

// dropCheckpoints removes checkpoints of a part of the ledger whose states are about to be deleted: one without
// the states that belong to it would have a watch resume and miss everything before. The notes by which
// the states are deleted, and those of what watches were given of them, go after the states: what a crash
// leaves is deleted by the next look, or is as it was. Under the key the history finds up to when
// the states were read, if that time is not zero.
func (m *Manager) dropCheckpoints(partition, key string, since time.Time, ids ...string) error {
	b := m.store.NewBatch()
	defer b.Discard()
	if !since.IsZero() {
		b.PutMeta(key, noteTime(ledger.ExpiredAt(since)))
	}
	for _, id := range ids {
		b.DeleteMeta(ledger.CheckpointMeta(id))
	}
	return ledger.StoreError(m.store.Commit(b), "expire %s", partition)
}

// dropPartition removes a part of the ledger, which was unwatched since a time, and all that is noted of it. If that is zero, it is
// after a farewell, of which the checkpoint has no version, and stays.
func (m *Manager) dropPartition(partition string, since time.Time) error {
	all := ledger.FeedID(partition, "")
	checkpoints, err := m.ledger.FeedIDs(ledger.CheckpointMeta(all))
	if err != nil {
		return err
	}
	if since.IsZero() {
		delete(checkpoints, all)
	}
	if err := m.dropCheckpoints(partition, ledger.ExpiredMeta+all, since, slices.Collect(maps.Keys(checkpoints))...); err != nil {
		return err
	}
	if err := m.expireNotes(partition, func(string) bool { return true }); err != nil {
		return err
	}
	if err := m.store.DeletePartition(partition); err != nil {
		return ledger.StoreError(err, "expire %s", partition)
	}
	b := m.store.NewBatch()
	defer b.Discard()
	b.DeleteMeta(ledger.UnwatchedMeta + partition)
	b.DeleteMeta(unservedMeta + partition)
	b.DeleteMeta(definedMeta + partition)
	b.DeleteMeta(ledger.FarewellMeta + partition)
	for _, notes := range [...]string{ledger.UnwatchedInMeta, checkedMeta} {
		ids, err := m.ledger.FeedIDs(notes + all)
		if err != nil {
			return err
		}
		for id := range ids {
			b.DeleteMeta(notes + id)
		}
	}
	given, err := m.ledger.Selections()
	if err != nil {
		return err
	}
	for id, watches := range given {
		if strings.HasPrefix(id, all) {
			ledger.DropSelections(b, id, watches)
		}
	}
	return ledger.StoreError(m.store.Commit(b), "expire %s", partition)
}

// expired reports whether a note is older than kept, by the clock of what expires.
func (m *Manager) expired(key string, kept time.Duration) (since time.Time, late bool, err error) {
	since, marked, err := m.unwatchedSince(key)
	return since, marked && m.store.Age().Sub(since) > kept, err
}

// unwatchedSince reads a note. The time begins again with one that is damaged.
func (m *Manager) unwatchedSince(key string) (since time.Time, marked bool, err error) {
	value, marked, err := m.store.Meta(key)
	if err == nil && marked {
		since, err = time.Parse(time.RFC3339, string(value))
	}
	if err == nil {
		return since, marked, nil
	}
	m.log.Error("a note of the store is damaged: the time that it keeps begins again", "note", key, "error", err)
	since = m.cfg.Now()
	if err := ledger.PutMeta(m.store, key, noteTime(since)); err != nil {
		return since, true, ledger.StoreError(err, "write %s", key)
	}
	return since, true, nil
}

func noteTime(t time.Time) []byte { return []byte(t.UTC().Format(time.RFC3339)) }
