package store

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// lostStates are the parts of the ledger that repairs have removed. What is not found in them is unreadable until the caller has
// recorded the states again: an object of which the entry is gone would else look like one that was never recorded, and its
// deletion be silent. They are on disk from before the removal.
type lostStates struct {
	mu      sync.Mutex
	ranges  []layout.Range // guarded by mu; each in one partition
	changes int            // guarded by mu; counts those of ranges
	dirty   bool           // guarded by mu; the ranges on disk are others
}

// maxLostStates bounds the ranges: above it, all of a partition is one.
const maxLostStates = 64

// partitionRange is all entries of a partition. Their keys are text, in which no byte is 0xff.
func partitionRange(id uint32) layout.Range {
	lower, _ := layout.StateRange(id, "")
	return layout.Range{Lower: lower, Upper: append(slices.Clip(lower), 0xff)}
}

// add adds the parts of a lost range in partitions.
func (l *lostStates) add(lost layout.Range, partitions []uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range partitions {
		whole := partitionRange(id)
		if !lost.Overlaps(whole.Lower, whole.Upper) {
			continue
		}
		part := layout.Range{Lower: maxKey(lost.Lower, whole.Lower), Upper: minKey(lost.Upper, whole.Upper)}
		if len(l.ranges) >= maxLostStates {
			l.forgetLocked(whole)
			part = whole
		}
		if !slices.ContainsFunc(l.ranges, part.Equal) {
			l.ranges = append(l.ranges, part)
		}
		l.changes++
		l.dirty = true
	}
}

func (l *lostStates) forgetLocked(whole layout.Range) {
	n := len(l.ranges)
	l.ranges = slices.DeleteFunc(l.ranges, func(r layout.Range) bool { return r.Overlaps(whole.Lower, whole.Upper) })
	l.dirty = l.dirty || len(l.ranges) < n
}

func (l *lostStates) forget(partition uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked(partitionRange(partition))
}

// in returns ErrUnreadable if some of [lower, upper) is lost.
func (l *lostStates) in(lower, upper []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.ranges {
		if r.Overlaps(lower, upper) {
			return fmt.Errorf("%w: a damaged block was removed: %v", ErrUnreadable, r)
		}
	}
	return nil
}

// put adds the ranges to a batch, if there are any or were.
func (l *lostStates) put(b *pebble.Batch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	dirty := l.dirty
	l.dirty = false
	switch {
	case len(l.ranges) > 0:
		return b.Set(layout.LostStatesKey(), layout.AppendRanges(nil, l.ranges), nil)
	case dirty:
		return b.Delete(layout.LostStatesKey(), nil)
	default:
		return nil
	}
}

func (s *Store) loadLostStates() error {
	value, ok, err := s.getAtStart(layout.LostStatesKey())
	if err == nil && ok {
		s.lost.ranges, err = layout.ParseRanges(value)
	}
	if errors.Is(err, ErrUnreadable) || errors.Is(err, layout.ErrMalformed) {
		s.loseStates(everything)
		return nil
	}
	return err
}

func (s *Store) loseStates(lost ...layout.Range) {
	ids := s.partitions.ids()
	for _, r := range lost {
		s.lost.add(r, ids)
	}
}

// saveLostStates writes what StatesRestored has changed.
func (s *Store) saveLostStates() error {
	s.lost.mu.Lock()
	dirty := s.lost.dirty
	s.lost.mu.Unlock()
	if !dirty {
		return nil
	}
	b := s.db.NewBatch()
	return s.applyLazily(b, s.lost.put(b))
}

// LostStates returns the names of partitions of which a repair has removed entries, sorted, and what StatesRestored is to be
// given. Until then, a state that is not found there is ErrUnreadable.
func (s *Store) LostStates() (partitions []string, as int) {
	s.lost.mu.Lock()
	as, none := s.lost.changes, len(s.lost.ranges) == 0
	s.lost.mu.Unlock()
	if none {
		return nil, as
	}
	for _, name := range s.Partitions() {
		p := s.partitions.get(name)
		if p == nil {
			continue // deleted a moment ago
		}
		if whole := partitionRange(p.id); s.lost.in(whole.Lower, whole.Upper) != nil {
			partitions = append(partitions, name)
		}
	}
	return partitions, as
}

// StatesRestored ends that of a partition, all existing objects of which are recorded again. If a repair has removed entries
// since LostStates returned as, it does nothing. A crash may undo it.
func (s *Store) StatesRestored(partition string, as int) {
	p := s.partitions.get(partition)
	if p == nil {
		return
	}
	s.lost.mu.Lock()
	defer s.lost.mu.Unlock()
	if s.lost.changes == as {
		s.lost.forgetLocked(partitionRange(p.id))
	}
}

func minKey(a, b []byte) []byte {
	if bytes.Compare(a, b) < 0 {
		return a
	}
	return b
}

func maxKey(a, b []byte) []byte {
	if bytes.Compare(a, b) < 0 {
		return b
	}
	return a
}
