package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// scenario is one random life of a sink: what it is fed, how it fails, when the
// process ends and how.
type scenario struct {
	Seed     uint64
	Objects  int
	Changes  int // of each object
	Delivery sinks.Delivery
	MaxBatch int     // the sink's limit
	Faults   float64 // share of writes that fail
	Named    bool    // the sink says which events failed, if it can
	Poison   int     // one in so many events is always refused; 0: none
	Panic    int     // one in so many events makes the sink panic; 0: none
	Bad      int     // one in so many records can't be decoded; 0: none
	Ends     []end   // one run after the other; the last one runs to the end
	Commands int     // seconds between the commands of an operator, about; 0: none
	Rate     Rate
	Beats    bool // heartbeats
}

// end is how a run ends.
type end struct {
	After    time.Duration
	Crash    bool
	Unsynced int // percent of unsynced data that survives the crash; 100: a killed process
}

func drawScenario(t *rapid.T) scenario {
	some := func(name string) int { return rapid.SampledFrom([]int{0, 0, 5, 30}).Draw(t, name) }
	return scenario{
		Seed:    rapid.Uint64().Draw(t, "seed"),
		Objects: rapid.IntRange(1, 40).Draw(t, "objects"),
		Changes: rapid.IntRange(1, 12).Draw(t, "changes"),
		Delivery: sinks.Delivery{
			MaxEvents:   rapid.SampledFrom([]int{1, 2, 7, 50}).Draw(t, "maxEvents"),
			MaxBytes:    rapid.SampledFrom([]int{1, 3000, 1 << 20}).Draw(t, "maxBytes"),
			MaxWait:     rapid.SampledFrom([]time.Duration{0, 0, 200 * time.Millisecond}).Draw(t, "maxWait"),
			Concurrency: rapid.IntRange(1, 5).Draw(t, "concurrency"),
		},
		MaxBatch: rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "maxBatch"),
		Faults:   rapid.SampledFrom([]float64{0, 0.1, 0.5}).Draw(t, "faults"),
		Named:    rapid.Bool().Draw(t, "named"),
		Poison:   some("poison"), Panic: some("panic"), Bad: some("bad"),
		Ends: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) end {
			return end{
				After:    time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond,
				Crash:    rapid.Bool().Draw(t, "crash"),
				Unsynced: rapid.SampledFrom([]int{0, 50, 100, 100}).Draw(t, "unsynced"),
			}
		}), 0, 4).Draw(t, "ends"),
	}
}

// world plays a scenario and checks the guarantees of the package.
type world struct {
	scenario
	t     *errorLog
	start time.Time
	calm  time.Duration // from then on nothing fails but what always does

	mu         sync.Mutex
	dice       *rand.Rand      // guarded by mu
	run        int             // guarded by mu; number of the process's life
	crashed    bool            // guarded by mu; a store was brought back after this
	flying     map[int]bool    // guarded by mu; objects in a Write of this run
	last       map[int]int     // guarded by mu; last change accepted, by object, of this run
	accepted   map[change]bool // guarded by mu
	refusals   map[change]int  // guarded by mu; known to be of this event
	writes     int
	duplicates int
	letters    func() []store.DeadLetter // of this run
	decoding   atomic.Uint64
}

// skipped reports whether a change became a dead letter on request.
func (w *world) skipped(c change) bool {
	for _, l := range w.letters() {
		var letter change
		if json.Unmarshal(l.Payload, &letter) == nil && letter.Object == c.Object && letter.N == c.N && strings.HasPrefix(l.Reason, letterSkipped) {
			return true
		}
	}
	return false
}

// operate gives random commands for so long.
func (w *world) operate(ctx context.Context, worker *running, long time.Duration) {
	dice := rand.New(rand.NewPCG(w.Seed, 7))
	for end := time.Now().Add(long); ; {
		left := time.Until(end)
		if w.Commands > 0 {
			left = min(left, time.Duration(dice.IntN(2*w.Commands*1000))*time.Millisecond)
		}
		if time.Sleep(left); !time.Now().Before(end) {
			return
		}
		switch dice.IntN(8) {
		case 0:
			worker.Pause()
		case 1, 2:
			worker.Resume()
		case 3:
			worker.Retry()
		case 4, 5:
			w.decoding.Add(1)
		case 6:
			_, _ = worker.Skip(ctx, 0) // there may be none
		case 7:
			items, err := worker.cfg.Queue.Read(0, 100, 1<<20)
			if err == nil && len(items) > 0 {
				_, _ = worker.Skip(ctx, items[dice.IntN(len(items))].Sequence) // it may be in flight
			}
		}
	}
}

// errorLog collects what went wrong, for a report from the test's goroutine.
type errorLog struct {
	testing.TB

	mu    sync.Mutex
	lines []string // guarded by mu
}

func (l *errorLog) Errorf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

// trait decides, for good, whether one in so many changes has a property.
func (w *world) trait(c change, salt uint64, oneIn int) bool {
	if oneIn == 0 {
		return false
	}
	r := rand.New(rand.NewPCG(w.Seed^salt, uint64(c.Object)<<32|uint64(c.N)))
	return r.IntN(oneIn) == 0
}

func (w *world) poison(c change) bool { return w.trait(c, 1, w.Poison) }
func (w *world) panics(c change) bool { return w.trait(c, 2, w.Panic) }
func (w *world) bad(c change) bool    { return w.trait(c, 3, w.Bad) }

// given reports whether a change may be over and done with.
func (w *world) given(c change) bool {
	return w.accepted[c] || w.bad(c) || w.refusals[c] >= 3
}

// attempt is a Write of the run with that number.
func (w *world) attempt(ctx context.Context, run int, batch []change) error {
	if !w.begin(run, batch) {
		return errors.New("the process is gone")
	}
	w.mu.Lock()
	delay := time.Duration(w.dice.IntN(300)) * time.Millisecond
	w.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if run != w.run {
		return errors.New("the process is gone")
	}
	for _, c := range batch {
		delete(w.flying, c.Object)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return w.answerLocked(batch)
}

// begin checks the guarantees of order.
func (w *world) begin(run int, batch []change) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if run != w.run {
		return false
	}
	w.writes++
	if n := len(batch); n == 0 || n > w.Delivery.MaxEvents || w.MaxBatch > 0 && n > w.MaxBatch {
		w.t.Errorf("a batch of %d", n)
	}
	here := map[change]bool{}
	for _, c := range batch {
		if w.flying[c.Object] {
			w.t.Errorf("%v written while its object was in flight", c)
		}
		if last, seen := w.last[c.Object]; seen && c.N <= last {
			w.t.Errorf("%v written after change %d was accepted", c, last)
		}
		for n := 1; n < c.N; n++ {
			if earlier := (change{Object: c.Object, N: n}); !w.given(earlier) && !here[earlier] && !w.skipped(earlier) {
				w.t.Errorf("%v written before %v was accepted or given up", c, earlier)
			}
		}
		here[c] = true
	}
	for _, c := range batch {
		w.flying[c.Object] = true
	}
	return true
}

// answerLocked rolls the dice on a batch that has arrived.
func (w *world) answerLocked(batch []change) error {
	failed := map[int]error{}
	for i, c := range batch {
		switch {
		case w.panics(c):
			w.refusedLocked(batch, c)
			panic(fmt.Sprintf("cannot bear %v", c))
		case w.poison(c):
			failed[i] = sinks.Poison(fmt.Errorf("400: %v", c))
		}
	}
	if time.Since(w.start) < w.calm && w.dice.Float64() < w.Faults {
		switch w.dice.IntN(8) {
		case 0:
			return sinks.RetryAfter(errors.New("429"), time.Duration(w.dice.IntN(20))*time.Second)
		case 1:
			w.refusedLocked(batch, batch[0]) // it may come to count as a refusal
			return sinks.Pause(errors.New("403"))
		case 2, 3:
			return errors.New("503")
		default:
			for i := range batch {
				if w.dice.IntN(3) == 0 && failed[i] == nil {
					failed[i] = errors.New("503 for this one")
				}
			}
		}
	}
	if len(failed) == 0 {
		w.acceptLocked(batch, nil)
		return nil
	}
	stuck := map[int]error{} // by object
	for i, c := range batch {
		if why := stuck[c.Object]; why != nil {
			failed[i] = sinks.Held(why)
		} else if failed[i] != nil {
			stuck[c.Object] = failed[i]
		}
	}
	if !w.Named {
		for i := range failed {
			if class, _ := sinks.Classify(failed[i]); class == sinks.ClassPoison {
				w.refusedLocked(batch, batch[i])
				return sinks.Poison(errors.New("400"))
			}
		}
		return errors.New("503")
	}
	for i, err := range failed {
		if class, _ := sinks.Classify(err); class == sinks.ClassPoison {
			w.refusals[batch[i]]++
		}
	}
	w.acceptLocked(batch, failed)
	return &sinks.BatchError{Failed: failed}
}

// refusedLocked counts a refusal that can only be of one event.
func (w *world) refusedLocked(batch []change, c change) {
	if len(batch) == 1 {
		w.refusals[c]++
	}
}

func (w *world) acceptLocked(batch []change, failed map[int]error) {
	for i, c := range batch {
		if failed[i] != nil {
			continue
		}
		if w.accepted[c] {
			w.duplicates++
			if !w.crashed {
				w.t.Errorf("%v accepted twice without a crash", c)
			}
		}
		w.accepted[c] = true
		w.last[c.Object] = c.N
	}
}

// play runs the scenario. It is called in a synctest bubble.
func (w *world) play(t *testing.T) {
	w.start = time.Now()
	w.calm = time.Minute
	fs := vfs.NewCrashableMem()
	s := &storage{t: t, fs: fs}
	s.open()
	for _, c := range numbered(w.Changes, upTo(w.Objects)...) {
		c.Bad = w.bad(c)
		s.add(c)
	}
	for i := range len(w.Ends) + 1 {
		run := w.nextRun()
		w.letters = s.letters
		r := newReceiver(w.t, func(ctx context.Context, batch []change) error { return w.attempt(ctx, run, batch) })
		r.limits.MaxBatch = w.MaxBatch
		worker := start(t, s, r, func(c *Config) {
			c.Delivery, c.DrainTimeout = w.Delivery, 100*time.Millisecond
			c.Retry.ProbeInterval = time.Minute
			c.Logger = nil
			c.Rate = w.Rate
			c.Decoding = w.decoding.Load
			if w.Beats {
				c.Heartbeat = Heartbeat{Every: 7 * time.Second, Make: func() *event.Event { return &event.Event{Type: event.Heartbeat, ID: "beat"} }}
			}
		})
		last := i == len(w.Ends)
		after := 20 * time.Second
		if !last {
			after = w.Ends[i].After
		}
		w.operate(t.Context(), worker, after)
		if last {
			worker.Resume()
			w.settle(s, worker)
			worker.stop()
			w.check(s)
			s.close()
			return
		}
		if !w.Ends[i].Crash {
			worker.stop()
			s.restart()
			continue
		}
		w.crash()
		clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: w.Ends[i].Unsynced, RNG: rand.New(rand.NewPCG(w.Seed, uint64(i)))})
		worker.stop()
		s.close()
		fs = clone
		s.fs = clone
		s.open()
	}
}

// settle waits until the queue is empty. A sink that panics on whatever is left
// stays paused until an operator insists.
func (w *world) settle(s *storage, worker *running) {
	for range 400 {
		if s.queue.Stats().Length == 0 {
			return
		}
		time.Sleep(10 * time.Second)
		if time.Since(w.start) > w.calm+20*time.Minute {
			worker.Resume()
		}
	}
}

// nextRun begins the next life of the process.
func (w *world) nextRun() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run++
	w.flying, w.last = map[int]bool{}, map[int]int{}
	return w.run
}

// crash makes the sink deaf for the run.
func (w *world) crash() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run++
	w.crashed = true
}

// check is the reckoning: every event is accepted or a dead letter that was
// earned, and nothing is left.
func (w *world) check(s *storage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	letters := map[string]string{}
	for _, l := range s.letters() {
		letters[string(l.Payload)] = l.Reason
	}
	if n := s.queue.Stats().Length; n != 0 {
		w.t.Errorf("%d events are left in the queue", n)
	}
	dead := 0
	for _, c := range numbered(w.Changes, upTo(w.Objects)...) {
		if !w.given(c) && !w.skipped(c) {
			w.t.Errorf("%v was lost", c)
		}
		if w.accepted[c] && (w.poison(c) || w.panics(c) || w.bad(c)) {
			w.t.Errorf("%v was accepted; the test is wrong", c)
		}
		if !w.accepted[c] {
			dead++
		}
	}
	if dead != len(letters) {
		w.t.Errorf("%d events were not accepted, and there are %d dead letters", dead, len(letters))
	}
}

func TestEveryEventArrivesInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sc := drawScenario(rt)
		w := &world{
			scenario: sc,
			t:        &errorLog{TB: t},
			dice:     rand.New(rand.NewPCG(sc.Seed, 0)),
			accepted: map[change]bool{},
			refusals: map[change]int{},
		}
		synctest.Test(t, w.play)
		for _, line := range w.t.lines[:min(len(w.t.lines), 20)] {
			rt.Errorf("%s", line)
		}
		rt.Logf("%d writes, %d accepted, %d duplicates", w.writes, len(w.accepted), w.duplicates)
	})
}
