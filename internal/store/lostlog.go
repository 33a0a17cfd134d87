package store

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// lostLog is what repairs have removed of the log and of its headlines, until retention removes what is around it: it is
// unreadable for who reads there, as damage that is still there. It is on disk from before the removal, in a file if writes are blocked
// then, in this directory alone: the others of a journal have the records.
type lostLog struct {
	mu        sync.Mutex
	records   []sequences // guarded by mu; in order
	headlines []sequences // guarded by mu
}

// sequences are those from first to last.
type sequences struct{ first, last uint64 }

// add adds what ranges have of a log, and reports whether that is anything.
func (l *lostLog) add(log sequences, lost ...layout.Range) (some bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for prefix, list := range map[byte]*[]sequences{layout.PrefixLog: &l.records, layout.PrefixHeadline: &l.headlines} {
		*list = slices.DeleteFunc(*list, func(s sequences) bool { return s.last < log.first })
		for _, r := range lost {
			first, last, ok := r.Sequences(prefix)
			s := sequences{max(first, log.first), min(last, log.last)}
			if ok && s.first <= s.last && !slices.Contains(*list, s) {
				*list, some = append(*list, s), true
			}
		}
		slices.SortFunc(*list, func(a, b sequences) int { return cmp.Compare(a.first, b.first) })
	}
	return some
}

func (l *lostLog) value() (value []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.records {
		value = layout.AppendRanges(value, []layout.Range{{Lower: layout.AppendLogKey(nil, s.first), Upper: layout.AppendLogKey(nil, s.last)}})
	}
	for _, s := range l.headlines {
		value = layout.AppendRanges(value, []layout.Range{{Lower: layout.HeadlineKey(s.first), Upper: layout.HeadlineKey(s.last)}})
	}
	return value
}

// headlinesOf returns ErrUnreadable if headlines of records from one sequence to another are lost.
func (l *lostLog) headlinesOf(from, to uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.headlines {
		if s.first <= to && from <= s.last {
			return fmt.Errorf("%w: a damaged block was removed: headlines from %d up to %d", ErrUnreadable, s.first, s.last)
		}
	}
	return nil
}

// loseLog notes what a repair removes of the log.
func (s *Store) loseLog(lost ...layout.Range) error {
	log := s.LogStats()
	here := layout.LostLogKey()
	if !s.lostLog.add(sequences{log.First, log.Last}, lost...) && !slices.ContainsFunc(lost, func(r layout.Range) bool { return r.Overlaps(here, append(here, 0)) }) {
		return nil
	}
	return s.saveLostLog()
}

func (s *Store) saveLostLog() error {
	return s.within(nil, func() error {
		b := s.db.NewBatch()
		return errors.Join(b.Set(layout.LostLogKey(), s.lostLog.value(), nil), s.applyNow(b, pebble.Sync), b.Close())
	})
}

func (s *Store) loadLostLog() error {
	value, ok, err := s.getAtStart(layout.LostLogKey())
	if err != nil || !ok {
		return ignore(err, ErrUnreadable)
	}
	lost, err := layout.ParseRanges(value)
	s.lostLog.add(sequences{s.log.low, math.MaxUint64}, lost...)
	return ignore(err, layout.ErrMalformed)
}

// lostAfter returns the first run of lost records that ends behind a sequence, up to the first record behind it that there is.
func (s *Store) lostAfter(after uint64) (run sequences, ok bool, err error) {
	s.lostLog.mu.Lock()
	runs := slices.Clone(s.lostLog.records)
	s.lostLog.mu.Unlock()
	low := s.LogStats().First
	for _, run := range runs {
		if run.first = max(run.first, low); run.last <= after || run.last < run.first {
			continue
		}
		// The first may be the last one of the block before.
		if _, ok, err := s.recordAt(run.first); ok {
			run.first++
		} else if ignore(err, ErrUnreadable) != nil {
			return run, false, err
		}
		next, ok, err := s.nextReadable(layout.AppendLogKey(nil, run.first), layout.AppendLogKey(nil, math.MaxUint64))
		if err != nil {
			return run, false, err
		}
		if ok {
			run.last = min(run.last, next-1)
		}
		if run.first <= run.last && after < run.last {
			return run, true, nil
		}
	}
	return sequences{}, false, nil
}
