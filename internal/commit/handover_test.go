package commit

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestCheckpointsAreHandedOver narrows and widens: a part inherits what the whole
// had complete, whose checkpoint stays that of the rest; the whole lists what all its parts
// and the rest had.
func TestCheckpointsAreHandedOver(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	save := func(id, version string) {
		if err := ledger.PutMeta(r.Store, ledger.CheckpointMeta(id), ledger.Encode(ledger.Checkpoint{ResourceVersion: version, Synced: true})); err != nil {
			t.Fatal(err)
		}
	}
	start := func(namespaces ...string) map[string]string {
		var fresh []*Feed
		for _, ns := range namespaces {
			fresh = append(fresh, r.feedIn(pods, ns))
		}
		if err := r.c.HandOverCheckpoints(fresh); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, id := range []string{"pods#", "pods#one", "pods#two"} {
			if cp, ok, err := r.c.ledger.Checkpoint(id); err != nil {
				t.Fatal(err)
			} else if ok {
				if got[id] = cp.ResourceVersion; cp.Forgot {
					t.Errorf("%s reports that its position was lost", id)
				}
			}
		}
		return got
	}
	if got := start("one"); len(got) != 0 {
		t.Errorf("begun: %v", got)
	}
	save("pods#", "100")
	if got := start("one", "two"); len(got) != 3 || got["pods#one"] != "100" || got["pods#two"] != "100" {
		t.Errorf("narrowed: %v", got)
	}
	save("pods#one", "200")
	if got := start("one"); got["pods#one"] != "200" {
		t.Errorf("restarted: %v", got)
	}
	got := start("")
	cp, _, err := r.c.ledger.Checkpoint("pods#")
	if err != nil {
		t.Fatal(err)
	}
	ahead := map[string]string{"": "100", "one": "200", "two": "100"}
	if len(got) != 1 || cp.ListVersion() != "100" || cp.Resumable() || !maps.Equal(cp.Ahead, ahead) {
		t.Errorf("widened: %v, %+v", got, cp)
	}
	start("one") // the list has not begun
	if start(""); !maps.Equal(r.saved(r.feed(pods)).Ahead, ahead) {
		t.Errorf("narrowed and widened: %+v", r.saved(r.feed(pods)))
	}
}

// TestGatheredTimeIsOfTheOldest widens a watch while one of the namespaces was left for
// a time: history is known up to then.
func TestGatheredTimeIsOfTheOldest(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.saveAll(map[string]ledger.Checkpoint{
		"pods#a": {ResourceVersion: "100", Synced: true, Time: now.Add(-time.Hour)},
		"pods#b": {ResourceVersion: "200", Synced: true, Time: now},
	})
	s := r.feed(pods)
	if err := r.c.HandOverCheckpoints([]*Feed{s}); err != nil {
		t.Fatal(err)
	}
	cp, _, err := r.c.ledger.Checkpoint("pods#")
	if err != nil || cp.ResourceVersion != "100" || !cp.Time.Equal(now.Add(-time.Hour)) {
		t.Errorf("the checkpoint is %+v, %v", cp, err)
	}
}

// TestGatheredQuietVersion widens a watch of a resource without bookmarks: where the version of
// the oldest part has expired, the whole begins at one at which no part had changed. A kill before
// its list does not lose it.
func TestGatheredQuietVersion(t *testing.T) {
	for name, tc := range map[string]struct{ whole, a, b, want string }{
		"each part":               {"180", "200", "", "150"},
		"a later one of the rest": {"300", "200", "250", "200"},
		"not the oldest part":     {"180", "", "200", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, disk(), committest.PodWatch())
			r.saveAll(map[string]ledger.Checkpoint{
				"pods#":  {ResourceVersion: "120", Quiet: tc.whole, Synced: true},
				"pods#a": {ResourceVersion: "100", Quiet: tc.a, Synced: true},
				"pods#b": {ResourceVersion: "150", Quiet: tc.b, Synced: true},
			})
			for _, when := range []string{"gathered", "after a kill"} {
				s := r.feed(pods)
				r.succeeds(s)
				snap, err := r.c.Begin(s)
				if err != nil || snap.ResourceVersion != "100" || snap.Quiet != tc.want {
					t.Fatalf("%s, the informer begins with %+v, %v", when, snap, err)
				}
				s.Subscribed(&informer{})
				r.group.touchAll([]*Feed{s})
				r.commit()
			}
		})
	}
}

// TestCheckpointBeforeTheFirstContact has the committer look at a source that has not
// reached the API server yet: what is recorded beyond its version stays known, and so does
// the list that it begins with, up to its end.
func TestCheckpointBeforeTheFirstContact(t *testing.T) {
	for name, saved := range map[string]ledger.Checkpoint{
		"a watch":                    {ResourceVersion: "10", Recorded: "20", Synced: true, Form: "v1"},
		"a list":                     {ResourceVersion: "10", Recorded: "20", Synced: true, Form: "v1", Listing: &ledger.Listing{ResourceVersion: "20"}},
		"a list after a rollback":    {ResourceVersion: "10", Synced: true, Form: "v1", Listing: &ledger.Listing{ResourceVersion: "5", Rewound: true}},
		"a list of what parts began": {ResourceVersion: "10", Recorded: "20", Listing: &ledger.Listing{ResourceVersion: "10"}, Ahead: map[string]string{"ns": "20"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			r.save(s, saved)
			if err := r.c.Prepare(s); err != nil {
				t.Fatal(err)
			}
			in := &informer{}
			s.Subscribed(in)
			look := func(when string, want *ledger.Listing) {
				t.Helper()
				r.group.touchAll([]*Feed{s})
				r.step()
				if cp := r.saved(s); cp.Recorded != saved.Recorded || !cmp.Equal(cp.Listing, want) {
					t.Errorf("the checkpoint is %+v, %s", cp, when)
				}
			}
			look("first", saved.Listing)
			if _, err := r.c.Begin(s); err != nil {
				t.Fatal(err)
			}
			look("once the informer has begun", saved.Listing)
			r.commit(&feedSynced{feed: s})
			look("after a list without an object", nil)
		})
	}
}

// TestUnreadablePositionIsHandedOver narrows and widens a source whose checkpoint
// cannot be read: the gap is reported by its successor.
func TestUnreadablePositionIsHandedOver(t *testing.T) {
	for name, tc := range map[string]struct {
		unreadable, beside string
		successor          string
	}{
		"of a part":                    {unreadable: "pods#a"},
		"of a part, beside a later":    {unreadable: "pods#a", beside: "pods#b"},
		"of a part, beside an earlier": {unreadable: "pods#b", beside: "pods#a"},
		"of the whole":                 {unreadable: "pods#", successor: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, disk(), committest.PodWatch())
			if tc.beside != "" {
				r.saveAll(map[string]ledger.Checkpoint{tc.beside: {ResourceVersion: "100", Synced: true, Time: now}})
			}
			if err := ledger.PutMeta(r.Store, ledger.CheckpointMeta(tc.unreadable), []byte("{")); err != nil {
				t.Fatal(err)
			}
			s := r.feedIn(pods, tc.successor)
			r.succeeds(s)
			r.commit(&feedSynced{feed: s})
			if gaps := r.Events(); len(gaps) != 1 || gaps[0].Type != event.Gap || gaps[0].Gap.Cause != dynamicfactory.CauseUnreadable {
				t.Errorf("the gaps are %v", gaps)
			}
		})
	}
}

// TestGatheredLists widens a watch while one namespace is amid a list that is ahead of
// another: the list of the whole leaves out history of the other, which is a gap. So it is once
// the watch was narrowed and widened again before that list.
func TestGatheredLists(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.saveAll(map[string]ledger.Checkpoint{
		"pods#a": {ResourceVersion: "100", Synced: true, Time: now.Add(-time.Hour)},
		"pods#b": {ResourceVersion: "150", Synced: true, Time: now, Listing: &ledger.Listing{ResourceVersion: "200"}},
	})
	for _, namespace := range []string{"", "a", ""} {
		s := r.feedIn(pods, namespace)
		r.succeeds(s)
		if s.resume.ListVersion() != "200" || s.open == nil || s.open.From != "100" || !s.open.FromTime.Equal(now.Add(-time.Hour)) {
			t.Errorf("the source of %q begins at %s with the gap %+v", namespace, s.resume.ListVersion(), s.open)
		}
	}
}

// TestGatheredListOfWhatIsRecorded widens a watch while one namespace is amid a list of the newest version that is recorded, which may not be
// complete: nothing is missing, and what is recorded is not reported again.
func TestGatheredListOfWhatIsRecorded(t *testing.T) {
	for name, tc := range map[string]struct {
		listing ledger.Listing
		gap     bool
	}{
		"in another form":                   {ledger.Listing{ResourceVersion: "129"}, false},
		"behind lost history, as it stands": {ledger.Listing{ResourceVersion: "129", Blind: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, disk(), committest.PodWatch())
			part := r.feedIn(pods, "ns")
			r.commit(addedTo(part, r.Object("recorded", "u1", "90")), addedTo(part, r.Object("sibling", "u2", "91")), updatedIn(part, r.Object("recorded", "u1", "129"), nil))
			r.Expect("added recorded u1 90", "added sibling u2 91", "updated recorded u1 129")
			r.saveAll(map[string]ledger.Checkpoint{
				"pods#a":  {ResourceVersion: "100", Synced: true, Time: now.Add(-time.Hour)},
				"pods#ns": {ResourceVersion: "127", Recorded: "129", Synced: true, Time: now, Listing: &tc.listing},
			})
			s := r.feed(pods)
			r.succeeds(s)
			if gap := s.open != nil; gap != tc.gap {
				t.Fatalf("the gap is %+v", s.open)
			} else if gap {
				return
			}
			s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: "100", End: 1}, checkpoints: map[uint64]string{1: "100"}})
			r.commit(listedBy(s, r.Object("recorded", "u1", "90")), listedBy(s, r.Object("sibling", "u2", "91").WithPosition(1)), &feedSynced{feed: s})
			r.commit(updatedIn(s, r.Object("recorded", "u1", "129").WithPosition(2), nil), deletedFrom(s, r.Object("sibling", "u2", "129").WithPosition(3)))
			r.Expect("deleted sibling u2 129")
		})
	}
}

// TestGatheredFormIsKept widens a watch whose namespaces are recorded in the form of now: no state is recorded again.
func TestGatheredFormIsKept(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	part := r.feedIn(pods, "ns")
	r.commit(addedTo(part, r.Object("a", "u1", "90")))
	r.saveAll(map[string]ledger.Checkpoint{
		"pods#b":  {ResourceVersion: "100", Synced: true, Form: part.Form},
		"pods#ns": {ResourceVersion: "150", Synced: true, Form: part.Form},
	})
	s := r.feed(pods)
	r.succeeds(s)
	last := r.Store.LogStats().Last
	r.commit(listedBy(s, r.Object("a", "u1", "90").WithPosition(1)), &feedSynced{feed: s})
	if again := r.Store.LogStats().Last - last; again != 0 {
		t.Errorf("%d records were added", again)
	}
}

// TestGatheredEpochs widens a watch of which one namespace has followed a rollback, and another has not: their versions
// cannot be compared.
func TestGatheredEpochs(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.saveAll(map[string]ledger.Checkpoint{
		"pods#a": {ResourceVersion: "100", Synced: true, Time: now.Add(-time.Hour)},
		"pods#b": {ResourceVersion: "150", Synced: true, Time: now, Epoch: 1},
	})
	s := r.feed(pods)
	r.succeeds(s)
	if s.resume.ListVersion() != "150" || s.open == nil || s.epoch != 1 {
		t.Errorf("the source begins at %s with the gap %+v, epoch %d", s.resume.ListVersion(), s.open, s.epoch)
	}
}

// TestGapBehindAnUnfinishedList ends amid the list of a feed whose checkpoint could not be read: the gap of the next life does not
// begin at the version of that list.
func TestGapBehindAnUnfinishedList(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.saveAll(map[string]ledger.Checkpoint{"pods#": {ResourceVersion: "90", Time: now, Forgot: true}})
	s := r.feed(pods)
	r.succeeds(s)
	r.commit(&feedSynced{feed: s})
	if g := r.Expect("gap   ")[0].Gap; g.Cause != dynamicfactory.CauseUnreadable || g.FromResourceVersion != "" || !g.From.IsZero() {
		t.Errorf("the gap is %+v", g)
	}
}

// TestFarewellIsOver begins a feed of a part of the ledger whose objects were all reported as deleted: that note goes.
func TestFarewellIsOver(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	if err := ledger.PutMeta(r.Store, ledger.FarewellMeta+s.Partition, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	r.succeeds(s)
	if _, ok, err := r.Store.Meta(ledger.FarewellMeta + s.Partition); ok || err != nil {
		t.Errorf("the note is left: %t, %v", ok, err)
	}
}

// TestGatheredListWithoutADifference widens a watch of which a namespace is an hour behind another, so that
// the list of the whole leaves out that hour. It is reported although the list shows no difference.
func TestGatheredListWithoutADifference(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.commit(addedTo(r.feed(pods), r.Object("a", "u1", "1")))
	r.Expect("added a u1 1")
	r.saveAll(map[string]ledger.Checkpoint{
		"pods#ns": {ResourceVersion: "100", Synced: true, Time: now.Add(-time.Hour)},
		"pods#b":  {ResourceVersion: "150", Synced: true, Time: now, Listing: &ledger.Listing{ResourceVersion: "200"}},
	})
	s := r.feed(pods)
	r.succeeds(s)
	r.commit(listedBy(s, r.Object("a", "u1", "1").WithPosition(1)), &feedSynced{feed: s})
	r.commit(updatedIn(s, r.Object("a", "u1", "300").WithPosition(2), nil))
	if g := r.Expect("gap   ", "updated a u1 300")[0].Gap; g.Cause != dynamicfactory.CauseExpired || g.FromResourceVersion != "100" {
		t.Errorf("the gap is %+v", g)
	}
}

// TestGatheredBlindList widens a watch while a namespace is amid its first list, behind lost history that
// is reported already: what the list of the whole shows is not exact either.
func TestGatheredBlindList(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.saveAll(map[string]ledger.Checkpoint{
		"pods#a": {Listing: &ledger.Listing{ResourceVersion: "200", Blind: true}},
		"pods#b": {ResourceVersion: "250", Synced: true},
	})
	s := r.feed(pods)
	r.succeeds(s)
	if s.resume.ListVersion() != "200" || s.open != nil || s.blindTo == 0 {
		t.Errorf("the source begins at %s with the gap %+v, blind to %d", s.resume.ListVersion(), s.open, s.blindTo)
	}
}

// TestGatheredParts widens a watch while a part takes its first list, another is recorded
// again in another form, and the whole is behind what an earlier part had recorded.
func TestGatheredParts(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.saveAll(map[string]ledger.Checkpoint{
		"pods#":  {ResourceVersion: "100", Sweeping: true, Ahead: map[string]string{"c": "130"}},
		"pods#a": {ResourceVersion: "120", Synced: true},
		"pods#b": {Listing: &ledger.Listing{ResourceVersion: "50"}},
		"pods#d": {ResourceVersion: "140", Synced: true, Sweeping: true, Listing: &ledger.Listing{ResourceVersion: "140"}},
	})
	s := r.feed(pods)
	if err := r.c.HandOverCheckpoints([]*Feed{s}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"": "100", "a": "120", "c": "130", "d": "140"}
	if cp := r.saved(s); cp.ListVersion() != "50" || !maps.Equal(cp.Ahead, want) {
		t.Errorf("the checkpoint is %+v, want ahead %v", cp, want)
	}
}

// TestGatheredOpenGap widens a watch of which a namespace is amid a list behind lost history: the gap of the whole begins with the one that is
// open if no other namespace is behind that. Versions of before a rollback cannot be compared with the others.
func TestGatheredOpenGap(t *testing.T) {
	early, late := now.Add(-2*time.Hour), now.Add(-time.Hour)
	for name, tc := range map[string]struct {
		open    dynamicfactory.Gap
		rewound bool
		want    dynamicfactory.Gap
	}{
		"behind another namespace":    {dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "150", FromTime: now}, false, dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "100", FromTime: late}},
		"before all":                  {dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "50", FromTime: early}, false, dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "50", FromTime: early}},
		"of a rollback":               {dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "150", FromTime: now}, true, dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "150", FromTime: late}},
		"of a rollback, begins first": {dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "150", FromTime: early}, true, dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "150", FromTime: early}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			r.saveAll(map[string]ledger.Checkpoint{
				"pods#a": {ResourceVersion: "100", Synced: true, Time: late},
				"pods#b": {ResourceVersion: "150", Synced: true, Time: now, Gap: &tc.open, Listing: &ledger.Listing{ResourceVersion: "200", Rewound: tc.rewound}},
			})
			s := r.feed(pods)
			r.succeeds(s)
			if s.open == nil || s.open.Cause != tc.want.Cause || s.open.From != tc.want.From || !s.open.FromTime.Equal(tc.want.FromTime) {
				t.Errorf("the gap is %+v, want %+v", s.open, tc.want)
			}
		})
	}
}
