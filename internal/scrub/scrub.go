// Package scrub rewrites what the store holds as the accepted edits want it.
//
// Guarantees:
//
//   - A scrub can be stopped at any moment. It continues from the progress that it kept,
//     and may look at the same again.
//   - When it is done, nothing that the edits hide is in the log, the queues, the dead letters, the ledger,
//     what routes hold, the files of the store and its copies, except what is counted as failed.
//   - A recorded state is replaced between two commits of the committer: what was recorded
//     meanwhile counts.
//   - It rests most of the time, and while the store has no room.
package scrub

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/internal/wait"
	"github.com/watcherd/watcherd/pkg/compact"
)

// Stages, in order: what goes from the log, or from what a route holds, to a sink comes after them.
const (
	Log    = "log"
	Held   = "held"
	Ledger = "ledger"
	Sinks  = "sinks"
	Files  = "files"
)

// Stages are all of them.
var Stages = [...]string{Log, Held, Ledger, Sinks, Files}

// Config is what a Run works with.
type Config struct {
	Store        *store.Store
	Dictionaries *compact.Dictionaries
	Edits        *redact.Table
	AtBarrier    func(func(commit.Barrier)) error // see [commit.Committer.AtBarrier]
	Keep         func(ledger.Scrub) error         // makes the progress durable
	Erase        func(context.Context) error      // is done last, for what has copies of the store; nil: nothing has
	Count        func(rewritten, failed int)
	Now          func() time.Time
}

// Run is the work of one scrub. One goroutine uses it.
type Run struct {
	Config
	state    ledger.Scrub
	revise   *redact.Reviser
	kept     time.Time // when state was kept last
	changed  int64     // in a round
	obsolete bool      // the store's files may have what was rewritten
}

// New returns the rest of the work of a scrub.
func New(cfg Config, state ledger.Scrub) *Run {
	return &Run{Config: cfg, state: state, revise: redact.NewReviser(cfg.Edits, cfg.Dictionaries), obsolete: state.Rewritten > 0}
}

// Next carries out the present stage and goes to the one after it. It returns
// the progress: the scrub is done once that is not pending.
func (r *Run) Next(ctx context.Context) (ledger.Scrub, error) {
	if !slices.Contains(Stages[:], r.state.Stage) {
		r.begin(Stages[0])
	}
	err := r.keep()
	if err == nil {
		err = r.stage(ctx)
	}
	if err != nil {
		return r.state, err
	}
	if i := slices.Index(Stages[:], r.state.Stage) + 1; i < len(Stages) {
		r.begin(Stages[i])
		return r.state, nil
	}
	r.state.Done, r.state.Stage = r.Now(), ""
	return r.state, r.keep()
}

func (r *Run) begin(stage string) {
	r.state.Stage, r.state.Name, r.state.After, r.state.Key = stage, "", 0, ""
}

func (r *Run) stage(ctx context.Context) error {
	switch r.state.Stage {
	case Log:
		return r.walk(ctx, func() (bool, error) { return r.step(r.Store.RewriteLog) })
	case Held:
		return r.walk(ctx, r.held)
	case Ledger:
		return r.ledger(ctx)
	case Sinks:
		return r.sinks(ctx)
	default:
		return r.files(ctx)
	}
}

func (r *Run) keep() error {
	r.kept = time.Now()
	return r.Keep(r.state)
}

const (
	keepEvery = time.Second // how often progress is kept
	// restTimes is how many times as long as it worked a scrub rests, at most
	// restMost, after each step.
	restTimes = 3
	restMost  = time.Second
)

// walk takes steps until one is the last, and rests in between. It does not work while
// the store has no room for what it writes.
func (r *Run) walk(ctx context.Context, step func() (end bool, err error)) error {
	for {
		if err := r.room(ctx); err != nil {
			return err
		}
		began := time.Now()
		end, err := step()
		if err != nil || end {
			return err
		}
		if err := r.rest(ctx, time.Since(began)); err != nil {
			return err
		}
	}
}

// roomAfter is how long a scrub waits for room before it makes some.
const roomAfter = 30 * time.Second

// room waits until the store has room for a step. What the scrub has overwritten counts against the budget until
// it is compacted away, and only later writes, which wait for room as well, would have that done.
func (r *Run) room(ctx context.Context) error {
	for r.obsolete {
		wait, cancel := context.WithTimeout(ctx, roomAfter)
		err := r.Store.WaitIngest(wait)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if r.Store.Health().Reason != store.ReasonBudget {
			continue
		}
		r.obsolete = false
		if err := r.Store.EraseObsolete(ctx); err != nil {
			return err
		}
	}
	return r.Store.WaitIngest(ctx)
}

func (r *Run) rest(ctx context.Context, worked time.Duration) error {
	if time.Since(r.kept) > keepEvery {
		if err := r.keep(); err != nil {
			return err
		}
	}
	return wait.For(ctx, min(restTimes*worked, restMost))
}

// step is one call of a method of the store that rewrites records.
func (r *Run) step(rewrite func(uint64, store.Rewrite) (uint64, int, bool, error)) (end bool, err error) {
	last, n, end, err := rewrite(r.state.After, func(payload []byte) ([]byte, bool) {
		revised, changed, err := r.revise.Record(payload)
		if err != nil {
			r.failed()
		}
		return revised, changed && err == nil
	})
	r.state.After = last
	r.counted(n)
	return end, err
}

func (r *Run) counted(n int) {
	r.state.Rewritten += int64(n)
	r.changed += int64(n)
	r.obsolete = r.obsolete || n > 0
	r.Count(n, 0)
}

func (r *Run) failed() {
	r.state.Failed++
	r.Count(0, 1)
}

// rounds bounds how often the sinks are looked at.
const rounds = 6

// sinks rewrites the payloads that queues have copies of, and the dead letters. Further rounds
// find entries that a sink moved meanwhile; the last round changes nothing.
func (r *Run) sinks(ctx context.Context) error {
	for round := range rounds {
		r.changed = 0
		for _, name := range r.Store.Sinks() {
			q, err := r.Store.Queue(name)
			if err != nil {
				continue // purged this moment
			}
			for _, rewrite := range []func(uint64, store.Rewrite) (uint64, int, bool, error){q.RewriteQueue, q.RewriteDeadLetters} {
				r.state.After = 0
				if err := r.walk(ctx, func() (bool, error) { return r.step(rewrite) }); err != nil {
					return err
				}
			}
		}
		if round > 0 && r.changed == 0 {
			return nil
		}
	}
	return errors.New("the sinks' queues keep changing")
}

// files removes the dictionaries, to which nothing refers now, and then everything
// that was overwritten or deleted from the store's files. The commit that removes them
// notes it: the same content may be in use again by the time the scrub continues.
func (r *Run) files(ctx context.Context) error {
	if r.state.Failed == 0 && len(r.state.Retired) > 0 {
		b := r.Store.NewBatch()
		defer b.Discard()
		for _, id := range r.state.Retired {
			b.DeleteMeta(ledger.DictionaryKey(id))
		}
		r.state.Retired = nil
		b.PutMeta(ledger.ScrubMeta, ledger.Encode(r.state))
		if err := r.Store.Commit(b); err != nil {
			return err
		}
		if err := r.keep(); err != nil {
			return err
		}
	}
	if err := r.Store.EraseObsolete(ctx); err != nil || r.Erase == nil {
		return err
	}
	return r.Erase(ctx)
}

// held rewrites a part of the events that routes hold, at a barrier, as the committer replaces
// them too.
func (r *Run) held() (end bool, err error) {
	ended := r.AtBarrier(func(commit.Barrier) {
		b := r.Store.NewBatch()
		defer b.Discard()
		looked, changed := 0, 0
		end = true
		err = timer.NewTable(r.Store).Rows(nil, r.state.Key, func(key string, row *timer.Row) error {
			if looked == ledgerStep || b.Size() >= r.Store.BatchBytes() {
				end = false
				return errEnough
			}
			looked++
			r.state.Key = key + "\x00"
			if row == nil {
				r.failed()
				return nil
			}
			if len(row.Record) == 0 {
				return nil
			}
			revised, differs, err := r.revise.Record(row.Record)
			if err != nil {
				r.failed()
			} else if differs {
				changed++
				timer.Revise(b, key, row, revised)
			}
			return nil
		})
		if errors.Is(err, store.ErrUnreadable) {
			r.failed() // what is behind it has been looked at
		}
		if err == nil || errors.Is(err, errEnough) || errors.Is(err, store.ErrUnreadable) {
			err = r.Store.Commit(b)
		}
		r.counted(changed)
	})
	return end, errors.Join(err, ended)
}

var errEnough = errors.New("enough")

// ledgerStep is how many states are rewritten between two commits, at most.
const ledgerStep = 64

// recordedState is a state as it was scanned.
type recordedState struct {
	key            string
	value, revised []byte
}

// ledger rewrites the recorded states, including those of unwatched resources.
func (r *Run) ledger(ctx context.Context) error {
	for _, partition := range r.Store.Partitions() { // sorted
		gr, _ := ledger.SplitPartition(partition)
		if partition < r.state.Name || !r.state.Concerns(gr.String()) {
			continue
		}
		if partition != r.state.Name {
			r.state.Name, r.state.Key = partition, ""
		}
		if err := r.walk(ctx, func() (bool, error) { return r.partition(partition, gr) }); err != nil {
			return err
		}
	}
	return nil
}

// partition rewrites a few states of a part of the ledger, from where the last call ended.
func (r *Run) partition(partition string, gr schema.GroupResource) (end bool, err error) {
	var changed []recordedState
	looked, size, last := 0, 0, r.state.Key
	err = r.Store.ScanStateAfter(partition, "", last, func(key string, value []byte) error {
		if looked == ledgerStep || size >= r.Store.BatchBytes() {
			return errEnough
		}
		looked++
		last = key
		revised, differs, err := r.revise.State(gr, value)
		if err != nil {
			r.failed()
		}
		if differs && err == nil {
			changed = append(changed, recordedState{key, bytes.Clone(value), revised})
			size += len(revised)
		}
		return nil
	})
	more := errors.Is(err, errEnough)
	if err != nil && !more && !errors.Is(err, store.ErrUnreadable) {
		return false, err
	}
	if err := r.write(partition, gr, changed); err != nil {
		return false, err
	}
	r.state.Key = last
	return !more, nil
}

// write puts the revised states in place, between two commits of the committer: what it
// recorded meanwhile counts.
func (r *Run) write(partition string, gr schema.GroupResource, changed []recordedState) error {
	if len(changed) == 0 {
		return nil
	}
	var err error
	ended := r.AtBarrier(func(commit.Barrier) {
		b := r.Store.NewBatch()
		defer b.Discard()
		for i := range changed {
			c := &changed[i]
			now, ok, readErr := r.Store.State(partition, c.key, nil)
			if readErr != nil || !ok {
				continue
			}
			if !bytes.Equal(now, c.value) {
				revised, differs, reviseErr := r.revise.State(gr, now)
				if reviseErr != nil || !differs {
					continue
				}
				c.revised = revised
			}
			b.PutState(partition, c.key, c.revised)
		}
		err = r.Store.Commit(b)
	})
	if err = errors.Join(err, ended); err == nil {
		r.counted(len(changed))
	}
	return err
}
