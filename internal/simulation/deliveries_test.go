package simulation

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// The sinks of a depot. The live one always accepts. The moody one fails in every
// way. The fickle one is also removed, filled with what it missed when it is put back, and purged.
const (
	live   = "live"
	moody  = "moody"
	fickle = "fickle"
)

// depot is one history of store and delivery, without an API server.
type depot struct {
	t       *testing.T
	r       *rand.Rand
	without []string

	disk  *disk
	ahead atomic.Int64 // nanoseconds; of the store's clock
	boxes map[string]*box

	store   *store.Store
	stop    context.CancelFunc
	ended   chan error
	workers map[string]*worker
	leaving map[string]<-chan struct{} // by sink: Closed of the last worker of this process
	dead    *atomic.Bool               // whether the present process is killed

	n       map[int]int // by object: its changes so far
	missed  []parcel    // what was committed while the fickle sink was away
	killed  bool
	damaged bool
	// obsolete: a scrub has overwritten payloads, which take room until they are erased.
	obsolete bool
	limits   store.Limits
	holding  atomic.Bool // no delivery may begin
	filling  bool        // the fickle sink is configured, and has no worker yet
	healing  bool        // there is no more trouble
}

// box is the receiver behind a sink, and what was committed for it.
type box struct {
	name      string
	mu        sync.Mutex
	mode      string
	object    int  // that the picky modes are about
	late      bool // a Write that was abandoned may have arrived after its worker ended
	accepted  []parcel
	replayed  map[string]bool
	committed []parcel
	purged    bool
	asked     int
	halved    bool            // a Write that failed has arrived in part
	leftOut   map[string]bool // by the body, or lost with a write-ahead log
}

// parcel is the n-th change of an object.
type parcel struct{ Object, N int }

func (p parcel) id() string { return fmt.Sprintf("%d/%d", p.Object, p.N) }

// pack is the parcel as the store keeps it, with that many bytes to carry, which a scrub
// hides.
func (p parcel) pack(load int) []byte {
	b := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(p.Object)), uint64(p.N))
	return append(append(b, 0), bytes.Repeat([]byte("x"), load)...)
}

func unpack(b []byte) (parcel, error) {
	object, read := binary.Uvarint(b)
	if read <= 0 {
		return parcel{}, errors.New("no parcel")
	}
	n, read := binary.Uvarint(b[read:])
	if read <= 0 {
		return parcel{}, errors.New("half a parcel")
	}
	return parcel{int(object), int(n)}, nil
}

type worker struct {
	*delivery.Worker
	cancel context.CancelFunc
	done   chan error
}

// boxSink delivers to a box for one process.
type boxSink struct {
	*box
	dead *atomic.Bool
}

var moods = []string{well, down, paused, slow, "refused for a time", "one fails", "one is forbidden", "one is delayed", "one is refused", spoiling, hanging, "all are refused", unpredictable, large, halves}

const (
	// large is the mood in which events are too large, until they are cut.
	large = "events are too large"
	// halves is the mood in which some Writes fail as a whole, though a half has arrived.
	halves = "half of a batch arrives"
	// spoiling is the mood in which one object's events have the batches refused that they are in.
	spoiling = "a batch is refused for one"
	// hanging is the mood in which a Write, also one that is cancelled, takes up to ten minutes.
	hanging = "hanging"
)

// unpredictable is the mood in which each object's next event meets another answer.
const unpredictable = "unpredictable"

// refuses reports whether an unpredictable receiver does not accept the i-th event.
func (b *box) refuses(i int, p parcel, failed map[int]error) bool {
	if err := b.answer(); err != nil {
		failed[i] = err
	}
	return failed[i] != nil
}

func (b *box) accept(p parcel, replay bool) {
	b.accepted = append(b.accepted, p)
	if replay {
		b.replayed[p.id()] = true
	}
	if b.name != live { // which is given thousands
		account.tell("    ", b.name+":", p.id(), map[bool]string{true: "replayed"}[replay])
	}
}

// answer is what an unpredictable receiver says to an event.
func (b *box) answer() error {
	b.asked++
	switch b.asked * 7919 % 11 {
	case 0:
		return errDown
	case 1:
		return sinks.Pause(errDown)
	case 2:
		return sinks.RetryAfter(errDown, 20*time.Second)
	case 3:
		return sinks.Poison(errDown)
	case 4:
		return sinks.TooLarge(errDown)
	default:
		return nil
	}
}

func (s boxSink) Write(ctx context.Context, batch []*event.Event) error {
	s.mu.Lock()
	mode := s.mode
	s.mu.Unlock()
	switch mode {
	case down:
		return errDown
	case paused:
		return sinks.Pause(errDown)
	case "refused for a time":
		return sinks.RetryAfter(errDown, 3*time.Second)
	case "all are refused":
		return sinks.Poison(errDown)
	case slow:
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if mode == hanging {
		s.hang()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead.Load() {
		return errDown
	}
	s.late = s.late || ctx.Err() != nil
	if mode == halves {
		s.asked++
		if s.asked%3 == 0 {
			for _, e := range batch[:len(batch)/2] {
				if p, err := parse(e.ID); err == nil {
					s.accept(p, e.Replay)
				}
			}
			s.halved = true
			return errDown
		}
	}
	if mode == spoiling && slices.ContainsFunc(batch, func(e *event.Event) bool { return e.Name == fmt.Sprint(s.object) }) {
		return sinks.Poison(errDown)
	}
	failed, held := map[int]error{}, map[int]bool{}
	for i, e := range batch {
		if e.ID == beat {
			continue
		}
		p, err := parse(e.ID)
		if err != nil {
			return sinks.Poison(err)
		}
		switch {
		case mode == large && len(e.Object)+len(e.Body) > 15 && !held[p.Object]:
			failed[i], held[p.Object] = sinks.TooLarge(errDown), true
		case held[p.Object]:
			failed[i] = sinks.Held(errDown)
		case p.Object == s.object && strings.HasPrefix(mode, "one "):
			failed[i], held[p.Object] = map[string]error{
				"one fails": errDown, "one is forbidden": sinks.Pause(errDown),
				"one is delayed": sinks.RetryAfter(errDown, time.Minute), "one is refused": sinks.Poison(errDown),
			}[mode], true
		case mode == unpredictable && s.refuses(i, p, failed):
			held[p.Object] = true
		default:
			s.accept(p, e.Replay)
		}
	}
	if len(failed) > 0 {
		return &sinks.BatchError{Failed: failed}
	}
	return nil
}

// hang returns after some time, or when the process has ended.
func (s boxSink) hang() {
	s.mu.Lock()
	s.asked++
	most := s.asked * 7919 % 600
	s.mu.Unlock()
	for over := false; !over; most-- {
		time.Sleep(time.Second)
		s.mu.Lock()
		over = most <= 0 || s.dead.Load()
		s.mu.Unlock()
	}
}

func (boxSink) Close(context.Context) error { return nil }

// now is the store's clock.
func (d *depot) now() time.Time { return time.Now().Add(time.Duration(d.ahead.Load())) }

func newDepot(t *testing.T, seed uint64) *depot {
	d := &depot{
		t: t, r: rand.New(rand.NewPCG(seed, 3)), without: strings.Split(os.Getenv("WATCHERD_SIM_WITHOUT"), ","),
		disk: newDisk(vfs.NewCrashableMem()), boxes: map[string]*box{}, workers: map[string]*worker{}, n: map[int]int{},
	}
	d.limits = store.Limits{
		MinFree: minFree, RetentionMaxAge: time.Hour, RetentionMaxBytes: 1 << 20,
		MaxBytes: []int64{12 << 20, 24 << 20, 64 << 20}[d.r.IntN(3)], DeadLetterMaxBytes: []int64{0, 1000, 100_000}[d.r.IntN(3)],
	}
	for _, name := range []string{live, moody, fickle} {
		d.boxes[name] = &box{name: name, mode: well, replayed: map[string]bool{}, leftOut: map[string]bool{}}
	}
	return d
}

// begin opens the store and starts the workers of the sinks that are configured.
func (d *depot) begin(names ...string) error {
	log := slog.New(slog.NewTextHandler(account, nil))
	st, err := store.Open("store", store.Options{
		FS: d.disk, Logger: log, MinFree: d.limits.MinFree, RetentionMaxAge: d.limits.RetentionMaxAge,
		RetentionMaxBytes: d.limits.RetentionMaxBytes, MaxBytes: d.limits.MaxBytes, DeadLetterMaxBytes: d.limits.DeadLetterMaxBytes,
		Now: d.now,
	})
	if d.damaged && errors.Is(err, store.ErrDamaged) {
		d.store = nil
		return errOver // what holds the store together was hit: it refuses, and an export reads the rest
	}
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	d.store, d.dead, d.ended, d.leaving = st, new(atomic.Bool), make(chan error, 1), map[string]<-chan struct{}{}
	ctx, cancel := context.WithCancel(context.Background())
	d.stop = cancel
	go func() { d.ended <- st.Run(ctx) }()
	for _, name := range st.Sinks() { // as the pipeline does with its first configuration
		if !slices.Contains(names, name) && !(d.filling && name == fickle) {
			if err := st.LeaveSink(name); err != nil {
				return err
			}
		}
	}
	for _, name := range names {
		if err := d.work(name); err != nil {
			return err
		}
	}
	return nil
}

func (d *depot) work(name string) error {
	queue, err := d.store.EnsureSink(name, store.FromNow)
	if err != nil {
		return fmt.Errorf("queue %s: %w", name, err)
	}
	w := &worker{done: make(chan error, 1), Worker: delivery.New(d.config(name, queue))}
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() { w.done <- w.Run(ctx) }()
	d.workers[name] = w
	return nil
}

// config is a worker's, another one each time.
func (d *depot) config(name string, queue *store.Queue) delivery.Config {
	b, r := d.boxes[name], d.r
	one := boxSink{b, d.dead}
	cfg := delivery.Config{
		Name: name, Queue: queue, Decode: decode, Previous: d.leaving[name],
		Open: func(context.Context) (sinks.Sink, error) { return one, nil },
		Delivery: sinks.Delivery{
			MaxEvents: []int{1, 3, 10, 50}[r.IntN(4)], MaxBytes: []int{1 << 20, 20_000}[r.IntN(2)],
			Concurrency: []int{1, 2, 3, 8}[r.IntN(4)], MaxWait: []time.Duration{0, 0, time.Second}[r.IntN(3)],
		},
	}
	if d.healing {
		return cfg
	}
	if r.IntN(2) == 0 {
		cfg.Heartbeat = delivery.Heartbeat{
			Every: []time.Duration{100 * time.Millisecond, time.Second}[r.IntN(2)],
			Make:  func() *event.Event { return &event.Event{ID: beat, Time: time.Now()} },
		}
	}
	if r.IntN(2) == 0 {
		cfg.Hold = d.hold
	}
	if r.IntN(2) == 0 {
		cfg.Oversize = delivery.OversizeTruncate
	}
	most := []int{0, 9000, 100}[r.IntN(3)]
	if name == live {
		most = 0
	}
	if r.IntN(3) == 0 {
		cfg.Open = func(context.Context) (sinks.Sink, error) { return limitedBox{one, most}, nil }
	}
	if name == live {
		return cfg
	}
	if r.IntN(3) == 0 {
		cfg.Rate = delivery.Rate{Events: []int{1, 5, 100}[r.IntN(3)], Per: []time.Duration{100 * time.Millisecond, time.Second}[r.IntN(2)]}
	}
	if r.IntN(3) == 0 {
		cfg.Render = b.render
	}
	cfg.Retry.PoisonAttempts = []int{1, 3}[r.IntN(2)]
	cfg.Retry.Max = []time.Duration{0, 2 * time.Second}[r.IntN(2)]
	cfg.Fingerprint = []string{"", "a"}[r.IntN(2)]
	return cfg
}

// beat is the id of heartbeats.
const beat = "beat"

// hold waits as long as no delivery may begin.
func (d *depot) hold(ctx context.Context) error {
	for d.holding.Load() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

// render makes bodies, but not of all parcels.
func (b *box) render(ev *event.Event) (bool, error) {
	p, err := parse(ev.ID)
	if err != nil || (p.Object*31+p.N)%29 == 0 {
		return false, errors.Join(err, errDown)
	}
	if (p.Object+p.N)%17 == 0 {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.leftOut[p.id()] = true
		return false, nil
	}
	ev.Body = append([]byte("body"), ev.Object...)
	return true, nil
}

// limitedBox has limits.
type limitedBox struct {
	boxSink
	most int
}

func (l limitedBox) Limits() sinks.Limits { return sinks.Limits{MaxEventBytes: l.most, MaxBatch: 4} }

// parse reads the id of a parcel.
func parse(id string) (p parcel, err error) {
	_, err = fmt.Sscanf(id, "%d/%d", &p.Object, &p.N)
	return p, err
}

func decode(it store.Item) (*event.Event, error) {
	p, err := unpack(it.Payload)
	if err != nil {
		return nil, err
	}
	return &event.Event{
		ID: p.id(), Type: event.Updated, Time: it.Time, Sequence: it.Sequence, Replay: it.Flags != 0,
		Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Name: fmt.Sprint(p.Object), UID: "u", Object: it.Payload,
	}, nil
}

func (d *depot) rest(name string) error {
	w, ok := d.workers[name]
	if !ok {
		return nil
	}
	delete(d.workers, name)
	w.cancel()
	err := <-w.done
	select {
	case <-w.Closed():
	default:
		d.leaving[name] = w.Closed()
	}
	return err
}

func (d *depot) mood(name, mode string) {
	b := d.boxes[name]
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mode, b.object = mode, d.r.IntN(30)
	d.say(mode)
}

// reload has another worker take a sink's queue over, as when its configuration changes.
func (d *depot) reload(name string) error {
	if d.workers[name] == nil {
		return nil
	}
	if err := d.rest(name); err != nil {
		return err
	}
	return d.work(name)
}

// end stops the process, and returns which sinks were configured.
func (d *depot) end() ([]string, error) {
	names := slices.Sorted(maps.Keys(d.workers))
	var errs []error
	for _, name := range names {
		errs = append(errs, d.rest(name))
	}
	d.stop()
	errs = append(errs, <-d.ended, d.store.Close())
	d.dead.Store(true) // nothing of the process is left
	return names, errors.Join(errs...)
}

func (d *depot) eachBox(f func(*box)) {
	for _, b := range d.boxes {
		b.mu.Lock()
		f(b)
		b.mu.Unlock()
	}
}

func (d *depot) kill() []string {
	for _, b := range d.boxes {
		b.mu.Lock()
	}
	d.dead.Store(true)
	d.killed = true
	after := d.disk.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[d.r.IntN(3)], RNG: d.r})
	for _, b := range d.boxes {
		b.mu.Unlock()
	}
	d.disk.full.Store(false)
	names, _ := d.end()
	d.disk = newDisk(after)
	return names
}

// commit records changes for the live sink, and for the others as to says. It waits for
// room as the committer does, makes some of what a scrub has overwritten as that does (package scrub), and fails if
// there is none although nothing is full.
func (d *depot) commit(count, pad int, to func() bool) error {
	if err := d.waitIngest(); err != nil {
		if d.disk.full.Load() || 4*d.backlog() > d.limits.MaxBytes {
			return nil
		}
		if d.obsolete {
			d.obsolete = false
			if err = d.store.EraseObsolete(context.Background()); err == nil || d.damaged {
				err = d.waitIngest()
			}
		}
		if err != nil {
			return fmt.Errorf("ingest stands still: %w (%s)", err, d.store.Health().Reason)
		}
	}
	b := d.store.NewBatch()
	defer b.Discard()
	chosen := map[string][]parcel{}
	var missed []parcel
	for range count {
		object := d.r.IntN(30)
		d.n[object]++
		p := parcel{object, d.n[object]}
		var routes []store.Route
		for _, name := range []string{live, moody, fickle} {
			_, configured := d.workers[name]
			if configured && (name == live || to()) {
				routes = append(routes, store.Route{Sink: name})
				chosen[name] = append(chosen[name], p)
			}
			if !configured && name == fickle {
				missed = append(missed, p)
			}
		}
		b.Append(store.Record{Time: d.now(), Lane: uint64(object), Payload: p.pack(pad)}, routes)
	}
	if err := d.store.Commit(b); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	for name, list := range chosen {
		d.boxes[name].committed = append(d.boxes[name].committed, list...)
	}
	d.missed = append(d.missed, missed...)
	return nil
}

// waitIngest waits for room, for a minute.
func (d *depot) waitIngest() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return d.store.WaitIngest(ctx)
}

// remove takes the fickle sink out of the configuration, also amid its fill.
func (d *depot) remove() error {
	if _, err := d.store.Queue(fickle); err != nil {
		return nil //nolint:nilerr // it is not there
	}
	return errors.Join(d.rest(fickle), d.store.LeaveSink(fickle))
}

// putBack gives the fickle sink what the log has of the time that it was away, as copies or not, and starts it. With
// stop, the process is killed before that is complete; the next one continues with that, or removes the sink.
func (d *depot) putBack(stop bool) error {
	if d.workers[fickle] != nil {
		return nil
	}
	queue, err := d.store.EnsureSink(fickle, store.FromNow)
	if err != nil {
		return err
	}
	if err := d.store.RejoinSink(fickle, store.FromNow); err != nil {
		return err
	}
	stop = stop && queue.Filling() // a new one is there at once
	copies, left := d.r.IntN(2) == 0, d.r.IntN(100)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if _, err := d.store.Fill(ctx, fickle, func(it *store.Item) (sel store.Selected, ok bool, err error) {
		if left--; stop && left < 0 {
			cancel()
		}
		if copies && !d.store.Health().Paused {
			sel.Payload = it.Payload
		}
		return sel, !it.Unreadable, nil
	}); err != nil && ctx.Err() == nil {
		return fmt.Errorf("fill: %w", err)
	}
	if stop {
		d.filling = d.r.IntN(2) == 0 // else another configuration
		err := d.begin(d.kill()...)
		if err == nil && d.filling {
			err = d.putBack(false)
		}
		d.filling = false
		return err
	}
	if a, away := queue.Absence(); away && !a.Lost {
		d.boxes[fickle].committed = append(d.boxes[fickle].committed, d.missed...)
	}
	d.missed = nil
	if err := d.store.Filled(fickle); err != nil {
		return err
	}
	return d.work(fickle)
}

// backlog is how many bytes of payload wait in all queues.
func (d *depot) backlog() (n int64) {
	for _, name := range d.store.Sinks() {
		if q, err := d.store.Queue(name); err == nil {
			n += q.Stats().Bytes
		}
	}
	return n
}

func (d *depot) steps() []step {
	r := d.r
	most := func() bool { return r.IntN(3) > 0 }
	none := func() bool { return false }
	return []step{
		{"commit", 30, func() error { return d.commit(1+r.IntN(10), 20, most) }},
		{"commit much", 1, func() error { return d.commit(200, 8_000, most) }},
		{"commit much for the live sink", 4, func() error { return d.commit(100, 16_000, none) }},
		{"sleep", 12, func() error { time.Sleep(time.Duration(r.IntN(5000)) * time.Millisecond); return nil }},
		{"sleep long", 2, func() error { time.Sleep(time.Duration(r.IntN(30)) * time.Minute); return nil }},
		{"the live sink keeps up", 10, func() error {
			time.Sleep(5 * time.Second)
			if q := d.workers[live].Status().Queue; q.Length > 0 && !d.damaged {
				return fmt.Errorf("%d events wait for the live sink: %+v", q.Length, d.workers[live].Status())
			}
			return nil
		}},
		{"the log goes", 3, d.logGoes},
		{"mood", 12, func() error {
			d.mood([]string{moody, fickle}[r.IntN(2)], moods[r.IntN(len(moods))])
			return nil
		}},
		{"reload", 3, func() error { return d.reload([]string{live, moody, fickle}[r.IntN(3)]) }},
		{"reload amid a write that hangs", 2, func() error {
			d.mood(moody, hanging)
			if err := d.commit(10, 20, func() bool { return true }); err != nil {
				return err
			}
			time.Sleep(2 * time.Second)
			defer d.mood(moody, well)
			return d.reload(moody)
		}},
		{"hold", 2, func() error {
			d.holding.Store(true)
			time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
			d.holding.Store(false)
			return nil
		}},
		{"pause", 2, func() error {
			d.workers[moody].Pause()
			time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
			return nil
		}},
		{"resume", 3, func() error { d.workers[moody].Resume(); return nil }},
		{"retry dead letters", 2, func() error {
			q, err := d.store.Queue(moody)
			if err != nil {
				return err
			}
			letters, err := q.DeadLetters(0, 1000)
			if err != nil {
				return err
			}
			for _, l := range letters {
				if _, err := q.RetryDeadLetters(1, l.Position); err != nil {
					return err
				}
			}
			return nil
		}},
		{"skip", 3, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_, err := d.workers[moody].Skip(ctx, 0)
			if errors.Is(err, delivery.ErrNothingToSkip) || errors.Is(err, delivery.ErrInFlight) || errors.Is(err, delivery.ErrNotDelivering) || errors.Is(err, store.ErrDeadLettersFull) {
				return nil
			}
			return err
		}},
		{"scrub", 2, func() error { return d.scrub(-1) }},
		{"half a scrub, kill and start", 1, func() error {
			if err := d.scrub(r.IntN(10)); err != nil {
				return err
			}
			return d.begin(d.kill()...)
		}},
		{"remove", 2, d.remove},
		{"put back", 4, func() error { return d.putBack(false) }},
		{"half put back, kill and start", 1, func() error { return d.putBack(true) }},
		{"replay", 1, func() error { return d.replay([]string{live, moody}[r.IntN(2)]) }},
		{"purge", 1, func() error {
			if d.workers[fickle] != nil {
				return nil
			}
			if _, err := d.store.Queue(fickle); err != nil {
				return nil //nolint:nilerr // it is not there
			}
			d.boxes[fickle].purged = true
			d.boxes[fickle].committed, d.missed = nil, nil
			return d.store.PurgeSink(fickle)
		}},
		{"clock", 1, func() error {
			d.ahead.Add(int64([]time.Duration{-time.Hour, time.Hour, 24 * time.Hour, -24 * time.Hour}[r.IntN(4)]))
			return nil
		}},
		{"disk full", 1, func() error { d.disk.full.Store(true); time.Sleep(time.Second); return nil }},
		{"disk free", 3, func() error { d.disk.full.Store(false); time.Sleep(time.Second); return nil }},
		{"stop and start", 2, func() error {
			names, err := d.end()
			return errors.Join(err, d.begin(names...))
		}},
		{"kill and start", 2, func() error { return d.begin(d.kill()...) }},
		{"new limits", 2, func() error {
			// Not less: the buffers are those of the budget at the opening.
			d.limits.MaxBytes = []int64{24 << 20, 64 << 20}[r.IntN(2)]
			d.limits.DeadLetterMaxBytes = []int64{0, 1000, 100_000}[r.IntN(3)]
			d.store.SetLimits(d.limits)
			return nil
		}},
		{"back up", 2, d.backUp},
		{"a bad bit outside of the tables", 2, d.flipOutside},
		{"a bad byte", 1, func() error {
			names, err := d.end()
			if err != nil {
				return err
			}
			if err := d.flip(); err != nil {
				return err
			}
			return d.begin(names...)
		}},
	}
}

// backUp copies the store while it is written to, and checks the copy.
func (d *depot) backUp() error {
	const dir = "/backup"
	if err := d.disk.RemoveAll(dir); err != nil { // a kill may have brought the last one back
		return err
	}
	done := make(chan error, 1)
	go func(st *store.Store) { done <- st.Backup(context.Background(), dir) }(d.store)
	busy := d.commit(1+d.r.IntN(100), 4_000, func() bool { return true })
	made := <-done
	if busy != nil || made != nil && (!d.damaged || !errors.Is(made, store.ErrRepairing)) {
		return errors.Join(busy, made)
	}
	var err error
	if made == nil && (!d.damaged || d.r.IntN(5) == 0) { // Pebble takes its time over each read of a damaged block
		var report inspect.Report
		report, err = inspect.CheckFS(d.disk, dir)
		if err == nil && !report.OK() && !d.damaged {
			err = fmt.Errorf("the backup has problems: %q", report.Problems)
		}
	}
	return errors.Join(err, d.disk.RemoveAll(dir))
}

// flipOutside changes a bit of a file that is no table. The store refuses to open then, or has everything,
// except for the last commits of a write-ahead log, which look like interrupted ones.
func (d *depot) flipOutside() error {
	before, err := d.logged()
	if err != nil {
		return err
	}
	configured, err := d.end()
	if err != nil {
		return err
	}
	var names []string
	for _, dir := range []string{"store", "store/db"} {
		in, err := d.disk.List(dir)
		if err != nil {
			return err
		}
		slices.Sort(in)
		for _, name := range in {
			if name = filepath.Join(dir, name); !strings.HasSuffix(name, ".sst") {
				names = append(names, name)
			}
		}
	}
	name := names[d.r.IntN(len(names))]
	content, err := d.content(name)
	if err != nil || len(content) == 0 {
		return errors.Join(err, d.begin(configured...))
	}
	d.say(name)
	whole := bytes.Clone(content)
	content[d.r.IntN(len(content))] ^= 1 << d.r.IntN(8)
	if err := d.rewrite(name, content); err != nil {
		return err
	}
	damaged := d.damaged
	d.damaged = false
	err = d.begin(configured...)
	d.damaged = damaged || strings.HasSuffix(name, ".log")
	if err == nil {
		return d.leaveOutLost(before)
	}
	if !errors.Is(err, store.ErrDamaged) {
		return err
	}
	d.damaged = damaged
	if err := d.rewrite(name, whole); err != nil {
		return err
	}
	return d.begin(configured...)
}

// logged is what the log has, by id, but for what cannot be read.
func (d *depot) logged() (map[string]bool, error) {
	ids := map[string]bool{}
	for after := uint64(0); ; {
		items, err := d.store.ReadLog(after, 1000)
		if err != nil || len(items) == 0 {
			return ids, err
		}
		for _, it := range items {
			if p, err := unpack(it.Payload); err == nil {
				ids[p.id()] = true
			}
			after = it.Sequence
		}
	}
}

// leaveOutLost has no receiver wait for what the log had, and has no longer: the commits that were cut off with a damaged
// write-ahead log. Those that were delivered are not delivered again behind what is.
func (d *depot) leaveOutLost(before map[string]bool) error {
	after, err := d.logged()
	if err != nil {
		return err
	}
	for _, b := range d.boxes {
		b.mu.Lock()
		for id := range before {
			if !after[id] {
				b.leftOut[id] = true
			}
		}
		b.mu.Unlock()
	}
	return nil
}

// content is a file's; empty for a directory.
func (d *depot) content(name string) ([]byte, error) {
	if info, err := d.disk.mem.Stat(name); err != nil || info.IsDir() {
		return nil, err
	}
	f, err := d.disk.mem.Open(name)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(f)
	return content, errors.Join(err, f.Close())
}

func (d *depot) rewrite(name string, content []byte) error {
	out, err := d.disk.mem.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = out.Write(content)
	return errors.Join(err, out.Sync(), out.Close())
}

// replay gives a sink a part of the log again, unless there is no room for a minute.
func (d *depot) replay(sink string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stats := d.store.LogStats()
	first := stats.Last - min(stats.Last, uint64(d.r.IntN(1+int(stats.Last+1-min(stats.First, stats.Last+1)))))
	_, err := d.store.Replay(ctx, sink, store.ReplayRange{FromSequence: first}, func(it *store.Item) (store.Selected, bool, error) {
		return store.Selected{Flags: 1}, !it.Unreadable, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// logGoes waits until retention has had its turn, and then fails if a sink keeps more of
// the log than twice the own records of all, and what they may keep. Those of others count: of records that
// several sinks hold back, each would get a copy.
func (d *depot) logGoes() error {
	time.Sleep(25 * time.Second)
	if d.disk.full.Load() || d.damaged {
		return nil
	}
	held, own := map[string]int64{}, int64(0)
	for _, name := range d.store.Sinks() {
		q, err := d.store.Queue(name)
		if err != nil {
			return err
		}
		st := q.Stats()
		held[name], own = st.HeldBytes, own+st.Bytes
	}
	for name, bytes := range held {
		if bytes > 2*own+d.limits.RetentionMaxBytes+6<<20 {
			return fmt.Errorf("sink %s holds back %d bytes of the log, of which %d are those of all sinks", name, bytes, own)
		}
	}
	return nil
}

// hidden is what the load of a parcel is replaced with.
var hidden = bytes.Repeat([]byte("-"), 16_000)

// isOpen reports whether a payload has a load that is not hidden.
func isOpen(payload []byte) bool { return bytes.HasSuffix(payload, []byte("xx")) }

// hide is the edit of a scrub.
func hide(payload []byte) ([]byte, bool) {
	if !isOpen(payload) {
		return nil, false
	}
	_, object := binary.Uvarint(payload)
	_, n := binary.Uvarint(payload[object:])
	head := object + n + 1
	return append(slices.Clone(payload[:head]), hidden[:len(payload)-head]...), true
}

// scrub rewrites what the store holds, while all sinks go on, in so many calls at most,
// or to its end if that is negative, and then looks for what is left.
func (d *depot) scrub(calls int) error {
	type rewriter func(uint64, store.Rewrite) (uint64, int, bool, error)
	edit := hide
	walk := func(rewrite rewriter) (n int, err error) {
		for after, end := uint64(0), false; !end && calls != 0; calls-- {
			var rewritten int
			if after, rewritten, end, err = rewrite(after, func(p []byte) ([]byte, bool) { return edit(p) }); err != nil {
				return n, err
			}
			n += rewritten
		}
		return n, nil
	}
	queues := func() (n int, err error) {
		var all []rewriter
		for _, name := range d.store.Sinks() {
			q, err := d.store.Queue(name)
			if err != nil {
				return 0, err
			}
			all = append(all, q.RewriteQueue, q.RewriteDeadLetters)
		}
		for _, rewrite := range all {
			more, err := walk(rewrite)
			if err != nil {
				return n, err
			}
			n += more
		}
		return n, nil
	}
	d.obsolete = true
	if _, err := walk(d.store.RewriteLog); err != nil {
		return err
	}
	for n := 1; n > 0 && calls != 0; {
		var err error
		if n, err = queues(); err != nil {
			return err
		}
	}
	if calls == 0 {
		return nil
	}
	synctest.Wait()
	found := 0
	edit = func(payload []byte) ([]byte, bool) {
		if isOpen(payload) {
			found++
		}
		return nil, false
	}
	if _, err := walk(d.store.RewriteLog); err != nil {
		return err
	}
	if _, err := queues(); err != nil {
		return err
	}
	if found > 0 && !d.damaged {
		return fmt.Errorf("%d payloads are as they were", found)
	}
	return nil
}

// flip changes a byte of a table.
func (d *depot) flip() error {
	names, err := d.disk.List("store/db")
	if err != nil {
		return err
	}
	slices.Sort(names)
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".sst") })
	if len(names) == 0 {
		return nil
	}
	name := filepath.Join("store/db", names[d.r.IntN(len(names))])
	content, err := d.content(name)
	if err != nil {
		return err
	}
	// Behind the first half of a table that is not tiny are the indexes, without which it
	// is lost whole.
	if len(content) < 4<<10 {
		return nil
	}
	content[d.r.IntN(max(len(content)/2, 1))] ^= 1 << d.r.IntN(8)
	d.damaged = true
	return d.rewrite(name, content)
}

func (d *depot) say(what string) {
	account.tell(what)
}

func (d *depot) run(n int) {
	if err := d.begin(live, moody, fickle); err != nil {
		d.t.Fatal(err)
	}
	defer time.Sleep(2 * time.Second) // writes that hang see that their process has ended
	defer func() {
		if d.store == nil {
			return
		}
		if _, err := d.end(); err != nil {
			d.t.Errorf("the last stop: %v", err)
		}
	}()
	play(d.t, d.r, n, slices.DeleteFunc(d.steps(), func(s step) bool { return slices.Contains(d.without, s.name) }), d.say)
	if d.t.Failed() || d.store == nil {
		return
	}
	d.heal()
	for _, name := range slices.Sorted(maps.Keys(d.boxes)) {
		d.check(name)
	}
}

// heal ends all trouble and waits until every queue is empty.
func (d *depot) heal() {
	d.say("heal")
	d.disk.full.Store(false)
	for _, w := range d.workers {
		w.Resume()
	}
	d.eachBox(func(b *box) { b.mode = well })
	d.healing = true
	if err := d.putBack(false); err != nil {
		d.t.Fatal(err)
	}
	for _, name := range []string{live, moody, fickle} {
		if err := d.reload(name); err != nil {
			d.t.Fatal(err)
		}
	}
	left := func() (n int64) {
		for _, w := range d.workers {
			n += w.Status().Queue.Length
		}
		return n
	}
	for _, w := range d.workers {
		w.Resume()
	}
	for range 60 {
		time.Sleep(time.Minute)
		synctest.Wait()
		if left() == 0 {
			return
		}
	}
	for name, w := range d.workers {
		if st := w.Status(); st.Queue.Length > 0 {
			d.t.Errorf("sink %s: an hour after the last trouble %d events wait: %+v", name, st.Queue.Length, st)
		}
	}
}

// again reports whether all of the object's later parcels that came before the i-th one
// come once more behind it, but for dead letters and those that a body leaves out by now: a kill may lose a dead letter, and what was accepted
// after it, and the worker behind one that left a write behind repeats that.
func (b *box) again(i int, letters map[string]bool) bool {
	p := b.accepted[i]
	for _, earlier := range b.accepted[:i] {
		if earlier.Object == p.Object && earlier.N > p.N && !letters[earlier.id()] && !b.leftOut[earlier.id()] && !slices.Contains(b.accepted[i+1:], earlier) {
			return false
		}
	}
	return true
}

// letters returns all dead letters of a queue: as many as it counts.
func (d *depot) letters(q *store.Queue) (all []store.DeadLetter, err error) {
	for after := uint64(0); ; after = all[len(all)-1].Position {
		some, err := q.DeadLetters(after, 1<<20)
		if err != nil {
			return all, err
		}
		if len(some) == 0 {
			break
		}
		all = append(all, some...)
	}
	if n := q.Stats().DeadLetters; n != int64(len(all)) && !d.damaged {
		err = fmt.Errorf("sink %s has %d dead letters and counts %d", q.Name(), len(all), n)
	}
	return all, err
}

// check compares what a receiver has with what was committed for it.
func (d *depot) check(name string) {
	b := d.boxes[name]
	b.mu.Lock()
	defer b.mu.Unlock()
	q, err := d.store.Queue(name)
	if err != nil {
		d.t.Fatal(err)
	}
	letters, err := d.letters(q)
	if err != nil && !d.damaged {
		d.t.Fatal(err)
	}
	set := map[string]bool{}
	for _, l := range letters {
		if p, err := unpack(l.Payload); err == nil {
			set[p.id()] = true
		}
	}
	last, got := map[int]int{}, map[string]bool{}
	for i, p := range b.accepted {
		repeated := got[p.id()]
		// A write-ahead log that is damaged near its end is cut off there, as by a kill.
		if p.N < last[p.Object] && !b.replayed[p.id()] && !(repeated && d.damaged) && !((d.killed || d.damaged || (b.late || b.halved) && repeated) && (b.again(i, set) || b.purged)) {
			d.t.Errorf("sink %s: %s arrives after %d/%d", name, p.id(), p.Object, last[p.Object])
		}
		last[p.Object] = max(last[p.Object], p.N)
		got[p.id()] = true
	}
	if name == live && len(letters) > 0 && !d.damaged {
		d.t.Errorf("sink live has %d dead letters", len(letters))
	}
	var lost []string
	for _, p := range b.committed {
		if !got[p.id()] && !set[p.id()] && !b.leftOut[p.id()] {
			lost = append(lost, p.id())
		}
	}
	if len(lost) > 0 && !d.damaged {
		d.t.Errorf("sink %s: %d of %d committed events are lost: %v", name, len(lost), len(b.committed), lost[:min(len(lost), 20)])
	}
}
