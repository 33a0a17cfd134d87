package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
)

// sink appends batches to files.
type sink struct {
	template *template
	format   sinks.Format
	rotation Rotate
	minFree  int64
	archive  *archivist
	log      *slog.Logger
	metrics  *metrics

	buffers sync.Pool // of *[]byte

	io     *solo.Runner
	folder *folder // in the turn of io only
}

var _ sinks.Sink = (*sink)(nil)

// Write appends the batch. It may be called from several goroutines; they take
// turns at the disk.
func (s *sink) Write(ctx context.Context, batch []*event.Event) error {
	// Encoding happens here and not in the turn: a write that outlives ctx must
	// not touch the events.
	groups := s.encode(batch)
	count := len(batch)
	return s.io.Do(ctx, func() error {
		defer s.release(groups)
		return s.write(groups, count)
	})
}

// write is run in the sink's turn.
func (s *sink) write(groups []*group, count int) error {
	replaced, err := s.folder.prepare()
	if err != nil {
		return classify(fmt.Errorf("open folder: %w", err))
	}
	if replaced {
		s.archive.reset()
	}
	if err := room(s.folder.path, total(groups), s.minFree); err != nil {
		return classify(err)
	}
	for _, g := range groups {
		if g.err != nil { // an object of it failed elsewhere
			continue
		}
		if err := s.writeGroup(g); err != nil {
			s.fail(groups, g, classify(fmt.Errorf("write %s: %w", filepath.Join(s.folder.path, g.name), err)))
		}
	}
	return outcome(groups, count)
}

// outcome is the error for a batch of that many events.
func outcome(groups []*group, count int) error {
	failed := map[int]error{}
	one := true // all failures have one cause
	for _, g := range groups {
		if g.err == nil {
			continue
		}
		one = one && g.err == groups[0].err //nolint:errorlint // identity is meant
		for _, i := range g.indexes {
			failed[i] = g.err
		}
	}
	switch {
	case len(failed) == 0:
		return nil
	case len(failed) == count && one:
		return groups[0].err
	default:
		return &sinks.BatchError{Failed: failed}
	}
}

// writeGroup appends a group to its file and syncs. On failure nothing of it is
// left in the file.
func (s *sink) writeGroup(g *group) error {
	f, err := s.folder.open(g.name, g.buf)
	if err != nil {
		return err
	}
	if f.fresh {
		f.fresh = false
		if err := s.archive.opened(s.folder.root, f.name); err != nil {
			return fmt.Errorf("list rotated files: %w", err)
		}
	}
	at := time.Now()
	if s.rotation.due(f, len(g.buf), at) {
		if f, err = s.rotate(f); err != nil {
			return fmt.Errorf("rotate: %w", err)
		}
	}
	g.start = f.size
	if err = f.append(g.buf); err == nil {
		if err = fsync(f.file); err == nil {
			g.written, f.written = true, at
			return nil
		}
		err = errors.Join(err, f.cut(g.start))
	}
	s.metrics.rollbacks.Inc()
	// After a failed sync the descriptor may never report it again: the next
	// attempt starts from a new one.
	return errors.Join(err, s.folder.drop(f))
}

// fail marks a group as failed, and with it every group that shares an object
// with it: what is already written of them is cut off again, for otherwise a
// later event of an object would stand before an earlier one.
func (s *sink) fail(groups []*group, g *group, err error) {
	for _, other := range groups {
		if other.chain != g.chain {
			continue
		}
		other.err = err
		if !other.written {
			continue
		}
		if undo := s.undo(other); undo != nil {
			s.log.Warn("rollback of a batch failed; its events will be duplicated", "file", other.name, "error", undo)
		}
	}
}

func (s *sink) undo(g *group) error {
	f, err := s.folder.open(g.name, nil)
	if err != nil {
		return err
	}
	if f.size != g.start+int64(len(g.buf)) {
		return errors.New("the file was changed by another program")
	}
	s.metrics.rollbacks.Inc()
	return errors.Join(f.cut(g.start), fsync(f.file))
}

// Close ends the compression of rotated files, which continues after the next start, and
// closes the files. The archivist goes first: the locks on the files are what keeps the
// next sink from rotating them meanwhile.
func (s *sink) Close(ctx context.Context) error {
	s.archive.cancel()
	err := s.io.Last(ctx, func() error {
		s.archive.done.Wait()
		return s.folder.close()
	})
	if err != nil {
		return fmt.Errorf("close file sink: %w", err)
	}
	return nil
}

// classify returns the class of a failure: what only an operator can fix pauses the
// sink; a full, slow or missing disk is retried.
func classify(err error) error {
	_, refused := errors.AsType[*refusedError](err)
	switch {
	case refused, errors.Is(err, fs.ErrPermission):
		return sinks.Pause(err)
	case errors.Is(err, syscall.ENAMETOOLONG):
		return sinks.Poison(err)
	default:
		return err
	}
}

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct {
	open          prometheus.Gauge
	rotations     prometheus.Counter
	repairs       prometheus.Counter
	rollbacks     prometheus.Counter
	archiveErrors prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	r := sinks.NewMetrics(reg, "file")
	m := &metrics{
		open:          r.Gauge("open_files", "Files the sink holds open."),
		rotations:     r.Counter("rotations_total", "Files rotated by size or age."),
		repairs:       r.Counter("repairs_total", "Files whose incomplete last line was cut off when they were opened."),
		rollbacks:     r.Counter("rollbacks_total", "Batches rolled back because a write or sync failed."),
		archiveErrors: r.Counter("archive_errors_total", "Failures to compress or delete rotated files."),
	}
	return m, r.Err()
}

// group is the part of a batch that goes to one file.
type group struct {
	name    string
	buf     []byte
	indexes []int // of its events in the batch
	size    int   // of these events, about
	chain   int   // groups of one chain share objects, directly or through others

	written bool
	start   int64 // the file's length before buf
	err     error
}

// encode sorts a batch into groups, in the order in which their files first occur.
func (s *sink) encode(batch []*event.Event) []*group {
	var (
		groups []*group
		name   [256]byte
		byName = make(map[string]int, 1)
	)
	for i, e := range batch {
		n := s.template.append(name[:0], e)
		at, ok := byName[string(n)]
		if !ok {
			at = len(groups)
			groups = append(groups, &group{name: string(n), chain: at})
			byName[groups[at].name] = at
		}
		g := groups[at]
		g.indexes = append(g.indexes, i)
		g.size += e.Size()
	}
	for _, g := range groups {
		// A batch is megabytes: a buffer that grew with it would copy it several times.
		g.buf = slices.Grow(s.takeBuffer(), g.size)
		for _, i := range g.indexes {
			g.buf = s.format.AppendLine(g.buf, batch[i])
		}
	}
	if len(groups) > 1 {
		chain(groups, batch)
	}
	return groups
}

func total(groups []*group) (n int64) {
	for _, g := range groups {
		n += int64(len(g.buf))
	}
	return n
}

// chain gives the groups that hold events of one object the same chain.
func chain(groups []*group, batch []*event.Event) {
	owner := make(map[string]int, len(batch)) // object → its group
	for at, g := range groups {
		for _, i := range g.indexes {
			key := batch[i].PartitionKey()
			first, seen := owner[key]
			if !seen {
				owner[key] = at
				continue
			}
			from, to := g.chain, groups[first].chain
			if from == to {
				continue
			}
			for _, other := range groups {
				if other.chain == from {
					other.chain = to
				}
			}
		}
	}
}

// maxKept bounds the buffers that are kept for later batches.
const maxKept = 8 << 20

func (s *sink) takeBuffer() []byte {
	if b, ok := s.buffers.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return nil
}

// release gives the buffers back; the groups must not be used afterwards.
func (s *sink) release(groups []*group) {
	for _, g := range groups {
		buf := g.buf
		g.buf = nil
		if cap(buf) <= maxKept {
			s.buffers.Put(&buf)
		}
	}
}
