package commit

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
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

// TestSweepBesideALaterList ends the sweep behind a first list when a part of the list after a rollback is taken in: the checkpoint begins with that
// list until it is taken in, too.
func TestSweepBesideALaterList(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	r.recorded(s, r.Object("recorded", "u", "4"))
	s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: "60", End: 5}, checkpoints: map[uint64]string{1: "90", 5: "60"}})
	s.listed, s.first, s.position = map[uint64]struct{}{}, "3", 1
	r.running = []*Feed{s}
	r.commit(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "90", To: "60", FromTime: now, ToTime: now}})
	expect := func(when string) {
		t.Helper()
		if cp := r.saved(s); cp.Listing == nil || cp.ListVersion() != "60" || !cp.Listing.Rewound {
			t.Errorf("%s, the checkpoint is %+v", when, cp)
		}
	}
	r.commit(addedTo(s, r.Object("a", "u", "50")))
	expect("amid the list")
	Barrier{r.group}.add(&sweep{feed: s, at: r.at})
	r.commit()
	if !s.synced {
		t.Error("the sweep is not over")
	}
	expect("behind the sweep")
}

// TestBeginFarewell replaces the checkpoints of a part of the ledger by one without a version, which has what is known of the history of
// all, and is over once its objects are reported.
func TestBeginFarewell(t *testing.T) {
	t.Parallel()
	early, late := now.Add(-2*time.Hour), now.Add(-time.Hour)
	for name, tc := range map[string]struct{ a, b, want ledger.Checkpoint }{
		"whole": {
			ledger.Checkpoint{ResourceVersion: "5", Synced: true, Epoch: 1, Time: now, HistorySince: early, Narrowed: []time.Time{now}},
			ledger.Checkpoint{ResourceVersion: "6", Synced: true, Epoch: 2, Time: late, HistorySince: late, Narrowed: []time.Time{late}},
			ledger.Checkpoint{Synced: true, Epoch: 2, Time: late, HistorySince: late, Narrowed: []time.Time{late, now}},
		},
		"not of all": {
			ledger.Checkpoint{ResourceVersion: "5", Synced: true, Time: now, HistorySince: early},
			ledger.Checkpoint{ResourceVersion: "6", Synced: true, Time: now},
			ledger.Checkpoint{Synced: true, Time: now},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLoop(t, &pausing{})
			l.saveAll(map[string]ledger.Checkpoint{l.s.ID + "a": tc.a, l.s.ID + "b": tc.b})
			over := make(chan struct{}, 1)
			f, err := l.c.BeginFarewell(l.s.Partition, l.watches, meant, over)
			if err != nil {
				t.Fatal(err)
			}
			<-over
			if !f.Over() {
				t.Error("it is not over")
			}
			for _, ns := range []string{"a", "b"} {
				if _, ok, err := l.c.ledger.Checkpoint(l.s.ID + ns); ok || err != nil {
					t.Errorf("the checkpoint of %s is left (%v)", ns, err)
				}
			}
			if diff := cmp.Diff(tc.want, l.saved(l.s)); diff != "" {
				t.Errorf("the checkpoint (-want +got):\n%s", diff)
			}
		})
	}
	if (&Farewell{}).Over() {
		t.Error("one that has not begun is over")
	}
}
