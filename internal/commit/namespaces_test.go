package commit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// namespace makes the namespace "ns", in which all objects of a rig are.
func (r *rig) namespace(version, env string) *compact.Object {
	r.Helper()
	o, err := r.Codec.Encode(fmt.Appendf(nil, `{"metadata":{"name":"ns","uid":"n","resourceVersion":%q,"labels":{"env":%q}}}`, version, env), nil, 0)
	if err != nil {
		r.Fatal(err)
	}
	return o
}

// know has the namespaces known to be what they are, and the pods' source run.
func (r *rig) know(changes ...change) *Feed {
	r.Helper()
	listed := map[string]struct{}{}
	for _, c := range changes {
		if c, ok := c.(*namespaceSeen); ok {
			listed[c.obj.GetName()] = struct{}{}
		}
	}
	r.commit(append(changes, &namespacesSynced{names: listed})...)
	s := r.feed(pods)
	s.synced = true
	r.running = append(r.running, s)
	return s
}

func TestNamespaceLabelsAreLive(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
	s := r.know(&namespaceSeen{obj: r.namespace("1", "dev")})
	r.commit(addedTo(s, r.Object("a", "u1", "2")))
	r.Expect() // not selected

	// The objects of a namespace that comes to be selected enter, also those that
	// come in the same commit.
	r.commit(
		addedTo(s, r.Object("b", "u2", "3")),
		&namespaceSeen{obj: r.namespace("4", "prod")},
	)
	entered := r.Expect("updated a u1 2", "updated b u2 3")
	if got := r.selections(2); !slices.Equal(got, []event.Selection{event.Entered, event.Entered}) {
		t.Errorf("selections are %v", got)
	}
	r.commit(&namespaceSeen{obj: r.namespace("5", "prod")})
	r.Expect() // another change of the namespace

	r.commit(&namespaceSeen{obj: r.namespace("6", "dev")})
	left := r.Expect("updated a u1 2", "updated b u2 3")
	if got := r.selections(2); !slices.Equal(got, []event.Selection{event.Left, event.Left}) {
		t.Errorf("selections are %v", got)
	}
	if left[0].ID == entered[0].ID {
		t.Errorf("entering and leaving have one id, %s", left[0].ID)
	}
	r.commit(deletedFrom(s, r.Object("a", "u1", "7")))
	r.Expect()
}

// The order between the watches of namespaces and objects is open at both ends of
// a namespace's life.
func TestNamespaceOutOfOrder(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
	s := r.know()
	r.commit(addedTo(s, r.Object("a", "u1", "2")))
	r.Expect()
	r.commit(&namespaceSeen{obj: r.namespace("1", "prod")})
	r.Expect("added a u1 2")
	if got := r.selections(1); got[0] != event.Inside {
		t.Errorf("selection is %v", got)
	}

	r.commit(&namespaceGone{obj: r.namespace("4", "prod")})
	r.commit(deletedFrom(s, r.Object("a", "u1", "3")))
	r.Expect("deleted a u1 3")
}

// After a restart the labels are those by which objects were selected before, and
// what happened to the namespaces meanwhile is a change like any other.
func TestNamespacesOfAnEarlierLife(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(r *rig) change
		want   string
	}{
		{"deleted", func(*rig) change { return &namespacesSynced{} }, "deleted a u1 9"},
		{"relabelled", func(r *rig) change { return &namespaceSeen{obj: r.namespace("5", "dev")} }, "updated a u1 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := disk()
			t.Run("before", func(t *testing.T) {
				r := newRig(t, dir, committest.PodWatch(committest.ProdPods))
				s := r.know(&namespaceSeen{obj: r.namespace("1", "prod")})
				r.commit(addedTo(s, r.Object("a", "u1", "2")))
				r.Expect("added a u1 2")
			})
			r := newRig(t, dir, committest.PodWatch(committest.ProdPods))
			r.Expect("added a u1 2")
			if err := r.c.LoadNamespaces(); err != nil {
				t.Fatal(err)
			}
			if !r.c.namespaces.ready() {
				t.Fatal("the labels are not known")
			}
			s := r.feed(pods)
			r.running = append(r.running, s)
			r.commit(tc.change(r))
			r.commit(deletedFrom(s, r.Object("a", "u1", "9")))
			r.Expect(tc.want)
		})
	}
}

func TestGoneNamespacesAreBounded(t *testing.T) {
	table := &namespaceTable{}
	start := time.Unix(1_800_000_000, 0)
	dropped := map[string]bool{}
	for i := range maxGone + 50 {
		name := fmt.Sprintf("gone-%d", i)
		for _, n := range []namespace{{Labels: labels.Set{"env": "prod"}}, {Gone: start.Add(time.Duration(i) * time.Second)}} {
			for _, old := range table.put(name, n) {
				dropped[old] = true
			}
		}
	}
	table.put("here", namespace{})
	if len(table.known) > maxGone+1 || len(dropped) != maxGone/10 || !dropped["gone-0"] || dropped["gone-5000"] {
		t.Errorf("%d known, %d dropped", len(table.known), len(dropped))
	}
	if _, ok := table.labels("here"); !ok {
		t.Error("a namespace that exists was dropped")
	}
}

func TestNamespacesAreForgotten(t *testing.T) {
	dir := disk()
	r := newRig(t, dir, committest.PodWatch(committest.ProdPods))
	r.know(&namespaceSeen{obj: r.namespace("1", "prod")})
	if err := (Barrier{r.group}).ForgetNamespaces(r.watches); err != nil {
		t.Fatal(err)
	}
	if err := r.c.LoadNamespaces(); err != nil {
		t.Fatal(err)
	}
	if _, known := r.c.namespaces.labels("ns"); known || r.c.namespaces.ready() {
		t.Error("labels are still known")
	}
}

// TestNamespaceIsSetBack relabels a namespace, and sets the cluster back to before that, twice: each time, an object that did not change
// enters or leaves by another event.
func TestNamespaceIsSetBack(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
	s := r.know(&namespaceSeen{obj: r.namespace("1", "prod")})
	r.commit(addedTo(s, r.Object("a", "u1", "2")))
	r.Events()
	ids := map[string]bool{}
	for i, n := range []struct{ version, env string }{{"3", "dev"}, {"4", "prod"}, {"3", "dev"}, {"4", "prod"}, {"3", "dev"}, {"5", "prod"}} {
		r.commit(&namespaceSeen{obj: r.namespace(n.version, n.env)})
		for _, e := range r.Expect("updated a u1 2") {
			ids[e.ID] = true
		}
		if len(ids) != i+1 {
			t.Errorf("at version %s, of %s, %d events have %d ids", n.version, n.env, i+1, len(ids))
		}
	}
}

// TestRelabelledNamespaceInParts gives a namespace of many objects other labels: the
// objects enter in bounded groups with other changes between, each once, and a kill
// after any of the groups neither repeats nor loses one.
func TestRelabelledNamespaceInParts(t *testing.T) {
	const n = 3 * maxGroup
	for kill := range 6 {
		t.Run(fmt.Sprint(kill), func(t *testing.T) {
			dir := disk()
			entered := map[string]int{}
			largest := 0
			count := func(r *rig) {
				events := r.Events()
				largest = max(largest, len(events))
				for _, e := range events {
					if e.Type == event.Updated && strings.HasPrefix(e.UID, "u") {
						entered[e.Name+" "+e.ResourceVersion]++
					}
				}
			}
			var last uint64
			t.Run("before", func(t *testing.T) {
				r := newRig(t, dir, committest.PodWatch(committest.ProdPods))
				s := r.know(&namespaceSeen{obj: r.namespace("1", "dev")})
				for i := range n {
					r.add(addedTo(s, r.Object(fmt.Sprintf("pod-%05d", i), fmt.Sprint("u", i), "2")))
				}
				r.commit()
				count(r)
				r.add(&namespaceSeen{obj: r.namespace("3", "prod")})
				for i := range kill {
					if i == 2 { // one that has not entered yet, and one that has
						for _, o := range []*compact.Object{r.Object("pod-01500", "u1500", "4"), r.Object("pod-00000", "u0", "4")} {
							r.add(updatedIn(s, o, nil))
						}
					}
					r.step()
					count(r)
				}
				last = r.Read
			})
			r := newRig(t, dir, committest.PodWatch(committest.ProdPods))
			if err := r.c.LoadNamespaces(); err != nil {
				t.Fatal(err)
			}
			s := r.feed(pods)
			s.synced = true
			r.running = append(r.running, s)
			r.Read = last
			if kill == 0 { // nothing was committed: the namespace is seen again
				r.add(&namespaceSeen{obj: r.namespace("3", "prod")})
			} else {
				for name := range r.c.relabels {
					r.group.resume(name)
				}
			}
			for more := true; more; more = len(r.group.jobs) > 0 {
				r.step()
				count(r)
			}
			changed := 0
			if kill > 2 {
				changed = 2
			}
			if len(entered) != n+changed {
				t.Errorf("%d events, want %d", len(entered), n+changed)
			}
			for name, times := range entered {
				if times != 1 {
					t.Errorf("%s came %d times", name, times)
				}
			}
			if largest > maxGroup+4 {
				t.Errorf("a group of %d events", largest)
			}
			if len(r.c.relabels) != 0 {
				t.Error("something is left of the relabelling")
			}
		})
	}
}

// TestForgottenRelabel takes the last namespace selector out of the watches while a
// relabelled namespace waits, and puts it back when the namespace has other labels again:
// objects move by the labels of now.
func TestForgottenRelabel(t *testing.T) {
	for name, begin := range map[string]func(r *rig){
		"waits": func(r *rig) { r.c.relabelsHeld.Store(true) },
		"is taken through": func(r *rig) {
			r.add(&namespaceSeen{obj: r.namespace("3", "dev")})
			r.step()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fs := disk()
			r := newRig(t, fs, committest.PodWatch(inProd))
			s := r.know(&namespaceSeen{obj: r.namespace("1", "prod")})
			r.commit(addedTo(s, r.Object("a", "u1", "2")))
			r.Expect("added a u1 2")
			begin(r)
			r.add(&namespaceSeen{obj: r.namespace("4", "test")})
			r.step()
			r.Events()
			if err := (Barrier{r.group}).ForgetNamespaces([]plan.Watch{committest.PodWatch()}); err != nil {
				t.Fatal(err)
			}
			r.c.relabelsHeld.Store(false)
			r.commit(&namespaceSeen{obj: r.namespace("5", "prod")}, &namespacesSynced{names: map[string]struct{}{"ns": {}}})
			r.Expect()
			r.commit(updatedIn(s, r.Object("a", "u1", "6"), r.Object("a", "u1", "2")))
			r.Expect("updated a u1 6")
			if err := r.c.loadRelabels(); err != nil || len(r.c.relabels) > 0 {
				t.Errorf("remembered are %v, %v", r.c.relabels, err)
			}
		})
	}
}

// TestForgottenLabelsAmidASnapshot takes the last namespace selector out of the watches, and
// puts labels back that the namespace did not have, before a watch is given what it covers by
// name: it was not given that by the labels, but by a name.
func TestForgottenLabelsAmidASnapshot(t *testing.T) {
	byLabels, byName := committest.PodWatch(inProd), watchOf("w", "ns")
	all := committest.PodWatch(func(w *plan.Watch) { w.Fingerprint = "all" })
	for name, tc := range map[string]struct {
		from, to plan.Watch
		starts   bool
		want     []string
	}{
		"from labels":                     {from: byLabels, to: byName, want: []string{"sync a u1 2"}},
		"from labels, of a feed to start": {from: byLabels, to: byName, starts: true, want: []string{"sync a u1 2"}},
		"from a name":                     {from: byName, to: all},
		"from a name, of a feed to start": {from: byName, to: all, starts: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), tc.from)
			s := r.know(&namespaceSeen{obj: r.namespace("1", "dev")})
			s.recordedForm = s.Form
			r.commit(addedTo(s, r.Object("a", "u1", "2")))
			if err := r.note(givenBy([]*Feed{s})); err != nil {
				t.Fatal(err)
			}
			r.Events()
			r.begin(s, tc.starts, tc.to)
			if err := (Barrier{r.group}).ForgetNamespaces([]plan.Watch{tc.to}); err != nil {
				t.Fatal(err)
			}
			r.commit(&namespaceSeen{obj: r.namespace("3", "prod")}, &namespacesSynced{names: map[string]struct{}{"ns": {}}})
			r.Expect(tc.want...)
		})
	}
}

// TestRelabelAndOtherRules gives a namespace other labels, and the watch other rules, which
// mean the namespace by name, before, while and after the objects are taken through: each
// is given once more by the rules if, and only if, it had left or not entered.
func TestRelabelAndOtherRules(t *testing.T) {
	const n = maxGroup + 100
	byName := watchOf("w", "ns")
	for _, tc := range []struct {
		name       string
		from, to   string // labels
		narrows    bool   // a feed of the namespace takes the place of that of all
		first      int    // groups before the rules change, of the job
		afterRules int    // groups of the snapshot before the labels change; 0: they change before the rules
		overtakes  bool   // the objects are taken through before the snapshot comes to them
		syncs      int    // objects that the new rules give
		others     int    // objects that have left or entered
	}{
		{name: "entering", from: "dev", to: "prod", syncs: n},
		{name: "entering, before they are given", from: "dev", to: "prod", overtakes: true, syncs: n},
		{name: "entering, in part", from: "dev", to: "prod", first: 2, syncs: n - maxGroup, others: maxGroup},
		{name: "entering, when the rules have changed", from: "dev", to: "prod", afterRules: 1, syncs: n},
		{name: "leaving", from: "prod", to: "dev"},
		{name: "leaving, before they are given", from: "prod", to: "dev", overtakes: true},
		{name: "leaving, in part", from: "prod", to: "dev", first: 2, syncs: maxGroup, others: maxGroup},
		{name: "leaving, in part, to a feed of the namespace", from: "prod", to: "dev", first: 2, narrows: true, syncs: maxGroup, others: maxGroup},
		{name: "leaving, when the rules have changed", from: "prod", to: "dev", afterRules: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch(inProd))
			s := r.know(&namespaceSeen{obj: r.namespace("1", tc.from)})
			s.recordedForm = s.Form
			for i := range n {
				r.add(addedTo(s, r.Object(fmt.Sprintf("pod-%05d", i), fmt.Sprint("u", i), "2")))
			}
			r.commit()
			if err := r.note(givenBy([]*Feed{s})); err != nil {
				t.Fatal(err)
			}
			r.Events()
			relabel := func() { r.add(&namespaceSeen{obj: r.namespace("3", tc.to)}) }
			if tc.afterRules == 0 {
				relabel()
				r.c.relabelsHeld.Store(true)
				r.step()
				r.c.relabelsHeld.Store(false)
				if tc.first > 0 {
					r.group.resume("ns")
				}
				for range tc.first {
					r.step()
				}
			}
			r.group.jobs = nil
			if tc.narrows {
				r.watches = []plan.Watch{byName}
				s = r.feedIn(pods, "ns")
				s.synced, s.recordedForm = true, s.Form
				r.running = []*Feed{s}
			}
			r.begin(s, tc.narrows, byName)
			for range tc.afterRules {
				r.step()
			}
			snapshots := r.group.jobs
			if tc.overtakes {
				r.group.jobs = nil
			}
			if tc.afterRules > 0 {
				relabel()
			} else {
				r.group.resume("ns")
			}
			r.commit()
			if tc.overtakes {
				r.group.jobs = snapshots
			}
			r.commit()
			syncs, others := map[string]int{}, 0
			for _, e := range r.Events() {
				if e.Type == event.Sync {
					syncs[e.Name]++
				} else {
					others++
				}
			}
			if len(syncs) != tc.syncs || others != tc.others {
				t.Errorf("%d objects are given by the rules, want %d; %d left or entered, want %d", len(syncs), tc.syncs, others, tc.others)
			}
			for name, times := range syncs {
				if times != 1 {
					t.Errorf("%s came %d times", name, times)
				}
			}
		})
	}
}

// TestSelectorAmidALateNamespace gives a watch a selector of namespaces when the labels of one
// have just become known, and the objects in it are still to be given to those that select it:
// what the watch was given of them is not added again.
func TestSelectorAmidALateNamespace(t *testing.T) {
	for env, want := range map[string][]string{"prod": {"added b u2 5"}, "dev": nil} {
		t.Run(env, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.know()
			s.recordedForm = s.Form
			r.commit(addedTo(s, r.Object("a", "u1", "2")), updatedIn(s, r.Object("a", "u1", "3"), r.Object("a", "u1", "2")))
			r.Expect("added a u1 2", "updated a u1 3")
			r.c.relabelsHeld.Store(true)
			r.commit(&namespaceSeen{obj: r.namespace("4", env)})
			r.begin(s, false, committest.PodWatch(inProd))
			r.c.relabelsHeld.Store(false)
			r.group.resume("ns")
			r.commit()
			r.commit(addedTo(s, r.Object("b", "u2", "5")))
			r.Expect(want...)
			if len(r.c.carried) > 0 {
				t.Errorf("carried are %v", r.c.carried)
			}
		})
	}
}

// TestCarriedRulesExpire takes away what former rules are carried for: the watch, its
// selector, its objects, all namespace selectors; and has the labels become known.
func TestCarriedRulesExpire(t *testing.T) {
	for name, expire := range map[string]func(r *rig, s *Feed) error{
		"the watch is gone": func(r *rig, s *Feed) error {
			r.begin(s, false, committest.PodWatch(inProd, func(w *plan.Watch) { w.Name = "other" }))
			return nil
		},
		"the watch selects by name": func(r *rig, s *Feed) error { r.begin(s, false, watchOf("w", "elsewhere")); return nil },
		"no object is left": func(r *rig, s *Feed) error {
			r.commit(deletedFrom(s, r.Object("a", "u1", "8")))
			r.begin(s, false, committest.PodWatch(inProd))
			return nil
		},
		"the labels are known": func(r *rig, s *Feed) error {
			r.running = []*Feed{s}
			r.commit(&namespaceSeen{obj: r.namespace("9", "prod")})
			return nil
		},
		"no labels": func(r *rig, _ *Feed) error { return Barrier{r.group}.ForgetNamespaces(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.know()
			s.recordedForm = s.Form
			r.commit(addedTo(s, r.Object("a", "u1", "2")))
			r.begin(s, false, committest.PodWatch(inProd))
			carried := func() (n int) {
				for _, of := range r.c.carried {
					n += len(of)
				}
				if err := r.c.loadCarried(); err != nil { // as after a restart
					t.Fatal(err)
				}
				for _, of := range r.c.carried {
					n += len(of)
				}
				return n
			}
			if n := carried(); n != 2 {
				t.Errorf("%d are carried, want 1 and 1", n)
			}
			if err := expire(r, s); err != nil {
				t.Fatal(err)
			}
			if n := carried(); n != 0 {
				t.Errorf("%d are still carried", n)
			}
		})
	}
}

// TestRelabelWhileNotServed gives a namespace other labels while a resource is not
// served: its recorded objects leave, also a watch that was still being given them.
func TestRelabelWhileNotServed(t *testing.T) {
	for name, note := range map[string]func(r *rig, s *Feed) error{
		"given": func(r *rig, s *Feed) error { return r.note(givenBy([]*Feed{s})) },
		"being given": func(r *rig, s *Feed) error {
			return r.c.durable([]*snapshot{newSnapshot(s, s.Watches()[0])}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch(inProd))
			s := r.know(&namespaceSeen{obj: r.namespace("1", "prod")})
			r.commit(addedTo(s, r.Object("a", "u1", "2")))
			if err := note(r, s); err != nil {
				t.Fatal(err)
			}
			r.Expect("added a u1 2")
			r.running = nil
			resting, err := r.c.restingFeeds(r.watches, func(*plan.Watch, string) bool { return true })
			if err != nil {
				t.Fatal(err)
			}
			r.c.resting = resting
			r.commit(&namespaceSeen{obj: r.namespace("3", "dev")})
			r.Expect("updated a u1 2")
			if got := r.selections(1); !slices.Equal(got, []event.Selection{event.Left}) {
				t.Errorf("selections are %v", got)
			}
		})
	}
}

// TestRelabelOverADamagedState passes over a recorded state that cannot be read.
func TestRelabelOverADamagedState(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(inProd))
	s := r.know(&namespaceSeen{obj: r.namespace("1", "prod")})
	r.commit(addedTo(s, r.Object("a", "u1", "2")), addedTo(s, r.Object("b", "u2", "2")))
	r.Expect("added a u1 2", "added b u2 2")
	r.damaged(s, "a")
	r.commit(&namespaceSeen{obj: r.namespace("3", "dev")})
	r.Expect("updated b u2 2")
}

// TestRelabelOfADeletion gives a namespace other labels, and deletes an object in it: the
// object leaves as it was recorded, and not as the deletion shows it.
func TestRelabelOfADeletion(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
	s := r.know(&namespaceSeen{obj: r.namespace("1", "prod")})
	r.commit(addedTo(s, r.Object("a", "u1", "2")))
	r.Expect("added a u1 2")
	r.commit(&namespaceSeen{obj: r.namespace("3", "dev")}, deletedFrom(s, r.Object("a", "u1", "4")))
	r.Expect("updated a u1 2")
}

// TestRelabelAmidASnapshot takes objects through changes of their namespace's labels while
// a watch is given what it has come to cover: each is given once, if the watch is there.
func TestRelabelAmidASnapshot(t *testing.T) {
	here, elsewhere := watchOf("w", "ns"), watchOf("w", "elsewhere")
	for name, tc := range map[string]struct {
		before  func(r *rig, s *Feed)
		relabel []string
		adds    bool
		want    []string
	}{
		"before it comes to them":   {relabel: []string{"prod"}, want: []string{"sync a u1 2", "sync b u2 2"}},
		"twice":                     {relabel: []string{"prod", "dev"}, want: []string{"sync a u1 2", "sync b u2 2"}},
		"when it has come past one": {before: func(_ *rig, s *Feed) { s.gaining[0].cursor = ledger.Key("ns", "a") }, relabel: []string{"prod"}, want: []string{"sync b u2 2"}},
		"when an object is added":   {relabel: []string{"prod"}, adds: true, want: []string{"added c u3 9", "sync a u1 2", "sync b u2 2"}},
		"when the watch is gone":    {before: func(r *rig, s *Feed) { r.begin(s, false, watchOf("other", "elsewhere")) }, relabel: []string{"prod"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), elsewhere)
			s := r.know(&namespaceSeen{obj: r.namespace("1", "dev")})
			s.recordedForm = s.Form
			r.commit(addedTo(s, r.Object("a", "u1", "2")), addedTo(s, r.Object("b", "u2", "2")))
			r.begin(s, false, elsewhere)
			r.begin(s, false, here)
			if tc.before != nil {
				tc.before(r, s)
			}
			r.Expect()
			snapshots := r.group.jobs
			r.group.jobs = nil
			for i, env := range tc.relabel {
				r.add(&namespaceSeen{obj: r.namespace(fmt.Sprint(3+i), env)})
				if tc.adds {
					r.add(addedTo(s, r.Object("c", "u3", "9")))
				}
				r.commit()
			}
			r.group.jobs = snapshots
			r.commit()
			r.Expect(tc.want...)
		})
	}
}

// TestUnrecordedLabelsBeginWithTheFirst holds changes of labels back: what is not recorded began with the first of them.
func TestUnrecordedLabelsBeginWithTheFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch(committest.ProdPods))
	s := r.know(&namespaceSeen{obj: r.namespace("1", "dev")})
	r.commit(addedTo(s, r.Object("a", "u1", "2")))
	r.c.relabelsHeld.Store(true)
	r.commit(&namespaceSeen{obj: r.namespace("3", "prod")})
	first := r.at
	r.at = r.at.Add(time.Minute)
	r.commit(&namespaceSeen{obj: r.namespace("4", "test")})
	if since, _ := r.c.UnrecordedLabels(); !since.Equal(first) {
		t.Errorf("unrecorded since %v, want %v", since, first)
	}
	r.c.relabelsHeld.Store(false)
	r.group.resume("ns")
	r.commit()
	r.commit()
	if since, _ := r.c.UnrecordedLabels(); !since.IsZero() {
		t.Errorf("unrecorded since %v, want nothing", since)
	}
}

// TestUnrecordedBeginsWithTheFirst observes several notifications before one is committed.
func TestUnrecordedBeginsWithTheFirst(t *testing.T) {
	var u unrecorded
	at := now
	expect := func(want time.Time) {
		t.Helper()
		if since, _ := u.state(); !since.Equal(want) {
			t.Errorf("unrecorded since %v, want %v", since, want)
		}
	}
	for range 3 {
		u.observe(func() time.Time { return at })
		at = at.Add(time.Minute)
	}
	expect(now)
	u.committed(1, now, 0, time.Time{})
	expect(now) // the others were observed then, or later
	u.committed(2, at, 0, time.Time{})
	expect(time.Time{})
}
