package commit

import (
	"cmp"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// movedWatch is a watch that a feed feeds from now on, and that was given the resource from other parts of the ledger before: with
// another pinned version, or another selector for the API server. What is deleted between what those had come to and what the feed's
// part begins with for the watch is never known: a gap reports it.
type movedWatch struct {
	feed *Feed
	name string
	from map[string]ledger.Left // by namespace of the feeds that it was given by; "": of all
}

// moved finds such watches among those of prepared feeds that are about to start, and the new ones of feeds that stay.
func (c *Committer) moved(start []*Feed, stay map[*Feed][]WatchRef) (movedWatches, error) {
	type reading struct{ watch, partition string }
	reads := map[reading]bool{}
	read := func(s *Feed, watches []WatchRef) {
		for _, h := range watches {
			reads[reading{h.Watch.Name, s.Partition}] = true
		}
	}
	for _, s := range start {
		read(s, s.Watches())
	}
	for s, watches := range stay {
		read(s, watches)
	}
	known, err := c.ledger.Selections()
	if err != nil {
		return nil, err
	}
	var all movedWatches
	look := func(s *Feed, watch string, was bool) error {
		m := movedWatch{s, watch, map[string]ledger.Left{}}
		for id, watches := range known {
			given, ok := watches[watch]
			partition, namespace := ledger.SplitFeed(id)
			gr, _ := ledger.SplitPartition(partition)
			goesOn := reads[reading{watch, partition}] && (was || given.Left == nil)
			if !ok || gr != s.Key.GVR.GroupResource() || goesOn || namespace != "" && s.Key.Namespace != "" && namespace != s.Key.Namespace {
				continue
			}
			left, err := c.leftAt(id, given)
			if err != nil {
				return err
			}
			if before, ok := m.from[namespace]; left != nil && (!ok || left.After(before)) {
				m.from[namespace] = *left
			}
		}
		if len(m.from) > 0 {
			all = append(all, m)
		}
		return nil
	}
	for _, s := range start {
		for _, h := range s.Watches() {
			was := gave(known, s.Partition, h.Watch.Name, s.ahead)
			if was && (s.synced || len(s.ahead) > 0) { // ahead: taken over from feeds of its namespaces
				continue
			}
			if err := look(s, h.Watch.Name, was); err != nil {
				return nil, err
			}
		}
	}
	for s, watches := range stay {
		for _, a := range s.added(watches) {
			if gave(known, s.Partition, a.watch.Watch.Name, nil) {
				continue
			}
			if err := look(s, a.watch.Watch.Name, false); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// gave reports whether a watch was given objects of a partition, and has not left it. ahead is what a feed that is about to start takes
// over from those of namespaces; nil: nothing.
func gave(known ledger.Selections, partition, watch string, ahead map[string]string) (was bool) {
	whole := ledger.FeedID(partition, "")
	for id, watches := range known {
		given, ok := watches[watch]
		if !ok || !strings.HasPrefix(id, whole) || readOn(known, id, given) {
			continue
		}
		if _, in := ledger.SplitFeed(id); len(ahead) > 0 && in != "" && ledger.Later(ahead[in], ahead[""]) == "" {
			return false // that one has not taken in its first list, behind which a gap is reported
		}
		was = true
	}
	return was
}

// readOn reports whether others have read what a watch had left, or parts of it, since.
func readOn(known ledger.Selections, id string, given ledger.Selected) bool {
	partition, namespace := ledger.SplitFeed(id)
	return given.Left != nil || namespace == "" && given.Former && known.Parted(partition)
}

// leftAt is where a watch had come to that is not fed by a feed any more: as it is noted, or else the feed's checkpoint. Its time is zero
// if it was given a part of a first list alone. nil: it was given nothing.
func (c *Committer) leftAt(id string, given ledger.Selected) (*ledger.Left, error) {
	if given.Left != nil {
		return given.Left, nil
	}
	cp, _, err := c.ledger.Checkpoint(id)
	left := ledger.Left{ResourceVersion: cp.ResourceVersion, Time: cp.Time, Sequence: c.store.LogStats().Last}
	switch {
	case ledger.IgnoreUnreadable(err) != nil:
		return nil, err
	case err != nil || cp.Synced || cp.Ahead != nil || cp.Forgot:
	case cp.Gap != nil: // behind it is what it has taken over from feeds of namespaces
		if left.Time = cp.Gap.FromTime; cp.Listing == nil || !cp.Listing.Rewound {
			left.ResourceVersion = cp.Gap.From
		}
	case cp.RecordedUpTo() == "":
		return nil, nil
	default:
		left.ResourceVersion, left.Time = cp.RecordedUpTo(), time.Time{}
	}
	return &left, nil //nolint:nilerr // what is unreadable is unknown
}

// leave notes where a watch had come to that a feed which runs on feeds no more; or nothing, if the watch does not want
// the resource any more.
func (c *Committer) leave(b *store.Batch, watch, id string, given ledger.Selected, wanted bool) error {
	if !wanted {
		b.DeleteMeta(ledger.SelectionKey(watch, id))
		return nil
	}
	left, err := c.leftAt(id, given)
	switch {
	case err != nil:
		return err
	case left == nil:
		b.DeleteMeta(ledger.SelectionKey(watch, id))
	default:
		given = given.Owing()
		given.Former, given.Left = true, left
		given.Put(b, watch, id)
	}
	return nil
}

// movedWatches have their gaps reported: at once by a feed that has taken in a list, or else when the feed has.
type movedWatches []movedWatch

func (x movedWatches) process(g *group) error {
	for _, m := range x {
		m.feed.moved = append(m.feed.moved, m)
		if !m.feed.synced {
			continue
		}
		if err := g.reportMoved(m.feed, g.c.cfg.Now()); err != nil {
			return err
		}
	}
	return nil
}

// reportMoved reports what is not known of the time between the last commit of other parts of the ledger and what the feed's part has.
func (g *group) reportMoved(s *Feed, at time.Time) error {
	version := cmp.Or(s.first, s.saved.ResourceVersion)
	if s.synced || s.ahead != nil { // or it leaves out what is recorded behind its list
		version = s.saved.RecordedUpTo()
	}
	if sub := s.informer(); sub != nil {
		version = cmp.Or(version, sub.Checkpoint(s.position))
	}
	for _, m := range s.moved {
		concerns := func(h WatchRef) bool { return h.Watch.Name == m.name }
		for namespace, left := range m.from {
			if s.start == cold { // the list is of now: the cluster was set back if it is of an earlier version
				left = left.Without(func(v string) bool { return ledger.Newer(v, version) })
			}
			if left.ResourceVersion != "" && (left.ResourceVersion == version || ledger.Newer(left.ResourceVersion, version)) {
				continue // all that it was not given comes yet
			}
			gap := &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, Namespace: namespace, From: left.ResourceVersion, To: version, FromTime: left.Time, ToTime: at}
			if err := g.gap(s, at, gap, concerns); err != nil {
				return err
			}
		}
	}
	s.moved = nil
	return nil
}
