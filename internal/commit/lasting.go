package commit

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// settled is how long a watch must have been open before its silence means that nothing
// happened: after a restart it first delivers what was missed.
const settled = 5 * time.Second

// lasting is a route with a `for`. The committer's goroutine owns it.
type lasting struct {
	route.Timer
	bucket *timer.Bucket
	armed  map[string]*[]WatchRef // by feed: those of whose recorded objects all that match have a timer
	arming *Feed                  // a feed whose objects are being looked through
	by     *[]WatchRef            // its watches when that began
	renew  bool                   // the matches begin again: the route was another one meanwhile
	cursor string                 // the last one
	after  *timer.Due             // the last timer that was looked at; nil: they are looked at from the first on
	waits  map[place]bool         // where those up to it wait for a feed
	whole  time.Time              // when they were looked at from the first on
}

// place is where a feed finds an object.
type place struct{ partition, namespace string }

// covers reports whether the feed's objects include those of a place.
func (s *Feed) covers(at place) bool {
	return s.Partition == at.partition && (s.Key.Namespace == "" || s.Key.Namespace == at.namespace)
}

// judged begins and ends the timers of an object by what the routes found of a change.
// blind means that the change was found by a list after lost history, or that the object was
// not recorded, so that the match may have been broken meanwhile.
func (g *group) judged(s *Feed, at time.Time, o *compact.Object, blind bool, verdicts []route.MatchState) error {
	for _, v := range verdicts {
		l := g.c.timers.lasting[v.Route]
		if l == nil || l.bucket.Former {
			continue
		}
		if err := g.judge(l, s, at, o, blind, v.Match); err != nil {
			return err
		}
	}
	return nil
}

func (g *group) judge(l *lasting, s *Feed, at time.Time, o *compact.Object, blind, match bool) error {
	key := s.Partition + "\n" + ledger.Key(o.GetNamespace(), o.GetName())
	row, err := g.Row(l.bucket, key)
	if err != nil {
		return err
	}
	found := timer.Match{UID: string(o.GetUID()), Version: o.GetResourceVersion(), Matching: l.Matching, At: at, Met: match, Blind: blind}
	if next, changed := found.Judge(row); changed {
		g.Put(l.bucket, key, row, next)
		if next != nil && l.after != nil && next.Start.Before(l.after.Start) {
			l.after = nil // it was observed before others, and is due before them
		}
	}
	return nil
}

// work begins timers of objects that were recorded before the route was, and reports the
// matches that have lasted.
func (l *lasting) work(g *group, now time.Time, room *int) error {
	if l.bucket.Former {
		return l.remove(g, now, room)
	}
	if err := l.arm(g, now, room); err != nil {
		return err
	}
	if len(l.waits) > 0 && l.resumes(g, now) {
		l.after = nil
		l.bucket.Postpone(now)
	}
	if l.bucket.Next().After(now) || *room <= 0 || g.c.Backlogged() {
		return nil
	}
	if l.after == nil {
		l.waits, l.whole = map[place]bool{}, now
	}
	due, more, err := g.due(l.bucket, now, l.after, room)
	if err != nil {
		return err
	}
	for i := range due {
		if g.full() {
			l.bucket.Postpone(now) // the rest is due with the next group
			more, *room = true, 0
			break
		}
		if err := l.fire(g, due[i], now); err != nil {
			return err
		}
		l.after = &due[i]
	}
	switch soon := now.Add(settled); {
	case more:
	case len(l.waits) == 0:
		l.after = nil
	case l.bucket.Next().After(soon):
		l.bucket.Postpone(soon)
	}
	return nil
}

// lostFeed is the time until timers of objects that nothing watches are looked at again: the
// recorded states expire.
const lostFeed = time.Hour

// resumes reports whether timers that waited for a feed may be judged.
func (l *lasting) resumes(g *group, now time.Time) bool {
	if now.Sub(l.whole) >= lostFeed {
		return true
	}
	return slices.ContainsFunc(g.c.cfg.Running(), func(s *Feed) bool {
		if !s.live(now) {
			return false
		}
		for at := range l.waits {
			if s.covers(at) {
				return true
			}
		}
		return false
	})
}

// armedMeta is the key under which the store remembers what the routes were armed with.
const armedMeta = "timer/armed/"

func (l *lasting) armedKey(s *Feed) string { return armedMeta + l.bucket.Route + "/" + s.ID }

// armedBy is what the store remembers of a feed that was armed: the condition, and what its
// watches cover.
func (l *lasting) armedBy(watches []WatchRef) []byte {
	text := []byte(l.Matching)
	for _, h := range watches {
		text = fmt.Appendf(text, " %s=%s", h.Watch.Name, h.Watch.Fingerprint)
	}
	return text
}

// disarm has the objects of a feed looked through again.
func (g *group) disarm(s *Feed) {
	for _, l := range g.c.timers.lasting {
		if !l.bucket.Former {
			delete(l.armed, s.ID)
			g.batch.DeleteMeta(l.armedKey(s))
		}
	}
}

// arm looks through the recorded objects of feeds, once for each feed, its watches and
// condition: an object that matches and does not change leads to no event.
func (l *lasting) arm(g *group, now time.Time, room *int) error {
	if l.arming != nil && l.arming.ended() {
		l.arming = nil
	}
	for _, s := range g.c.cfg.Running() {
		if l.arming != nil {
			break
		}
		watches := s.watches.Load()
		if !s.begun.Load() || l.armed[s.ID] == watches || !s.synced || s.listed != nil {
			continue
		}
		was, ok, err := g.c.store.Meta(l.armedKey(s))
		if ledger.IgnoreUnreadable(err) != nil {
			return ledger.StoreError(err, "read what %s is armed for", s.ID)
		}
		if ok && bytes.Equal(was, l.armedBy(*watches)) {
			l.armed[s.ID] = watches
			continue
		}
		l.arming, l.by, l.renew, l.cursor = s, watches, ok && len(was) == 0, ""
	}
	if l.arming == nil || *room <= 0 {
		return nil
	}
	s := l.arming
	more, err := g.c.ledger.Scan(s.Partition, s.KeyPrefix(), l.cursor, func(key string, o *compact.Object) error {
		if *room <= 0 {
			return ledger.ErrEnough
		}
		*room--
		l.cursor = key
		if newer, ok := g.overlay[stateID{s.Partition, key}]; ok {
			o = newer
		}
		if o == nil {
			return nil
		}
		match, err := g.matches(l, s, o, now)
		if err != nil {
			return err
		}
		return g.judge(l, s, now, o, l.renew, match)
	})
	if err = ledger.IgnoreUnreadable(err); more || err != nil {
		return err
	}
	g.batch.PutMeta(l.armedKey(s), l.armedBy(*l.by))
	l.arming, l.armed[s.ID] = nil, l.by
	*room = 0 // there may be another feed
	return nil
}

// matches reports whether a recorded state is in a watch of the route, and meets its
// condition.
func (g *group) matches(l *lasting, s *Feed, o *compact.Object, now time.Time) (bool, error) {
	o, err := g.former(s, o)
	if err != nil {
		return false, err
	}
	rc := route.Change{Type: event.Sync, Resource: s.Resource, Cluster: g.c.cfg.Cluster, Time: now, New: o}
	for _, h := range s.Watches() {
		if nsLabels := g.c.labelsOf(s, o); g.c.inForce(s, h, o.GetNamespace(), nsLabels).Covers(o, nsLabels) {
			rc.Watches = append(rc.Watches, route.Hit{Watch: h.Watch.Name})
		}
	}
	g.c.router.Judge(&rc)
	return slices.Contains(rc.Matches, route.MatchState{Route: l.Route, Match: true}), nil
}

// fire reports a match that has lasted. It has to wait while it is not known whether the
// match still lasts.
func (l *lasting) fire(g *group, d timer.Due, now time.Time) error {
	row, err := g.Row(l.bucket, d.Key)
	if err != nil {
		return err
	}
	if row == nil || !row.Armed || !row.Start.Equal(d.Start) {
		g.Unlist(l.bucket, d)
		if row == nil { // or it is damaged
			g.Put(l.bucket, d.Key, nil, nil)
		}
		return nil
	}
	split := strings.LastIndexByte(d.Key, '\n')
	partition, key := d.Key[:max(split, 0)], d.Key[split+1:]
	namespace, _, _ := strings.Cut(key, "/")
	at := place{partition, namespace}
	feeds := g.c.cfg.Running()
	i := slices.IndexFunc(feeds, func(s *Feed) bool { return s.covers(at) })
	if i >= 0 && !feeds[i].live(now) {
		l.waits[at] = true
		return nil
	}
	o, known := g.overlay[stateID{partition, key}]
	if !known {
		if o, err = g.c.ledger.State(partition, key); ledger.IgnoreUnreadable(err) != nil {
			return err
		}
	}
	if o == nil || string(o.GetUID()) != row.UID || row.Matching != l.Matching {
		g.Put(l.bucket, d.Key, row, nil)
		return nil
	}
	if i < 0 { // nothing watches it
		l.waits[at] = true
		return nil
	}
	s := feeds[i]
	match, err := g.matches(l, s, o, now)
	if err != nil {
		return err
	}
	if !match {
		g.Put(l.bucket, d.Key, row, nil)
		return nil
	}
	if err := l.report(g, s, o, row, now); err != nil {
		return err
	}
	fired := *row
	fired.Armed = false
	g.Put(l.bucket, d.Key, row, &fired)
	return nil
}

func (l *lasting) report(g *group, s *Feed, o *compact.Object, row *timer.Row, now time.Time) error {
	o, err := g.former(s, o)
	if err != nil {
		return err
	}
	what := transition{t: event.Updated, after: o, cause: "/for/" + l.Route}
	r := g.newRecord(s, now, &what)
	r.Event.ID = event.ID(g.c.cfg.Cluster, event.Updated, s.Resource, s.idScope()+what.cause, idOf(o), row.Version)
	if !l.Takes(&route.Change{ID: r.Event.ID, Type: what.t, Resource: s.Resource, Cluster: g.c.cfg.Cluster, Time: now, New: o}) {
		return nil
	}
	r.Event.For = &event.For{Since: row.Start.UTC()}
	r.Targets = slices.Clone(l.Targets)
	if err := g.addBodies(&r, s.Resource, &what); err != nil {
		return fmt.Errorf("record %s %s: %w", r.Event.Type, r.Event.Subject(), err)
	}
	g.c.metrics.lasted.WithLabelValues(l.Route).Inc()
	_, err = g.appendThrottled(&r, event.Inside, false)
	return err
}

// live reports whether everything that happened to the feed's objects, but for the last
// moment, is recorded.
func (s *Feed) live(now time.Time) bool {
	sub := s.informer()
	if sub == nil || !s.begun.Load() || s.ended() || !s.synced || s.listed != nil || s.open != nil || len(s.pending) > 0 {
		return false
	}
	w := sub.Watch()
	return w.State == dynamicfactory.StateWatching && w.PausedSince.IsZero() && now.Sub(w.Since) >= settled
}

// remove removes the rows of a route that is not configured any more.
func (l *lasting) remove(g *group, now time.Time, room *int) error {
	if *room <= 0 || l.bucket.Next().After(now) {
		return nil
	}
	return g.clear(l.bucket, room, func() error {
		delete(g.c.timers.lasting, l.bucket.Route)
		return g.c.store.ScanMeta(armedMeta+l.bucket.Route+"/", func(key string, _ []byte) error {
			g.batch.DeleteMeta(key)
			return nil
		})
	})
}
