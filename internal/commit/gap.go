package commit

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// quietGap is how long history may be unknown without a gap being reported, if the
// list that makes up for it shows no difference.
const quietGap = 5 * time.Minute

// process notes a loss of history. It may come before changes that the informer
// reported earlier, so that it is taken up with the list that makes up for it.
func (c *gapFound) process(g *group) error {
	s := c.feed
	if c.gap.Name != "" { // it concerns one object, and no list makes up for it
		return g.gap(s, c.at, c.gap, nil)
	}
	g.touched[s] = struct{}{} // the list may have nothing else
	if c.gap.Position > s.position {
		s.pending = append(s.pending, c.gap)
		return nil
	}
	return g.beginGap(s, c.gap, c.at)
}

// takeUp begins the gaps of the list that a change belongs to. The change has the
// position p, or is one of a list's that have none of their own.
func (g *group) takeUp(c *sighting, p uint64, ofList bool) error {
	s := c.feed
	if s.open != nil && !ofList && p > s.open.Position && s.listed == nil {
		if err := g.unharmed(s, c.at); err != nil {
			return err
		}
	}
	for len(s.pending) > 0 {
		end := p
		if sub := s.informer(); ofList && sub != nil {
			next, _ := sub.NextList(s.position, !c.unknown)
			end = next.End
		}
		if end < s.pending[0].Position {
			return nil
		}
		gap := s.pending[0]
		s.pending = s.pending[1:]
		if err := g.beginGap(s, gap, c.at); err != nil {
			return err
		}
	}
	return nil
}

// beginGap begins a gap: the next changes are its list, or follow that.
func (g *group) beginGap(s *Feed, gap *dynamicfactory.Gap, at time.Time) error {
	if s.open != nil { // the rest of its list is unknown
		longer := *gap
		if gap.Cause != CauseConsistencyCheck || ledger.Newer(gap.From, s.open.From) {
			longer.From, longer.FromTime = s.open.From, s.open.FromTime
		}
		gap, s.open = &longer, nil
	}
	if checked := gap.Cause == CauseConsistencyCheck; s.ahead != nil || checked {
		s.listed, s.first, s.relisted, s.swept, s.repairs = map[uint64]struct{}{}, gap.To, gap.Position+1, false, checked
		if gap.Cause == dynamicfactory.CauseRollback {
			s.first, s.ahead = "", nil // versions mean something else
		}
	}
	s.blindTo = max(s.blindTo, gap.Position)
	switch {
	case gap.Cause == dynamicfactory.CauseRollback:
		passed := s.passed(gap, s.recorded(gap.From))
		found := gap
		gap = ledger.Since(gap, s.doubt)
		s.epoch++ // versions are used again
		s.lists++
		s.rewind, s.floor, s.newest, s.doubted, s.doubt, s.rewoundAt = true, "", nil, false, nil, at
		if err := g.setBack(s, found, passed); err != nil {
			return err
		}
	case gap.Cause == CauseConsistencyCheck:
		s.repair, s.open = gap.Position, gap
		return nil
	case gap.Cause == dynamicfactory.CauseExpired && short(gap):
		s.open = gap
		return nil
	}
	return g.report(s, gap, at)
}

// process has the feed begin with the list after the rollback if the process ends before that is committed, and the others as setBack has it.
func (c *rollbackFound) process(g *group) error {
	s := c.feed
	reached := s.recorded(c.gap.From)
	if sub := s.informer(); sub != nil {
		reached = ledger.Later(reached, sub.Watch().Seen)
	}
	passed := s.passed(c.gap, reached)
	s.inDoubt(c.gap)
	g.touched[s] = struct{}{}
	return g.setBack(s, c.gap, passed)
}

// passed reports whether the cluster had passed the version that a feed had reached before that found the rollback, unless it was known.
func (s *Feed) passed(gap *dynamicfactory.Gap, reached string) bool {
	known := s.rewind || s.doubted || s.doubt != nil
	return !known && !ledger.Newer(ledger.Later(gap.From, reached), gap.To)
}

func (s *Feed) inDoubt(gap *dynamicfactory.Gap) {
	s.doubt = ledger.Since(gap, s.doubt)
	s.doubts.Add(1)
}

// setBack has feeds that do not watch, and have come further than the version to which the cluster was set back, begin with the list of that:
// it may have passed theirs when they watch again, in a later life of those that run, and nothing would show. Nor do the versions count that watches had come to before they moved.
// The others are to be checked: the cluster may have passed the version of one before its connection was looked at. One that had come further, and ends before it
// was checked, begins with the list, too. passed: the cluster had passed the version of the feed that found it before that did, so that no version shows
// what is of another past.
func (g *group) setBack(s *Feed, gap *dynamicfactory.Gap, passed bool) error {
	g.batch.PutMeta(ledger.SetBackMeta, ledger.Encode(g.c.cfg.Now()))
	if gap.Apart {
		return nil // its versions are not those of the others
	}
	past := func(version string) bool { return version != "" && (passed || ledger.Newer(version, gap.To)) }
	running := map[string]*Feed{}
	for _, other := range g.c.cfg.Running() {
		running[other.ID] = other
	}
	apart, err := g.storedApart(running)
	if err != nil {
		return err
	}
	maps.DeleteFunc(running, func(feed string, _ *Feed) bool { return apart(feed) })
	for _, other := range running {
		for _, m := range other.moved {
			for namespace, left := range m.from {
				m.from[namespace] = left.Without(past)
			}
		}
	}
	known, err := g.c.ledger.Selections()
	if ledger.IgnoreUnreadable(err) != nil {
		return err
	}
	for id, watches := range known {
		for name, given := range watches {
			if apart(id) || given.Left == nil || !past(given.Left.ResourceVersion) {
				continue
			}
			left := given.Left.Without(past)
			given.Left = &left
			given.Put(g.batch, name, id)
		}
	}
	mark := func(feed string, cp ledger.Checkpoint) error {
		if apart(feed) {
			return nil
		}
		other := running[feed]
		delete(running, feed)
		reached, watching := cp.Reached(), other != nil && other.watching()
		switch {
		case other == s || watching && other.rewoundAt.After(gap.FromTime): // it has found the rollback itself
			return nil
		case other != nil:
			other.doubted = other.doubted || !watching
			if sub := other.informer(); sub != nil && (watching || cp.Listing == nil || !cp.Listing.Rewound) {
				reached = ledger.Later(reached, sub.Watch().Seen) // what it has received may be recorded yet
			}
		}
		if !past(reached) {
			return nil
		}
		if other != nil && (watching || passed) {
			other.inDoubt(gap) // it may find that yet
		}
		if watching {
			cp.Doubt = other.doubt
		} else {
			cp = cp.SetBack(*gap)
		}
		g.batch.PutMeta(ledger.CheckpointMeta(feed), ledger.Encode(cp))
		return nil
	}
	if err := g.c.ledger.Checkpoints(mark); !errors.Is(err, store.ErrUnreadable) {
		return err
	}
	for feed, other := range maps.Clone(running) { // those of checkpoints that cannot be read
		if err := mark(feed, other.saved); err != nil {
			return err
		}
	}
	return nil
}

// storedApart returns a function that reports whether the resource of a feed has a storage of its own.
func (g *group) storedApart(running map[string]*Feed) (func(feed string) bool, error) {
	resource := func(feed string) schema.GroupResource {
		partition, _ := ledger.SplitFeed(feed)
		gr, _ := ledger.SplitPartition(partition)
		return gr
	}
	apart := map[schema.GroupResource]bool{}
	err := g.c.ledger.Checkpoints(func(feed string, cp ledger.Checkpoint) error {
		if cp.Apart {
			apart[resource(feed)] = true
		}
		return nil
	})
	for feed, s := range running {
		if sub := s.informer(); sub != nil && sub.Watch().Apart {
			apart[resource(feed)] = true
		}
	}
	return func(feed string) bool { return apart[resource(feed)] }, ledger.IgnoreUnreadable(err)
}

// short reports whether a gap is not reported if its list shows no difference. The monotonic
// clock does not count the time in which the machine is suspended.
func short(gap *dynamicfactory.Gap) bool {
	d, wall := gap.ToTime.Sub(gap.FromTime), gap.ToTime.Round(0).Sub(gap.FromTime.Round(0))
	return !gap.FromTime.IsZero() && d >= 0 && max(d, wall) <= quietGap // negative: the clock was set back
}

// settle ends the lists that are taken in completely.
func (g *group) settle(s *Feed) error {
	for len(s.pending) > 0 && s.pending[0].Position <= s.position { // lists without an object
		gap := s.pending[0]
		s.pending = s.pending[1:]
		if err := g.beginGap(s, gap, g.c.cfg.Now()); err != nil {
			return err
		}
	}
	if s.open != nil && s.position >= s.open.Position && s.listed == nil {
		if err := g.unharmed(s, g.c.cfg.Now()); err != nil {
			return err
		}
	}
	if s.relisted != 0 && !s.swept && s.position+1 >= s.relisted {
		s.swept = true
		g.jobs = append(g.jobs, &sweep{feed: s, list: s.relisted, at: g.c.cfg.Now()})
	}
	return nil
}

// unharmed ends a gap whose list shows no difference. Objects may have come and gone meanwhile: the
// history has it, and no sink, unless it is a long one of a feed before.
func (g *group) unharmed(s *Feed, at time.Time) error {
	gap := *s.open
	if gap.Cause != CauseConsistencyCheck && !short(&gap) {
		return g.report(s, &gap, at)
	}
	s.open = nil
	g.c.metrics.unharmed(s)
	g.c.quiet.add(s, &gap)
	if gap.Cause != dynamicfactory.CauseExpired {
		return nil
	}
	gap.Cause = record.CauseQuiet
	return g.gapOfHistory(s, at, &gap)
}

// gapOfHistory records a gap that no sink is given.
func (g *group) gapOfHistory(s *Feed, at time.Time, gap *dynamicfactory.Gap) error {
	g.targets = g.targets[:0]
	for _, h := range s.Watches() {
		if h.Watch.History {
			if err := g.appendGap(s, h, at, gap); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *group) report(s *Feed, gap *dynamicfactory.Gap, at time.Time) error {
	s.open = nil
	s.Log.Warn("history was lost: what happened in between was not observed, the final states are delivered",
		"cause", gap.Cause, "fromResourceVersion", gap.From, "toResourceVersion", gap.To,
		"from", gap.FromTime, "duration", gap.ToTime.Sub(gap.FromTime).Round(time.Millisecond))
	return g.gap(s, at, gap, nil)
}

// quietGaps are those in which nothing was missed, since they were logged last. The
// committer owns them.
type quietGaps struct {
	resources map[string]struct{}
	from      time.Time
}

func (q *quietGaps) add(s *Feed, gap *dynamicfactory.Gap) {
	if q.resources == nil {
		q.resources = map[string]struct{}{}
	}
	if len(q.resources) == 0 || gap.FromTime.Before(q.from) {
		q.from = gap.FromTime
	}
	q.resources[s.Resource.String()] = struct{}{}
}

// log logs them in one line: an API server that restarts leaves one for each resource.
func (q *quietGaps) log(l *slog.Logger) {
	if len(q.resources) == 0 {
		return
	}
	const most = 20
	names := slices.Sorted(maps.Keys(q.resources))
	l.Info("history had expired at the API server; relists found no missed change",
		"resources", len(names), "names", names[:min(most, len(names))], "from", q.from)
	clear(q.resources)
}

// gap delivers a gap to the watches of the feed that it concerns, nil: all.
func (g *group) gap(s *Feed, at time.Time, gap *dynamicfactory.Gap, concerns func(WatchRef) bool) error {
	namespace := cmp.Or(gap.Namespace, s.Key.Namespace)
	for _, h := range s.Watches() {
		if concerns != nil && !concerns(h) || gap.Namespace != "" && !h.Reads(namespace) {
			continue
		}
		g.c.CountGap(h.Watch.Name, s, gap)
		g.targets = g.targets[:0]
		for _, sink := range g.c.router.Sinks(nil, h.Watch.Name, s.Resource) {
			g.targets = append(g.targets, record.Target{Sink: sink})
		}
		if len(g.targets) == 0 && !h.Watch.History {
			continue
		}
		if err := g.appendGap(s, h, at, gap); err != nil {
			return err
		}
	}
	return nil
}

// appendGap records a gap of a watch for the targets.
func (g *group) appendGap(s *Feed, h WatchRef, at time.Time, gap *dynamicfactory.Gap) error {
	namespace, name := cmp.Or(gap.Namespace, s.Key.Namespace), gap.Name
	data := &event.GapData{
		Watch: h.Watch.Name, Resource: s.Resource, Namespace: namespace, Name: name,
		FromResourceVersion: gap.From, ToResourceVersion: gap.To, Cause: gap.Cause,
		From: gap.FromTime.UTC(), To: gap.ToTime.UTC(),
	}
	scope := s.idScope() + "/" + h.Watch.Name + "/" + gap.Cause + "/" + ledger.Key(namespace, name) // feeds of one resource may lose the same versions
	r := record.Record{Event: event.Event{
		ID:   event.ID(g.c.cfg.Cluster, event.Gap, s.Resource, scope, gap.From, gap.To),
		Type: event.Gap, Time: at, Resource: s.Resource, Namespace: namespace, Name: name, Gap: data,
	}, Targets: g.targets}
	if _, err := g.appendThrottled(&r, event.Inside, true); err != nil {
		return fmt.Errorf("record gap of %s: %w", s.ID, err)
	}
	return nil
}

// CauseConsistencyCheck is the cause of the gap of a finding of the consistency check.
const CauseConsistencyCheck = "consistencyCheck"

// CauseRemoved is the cause of the gap that is delivered to a sink that was not configured for
// a time.
const CauseRemoved = record.CauseRemoved

// Behind returns times by group and resource. Changes from then on may be recorded only after
// the barrier, and gaps may begin then; all earlier ones are recorded.
func (b Barrier) Behind() (map[string]time.Time, error) {
	behind := map[string]time.Time{}
	note := func(partition string, from time.Time) {
		gr, _ := ledger.SplitPartition(partition)
		if known, ok := behind[gr.String()]; !from.IsZero() && (!ok || from.Before(known)) {
			behind[gr.String()] = from
		}
	}
	err := b.g.c.ledger.Checkpoints(func(feed string, cp ledger.Checkpoint) error {
		partition, _ := ledger.SplitFeed(feed)
		note(partition, cp.Time)
		for _, gap := range []*dynamicfactory.Gap{cp.Gap, cp.Doubt} {
			if gap != nil {
				note(partition, gap.FromTime)
			}
		}
		return nil
	})
	for _, of := range b.g.c.unjudged {
		for partition, u := range of {
			note(partition, u.FromTime)
		}
	}
	return behind, ledger.IgnoreUnreadable(err)
}
