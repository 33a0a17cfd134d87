package outbox

import (
	"errors"
	"fmt"

	"github.com/watcherd/watcherd/internal/outbox/layout"
)

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
