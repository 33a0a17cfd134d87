package commit

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// selecting is a watch by a selector of the API server.
func selecting(name, labels string) plan.Watch {
	return committest.PodWatch(func(w *plan.Watch) { w.Name, w.ServerLabels, w.Fingerprint = name, labels, labels })
}

// part is the feed of a part of the ledger, of a namespace or all, that was prepared.
func (r *rig) part(labels, namespace string) *Feed {
	r.Helper()
	r.watches = []plan.Watch{selecting("w", labels)}
	s := r.feedIn(pods, namespace)
	if err := r.c.Prepare(s); err != nil {
		r.Fatal(err)
	}
	return s
}

// noted are the rules of watches of a feed, as it noted them when it ran.
func (r *rig) noted(s *Feed, watches ...string) {
	r.Helper()
	b := r.Store.NewBatch()
	defer b.Discard()
	for _, w := range watches {
		selectedBy(s, s.Watches()[0].Watch).Put(b, w, s.ID)
	}
	if err := r.Store.Commit(b); err != nil {
		r.Fatal(err)
	}
}

// gapsFrom are the versions from which gaps are reported.
func (r *rig) gapsFrom() (from []string) {
	r.Helper()
	for _, e := range r.Events() {
		if e.Gap != nil {
			from = append(from, fmt.Sprint(e.Gap.Watch, " ", e.Gap.FromResourceVersion))
		}
	}
	return from
}

func (r *rig) expectGaps(want ...string) {
	r.Helper()
	if diff := cmp.Diff(want, r.gapsFrom()); diff != "" {
		r.Errorf("gaps (-want +got):\n%s", diff)
	}
}

// lists has a feed that has begun take in its first list.
func (r *rig) lists(s *Feed, version string) {
	r.Helper()
	s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: version, End: 1}, checkpoints: map[uint64]string{1: version}})
	r.commit(listedBy(s, r.Object("listed", "u", version).WithPosition(1)), &feedSynced{feed: s})
}

// TestWatchMovesBeforeItsListIsTakenIn has a watch move to another part of the ledger before the list of the one that it leaves was taken
// in: what it was given may be gone by then.
func TestWatchMovesBeforeItsListIsTakenIn(t *testing.T) {
	earlier := ledger.Checkpoint{ResourceVersion: "20", Synced: true, Time: now.Add(-time.Hour)}
	for name, tc := range map[string]struct {
		left, earlier ledger.Checkpoint
		want          []string
	}{
		"nothing of it":                     {},
		"nothing of it, and an earlier one": {ledger.Checkpoint{Time: now}, earlier, []string{"w 20"}},
		"a part":                            {ledger.Checkpoint{Time: now, Listing: &ledger.Listing{ResourceVersion: "50"}}, ledger.Checkpoint{}, []string{"w 50"}},
		"a part, and all of an earlier one": {ledger.Checkpoint{Time: now, Listing: &ledger.Listing{ResourceVersion: "50"}}, earlier, []string{"w 20"}},
		"taken over from namespaces": {ledger.Checkpoint{
			ResourceVersion: "40", Time: now, Sweeping: true, Listing: &ledger.Listing{ResourceVersion: "40"}, Ahead: map[string]string{"ns": "50"},
		}, earlier, []string{"w 40"}},
		"taken over from namespaces amid a list": {ledger.Checkpoint{
			Time: now, Sweeping: true, Listing: &ledger.Listing{ResourceVersion: "50"}, Gap: &dynamicfactory.Gap{From: "40", FromTime: now},
		}, earlier, []string{"w 40"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk())
			for labels, cp := range map[string]ledger.Checkpoint{"tier=a": tc.left, "tier=0": tc.earlier} {
				if cp.Time.IsZero() {
					continue
				}
				s := r.part(labels, "")
				r.save(s, cp)
				r.noted(s, "w")
			}
			s := r.part("tier=b", "")
			r.begin(s, true, selecting("w", "tier=b"))
			r.lists(s, "100")
			r.expectGaps(tc.want...)
		})
	}
}

// TestWatchMovesFromAPositionThatCannotBeRead: where the watch had come to is not known, so that the gap has no begin.
func TestWatchMovesFromAPositionThatCannotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk())
	left := r.part("tier=a", "")
	r.noted(left, "w")
	if err := ledger.PutMeta(r.Store, ledger.CheckpointMeta(left.ID), []byte("{")); err != nil {
		t.Fatal(err)
	}
	s := r.part("tier=b", "")
	r.begin(s, true, selecting("w", "tier=b"))
	r.lists(s, "100")
	r.expectGaps("w ")
}

// TestWatchOfTwoPartsOfAResource: a watch has left a part of the ledger that it does not mean any more, once another one of the resource feeds
// it, and not one that it means and that no feed reads, as its version is not served now.
func TestWatchOfTwoPartsOfAResource(t *testing.T) {
	t.Parallel()
	for name, means := range map[string]bool{"means both": true, "means one": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk())
			first := r.part("tier=a", "")
			r.save(first, ledger.Checkpoint{ResourceVersion: "50", Synced: true, Time: now})
			r.noted(first, "w")
			b := r.Store.NewBatch()
			defer b.Discard()
			if err := r.c.noteSelections(b, givenBy([]*Feed{r.part("tier=b", "")}), func(_, partition string) (resource, part bool) {
				return true, means || partition != first.Partition
			}); err != nil {
				t.Fatal(err)
			}
			if err := r.Store.Commit(b); err != nil {
				t.Fatal(err)
			}
			known, err := r.c.ledger.Selections()
			if left := known[first.ID]["w"].Left; err != nil || (left == nil) != means {
				t.Errorf("it has left the first at %+v (%v)", left, err)
			}
		})
	}
}

// TestEndBeforeAMoveIsReported ends the process between the notes of a reload and its barrier: the gap of a watch that comes to what another
// reads is reported by the next start, once.
func TestEndBeforeAMoveIsReported(t *testing.T) {
	r := newRig(t, disk())
	left := r.part("tier=a", "")
	r.save(left, ledger.Checkpoint{ResourceVersion: "50", Synced: true, Time: now})
	r.noted(left, "w")
	both := []plan.Watch{selecting("v", "tier=b"), selecting("w", "tier=b")}
	s := r.part("tier=b", "")
	r.save(s, ledger.Checkpoint{ResourceVersion: "100", Synced: true, Form: s.Form})
	r.noted(s, "v")
	s = r.part("tier=b", "")
	r.begin(s, true, both[0])
	if _, err := r.c.PrepareChange(&plan.State{Watches: both}, wanted, nil, map[*Feed][]WatchRef{s: {NewWatchRef(&both[0]), NewWatchRef(&both[1])}}, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]string{{"w 50"}, nil} {
		s = r.part("tier=b", "")
		r.begin(s, true, both...)
		r.expectGaps(want...)
	}
}

// TestWatchReturnsToWhatOthersReadInPart has a watch of all namespaces move to another part of the ledger while another watch reads on one
// of the namespaces of the one that it left, and return.
func TestWatchReturnsToWhatOthersReadInPart(t *testing.T) {
	r := newRig(t, disk())
	whole := r.part("tier=a", "")
	r.save(whole, ledger.Checkpoint{ResourceVersion: "50", Synced: true, Time: now, Form: whole.Form})
	r.noted(whole, "w", "v")
	v, away, back := selecting("v", "tier=a"), selecting("w", "tier=b"), selecting("w", "tier=a")
	v.Namespaces = []string{"ns"}
	in, other := r.part("tier=a", "ns"), r.part("tier=b", "")
	if err := r.c.HandOverCheckpoints([]*Feed{in}); err != nil {
		t.Fatal(err)
	}
	vRef, awayRef := NewWatchRef(&v), NewWatchRef(&away)
	in.watches.Store(&[]WatchRef{vRef})
	other.watches.Store(&[]WatchRef{awayRef})
	x, err := r.c.PrepareChange(&plan.State{Watches: []plan.Watch{v, away}}, wanted, []*Feed{in, other}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := (Barrier{r.group}).Change(x); err != nil {
		t.Fatal(err)
	}
	r.at = now.Add(time.Second)
	r.lists(other, "60")
	r.expectGaps("w 50")
	r.save(in, ledger.Checkpoint{ResourceVersion: "70", Synced: true, Time: now, Form: in.Form})
	s := r.part("tier=a", "")
	r.succeeds(s)
	r.change([]plan.Watch{v, back}, s, true, v, back)
	r.lists(s, "80")
	r.expectGaps("w 60")
}

// TestWatchReturnsBeforeAListIsTakenIn has a watch move to another part of the ledger, while another reads on what it leaves, and return
// before it was given anything there.
func TestWatchReturnsBeforeAListIsTakenIn(t *testing.T) {
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprint("ended: ", ended), func(t *testing.T) {
			r := newRig(t, disk())
			left := r.part("tier=a", "")
			r.save(left, ledger.Checkpoint{ResourceVersion: "50", Synced: true, Time: now, Form: left.Form})
			r.noted(left, "w", "v")
			v, w, away := selecting("v", "tier=a"), selecting("w", "tier=a"), selecting("w", "tier=b")
			left = r.part("tier=a", "")
			r.begin(left, true, v, w)
			other := r.part("tier=b", "")
			awayRef := NewWatchRef(&away)
			other.watches.Store(&[]WatchRef{awayRef})
			x, err := r.c.PrepareChange(&plan.State{Watches: []plan.Watch{v, away}}, wanted, []*Feed{other}, map[*Feed][]WatchRef{left: {NewWatchRef(&v)}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := (Barrier{r.group}).Change(x); err != nil {
				t.Fatal(err)
			}
			left.saved.ResourceVersion = "70"
			r.save(left, left.saved)
			for _, want := range [][]string{{"w 50"}, nil} {
				if ended {
					left = r.part("tier=a", "")
				}
				r.begin(left, ended, v, w)
				r.expectGaps(want...)
			}
		})
	}
}

// TestWatchReturnsBeforeAListIsTakenInToWhatIsReadInPart is the same where the other watch reads on a namespace alone.
func TestWatchReturnsBeforeAListIsTakenInToWhatIsReadInPart(t *testing.T) {
	for name, tc := range map[string]struct {
		wanted bool   // the watch wants the resource all the time
		waits  string // what the other watch reads while it wants the resource before it can be given that
		want   []string
	}{
		"moved":                               {true, "", []string{"w 50"}},
		"moved, and waits":                    {true, "a namespace", []string{"w 50"}},
		"removed":                             {false, "", nil}, // and made again: it begins with what there is
		"removed, and waits once it is again": {false, "a namespace", nil},
		"removed, and waits for all of it":    {false, "all", nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, disk())
			whole := r.part("tier=a", "")
			r.save(whole, ledger.Checkpoint{ResourceVersion: "50", Synced: true, Time: now, Form: whole.Form})
			r.noted(whole, "w", "v")
			v, w := selecting("v", "tier=a"), selecting("w", "tier=a")
			v.Namespaces = []string{"ns"}
			in := r.part("tier=a", "ns")
			if err := r.c.HandOverCheckpoints([]*Feed{in}); err != nil {
				t.Fatal(err)
			}
			vRef := NewWatchRef(&v)
			in.watches.Store(&[]WatchRef{vRef})
			x, err := r.c.PrepareChange(&plan.State{Watches: []plan.Watch{v, selecting("w", "tier=b")}}, func(*plan.Watch, string) (resource, part bool) { return tc.wanted, tc.wanted }, []*Feed{in}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := (Barrier{r.group}).Change(x); err != nil {
				t.Fatal(err)
			}
			r.save(in, ledger.Checkpoint{ResourceVersion: "70", Synced: true, Time: now, Form: in.Form})
			if tc.waits == "a namespace" {
				r.change([]plan.Watch{v, w}, in, false, v)
			}
			s := r.part("tier=a", "")
			r.succeeds(s)
			if tc.waits == "all" {
				r.change([]plan.Watch{v, w}, s, true, v)
				r.change([]plan.Watch{v, w}, s, false, v, w)
			} else {
				r.change([]plan.Watch{v, w}, s, true, v, w)
			}
			r.lists(s, "80")
			r.expectGaps(tc.want...)
		})
	}
}

// TestWatchReturnsToAResourceThatOthersRead has a watch give up a resource that another reads on, and take it back: it is given what there
// is by then, and no gap.
func TestWatchReturnsToAResourceThatOthersRead(t *testing.T) {
	r := newRig(t, disk())
	s := r.part("", "")
	r.save(s, ledger.Checkpoint{ResourceVersion: "50", Synced: true, Time: now, Form: s.Form})
	r.noted(s, "v", "w")
	v, w := selecting("v", ""), selecting("w", "")
	s = r.part("", "")
	r.begin(s, true, v, w)
	x, err := r.c.PrepareChange(&plan.State{Watches: []plan.Watch{v, w}}, func(w *plan.Watch, _ string) (resource, part bool) { return w.Name == "v", w.Name == "v" }, nil, map[*Feed][]WatchRef{s: {NewWatchRef(&v)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := (Barrier{r.group}).Change(x); err != nil {
		t.Fatal(err)
	}
	s.saved.ResourceVersion = "70"
	r.save(s, s.saved)
	r.begin(s, false, v, w)
	r.expectGaps()
}

// TestWatchReturnsFromWhatIsBehind has a watch move to another part of the ledger, which is behind the one that it left, so that it is given
// older states, and return before that has caught up: it is given the newer ones again, and a gap for what was deleted between the two.
func TestWatchReturnsFromWhatIsBehind(t *testing.T) {
	v, away, back := selecting("v", "tier=b"), selecting("w", "tier=b"), selecting("w", "tier=a")
	r := newRig(t, disk())
	left, behind := r.part("tier=a", ""), r.part("tier=b", "")
	r.save(left, ledger.Checkpoint{ResourceVersion: "60", Synced: true, Time: now, Form: left.Form})
	r.save(behind, ledger.Checkpoint{ResourceVersion: "50", Synced: true, Time: now.Add(-time.Minute), Form: behind.Form})
	left, behind = r.part("tier=a", ""), r.part("tier=b", "")
	r.change([]plan.Watch{v, back}, left, true, back)
	r.change([]plan.Watch{v, back}, behind, true, v)
	r.commit(addedTo(left, r.Object("n", "u", "60")), addedTo(behind, r.Object("n", "u", "40")))
	left.Stop()
	r.save(left, ledger.Checkpoint{ResourceVersion: "60", Synced: true, Time: now, Form: left.Form})
	r.save(behind, ledger.Checkpoint{ResourceVersion: "50", Synced: true, Time: now.Add(-time.Minute), Form: behind.Form})
	r.Events()
	given := func(want ...string) {
		t.Helper()
		r.commit()
		var got []string
		for _, e := range r.Events() {
			got = append(got, fmt.Sprint(e.Type, " ", e.ResourceVersion))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the watch is given (-want +got):\n%s", diff)
		}
	}
	r.change([]plan.Watch{v, away}, behind, false, v, away)
	given("sync 40")
	left = r.part("tier=a", "")
	r.change([]plan.Watch{v, back}, left, true, back)
	given("gap ", "sync 60")
	left.Stop()
	left = r.part("tier=a", "") // it has not left since
	r.change([]plan.Watch{v, back}, left, true, back)
	given()
}

// TestWatchMovesBesideARollback has a watch move to a part of the ledger that begins with a list, which shows an earlier version than it had
// left: the cluster was set back, and what it was given may be gone.
func TestWatchMovesBesideARollback(t *testing.T) {
	r := newRig(t, disk())
	here, there := selecting("w", "tier=a"), selecting("w", "tier=b")
	s := r.part("tier=a", "")
	r.save(s, ledger.Checkpoint{ResourceVersion: "90", Synced: true, Time: now, Form: s.Form})
	s = r.part("tier=a", "")
	r.change([]plan.Watch{here}, s, true, here)
	s.Stop()
	s = r.part("tier=b", "")
	r.change([]plan.Watch{there}, s, true, there)
	r.lists(s, "60")
	r.expectGaps("w ")
}

// TestWatchByLabelsReturnsAfterOthers removes the only watch that selects namespaces by label while the resource is not watched, and has it
// return when another one has read on: it is as a new one.
func TestWatchByLabelsReturnsAfterOthers(t *testing.T) {
	r := newRig(t, disk())
	v := selecting("v", "")
	w := committest.PodWatch(func(w *plan.Watch) { w.Name, w.Selection.Namespaces.Selector = "w", "tier=x" })
	r.watches = []plan.Watch{w}
	s := r.feedIn(pods, "")
	r.save(s, ledger.Checkpoint{ResourceVersion: "50", Synced: true, Time: now, Form: s.Form})
	r.noted(s, "w")
	r.noted(r.part("", ""), "v")
	if err := (Barrier{r.group}).ForgetNamespaces([]plan.Watch{v}); err != nil {
		t.Fatal(err)
	}
	s = r.part("", "")
	r.change([]plan.Watch{v, w}, s, true, v) // w waits for namespaces
	s.saved.ResourceVersion = "70"
	r.save(s, s.saved)
	r.begin(s, false, v, w)
	r.expectGaps()
}

// TestWatchMovesToTwoNamespaces has a watch of two namespaces move to another part of the ledger, and become one of all namespaces before
// the list of the second was taken in.
func TestWatchMovesToTwoNamespaces(t *testing.T) {
	r := newRig(t, disk())
	for _, ns := range []string{"a", "b"} {
		s := r.part("tier=a", ns)
		r.save(s, ledger.Checkpoint{ResourceVersion: "50", Synced: true, Time: now})
		r.noted(s, "w")
		s = r.part("tier=b", ns)
		r.save(s, map[string]ledger.Checkpoint{
			"a": {ResourceVersion: "60", Synced: true, Time: now},
			"b": {Listing: &ledger.Listing{ResourceVersion: "60"}, Time: now},
		}[ns])
		r.noted(s, "w")
	}
	s := r.part("tier=b", "")
	r.succeeds(s)
	r.begin(s, true, selecting("w", "tier=b"))
	r.lists(s, "70")
	if from := r.gapsFrom(); len(from) == 0 {
		t.Error("no gap")
	}
}

// TestWatchMovesAfterARollback sets the cluster back between a watch's last change and its first of another part of the ledger, the versions
// of which are earlier ones.
func TestWatchMovesAfterARollback(t *testing.T) {
	for _, begun := range []bool{false, true} {
		t.Run(fmt.Sprint("its feed has begun: ", begun), func(t *testing.T) {
			r := newRig(t, disk())
			left := r.part("tier=a", "")
			r.save(left, ledger.Checkpoint{ResourceVersion: "500", Synced: true, Time: now, Form: left.Form})
			r.noted(left, "w", "v")
			left = r.part("tier=a", "")
			r.begin(left, true, selecting("v", "tier=a"), selecting("w", "tier=a"))
			r.change([]plan.Watch{selecting("v", "tier=a"), selecting("w", "tier=b")}, left, false, selecting("v", "tier=a"))
			r.running = []*Feed{left}
			s := r.part("tier=b", "")
			begin := func() {
				t.Helper()
				r.change([]plan.Watch{selecting("v", "tier=a"), selecting("w", "tier=b")}, s, true, selecting("w", "tier=b"))
				r.running = append(r.running, s)
			}
			if begun {
				begin()
			}
			left.Subscribed(&informer{})
			r.commit(&gapFound{feed: left, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "500", To: "300", FromTime: now, ToTime: now}})
			r.expectGaps("v 500")
			if !begun {
				begin()
			}
			r.lists(s, "310")
			r.expectGaps("w ")
		})
	}
}

// TestWatchMovesToOtherVersions has a watch move to what an API serves whose versions cannot be compared.
func TestWatchMovesToOtherVersions(t *testing.T) {
	r := newRig(t, disk())
	left := r.part("tier=a", "")
	r.save(left, ledger.Checkpoint{ResourceVersion: "x5", Synced: true, Time: now})
	r.noted(left, "w")
	s := r.part("tier=b", "")
	r.begin(s, true, selecting("w", "tier=b"))
	r.lists(s, "x7")
	r.expectGaps("w x5")
}
