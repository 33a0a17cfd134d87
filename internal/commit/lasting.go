package commit

import (
	"bytes"
	"errors"
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

// lasting is a route with a `for`.
type lasting struct {
	route.Timer
	bucket *timer.Bucket
	former bool                   // not configured any more; gone once it has no rows
	armed  map[string]*[]WatchRef // by feed: those of whose recorded objects all that match have a timer
	arming *Feed                  // a feed whose objects are being looked through
	by     *[]WatchRef            // its watches when that began
	cursor string                 // the last one
	after  *timer.Due             // the last timer that was due, if others are
	waits  bool                   // one of those up to it cannot be judged yet
}

// judged begins and ends the timers of an object by what the routes found of a change.
// blind means that the change was found by a list after lost history, or that the object was
// not recorded, so that the match may have been broken meanwhile.
func (g *group) judged(src *Feed, at time.Time, o *compact.Object, blind bool, verdicts []route.MatchState) error {
	for _, v := range verdicts {
		l := g.c.timers.lasting[v.Route]
		if l == nil || l.former {
			continue
		}
		if err := g.judge(l, src, at, o, blind, v.Match); err != nil {
			return err
		}
	}
	return nil
}

func (g *group) judge(l *lasting, src *Feed, at time.Time, o *compact.Object, blind, match bool) error {
	key := src.Partition + "\n" + ledger.Key(o.GetNamespace(), o.GetName())
	row, err := g.timerRow(l.bucket, key)
	if err != nil {
		return err
	}
	var next *timer.Row
	switch {
	case !match && row == nil, match && !blind && row != nil && row.UID == string(o.GetUID()) && row.Matching == l.Matching:
		return nil
	case match:
		next = &timer.Row{Start: at, Armed: true, UID: string(o.GetUID()), Version: o.GetResourceVersion(), Matching: l.Matching}
	}
	g.c.timers.table.Put(g.batch, l.bucket, key, row, next)
	return nil
}

// work begins timers of objects that were recorded before the route was, and reports the
// matches that have lasted.
func (l *lasting) work(g *group, now time.Time, room *int) error {
	if l.former {
		return l.remove(g, room)
	}
	if err := l.arm(g, now, room); err != nil {
		return err
	}
	if l.bucket.Next().After(now) || *room <= 0 {
		return nil
	}
	due, more, err := g.due(l.bucket, now, l.after, room)
	if err != nil {
		return err
	}
	for _, d := range due {
		fired, err := l.fire(g, d, now)
		if err != nil {
			return err
		}
		l.waits = l.waits || !fired
	}
	if more {
		l.after = &due[len(due)-1]
		return nil
	}
	if soon := now.Add(settled); l.waits && l.bucket.Next().After(soon) {
		l.bucket.Postpone(soon)
	}
	l.after, l.waits = nil, false
	return nil
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
		if !l.former {
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
		if l.armed[s.ID] == watches || !s.synced || s.listed != nil || !s.begun.Load() {
			continue
		}
		was, ok, err := g.c.store.Meta(l.armedKey(s))
		if ledger.IgnoreUnreadable(err) != nil {
			return fmt.Errorf("%w: %w", ledger.ErrStore, err)
		}
		if ok && bytes.Equal(was, l.armedBy(*watches)) {
			l.armed[s.ID] = watches
			continue
		}
		l.arming, l.by, l.cursor = s, watches, ""
	}
	if l.arming == nil || *room <= 0 {
		return nil
	}
	s := l.arming
	err := g.c.ledger.Scan(s.Partition, s.KeyPrefix(), l.cursor, func(key string, o *compact.Object) error {
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
		return g.judge(l, s, now, o, false, match)
	})
	switch {
	case errors.Is(err, ledger.ErrEnough):
		return nil
	case ledger.IgnoreUnreadable(err) != nil:
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
		if h.Covers(o, g.c.labelsOf(s, o)) {
			rc.Watches = append(rc.Watches, route.Hit{Watch: h.Watch.Name})
		}
	}
	g.c.router.Judge(&rc)
	return slices.Contains(rc.Matches, route.MatchState{Route: l.Route, Match: true}), nil
}

// fire reports a match that has lasted. It has to wait while it is not known whether the
// match still lasts.
func (l *lasting) fire(g *group, d timer.Due, now time.Time) (done bool, err error) {
	table := g.c.timers.table
	row, err := g.timerRow(l.bucket, d.Key)
	if err != nil {
		return false, err
	}
	if row == nil || !row.Armed || !row.Start.Equal(d.Start) {
		table.Unlist(g.batch, l.bucket, d)
		return true, nil
	}
	split := strings.LastIndexByte(d.Key, '\n')
	partition, key := d.Key[:max(split, 0)], d.Key[split+1:]
	feeds := g.c.cfg.Running()
	i := slices.IndexFunc(feeds, func(s *Feed) bool { return s.Partition == partition && strings.HasPrefix(key, s.KeyPrefix()) })
	if i >= 0 && !feeds[i].live(now) || g.c.Backlogged() {
		return false, nil
	}
	o, known := g.overlay[stateID{partition, key}]
	if !known {
		if o, err = g.c.ledger.State(partition, key); ledger.IgnoreUnreadable(err) != nil {
			return false, err
		}
	}
	if o == nil || string(o.GetUID()) != row.UID || row.Matching != l.Matching {
		table.Put(g.batch, l.bucket, d.Key, row, nil)
		return true, nil
	}
	if i < 0 { // nothing watches it
		return false, nil
	}
	s := feeds[i]
	match, err := g.matches(l, s, o, now)
	if err != nil {
		return false, err
	}
	if !match {
		table.Put(g.batch, l.bucket, d.Key, row, nil)
		return true, nil
	}
	if err := l.report(g, s, o, row, now); err != nil {
		return false, err
	}
	fired := *row
	fired.Armed = false
	table.Put(g.batch, l.bucket, d.Key, row, &fired)
	return true, nil
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
	if sub == nil || s.ended() || !s.synced || s.listed != nil || s.open != nil || len(s.pending) > 0 {
		return false
	}
	w := sub.Watch()
	return w.State == dynamicfactory.StateWatching && w.PausedSince.IsZero() && now.Sub(w.Since) >= settled
}

func (l *lasting) remove(g *group, room *int) error {
	if *room <= 0 {
		return nil
	}
	table := g.c.timers.table
	err := table.Rows(l.bucket, "", func(key string, row *timer.Row) error {
		if *room <= 0 {
			return ledger.ErrEnough
		}
		*room--
		table.Put(g.batch, l.bucket, key, row, nil)
		return nil
	})
	switch {
	case errors.Is(err, ledger.ErrEnough):
		return nil
	case ledger.IgnoreUnreadable(err) != nil:
		return fmt.Errorf("%w: scan timers: %w", ledger.ErrStore, err)
	}
	err = g.c.store.ScanMeta(armedMeta+l.bucket.Route+"/", func(key string, _ []byte) error {
		g.batch.DeleteMeta(key)
		return nil
	})
	if ledger.IgnoreUnreadable(err) != nil {
		return fmt.Errorf("%w: scan timers: %w", ledger.ErrStore, err)
	}
	delete(g.c.timers.lasting, l.bucket.Route)
	return nil
}
