package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/store"
)

// The stages. What a sink moves while it is looked at may move from the log to its
// queue and on to its dead letters, which is the order of the stages; what moved in
// between is found when they are looked at again.
const (
	scrubLog     = "log"
	scrubQueues  = "queues"
	scrubLetters = "deadLetters"
	scrubLedger  = "ledger"
	scrubAgain   = "again"
	scrubFiles   = "files"
)

var scrubStages = [...]string{scrubLog, scrubQueues, scrubLetters, scrubLedger, scrubAgain, scrubFiles}

// scrubber is the running scrub. The owner starts and stops it, and changes the task
// while it does not run.
type scrubber struct {
	cancel context.CancelFunc
	ended  chan struct{} // nil: it does not run

	mu    sync.Mutex
	state ledger.Scrub // guarded by mu
}

func (s *scrubber) load() ledger.Scrub {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *scrubber) set(state ledger.Scrub) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
}

// loadScrub takes up what an earlier process left.
func (m *Manager) loadScrub() error {
	stored, ok, err := m.store.Meta(ledger.ScrubMeta)
	if err != nil || !ok {
		return err
	}
	var state ledger.Scrub
	if err := json.Unmarshal(stored, &state); err != nil {
		return fmt.Errorf("state of the scrub: %w", err)
	}
	m.dicts.Retire(func(_ string, id uint32) bool { return slices.Contains(state.Retired, id) })
	m.scrub.set(state)
	return nil
}

// needScrub adds resources to the task. It starts over: what it has looked at may hold
// something that is to be hidden now.
func (m *Manager) needScrub(b *store.Batch, tightened []schema.GroupResource) ledger.Scrub {
	state := m.scrub.load()
	next := ledger.Scrub{Began: m.cfg.Now()}
	if state.Pending() {
		next.Resources, next.Retired = slices.Clone(state.Resources), state.Retired
	}
	for _, gr := range tightened {
		if !next.Concerns(gr.String()) {
			next.Resources = append(next.Resources, gr.String())
		}
	}
	slices.Sort(next.Resources)
	b.PutMeta(ledger.ScrubMeta, ledger.Encode(next))
	return next
}

// startScrub starts the scrub that is pending, once the sources that recorded by
// earlier edits are stopped. While the served resources are not known it waits: the
// edits of a resource then are those of every watch that may mean it, which is good
// for reading and too much for good. Only the owner calls it.
func (m *Manager) startScrub(ctx context.Context) error {
	state := m.scrub.load()
	if !state.Pending() || m.scrub.ended != nil || m.undiscovered {
		return nil
	}
	if !state.Dictionaries {
		state.Retired = m.dicts.Retire(func(resource string, id uint32) bool {
			resource, _, _ = strings.Cut(resource, " ")
			return state.Concerns(resource) || slices.Contains(state.Retired, id)
		})
		slices.Sort(state.Retired)
		state.Dictionaries = true
		if err := m.committer.AtBarrier(func(commit.Barrier) {}); err != nil { // what is being committed may have one of them
			return err
		}
		if err := ledger.PutMeta(m.store, ledger.ScrubMeta, ledger.Encode(state)); err != nil {
			return fmt.Errorf("%w: keep the retired dictionaries: %w", ledger.ErrStore, err)
		}
		m.scrub.set(state)
		m.log.Info("the configuration hides more than before: what the store holds is rewritten", "resources", state.Resources)
	}
	ctx, m.scrub.cancel = context.WithCancel(ctx)
	m.scrub.ended = make(chan struct{})
	m.metrics.scrubbing.Set(1)
	go func() {
		defer close(m.scrub.ended)
		err := m.runScrub(ctx)
		switch {
		case ctx.Err() != nil || errors.Is(err, commit.ErrEnded):
		case errors.Is(err, store.ErrFailed):
			m.fail(fmt.Errorf("%w: rewrite the store: %w", ledger.ErrStore, err))
		case err != nil:
			m.log.Error("what the store holds could not be rewritten; it is tried again at the next reload or start", "error", err)
		}
	}()
	return nil
}

// stopScrub ends the running scrub, if there is one, and waits for it.
func (m *Manager) stopScrub() {
	if m.scrub.ended == nil {
		return
	}
	m.scrub.cancel()
	<-m.scrub.ended
	m.scrub.ended = nil
}

// scrubRun is the work of one scrub.
type scrubRun struct {
	m       *Manager
	state   ledger.Scrub
	revise  *redact.Reviser
	kept    time.Time // when state was kept last
	changed int64     // in the stage
}

func (m *Manager) runScrub(ctx context.Context) error {
	r := &scrubRun{m: m, state: m.scrub.load(), revise: redact.NewReviser(m.edits.Load(), m.dicts)}
	first := max(slices.Index(scrubStages[:], r.state.Stage), 0)
	for _, stage := range scrubStages[first:] {
		if stage != r.state.Stage {
			r.state.Stage, r.state.Name, r.state.After, r.state.Key = stage, "", 0, ""
		}
		if err := r.keep(); err != nil {
			return err
		}
		if err := r.stage(ctx, stage); err != nil {
			return err
		}
	}
	r.state.Done, r.state.Stage = m.cfg.Now(), ""
	if r.state.Failed == 0 {
		r.state.Retired = nil
	}
	if err := r.keep(); err != nil {
		return err
	}
	m.metrics.scrubbing.Set(0)
	m.metrics.scrubbed.Set(float64(r.state.Done.Unix()))
	log := m.log.Info
	if r.state.Failed > 0 {
		log = m.log.Warn
	}
	log("what the store holds has been rewritten as the configuration wants it", "resources", r.state.Resources,
		"rewritten", r.state.Rewritten, "failed", r.state.Failed, "took", r.state.Done.Sub(r.state.Began))
	return nil
}

func (r *scrubRun) stage(ctx context.Context, stage string) error {
	switch stage {
	case scrubLog:
		return r.walk(ctx, func() (bool, error) { return r.step(r.m.store.RewriteLog) })
	case scrubQueues, scrubLetters:
		return r.sinks(ctx, stage)
	case scrubLedger:
		return r.ledger(ctx)
	case scrubAgain:
		return r.again(ctx)
	default:
		return r.files(ctx)
	}
}

// keep makes the state durable, and shows it.
func (r *scrubRun) keep() error {
	r.kept = time.Now()
	r.m.scrub.set(r.state)
	return ledger.PutMeta(r.m.store, ledger.ScrubMeta, ledger.Encode(r.state))
}

const (
	scrubKeep = time.Second // how often progress is kept
	// scrubRest is how many times as long as it worked a scrub rests, at most
	// scrubMost, after each step.
	scrubRest = 3
	scrubMost = time.Second
)

// walk takes steps until one is the last, and rests in between. It does not work while
// the store has no room for what it writes.
func (r *scrubRun) walk(ctx context.Context, step func() (end bool, err error)) error {
	for {
		if err := r.m.store.WaitIngest(ctx); err != nil {
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

func (r *scrubRun) rest(ctx context.Context, worked time.Duration) error {
	if time.Since(r.kept) > scrubKeep {
		if err := r.keep(); err != nil {
			return err
		}
	}
	return sleep(ctx, min(scrubRest*worked, scrubMost))
}

// step is one call of a method of the store that rewrites records.
func (r *scrubRun) step(rewrite func(uint64, store.Rewrite) (uint64, int, bool, error)) (end bool, err error) {
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

func (r *scrubRun) counted(n int) {
	r.state.Rewritten += int64(n)
	r.changed += int64(n)
	r.m.metrics.scrubbedTotal.WithLabelValues("rewritten").Add(float64(n))
}

func (r *scrubRun) failed() {
	r.state.Failed++
	r.m.metrics.scrubbedTotal.WithLabelValues("failed").Inc()
}

// sinks goes through what the queues carry themselves, or through the dead letters.
func (r *scrubRun) sinks(ctx context.Context, stage string) error {
	for _, name := range r.m.store.Sinks() { // sorted
		if name < r.state.Name {
			continue
		}
		if name != r.state.Name {
			r.state.Name, r.state.After = name, 0
		}
		q, err := r.m.store.Queue(name)
		if err != nil {
			continue // purged this moment
		}
		rewrite := q.RewriteQueue
		if stage == scrubLetters {
			rewrite = q.RewriteDeadLetters
		}
		if err := r.walk(ctx, func() (bool, error) { return r.step(rewrite) }); err != nil {
			return err
		}
	}
	return nil
}

// scrubRounds bounds how often the queues are looked at again.
const scrubRounds = 5

// again looks for what a sink moved while it was looked for.
func (r *scrubRun) again(ctx context.Context) error {
	for range scrubRounds {
		r.changed = 0
		for _, stage := range []string{scrubQueues, scrubLetters} {
			r.state.Name, r.state.After = "", 0
			if err := r.sinks(ctx, stage); err != nil {
				return err
			}
		}
		if r.changed == 0 {
			return nil
		}
	}
	return errors.New("the sinks' queues keep changing")
}

// files removes the dictionaries, to which nothing refers now, and then everything
// that was overwritten or deleted from the store's files.
func (r *scrubRun) files(ctx context.Context) error {
	if r.state.Failed == 0 {
		b := r.m.store.NewBatch()
		defer b.Discard()
		for _, id := range r.state.Retired {
			if r.m.dicts.Retired(id) { // or an earlier life has removed it, and the same content is in use again
				b.DeleteMeta(ledger.DictionaryKey(id))
			}
		}
		if err := r.m.store.Commit(b); err != nil {
			return err
		}
	}
	return r.m.store.EraseObsolete(ctx)
}

// ledgerStep is how many states are rewritten between two commits.
const ledgerStep = 64

// recordedState is a state as it was scanned.
type recordedState struct {
	key            string
	value, revised []byte
}

// ledger goes through the recorded states, those of resources that nothing watches
// included.
func (r *scrubRun) ledger(ctx context.Context) error {
	for _, partition := range r.m.store.Partitions() { // sorted
		gr, _ := ledger.SplitPartition(partition)
		if partition < r.state.Name || !r.state.Concerns(gr.String()) {
			continue
		}
		if partition != r.state.Name {
			r.state.Name, r.state.Key = partition, ""
		}
		if err := r.partition(ctx, partition, gr); err != nil {
			return err
		}
	}
	return nil
}

func (r *scrubRun) partition(ctx context.Context, partition string, gr schema.GroupResource) error {
	var changed []recordedState
	began := time.Now()
	looked := 0
	after := r.state.Key
	err := r.m.store.ScanState(partition, "", func(key string, value []byte) error {
		if key <= after && after != "" {
			return nil
		}
		revised, differs, err := r.revise.State(gr, value)
		if err != nil {
			r.failed()
		}
		if differs && err == nil {
			changed = append(changed, recordedState{key, bytes.Clone(value), revised})
		}
		if looked++; looked%ledgerStep > 0 {
			return nil
		}
		if err := r.write(partition, gr, changed); err != nil {
			return err
		}
		changed = changed[:0]
		r.state.Key = key
		err = r.rest(ctx, time.Since(began))
		began = time.Now()
		return err
	})
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return err
	}
	return r.write(partition, gr, changed)
}

// write puts the revised states in place, between two commits of the committer: what it
// recorded meanwhile counts.
func (r *scrubRun) write(partition string, gr schema.GroupResource, changed []recordedState) error {
	if len(changed) == 0 {
		return nil
	}
	var err error
	ended := r.m.committer.AtBarrier(func(commit.Barrier) {
		b := r.m.store.NewBatch()
		defer b.Discard()
		for i := range changed {
			c := &changed[i]
			now, ok, readErr := r.m.store.State(partition, c.key, nil)
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
		err = r.m.store.Commit(b)
	})
	if err = errors.Join(err, ended); err == nil {
		r.counted(len(changed))
	}
	return err
}

// scrubStatus is the status of the last scrub, nil if there never was one.
func (m *Manager) scrubStatus() *status.Scrub {
	s := m.scrub.load()
	if s.Began.IsZero() {
		return nil
	}
	return &status.Scrub{
		Resources: s.Resources, Began: s.Began, Done: s.Done, Stage: s.Stage, Rewritten: s.Rewritten, Failed: s.Failed,
	}
}
