package commit

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

const (
	// maxGroup bounds how many changes share a commit, and how many objects of a job. Their bytes are bounded by
	// the store: see store.Store.BatchBytes.
	maxGroup = 512

	// checkpointInterval is how often an idle feed's checkpoint is written.
	// Bookmarks come about once a minute.
	checkpointInterval = 10 * time.Second
)

// Store is the durable store as the committer uses it. *store.Store implements it.
type Store interface {
	ledger.Store
	ledger.Writer
	timer.Store
	// Old is the sequence below which records may leave the log long before the next ones.
	Old(now time.Time) uint64
	// LogStats has the last sequence.
	LogStats() store.LogStats
	// Health reports whether ingest is paused, for lack of room.
	Health() store.Health
	// Partitions are the parts of the ledger.
	Partitions() []string
	// Ingests reports whether WaitIngest need not wait.
	Ingests() bool
	// WaitIngest returns when ingest is not paused.
	WaitIngest(ctx context.Context) error
	// BatchBytes is how large a batch may become before it is committed.
	BatchBytes() int
}

// Router decides which sinks are given a change. *route.Router implements it. Only the
// committer's goroutine calls it.
type Router interface {
	Route(dst []record.Target, c *route.Change) []record.Target
	// Sinks appends the sinks to which a watch's events of a resource may lead.
	Sinks(dst []string, watch string, resource event.Resource) []string
	// Judge sets the verdicts of a state, and routes nothing.
	Judge(c *route.Change)
	// Timers are those of the routes that hold events, or matches, over time.
	Timers() []route.Timer
}

// Config is what a Committer works with.
type Config struct {
	Cluster      string // the cluster's name in events
	Store        Store
	Ledger       *ledger.Ledger
	Dictionaries *compact.Dictionaries
	Logger       *slog.Logger // never nil
	Registerer   prometheus.Registerer
	Now          func() time.Time
	// Enrich adds to a record what the flags ask for about other objects than its own. It
	// does not wait. nil: nothing is added.
	Enrich func(r *record.Record, o *compact.Object, want record.Flags) error
	// Running returns the feeds whose informers run, or are about to, in a new slice. Any goroutine may call it.
	Running func() []*Feed
}

// Committer turns what informers report into events and makes them durable. Make one with
// [New], and call [Committer.Run] once.
type Committer struct {
	cfg        Config
	log        *slog.Logger
	store      Store
	ledger     *ledger.Ledger
	dicts      *compact.Dictionaries
	metrics    *metrics
	namespaces namespaceTable

	changes         chan change
	barriers        chan barrierCall
	force           chan struct{} // makes a committer that waits for room commit once without it
	done            chan struct{} // closed when Run has returned
	namespacesKnown chan struct{} // gets a value when the labels have become known
	relabelsHeld    atomic.Bool   // feeds are being replaced, or stopped
	lastTurn        atomic.Int64  // when the loop began its last turn, Unix nanoseconds
	labels          unrecorded    // of the watch of namespaces

	// What follows belongs to the goroutine of Run, and before it to the caller of
	// New.
	router     Router
	timers     *timers
	refreshers map[schema.GroupResource]*compact.Codec // encode again what has a retired dictionary
	quiet      quietGaps
	relabels   map[string]*relabelling // by namespace
	resting    []*Feed                 // of resources that are not served, for those changes
	carried    carried
	unjudged   map[string]map[string]unjudged  // by namespace and feed
	ungiven    map[string]map[string]time.Time // by namespace and feed; see noteUngiven
}

// New prepares a Committer: it reads what the store remembers and starts nothing.
func New(cfg Config) (*Committer, error) {
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	c := &Committer{
		cfg: cfg, log: cfg.Logger, store: cfg.Store, ledger: cfg.Ledger, dicts: cfg.Dictionaries,
		metrics:         m,
		changes:         make(chan change, maxGroup),
		barriers:        make(chan barrierCall),
		force:           make(chan struct{}),
		done:            make(chan struct{}),
		namespacesKnown: make(chan struct{}, 1),
		refreshers:      map[schema.GroupResource]*compact.Codec{},
		ungiven:         map[string]map[string]time.Time{},
		timers:          &timers{table: timer.NewTable(cfg.Store)},
	}
	err = errors.Join(c.loadRelabels(), c.loadCarried(), c.loadUnjudged())
	c.labels.part = c.relabelledSince()
	return c, err
}

// Done is closed when Run has returned.
func (c *Committer) Done() <-chan struct{} { return c.done }

// LastTurn is when the loop began its last turn, zero before the first.
func (c *Committer) LastTurn() time.Time {
	if at := c.lastTurn.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Backlogged reports whether no more changes fit into the queue.
func (c *Committer) Backlogged() bool { return len(c.changes) == cap(c.changes) }

// Run takes changes until none can come any more: it ends when ended is done
// and the queue is empty, or with the store's error. It is the only writer of the
// ledger, log and checkpoints of feeds that run; those of others are the owner's, who
// writes to the log at barriers.
//
// While the store is full it takes nothing, which slows the watches, except for a
// barrier of the owner. If ctx, the pipeline's, ends then, so does the loop: what was
// not committed is read again after the next start.
func (c *Committer) Run(ctx, ended context.Context) error {
	defer close(c.done)
	tick := time.NewTicker(checkpointInterval)
	defer tick.Stop()
	wake := time.NewTimer(checkpointInterval)
	defer wake.Stop()
	g := newGroup(c)
	for {
		c.wake(wake)
		c.lastTurn.Store(time.Now().UnixNano())
		if len(g.jobs) == 0 {
			select {
			case x := <-c.changes:
				g.add(x)
			case st := <-c.barriers:
				st.run(g)
				continue
			case <-wake.C:
				g.lookAtTimers()
			case <-tick.C:
				g.touchAll(c.cfg.Running())
			case <-ended.Done():
				return c.drain(g)
			}
		} else {
			select {
			case st := <-c.barriers:
				st.run(g)
			case <-wake.C:
				g.lookAtTimers()
			case <-tick.C:
				g.touchAll(c.cfg.Running())
			case <-ended.Done():
				g.jobs = nil // they are begun again with the next start
				return c.drain(g)
			default:
			}
		}
		c.fill(g)
		forced, err := c.waitIngest(ctx, g)
		switch {
		case err != nil && ctx.Err() == nil:
			return ledger.StoreError(err, "wait for ingest")
		case err != nil && c.store.Health().Paused:
			c.log.Warn("stopping while the store is full: the last changes are read again after the next start", "changes", g.size())
			return nil
		}
		if err := g.commit(!forced); err != nil {
			return err
		}
	}
}

// waitIngest returns when the store takes more, or with forced if the owner waits
// for a barrier. What is done between two commits does not wait: a wait for compactions may
// become one for room.
func (c *Committer) waitIngest(ctx context.Context, g *group) (forced bool, err error) {
	if c.store.Ingests() {
		return false, ctx.Err()
	}
	wait, cancel := context.WithCancel(ctx)
	room := make(chan error, 1)
	var waiting sync.WaitGroup
	waiting.Go(func() { room <- c.store.WaitIngest(wait) })
	defer waiting.Wait()
	defer cancel()
	for {
		select {
		case err := <-room:
			return false, err
		case <-c.force:
			return true, nil
		case st := <-c.barriers:
			st.run(g)
		}
	}
}

// fill adds what is waiting, without blocking, up to the group's limits.
func (c *Committer) fill(g *group) {
	for limit := c.store.BatchBytes(); g.size() < maxGroup && g.bytes < limit; {
		select {
		case x := <-c.changes:
			g.add(x)
		default:
			return
		}
	}
}

// drain commits the changes that informers sent before they stopped. A store that
// is over its budget is given no more: those changes are read again.
func (c *Committer) drain(g *group) error {
	for {
		c.fill(g)
		if g.size() == 0 && len(g.touched) == 0 {
			return nil
		}
		if c.store.Health().Paused {
			c.log.Warn("stopping while the store is full: the last changes are read again after the next start", "changes", g.size())
			return nil
		}
		if err := g.commit(false); err != nil {
			return err
		}
	}
}

// group is one commit in the making, with its jobs. It belongs to the goroutine of Run.
type group struct {
	c       *Committer
	changes []change
	bytes   int                // of the changes' objects
	touched map[*Feed]struct{} // feeds whose checkpoint may have moved
	waiters []chan<- struct{}

	jobs     []job // work of many objects, in turns; they outlive the group
	finished []job // those that end with this group

	overlay   map[stateID]*compact.Object // the ledger as this group will leave it; nil: deleted
	batch     *store.Batch
	room      int            // the size of the batch at which a job has added enough
	headlines headline.Block // of the batch
	old       uint64         // see store.Store.Old
	events    map[event.Type]int

	// Scratch, reused between changes.
	hits    []route.Hit
	targets []record.Target
	waits   []bool // by target: a throttle holds it
	held    []held // what the throttles hold of the record that is next
	routes  []store.Route
	buf     []byte
}

// stateID is an object's place in the ledger.
type stateID struct{ partition, key string }

func newGroup(c *Committer) *group {
	return &group{c: c, touched: map[*Feed]struct{}{}, overlay: map[stateID]*compact.Object{}, events: map[event.Type]int{}}
}

func (g *group) size() int { return len(g.changes) }

func (g *group) add(x change) {
	g.changes = append(g.changes, x)
	if of, ok := x.(interface{ bytes() int }); ok {
		g.bytes += of.bytes()
	}
}

func (g *group) touchAll(feeds []*Feed) {
	g.c.quiet.log(g.c.log)
	g.lookAtTimers() // the clock may have been set
	for _, s := range feeds {
		if s.begun.Load() {
			g.touched[s] = struct{}{}
		}
	}
	if len(g.c.over()) > 0 {
		g.jobs = append(g.jobs, unseenNamespaces{})
	}
}

// job is work of many objects. The committer does a part of it with each group, so
// that other changes pass and no commit is large. Its fields are the committer's, except
// where they say otherwise.
type job interface {
	// step adds a part to the group, and reports whether more is left.
	step(g *group) (more bool, err error)
	// end is called once the last part is durable.
	end()
}

// commit turns the collected changes, and a part of the next job if there is one and
// work is set, into one atomic batch, makes it durable, and only then opens the
// informers' windows. Afterwards the group is empty.
func (g *group) commit(work bool) error {
	g.batch = g.c.store.NewBatch()
	defer g.batch.Discard()
	g.headlines.Reset()
	began := g.c.cfg.Now()
	g.old = g.c.store.Old(began)
	if err := g.findFormer(); err != nil {
		return err
	}
	for i := range g.changes {
		if err := g.changes[i].process(g); err != nil {
			return err
		}
	}
	if work {
		if err := g.work(); err != nil {
			return err
		}
	}
	if err := g.putCheckpoints(); err != nil {
		return err
	}
	held := g.c.timers.table.Seal(g.batch)
	if block := g.headlines.Bytes(); block != nil {
		g.batch.PutHeadlines(block)
	}
	if err := g.c.store.Commit(g.batch); err != nil {
		return ledger.StoreError(err, "commit %d changes", len(g.changes))
	}
	for s := range g.touched {
		if sub := s.informer(); sub != nil {
			sub.Ack(s.position)
		}
		complete := s.saved.ResourceVersion
		if s.listed != nil {
			complete = "" // what its list shows to be gone is not recorded yet
		}
		s.complete.Store(&complete)
		s.taken.Store(s.synced)
		s.sweeps.Store(s.lists)
	}
	g.becameDurable(began)
	g.c.metrics.committed(g.events)
	for _, j := range g.finished {
		j.end()
	}
	for _, w := range g.waiters {
		close(w)
	}
	clear(g.changes)
	g.changes, g.bytes = g.changes[:0], 0
	clear(g.finished)
	g.finished = g.finished[:0]
	g.waiters = g.waiters[:0]
	clear(g.touched)
	clear(g.overlay)
	for _, b := range held {
		g.c.metrics.holds(b)
	}
	g.c.timers.table.Committed()
	clear(g.events)
	return nil
}

// commitAlone makes changes, and the checkpoints of the touched feeds, durable at a barrier. The changes that wait for room in the store
// are not part of it: they are judged by what the barrier puts in place.
func (g *group) commitAlone(x ...change) error {
	waiting, bytes := g.changes, g.bytes
	g.changes, g.bytes = x, 0
	err := g.commit(false)
	g.changes, g.bytes = waiting, bytes
	return err
}

// work does a part of the next job.
func (g *group) work() error {
	if len(g.jobs) == 0 {
		return nil
	}
	g.room = g.batch.Size() + g.c.store.BatchBytes() // however much the changes have: they do not hold it up
	j := g.jobs[0]
	g.jobs = slices.Delete(g.jobs, 0, 1)
	more, err := j.step(g)
	if more {
		g.jobs = append(g.jobs, j)
	} else {
		g.finished = append(g.finished, j)
	}
	return err
}

// full reports whether a job has added enough to the group.
func (g *group) full() bool { return g.batch.Size() >= g.room }

// putCheckpoints adds the versions from which the touched feeds can resume once
// this group is durable. A feed that found nothing has no version yet; that it
// has looked is remembered all the same.
func (g *group) putCheckpoints() error {
	for s := range g.touched {
		sub := s.informer()
		if sub == nil {
			continue
		}
		if err := g.passEmptyList(s, sub); err != nil {
			return err
		}
		if err := g.settle(s); err != nil {
			return err
		}
		if s.position >= max(s.list.end, 1) {
			s.list = list{}
		}
		if s.doubted {
			if _, lists := sub.NextList(s.position, false); lists || !s.watching() {
				continue // what it still has may be of the time before the rollback
			}
		}
		at := g.c.cfg.Now()
		if s.settled.Load() == s.doubts.Load() {
			s.doubt = nil
		}
		next := s.checkpoint(sub, at)
		if next.Same(s.saved) && !s.doubted {
			continue
		}
		s.doubted = false
		next.Time = s.knownUntil(sub, next.ResourceVersion, at)
		s.saved = next
		g.batch.PutMeta(ledger.CheckpointMeta(s.ID), ledger.Encode(s.saved))
	}
	return nil
}

// passEmptyList moves the feed to the end of a list without objects, which no object carries, if the
// list follows and nothing is recorded that it lacks.
func (g *group) passEmptyList(s *Feed, sub Acknowledger) error {
	next, ok := sub.NextList(s.position, false)
	if !ok || !next.Last || next.End != s.position+1 || g.changed(s) {
		return nil
	}
	if s.ahead == nil && s.relisted == 0 { // else the sweep finds the deletions
		if empty, err := g.c.ledger.Empty(s.Partition, s.KeyPrefix()); err != nil || !empty {
			return err
		}
	}
	s.position = next.End
	return nil
}

// checkpoint is where the feed has come to, without the time.
func (s *Feed) checkpoint(sub Acknowledger, at time.Time) ledger.Checkpoint {
	version := sub.Checkpoint(s.position)
	if s.ahead != nil && version != "" && s.caughtUp(version) {
		if s.ahead = nil; s.listed == nil { // its list has been taken in as well; else what that showed to be gone may have a former form
			s.recordedForm = s.Form
		}
	}
	version = cmp.Or(version, s.saved.ResourceVersion)
	kept := s.kept()
	s.keepHistory(kept, at)
	next := ledger.Checkpoint{
		ResourceVersion: version, Synced: s.synced, Epoch: s.epoch, Form: s.recordedForm, Recorded: s.recorded(version),
		HistorySince: s.historySince, Kept: kept, Narrowed: s.narrowed(kept, at), SettledSince: s.settledSince(kept, at),
		Sweeping: s.listed != nil, Gap: s.open, Doubt: s.doubt, Apart: sub.Watch().Apart, Listing: s.list.mark, Ahead: s.ahead, Forgot: s.forgot,
	}
	if next.Resumable() {
		next.Quiet = sub.Quiet(s.position)
	}
	if s.position == 0 && version == s.saved.ResourceVersion && (next.Listing == nil || s.saved.Listing != nil && *next.Listing == *s.saved.Listing) {
		next.Quiet = cmp.Or(next.Quiet, s.saved.Quiet) // nothing is committed behind what the feed begins with
	}
	return next
}

// keepHistory notes since when the history that the rules keep is whole: from the first list on, and
// from the moment on at which a rule keeps more.
func (s *Feed) keepHistory(kept []ledger.Kept, at time.Time) {
	if len(kept) == 0 || !s.saved.Keeps(kept) {
		s.historySince = time.Time{}
	}
	if len(kept) > 0 && s.historySince.IsZero() && s.synced {
		s.historySince = at
	}
}

// narrowed are the times since when the history is whole at which rules that keep it became narrower, or recorded states were lost.
func (s *Feed) narrowed(kept []ledger.Kept, at time.Time) []time.Time {
	now, list := ledger.Checkpoint{Kept: kept}, s.saved.Narrowed
	lost := s.lost
	s.lost = false
	switch {
	case !s.historySince.Equal(s.saved.HistorySince):
		return nil
	case now.Keeps(s.saved.Kept) && !lost:
		return list
	default:
		return lastNarrowed(append(slices.Clone(list), at))
	}
}

// lastNarrowed are those times that a checkpoint keeps.
func lastNarrowed(list []time.Time) []time.Time { return list[max(len(list)-ledger.MaxNarrowed, 0):] }

// settledSince is since when the history has been kept by the same rules and in one form.
func (s *Feed) settledSince(kept []ledger.Kept, at time.Time) time.Time {
	switch since := s.saved.SettledSince; {
	case !since.IsZero() && s.historySince.Equal(s.saved.HistorySince) && s.saved.KeepsOnly(kept) && s.recordedForm == s.saved.Form:
		return since
	case s.historySince.IsZero():
		return time.Time{}
	default:
		return at
	}
}

// knownUntil is the time up to which nothing is missing by the version of a checkpoint that is made now.
func (s *Feed) knownUntil(sub Acknowledger, version string, at time.Time) time.Time {
	known := sub.Known(s.position)
	if known.IsZero() && version == s.saved.ResourceVersion {
		known = s.saved.Time
	}
	if version != "" && !known.IsZero() && known.Before(at) {
		return known
	}
	return at
}

// changed reports whether the group changes recorded states of the feed's objects.
func (g *group) changed(s *Feed) bool {
	for id := range g.overlay {
		if id.partition == s.Partition && strings.HasPrefix(id.key, s.KeyPrefix()) {
			return true
		}
	}
	return false
}

// Barrier is a moment between two commits, in which no change is half judged. It is
// valid during the call that it is given to, in the committer's goroutine.
type Barrier struct{ g *group }

// Adopt replaces the router.
func (b Barrier) Adopt(r Router) {
	b.g.c.adopt(r)
	b.g.lookAtTimers()
}

// Touch has the checkpoints of feeds written with the next commit.
func (b Barrier) Touch(feeds []*Feed) { b.g.touchAll(feeds) }

// Take commits the next n changes, for which it waits, at the barrier: tests use it to
// stop a pipeline in the middle of a list.
func (b Barrier) Take(n int) error {
	for n > 0 {
		for range min(n, maxGroup/2) {
			b.g.add(<-b.g.c.changes)
			n--
		}
		if err := b.g.commit(false); err != nil {
			return err
		}
	}
	return nil
}

func (b Barrier) add(j job) { b.g.jobs = append(b.g.jobs, j) }

// barrierCall is something to do between two commits.
type barrierCall struct {
	do   func(Barrier)
	done chan struct{}
}

func (b barrierCall) run(g *group) {
	b.do(Barrier{g})
	close(b.done)
}

// AtBarrier calls do in the committer, between two commits, and returns when it is done:
// every change is processed before all that one call adopts, or after it. do must not wait for changes. AtBarrier does not
// wait for room in a full store. If the committer has ended, do is not called, and the
// error is [ErrEnded].
func (c *Committer) AtBarrier(do func(Barrier)) error {
	s := barrierCall{do, make(chan struct{})}
	select {
	case c.barriers <- s:
		<-s.done
		return nil
	case <-c.done:
		return ErrEnded
	}
}

// Flush returns when everything sent before it is committed, or the committer has ended.
//
// It does not wait for room in a full store: a reload or a purge that is to make
// room would wait forever. What is committed in spite of that is little, a queue.
func (c *Committer) Flush() {
	done := make(chan struct{})
	queue := c.changes
	for {
		select {
		case queue <- &barrier{done}:
			queue = nil
		case c.force <- struct{}{}:
		case <-done:
			return
		case <-c.done:
			return
		}
	}
}

// send hands a change to the committer. Once stopped is closed, or after the
// committer has ended, it drops the change: nothing later of its feed is committed
// then, and both are read again after a resume from there.
func (c *Committer) send(stopped <-chan struct{}, x change) (sent bool) {
	select {
	case <-stopped: // of what comes after a dropped change, nothing may be taken
		return false
	default:
	}
	select {
	case c.changes <- x:
		return true
	case <-stopped:
	case <-c.done:
	}
	return false
}

// ErrEnded means that the pipeline does not run any more.
var ErrEnded = errors.New("the pipeline has ended")
