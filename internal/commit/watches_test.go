package commit

import (
	"slices"
	"testing"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
)

// TestEndBeforeAWiderSourceGives ends the process when the rules of the parts of a source
// are dropped and its watches have not been given their objects: the next start has not
// forgotten that.
func TestEndBeforeAWiderSourceGives(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	other := r.watches
	r.watches = []plan.Watch{committest.PodWatch(func(w *plan.Watch) { w.Name = "other" })}
	parts := []*Feed{r.feedIn(pods, "a"), r.feedIn(pods, "b")}
	r.watches = other
	if err := r.note(givenBy(parts)); err != nil {
		t.Fatal(err)
	}
	s := r.feed(pods)
	j := newSnapshot(s, s.Watches()[0])
	if err := r.c.durable([]*snapshot{j}, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.note(given{s.ID: {"w": {partly: true}}}); err != nil {
		t.Fatal(err)
	}
	if gained, err := r.c.addedBefore([]*Feed{s}); err != nil || len(gained) != 1 {
		t.Errorf("%d watches are given objects at the next start, %v", len(gained), err)
	}
}

// TestSelectorGoesWithTheDefinition takes a namespace selector out of a watch, and with
// that the labels are forgotten, when a definition goes: its deletions reach the watch.
func TestSelectorGoesWithTheDefinition(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(inProd))
	s := r.know(&namespaceSeen{obj: r.namespace("1", "prod")})
	r.running = nil
	r.commit(addedTo(s, r.Object("a", "u1", "2")))
	if err := r.note(givenBy([]*Feed{s})); err != nil {
		t.Fatal(err)
	}
	r.Expect("added a u1 2")
	r.watches = []plan.Watch{committest.PodWatch()}
	if err := (Barrier{r.group}).ForgetNamespaces(r.watches); err != nil {
		t.Fatal(err)
	}
	former, err := r.c.FormerFeed(s.Partition, r.watches, meant, true)
	if err != nil {
		t.Fatal(err)
	}
	Barrier{r.group}.add(&Farewell{feed: former, notify: make(chan struct{}, 1)})
	r.commit()
	r.Expect("deleted a u1 2")
}

// TestSelectorComesAndGoes takes a namespace selector out of a watch and puts it back,
// with an end of the process before the watch was given what it covered in between, and
// while the labels are not known: until they are, it judges by what was in force.
func TestSelectorComesAndGoes(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(inProd))
	s := r.know(&namespaceSeen{obj: r.namespace("1", "prod")})
	r.running = nil
	if err := r.note(givenBy([]*Feed{s})); err != nil {
		t.Fatal(err)
	}
	r.watches = []plan.Watch{committest.PodWatch()}
	if err := (Barrier{r.group}).ForgetNamespaces(r.watches); err != nil {
		t.Fatal(err)
	}
	given, err := r.c.ledger.Selections()
	if err != nil {
		t.Fatal(err)
	}
	next := committest.PodWatch(inProd)
	former, err := given.Watch(s.Partition, &next)
	if err != nil || former == nil || former.Filter.NeedsNamespaces() {
		t.Fatalf("the watch judges by %+v, which needs labels that are not known, %v", former, err)
	}
	r.watches = []plan.Watch{*former}
	if gained, err := r.c.addedBefore([]*Feed{r.feed(pods)}); err != nil || len(gained) != 1 {
		t.Errorf("%d watches are given objects, %v", len(gained), err)
	}
}

// TestKillAmidASnapshot ends the process when a watch has not been given all that it gained by
// other rules: what the rules before cover does not count as given to it if these are in force again.
func TestKillAmidASnapshot(t *testing.T) {
	all := committest.PodWatch(func(w *plan.Watch) { w.Fingerprint = "all" })
	web := watchOf("w", "ns")
	web.Selection.Labels, web.Fingerprint = "tier=web", "web"
	var err error
	if web.Filter, err = web.Selection.Filter(); err != nil {
		t.Fatal(err)
	}
	elsewhere, part := watchOf("w", "elsewhere"), watchOf("other", "ns")
	for name, life := range map[string]func(r *rig){
		"by the rules of before": func(r *rig) {
			s := r.started("", all)
			r.begin(s, false, elsewhere)
			r.updated(s)
		},
		"by the rules of before, which were back already": func(r *rig) {
			s := r.started("", all)
			r.begin(s, false, elsewhere)
			r.updated(s)
			r.begin(s, false, all)
		},
		"by the rules of before, of a feed that reads more": func(r *rig) {
			r.started("", all)
			s := r.feedIn(pods, "ns")
			r.begin(s, true, web)
			r.updated(s)
		},
		"others read a part meanwhile": func(r *rig) {
			r.started("", all)
			r.updated(r.started("ns", part))
			r.begin(r.feed(pods), true, all)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := disk()
			t.Run("before", func(t *testing.T) { life(newRig(t, dir, all)) })
			r := newRig(t, dir, all)
			r.Events()
			r.started("", all)
			r.Expect("sync a u1 3")
		})
	}
}

// TestKillAmidASnapshotKeepsWhatAllRulesCover ends the process when a watch has not been given all
// that it gained by other rules. By any rules, those of before among them, it is given what these
// or the others did not cover, and nothing else.
func TestKillAmidASnapshotKeepsWhatAllRulesCover(t *testing.T) {
	tiers := func(tiers string) plan.Watch {
		return committest.PodWatch(func(w *plan.Watch) {
			w.Fingerprint, w.Selection.Labels = tiers, "tier in ("+tiers+")"
			var err error
			if w.Filter, err = w.Selection.Filter(); err != nil {
				t.Fatal(err)
			}
		})
	}
	for name, tc := range map[string]struct {
		after string
		want  []string
	}{
		"by those of before": {"both,before", []string{"sync b u2 7"}},
		"by the later ones":  {"both,later", []string{"sync c u3 5"}},
		"by narrower ones":   {"both", nil},
		"by wider ones":      {"both,before,later", []string{"sync b u2 7", "sync c u3 5"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := disk()
			t.Run("before", func(t *testing.T) {
				r := newRig(t, dir, tiers("both,before"))
				s := r.started("", tiers("both,before"))
				r.commit(
					addedTo(s, r.Object("a", "u1", "3", "both")),
					addedTo(s, r.Object("b", "u2", "4", "before")),
					addedTo(s, r.Object("c", "u3", "5", "later")),
				)
				r.begin(s, false, tiers("both,later"))
				r.group.jobs = nil
				r.commit(
					updatedIn(s, r.Object("a", "u1", "6", "both"), r.Object("a", "u1", "3", "both")),
					updatedIn(s, r.Object("b", "u2", "7", "before"), r.Object("b", "u2", "4", "before")),
				)
				r.Expect("added a u1 3", "added b u2 4", "updated a u1 6")
			})
			r := newRig(t, dir, tiers(tc.after))
			r.Events()
			r.started("", tiers(tc.after))
			r.Expect(tc.want...)
		})
	}
}

// TestWatchReturnsToAResourceThatItGaveUp takes a resource from a watch while another one reads it, and gives it back after a
// restart: the watch is given what is recorded, as it would be for the first time.
func TestWatchReturnsToAResourceThatItGaveUp(t *testing.T) {
	t.Parallel()
	other := committest.PodWatch(func(w *plan.Watch) { w.Name, w.Fingerprint = "other", "other" })
	w := committest.PodWatch(func(w *plan.Watch) { w.Fingerprint = "w" })
	dir := disk()
	feed := func(r *rig) *Feed {
		s := r.feed(pods)
		s.synced, s.recordedForm = true, s.Form
		r.change(r.watches, s, true, w, other)
		return s
	}
	t.Run("before", func(t *testing.T) {
		r := newRig(t, dir, w, other)
		s := feed(r)
		r.commit(addedTo(s, r.Object("a", "u1", "3")))
		x, err := r.c.PrepareChange(&plan.State{Watches: r.watches}, func(w *plan.Watch, _ string) (resource, part bool) {
			return w.Name == "other", w.Name == "other"
		}, nil, map[*Feed][]WatchRef{s: {NewWatchRef(&other)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := (Barrier{r.group}).Change(x); err != nil {
			t.Fatal(err)
		}
		r.commit(updatedIn(s, r.Object("a", "u1", "4"), nil))
	})
	r := newRig(t, dir, w, other)
	r.Events()
	feed(r)
	r.commit()
	r.Expect("sync a u1 4")
}

// started is a feed that runs, and has given its watch what is recorded.
func (r *rig) started(namespace string, watch plan.Watch) *Feed {
	r.Helper()
	s := r.feedIn(pods, namespace)
	s.synced, s.recordedForm = true, s.Form
	r.begin(s, true, watch)
	r.commit()
	return s
}

// updated has an object of the feed updated, while what watches are given waits.
func (r *rig) updated(s *Feed) {
	r.Helper()
	jobs := r.group.jobs
	r.group.jobs = nil
	r.commit(addedTo(s, r.Object("a", "u1", "2")), updatedIn(s, r.Object("a", "u1", "3"), nil))
	r.group.jobs = jobs
}

// TestWatchReturnsToAResourceThatItGaveUpForAPart takes a resource from a watch while another one reads on a part of it, and then all, and
// gives it back: the watch is given what has changed since.
func TestWatchReturnsToAResourceThatItGaveUpForAPart(t *testing.T) {
	t.Parallel()
	other := committest.PodWatch(func(w *plan.Watch) { w.Name, w.Fingerprint = "other", "other" })
	w := committest.PodWatch(func(w *plan.Watch) { w.Fingerprint = "w" })
	r := newRig(t, disk(), w, other)
	start := func(namespace string, wants []string, watches ...plan.Watch) *Feed {
		t.Helper()
		s := r.feedIn(pods, namespace)
		s.synced, s.recordedForm = true, s.Form
		var refs []WatchRef
		for i := range watches {
			refs = append(refs, NewWatchRef(&watches[i]))
		}
		s.watches.Store(&refs)
		x, err := r.c.PrepareChange(&plan.State{Watches: r.watches}, func(w *plan.Watch, _ string) (resource, part bool) {
			wants := slices.Contains(wants, w.Name)
			return wants, wants
		}, []*Feed{s}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := (Barrier{r.group}).Change(x); err != nil {
			t.Fatal(err)
		}
		r.commit()
		return s
	}
	both := []string{"w", "other"}
	s := start("", both, w, other)
	r.commit(addedTo(s, r.Object("a", "u", "3")))
	start("ns", both[1:], other)
	s = start("", both[1:], other)
	r.commit(updatedIn(s, r.Object("a", "u", "4"), nil))
	r.Events()
	start("", both, w, other)
	r.Expect("sync a u 4")
}
