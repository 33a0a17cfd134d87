package store

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// Dump writes all keys and values of the store as of one moment, for [Seed], and returns the position of that moment.
// What was deleted or overwritten before is not part of it. It fails at damage, and with ErrRepairing as long as the store
// counts what a repair has removed: the repair ends here, and not in a directory that is made of the dump. What is deleted meanwhile takes room
// until it returns, and Close waits for it.
func (s *Store) Dump(ctx context.Context, w io.Writer) (p Position, err error) {
	if err := s.use(); err != nil {
		return p, err
	}
	defer s.life.leave()
	buffered := bufio.NewWriterSize(w, 64<<10)
	sum := xxhash.New()
	both := io.MultiWriter(buffered, sum)
	repairs, err := s.files.Repairs()
	if err != nil {
		return p, fmt.Errorf("dump the store: %w", err)
	}
	keys, err := dump(ctx, s.db, func(key, value []byte) error {
		switch key[0] {
		case layout.PrefixRepair:
			if len(key) == len(layout.RepairKey()) {
				return ErrRepairing
			}
		case layout.PrefixJournal:
			var err error
			if p, err = layout.ParsePosition(value); err != nil {
				return fmt.Errorf("%w: %w", ErrUnreadable, err)
			}
		}
		return writePair(both, key, value)
	})
	if now, _ := s.files.Repairs(); err == nil && now != repairs {
		err = ErrRepairing
	}
	if err == nil {
		err = errors.Join(dumpEnd{keys, sum.Sum64()}.write(buffered), buffered.Flush())
	}
	if err == nil {
		err = s.Err() // what was read may be of what was never written
	}
	if err != nil {
		return Position{}, fmt.Errorf("dump the store: %w", err)
	}
	return p, nil
}

func dump(ctx context.Context, db *pebble.DB, write func(key, value []byte) error) (keys uint64, err error) {
	it, err := db.NewIterWithContext(ctx, nil)
	if err != nil {
		return 0, err
	}
	for it.First(); it.Valid() && err == nil; it.Next() {
		var value []byte
		if value, err = it.ValueAndErr(); err == nil {
			err = write(it.Key(), value)
		}
		if keys++; keys%1024 == 0 && err == nil {
			err = ctx.Err()
		}
	}
	if err == nil {
		err = salvage.ReadError(it.Error())
	}
	return keys, errors.Join(err, it.Close())
}

// writePair writes a key and its value, each behind its length. Keys are not empty.
func writePair(w io.Writer, key, value []byte) error {
	var head [2 * binary.MaxVarintLen64]byte
	lengths := binary.AppendUvarint(binary.AppendUvarint(head[:0], uint64(len(key))), uint64(len(value)))
	for _, part := range [][]byte{lengths, key, value} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// dumpEnd follows the last pair: an empty key, the number of keys, and the checksum of all pairs as they were written.
type dumpEnd struct{ keys, sum uint64 }

func (e dumpEnd) write(w io.Writer) error {
	_, err := w.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64([]byte{0}, e.keys), e.sum))
	return err
}

// Seed replaces the contents of a store, that no process uses, by what [Store.Dump] has written, which must be as of want, and
// have what was has. It compares the checksum with what it reads from the disk. A failure, or a crash at any moment, leaves the contents
// of before or all of the new; the next Open removes the rest. See [Open] for other errors.
func Seed(ctx context.Context, dir string, o Options, r io.Reader, want Position, was Past) (err error) {
	o.Registerer, o.Journal = nil, nil
	s, err := newStore(dir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.files.Close()) }()
	if err := s.files.Take(); err != nil {
		return err
	}
	options := s.pebbleOptions()
	options.DisableWAL = true // a crash begins it again
	err = s.files.Replace(options, func(db *pebble.DB) error {
		end, err := readPairs(ctx, db, bufio.NewReaderSize(r, 64<<10))
		if err == nil {
			err = db.Flush()
		}
		if err == nil {
			err = verifySeed(ctx, db, end, want, was)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("seed the store %s: %w", dir, s.files.FullError(err))
	}
	return nil
}

// seedBatch is the size of the batches of a store that is seeded.
const seedBatch = 1 << 20

func readPairs(ctx context.Context, db *pebble.DB, r *bufio.Reader) (end dumpEnd, err error) {
	b := db.NewBatch()
	defer func() { err = errors.Join(err, b.Close()) }()
	for {
		if err := ctx.Err(); err != nil {
			return end, err
		}
		key, err := binary.ReadUvarint(r)
		if err != nil {
			return end, seedError(err)
		}
		if key == 0 {
			break
		}
		value, err := binary.ReadUvarint(r)
		if err != nil {
			return end, seedError(err)
		}
		if key > math.MaxUint16 || value > seedValue {
			return end, fmt.Errorf("%w: a key of %d bytes with a value of %d", ErrSeed, key, value)
		}
		op := b.SetDeferred(int(key), int(value))
		for _, part := range [][]byte{op.Key, op.Value} {
			if _, err := io.ReadFull(r, part); err != nil {
				return end, seedError(err)
			}
		}
		if err := op.Finish(); err != nil {
			return end, err
		}
		if b.Len() < seedBatch {
			continue
		}
		if err := db.Apply(b, pebble.NoSync); err != nil {
			return end, err
		}
		if err := b.Close(); err != nil {
			return end, err
		}
		b = db.NewBatch()
	}
	var tail [16]byte
	if _, err := io.ReadFull(r, tail[:]); err != nil {
		return end, seedError(err)
	}
	end = dumpEnd{binary.BigEndian.Uint64(tail[:8]), binary.BigEndian.Uint64(tail[8:])}
	return end, db.Apply(b, pebble.NoSync)
}

// seedValue bounds a value: a batch of the engine holds less.
const seedValue = 1 << 30

// seedError makes the end of what is read an error of its own.
func seedError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", ErrSeed, io.ErrUnexpectedEOF)
	}
	return err
}

// verifySeed compares what is on the disk with what was written by Dump.
func verifySeed(ctx context.Context, db *pebble.DB, end dumpEnd, want Position, was Past) error {
	sum := xxhash.New()
	var at Position
	version := []byte(nil)
	var terms []layout.Term
	keys, err := dump(ctx, db, func(key, value []byte) (err error) {
		switch key[0] {
		case layout.PrefixJournal:
			at, err = layout.ParsePosition(value)
		case layout.PrefixFormat:
			version = append(version, value...)
		case layout.PrefixTerm:
			var t layout.Term
			t, err = layout.ParseTerm(key, value)
			terms = append(terms, t)
		}
		return errors.Join(err, writePair(sum, key, value))
	})
	switch {
	case err != nil:
		return err
	case keys != end.keys || sum.Sum64() != end.sum:
		return fmt.Errorf("%w: it has %d keys with the checksum %016x, and should have %d with %016x", ErrSeed, keys, sum.Sum64(), end.keys, end.sum)
	case at != want:
		return fmt.Errorf("%w: it is of sequence %d of the journal, and should be of %d", ErrSeed, at.Last, want.Last)
	case string(version) != string(layout.ID32(layout.Version)):
		return fmt.Errorf("%w: its layout is not version %d", ErrSeed, layout.Version)
	case !was.within(at, terms):
		return fmt.Errorf("%w: they were written in different terms before sequence %d of the journal", ErrOtherPast, was.Last)
	}
	return nil
}
