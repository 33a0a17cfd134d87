package commit

import (
	"sync"
	"time"
)

// unrecorded is what a feed, or the watch of namespaces, has observed and is not durable yet. Any goroutine may use it.
type unrecorded struct {
	mu    sync.Mutex    // guards what follows
	count int           // notifications
	since time.Time     // none of those was observed before
	gaps  []time.Time   // when the losses of history among them began
	part  time.Time     // since when more may come of what is committed in part; zero: nothing does
	moved chan struct{} // closed when some have become durable; nil: nothing waits for that
}

// observe counts a notification, and returns its time.
func (u *unrecorded) observe(now func() time.Time) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	at := now()
	if u.count++; u.count == 1 {
		u.since = at
	}
	return at
}

// lose notes a loss of history that is to be recorded.
func (u *unrecorded) lose(since time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.gaps = append(u.gaps, since)
}

// drop takes back that a notification was observed.
func (u *unrecorded) drop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.take(1)
}

// take counts notifications down. u.mu is held.
func (u *unrecorded) take(notifications int) {
	if u.count = max(u.count-notifications, 0); u.count == 0 {
		u.since = time.Time{}
	}
}

// committed notes that a number of notifications up to one of a time, and of losses, are durable. part: as the field.
func (u *unrecorded) committed(notifications int, at time.Time, gaps int, part time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if notifications > 0 {
		u.since = at
	}
	u.take(notifications)
	u.gaps, u.part = u.gaps[min(gaps, len(u.gaps)):], part
	if u.moved != nil {
		close(u.moved)
		u.moved = nil
	}
}

// Unrecorded is the time from which on more will be recorded of what the feed has observed so far, zero if nothing will; moved is
// closed when a part of it is.
func (s *Feed) Unrecorded() (since time.Time, moved <-chan struct{}) { return s.unrecorded.state() }

// UnrecordedLabels is [Feed.Unrecorded] of the labels of namespaces, by which objects enter and leave feeds that select by them.
func (c *Committer) UnrecordedLabels() (since time.Time, moved <-chan struct{}) {
	return c.labels.state()
}

func (u *unrecorded) state() (since time.Time, moved <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range append([]time.Time{u.since, u.part}, u.gaps...) {
		since = earlier(since, t)
	}
	if u.moved == nil {
		u.moved = make(chan struct{})
	}
	return since, u.moved
}

// earlier is the earlier one of two times; zero stands for none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// becameDurable notes what of the feeds is durable with a group that began at a time.
func (g *group) becameDurable(began time.Time) {
	type part struct {
		notifications, gaps int
		at                  time.Time
	}
	parts, labels := make(map[*Feed]part, len(g.touched)), part{}
	for s := range g.touched {
		parts[s] = part{}
	}
	for _, x := range g.changes {
		switch x := x.(type) {
		case observation:
			s, at := x.observed()
			p := parts[s]
			p.notifications, p.at = p.notifications+1, at
			parts[s] = p
		case *gapFound:
			p := parts[x.feed]
			p.gaps++
			parts[x.feed] = p
		case labelsObservation:
			labels.notifications, labels.at = labels.notifications+1, x.observedAt()
		}
	}
	g.c.labels.committed(labels.notifications, labels.at, 0, g.c.relabelledSince())
	for s, p := range parts {
		s.unrecorded.committed(p.notifications, p.at, p.gaps, s.unsettled(began))
	}
}

// observation is a change with the time of a notification.
type observation interface{ observed() (*Feed, time.Time) }

func (s *sighting) observed() (*Feed, time.Time)   { return s.feed, s.at }
func (c *feedSynced) observed() (*Feed, time.Time) { return c.feed, c.at }

// labelsObservation is a change with the time of a notification of namespaces.
type labelsObservation interface{ observedAt() time.Time }

func (c *namespaceSeen) observedAt() time.Time    { return c.at }
func (c *namespaceGone) observedAt() time.Time    { return c.at }
func (c *namespacesSynced) observedAt() time.Time { return c.at }

// relabelledSince is when the first change of labels was observed that objects have still to be taken through, zero if there is none.
func (c *Committer) relabelledSince() (since time.Time) {
	for _, r := range c.relabels {
		since = earlier(since, r.Moves[0].At)
	}
	return since
}

// unsettled is the time since when more may come of a list that is committed in part, as a gap or as deletions, zero if nothing may. began is before
// the last commit.
func (s *Feed) unsettled(began time.Time) (since time.Time) {
	if s.listed == nil {
		s.sweeping = time.Time{}
	} else {
		s.sweeping = earlier(s.sweeping, began)
	}
	since = s.sweeping
	if s.open != nil {
		since = earlier(since, s.open.FromTime)
	}
	for _, gap := range s.pending {
		since = earlier(since, gap.FromTime)
	}
	return since
}
