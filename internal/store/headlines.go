package store

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// joinedBytes bounds how much headlines are joined to one value.
const joinedBytes = 256 << 10

// ScanHeadlines calls f with the headlines of the records from one sequence to another,
// both included, in order, or from the newest on. One value may have headlines of records
// beyond these. It is valid during the call only. An error of f ends the scan and is
// returned. If headlines are damaged, f gets all others, or those that are newer, and the
// error is ErrUnreadable.
func (s *Store) ScanHeadlines(from, to uint64, newestFirst bool, f func(blocks []byte) error) error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	s.log.mu.Lock()
	from = max(from, s.log.low)
	segment := s.log.marks.segmentOf(to)
	upper := layout.HeadlineKey(^uint64(0))
	if segment >= 0 && segment+1 < len(s.log.marks) { // where the last value ends at the latest
		upper = layout.HeadlineKey(s.log.marks[segment+1].sequence)
	}
	s.log.mu.Unlock()
	if from > to {
		return nil
	}
	lower := layout.HeadlineKey(from)
	damage := s.lostLog.headlinesOf(from, to)
	if newestFirst {
		return errors.Join(s.scanHeadlinesBack(lower, upper, to, f), damage)
	}
	past := false // the value with the last record was seen
	err := salvage.Scan(s.db, lower, upper, func(key, value []byte) error {
		sequence, ok := layout.PositionOfKey(key)
		if past || !ok {
			return errEnough
		}
		past = sequence >= to
		return f(value)
	}, func(lost salvage.LostSpan) error {
		damage = fmt.Errorf("headlines: %w", lost.Err)
		return nil
	})
	return errors.Join(ignore(err, errEnough), damage)
}

func (s *Store) scanHeadlinesBack(lower, upper []byte, to uint64, f func(blocks []byte) error) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return salvage.ReadError(err)
	}
	defer it.Close()
	valid := it.SeekGE(layout.HeadlineKey(to)) // the value with the last record
	if !valid {
		valid = it.Last()
	}
	for ; valid; valid = it.Prev() {
		value, err := it.ValueAndErr()
		if err != nil {
			return salvage.ReadError(err)
		}
		if err := f(value); err != nil {
			return err
		}
	}
	return salvage.ReadError(it.Error())
}

// joinHeadlines joins the headlines of one segment that is complete: commits of few
// records leave many small values. The goroutine of Run calls it.
func (s *Store) joinHeadlines() error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	l := s.log
	l.mu.Lock()
	i := l.marks.segmentFrom(max(l.joined, l.low))
	if i < 0 || i+1 >= len(l.marks) {
		l.mu.Unlock()
		return nil
	}
	from, to := l.marks[i].sequence, l.marks[i+1].sequence
	l.mu.Unlock()
	l.joined = to
	type joined struct{ key, blocks []byte }
	var values []joined
	n := 0
	err := s.scan(layout.HeadlineKey(from), layout.HeadlineKey(to), func(key, value []byte) error {
		n++
		if len(values) == 0 || len(values[len(values)-1].blocks)+len(value) > joinedBytes {
			values = append(values, joined{})
		}
		v := &values[len(values)-1]
		v.key, v.blocks = append(v.key[:0], key...), append(v.blocks, value...)
		return nil
	})
	if errors.Is(err, ErrUnreadable) || err == nil && n == len(values) {
		return nil // what is damaged stays as it is
	}
	if err != nil {
		return err
	}
	b := s.db.NewBatch()
	errs := []error{b.DeleteRange(layout.HeadlineKey(from), layout.HeadlineKey(to), nil)}
	for _, v := range values {
		errs = append(errs, b.Set(v.key, v.blocks, nil))
	}
	return s.applyLazily(b, errs...)
}
