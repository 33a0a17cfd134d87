package pipeline

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	// auditPause is how often the loop looks for a check that is due.
	auditPause = time.Second

	// auditPatience is how long the watch may take to catch up with the list that
	// it is compared with. Bookmarks come about once a minute.
	auditPatience = 3 * time.Minute

	// auditPage is about how many objects a page of heads has.
	auditPage = 500

	// minAuditPause and maxAuditPause bound the pause after each page.
	minAuditPause = 100 * time.Millisecond
	maxAuditPause = 30 * time.Second

	// maxSuspects bounds how many differences wait for the watch to catch up.
	maxSuspects = 10_000
)

// Errors that end the consistency check of a feed.
var (
	errUnordered    = errors.New("the API server's list is not in the order of namespace and name")
	errUncomparable = errors.New("the API server's resource versions cannot be compared")
	errNotCaughtUp  = errors.New("the watch did not catch up with the list")
)

// auditLoop compares the ledger with the cluster, one source after the other, at
// the configured interval. API servers do lose watch events
// (kubernetes/kubernetes#123072, etcd-io/etcd#18089); nothing else would notice.
func (m *Manager) auditLoop(ctx context.Context) {
	last := m.cfg.Now()
	jitter := 1 + rand.Float64()/4
	tick := time.NewTicker(auditPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		st := m.currentState()
		if st == nil || !st.ConsistencyCheck.Enabled || m.cfg.Now().Sub(last) < time.Duration(float64(st.ConsistencyCheck.Interval)*jitter) {
			continue
		}
		last = m.cfg.Now()
		jitter = 1 + rand.Float64()/4
		sources := m.informerList()
		pause := auditPace(st.ConsistencyCheck.Interval, sources)
		for _, s := range sources {
			err := m.audit(ctx, s, pause)
			if err != nil && ctx.Err() == nil {
				m.metrics.audited(s, auditUnfinished)
				s.Log.Warn("consistency check did not finish; the next one starts over", "error", err)
			}
		}
	}
}

// auditPace is the pause after each page with which a check of the feeds takes
// half of the interval.
func auditPace(interval time.Duration, sources []*informer) time.Duration {
	pages := 0
	for _, s := range sources {
		pages++
		if sub := s.sub.Load(); sub != nil {
			pages += sub.Status().Objects / auditPage
		}
	}
	return min(max(interval/2/time.Duration(max(pages, 1)), minAuditPause), maxAuditPause)
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

// audit compares the ledger's entries of one source with the cluster, page by page,
// in the order of their keys and each page at its own version. A difference is a loss
// only if it is still there when the watch has come as far as the page. A loss has the
// informer list again, and the differences are delivered as repairs.
func (m *Manager) audit(ctx context.Context, s *informer, pause time.Duration) error {
	sub := s.sub.Load()
	if sub == nil || sub.Status().State != dynamicfactory.StateWatching {
		return nil // not well: that is for the status to say
	}
	a := audit{m: m, s: s, sub: sub}
	for {
		more, err := a.page(ctx)
		if err != nil {
			return err
		}
		if a.rollback != nil {
			break
		}
		if !more || len(a.suspects) >= maxSuspects {
			if err := a.confirm(ctx); err != nil {
				return err
			}
			if a.lost > 0 || !more {
				break
			}
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	switch {
	case a.rollback != nil:
		s.Log.Warn("consistency check found an object at an earlier version than recorded: the cluster was restored; relisting", "namespace", a.rollback.namespace, "name", a.rollback.name, "resourceVersion", a.rollback.listed.version)
		m.metrics.audited(s, auditRepaired)
		sub.Relist(dynamicfactory.CauseRollback)
	case a.lost > 0:
		s.Log.Warn("consistency check found missed changes; relisting and delivering them as repairs", "objects", a.lost)
		m.metrics.audited(s, auditRepaired)
		sub.Relist(commit.CauseAudit)
	default:
		m.metrics.audited(s, auditClean)
	}
	return sleep(ctx, pause)
}

// catchUpPause is how often the recorded states are compared with a list that they have to catch
// up with.
const catchUpPause = 50 * time.Millisecond

// CatchUp returns when every change is recorded that the API server had made when it was called,
// of the resources whose watches are live, or with ctx's error. It reads the metadata of all
// objects.
func (m *Manager) CatchUp(ctx context.Context) error {
	for _, s := range m.informerList() {
		sub := s.sub.Load()
		if sub == nil || sub.Status().State != dynamicfactory.StateWatching {
			continue
		}
		a := audit{m: m, s: s, sub: sub}
		for more := true; more; {
			var err error
			if more, err = a.page(ctx); err != nil {
				return err
			}
			for len(a.suspects) > 0 {
				if err := sleep(ctx, catchUpPause); err != nil {
					return err
				}
				if err := a.review(a.exists(ctx)); err != nil {
					return err
				}
			}
		}
	}
	return m.committer.AtBarrier(func(commit.Barrier) {}) // readers of the log see a commit when it has ended
}

// sleep waits for d. It returns ctx's error if ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// audit is the consistency check of one feed.
type audit struct {
	m   *Manager
	s   *informer
	sub *dynamicfactory.DurableSubscription

	token string // of the next page
	after string // the key of the last object of the earlier pages; "": none
	keys  []string
	heads []head // of the page, by the order of keys

	suspects []suspect
	lost     int
	rollback *suspect // proves that the cluster was set back
}

// page compares the next page. more is false after the last.
func (a *audit) page(ctx context.Context) (more bool, err error) {
	var last string
	begin := func() { a.keys, a.heads, last = a.keys[:0], a.heads[:0], a.after }
	begin()
	page, err := a.sub.ListMetadata(ctx, a.token, begin, func(o *rawjson.Meta) error {
		key := ledger.Key(string(o.Namespace), string(o.Name))
		if key <= last {
			return errUnordered
		}
		last = key
		a.keys = append(a.keys, key)
		a.heads = append(a.heads, head{string(o.UID), string(o.ResourceVersion)})
		return nil
	})
	if err != nil {
		return false, err
	}
	if _, err := resourceversion.CompareResourceVersion(page.ResourceVersion, page.ResourceVersion); err != nil {
		return false, errUncomparable
	}
	a.token = page.Continue
	more = a.token != ""
	if err := a.compare(last, more, page.ResourceVersion); err != nil {
		return false, err
	}
	a.after = last
	return more, nil
}

// compare goes through the page and the ledger's entries of its range side by side:
// those behind the earlier pages, up to the key last if there are more pages.
func (a *audit) compare(last string, more bool, version string) error {
	next := 0
	unrecordedUpTo := func(key string) {
		for ; next < len(a.keys) && (key == "" || a.keys[next] < key); next++ {
			a.suspect(a.keys[next], a.heads[next], head{}, version)
		}
	}
	err := a.m.ledger.Scan(a.s.Partition, a.s.KeyPrefix(), a.after, func(key string, o *compact.Object) error {
		if more && key > last {
			return ledger.ErrEnough
		}
		unrecordedUpTo(key)
		listed := head{}
		if next < len(a.keys) && a.keys[next] == key {
			listed = a.heads[next]
			next++
		}
		a.suspect(key, listed, headOf(o), version)
		return nil
	})
	if err != nil && !errors.Is(err, ledger.ErrEnough) {
		return err
	}
	unrecordedUpTo("")
	return nil
}

// suspect keeps an object for a second look unless its states agree.
func (a *audit) suspect(key string, listed, recorded head, version string) {
	if listed == recorded {
		return
	}
	x := suspect{listed: listed, at: version}
	switch x.judge(recorded) {
	case known:
		return
	case rolledBack:
		a.rollback = &x
	}
	x.namespace, x.name, _ = strings.Cut(key, "/")
	a.suspects = append(a.suspects, x)
}

// confirm gives the suspects their second look, and counts what is lost.
func (a *audit) confirm(ctx context.Context) error {
	if err := a.review(nil); err != nil || len(a.suspects) == 0 {
		return err
	}
	if !a.m.caughtUp(ctx, a.s, a.suspects[len(a.suspects)-1].at) {
		return cmp.Or(ctx.Err(), errNotCaughtUp)
	}
	if err := a.review(a.exists(ctx)); err != nil {
		return err
	}
	a.lost += len(a.suspects)
	a.suspects = a.suspects[:0]
	return nil
}

// exists returns a function that asks the API server whether an object still is the listed one.
func (a *audit) exists(ctx context.Context) func(*suspect) (bool, error) {
	return func(x *suspect) (is bool, err error) {
		err = a.sub.GetMetadata(ctx, x.namespace, x.name, func(o *rawjson.Meta) { is = string(o.UID) == x.listed.uid })
		return is, err
	}
}

// review judges the suspects by what is recorded now, and drops those that are fine.
// exists reports whether an object that is not recorded still is the listed one; nil
// leaves such objects suspect. A few losses are as good as all of them.
func (a *audit) review(exists func(*suspect) (bool, error)) error {
	kept := a.suspects[:0]
	for i := range a.suspects {
		x := a.suspects[i]
		recorded, err := a.m.recordedHead(a.s, ledger.Key(x.namespace, x.name))
		if err != nil {
			return err
		}
		remains := true
		switch x.judge(recorded) {
		case known:
			remains = false
		case unrecorded:
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
	a.suspects = kept
	return nil
}

func (m *Manager) recordedHead(s *informer, key string) (head, error) {
	o, err := m.ledger.State(s.Partition, key)
	return headOf(o), err
}

// caughtUp waits until everything up to version is committed.
func (m *Manager) caughtUp(ctx context.Context, s *informer, version string) bool {
	ctx, cancel := context.WithTimeout(ctx, auditPatience)
	defer cancel()
	tick := time.NewTicker(auditPause)
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
