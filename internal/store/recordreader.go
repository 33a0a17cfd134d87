package store

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// recordReader reads log records with one iterator: for a queue that takes most
// records, stepping is several times cheaper than a lookup each.
type recordReader struct {
	it  *pebble.Iterator
	key []byte
}

// newRecordReader reads no record below low. The caller closes it.
func (s *Store) newRecordReader(low uint64) (*recordReader, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: layout.AppendLogKey(nil, low),
		UpperBound: layout.AppendLogKey(nil, ^uint64(0)),
	})
	if err != nil {
		return nil, salvage.ReadError(err)
	}
	return &recordReader{it: it, key: make([]byte, 0, layout.LogKeyLen)}, nil
}

func (r *recordReader) close() { _ = r.it.Close() } // its error was seen while reading

// next returns the first record from sequence from up to and including last.
// The value is valid until the next call.
func (r *recordReader) next(from, last uint64) (uint64, layout.LogRecord, bool, error) {
	if at, ok := r.position(); ok && at < from && from-at <= 2 {
		// Usually the very next one.
		r.it.Next()
	}
	if at, ok := r.position(); !ok || at < from {
		r.key = layout.AppendLogKey(r.key[:0], from)
		r.it.SeekGE(r.key)
	}
	at, ok := r.position()
	if !ok || at > last {
		return 0, layout.LogRecord{}, false, salvage.ReadError(r.it.Error())
	}
	raw, err := r.it.ValueAndErr()
	if err != nil {
		return 0, layout.LogRecord{}, false, salvage.ReadError(err)
	}
	value, err := layout.ParseLogRecord(raw)
	if err != nil {
		return 0, layout.LogRecord{}, false, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return at, value, true, nil
}

// exact returns the record with this sequence.
func (r *recordReader) exact(sequence uint64) (layout.LogRecord, bool, error) {
	if at, ok := r.position(); ok && at > sequence {
		r.key = layout.AppendLogKey(r.key[:0], sequence)
		r.it.SeekGE(r.key)
	}
	_, value, ok, err := r.next(sequence, sequence)
	return value, ok, err
}

func (r *recordReader) position() (uint64, bool) {
	if !r.it.Valid() {
		return 0, false
	}
	return layout.PositionOfKey(r.it.Key())
}

// recordFinder reads the log records of queue entries, mostly in order.
type recordFinder struct {
	s       *Store
	log     *recordReader // nil at the beginning and after damage
	damaged bool          // the last record could not be read
}

// find returns a record; the payload is valid until the next call. The error is
// ErrUnreadable also for a record that is not there, which cannot come back.
func (f *recordFinder) find(sequence uint64) (layout.LogRecord, error) {
	if err := f.s.log.damage.at(sequence); err != nil {
		return layout.LogRecord{}, err
	}
	if !f.damaged {
		value, ok, err := f.iterate(sequence)
		if err == nil && ok {
			return value, nil
		}
	}
	// The iterator may have failed on a neighbour in the same block or file.
	value, ok, err := f.s.recordAt(sequence)
	switch {
	case err == nil && !ok:
		err = fmt.Errorf("%w: record %d is missing", ErrUnreadable, sequence)
	case errors.Is(err, ErrUnreadable):
		err = f.s.noteDamage(sequence, err)
	}
	// Try the iterator again only when the damage is over.
	f.damaged = err != nil
	return value, err
}

func (f *recordFinder) iterate(sequence uint64) (layout.LogRecord, bool, error) {
	if f.log == nil {
		var err error
		if f.log, err = f.s.newRecordReader(0); err != nil {
			return layout.LogRecord{}, false, err
		}
	}
	value, ok, err := f.log.exact(sequence)
	if err != nil {
		f.close()
	}
	return value, ok, err
}

func (f *recordFinder) close() {
	if f.log != nil {
		f.log.close()
		f.log = nil
	}
}
