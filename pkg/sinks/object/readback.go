package object

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	digits = 20 // of a sequence in a name, so that names are in its order
	suffix = ".jsonl.zst"

	// before is how many objects are looked at that begin before the first event. More than one may reach beyond it:
	// retried events make objects that overlap.
	before = 8
	// maxWide is how many are remembered that reach beyond the beginning of others. They are looked at as well: a batch that
	// begins amid one may have more than the others behind its beginning.
	maxWide = 16

	maxObjects = 1 << 12  // whose names are kept at a time
	maxLine    = 64 << 20 // bytes of a line that is read back
	maxDecoded = 4 << 30  // bytes of an object's lines
	maxIDs     = 1 << 17  // ids of an object, of which the sink's have at most a batch
	maxID      = 1 << 10  // bytes of an id
)

// readBack returns the events that no object of the folder has. They are in order.
func (s *sink) readBack(ctx context.Context, f *folder, events []*event.Event) ([]*event.Event, error) {
	high := events[len(events)-1].Sequence
	beyond := false // an object has events behind them
	for from := 0; from < len(events); {
		low := events[from].Sequence
		keys, rest, complete, err := s.around(ctx, f.path, low, high)
		if err != nil {
			return nil, err
		}
		wide := slices.DeleteFunc(slices.Clone(f.wide), func(key string) bool { return slices.Contains(keys, key) })
		for i, key := range slices.Concat(keys, wide) {
			m, err := s.storage.head(ctx, key)
			if err == nil && i < len(keys) {
				next := rest
				if i+1 < len(keys) {
					next, _ = sequenceOf(keys[i+1][len(f.path):])
				}
				f.reaches(key, m.Last, next)
			}
			switch {
			case errors.Is(err, errNotFound):
				continue
			case err != nil:
				return nil, err
			case m.Count > 0 && m.Last < low:
				continue
			case m.Count > 0 && m.Last > high:
				beyond = true
			}
			if f.lastRead != key {
				ids, err := s.read(ctx, key)
				if err != nil {
					return nil, err
				}
				f.lastRead, f.ids = key, ids
			}
			events = withoutIDs(events, f.ids)
		}
		if complete && !beyond {
			f.known, f.highest = true, max(f.highest, high)
			f.lastRead, f.ids = "", nil
		}
		from, _ = slices.BinarySearchFunc(events, rest, func(e *event.Event, rest uint64) int { return cmp.Compare(e.Sequence, rest) })
	}
	return events, nil
}

// reaches remembers an object that reaches beyond the beginning of the next one.
func (f *folder) reaches(key string, last, next uint64) {
	if last < next || slices.Contains(f.wide, key) {
		return
	}
	if len(f.wide) == maxWide {
		f.wide = slices.Delete(f.wide, 0, 1)
	}
	f.wide = append(f.wide, key)
}

// around returns the keys of the objects that may have events between two sequences, and whether none begins later. Those
// that begin at rest, and behind it, are not among them.
func (s *sink) around(ctx context.Context, path string, low, high uint64) (keys []string, rest uint64, complete bool, err error) {
	earlier := 0
	for after, more := path, true; more; {
		var page []string
		if page, more, err = s.storage.list(ctx, path, after); err != nil {
			return nil, 0, false, err
		}
		for _, key := range page {
			after = key
			first, ok := sequenceOf(key[len(path):])
			switch {
			case !ok:
				continue
			case first > high:
				return keys, first, false, nil
			case first <= low:
				if earlier++; earlier > before {
					keys = slices.Delete(keys, 0, 1)
				}
			}
			if len(keys) == maxObjects { // most of them begin behind low, and so does this one
				return keys, first, false, nil
			}
			keys = append(keys, key)
		}
	}
	return keys, math.MaxUint64, true, nil
}

// sequenceOf reads the first sequence in the name of an object; not ok: it is not one of the sink's.
func sequenceOf(name string) (first uint64, ok bool) {
	if len(name) < digits+len(suffix) || !strings.HasSuffix(name, suffix) || name[digits] != '.' && name[digits] != '_' {
		return 0, false
	}
	first, err := strconv.ParseUint(name[:digits], 10, 64)
	return first, err == nil
}

// read returns the ids of an object's events. Of an object that cannot be understood it is those before the fault.
func (s *sink) read(ctx context.Context, key string) (map[string]struct{}, error) {
	content, err := s.storage.get(ctx, key)
	ids := map[string]struct{}{}
	if errors.Is(err, errNotFound) {
		return ids, nil
	}
	if err != nil {
		return nil, err
	}
	if err := decode(ctx, content, ids); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s.log.Warn("an object cannot be read back; its events may be written again", "key", key, "error", err)
	}
	return ids, nil
}

// decode adds the ids of the lines.
func decode(ctx context.Context, content []byte, ids map[string]struct{}) error {
	z, err := zstd.NewReader(bytes.NewReader(content), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxLine))
	if err != nil {
		return err
	}
	defer z.Close()
	lines := bufio.NewScanner(io.LimitReader(z, maxDecoded))
	lines.Buffer(nil, maxLine)
	for lines.Scan() && ctx.Err() == nil {
		if len(ids) >= maxIDs {
			return fmt.Errorf("more than %d events", maxIDs)
		}
		for key, value := range rawjson.Members(lines.Bytes()) {
			if string(key) == "id" && len(value) > 1 && value[0] == '"' && len(value) <= maxID {
				ids[rawjson.Unquote(value)] = struct{}{}
				break
			}
		}
	}
	return errors.Join(lines.Err(), ctx.Err())
}
