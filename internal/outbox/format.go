package outbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/outbox/layout"
	"github.com/watcherd/watcherd/internal/outbox/salvage"
)

// openError classes an error of opening Pebble or of reading the tables: what
// the operating system refuses is told as it is, all else is damage.
func openError(dir string, err error) error {
	var errno syscall.Errno
	switch {
	case strings.Contains(err.Error(), "unknown format major version"):
		return fmt.Errorf("%s: %w: %w", dir, ErrNewerFormat, err)
	case errors.Is(err, ErrFailed), errors.As(err, &errno) && errno != syscall.ENOENT && !errors.Is(err, ErrUnreadable):
		return fmt.Errorf("open the store %s: %w", dir, err)
	default:
		return fmt.Errorf("%s: %w: %w; no data was removed: `watcherd store check` says what is readable, `watcherd store export` copies it out", dir, ErrDamaged, err)
	}
}

// checkFormat refuses a store in another layout than this release's.
func (s *Store) checkFormat() error {
	value, ok, err := s.get(layout.FormatKey())
	if err != nil {
		return openError(s.dir, err)
	}
	if !ok || len(value) != 4 {
		return openError(s.dir, layout.ErrMalformed)
	}
	v, other := binary.BigEndian.Uint32(value), ErrNewerFormat
	if v == layout.Version {
		return nil
	}
	if v < layout.Version {
		other = ErrOlderFormat
	}
	return fmt.Errorf("%s: %w: its layout is version %d, this release knows %d", s.dir, other, v, layout.Version)
}

// get returns a copy of the value of key.
func (s *Store) get(key []byte) ([]byte, bool, error) { return s.appendGet(nil, key) }

// appendGet appends the value of key to dst. A value whose checksum is wrong is
// ErrUnreadable.
func (s *Store) appendGet(dst, key []byte) ([]byte, bool, error) {
	value, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return dst, false, nil
	}
	if err != nil {
		return dst, false, salvage.ReadError(err)
	}
	dst = append(dst, value...)
	return dst, true, closer.Close()
}

func (s *Store) counter(kind byte, id uint32) (layout.Counter, error) {
	value, ok, err := s.get(layout.CounterKey(kind, id))
	if err != nil || !ok {
		return layout.Counter{}, err
	}
	c, err := layout.ParseCounter(value)
	if err != nil {
		return layout.Counter{}, fmt.Errorf("%w: %w", layout.ErrMalformed, err)
	}
	return c, nil
}
