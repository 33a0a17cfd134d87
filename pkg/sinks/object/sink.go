package object

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/halves"
	"github.com/watcherd/watcherd/pkg/sinks/internal/template"
)

// sink writes to one bucket.
type sink struct {
	storage     *bucketClient
	path        template.Template
	conditional bool
	format      sinks.Format
	log         *slog.Logger
	metrics     metrics

	// turn is held by the Write that runs, and guards folders.
	turn    chan struct{}
	folders map[string]*folder

	mu       sync.Mutex // guards what follows, among the groups of a Write; not held over a request
	encoder  *zstd.Encoder
	line     []byte
	doubts   []*attempt          // without an answer: their objects may come to be at any time
	stored   map[string]struct{} // ids of events that the next batches may hold and the storage has
	proving  bool                // a Write finds out whether the storage heeds the condition, or has
	ignoring bool                // the storage ignores it
}

// folder is a path, and what is known of its objects.
type folder struct {
	path string

	// Behind highest there is no event in an object of the folder, if known is set.
	known   bool
	highest uint64

	lastRead string // key of the object that was read back last
	ids      map[string]struct{}
	wide     []string // keys of objects that were seen to reach beyond the beginning of others
}

// attempt is an object to be created.
type attempt struct {
	folder  *folder
	key     string
	events  []written // the object has the first of them, as many as meta has
	meta    meta
	content []byte
}

// written is what is known of an event in an object.
type written struct {
	id       string
	sequence uint64
}

func metaOf(events []written) meta {
	h := sha256.New()
	for _, e := range events {
		h.Write(append([]byte(e.id), '\n'))
	}
	return meta{Last: events[len(events)-1].sequence, Count: len(events), IDs: hex.EncodeToString(h.Sum(nil)[:16])}
}

const (
	parallel   = 8       // groups of a Write that are in progress
	maxFolders = 1 << 12 // that are known of; a day makes new ones
	maxStored  = 1 << 17
)

var _ sinks.Sink = (*sink)(nil)

var errIgnored = errors.New("the storage ignores If-None-Match, without which events may be written twice: set conditionalWrites: false")

// Write makes an object for the events of each folder.
func (s *sink) Write(ctx context.Context, batch []*event.Event) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return fmt.Errorf("wait for an earlier write: %w", context.Cause(ctx))
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.ignoring {
		return sinks.Pause(errIgnored)
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	var (
		running  sync.WaitGroup
		room     = make(chan struct{}, parallel)
		mu       sync.Mutex
		first    error
		accepted = make([]bool, len(batch))
	)
	for _, g := range s.groups(batch) {
		room <- struct{}{}
		mu.Lock()
		stop := first != nil
		mu.Unlock()
		if stop {
			break
		}
		running.Go(func() {
			defer func() { <-room }()
			err := s.deliver(ctx, g)
			mu.Lock()
			defer mu.Unlock()
			if first = cmp.Or(first, err); err == nil {
				for _, i := range g.at {
					accepted[i] = true
				}
			}
		})
	}
	running.Wait()
	var failed halves.Failures
	return failed.End(first, accepted)
}

// group is the events of a batch that are of one folder.
type group struct {
	folder *folder
	at     []int          // indexes in the batch
	events []*event.Event // by sequence, each once
}

// groups cuts a batch, the group of its first event first.
func (s *sink) groups(batch []*event.Event) []*group {
	var all []*group
	byPath := map[string]*group{}
	if len(s.folders) > maxFolders {
		clear(s.folders)
	}
	var path []byte
	for i, e := range batch {
		path = s.path.Append(path[:0], e, appendValue)
		g := byPath[string(path)]
		if g == nil {
			f := s.folders[string(path)]
			if f == nil {
				f = &folder{path: string(path)}
				s.folders[f.path] = f
			}
			g = &group{folder: f}
			byPath[f.path] = g
			all = append(all, g)
		}
		g.at, g.events = append(g.at, i), append(g.events, e)
	}
	for _, g := range all {
		slices.SortStableFunc(g.events, func(x, y *event.Event) int { return cmp.Compare(x.Sequence, y.Sequence) })
		g.events = slices.CompactFunc(g.events, func(x, y *event.Event) bool { return x.ID == y.ID })
	}
	return all
}

// deliver returns nil when every event of the group is in the folder.
func (s *sink) deliver(ctx context.Context, g *group) error {
	rest := s.without(g.events)
	if len(rest) > 0 && s.conditional && (!g.folder.known || rest[0].Sequence <= g.folder.highest) {
		var err error
		if rest, err = s.readBack(ctx, g.folder, rest); err != nil {
			return err
		}
	}
	s.metrics.repeated.Add(float64(len(g.events) - len(rest)))
	if len(rest) > 0 {
		a, err := s.encode(g.folder, rest)
		if err != nil {
			return err
		}
		if err := s.create(ctx, a); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range g.events {
		delete(s.stored, e.ID)
	}
	return nil
}

// without returns the events that are not known as stored.
func (s *sink) without(events []*event.Event) []*event.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.stored) == 0 {
		return events
	}
	return withoutIDs(events, s.stored)
}

func withoutIDs(events []*event.Event, ids map[string]struct{}) []*event.Event {
	var rest []*event.Event
	for _, e := range events {
		if _, has := ids[e.ID]; !has {
			rest = append(rest, e)
		}
	}
	return rest
}

// encode makes the object of events, which are in order.
func (s *sink) encode(f *folder, events []*event.Event) (*attempt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.encoder == nil {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		s.encoder = e
	}
	var content bytes.Buffer
	s.encoder.Reset(&content)
	a := &attempt{folder: f, events: make([]written, len(events))}
	for i, e := range events {
		a.events[i] = written{e.ID, e.Sequence}
		s.line = s.format.AppendLine(s.line[:0], e)
		if _, err := s.encoder.Write(s.line); err != nil {
			return nil, err
		}
	}
	if err := s.encoder.Close(); err != nil {
		return nil, err
	}
	if cap(s.line) > 1<<20 {
		s.line = nil
	}
	a.content, a.meta = content.Bytes(), metaOf(a.events)
	a.key = fmt.Sprintf("%s%0*d%s", f.path, digits, events[0].Sequence, suffix)
	if !s.conditional {
		a.key = a.longer()
	}
	return a, nil
}

// longer is the key with the hash of the ids.
func (a *attempt) longer() string {
	return a.key[:len(a.key)-len(suffix)] + "_" + a.meta.IDs[:16] + suffix
}

// create writes the object, or finds that the storage has it.
func (s *sink) create(ctx context.Context, a *attempt) error {
	taken, err := s.put(ctx, a)
	if err != nil || !taken {
		return err
	}
	m, err := s.storage.head(ctx, a.key)
	switch {
	case err == nil && m.IDs == a.meta.IDs:
		s.metrics.repeated.Add(float64(a.meta.Count))
		return nil
	case errors.Is(err, errNotFound): // as of storage that was killed amid a PUT, which refuses the name for good
		s.log.Warn("an object's name is refused as taken, and there is no object: a longer name is used", "key", a.key)
	case err != nil:
		return err
	default:
		s.log.Warn("an object's name is taken by other events: a longer name is used, and events may be there twice", "key", a.key)
	}
	s.metrics.renamed.Inc()
	a.key = a.longer()
	if taken, err = s.put(ctx, a); err != nil || !taken {
		return err
	}
	// By these events, whose hash the name has, or by the first of them, or by none.
	switch m, err = s.storage.head(ctx, a.key); {
	case errors.Is(err, errNotFound):
		return fmt.Errorf("put %s: the storage refuses the name as taken, and there is no object", a.key)
	case err == nil && m.IDs != a.meta.IDs:
		return fmt.Errorf("put %s: the name is taken, and not all events are in the object", a.key)
	}
	return err
}

// put writes the object, unless there is one of its key. An attempt without an answer is kept, to be settled by the
// next Write.
func (s *sink) put(ctx context.Context, a *attempt) (taken bool, err error) {
	err = s.storage.put(ctx, a.key, a.meta, a.content, !s.conditional)
	switch class, _ := sinks.Classify(err); {
	case err == nil:
		s.metrics.objects.Inc()
		s.metrics.bytes.Add(float64(len(a.content)))
		a.folder.highest = max(a.folder.highest, a.meta.Last)
		s.prove(ctx, a)
	case errors.Is(err, errExists):
		return true, nil
	case class == sinks.ClassRetry && s.conditional:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.doubts = append(s.doubts, a)
	}
	return false, err
}

// settle repeats the attempts that had no answer, so that none of them can create an object later: from then on it
// is known whether the storage has their events. One that fails again is made with half of its events the next time,
// under the same name: the storage may take no large ones, or the line may be too slow for them.
func (s *sink) settle(ctx context.Context) error {
	for len(s.doubts) > 0 {
		a := s.doubts[0]
		s.doubts = s.doubts[1:]
		taken, err := s.put(ctx, a)
		if class, _ := sinks.Classify(err); err != nil && class == sinks.ClassRetry && ctx.Err() == nil {
			if err := s.halve(a); err != nil {
				return err
			}
		}
		m := a.meta
		if taken {
			m, err = s.storage.head(ctx, a.key)
			if errors.Is(err, errNotFound) || err == nil && !a.made(m) {
				continue // another process has taken the name, or it is refused without an object: see create
			}
		}
		if err != nil {
			if !slices.Contains(s.doubts, a) {
				s.doubts = append(s.doubts, a)
			}
			return err
		}
		a.folder.highest = max(a.folder.highest, m.Last)
		if len(s.stored)+m.Count > maxStored {
			clear(s.stored)
		}
		if s.stored == nil {
			s.stored = map[string]struct{}{}
		}
		for _, e := range a.events[:m.Count] {
			s.stored[e.id] = struct{}{}
		}
	}
	s.doubts = nil
	return nil
}

// made reports whether an object is of the attempt, with all events or the first of them.
func (a *attempt) made(m meta) bool {
	return m.Count > 0 && m.Count <= len(a.events) && m == metaOf(a.events[:m.Count])
}

// halve takes the second half of the events out of the content, and leaves one.
func (s *sink) halve(a *attempt) error {
	n := a.meta.Count / 2
	if n == 0 {
		return nil
	}
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer z.Close()
	lines, err := z.DecodeAll(a.content, nil)
	if err != nil {
		return err
	}
	end := 0
	for range n {
		end += bytes.IndexByte(lines[end:], '\n') + 1
	}
	a.content, a.meta = s.encoder.EncodeAll(lines[:end], nil), metaOf(a.events[:n])
	return nil
}

// prove repeats the first PUT that created an object, with the same bytes: storage that heeds the condition refuses it.
func (s *sink) prove(ctx context.Context, a *attempt) {
	s.mu.Lock()
	proving := s.proving
	s.proving = true
	s.mu.Unlock()
	if proving || !s.conditional {
		return
	}
	err := s.storage.put(ctx, a.key, a.meta, a.content, false)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.ignoring = true
		s.log.Error("the storage is not suitable for conditionalWrites", "error", errIgnored)
	case !errors.Is(err, errExists):
		s.proving = false
	}
}

// Close closes the connections.
func (s *sink) Close(context.Context) error {
	s.storage.client.Close()
	return nil
}
