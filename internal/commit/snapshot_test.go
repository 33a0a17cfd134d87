package commit

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// watchOf is a watch of the pods of one namespace.
func watchOf(name, namespace string) plan.Watch {
	return committest.PodWatch(func(w *plan.Watch) {
		w.Name, w.Namespaces, w.Fingerprint = name, []string{namespace}, namespace
	})
}

// begin puts a change of the feed's watches in place, as for a feed that runs, or that
// starts, and does nothing of its snapshots.
func (r *rig) begin(s *Feed, starts bool, watches ...plan.Watch) {
	r.Helper()
	r.change(watches, s, starts, watches...)
}

// change is begin with all watches of the state, of which the feed has some.
func (r *rig) change(all []plan.Watch, s *Feed, starts bool, watches ...plan.Watch) {
	r.Helper()
	st := &plan.State{Watches: all}
	var refs []WatchRef
	for i := range watches {
		refs = append(refs, NewWatchRef(&watches[i]))
	}
	var start []*Feed
	stay := map[*Feed][]WatchRef{}
	if starts {
		s.watches.Store(&refs)
		start = append(start, s)
	} else {
		stay[s] = refs
	}
	x, err := r.c.PrepareChange(st, wanted, start, stay, nil)
	if err != nil {
		r.Fatal(err)
	}
	if err := (Barrier{r.group}).Change(x); err != nil {
		r.Fatal(err)
	}
}

// syncs are the IDs of the sync events of the first pod since the last call, without
// repetitions.
func (r *rig) syncs() []string { return r.syncsOf("a") }

func (r *rig) syncsOf(name string) []string {
	r.Helper()
	var ids []string
	for _, e := range r.Events() {
		if e.Type == event.Sync && e.Name == name && !slices.Contains(ids, e.ID) {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// TestIDsOfSnapshots tells the events of one snapshot from those of another: an object of
// the same version may have left the watch in between. Those of one change have one ID for
// an object, also over a restart amid them.
func TestIDsOfSnapshots(t *testing.T) {
	here, elsewhere := watchOf("w", "ns"), watchOf("w", "elsewhere")
	// killed returns a rig of the next life, which ended amid the snapshot of a change.
	killed := func(t *testing.T, fs vfs.FS) (*rig, *Feed) {
		r := newRig(t, fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{}), here)
		r.Events()
		s := r.feed(pods)
		s.recordedForm = s.Form
		r.running = []*Feed{s}
		return r, s
	}
	for name, tc := range map[string]struct {
		ids  int
		with func(t *testing.T, r *rig, fs vfs.FS, s *Feed) [][]string
	}{
		"two changes": {ids: 2, with: func(_ *testing.T, r *rig, _ vfs.FS, s *Feed) [][]string {
			r.begin(s, false, here)
			r.commit()
			first := r.syncs()
			r.begin(s, false, elsewhere)
			r.commit()
			r.begin(s, false, here)
			r.commit()
			return [][]string{first, r.syncs()}
		}},
		"two watches of one change": {ids: 1, with: func(_ *testing.T, r *rig, _ vfs.FS, s *Feed) [][]string {
			r.begin(s, false, here, watchOf("second", "ns"))
			r.commit()
			return [][]string{r.syncs()}
		}},
		"a kill amid the snapshot of a new watch": {ids: 1, with: func(t *testing.T, r *rig, fs vfs.FS, s *Feed) [][]string {
			r.begin(s, false, here)
			r.step()
			first := r.syncs()
			r, s = killed(t, fs)
			r.begin(s, true, here)
			r.commit()
			if n := len(r.Events()); n != 100 {
				t.Errorf("%d events after the restart, want 100", n)
			}
			return [][]string{first, r.syncs()}
		}},
		"a kill amid the snapshot of one of two new watches": {ids: 1, with: func(t *testing.T, r *rig, fs vfs.FS, s *Feed) [][]string {
			second := watchOf("second", "ns")
			r.begin(s, false, here, second)
			for range 3 {
				r.step()
			}
			last := fmt.Sprintf("b%03d", maxGroup+99)
			first := r.syncsOf(last)
			r, s = killed(t, fs)
			r.begin(s, true, here, second)
			r.commit()
			again := r.syncsOf(last)
			if len(first) != 1 || len(again) != 1 {
				t.Errorf("the last pod was given %d times, and %d times after the restart", len(first), len(again))
			}
			return [][]string{first, again}
		}},
		"a kill amid the snapshot of a wider watch": {ids: 1, with: func(t *testing.T, r *rig, fs vfs.FS, s *Feed) [][]string {
			r.begin(s, false, elsewhere)
			r.commit()
			r.begin(s, false, here)
			r.step()
			first := r.syncs()
			r, s = killed(t, fs)
			r.begin(s, true, here)
			r.commit()
			again := r.syncs()
			if len(again) != 1 {
				t.Errorf("the rest has no event of the first pod")
			}
			return [][]string{first, again}
		}},
		"a kill amid the snapshot of a change that came amid another": {ids: 1, with: func(t *testing.T, r *rig, fs vfs.FS, s *Feed) [][]string {
			r.begin(s, false, elsewhere)
			r.commit()
			for _, w := range []plan.Watch{here, elsewhere, here} {
				r.begin(s, false, w)
			}
			for range 4 { // the first one is over, and the last one has given a part
				r.step()
			}
			if len(s.gaining) != 1 {
				t.Errorf("%d snapshots are under way, want 1", len(s.gaining))
			}
			first := r.syncs()
			r, s = killed(t, fs)
			r.begin(s, true, here)
			r.commit()
			return [][]string{first, r.syncs()}
		}},
		"a kill after a relabel that takes objects through before the snapshot comes to them": {ids: 1, with: func(t *testing.T, r *rig, fs vfs.FS, s *Feed) [][]string {
			r.commit(&namespaceSeen{obj: r.namespace("1", "dev")}, &namespacesSynced{names: map[string]struct{}{"ns": {}}})
			r.begin(s, false, here)
			r.group.jobs = nil // the relabel's comes first
			r.commit(&namespaceSeen{obj: r.namespace("2", "prod")})
			first := r.syncs()
			r, s = killed(t, fs)
			r.begin(s, true, here)
			r.commit()
			again := r.syncs()
			if len(first) != 1 || len(again) != 1 {
				t.Errorf("the first pod was given %d times, and %d times after the restart", len(first), len(again))
			}
			return [][]string{first, again}
		}},
		"a kill, and other rules": {ids: 2, with: func(t *testing.T, r *rig, fs vfs.FS, s *Feed) [][]string {
			r.begin(s, false, elsewhere)
			r.commit()
			r.begin(s, false, here)
			r.step()
			first := r.syncs()
			r, s = killed(t, fs)
			all := committest.PodWatch(func(w *plan.Watch) { w.Fingerprint = "all" })
			r.begin(s, true, all)
			r.commit()
			return [][]string{first, r.syncs()}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fs := disk()
			r := newRig(t, fs, here)
			r.watches = nil
			id, err := IdentityOf(&here, pods, "", "", redactKey)
			if err != nil {
				t.Fatal(err)
			}
			s := r.c.NewFeed(id)
			s.recordedForm = s.Form
			r.running = []*Feed{s}
			for i := range maxGroup + 100 {
				name := "a"
				if i > 0 {
					name = fmt.Sprintf("b%03d", i)
				}
				r.group.add(addedTo(s, r.Object(name, "u", "1")))
			}
			r.commit()
			r.Events()
			ids := map[string]bool{}
			for _, some := range tc.with(t, r, fs, s) {
				for _, id := range some {
					ids[id] = true
				}
			}
			if len(ids) != tc.ids {
				t.Errorf("%d ids, want %d: %q", len(ids), tc.ids, slices.Collect(maps.Keys(ids)))
			}
		})
	}
}

// TestSelectionIsNotedByTheLastSnapshot has a watch come to cover objects twice while it is
// still given those of the first time: until both are over, nothing counts as given by the
// rules.
func TestSelectionIsNotedByTheLastSnapshot(t *testing.T) {
	t.Parallel()
	here, elsewhere := watchOf("w", "ns"), watchOf("w", "elsewhere")
	r := newRig(t, disk(), elsewhere)
	s := r.feed(pods)
	s.recordedForm = s.Form
	for i := range 2*maxGroup + 100 {
		r.group.add(addedTo(s, r.Object(fmt.Sprintf("a%04d", i), "u", "1")))
	}
	r.commit()
	r.begin(s, false, elsewhere)
	r.begin(s, false, here)
	r.step()
	r.step()
	r.begin(s, false, elsewhere)
	r.begin(s, false, here)
	for len(s.gaining) > 0 {
		noted, err := r.c.ledger.Selections()
		if err != nil {
			t.Fatal(err)
		}
		if rules := noted[s.ID]["w"]; len(rules.Later) == 0 || !slices.Equal(rules.Namespaces, elsewhere.Namespaces) {
			t.Fatalf("%d snapshots are under way, and the rules noted are %+v", len(s.gaining), rules)
		}
		r.step()
	}
	noted, err := r.c.ledger.Selections()
	if rules := noted[s.ID]["w"]; err != nil || !rules.Same(selectedBy(s, &here)) {
		t.Errorf("the rules noted at the end are %+v, %v", rules, err)
	}
}

// TestSnapshotOfOneWatch delivers what one watch of a feed has recorded, and says how many
// objects that are.
func TestSnapshotOfOneWatch(t *testing.T) {
	t.Parallel()
	l := newLoop(t, &pausing{})
	second := NewWatchRef(new(committest.PodWatch(func(w *plan.Watch) { w.Name = "second" })))
	l.s.watches.Store(&[]WatchRef{l.s.Watches()[0], second})
	l.add("a", "1")
	l.add("b", "2")
	l.c.Flush()
	l.Expect("added a u 1", "added b u 2")
	seen := 0
	total, err := l.c.Snapshot(t.Context(), []*Feed{l.s}, "sink", "second", func(n int) { seen = n })
	if err != nil || total != 2 || seen != 2 {
		t.Errorf("%d objects, the last progress is %d, %v", total, seen, err)
	}
	l.Expect("sync a u 1", "sync b u 2")
	if total, err := l.c.Snapshot(t.Context(), []*Feed{l.s}, "sink", "", nil); err != nil || total != 4 || len(l.Events()) != 4 {
		t.Errorf("%d objects of both watches, %v", total, err)
	}
	l.Events()
	if total, err := l.c.Snapshot(t.Context(), []*Feed{l.s}, "elsewhere", "", nil); err != nil || total != 0 || len(l.Events()) != 0 {
		t.Errorf("%d objects for a sink that no route leads to, %v", total, err)
	}
}

// TestSnapshotSeesItsGroup takes a step together with an update of an object: the state
// before is not delivered behind the update.
func TestSnapshotSeesItsGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	s.recordedForm = s.Form
	r.commit(addedTo(s, r.Object("a", "u", "1")), addedTo(s, r.Object("b", "u", "2")))
	r.Expect("added a u 1", "added b u 2")
	Barrier{r.group}.add(newSnapshot(s, s.Watches()[0]))
	r.commit(updatedIn(s, r.Object("a", "u", "3"), nil), deletedFrom(s, r.Object("b", "u", "4")))
	r.Expect("updated a u 3", "deleted b u 4", "sync a u 3")
}

// TestUnfinishedSnapshots are those of the watches and sinks that exist, for the sink that
// each was for, and none once they are over.
func TestUnfinishedSnapshots(t *testing.T) {
	t.Parallel()
	changed, former := watchOf("changed", "ns"), watchOf("changed", "ns")
	former.Fingerprint += " of before"
	r := newRig(t, disk(), committest.PodWatch(), changed)
	s := r.feed(pods)
	s.recordedForm = s.Form
	st := &plan.State{Watches: []plan.Watch{committest.PodWatch(), changed}, Sinks: []plan.Sink{{Name: "sink"}}}
	first, ofSink, widened := newSnapshot(s, s.Watches()[0]), newSnapshot(s, s.Watches()[0]), newSnapshot(s, s.Watches()[0])
	ofSink.forSink("sink")
	widened.was = &WatchRef{}
	gone, unknown := newSnapshot(s, NewWatchRef(new(watchOf("gone", "ns")))), newSnapshot(s, s.Watches()[0])
	unknown.forSink("gone")
	byFormer, ofSinkByFormer := newSnapshot(s, NewWatchRef(&former)), newSnapshot(s, NewWatchRef(&former))
	ofSinkByFormer.forSink("sink")
	all := []*snapshot{first, ofSink, widened, gone, unknown, byFormer, ofSinkByFormer}
	if err := r.c.durable(all, nil); err != nil {
		t.Fatal(err)
	}
	noted := func() (n int) {
		t.Helper()
		if err := r.Store.ScanMeta(snapshotMeta, func(string, []byte) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := noted(); n != len(all) {
		t.Errorf("%d snapshots are noted, want %d", n, len(all))
	}
	jobs, began, err := r.c.unfinished(st, []*Feed{s})
	if err != nil || len(jobs) != 3 || jobs[0].sink != "sink" || jobs[0].watch.Watch.Fingerprint != changed.Fingerprint ||
		jobs[1].only != nil || jobs[2].only == nil || jobs[2].only("other") || len(began) != 1 {
		t.Fatalf("continued are %+v, %v, %v", jobs, began, err)
	}
	if err := r.c.durable(jobs, nil); err != nil {
		t.Fatal(err)
	}
	if n := noted(); n != 3 {
		t.Errorf("%d snapshots are noted, want 3", n)
	}
	for _, j := range jobs {
		Barrier{r.group}.add(j)
	}
	r.commit()
	if n := noted(); n != 0 {
		t.Errorf("%d snapshots are noted after their end", n)
	}
}

// TestSnapshotLeavesOutWhatIsDelivered adds an object, and lists one, while a watch is given
// what it has come to cover: it has them already. An update of another one does not make it
// known.
func TestSnapshotLeavesOutWhatIsDelivered(t *testing.T) {
	t.Parallel()
	here, elsewhere := watchOf("w", "ns"), watchOf("w", "elsewhere")
	r := newRig(t, disk(), elsewhere)
	s := r.feed(pods)
	s.recordedForm = s.Form
	r.commit(addedTo(s, r.Object("a", "u", "1")))
	r.Expect()
	r.begin(s, false, elsewhere)
	r.begin(s, false, here)
	snapshot := r.group.jobs
	r.group.jobs = nil
	r.commit(addedTo(s, r.Object("b", "u", "2")), updatedIn(s, r.Object("a", "u", "3"), nil), listedBy(s, r.Object("c", "u", "4")))
	r.group.jobs = snapshot
	r.commit()
	r.Expect("added b u 2", "updated a u 3", "sync c u 4", "sync a u 3")
}

// TestSnapshotOfWhatOthersRecorded cuts a snapshot short, and has an object that was given already
// change while the watch does not read it: the watch is given it again when it does.
func TestSnapshotOfWhatOthersRecorded(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]bool{
		"by the same feed":               false,
		"by a feed of a part of its own": true,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := committest.PodWatch(func(w *plan.Watch) { w.Name, w.Fingerprint = "other", "other" })
			w := committest.PodWatch(func(w *plan.Watch) { w.Fingerprint = "w" })
			r := newRig(t, disk(), other)
			feed := func(namespace string, watches ...plan.Watch) *Feed {
				s := r.feedIn(pods, namespace)
				s.synced, s.recordedForm = true, s.Form
				r.change([]plan.Watch{other, w}, s, true, watches...)
				return s
			}
			s := feed("", other)
			for i := range maxGroup + 100 {
				r.add(addedTo(s, r.Object(fmt.Sprintf("a%04d", i), "u", "1")))
			}
			r.commit()
			r.change([]plan.Watch{other, w}, s, false, other, w)
			r.step()
			r.group.jobs = nil // the rest of it waits
			if part {
				s.Stop()
				s = feed("ns", other)
			} else {
				r.change([]plan.Watch{other, w}, s, false, other)
			}
			r.group.jobs = nil
			r.commit(updatedIn(s, r.Object("a0000", "u", "2"), nil))
			r.Events()
			s.Stop()
			feed("", other, w)
			r.commit()
			if n := len(r.syncsOf("a0000")); n != 1 {
				t.Errorf("the changed object is given %d times, want once", n)
			}
		})
	}
}

// TestRouteIsAddedAmidTheSnapshotOfASink makes a sink to which one of two watches leads, and has the other lead to it, too, while it is given
// the objects: none is left out because the snapshot of the other watch has passed it.
func TestRouteIsAddedAmidTheSnapshotOfASink(t *testing.T) {
	t.Parallel()
	watches := []plan.Watch{watchOf("a", "ns"), watchOf("b", "ns")}
	r := newRig(t, disk(), watches...)
	s := r.feed(pods)
	s.recordedForm = s.Form
	r.running = []*Feed{s}
	const all = maxGroup + 100
	for i := range all {
		r.group.add(addedTo(s, r.Object(fmt.Sprintf("a%04d", i), "u", "1")))
	}
	r.commit()
	r.Events()
	r.route(route.Spec{Name: "b", Watches: []string{"b"}, Sinks: []string{"sink"}})
	refs := []WatchRef{NewWatchRef(&watches[0]), NewWatchRef(&watches[1])}
	x, err := r.c.PrepareChange(&plan.State{Watches: watches, Sinks: []plan.Sink{{Name: "sink"}}}, wanted, nil, map[*Feed][]WatchRef{s: refs}, []string{"sink"})
	if err != nil {
		t.Fatal(err)
	}
	if err := (Barrier{r.group}).Change(x); err != nil {
		t.Fatal(err)
	}
	r.step()
	r.route(route.Spec{Name: "b", Watches: []string{"a", "b"}, Sinks: []string{"sink"}})
	r.commit()
	given := map[string]bool{}
	for _, e := range r.Events() {
		given[e.Name] = true
	}
	if len(given) != all {
		t.Errorf("%d of %d objects are given", len(given), all)
	}
}

// TestSnapshotOfASinkAmidOtherNamespaces cuts the first snapshot of a sink short with a change of the watch's namespaces: the sink is given each
// object once. A kill amid the change that widens the watch has all of it given again, as to every sink.
func TestSnapshotOfASinkAmidOtherNamespaces(t *testing.T) {
	t.Parallel()
	all, here := committest.PodWatch(func(w *plan.Watch) { w.Fingerprint = "all" }), watchOf("w", "ns")
	for name, tc := range map[string]struct{ before, after plan.Watch }{
		"wider":    {here, all},
		"narrower": {all, here},
	} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, killed=%t", name, killed), func(t *testing.T) {
				t.Parallel()
				fs := disk()
				r := newRig(t, fs, tc.before)
				in := func(w *plan.Watch) string {
					if len(w.Namespaces) > 0 {
						return w.Namespaces[0]
					}
					return ""
				}
				feed := func(w plan.Watch) *Feed {
					r.watches = []plan.Watch{w}
					s := r.feedIn(pods, in(&w))
					s.synced, s.recordedForm = true, s.Form
					r.running = []*Feed{s}
					return s
				}
				change := func(w plan.Watch, start []*Feed, stay map[*Feed][]WatchRef, due ...string) {
					t.Helper()
					st := &plan.State{Watches: []plan.Watch{w}, Sinks: []plan.Sink{{Name: "sink"}}}
					x, err := r.c.PrepareChange(st, wanted, start, stay, due)
					if err != nil {
						t.Fatal(err)
					}
					if err := (Barrier{r.group}).Change(x); err != nil {
						t.Fatal(err)
					}
				}
				s := feed(tc.before)
				change(tc.before, []*Feed{s}, nil)
				const objects = 2*maxGroup + 100
				for i := range objects {
					r.add(addedTo(s, r.Object(fmt.Sprintf("a%04d", i), "u", "1")))
				}
				r.commit()
				r.Events()
				change(tc.before, nil, map[*Feed][]WatchRef{s: s.Watches()}, "sink")
				r.step()
				given := map[string]int{}
				count := func() {
					for _, e := range r.Events() {
						given[e.Name]++
					}
				}
				count()
				s.Stop()
				if s = feed(tc.after); killed {
					change(tc.after, []*Feed{s}, nil)
					r.step()
					count()
					r = newRig(t, fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{}), tc.after)
					r.Events()
					s = feed(tc.after)
				} else {
					r.group.jobs = nil
				}
				change(tc.after, []*Feed{s}, nil)
				r.commit()
				count()
				wrong := 0
				for i := range objects {
					if n := given[fmt.Sprintf("a%04d", i)]; n == 0 || n > 1 && !(killed && name == "wider") {
						wrong++
					}
				}
				if wrong > 0 {
					t.Errorf("%d of %d objects are not given as they should be", wrong, objects)
				}
			})
		}
	}
}

// TestPartsOfASnapshot has feeds of other namespaces continue the first snapshot of a sink: each from where it had come to, of what it was of, and
// with the IDs that its events had.
func TestPartsOfASnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	whole := r.feed(pods)
	a, b, c := r.feedIn(pods, "a"), r.feedIn(pods, "b"), r.feedIn(pods, "c")
	other := r.feed(dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "jobs"}, Kind: "Job", Namespaced: true})
	cursor := ledger.Key("b", "x")
	type part struct {
		Feed, Namespace, Cursor string
		Began                   uint64
	}
	for name, tc := range map[string]struct {
		u    unfinished
		want []part
	}{
		"wider":            {unfinished{Source: b.ID, Watch: "w", Sink: "sink", Began: 7, Cursor: cursor}, []part{{whole.ID, "b", cursor, 7}}},
		"narrower":         {unfinished{Source: whole.ID, Watch: "w", Sink: "sink", Began: 7, Cursor: cursor}, []part{{b.ID, "", cursor, 7}, {c.ID, "", "", 7}}},
		"of another watch": {unfinished{Source: b.ID, Watch: "other", Sink: "sink", Began: 7}, nil},
		"of all sinks":     {unfinished{Source: b.ID, Watch: "w", Began: 7}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []part
			for _, j := range tc.u.parts([]*Feed{other, whole, a, b, c}) {
				if got = append(got, part{j.feed.ID, j.part, j.cursor, j.began}); !j.only("sink") || j.only("other") {
					t.Errorf("the one of %s is not for the sink alone", j.feed.ID)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("snapshots (-want +got):\n%s", diff)
			}
		})
	}
}
