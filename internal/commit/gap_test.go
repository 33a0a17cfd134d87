package commit

import (
	"fmt"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// TestGapWaitsForItsList hands the committer a gap before changes that happened
// before it: they are of the time before, and the gap comes with its list.
func TestGapWaitsForItsList(t *testing.T) {
	r := newRig(t, disk(), podWatch())
	s := r.feed(pods)
	r.commit(addedTo(s, r.object("a", "u1", "6").WithPosition(1)))
	before := r.expect("added a u1 6")[0]
	r.commit(
		&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "7", To: "6", Position: 3}},
		updatedIn(s, r.object("a", "u1", "7").WithPosition(2), nil),
	)
	r.expect("updated a u1 7")
	r.commit(updatedIn(s, r.object("b", "u2", "6").WithPosition(3), nil))
	events := r.expect("gap   ", "added b u2 6")
	if events[0].ID == before.ID || s.epoch != 1 {
		t.Errorf("epoch %d", s.epoch)
	}
}

// TestGapOfAnUnknownStretch reports a gap only if its list shows a difference, or the
// stretch is long.
func TestGapOfAnUnknownStretch(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, tc := range []struct {
		blind  time.Duration
		listed string // the version of the object in the list
		want   []string
	}{
		{time.Minute, "1", nil},
		{time.Minute, "2", []string{"gap   ", "updated a u1 2"}},
		{6 * time.Minute, "1", []string{"gap   "}},
		{-1, "1", []string{"gap   "}}, // nobody knows since when
	} {
		t.Run(fmt.Sprint(tc.blind, tc.listed), func(t *testing.T) {
			r := newRig(t, disk(), podWatch())
			s := r.feed(pods)
			r.commit(addedTo(s, r.object("a", "u1", "1").WithPosition(1)))
			r.expect("added a u1 1")
			gap := &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", ToTime: now, Position: 2}
			if tc.blind >= 0 {
				gap.FromTime = now.Add(-tc.blind)
			}
			r.commit(&gapFound{feed: s, gap: gap}, updatedIn(s, r.object("a", "u1", tc.listed).WithPosition(2), nil))
			events := r.expect(tc.want...)
			if len(events) > 0 {
				g := events[0].Gap
				if g.Resource != s.Resource || g.From.Unix() != gap.FromTime.Unix() || !g.To.Equal(now) {
					t.Errorf("the gap is %+v", g)
				}
			}
			r.commit(updatedIn(s, r.object("a", "u1", "10").WithPosition(3), nil))
			r.expect("updated a u1 10")
		})
	}
}

// TestGapOutlivesAStop stops the daemon between a gap's list and its first difference.
func TestGapOutlivesAStop(t *testing.T) {
	r := newRig(t, disk(), podWatch())
	s := r.feed(pods)
	r.commit(addedTo(s, r.object("a", "u1", "1")), addedTo(s, r.object("b", "u2", "2")))
	r.expect("added a u1 1", "added b u2 2")
	now := now
	gap := &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", FromTime: now.Add(-time.Minute), ToTime: now}
	b := r.store.NewBatch()
	b.PutMeta(ledger.CheckpointMeta(s.ID), ledger.Encode(ledger.Checkpoint{
		ResourceVersion: "2", Synced: true, Gap: gap, Listing: &ledger.Listing{ResourceVersion: "9"},
	}))
	if err := r.store.Commit(b); err != nil {
		t.Fatal(err)
	}
	s = r.feed(pods) // as after a restart
	if err := r.c.Prepare(s); err != nil {
		t.Fatal(err)
	}
	r.commit(
		listedBy(s, r.object("a", "u1", "1")),
		listedBy(s, r.object("b", "u2", "8").WithPosition(1)),
	)
	r.expect("gap   ", "updated b u2 8")
}

// TestUnreadableObjectLeavesAnOpenGap reports an object that cannot be read while a gap
// of the whole resource waits for a difference. Both are told.
func TestUnreadableObjectLeavesAnOpenGap(t *testing.T) {
	r := newRig(t, disk(), podWatch())
	s := r.feed(pods)
	now := now
	r.commit(addedTo(s, r.object("a", "u1", "1").WithPosition(1)))
	r.expect("added a u1 1")
	r.commit(
		&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", FromTime: now, ToTime: now, Position: 3}},
		addedTo(s, r.object("b", "u2", "1").WithPosition(2)),
	)
	r.expect("added b u2 1")
	s.open, s.pending = s.pending[0], nil // its list is being taken in
	r.commit(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseUnreadable, Namespace: "ns", Name: "x", To: "8", FromTime: now, ToTime: now}})
	r.expect("gap x  ")
	r.commit(updatedIn(s, r.object("a", "u1", "5").WithPosition(3), nil))
	r.expect("gap   ", "updated a u1 5")
}

// TestGapsOfNamespaces has the sources of two namespaces lose the same versions: these
// are two gaps, with two ids.
func TestGapsOfNamespaces(t *testing.T) {
	r := newRig(t, disk(), podWatch())
	for _, ns := range []string{"a", "b"} {
		s := r.feedIn(pods, ns)
		r.commit(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9"}})
	}
	gaps := r.events()
	if len(gaps) != 2 || gaps[0].ID == gaps[1].ID {
		t.Errorf("gaps are %v", gaps)
	}
}
