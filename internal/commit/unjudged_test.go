package commit

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestLateNamespace has objects change in a namespace that is seen later: what a watch that
// selects it could not be given is a gap, after a restart too.
func TestLateNamespace(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  string
		do   func(r *rig, s *Feed) []change
		want []string
	}{
		{"added", "prod", func(*rig, *Feed) []change { return nil }, []string{"added a u1 3"}},
		{"updated", "prod", func(r *rig, s *Feed) []change {
			return []change{updatedIn(s, r.Object("a", "u1", "4"), r.Object("a", "u1", "3"))}
		}, []string{"updated a u1 4", "gap   "}}, // it enters: other watches have the update
		{"deleted", "prod", func(r *rig, s *Feed) []change { return []change{deletedFrom(s, r.Object("a", "u1", "5"))} }, []string{"gap   "}},
		{"not selected", "dev", func(r *rig, s *Feed) []change { return []change{deletedFrom(s, r.Object("a", "u1", "5"))} }, nil},
	} {
		for _, restarted := range []bool{false, true} {
			name := tc.name
			if restarted {
				name += ", after a restart"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				dir := disk()
				var r *rig
				t.Run("before", func(t *testing.T) {
					r = newRig(t, dir, committest.PodWatch(committest.ProdPods))
					s := r.know()
					s.saved.ResourceVersion = "2"
					r.commit(append([]change{addedTo(s, r.Object("a", "u1", "3"))}, tc.do(r, s)...)...)
					r.Expect()
					if !restarted {
						r.commit(&namespaceSeen{obj: r.namespace("1", tc.env)})
						checkLate(r, tc.want)
					}
				})
				if !restarted {
					return
				}
				r = newRig(t, dir, committest.PodWatch(committest.ProdPods))
				if err := r.c.LoadNamespaces(); err != nil {
					t.Fatal(err)
				}
				s := r.feed(pods)
				s.synced = true
				r.running = append(r.running, s)
				r.commit(&namespaceSeen{obj: r.namespace("1", tc.env)})
				checkLate(r, tc.want)
			})
		}
	}
}

// TestLateNamespaceBesideAnotherWatch has a watch of all namespaces be given the changes in one that is seen later: the gap is the
// other's alone.
func TestLateNamespaceBesideAnotherWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods), committest.PodWatch(func(w *plan.Watch) { w.Name = "all" }))
	s := r.know()
	s.saved.ResourceVersion = "2"
	r.commit(addedTo(s, r.Object("a", "u1", "3")), deletedFrom(s, r.Object("a", "u1", "5")))
	r.Expect("added a u1 3", "deleted a u1 5")
	r.commit(&namespaceSeen{obj: r.namespace("1", "prod")})
	r.commit()
	for _, e := range r.Expect("gap   ") {
		if e.Gap.Watch != "w" {
			t.Errorf("the gap is %+v", e.Gap)
		}
	}
}

// TestLateNamespaceOfOtherObjects has objects change in a namespace that is seen later: those that a watch leaves out by their
// labels are no loss of it, unless they had the labels, or come to have them.
func TestLateNamespaceOfOtherObjects(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(r *rig, s *Feed) []change
		want []string
	}{
		"deleted": {func(r *rig, s *Feed) []change { return []change{deletedFrom(s, r.Object("a", "u1", "5"))} }, nil},
		"updated": {func(r *rig, s *Feed) []change {
			return []change{updatedIn(s, r.Object("a", "u1", "5"), r.Object("a", "u1", "3"))}
		}, nil},
		"comes to be selected": {func(r *rig, s *Feed) []change {
			return []change{updatedIn(s, r.Object("a", "u1", "5", "web"), r.Object("a", "u1", "3"))}
		}, []string{"updated a u1 5", "gap   "}},
		"was selected": {func(r *rig, s *Feed) []change {
			return []change{
				updatedIn(s, r.Object("a", "u1", "5", "web"), r.Object("a", "u1", "3")),
				updatedIn(s, r.Object("a", "u1", "6"), r.Object("a", "u1", "5", "web")),
			}
		}, []string{"gap   "}},
		"was selected at its end": {func(r *rig, s *Feed) []change {
			return []change{deletedFrom(s, r.Object("a", "u1", "5", "web"))}
		}, []string{"gap   "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch(func(w *plan.Watch) { w.Selection.Labels = "tier=web"; committest.ProdPods(w) }))
			s := r.know()
			s.saved.ResourceVersion = "2"
			r.commit(append([]change{addedTo(s, r.Object("a", "u1", "3"))}, tc.do(r, s)...)...)
			r.commit(&namespaceSeen{obj: r.namespace("1", "prod")})
			checkLate(r, tc.want)
		})
	}
}

// TestLateNamespaceOfAFirstList lists objects for the first time in a namespace that is seen
// later: they are not new to anybody, but what is added behind the list is.
func TestLateNamespaceOfAFirstList(t *testing.T) {
	never := func(w *plan.Watch) { committest.ProdPods(w); w.Snapshot = false }
	for name, tc := range map[string]struct {
		edit  func(*plan.Watch)
		parts bool // the list is committed first
		want  []string
	}{
		"in parts":           {committest.ProdPods, true, []string{"sync a u1 3", "added b u2 11"}},
		"at once":            {committest.ProdPods, false, []string{"sync a u1 3", "added b u2 11"}},
		"in parts, no syncs": {never, true, []string{"added b u2 11"}},
		"at once, no syncs":  {never, false, []string{"added b u2 11"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch(tc.edit))
			s := r.know()
			s.synced = false
			s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: "9", End: 1}, checkpoints: map[uint64]string{1: "9"}})
			r.add(listedBy(s, r.Object("a", "u1", "3").WithPosition(1)))
			if tc.parts {
				r.commit()
			}
			r.commit(addedTo(s, r.Object("b", "u2", "11").WithPosition(2)), &feedSynced{feed: s})
			r.Expect()
			r.commit(&namespaceSeen{obj: r.namespace("8", "prod")})
			checkLate(r, tc.want)
		})
	}
}

func checkLate(r *rig, want []string) {
	r.Helper()
	r.commit()
	for _, e := range r.Expect(want...) {
		if e.Type != event.Gap {
			continue
		}
		got := event.GapData{Namespace: e.Gap.Namespace, Cause: e.Gap.Cause, FromResourceVersion: e.Gap.FromResourceVersion}
		if diff := cmp.Diff(event.GapData{Namespace: "ns", Cause: CauseNamespace, FromResourceVersion: "2"}, got); diff != "" {
			r.Errorf("the gap (-want +got):\n%s", diff)
		}
	}
	notes := 0
	if err := r.Store.ScanMeta(unjudgedMeta, func(string, []byte) error { notes++; return nil }); err != nil {
		r.Fatal(err)
	}
	if notes+len(r.c.unjudged) != 0 {
		r.Errorf("%d notes are left in the store, and %v", notes, r.c.unjudged)
	}
}

// TestTimeOfLateNamespaceOfAFirstList loses a change behind the first list, which is committed with it, in a
// namespace that is not seen: the gap begins with the list.
func TestTimeOfLateNamespaceOfAFirstList(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
	s := r.know()
	s.synced = false
	listed := r.at.Add(-time.Minute)
	s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: "9", End: 1}, checkpoints: map[uint64]string{1: "9"}, known: listed})
	r.commit(
		listedBy(s, r.Object("a", "u1", "3").WithPosition(1)),
		deletedFrom(s, r.Object("a", "u1", "11").WithPosition(2)), &feedSynced{feed: s},
	)
	r.commit(&namespaceSeen{obj: r.namespace("8", "prod")})
	r.commit()
	if g := r.Expect("gap   ")[0].Gap; g.FromResourceVersion != "9" || !g.From.Equal(listed) {
		t.Errorf("the gap is %+v", g)
	}
}

// TestNamespaceNeverSeen has objects come and go in a namespace that is deleted before it
// was seen.
func TestNamespaceNeverSeen(t *testing.T) {
	t.Parallel()
	all := committest.PodWatch()
	all.Name = "all"
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods), all)
	s := r.know()
	r.commit(addedTo(s, r.Object("a", "u1", "3")), deletedFrom(s, r.Object("a", "u1", "5")))
	r.Expect("added a u1 3", "deleted a u1 5") // for the other watch
	r.group.touchAll(r.running)
	r.commit()
	r.Expect()
	r.pass(namespacePause + time.Second)
	running := r.running
	r.running = nil // as after a start
	r.group.touchAll(running)
	r.commit()
	r.Expect()
	r.running = running
	r.group.touchAll(running)
	r.commit()
	for _, e := range r.Expect("gap   ") {
		if e.Gap.Watch != "w" || e.Gap.Namespace != "" || e.Gap.Cause != CauseNamespace {
			t.Errorf("the gap is %+v", e.Gap)
		}
	}
	checkLate(r, nil)
}

// TestLateNamespaceAfterItsGap has a namespace be seen long after objects changed in it, when the gap of that has been
// reported: what exists is given as it is by then, also to a watch without snapshots, and there is no other gap.
func TestLateNamespaceAfterItsGap(t *testing.T) {
	t.Parallel()
	never := committest.PodWatch(committest.ProdPods, func(w *plan.Watch) { w.Snapshot = false })
	r := newRig(t, disk(), never)
	s := r.know()
	s.saved.ResourceVersion = "2"
	r.commit(addedTo(s, r.Object("a", "u1", "3")), addedTo(s, r.Object("b", "u2", "4")), deletedFrom(s, r.Object("b", "u2", "5")))
	s.saved.ResourceVersion = "5"
	r.pass(namespacePause + time.Second)
	r.group.touchAll(r.running)
	r.commit()
	r.Expect("gap   ")
	r.pass(time.Minute)
	r.group.touchAll(r.running)
	r.commit()
	r.Expect()
	r.commit(addedTo(s, r.Object("c", "u3", "6")))
	r.commit(&namespaceSeen{obj: r.namespace("1", "prod")})
	r.commit()
	checkLate(r, []string{"updated a u1 3", "added c u3 6"})
}

// TestNamespaceNeverSeenOfOthers: what came and went in a namespace that was not seen is no loss of a watch that
// leaves it out by its name.
func TestNamespaceNeverSeenOfOthers(t *testing.T) {
	t.Parallel()
	other := committest.PodWatch(committest.ProdPods)
	other.Name, other.Selection.Namespaces.Include = "other", []string{"elsewhere"}
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods), other)
	s := r.know()
	r.commit(addedTo(s, r.Object("a", "u1", "3")), deletedFrom(s, r.Object("a", "u1", "5")))
	r.pass(namespacePause + time.Second)
	r.group.touchAll(r.running)
	r.commit()
	for _, e := range r.Expect("gap   ") {
		if e.Gap.Watch != "w" {
			t.Errorf("the gap is %+v", e.Gap)
		}
	}
}

// TestLateNamespaceOfAFeedThatIsAway: the gap of a feed that is not there when its namespace
// is seen is reported once it is.
func TestLateNamespaceOfAFeedThatIsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
	s := r.know()
	r.commit(addedTo(s, r.Object("a", "u1", "3")), deletedFrom(s, r.Object("a", "u1", "5")))
	r.running = nil
	r.commit(&namespaceSeen{obj: r.namespace("1", "prod")})
	r.commit()
	r.Expect()
	r.running = append(r.running, s)
	r.pass(namespacePause + time.Second)
	r.group.touchAll(r.running)
	r.commit()
	r.Expect("gap   ")
}

// TestFarewellInANamespaceThatIsNotSeen deletes a definition before a namespace of its objects is
// seen: what a watch that may select it is not given of them is a gap, as no feed reads them again.
func TestFarewellInANamespaceThatIsNotSeen(t *testing.T) {
	for name, deleted := range map[string]bool{"the objects exist": false, "one was deleted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := committest.PodWatch(committest.ProdPods)
			other.Name, other.Selection.Namespaces.Include = "other", []string{"elsewhere"}
			r := newRig(t, disk(), committest.PodWatch(committest.ProdPods), other)
			s := r.know()
			r.commit(addedTo(s, r.Object("a", "u1", "3")), addedTo(s, r.Object("b", "u2", "4")))
			if deleted {
				r.commit(deletedFrom(s, r.Object("a", "u1", "5")))
			}
			r.Expect()
			r.running = nil
			former, err := r.c.FormerFeed(s.Partition, r.watches, meant, true)
			if err != nil {
				t.Fatal(err)
			}
			Barrier{r.group}.add(&Farewell{feed: former, notify: make(chan struct{}, 1)})
			r.commit()
			for _, e := range r.Expect("gap   ") {
				if e.Gap.Watch != "w" || e.Gap.Namespace != "ns" || e.Gap.Cause != CauseNamespace {
					t.Errorf("the gap is %+v", e.Gap)
				}
			}
			checkLate(r, nil)
		})
	}
}

// TestNoSelectorAfterALateNamespace takes the selector from a watch before the namespace is seen
// in which objects changed: it is given the objects as they are, and a gap for the changes. The
// feed that recorded them may be one of all namespaces, and the one of now that of one.
func TestNoSelectorAfterALateNamespace(t *testing.T) {
	t.Parallel()
	in := func(namespaces ...string) func(*plan.Watch) {
		return func(w *plan.Watch) { w.Namespaces = namespaces }
	}
	for name, tc := range map[string]struct {
		watch plan.Watch
		feed  string // its namespace
		want  []string
	}{
		"the same feed":           {committest.PodWatch(), "", []string{"gap   ", "added x u2 6", "sync a u1 4"}},
		"a feed of the namespace": {committest.PodWatch(in("ns")), "ns", []string{"gap   ", "added x u2 6", "sync a u1 4"}},
		"a feed of another one":   {committest.PodWatch(in("other")), "other", nil},
		"still by labels":         {committest.PodWatch(committest.ProdPods), "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := disk()
			var r *rig
			t.Run("before", func(t *testing.T) {
				r = newRig(t, dir, committest.PodWatch(committest.ProdPods))
				s := r.know()
				s.saved.ResourceVersion, s.recordedForm = "2", s.Form
				r.begin(s, true, committest.PodWatch(committest.ProdPods))
				r.commit(addedTo(s, r.Object("a", "u1", "4")))
				r.Expect()
			})
			r = newRig(t, dir, tc.watch)
			if err := r.c.LoadNamespaces(); err != nil {
				t.Fatal(err)
			}
			s := r.feedIn(pods, tc.feed)
			s.synced, s.recordedForm = true, s.Form
			s.saved.ResourceVersion, s.saved.Recorded = "2", "4" // of the version there may be more
			r.add(addedTo(s, r.Object("x", "u2", "6")))          // it waits for room in the store
			r.begin(s, true, tc.watch)
			r.commit()
			for _, e := range r.Expect(tc.want...) {
				if e.Type == event.Gap && (e.Gap.FromResourceVersion != "2" || e.Gap.ToResourceVersion != "4" || e.Gap.Namespace != "ns") {
					t.Errorf("the gap is %+v", e.Gap)
				}
			}
		})
	}
}

// TestNoteThatNothingNeeds: a note of a change in a namespace that was not seen, which tells of
// no loss, goes with the last watch that selects namespaces by label and with its objects.
func TestNoteThatNothingNeeds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		watch  plan.Watch
		expire bool
	}{
		"no watch selects by label":        {watch: committest.PodWatch()},
		"the objects are recorded no more": {watch: committest.PodWatch(committest.ProdPods), expire: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
			s := r.know()
			r.commit(addedTo(s, r.Object("a", "u1", "3")))
			if err := r.c.carry([]plan.Watch{committest.PodWatch(committest.ProdPods)}, nil); err != nil || len(r.c.unjudged) != 1 {
				t.Fatalf("the notes are %v, want one, as it is needed; error %v", r.c.unjudged, err)
			}
			if tc.expire {
				b := r.Store.NewBatch()
				b.DeleteState(s.Partition, ledger.Key("ns", "a"))
				if err := r.Store.Commit(b); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.c.carry([]plan.Watch{tc.watch}, nil); err != nil {
				t.Fatal(err)
			}
			checkLate(r, nil)
		})
	}
}

// TestSelectorBeforeALateNamespace gives a watch a selector before a namespace is seen in
// which objects are recorded: they are not new to anybody.
func TestSelectorBeforeALateNamespace(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	s := r.know()
	s.recordedForm = s.Form
	r.commit(addedTo(s, r.Object("a", "u1", "2")), updatedIn(s, r.Object("a", "u1", "3"), r.Object("a", "u1", "2")))
	r.Expect("added a u1 2", "updated a u1 3")
	chosen := committest.PodWatch(committest.ProdPods)
	chosen.Name = "chosen"
	r.begin(s, false, committest.PodWatch(), chosen)
	r.commit()
	r.Expect()
	r.commit(&namespaceSeen{obj: r.namespace("4", "prod")})
	r.commit()
	r.Expect("sync a u1 3")
}

// TestChangesWaitForTheirNamespace: the informer's goroutine is held up by an update or a
// deletion until the namespace is seen, the feed stops, or the wait is over.
func TestChangesWaitForTheirNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))) // the store refuses a clock before its program
		r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
		s := r.know()
		s.Subscribed(nil)
		h := r.c.Handler(s)
		taken := func() (n int) {
			synctest.Wait()
			for {
				select {
				case c := <-r.c.changes:
					r.commit(c)
					n++
				default:
					return n
				}
			}
		}
		old, now := r.Object("a", "u1", "2"), r.Object("a", "u1", "3")
		h.OnAdd(old, false)
		if taken() != 1 {
			t.Fatal("an addition waits")
		}
		go h.OnUpdate(old, now)
		if n := taken(); n != 0 {
			t.Fatalf("%d changes came before their namespace", n)
		}
		r.commit(&namespaceSeen{obj: r.namespace("1", "prod")})
		if taken() != 1 {
			t.Fatal("the update still waits")
		}
		r.Expect("added a u1 2", "updated a u1 3")

		r.commit(&namespaceGone{obj: r.ended()})
		h.OnDelete(r.made("6", 10))
		if taken() != 1 {
			t.Error("a deletion in a namespace that is gone waits")
		}
		go h.OnDelete(r.made("6", 40))
		if taken() != 0 {
			t.Error("a deletion does not wait for the namespace that was made again")
		}
		r.commit(&namespaceSeen{obj: r.namespace("7", "prod")})
		if taken() != 1 {
			t.Error("the deletion still waits")
		}
		r.Expect("deleted a u1 3")

		elsewhere, err := r.Codec.Encode([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"b","name":"a","uid":"u2","resourceVersion":"4"}}`), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		go h.OnDelete(elsewhere)
		if taken() != 0 {
			t.Error("a deletion does not wait")
		}
		time.Sleep(namespaceWait)
		if taken() != 1 {
			t.Errorf("the deletion still waits after %v", time.Since(start))
		}
		go h.OnUpdate(elsewhere, elsewhere)
		if taken() != 1 {
			t.Error("another change waits, just after one has waited in vain")
		}
		time.Sleep(namespacePause)
		go h.OnUpdate(elsewhere, elsewhere)
		if taken() != 0 {
			t.Error("later ones do not wait any more")
		}
		s.Stop()
		if taken() != 0 {
			t.Error("a stopped feed has changes")
		}
	})
}

// made is the object "a" that was made in a second of a minute.
func (r *rig) made(version string, second int) *compact.Object {
	r.Helper()
	o, err := r.Codec.Encode(fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u%d","resourceVersion":%q,"creationTimestamp":"2026-01-01T00:00:%02dZ"}}`,
		second, version, second), nil, 0)
	if err != nil {
		r.Fatal(err)
	}
	return o
}

// ended is the namespace as it was deleted in the 20th second of that minute.
func (r *rig) ended() *compact.Object {
	r.Helper()
	o, err := r.Codec.Encode([]byte(`{"metadata":{"name":"ns","uid":"n","resourceVersion":"5","deletionTimestamp":"2026-01-01T00:00:20Z"}}`), nil, 0)
	if err != nil {
		r.Fatal(err)
	}
	return o
}

// again is the namespace as it was made again in the 30th second.
func (r *rig) again(version, env string) *compact.Object {
	r.Helper()
	o, err := r.Codec.Encode(fmt.Appendf(nil,
		`{"metadata":{"name":"ns","uid":"n2","resourceVersion":%q,"creationTimestamp":"2026-01-01T00:00:30Z","labels":{"env":%q}}}`, version, env), nil, 0)
	if err != nil {
		r.Fatal(err)
	}
	return o
}

// TestNamespaceMadeAgain deletes a namespace and makes it again with other labels. Until those
// are seen, what is in the new one is judged by neither, and what is left of the old one by its
// own.
func TestNamespaceMadeAgain(t *testing.T) {
	pod := (*rig).made
	for _, tc := range []struct {
		name     string
		was, now string
		do       func(r *rig, s *Feed) []change
		want     []string
		later    []string // once the new labels are seen
		behind   bool     // the deletion of the namespace comes last
	}{
		{"the old one's object goes", "prod", "dev", func(r *rig, s *Feed) []change { return []change{deletedFrom(s, pod(r, "4", 10))} }, []string{"deleted a u10 4"}, nil, false},
		{"added, comes to be selected", "dev", "prod", func(r *rig, s *Feed) []change {
			return []change{deletedFrom(s, pod(r, "4", 10)), addedTo(s, pod(r, "7", 40))}
		}, nil, []string{"added a u40 7"}, false},
		{"added, is selected as before", "prod", "prod", func(r *rig, s *Feed) []change {
			return []change{deletedFrom(s, pod(r, "4", 10)), addedTo(s, pod(r, "7", 40))}
		}, []string{"deleted a u10 4"}, []string{"added a u40 7"}, false},
		{"added, is not selected any more", "prod", "dev", func(r *rig, s *Feed) []change {
			return []change{addedTo(s, pod(r, "7", 40))}
		}, []string{"deleted a u10 2"}, nil, false},
		{"came and went", "dev", "prod", func(r *rig, s *Feed) []change {
			return []change{deletedFrom(s, pod(r, "4", 10)), addedTo(s, pod(r, "7", 40)), deletedFrom(s, pod(r, "8", 40))}
		}, nil, []string{"gap   "}, false},
		{"came and went, is not selected any more", "prod", "dev", func(r *rig, s *Feed) []change {
			return []change{deletedFrom(s, pod(r, "4", 10)), addedTo(s, pod(r, "7", 40)), deletedFrom(s, pod(r, "8", 40))}
		}, []string{"deleted a u10 4"}, nil, false},
		{"added before the other's end is seen", "prod", "dev", func(r *rig, s *Feed) []change {
			return []change{deletedFrom(s, pod(r, "4", 10)), addedTo(s, pod(r, "7", 40))}
		}, []string{"deleted a u10 4", "added a u40 7"}, []string{"updated a u40 7"}, true},
		{"came and went before the other's end is seen", "dev", "prod", func(r *rig, s *Feed) []change {
			return []change{deletedFrom(s, pod(r, "4", 10)), addedTo(s, pod(r, "7", 40)), deletedFrom(s, pod(r, "8", 40))}
		}, nil, []string{"gap   "}, true},
		{"came and went before the other's end is seen, is not selected any more", "prod", "dev", func(r *rig, s *Feed) []change {
			return []change{addedTo(s, pod(r, "7", 40)), deletedFrom(s, pod(r, "8", 40))}
		}, []string{"deleted a u10 2", "added a u40 7", "deleted a u40 8"}, nil, true},
		{"the old one's object goes, is selected later", "dev", "prod", func(r *rig, s *Feed) []change { return []change{deletedFrom(s, pod(r, "4", 10))} }, nil, nil, true},
	} {
		for _, restarted := range []bool{false, true} {
			name := tc.name
			if restarted {
				name += ", after a restart"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				dir := disk()
				var r *rig
				t.Run("before", func(t *testing.T) {
					r = newRig(t, dir, committest.PodWatch(committest.ProdPods))
					s := r.know(&namespaceSeen{obj: r.namespace("1", tc.was)})
					s.saved.ResourceVersion = "1"
					r.commit(addedTo(s, pod(r, "2", 10)))
					r.Events()
					changes := append([]change{&namespaceGone{obj: r.ended()}}, tc.do(r, s)...)
					if tc.behind {
						changes = append(changes[1:], changes[0])
					}
					r.commit(changes...)
					r.Expect(tc.want...)
					if !restarted {
						r.commit(&namespaceSeen{obj: r.namespace("6", tc.now)})
						r.commit()
						r.Expect(tc.later...)
					}
				})
				if !restarted {
					return
				}
				last := r.Read
				r = newRig(t, dir, committest.PodWatch(committest.ProdPods))
				r.Read = last
				if err := r.c.LoadNamespaces(); err != nil {
					t.Fatal(err)
				}
				s := r.feed(pods)
				s.synced = true
				r.running = append(r.running, s)
				r.commit(&namespaceSeen{obj: r.namespace("6", tc.now)})
				r.commit()
				r.Expect(tc.later...)
			})
		}
	}
}

// TestNamespaceMadeAgainAfterAList has a list find that a namespace is gone, as after a restart, before it is made again with
// other labels: what is in the new one is not judged by those of the one before.
func TestNamespaceMadeAgainAfterAList(t *testing.T) {
	for name, gone := range map[string]func(r *rig) change{
		"of a start": func(*rig) change { return &namespacesSynced{} },
		"amid a start": func(r *rig) change {
			r.c.HoldRelabels()
			return &namespacesSynced{}
		},
		"behind a loss": func(r *rig) change { return &namespaceGone{obj: r.namespace("1", "")} },
	} {
		for _, tc := range []struct {
			was, now    string
			want, later []string
		}{
			{"dev", "prod", nil, []string{"gap   "}},
			{"prod", "dev", []string{"deleted a u10 4"}, nil},
		} {
			t.Run(name+", "+tc.now, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
				s := r.know(&namespaceSeen{obj: r.namespace("1", tc.was)})
				s.saved.ResourceVersion = "2"
				r.commit(addedTo(s, r.made("2", 10)))
				r.Events()
				r.at = time.Date(2026, 1, 1, 0, 0, 20, 0, time.UTC)
				r.commit(gone(r))
				r.commit(deletedFrom(s, r.made("4", 10)), addedTo(s, r.made("7", 40)), deletedFrom(s, r.made("8", 40)))
				r.Expect(tc.want...)
				r.c.relabelsHeld.Store(false)
				r.commit(&namespaceSeen{obj: r.namespace("6", tc.now)})
				checkLate(r, tc.later)
			})
		}
	}
}

// TestNamespaceMadeAgainUnseen has a list find a namespace that was deleted and made again, with other labels, while namespaces could not be listed: a change in
// the new one that was not given, as the labels of the one before were known, is covered by a gap.
func TestNamespaceMadeAgainUnseen(t *testing.T) {
	for _, tc := range []struct {
		was, now string
		version  string // of the one that is found; an earlier one is that of a restored cluster
		goes     bool
		want     []string
		later    []string
	}{
		{"dev", "prod", "6", true, nil, []string{"gap   "}},
		{"dev", "prod", "6", false, nil, []string{"updated a u40 7"}},
		{"dev", "prod", "4", true, nil, nil},
		{"dev", "dev", "6", true, nil, nil},
		{"prod", "dev", "6", true, []string{"deleted a u10 4", "added a u40 7", "deleted a u40 8"}, nil},
		{"prod", "prod", "6", true, []string{"deleted a u10 4", "added a u40 7", "deleted a u40 8"}, nil},
	} {
		t.Run(fmt.Sprintf("%s, %s at %s, %t", tc.was, tc.now, tc.version, tc.goes), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
			s := r.know(&namespaceSeen{obj: r.namespace("5", tc.was)})
			s.saved.ResourceVersion = "1"
			r.commit(addedTo(s, r.made("2", 10)))
			r.Events()
			r.commit(deletedFrom(s, r.made("4", 10)), addedTo(s, r.made("7", 40)))
			if tc.goes {
				r.commit(deletedFrom(s, r.made("8", 40)))
			}
			r.Expect(tc.want...)
			r.commit(&namespaceSeen{obj: r.again(tc.version, tc.now)})
			r.commit()
			r.Expect(tc.later...)
		})
	}
}

// TestNamespaceMadeAgainBesideAnotherWatch has a watch of all namespaces be given those changes: the gap is the other's alone.
func TestNamespaceMadeAgainBesideAnotherWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods), committest.PodWatch(func(w *plan.Watch) { w.Name = "all" }))
	s := r.know(&namespaceSeen{obj: r.namespace("1", "dev")})
	s.saved.ResourceVersion = "1"
	r.commit(addedTo(s, r.made("7", 40)), deletedFrom(s, r.made("8", 40)))
	r.Expect("added a u40 7", "deleted a u40 8")
	r.commit(&namespaceSeen{obj: r.again("6", "prod")})
	r.commit()
	r.expectGaps("w ")
}

// TestSelectorWhileANamespaceIsMadeAgain gives a watch a selector when the labels of the
// namespace that was made again are not known: what it was given without is not added again.
func TestSelectorWhileANamespaceIsMadeAgain(t *testing.T) {
	for _, now := range []string{"prod", "dev"} {
		t.Run(now, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.know(&namespaceSeen{obj: r.namespace("1", "dev")})
			s.recordedForm = s.Form
			r.commit(&namespaceGone{obj: r.ended()}, addedTo(s, r.made("7", 40)))
			r.Expect("added a u40 7")
			r.begin(s, false, committest.PodWatch(inProd))
			r.commit(&namespaceSeen{obj: r.namespace("8", now)})
			r.commit()
			r.Expect()
		})
	}
}

// TestNamespaceMadeAgainBeforeTheFirstIsApplied: what is noted of objects in a namespace that was
// made again does not end with the labels of the one before, which are applied later.
func TestNamespaceMadeAgainBeforeTheFirstIsApplied(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
	s := r.know()
	s.saved.ResourceVersion = "1"
	r.commit(addedTo(s, r.made("2", 10)))
	r.Expect()
	r.commit(&namespaceSeen{obj: r.namespace("1", "prod")}, deletedFrom(s, r.made("4", 10)), &namespaceGone{obj: r.ended()}, addedTo(s, r.made("7", 40)))
	r.commit()
	r.Expect("added a u10 2", "deleted a u10 4")
	r.commit(&namespaceSeen{obj: r.namespace("6", "prod")})
	r.commit()
	checkLate(r, []string{"added a u40 7"})
}

// TestLossInANamespaceThatWasMadeAgain: what was lost in a namespace before it was seen is reported
// to the watches that select that one, also if it is deleted and made again, with other labels,
// before its own are applied.
func TestLossInANamespaceThatWasMadeAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		first, again string
		lost         bool // objects come and go in the second one, too, before it is seen
		want         []string
	}{
		"selected first":                {first: "prod", again: "dev", want: []string{"gap   "}},
		"selected again":                {first: "dev", again: "prod"},
		"selected both times":           {first: "prod", again: "prod", want: []string{"gap   "}},
		"never selected":                {first: "dev", again: "test", lost: true},
		"selected again, and lost then": {first: "dev", again: "prod", lost: true, want: []string{"gap   "}},
		"both":                          {first: "prod", again: "prod", lost: true, want: []string{"gap   ", "gap   "}},
	} {
		for _, later := range []bool{false, true} {
			if later {
				name += ", made again later"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
				s := r.know()
				s.saved.ResourceVersion = "2"
				r.commit(addedTo(s, r.made("3", 10)), deletedFrom(s, r.made("4", 10)))
				r.add(&namespaceSeen{obj: r.namespace("1", tc.first)})
				r.add(&namespaceGone{obj: r.ended()})
				if later {
					r.commit()
				}
				if tc.lost {
					r.add(addedTo(s, r.made("7", 40)))
					r.add(deletedFrom(s, r.made("8", 40)))
				}
				r.commit(&namespaceSeen{obj: r.namespace("6", tc.again)})
				r.commit()
				checkLate(r, tc.want)
			})
		}
	}
}

// TestNoteWithoutALossEndsWithTheDefinition: nothing is missing of objects that were given once their namespace was seen.
func TestNoteWithoutALossEndsWithTheDefinition(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
	s := r.know()
	former, err := r.c.FormerFeed(s.Partition, r.watches, meant, true)
	if err != nil {
		t.Fatal(err)
	}
	r.c.putUnjudged("ns", s.Partition, unjudged{From: "1", FromTime: now, At: now})
	Barrier{r.group}.add(&Farewell{feed: former, notify: make(chan struct{}, 1)})
	r.commit()
	checkLate(r, nil)
}

// TestEndOfANamespace: it has ended when it was deleted, or when the last object that is recorded was made; if not all of those can be
// looked at, by the time at which its end was observed.
func TestEndOfANamespace(t *testing.T) {
	at := func(second int) time.Time { return time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC) }
	for name, tc := range map[string]struct {
		watch plan.Watch
		with  func(r *rig, s *Feed)
		want  time.Time
	}{
		"without objects":       {want: at(20)},
		"with an earlier one":   {with: func(r *rig, s *Feed) { r.recorded(s, r.made("2", 10)) }, want: at(20)},
		"with a later one":      {with: func(r *rig, s *Feed) { r.recorded(s, r.made("2", 40)) }, want: at(40)},
		"no watch selects it":   {watch: committest.PodWatch(), with: func(r *rig, s *Feed) { r.recorded(s, r.made("2", 40)) }, want: at(20)},
		"with a damaged object": {with: func(r *rig, s *Feed) { r.damaged(s, "a") }, want: at(50)},
		"with too many": {with: func(r *rig, s *Feed) {
			for i := range maxGroup + 1 {
				r.recorded(s, r.Object(fmt.Sprint("b", i), "u", "2"))
			}
		}, want: at(50)},
		"while feeds are replaced": {with: func(r *rig, _ *Feed) { r.c.relabelsHeld.Store(true) }, want: at(50)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.watch.Name == "" {
				tc.watch = committest.PodWatch(committest.ProdPods)
			}
			r := newRig(t, disk(), tc.watch)
			s := r.know()
			if tc.with != nil {
				tc.with(r, s)
			}
			if got, err := r.group.ended("ns", at(20), at(50)); err != nil || !got.Equal(tc.want) {
				t.Errorf("ended %v, want %v (%v)", got, tc.want, err)
			}
		})
	}
}

// TestHistoryOfALateNamespace is that of each watch that keeps one, whichever other watches select the namespace, too.
func TestHistoryOfALateNamespace(t *testing.T) {
	t.Parallel()
	without := committest.PodWatch(committest.ProdPods, func(w *plan.Watch) { w.Name, w.History = "without", false })
	for name, watches := range map[string][]plan.Watch{
		"the first": {committest.PodWatch(committest.ProdPods), without},
		"the last":  {without, committest.PodWatch(committest.ProdPods)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), watches...)
			r.route()
			s := r.know()
			r.commit(addedTo(s, r.Object("a", "u1", "3")))
			r.commit(&namespaceSeen{obj: r.namespace("1", "prod")})
			checkLate(r, []string{"added a u1 3"})
		})
	}
}
