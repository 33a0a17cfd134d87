package feed

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestGapWaitsForItsList hands the committer a gap before changes that happened
// before it: they are of the time before, and the gap comes with its list.
func TestGapWaitsForItsList(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	s := r.source(pods)
	r.commit(change{src: s, kind: objectAdded, obj: r.object("a", "u1", "6").WithPosition(1)})
	before := r.expect("added a u1 6")[0]
	r.commit(
		change{src: s, kind: gapFound, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "7", To: "6", Position: 3}},
		change{src: s, kind: objectUpdated, obj: r.object("a", "u1", "7").WithPosition(2)},
	)
	r.expect("updated a u1 7")
	r.commit(change{src: s, kind: objectUpdated, obj: r.object("b", "u2", "6").WithPosition(3)})
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
			r := newRig(t, t.TempDir(), podWatch())
			s := r.source(pods)
			r.commit(change{src: s, kind: objectAdded, obj: r.object("a", "u1", "1").WithPosition(1)})
			r.expect("added a u1 1")
			gap := &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", ToTime: now, Position: 2}
			if tc.blind >= 0 {
				gap.FromTime = now.Add(-tc.blind)
			}
			r.commit(change{src: s, kind: gapFound, gap: gap}, change{src: s, kind: objectUpdated, obj: r.object("a", "u1", tc.listed).WithPosition(2)})
			events := r.expect(tc.want...)
			if len(events) > 0 {
				g := events[0].Gap
				if g.Resource != s.resource || g.From.Unix() != gap.FromTime.Unix() || !g.To.Equal(now) {
					t.Errorf("the gap is %+v", g)
				}
			}
			r.commit(change{src: s, kind: objectUpdated, obj: r.object("a", "u1", "10").WithPosition(3)})
			r.expect("updated a u1 10")
		})
	}
}

// TestHistoryExpiresQuietly has the server forget its history while the connection is
// lost. Where nothing happened meanwhile no gap is reported; where something did, the
// gap comes before it.
func TestHistoryExpiresQuietly(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(l *live)
		want   map[string]string
		gaps   int
	}{
		{"nothing", func(*live) {}, nil, 0},
		{"an update", func(l *live) { l.api.Put(podPath, "ns", "pod-00001", phase("x")) }, map[string]string{"pod-00001": "sync updated"}, 1},
		{"a deletion", func(l *live) { l.api.Delete(podPath, "ns", "pod-00001") }, map[string]string{"pod-00001": "sync deleted"}, 1},
		{"all deletions", func(l *live) { l.api.Delete(podPath, "ns", "pod-00000", "pod-00001", "pod-00002") }, map[string]string{"pod-00000": "sync deleted"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			api, _ := podServer(t, 3)
			l := runLive(t, t.TempDir(), outbox.Options{}, api, served{pods})
			l.apply(l.state(podWatch()))
			l.synced()
			s := l.m.sourceList()[0]
			eventually(t, "a watch", func() bool { return api.Watches(podPath) == 1 })
			api.Mute(true)
			api.Advance(5)
			tc.change(l)
			api.Advance(5)
			api.Compact()
			api.Mute(false)
			api.Cut()
			eventually(t, "a list", func() bool { return s.sub.Load().Status().Relists == 1 })
			l.caughtUp()
			h := l.log()
			for name, want := range tc.want {
				if got := h.types(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if got := len(h[""]); got != tc.gaps {
				t.Errorf("%d gaps: %q", got, h[""])
			}
			if got := testutil.ToFloat64(l.m.metrics.quietTotal.WithLabelValues("pods")); int(got) != 1-tc.gaps {
				t.Errorf("%v quiet gaps", got)
			}
		})
	}
}

// TestGapOutlivesAStop stops the daemon between a gap's list and its first difference.
func TestGapOutlivesAStop(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	s := r.source(pods)
	r.commit(change{src: s, kind: objectAdded, obj: r.object("a", "u1", "1")}, change{src: s, kind: objectAdded, obj: r.object("b", "u2", "2")})
	r.expect("added a u1 1", "added b u2 2")
	now := r.m.cfg.Now()
	gap := &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", FromTime: now.Add(-time.Minute), ToTime: now}
	b := r.store.NewBatch()
	b.PutMeta(checkpointMeta(s.id), encodeCheckpoint(checkpoint{
		ResourceVersion: "2", Synced: true, Gap: gap, Listing: &listing{ResourceVersion: "9"},
	}))
	if err := r.store.Commit(b); err != nil {
		t.Fatal(err)
	}
	s = r.source(pods) // as after a restart
	if err := r.m.prepareSource(s); err != nil {
		t.Fatal(err)
	}
	r.commit(
		change{src: s, kind: objectAdded, obj: r.object("a", "u1", "1"), initial: true},
		change{src: s, kind: objectAdded, obj: r.object("b", "u2", "8").WithPosition(1), initial: true},
	)
	r.expect("gap   ", "updated b u2 8")
}

// repairs are the names of the objects whose events are marked as repairs.
func (l *live) repairs() []string {
	l.Helper()
	var names []string
	for after := uint64(0); ; {
		items, err := l.store.ReadLog(after, 1000)
		if err != nil {
			l.Fatal(err)
		}
		if len(items) == 0 {
			slices.Sort(names)
			return slices.Compact(names)
		}
		for _, it := range items {
			after = it.Sequence
			e, err := l.m.LogEvent(it, func(*event.Event, []string) bool { return true })
			if err != nil {
				l.Fatal(err)
			}
			if e.Repair && e.Type != event.Gap {
				names = append(names, e.Name)
			}
		}
	}
}

// TestGapsOfNamespaces has the sources of two namespaces lose the same versions: these
// are two gaps, with two ids.
func TestGapsOfNamespaces(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch(only("a", "b")))
	d, err := r.m.desire(r.m.currentState())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range d.sources {
		r.commit(change{src: s, kind: gapFound, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9"}})
	}
	gaps := r.events()
	if len(gaps) != 2 || gaps[0].ID == gaps[1].ID {
		t.Errorf("gaps are %v", gaps)
	}
}
