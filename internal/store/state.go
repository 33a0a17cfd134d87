package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// partition is a part of the ledger with a name; on disk it is a small number.
type partition struct {
	name    string
	id      uint32
	written atomic.Bool // a batch with its name is being committed, or was: its entries may be read
	saved   atomic.Bool // its name is on disk
}

type partitionTable struct {
	mu     sync.Mutex
	byName map[string]*partition // guarded by mu
	lastID uint32                // guarded by mu
}

func (t *partitionTable) get(name string) *partition {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byName[name]
}

func (t *partitionTable) ensure(name string) *partition {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.byName[name]
	if p == nil {
		t.lastID++
		p = &partition{name: name, id: t.lastID}
		t.byName[name] = p
	}
	return p
}

func (t *partitionTable) ids() (ids []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.byName {
		ids = append(ids, p.id)
	}
	return ids
}

func (s *Store) loadPartitions() (*partitionTable, error) {
	t := &partitionTable{byName: make(map[string]*partition)}
	err := s.scanNames(layout.KindPartition, func(name string, id uint32, _ []byte) error {
		p := &partition{name: name, id: id}
		p.written.Store(true)
		p.saved.Store(true)
		t.byName[name] = p
		t.lastID = max(t.lastID, id)
		return nil
	})
	return t, err
}

// scanNames calls f for every name of a kind, with what follows its number.
func (s *Store) scanNames(kind byte, f func(name string, id uint32, rest []byte) error) error {
	lower := layout.NameKey(kind, "")
	return s.scan(lower, layout.Successor(lower), func(key, value []byte) error {
		if len(value) < 4 {
			return layout.Malformed(key)
		}
		return f(string(key[len(lower):]), binary.BigEndian.Uint32(value), value[4:])
	})
}

// scan calls f for every key in [lower, upper); key and value are valid during
// the call only.
func (s *Store) scan(lower, upper []byte, f func(key, value []byte) error) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return salvage.ReadError(err)
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return salvage.ReadError(err)
		}
		if err := f(it.Key(), value); err != nil {
			return err
		}
	}
	return salvage.ReadError(it.Error())
}

// State appends the ledger entry of key to dst and returns the extended slice;
// false if there is none. It sees every batch whose Commit has returned. The
// error is ErrUnreadable if the entry is damaged, or may be among those that a repair has removed (see [Store.LostStates]).
func (s *Store) State(partition, key string, dst []byte) ([]byte, bool, error) {
	if err := s.use(); err != nil {
		return dst, false, err
	}
	defer s.life.leave()
	p := s.partitions.get(partition)
	if p == nil {
		return dst, false, nil
	}
	var buf [96]byte
	at := layout.AppendStateKey(buf[:0], p.id, key)
	dst, ok, err := s.appendGet(dst, at)
	if err != nil {
		s.damaged.report(err)
	}
	if err == nil && !ok {
		err = s.lost.in(at, append(at, 0))
	}
	return dst, ok, err
}

// ScanState calls f for every ledger entry of the partition whose key begins
// with prefix, as of the moment of the call, in the order of keys. The value is
// valid during the call only. An error of f ends the scan and is returned.
//
// If parts of the ledger are unreadable, f gets everything else, and the error at
// the end is ErrUnreadable, joined with f's if that ended the scan.
func (s *Store) ScanState(partition, prefix string, f func(key string, value []byte) error) error {
	return s.ScanStateAfter(partition, prefix, "", f)
}

// ScanStateAfter is ScanState of the entries whose keys sort after a key, for a scan
// that is done in parts. An empty key is before all.
func (s *Store) ScanStateAfter(partition, prefix, after string, f func(key string, value []byte) error) error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	p := s.partitions.get(partition)
	if p == nil {
		return nil
	}
	lower, upper := layout.StateRange(p.id, prefix)
	name := len(lower) - len(prefix)
	if next := append(layout.AppendStateKey(nil, p.id, after), 0); after != "" && bytes.Compare(next, lower) > 0 {
		lower = next
	}
	looked := upper
	err := s.scanReadable("ledger partition "+partition, lower, upper, func(key, value []byte) error {
		err := f(string(key[name:]), value)
		if err != nil {
			looked = bytes.Clone(key)
		}
		return err
	})
	return errors.Join(err, s.lost.in(lower, looked))
}

// scanReadable is scan of everything that is readable, with an error at the end that names
// what, if there is more.
func (s *Store) scanReadable(what string, lower, upper []byte, f func(key, value []byte) error) error {
	var damage error
	err := salvage.Scan(s.db, lower, upper, f, func(lost salvage.LostSpan) error {
		damage = fmt.Errorf("%s: %w", what, lost.Err)
		return nil
	})
	if damage == nil {
		return err
	}
	return errors.Join(err, damage)
}

// Partitions returns the names of the ledger's partitions, sorted: of all that have entries, also those that are not durable yet.
func (s *Store) Partitions() []string {
	t := s.partitions
	t.mu.Lock()
	defer t.mu.Unlock()
	names := slices.Sorted(maps.Keys(t.byName))
	return slices.DeleteFunc(names, func(name string) bool { return !t.byName[name].written.Load() })
}

// DeletePartition removes a partition with all its entries, durably. No batch
// that touches it may be in progress.
func (s *Store) DeletePartition(name string) error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	p := s.partitions.get(name)
	if p == nil || !p.saved.Load() {
		return nil
	}
	lower, upper := layout.StateRange(p.id, "")
	b := s.db.NewBatch()
	err := s.apply(b, pebble.Sync, b.DeleteRange(lower, upper, nil), b.Delete(layout.NameKey(layout.KindPartition, name), nil))
	if err != nil {
		return err
	}
	s.lost.forget(p.id)
	s.partitions.mu.Lock()
	defer s.partitions.mu.Unlock()
	delete(s.partitions.byName, name)
	return nil
}

// Meta returns a copy of a value of the caller's metadata.
func (s *Store) Meta(key string) ([]byte, bool, error) {
	if err := s.use(); err != nil {
		return nil, false, err
	}
	defer s.life.leave()
	return s.get(layout.MetaKey(key))
}

// ScanMeta calls f for every metadata value whose key begins with prefix, in
// the order of keys. The value is valid during the call only. Damage is as in [Store.ScanState].
func (s *Store) ScanMeta(prefix string, f func(key string, value []byte) error) error {
	return s.ScanMetaFrom(prefix, "", f)
}

// ScanMetaFrom is ScanMeta of the keys that do not sort before the prefix followed by from.
func (s *Store) ScanMetaFrom(prefix, from string, f func(key string, value []byte) error) error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	return s.scanReadable("metadata "+prefix, layout.MetaKey(prefix+from), layout.Successor(layout.MetaKey(prefix)), func(key, value []byte) error {
		return f(string(key[1:]), value)
	})
}
