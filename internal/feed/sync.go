package feed

import (
	"errors"
	"time"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// sweepLook is how many ledger entries a group looks at.
const sweepLook = 8 * maxGroup

// sourceSynced handles the end of a source's initial list: every object of the
// list is before this in the queue.
func (g *group) sourceSynced(c *change) error {
	s := c.src
	s.handed = nil
	if s.listed != nil {
		if sub := s.sub.Load(); sub != nil && s.first == "" && s.position == 0 {
			s.first = sub.Checkpoint(0) // of a list without objects
		}
		g.jobs = append(g.jobs, &sweep{src: s, at: c.at})
		return nil
	}
	return g.synced(s, c.at)
}

// synced notes that the first list is committed with all that it shows.
func (g *group) synced(s *source, at time.Time) error {
	g.touched[s] = struct{}{}
	s.synced, s.listed, s.recordedForm = true, nil, s.form
	s.log.Info("watch synced", "objects", s.objects(), "fromLedger", s.start == warm)
	if !s.forgot {
		return nil
	}
	s.forgot = false
	from := s.resume
	if from.Forgot {
		from = checkpoint{} // it is of the list, and the one before it is lost
	}
	return g.gap(s, at, &dynamicfactory.Gap{
		Cause: dynamicfactory.CauseUnreadable, From: from.ResourceVersion, To: s.saved.ResourceVersion, FromTime: from.Time, ToTime: at,
	}, nil)
}

// sweep finds the deletions that an informer which started from a list cannot see:
// objects that the ledger has in the source's scope and the informer has not handed
// over. (An informer that started from the ledger finds them itself.) The informer's
// store is no measure: it is ahead of what is committed.
//
// The checkpoint of a source whose sweep is not finished says so, and its next start
// begins with a list again.
type sweep struct {
	src    *source
	at     time.Time
	cursor string // the last key looked at
}

func (j *sweep) step(g *group) (more bool, err error) {
	s := j.src
	if s.ended() {
		return false, nil
	}
	looked, deleted := 0, 0
	err = g.m.scanAfter(s, s.statePrefix(), j.cursor, func(key string, o *compact.Object) error {
		if looked == sweepLook || deleted == maxGroup {
			return errEnough
		}
		looked++
		j.cursor = key
		if _, ok := s.listed[g.hashOf(o)]; ok || newer(o.GetResourceVersion(), s.first) {
			return nil // it exists, or was made after the list
		}
		deleted++
		o, err := g.former(s, o)
		if err != nil {
			return err
		}
		return g.deleted(&change{src: s, kind: objectDeleted, obj: o, unknown: true, at: j.at})
	})
	if errors.Is(err, outbox.ErrUnreadable) {
		s.log.Error("a part of the recorded states cannot be read: deletions of objects in it are not told", "error", err)
		s.forgot = true
	} else if err != nil && !errors.Is(err, errEnough) {
		return false, err
	}
	if errors.Is(err, errEnough) {
		return true, nil
	}
	return false, g.synced(s, j.at)
}

func (j *sweep) end() {}

// objects is the number of objects in the source's cache.
func (s *source) objects() int {
	sub := s.sub.Load()
	if sub == nil {
		return 0
	}
	return len(sub.Informer().GetStore().ListKeys())
}
