package commit

import (
	"fmt"
	"testing"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestSweep compares a large ledger with a list: in bounded groups, with other changes
// between, everything is deleted that the list does not show and that is not newer.
func TestSweep(t *testing.T) {
	const n = 3 * maxGroup
	r := newRig(t, disk(), committest.PodWatch())
	former := r.feed(pods)
	var states []change
	for i := range n {
		states = append(states, addedTo(former, r.Object(fmt.Sprintf("pod-%05d", i), "u", "2")))
	}
	states = append(states,
		addedTo(former, r.Object("a-listed", "u", "3")),
		addedTo(former, r.Object("a-newer", "u", "7")), // than the list: another source recorded it
	)
	r.commit(states...)
	r.Read = r.Store.LogStats().Last

	s := r.feed(pods)
	s.listed, s.first = map[uint64]struct{}{}, "5"
	r.add(listedBy(s, r.Object("a-listed", "u", "3")))
	r.add(&feedSynced{feed: s})
	deleted := 0
	for i := 0; i == 0 || len(r.group.jobs) > 0; i++ {
		if i == 1 {
			r.add(addedTo(s, r.Object("z-new", "u", "8")))
		}
		if deleted < n && s.listed == nil {
			t.Errorf("the source counts as swept after %d deletions", deleted)
		}
		r.step()
		events := r.Events()
		if len(events) > maxGroup+1 {
			t.Errorf("a group of %d events", len(events))
		}
		for _, e := range events {
			switch {
			case e.Type == event.Deleted && e.UID == "u" && e.ResourceVersion == "2":
				deleted++
			case e.Type != event.Added && e.Type != event.Sync || e.Name != "z-new":
				t.Errorf("%s %s %s", e.Type, e.Name, e.ResourceVersion)
			}
		}
	}
	if deleted != n {
		t.Errorf("%d objects are deleted, want %d", deleted, n)
	}
	if !s.synced || s.listed != nil {
		t.Error("the source is not synced")
	}
}

// TestSweepSparesWhatIsNewerThanItsList begins with a list of an older version than what
// another feed had recorded of an object: the list cannot show that.
func TestSweepSparesWhatIsNewerThanItsList(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: "20", End: 2}, checkpoints: map[uint64]string{2: "20"}})
	s.start, s.listed = relist, map[uint64]struct{}{}
	r.recorded(s, r.Object("gone", "u1", "19"))
	r.recorded(s, r.Object("newer", "u2", "25"))
	r.commit(listedBy(s, r.Object("b", "u3", "3")), listedBy(s, r.Object("c", "u4", "20").WithPosition(2)), &feedSynced{feed: s})
	r.Expect("sync b u3 3", "sync c u4 20", "deleted gone u1 19")
}

// TestSweepBehindAListWithoutObjects begins with a list of a version at which there was
// nothing yet. Changes that follow it may come before the end of the list is noticed.
func TestSweepBehindAListWithoutObjects(t *testing.T) {
	for _, tc := range []struct {
		name   string
		rewind bool
		follow bool // a change comes first
		want   []string
	}{
		{name: "alone", want: []string{"deleted gone u1 19"}},
		{name: "after a change", follow: true, want: []string{"added b u3 30", "deleted gone u1 19"}},
		{name: "after a rollback", rewind: true, want: []string{"deleted gone u1 19", "deleted newer u2 25"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			s.Subscribed(&informer{checkpoints: map[uint64]string{0: "20"}})
			s.start, s.synced, s.rewind, s.listed = relist, true, tc.rewind, map[uint64]struct{}{}
			r.recorded(s, r.Object("gone", "u1", "19"))
			r.recorded(s, r.Object("newer", "u2", "25"))
			var changes []change
			if tc.follow {
				changes = append(changes, addedTo(s, r.Object("b", "u3", "30").WithPosition(1)))
			}
			r.commit(append(changes, &feedSynced{feed: s})...)
			r.Expect(tc.want...)
		})
	}
}
