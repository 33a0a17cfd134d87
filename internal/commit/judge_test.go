package commit

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// recorded makes o the ledger's state of its object, without an event.
func (r *rig) recorded(s *Feed, o *compact.Object) {
	r.Helper()
	b := r.Store.NewBatch()
	b.PutState(s.Partition, ledger.Key(o.GetNamespace(), o.GetName()), o.AppendBinary(nil))
	if err := r.Store.Commit(b); err != nil {
		r.Fatal(err)
	}
}

// damaged makes the ledger's state of an object unreadable.
func (r *rig) damaged(s *Feed, name string) {
	r.Helper()
	b := r.Store.NewBatch()
	b.PutState(s.Partition, ledger.Key("ns", name), []byte("damaged"))
	if err := r.Store.Commit(b); err != nil {
		r.Fatal(err)
	}
}

// told is what a test compares of an event.
type told struct {
	Type              event.Type
	UID, Version      string
	Old               bool // it has the state before
	FinalStateUnknown bool
	Repair            bool
	Cause             string // of a gap
}

func (r *rig) told() []told {
	r.Helper()
	var list []told
	for _, e := range r.Events() {
		x := told{Type: e.Type, UID: e.UID, Version: e.ResourceVersion, Old: e.OldObject != nil, FinalStateUnknown: e.FinalStateUnknown, Repair: e.Repair}
		if e.Gap != nil {
			x.Cause = e.Gap.Cause
		}
		list = append(list, x)
	}
	return list
}

// version is the ledger's version of object a; "": it has none.
func (r *rig) version(s *Feed) string {
	r.Helper()
	o, err := r.c.ledger.State(s.Partition, ledger.Key("ns", "a"))
	if err != nil {
		r.Fatal(err)
	}
	if o == nil {
		return ""
	}
	return o.GetResourceVersion()
}

// TestObjectSeen takes an object that exists through every branch of objectSeen.process.
func TestObjectSeen(t *testing.T) {
	for _, tc := range []struct {
		name     string
		recorded string // the version in the ledger; "": none
		uid      string // recorded; "": the object's
		with     func(r *rig, s *Feed)
		initial  bool
		seen     string // the version
		want     []told
		kept     string // the ledger's version in the end
	}{
		{name: "first list", initial: true, seen: "5", want: []told{{Type: event.Sync, UID: "u", Version: "5"}}, kept: "5"},
		{
			name: "later list", with: func(_ *rig, s *Feed) { s.synced = true }, initial: true, seen: "5",
			want: []told{{Type: event.Added, UID: "u", Version: "5"}}, kept: "5",
		},
		{name: "watch", seen: "5", want: []told{{Type: event.Added, UID: "u", Version: "5"}}, kept: "5"},
		{name: "same version", recorded: "5", seen: "5", kept: "5"},
		{name: "update", recorded: "4", seen: "5", want: []told{{Type: event.Updated, UID: "u", Version: "5", Old: true}}, kept: "5"},
		{name: "older than recorded", recorded: "6", seen: "5", kept: "6"},
		{
			name: "older than recorded, after a rollback", recorded: "6", seen: "5",
			with: func(_ *rig, s *Feed) { s.list.mark = &ledger.Listing{Rewound: true} },
			want: []told{{Type: event.Updated, UID: "u", Version: "5", Old: true}}, kept: "5",
		},
		{name: "opaque versions", recorded: "x6", seen: "x5", want: []told{{Type: event.Updated, UID: "u", Version: "x5", Old: true}}, kept: "x5"},
		{
			name: "another life", recorded: "4", uid: "former", seen: "5",
			want: []told{{Type: event.Deleted, UID: "former", Version: "4", FinalStateUnknown: true}, {Type: event.Added, UID: "u", Version: "5"}}, kept: "5",
		},
		{
			name: "an earlier life than recorded, of history that is read again", recorded: "6", uid: "later", seen: "5",
			with: func(_ *rig, s *Feed) { s.ahead = map[string]string{"other": "6"} }, kept: "6",
		},
		{
			name: "recorded by a feed of its namespace, before a rollback", recorded: "8", seen: "5",
			with: func(r *rig, s *Feed) {
				s.ahead = map[string]string{"ns": "9"}
				r.commit(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "9", To: "6"}})
				s.list.mark = &ledger.Listing{Rewound: true}
			},
			want: []told{{Type: event.Gap, Cause: "rollback"}, {Type: event.Updated, UID: "u", Version: "5", Old: true}}, kept: "5",
		},
		{
			name: "recorded by a feed of its namespace", seen: "5",
			with: func(_ *rig, s *Feed) { s.ahead = map[string]string{"ns": "5"} },
		},
		{
			name: "past what a feed of its namespace recorded", seen: "6",
			with: func(_ *rig, s *Feed) { s.ahead = map[string]string{"ns": "5"} },
			want: []told{{Type: event.Added, UID: "u", Version: "6"}}, kept: "6",
		},
		{
			name: "damaged state", seen: "5", with: func(r *rig, s *Feed) { r.damaged(s, "a") },
			want: []told{{Type: event.Gap, Cause: "unreadable"}, {Type: event.Sync, UID: "u", Version: "5"}}, kept: "5",
		},
		{
			name: "found by the consistency check", recorded: "4", seen: "5",
			with: func(_ *rig, s *Feed) { s.repair = 9 },
			want: []told{{Type: event.Updated, UID: "u", Version: "5", Old: true, Repair: true}}, kept: "5",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			s.recordedForm = s.Form
			if tc.recorded != "" {
				uid := tc.uid
				if uid == "" {
					uid = "u"
				}
				r.recorded(s, r.Object("a", uid, tc.recorded))
			}
			if tc.with != nil {
				tc.with(r, s)
			}
			c := addedTo(s, r.Object("a", "u", tc.seen))
			c.initial = tc.initial
			r.commit(c)
			if diff := cmp.Diff(tc.want, r.told()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if got := r.version(s); got != tc.kept {
				t.Errorf("the ledger has version %q, want %q", got, tc.kept)
			}
		})
	}
}

// TestSameVersionInAnotherForm records an object again, without an event, while recorded
// states may be in another form than the feed's.
func TestSameVersionInAnotherForm(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	r.recorded(s, r.Object("a", "u", "5", "before"))
	s.recordedForm = "v0"
	r.commit(listedBy(s, r.Object("a", "u", "5", "after")))
	r.Expect()
	o, err := r.c.ledger.State(s.Partition, ledger.Key("ns", "a"))
	if err != nil || o.GetLabels()["tier"] != "after" {
		t.Errorf("the ledger has %v, %v", o.GetLabels(), err)
	}
}

// TestObjectGone takes an object that is gone through every branch of group.deleted.
func TestObjectGone(t *testing.T) {
	for _, tc := range []struct {
		name    string
		with    func(r *rig, s *Feed)
		bare    bool // what is gone has no uid
		unknown bool
		want    []told
		kept    string // the ledger's version in the end
	}{
		{name: "never recorded"},
		{
			name: "a later life is recorded", with: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "later", "9")) }, kept: "9",
		},
		{
			name: "an earlier life is recorded", with: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "former", "4")) },
			want: []told{{Type: event.Deleted, UID: "former", Version: "4", FinalStateUnknown: true}},
		},
		{
			name: "another life is recorded, comparison", with: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "other", "4")) },
			unknown: true, kept: "4",
		},
		{
			name: "read again, of an object without uid", with: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "", "9")) },
			bare: true, kept: "9",
		},
		{
			name: "watch", with: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "u", "4")) },
			want: []told{{Type: event.Deleted, UID: "u", Version: "5"}},
		},
		{
			name: "comparison", with: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "u", "4")) }, unknown: true,
			want: []told{{Type: event.Deleted, UID: "u", Version: "5", FinalStateUnknown: true}},
		},
		{
			name: "damaged state", with: func(r *rig, s *Feed) { r.damaged(s, "a") },
			want: []told{{Type: event.Gap, Cause: "unreadable"}, {Type: event.Deleted, UID: "u", Version: "5"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			s.recordedForm = s.Form
			if tc.with != nil {
				tc.with(r, s)
			}
			uid := "u"
			if tc.bare {
				uid = ""
			}
			c := deletedFrom(s, r.Object("a", uid, "5"))
			c.unknown = tc.unknown
			r.commit(c)
			if diff := cmp.Diff(tc.want, r.told()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if got := r.version(s); got != tc.kept {
				t.Errorf("the ledger has version %q, want %q", got, tc.kept)
			}
		})
	}
}

// TestDamageIsLoggedOnce reports each damaged state by a gap of its own.
func TestDamageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	for _, name := range []string{"a", "b"} {
		r.damaged(s, name)
		r.commit(addedTo(s, r.Object(name, "u-"+name, "5")))
	}
	r.Expect("gap a  ", "sync a u-a 5", "gap b  ", "sync b u-b 5")
	if !s.damaged {
		t.Error("the feed does not know that its ledger is damaged")
	}
}

// TestDamageWithoutASnapshot gives a watch without a snapshot, too, the state of an object of which what was recorded is
// damaged: it may have changed since.
func TestDamageWithoutASnapshot(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(r *rig, s *Feed)
		want   []string
	}{
		"nothing":      {func(*rig, *Feed) {}, nil},
		"a state":      {func(r *rig, s *Feed) { r.damaged(s, "a") }, []string{"gap a  ", "sync a u 5"}},
		"a checkpoint": {func(_ *rig, s *Feed) { s.forgot = true }, []string{"sync a u 5"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch(func(w *plan.Watch) { w.Snapshot = false }))
			s := r.feed(pods)
			tc.damage(r, s)
			r.commit(listedBy(s, r.Object("a", "u", "5")))
			r.Expect(tc.want...)
		})
	}
}

// TestRepairRestoresStates has a consistency check's list show an object as the informer has it, of which damage has taken
// the recorded state: it is recorded again, and nothing is reported.
func TestRepairRestoresStates(t *testing.T) {
	for name, damage := range map[string]func(r *rig, s *Feed){
		"lost": func(r *rig, s *Feed) {
			b := r.Store.NewBatch()
			b.DeleteState(s.Partition, ledger.Key("ns", "a"))
			if err := r.Store.Commit(b); err != nil {
				r.Fatal(err)
			}
		},
		"earlier": func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "u", "1")) },
		"damaged": func(r *rig, s *Feed) { r.damaged(s, "a") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: "5", End: 2}})
			s.recordedForm = s.Form
			a := r.Object("a", "u", "3").WithPosition(1)
			r.commit(addedTo(s, a))
			r.Expect("added a u 3")
			damage(r, s)
			r.commit(
				&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: CauseConsistencyCheck, To: "5", FromTime: now, ToTime: now, Position: 2}},
				updatedIn(s, r.Object("a", "u", "3").WithPosition(2), a),
			)
			r.Expect()
			if o, err := r.c.ledger.State(s.Partition, ledger.Key("ns", "a")); err != nil || o == nil || o.GetResourceVersion() != "3" || o.Sequence() <= unlogged {
				t.Errorf("the ledger has %v (%v)", o, err)
			}
		})
	}
}

// TestDamageMayHideThatAnObjectLeft: what was recorded of an object that the watch does not select is damaged. That it has
// left the watch, if it has, is in a gap.
func TestDamageMayHideThatAnObjectLeft(t *testing.T) {
	for name, tc := range map[string]struct {
		namespaces selector.Namespaces
		seen       func(r *rig, s *Feed) change
		want       []string
	}{
		"seen":                 {selector.Namespaces{}, func(r *rig, s *Feed) change { return listedBy(s, r.Object("a", "u", "5", "db")) }, []string{"gap a  "}},
		"gone":                 {selector.Namespaces{}, func(r *rig, s *Feed) change { return deletedFrom(s, r.Object("a", "u", "5", "db")) }, []string{"gap a  "}},
		"of another namespace": {selector.Namespaces{Exclude: []string{"n*"}}, func(r *rig, s *Feed) change { return listedBy(s, r.Object("a", "u", "5", "web")) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch(func(w *plan.Watch) {
				w.Selection = plan.Selection{Namespaces: tc.namespaces, Labels: "tier=web"}
				var err error
				if w.Filter, err = w.Selection.Filter(); err != nil {
					t.Fatal(err)
				}
			}))
			s := r.feed(pods)
			r.damaged(s, "a")
			r.commit(tc.seen(r, s))
			r.Expect(tc.want...)
		})
	}
}
