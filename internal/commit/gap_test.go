package commit

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// TestGapWaitsForItsList hands the committer a gap before changes that happened
// before it: they are of the time before, and the gap comes with its list.
func TestGapWaitsForItsList(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u1", "6").WithPosition(1)))
	before := r.Expect("added a u1 6")[0]
	r.commit(
		&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "7", To: "6", Position: 3}},
		updatedIn(s, r.Object("a", "u1", "7").WithPosition(2), nil),
	)
	r.Expect("updated a u1 7")
	r.commit(updatedIn(s, r.Object("b", "u2", "6").WithPosition(3), nil))
	events := r.Expect("gap   ", "added b u2 6")
	if events[0].ID == before.ID || s.epoch != 1 {
		t.Errorf("epoch %d", s.epoch)
	}
}

// TestGapOfAnUnknownStretch reports a gap only if its list shows a difference, or the
// stretch is long. Else the history alone has it.
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
		{-1, "1", []string{"gap   "}},         // nobody knows since when
		{-time.Hour, "1", []string{"gap   "}}, // the clock was set back
	} {
		t.Run(fmt.Sprint(tc.blind, tc.listed), func(t *testing.T) {
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			r.commit(addedTo(s, r.Object("a", "u1", "1").WithPosition(1)))
			r.Expect("added a u1 1")
			gap := &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", ToTime: now, Position: 2}
			if tc.blind != -1 {
				gap.FromTime = now.Add(-tc.blind)
			}
			r.commit(&gapFound{feed: s, gap: gap}, updatedIn(s, r.Object("a", "u1", tc.listed).WithPosition(2), nil))
			events := r.Expect(tc.want...)
			if len(events) > 0 {
				g := events[0].Gap
				if g.Resource != s.Resource || g.From.Unix() != gap.FromTime.Unix() || !g.To.Equal(now) {
					t.Errorf("the gap is %+v", g)
				}
			}
			r.commit(updatedIn(s, r.Object("a", "u1", "10").WithPosition(3), nil))
			if len(tc.want) > 0 {
				r.Expect("updated a u1 10")
			} else if g := r.Expect("gap   ", "updated a u1 10")[0].Gap; g.Cause != record.CauseQuiet || !g.To.Equal(now) { // what follows the list shows its end
				t.Errorf("the gap is %+v", g)
			}
		})
	}
}

// TestGapOfASuspendedMachine has a machine sleep amid a gap: its monotonic clock stood still meanwhile.
func TestGapOfASuspendedMachine(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u1", "1").WithPosition(1)))
	r.Expect("added a u1 1")
	from := time.Now()
	to := from.Add(time.Second)
	const second = 1 << 30                                                    // of the wall clock within a time with both
	*(*uint64)(unsafe.Pointer(&to)) += uint64(time.Hour/time.Second) * second // nothing else sets one clock alone
	if to.Sub(from) != time.Second || !to.Round(0).After(from.Add(time.Hour)) {
		t.Fatalf("from %v to %v", from, to)
	}
	r.commit(
		&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", FromTime: from, ToTime: to, Position: 2}},
		updatedIn(s, r.Object("a", "u1", "1").WithPosition(2), nil),
	)
	if g := r.Expect("gap   ")[0].Gap; g.Cause != dynamicfactory.CauseExpired {
		t.Errorf("the gap is %+v", g)
	}
}

// TestGapOutlivesAStop stops the daemon between a gap's list and its first difference.
func TestGapOutlivesAStop(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u1", "1")), addedTo(s, r.Object("b", "u2", "2")))
	r.Expect("added a u1 1", "added b u2 2")
	now := now
	gap := &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", FromTime: now.Add(-time.Minute), ToTime: now}
	b := r.Store.NewBatch()
	b.PutMeta(ledger.CheckpointMeta(s.ID), ledger.Encode(ledger.Checkpoint{
		ResourceVersion: "2", Synced: true, Gap: gap, Listing: &ledger.Listing{ResourceVersion: "9"},
	}))
	if err := r.Store.Commit(b); err != nil {
		t.Fatal(err)
	}
	s = r.feed(pods) // as after a restart
	if err := r.c.Prepare(s); err != nil {
		t.Fatal(err)
	}
	r.commit(
		listedBy(s, r.Object("a", "u1", "1")),
		listedBy(s, r.Object("b", "u2", "8").WithPosition(1)),
	)
	r.Expect("gap   ", "updated b u2 8")
}

// TestUnreadableObjectLeavesAnOpenGap reports an object that cannot be read while a gap
// of the whole resource waits for a difference. Both are told.
func TestUnreadableObjectLeavesAnOpenGap(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	now := now
	r.commit(addedTo(s, r.Object("a", "u1", "1").WithPosition(1)))
	r.Expect("added a u1 1")
	r.commit(
		&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", FromTime: now, ToTime: now, Position: 3}},
		addedTo(s, r.Object("b", "u2", "1").WithPosition(2)),
	)
	r.Expect("added b u2 1")
	s.open, s.pending = s.pending[0], nil // its list is being taken in
	r.commit(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseUnreadable, Namespace: "ns", Name: "x", To: "8", FromTime: now, ToTime: now}})
	r.Expect("gap x  ")
	r.commit(updatedIn(s, r.Object("a", "u1", "5").WithPosition(3), nil))
	r.Expect("gap   ", "updated a u1 5")
}

// TestGapsOfNamespaces has the sources of two namespaces lose the same versions: these
// are two gaps, with two ids.
func TestGapsOfNamespaces(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	for _, ns := range []string{"a", "b"} {
		s := r.feedIn(pods, ns)
		r.commit(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9"}})
	}
	gaps := r.Events()
	if len(gaps) != 2 || gaps[0].ID == gaps[1].ID {
		t.Errorf("gaps are %v", gaps)
	}
}

// TestGapAndTheDeletionsOfItsList tells the gap before the deletions that its list shows:
// these have no position of their own.
func TestGapAndTheDeletionsOfItsList(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: "9", End: 3}, checkpoints: map[uint64]string{1: "1", 3: "9"}})
	r.commit(addedTo(s, r.Object("a", "u1", "1").WithPosition(1)))
	r.Expect("added a u1 1")
	r.commit(
		&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", FromTime: now.Add(-time.Hour), ToTime: now, Position: 3}},
		missingFrom(s, r.Object("a", "u1", "1").WithPosition(1)),
	)
	r.Expect("gap   ", "deleted a u1 1")
}

// TestQuietGapEnds ends a short gap with a list that shows no difference: the checkpoint
// has it no more, and the history has it.
func TestQuietGapEnds(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	s.Subscribed(&informer{checkpoints: map[uint64]string{1: "1", 2: "9"}})
	r.commit(addedTo(s, r.Object("a", "u1", "1").WithPosition(1)))
	r.Expect("added a u1 1")
	r.commit(
		&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", FromTime: now, ToTime: now, Position: 2}},
		updatedIn(s, r.Object("a", "u1", "1").WithPosition(2), nil),
	)
	r.Expect("gap   ")
	if cp := r.saved(s); s.open != nil || cp.Gap != nil || cp.ResourceVersion != "9" {
		t.Errorf("open is %+v, the checkpoint %+v", s.open, cp)
	}
}

// TestQuietGapsAreLoggedTogether logs the quiet gaps of several resources in one line, and
// each once.
func TestQuietGapsAreLoggedTogether(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	nodes := pods
	nodes.GVR.Resource = "nodes"
	var q quietGaps
	lines := func(want ...string) {
		t.Helper()
		out.Reset()
		q.log(log)
		if n := strings.Count(out.String(), "\n"); n != min(len(want), 1) {
			t.Errorf("%d lines: %s", n, out.String())
		}
		for _, text := range want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("%q is not in %s", text, out.String())
			}
		}
	}
	lines()
	q.add(r.feed(pods), &dynamicfactory.Gap{FromTime: now})
	q.add(r.feed(nodes), &dynamicfactory.Gap{FromTime: now.Add(-time.Minute)})
	q.add(r.feed(pods), &dynamicfactory.Gap{FromTime: now.Add(time.Minute)})
	stamp := func(t time.Time) string { return "from=" + t.Format("2006-01-02T15:04:05.000") }
	lines("resources=2", "nodes.v1 pods.v1", stamp(now.Add(-time.Minute)))
	lines()
	q.add(r.feed(pods), &dynamicfactory.Gap{FromTime: now.Add(time.Hour)})
	lines("resources=1", stamp(now.Add(time.Hour)))
}

// TestBlindListEnds marks the changes that the list behind lost history shows, and none after it.
func TestBlindListEnds(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u1", "1").WithPosition(1)))
	after := r.Store.LogStats().Last
	r.commit(
		&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", FromTime: now.Add(-time.Hour), ToTime: now, Position: 2}},
		updatedIn(s, r.Object("a", "u1", "5").WithPosition(2), nil), updatedIn(s, r.Object("a", "u1", "10").WithPosition(3), nil),
	)
	items, err := r.Store.ReadLog(after, 10)
	if err != nil {
		t.Fatal(err)
	}
	blind := map[string]bool{}
	for _, it := range items {
		rec, err := record.Decode(it.Payload)
		if err != nil {
			t.Fatal(err)
		}
		if rec.Event.Gap == nil {
			blind[rec.Event.ResourceVersion] = rec.Blind
		}
	}
	if want := map[string]bool{"5": true, "10": false}; !maps.Equal(blind, want) {
		t.Errorf("blind are %v, want %v", blind, want)
	}
}

// TestGapReachesItsWatches has the gap of an object reach the watches that cover it, and is
// recorded for a sink or the history alone.
func TestGapReachesItsWatches(t *testing.T) {
	prod := committest.PodWatch(func(w *plan.Watch) { w.Name = "prod" })
	prod.Selection = plan.Selection{Labels: "tier=prod"}
	var err error
	if prod.Filter, err = prod.Selection.Filter(); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, disk(), committest.PodWatch(), watchOf("elsewhere", "elsewhere"), prod, committest.PodWatch(func(w *plan.Watch) { w.Name, w.History = "unrouted", false }))
	r.route(route.Spec{Name: "some", Watches: []string{"prod"}, Sinks: []string{"sink"}})
	s := r.feed(pods)
	for _, tc := range []struct {
		tier string
		want string
	}{{"dev", "[w]"}, {"prod", "[w prod]"}} {
		r.group.batch = r.Store.NewBatch()
		gap := &dynamicfactory.Gap{Cause: dynamicfactory.CauseUnreadable, To: tc.tier, Namespace: "ns", Name: "a", FromTime: now, ToTime: now}
		o := r.Object("a", "u", "1", tc.tier)
		if err := r.group.gap(s, now, gap, func(h WatchRef) bool { return h.Covers(o, r.c.namespaces.labels) }); err != nil {
			t.Fatal(err)
		}
		if err := r.Store.Commit(r.group.batch); err != nil {
			t.Fatal(err)
		}
		var watches []string
		for _, e := range r.Events() {
			watches = append(watches, e.Gap.Watch)
		}
		if got := fmt.Sprint(watches); got != tc.want {
			t.Errorf("%s: the gaps are of %s, want %s", tc.tier, got, tc.want)
		}
	}
}

// TestGapSeriesBeginAtZero: the first gap of any cause raises a series that exists.
func TestGapSeriesBeginAtZero(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	r.c.Feeds("w", s)
	series := testutil.CollectAndCount(r.c.metrics.gapsTotal)
	for _, cause := range []string{
		dynamicfactory.CauseExpired, dynamicfactory.CauseRollback, dynamicfactory.CauseUnreadable,
		CauseConsistencyCheck, CauseNamespace, CauseRemoved,
	} {
		r.c.CountGap("w", s, &dynamicfactory.Gap{Cause: cause, FromTime: now, ToTime: now.Add(time.Second)})
		if n := testutil.CollectAndCount(r.c.metrics.gapsTotal); n != series {
			t.Errorf("a gap of cause %s has a series of its own: %d, before %d", cause, n, series)
			series = n
		}
	}
}
