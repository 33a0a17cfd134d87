package pipeline

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/wait"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	// checkPoll is how often the loop looks for a check that is due.
	checkPoll = time.Second

	// checkSettle is the time for watches to be established before a check.
	checkSettle = time.Minute

	// checkPatience is how long the watch may take to catch up with the list that
	// it is compared with. Bookmarks come about once a minute.
	checkPatience = 3 * time.Minute

	// checkPage is about how many objects a page of heads has.
	checkPage = 500

	// minPagePause and maxPagePause bound the pause after each page.
	minPagePause = 100 * time.Millisecond
	maxPagePause = 30 * time.Second

	// maxSuspects bounds how many differences wait for the watch to catch up.
	maxSuspects = 10_000
)

// Errors that end the consistency check of a feed.
var (
	errUnordered    = errors.New("the API server's list is not in the order of namespace and name")
	errUncomparable = errors.New("the API server's resource versions cannot be compared")
	errNotCaughtUp  = errors.New("the watch did not catch up with the list")
	errNotRelisted  = errors.New("the watch ended before it had relisted the resource")
	errNotWatching  = errors.New("the watch is not established")
)

// checksMeta is where the store keeps how far the consistency check has come, as checks.
const checksMeta = "consistency-check"

// checks is how far the consistency check has come. It is durable after each page: a stop
// or a lost connection costs one page.
type checks struct {
	Began time.Time        `json:"began"`          // the last round
	Feed  string           `json:"feed,omitempty"` // the one that it compares, in the order of ids; "": the round is over
	Left  map[string]place `json:"left,omitempty"` // where the next check of a feed begins
}

// place is between two pages of the objects of a feed.
type place struct {
	Token string `json:"token"` // of the next page
	After string `json:"after"` // the key of the last object of the earlier pages; "": none
}

// checkedMeta and a feed's id are the key of a note on the last whole check of the feed that found no
// difference, as a cleanCheck.
const checkedMeta = "consistency-checked/"

// cleanCheck is when a check began that found no difference: up to then, the recorded states were those of the cluster.
type cleanCheck struct {
	ResourceVersion string    `json:"resourceVersion"`
	Time            time.Time `json:"time"`
}

// noteChecked notes a check that found no difference.
func (m *Manager) noteChecked(s *informer, c cleanCheck) {
	if m.store.Health().Paused {
		return
	}
	if err := ledger.PutMeta(m.store, checkedMeta+s.ID, ledger.Encode(c)); err != nil {
		s.Log.Warn("the time of a consistency check cannot be kept", "error", err)
	}
}

// sinceChecked has the gap of a loss that the consistency check found begin with the last check that found
// none, or at an unknown time. Any goroutine may call it.
func (m *Manager) sinceChecked(s *commit.Feed, gap dynamicfactory.Gap) dynamicfactory.Gap {
	if gap.Cause != commit.CauseConsistencyCheck {
		return gap
	}
	var last cleanCheck
	if _, err := m.meta(checkedMeta+s.ID, &last); err != nil {
		s.Log.Warn("the time of the last consistency check cannot be read", "error", err)
		last = cleanCheck{}
	}
	if ledger.Newer(last.ResourceVersion, gap.To) {
		last.ResourceVersion = "" // of before a rollback
	}
	gap.From, gap.FromTime = last.ResourceVersion, last.Time
	return gap
}

func (m *Manager) noteChecks(c *checks) {
	if m.store.Health().Paused {
		return // a full store takes no more than it has to
	}
	if err := ledger.PutMeta(m.store, checksMeta, ledger.Encode(c)); err != nil {
		m.log.Warn("the progress of the consistency check cannot be kept", "error", err)
	}
}

// checkLoop compares the ledger with the cluster, one feed after the other, at
// the configured interval, and soon after a rollback. API servers do lose watch events
// (kubernetes/kubernetes#123072, etcd-io/etcd#18089); nothing else would notice.
func (m *Manager) checkLoop(ctx context.Context) {
	var c checks
	known, err := m.meta(checksMeta, &c)
	if err != nil {
		m.log.Warn("the progress of the consistency check cannot be read; it starts over", "error", err)
	}
	if !known {
		c = checks{Began: m.cfg.Now()}
	}
	if wait.For(ctx, checkSettle) != nil {
		return
	}
	m.noteChecks(&c)
	var rollback []byte         // the note of the last one
	var done map[*informer]bool // the feeds that were checked behind it
	jitter := 1 + rand.Float64()/4
	tick := time.NewTicker(checkPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		st, now := m.currentState(), m.cfg.Now()
		if st == nil || !st.ConsistencyCheck.Enabled {
			continue
		}
		if c.Began.After(now) {
			c.Began = now // the clock was set back
		}
		if back := m.setBack(); back != nil && !m.store.Health().Paused {
			if !bytes.Equal(back, rollback) {
				rollback, done, c = back, map[*informer]bool{}, checks{Began: now}
			}
			informers := m.informerList()
			if slices.ContainsFunc(informers, func(s *informer) bool { return s.served() && !done[s] }) {
				those := checks{Began: c.Began, Left: c.Left}
				m.checkRound(ctx, minPagePause, &those, done)
			} else {
				_ = m.call(ctx, func(context.Context) error { // feeds that are being replaced have not ended
					m.noteSetBackChecked(back, done)
					return nil
				}) // the only error is the end
			}
		} // a feed that never watches does not hold up the other checks
		switch {
		case now.Sub(c.Began) >= time.Duration(float64(st.ConsistencyCheck.Interval)*jitter):
			c.Began, c.Feed = now, ""
			jitter = 1 + rand.Float64()/4
		case c.Feed == "":
			continue
		}
		m.checkRound(ctx, checkPace(st.ConsistencyCheck.Interval, m.informerList()), &c, nil)
	}
}

// setBack is the note of a rollback behind which not all feeds were checked yet; nil: there is none.
func (m *Manager) setBack() []byte {
	note, _, err := m.store.Meta(ledger.SetBackMeta)
	if err != nil {
		return nil // the store removes what is damaged
	}
	return note
}

// noteSetBackChecked notes that all feeds were checked after a rollback, unless one is left, or another rollback was found meanwhile. Only the owner
// goroutine calls it.
func (m *Manager) noteSetBackChecked(back []byte, done map[*informer]bool) {
	left := slices.ContainsFunc(m.informerList(), func(s *informer) bool { return !done[s] })
	if left || !bytes.Equal(m.setBack(), back) {
		return
	}
	if err := ledger.DeleteMeta(m.store, ledger.SetBackMeta); err != nil {
		m.log.Warn("the check after a rollback cannot be noted", "error", err)
	}
}

// checkRound compares one feed after the other, from c.Feed on, with a pause after each page. With done, which is not nil behind a rollback, it
// compares those that watch and are not in it, and adds them, unless the check has to be repeated.
func (m *Manager) checkRound(ctx context.Context, pause time.Duration, c *checks, done map[*informer]bool) {
	informers := m.informerList()
	slices.SortFunc(informers, func(a, b *informer) int { return strings.Compare(a.ID, b.ID) })
	maps.DeleteFunc(c.Left, func(id string, _ place) bool {
		return !slices.ContainsFunc(informers, func(s *informer) bool { return s.ID == id })
	})
	back, failed := m.setBack(), false
	for _, s := range informers {
		if !bytes.Equal(m.setBack(), back) {
			return // a rollback has all of them checked again
		}
		if s.ID < c.Feed || done != nil && (done[s] || !s.served()) {
			continue
		}
		c.Feed = s.ID
		m.noteChecks(c)
		from, doubts := c.Left[s.ID], s.Doubts()
		err := m.checkFeed(ctx, s, pause, c)
		if ctx.Err() != nil {
			return
		}
		if done != nil {
			done[s] = err == nil || errors.Is(err, errUnordered) || errors.Is(err, errUncomparable)
			if failed = failed || !done[s]; done[s] {
				s.Settle(doubts)
			}
		}
		if err != nil && !errors.Is(err, errNotWatching) {
			m.metrics.checked(s, checkUnfinished)
			if errors.Is(err, errNotRelisted) {
				s.Log.Info("consistency check is repeated with the successor of the watch", "reason", err)
				_ = wait.For(ctx, checkSettle) // the context is looked at next
				return                         // the round continues with this feed
			}
			if c.Left[s.ID] == from { // what does not come on is not tried again
				delete(c.Left, s.ID)
			}
			s.Log.Warn("consistency check did not finish", "continues", c.Left[s.ID] != place{}, "error", err)
		}
	}
	c.Feed = ""
	m.noteChecks(c)
	if failed {
		_ = wait.For(ctx, checkSettle) // the context is looked at next
	}
}

// checkPace is the pause after each page with which a check of the feeds takes
// half of the interval.
func checkPace(interval time.Duration, informers []*informer) time.Duration {
	pages := 0
	for _, s := range informers {
		pages++
		if sub := s.sub.Load(); sub != nil {
			pages += sub.Status().Objects / checkPage
		}
	}
	return min(max(interval/2/time.Duration(max(pages, 1)), minPagePause), maxPagePause)
}

// head is what a check compares of an object: its identity and its version. The
// zero head stands for no object.
type head struct{ uid, version string }

func headOf(o *compact.Object) head {
	if o == nil {
		return head{}
	}
	return head{string(o.GetUID()), o.GetResourceVersion()}
}

// suspect is an object whose recorded state is not the listed one.
type suspect struct {
	namespace, name string
	listed          head   // zero: not in the list
	at              string // the list's version
	page            place  // of the list
}

// judgement is what a suspect turns out to be.
type judgement int

const (
	known      judgement = iota // the ledger has the listed state, or a later one
	behind                      // the ledger has an earlier state: lost, if the watch has come as far as the list
	unrecorded                  // the ledger has no such object: lost, if it still exists
	rolledBack                  // the list has an earlier state than the ledger at a later version
)

// judge compares a suspect with the recorded state.
func (x *suspect) judge(recorded head) judgement {
	none := head{}
	switch {
	case recorded == x.listed:
		return known
	case recorded == none:
		return unrecorded
	case ledger.Newer(recorded.version, x.at):
		return known // it changed since
	case recorded.uid == x.listed.uid && ledger.Newer(recorded.version, x.listed.version):
		return rolledBack
	default:
		return behind
	}
}

// checkFeed compares the ledger's entries of one feed with the cluster, page by page,
// in the order of their keys and each page at its own version. A difference is a loss
// only if it is still there when the watch has come as far as the page. A loss has the
// informer list again, and the differences are delivered as repairs. The place up to which
// nothing is suspect is kept in c, and is where the next check of the feed begins if this
// one ends early.
func (m *Manager) checkFeed(ctx context.Context, s *informer, pause time.Duration, c *checks) error {
	sub := s.sub.Load()
	if sub == nil || sub.Watch().State != dynamicfactory.StateWatching {
		return errNotWatching // that is for the status to say
	}
	x := comparison{m: m, s: s, sub: sub, place: c.Left[s.ID]}
	whole, began := x.place == place{}, cleanCheck{Time: m.cfg.Now()}
	for {
		more, err := x.page(ctx)
		if err != nil {
			return err
		}
		began.ResourceVersion = cmp.Or(began.ResourceVersion, x.version)
		if x.rollback != nil || x.outdated {
			break
		}
		if !more || len(x.suspects) >= maxSuspects {
			if err := x.confirm(ctx); err != nil {
				return err
			}
			if x.lost > 0 || !more {
				break
			}
		}
		if c.Left == nil {
			c.Left = map[string]place{}
		}
		c.Left[s.ID] = x.certain()
		m.noteChecks(c)
		if err := wait.For(ctx, pause); err != nil {
			return err
		}
	}
	delete(c.Left, s.ID)
	switch {
	case x.rollback != nil:
		s.Log.Warn("consistency check found an object at an earlier version than recorded: the cluster was restored; relisting", "namespace", x.rollback.namespace, "name", x.rollback.name, "resourceVersion", x.rollback.listed.version)
		x.sub.Relist(dynamicfactory.CauseRollback) // which a successor of the watch would find itself
		m.metrics.checked(s, checkRepaired)
		return wait.For(ctx, pause)
	case x.outdated: // the relist distinguishes a rollback from a server that is behind for a moment
		s.Log.Warn("consistency check received a list that is older than what is recorded; relisting", "resourceVersion", x.version, "recorded", s.Complete())
	case x.lost > 0:
		s.Log.Warn("consistency check found missed changes; relisting and delivering them as repairs", "objects", x.lost)
	default:
		m.metrics.checked(s, checkClean)
		if whole {
			m.noteChecked(s, began)
		}
		return wait.For(ctx, pause)
	}
	if err := x.relist(ctx); err != nil {
		return err
	}
	m.metrics.checked(s, checkRepaired)
	return wait.For(ctx, pause)
}

// relist has the informer list the resource again, and returns when the list is recorded, with the deletions that it
// shows. The error is errNotRelisted if the feed has stopped before, as its successor may resume without a list, and
// errNotCaughtUp after checkPatience: the informer repeats a list that fails.
func (c *comparison) relist(ctx context.Context) error {
	patient, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	before := c.s.Swept()
	c.sub.Relist(commit.CauseConsistencyCheck)
	for c.s.Swept() == before {
		if c.s.stopped() {
			return errNotRelisted
		}
		if c.s.pause(patient) != nil {
			return cmp.Or(ctx.Err(), errNotCaughtUp)
		}
	}
	return nil
}

// restorer has the informers list again the resources of which a repair of the store has removed recorded states. The lists
// record what exists; a gap stands for what was deleted meanwhile. It belongs to one goroutine.
type restorer struct {
	m     *Manager
	as    int                  // the repairs that are known, as the store counts them
	asked map[*informer]uint64 // since then, and how many lists were swept before
}

// restoreLoop looks for such resources.
func (m *Manager) restoreLoop(ctx context.Context) {
	r := restorer{m: m}
	for wait.For(ctx, checkPoll) == nil {
		r.look()
	}
}

func (r *restorer) look() {
	partitions, as := r.m.store.LostStates()
	if as != r.as || len(partitions) == 0 {
		r.as, r.asked = as, map[*informer]uint64{}
	}
	for _, partition := range partitions {
		if r.listed(partition) {
			r.m.store.StatesRestored(partition, as)
		}
	}
}

// listed reports whether all informers of a part of the ledger have listed again. It asks those that are well.
func (r *restorer) listed(partition string) bool {
	found, all := false, true
	for _, s := range r.m.informerList() {
		if s.Partition != partition {
			continue
		}
		found = true
		if before, asked := r.asked[s]; asked {
			all = all && s.Swept() > before
			continue
		}
		all = false
		if sub := s.sub.Load(); sub != nil && sub.Watch().State == dynamicfactory.StateWatching {
			s.Log.Warn("a repair of the store has removed recorded states; relisting")
			r.asked[s] = s.Swept()
			sub.Relist(commit.CauseConsistencyCheck)
		}
	}
	return found && all
}

// catchUpPause is how often the recorded states are compared with a list that they have to catch
// up with.
const catchUpPause = 50 * time.Millisecond

func (s *informer) stopped() bool {
	select {
	case <-s.Stopped():
		return true
	default:
		return false
	}
}

// pause waits for the committer to make progress, until the feed has stopped. It returns ctx's error if ctx ends first.
func (s *informer) pause(ctx context.Context) error {
	timer := time.NewTimer(catchUpPause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-s.Stopped():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// CatchUp returns when every change is recorded that the API server had made when it was called,
// of the resources whose first list is recorded or under way, or with ctx's error. A resource that
// is removed meanwhile, or whose list cannot be compared, is left out. It reads the metadata of
// all objects, once the watches of the first state have started.
func (m *Manager) CatchUp(ctx context.Context) error {
	for begun := false; !begun; {
		err := m.call(ctx, func(context.Context) error {
			begun = m.currentState() != nil && !m.undiscovered
			return nil
		})
		if err == nil && !begun {
			err = wait.For(ctx, catchUpPause)
		}
		if err != nil {
			return err
		}
	}
	for _, s := range m.informerList() {
		sub, err := s.begin(ctx)
		if err != nil {
			return err
		}
		if sub == nil {
			continue
		}
		x := comparison{m: m, s: s, sub: sub}
		switch err := x.catchUp(ctx); {
		case errors.Is(err, errUnordered), errors.Is(err, errUncomparable):
			s.Log.Warn("recorded states cannot be compared with the API server's: the last changes may be missing", "error", err)
		case err != nil && !apierrors.IsNotFound(err) && !s.stopped():
			return err
		}
	}
	return m.committer.AtBarrier(func(commit.Barrier) {}) // readers of the log see a commit when it has ended
}

// begin waits for the first list to be recorded. It returns nil if the feed has stopped or its
// list fails.
func (s *informer) begin(ctx context.Context) (*dynamicfactory.DurableSubscription, error) {
	for !s.stopped() {
		sub := s.sub.Load()
		if sub != nil {
			w := sub.Watch()
			if s.Listed() {
				return sub, nil
			}
			if !status.Begins(&w, time.Now()) {
				return nil, nil
			}
		}
		if err := s.pause(ctx); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// catchUp returns when the recorded states agree with the list, or the feed has stopped.
func (c *comparison) catchUp(ctx context.Context) error {
	for more := true; more; {
		var err error
		if more, err = c.page(ctx); err != nil {
			return err
		}
		suspects := c.suspects
		for i := range suspects { // one by one: review leaves out the others
			c.suspects = suspects[i : i+1]
			for !c.s.stopped() {
				if err := c.review(c.exists(ctx)); err != nil {
					return err
				}
				if len(c.suspects) == 0 {
					break
				}
				if err := c.s.pause(ctx); err != nil {
					return err
				}
			}
		}
		c.suspects = suspects[:0]
	}
	return nil
}

// comparison is the consistency check of one feed. It belongs to the goroutine of the check.
type comparison struct {
	m   *Manager
	s   *informer
	sub *dynamicfactory.DurableSubscription

	place         // up to which the objects are compared; the key may be amid the page
	start   place // of the page
	keys    []string
	heads   []head // of the page, by the order of keys
	next    int    // the first that is not compared
	last    string // the page's last key
	version string // the page's
	rest    bool   // a part of the page is not compared

	suspects []suspect
	lost     int
	rollback *suspect // proves that the cluster was set back
	outdated bool     // the list is older than what was recorded before it
}

// certain is the place up to which nothing is suspect.
func (c *comparison) certain() place {
	switch {
	case len(c.suspects) > 0:
		return c.suspects[0].page
	case c.rest:
		return c.start
	default:
		return c.place
	}
}

// page compares the next page, or the rest of one that has many differences. more is
// false after the last.
func (c *comparison) page(ctx context.Context) (more bool, err error) {
	if !c.rest {
		if err := c.read(ctx); err != nil {
			return false, err
		}
	}
	c.rest, err = c.compare()
	return c.rest || c.Token != "", err
}

func (c *comparison) read(ctx context.Context) error {
	begin := func() { c.keys, c.heads, c.last = c.keys[:0], c.heads[:0], c.After }
	begin()
	first, recorded := c.Token == "", c.s.Complete()
	page, err := c.sub.ListMetadata(ctx, c.Token, begin, func(o *rawjson.Meta) error {
		key := ledger.Key(string(o.Namespace), string(o.Name))
		if key <= c.last {
			return errUnordered
		}
		c.last = key
		c.keys = append(c.keys, key)
		c.heads = append(c.heads, head{string(o.UID), string(o.ResourceVersion)})
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := resourceversion.CompareResourceVersion(page.ResourceVersion, page.ResourceVersion); err != nil {
		return errUncomparable
	}
	c.outdated = c.outdated || first && ledger.Newer(recorded, page.ResourceVersion)
	c.start, c.next, c.version, c.Token = c.place, 0, page.ResourceVersion, page.Continue
	return nil
}

// compare goes through the page and the ledger's entries of its range side by side:
// those behind the earlier pages, up to the last key if there are more pages. rest
// reports that it stopped before the end, as there are too many suspects.
func (c *comparison) compare() (rest bool, err error) {
	full := func() bool { return len(c.suspects) >= maxSuspects }
	unrecordedUpTo := func(key string) {
		for ; c.next < len(c.keys) && (key == "" || c.keys[c.next] < key) && !full(); c.next++ {
			c.suspect(c.keys[c.next], c.heads[c.next], head{})
		}
	}
	more, err := c.m.ledger.Scan(c.s.Partition, c.s.KeyPrefix(), c.After, func(key string, o *compact.Object) error {
		if c.Token != "" && key > c.last {
			return ledger.ErrEnough
		}
		unrecordedUpTo(key)
		if full() {
			return ledger.ErrEnough
		}
		listed := head{}
		if c.next < len(c.keys) && c.keys[c.next] == key {
			listed = c.heads[c.next]
			c.next++
		}
		c.suspect(key, listed, headOf(o))
		return nil
	})
	if err = ledger.IgnoreUnreadable(err); err != nil && !more {
		return false, err
	}
	unrecordedUpTo("")
	if !full() {
		c.After = c.last
	}
	return full(), nil
}

// suspect keeps an object for a second look unless its states agree.
func (c *comparison) suspect(key string, listed, recorded head) {
	c.After = key
	if listed == recorded {
		return
	}
	x := suspect{listed: listed, at: c.version, page: c.start}
	x.namespace, x.name, _ = strings.Cut(key, "/")
	switch j := x.judge(recorded); {
	case j == known || c.unreadable(&x):
		return
	case j == rolledBack:
		c.rollback = &x
	}
	c.suspects = append(c.suspects, x)
}

// unreadable reports whether the watch has skipped the listed state, which is a gap of its own.
func (c *comparison) unreadable(x *suspect) bool {
	version, skipped := c.sub.Skipped(x.namespace, x.name)
	return skipped && version != "" && x.listed.version == version
}

// confirm gives the suspects their second look, and counts what is lost.
func (c *comparison) confirm(ctx context.Context) error {
	if err := c.review(nil); err != nil || len(c.suspects) == 0 {
		return err
	}
	if !c.m.caughtUp(ctx, c.s, c.suspects[len(c.suspects)-1].at) {
		return cmp.Or(ctx.Err(), errNotCaughtUp)
	}
	if err := c.review(c.exists(ctx)); err != nil {
		return err
	}
	c.lost += len(c.suspects)
	c.suspects = c.suspects[:0]
	return nil
}

// exists returns a function that asks the API server whether an object still is the listed one.
func (c *comparison) exists(ctx context.Context) func(*suspect) (bool, error) {
	return func(x *suspect) (is bool, err error) {
		err = c.sub.GetMetadata(ctx, x.namespace, x.name, func(o *rawjson.Meta) { is = string(o.UID) == x.listed.uid })
		return is, err
	}
}

// review judges the suspects by what is recorded now, and drops those that are fine.
// exists reports whether an object that is not recorded still is the listed one; nil
// leaves such objects suspect. A few losses are as good as all of them.
func (c *comparison) review(exists func(*suspect) (bool, error)) error {
	kept := c.suspects[:0]
	for i := range c.suspects {
		x := c.suspects[i]
		recorded, err := c.m.recordedHead(c.s, ledger.Key(x.namespace, x.name))
		if err != nil {
			return err
		}
		remains := true
		switch j := x.judge(recorded); {
		case j == known || c.unreadable(&x):
			remains = false
		case j == unrecorded:
			if exists != nil {
				if remains, err = exists(&x); err != nil {
					return err
				}
			}
		}
		if remains {
			kept = append(kept, x)
		}
		if exists != nil && len(kept) > 0 {
			break
		}
	}
	c.suspects = kept
	return nil
}

// recordedHead is of no object if the recorded state is damaged: it is recorded again with the list.
func (m *Manager) recordedHead(s *informer, key string) (head, error) {
	o, err := m.ledger.State(s.Partition, key)
	return headOf(o), ledger.IgnoreUnreadable(err)
}

// caughtUp waits until everything up to version is committed.
func (m *Manager) caughtUp(ctx context.Context, s *informer, version string) bool {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	tick := time.NewTicker(checkPoll)
	defer tick.Stop()
	for {
		if complete := s.Complete(); complete != "" && !ledger.Newer(version, complete) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.Stopped():
			return false
		case <-tick.C:
		}
	}
}
