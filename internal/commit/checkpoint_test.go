package commit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// save makes a checkpoint of the feed's durable.
func (r *rig) save(s *Feed, cp ledger.Checkpoint) {
	r.Helper()
	r.saveAll(map[string]ledger.Checkpoint{s.ID: cp})
}

// saveAll makes checkpoints durable, by the feed's id.
func (r *rig) saveAll(checkpoints map[string]ledger.Checkpoint) {
	r.Helper()
	for id, cp := range checkpoints {
		if err := ledger.PutMeta(r.Store, ledger.CheckpointMeta(id), ledger.Encode(cp)); err != nil {
			r.Fatal(err)
		}
	}
}

// succeeds prepares a feed that takes the place of those whose checkpoints are there.
func (r *rig) succeeds(s *Feed) {
	r.Helper()
	if err := r.c.HandOverCheckpoints([]*Feed{s}); err != nil {
		r.Fatal(err)
	}
	if err := r.c.Prepare(s); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) saved(s *Feed) ledger.Checkpoint {
	r.Helper()
	cp, _, err := r.c.ledger.Checkpoint(s.ID)
	if err != nil {
		r.Fatal(err)
	}
	return cp
}

// TestPrepare decides by the checkpoint and the ledger what an informer begins with.
func TestPrepare(t *testing.T) {
	form := newRig(t, disk(), committest.PodWatch()).feed(pods).Form
	for _, tc := range []struct {
		name     string
		saved    *ledger.Checkpoint
		damaged  bool
		recorded bool // the ledger has an object
		start    start
		sweeps   bool // deletions are looked for behind the list
		check    func(t *testing.T, s *Feed)
	}{
		{name: "nothing is recorded", start: cold},
		{name: "no checkpoint", recorded: true, start: cold, sweeps: true},
		{name: "damaged checkpoint", damaged: true, recorded: true, start: cold, sweeps: true, check: func(t *testing.T, s *Feed) {
			if !s.forgot {
				t.Error("the loss is not reported")
			}
		}},
		{name: "resumable", saved: &ledger.Checkpoint{ResourceVersion: "5", Synced: true, Form: form}, recorded: true, start: warm},
		{name: "another form", saved: &ledger.Checkpoint{ResourceVersion: "5", Synced: true, Form: "v0"}, recorded: true, start: relist, sweeps: true},
		{name: "sweep under way", saved: &ledger.Checkpoint{ResourceVersion: "5", Synced: true, Sweeping: true, Form: form}, recorded: true, start: relist, sweeps: true},
		{name: "first list under way", saved: &ledger.Checkpoint{Listing: &ledger.Listing{ResourceVersion: "5"}}, recorded: true, start: relist, sweeps: true},
		{
			name:  "list after a rollback under way",
			saved: &ledger.Checkpoint{ResourceVersion: "9", Synced: true, Form: form, Epoch: 2, Listing: &ledger.Listing{ResourceVersion: "5", Rewound: true}}, recorded: true, start: relist, sweeps: true,
			check: func(t *testing.T, s *Feed) {
				if !s.rewind || s.epoch != 2 || s.floor != "5" {
					t.Errorf("rewind %t, epoch %d, floor %q", s.rewind, s.epoch, s.floor)
				}
			},
		},
		{
			name:  "open gap",
			saved: &ledger.Checkpoint{ResourceVersion: "5", Synced: true, Form: form, Listing: &ledger.Listing{ResourceVersion: "9"}, Gap: &dynamicfactory.Gap{From: "5", To: "9", Position: 77}}, recorded: true, start: relist, sweeps: true,
			check: func(t *testing.T, s *Feed) {
				if s.open == nil || s.open.From != "5" || s.open.Position != 1 {
					t.Errorf("the gap is %+v", s.open)
				}
			},
		},
		{
			name: "taken over from feeds of namespaces", saved: &ledger.Checkpoint{ResourceVersion: "5", Sweeping: true, Form: form, Ahead: map[string]string{"ns": "9"}}, recorded: true, start: relist, sweeps: true,
			check: func(t *testing.T, s *Feed) {
				if diff := cmp.Diff(map[string]string{"ns": "9", "": "5"}, s.ahead); diff != "" {
					t.Errorf("ahead (-want +got):\n%s", diff)
				}
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			if tc.recorded {
				r.recorded(s, r.Object("a", "u", "4"))
			}
			if tc.saved != nil {
				r.save(s, *tc.saved)
			}
			if tc.damaged {
				if err := ledger.PutMeta(r.Store, ledger.CheckpointMeta(s.ID), []byte("{")); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.c.Prepare(s); err != nil {
				t.Fatal(err)
			}
			if s.start != tc.start || (s.listed != nil) != tc.sweeps {
				t.Errorf("start %d, sweeps %t; want %d, %t", s.start, s.listed != nil, tc.start, tc.sweeps)
			}
			if tc.check != nil {
				tc.check(t, s)
			}
		})
	}
}

// TestBegin gives an informer what its feed was prepared for.
func TestBegin(t *testing.T) {
	for _, tc := range []struct {
		name    string
		start   start
		damaged bool
		state   string // the recorded version
		relist  bool
		version string
		objects int
		floor   string
	}{
		{"cold", cold, false, "4", true, "", 0, ""},
		{"relist", relist, false, "4", true, "5", 0, ""},
		{"warm", warm, false, "4", false, "5", 1, "5"},
		{"warm, with a state that is newer", warm, false, "7", false, "5", 1, "7"},
		{"warm, from a damaged ledger", warm, true, "4", true, "5", 0, "5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			r.recorded(s, r.Object("a", "u", tc.state))
			if tc.damaged {
				r.damaged(s, "b")
			}
			s.start, s.resume.ResourceVersion = tc.start, "5"
			got, err := r.c.Begin(s)
			if err != nil {
				t.Fatal(err)
			}
			if got.Relist != tc.relist || got.ResourceVersion != tc.version || len(got.Objects) != tc.objects || !s.begun.Load() {
				t.Errorf("begins with %+v", got)
			}
			if s.floor != tc.floor {
				t.Errorf("all up to %q may be recorded, want %q", s.floor, tc.floor)
			}
			if tc.damaged && (s.start != relist || s.listed == nil) {
				t.Error("nothing is swept behind the list")
			}
			if got.Known != nil {
				if o := got.Known("ns", "a"); o == nil || o.GetResourceVersion() != "4" {
					t.Errorf("the recorded state is %v", o)
				}
				if tc.damaged && got.Known("ns", "b") != nil {
					t.Error("a damaged state is given")
				}
			}
		})
	}
}

// TestResumes says which feeds continue an earlier life, and which of them record their
// objects again.
func TestResumes(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	form := r.feed(pods).Form
	for _, tc := range []struct {
		start     start
		form      string // of the earlier life
		resumes   bool
		rerecords string
	}{
		{cold, "", false, ""},
		{warm, form, true, ""},
		{relist, form, true, ""},
		{relist, "", true, ""}, // it had recorded some objects in another form
		{relist, "v0", true, "5"},
	} {
		s := r.feed(pods)
		s.start, s.resume = tc.start, ledger.Checkpoint{ResourceVersion: "5", Form: tc.form}
		if resumes, rerecords := s.Resumes(); resumes != tc.resumes || rerecords != tc.rerecords {
			t.Errorf("start %d from the form %q: %t, %q", tc.start, tc.form, resumes, rerecords)
		}
	}
}

// TestPutCheckpoints moves a feed's checkpoint as its informer says, with each commit.
func TestPutCheckpoints(t *testing.T) {
	form := newRig(t, disk(), committest.PodWatch()).feed(pods).Form
	for _, tc := range []struct {
		name     string
		informer informer
		with     func(r *rig, s *Feed)
		position uint64 // of the object that is committed
		want     ledger.Checkpoint
		acked    uint64
	}{
		{
			name: "a version is complete", informer: informer{checkpoints: map[uint64]string{2: "9", 3: "10"}}, position: 2,
			with: func(_ *rig, s *Feed) { s.synced, s.recordedForm = true, "v1" },
			want: ledger.Checkpoint{ResourceVersion: "9", Synced: true, Form: "v1"}, acked: 2,
		},
		{
			name: "a quiet version of before", position: 2,
			informer: informer{checkpoints: map[uint64]string{2: "9"}, quiet: "20", known: now.Add(-time.Hour)},
			with:     func(_ *rig, s *Feed) { s.synced = true },
			want:     ledger.Checkpoint{ResourceVersion: "9", Quiet: "20", Synced: true, Time: now.Add(-time.Hour)}, acked: 2,
		},
		{
			name: "no version is complete yet", position: 2,
			with: func(_ *rig, s *Feed) { s.saved.ResourceVersion = "3" },
			want: ledger.Checkpoint{ResourceVersion: "3", Recorded: "9"}, acked: 2,
		},
		{
			name: "a version is committed in part", informer: informer{checkpoints: map[uint64]string{2: "8"}}, position: 2,
			want: ledger.Checkpoint{ResourceVersion: "8", Recorded: "9"}, acked: 2,
		},
		{
			name: "in the middle of a list", informer: informer{list: &dynamicfactory.List{ResourceVersion: "20", End: 5}}, position: 0,
			want: ledger.Checkpoint{Listing: &ledger.Listing{ResourceVersion: "20"}}, acked: 0,
		},
		{
			name: "in the middle of the list after a rollback", informer: informer{list: &dynamicfactory.List{ResourceVersion: "20", End: 5}}, position: 0,
			with: func(_ *rig, s *Feed) { s.rewind = true },
			want: ledger.Checkpoint{Listing: &ledger.Listing{ResourceVersion: "20", Rewound: true}}, acked: 0,
		},
		{
			name: "in the middle of a list after a gap", informer: informer{list: &dynamicfactory.List{ResourceVersion: "20", End: 5}}, position: 0,
			with: func(r *rig, s *Feed) {
				r.recorded(s, r.Object("a", "u", "9"))
				s.open = &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "5", To: "20", Position: 5}
			},
			want: ledger.Checkpoint{
				Listing: &ledger.Listing{ResourceVersion: "20"},
				Gap:     &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "5", To: "20", Position: 5},
			}, acked: 0,
		},
		{
			name: "at the end of a list", informer: informer{checkpoints: map[uint64]string{5: "20"}}, position: 5,
			with: func(_ *rig, s *Feed) { s.list = list{mark: &ledger.Listing{ResourceVersion: "20"}, end: 5} },
			want: ledger.Checkpoint{ResourceVersion: "20"}, acked: 5,
		},
		{
			name: "swept", informer: informer{checkpoints: map[uint64]string{2: "9"}}, position: 2,
			with: func(_ *rig, s *Feed) { s.listed = map[uint64]struct{}{} },
			want: ledger.Checkpoint{ResourceVersion: "9", Sweeping: true}, acked: 2,
		},
		{
			name: "caught up with what was taken over", informer: informer{checkpoints: map[uint64]string{2: "9"}}, position: 2,
			with: func(_ *rig, s *Feed) { s.synced, s.ahead = true, map[string]string{"other": "8"} },
			want: ledger.Checkpoint{ResourceVersion: "9", Synced: true, Form: form}, acked: 2,
		},
		{
			name: "behind what was taken over", informer: informer{checkpoints: map[uint64]string{2: "9"}}, position: 2,
			with: func(_ *rig, s *Feed) { s.synced, s.ahead = true, map[string]string{"other": "10"} },
			want: ledger.Checkpoint{ResourceVersion: "9", Synced: true, Ahead: map[string]string{"other": "10"}}, acked: 2,
		},
		{
			name: "behind a part of what was taken over", informer: informer{checkpoints: map[uint64]string{2: "9"}}, position: 2,
			with: func(_ *rig, s *Feed) {
				s.synced, s.ahead, s.resume = true, map[string]string{"other": "8"}, ledger.Checkpoint{Recorded: "10"}
			},
			want: ledger.Checkpoint{ResourceVersion: "9", Synced: true, Ahead: map[string]string{"other": "8"}}, acked: 2,
		},
		{
			name: "a part of history cannot be read", informer: informer{checkpoints: map[uint64]string{2: "9"}}, position: 2,
			with: func(_ *rig, s *Feed) { s.forgot = true },
			want: ledger.Checkpoint{ResourceVersion: "9", Forgot: true}, acked: 2,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			s.Subscribed(&tc.informer)
			if tc.with != nil {
				tc.with(r, s)
			}
			r.commit(addedTo(s, r.Object("a", "u", "9").WithPosition(tc.position)))
			if tc.want.Kept = []ledger.Kept{{}}; tc.want.Synced {
				tc.want.HistorySince, tc.want.SettledSince = now, now
			}
			if tc.want.Time.IsZero() {
				tc.want.Time = now
			}
			if diff := cmp.Diff(tc.want, r.saved(s)); diff != "" {
				t.Errorf("checkpoint (-want +got):\n%s", diff)
			}
			if tc.informer.acked != tc.acked {
				t.Errorf("acknowledged up to %d, want %d", tc.informer.acked, tc.acked)
			}
			if got := s.Complete(); got != tc.want.ResourceVersion && !tc.want.Sweeping || got != "" && tc.want.Sweeping {
				t.Errorf("complete is %q", got) // amid a sweep, what the list shows to be gone is yet to be recorded
			}
		})
	}
}

// TestQuietVersionOfAStart stops a feed while it takes in what it began with: the later
// version that showed no change is the next start's, too.
func TestQuietVersionOfAStart(t *testing.T) {
	for _, tc := range []struct {
		name   string
		form   string // of what is recorded
		relist bool
		list   *dynamicfactory.List // the one of the first object
		quiet  string
	}{
		{"from the ledger", "", false, nil, "200"},
		{"before a list", "v0", true, nil, "200"},
		{"amid a list", "v0", true, &dynamicfactory.List{ResourceVersion: "100", End: 1}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			r.recorded(s, r.Object("a", "u1", "90"))
			r.recorded(s, r.Object("b", "u2", "100"))
			form := tc.form
			if form == "" {
				form = s.Form
			}
			then := now.Add(-time.Hour)
			r.save(s, ledger.Checkpoint{ResourceVersion: "100", Quiet: "200", Synced: true, Form: form, Time: then})
			if err := r.c.Prepare(s); err != nil {
				t.Fatal(err)
			}
			snap, err := r.c.Begin(s)
			if err != nil || snap.Relist != tc.relist || snap.Quiet != "200" {
				t.Fatalf("the informer begins with %+v, %v", snap, err)
			}
			i := &informer{list: tc.list, checkpoints: map[uint64]string{1: "100"}}
			s.Subscribed(i)
			switch {
			case tc.list != nil:
				r.commit(listedBy(s, r.Object("a", "u1", "90")))
			case tc.relist:
				r.group.touchAll([]*Feed{s})
				r.commit()
			default:
				r.commit(listedBy(s, snap.Objects[0]))
			}
			if got := r.saved(s).Quiet; got != tc.quiet {
				t.Errorf("after a part: the quiet version is %q, want %q", got, tc.quiet)
			}
			if got := r.saved(s).Time; !got.Equal(then) {
				t.Errorf("after a part: the time is %v, want %v", got, then)
			}
			if tc.relist {
				return
			}
			i.quiet = "200"
			r.commit(listedBy(s, snap.Objects[1].WithPosition(1)), &feedSynced{feed: s})
			if got := r.saved(s).Quiet; got != "200" {
				t.Errorf("after all: the quiet version is %q", got)
			}
			i.quiet = ""
			r.commit(addedTo(s, r.Object("c", "u3", "150").WithPosition(2)))
			if got := r.saved(s).Quiet; got != "" {
				t.Errorf("after an event: the quiet version is %q", got)
			}
		})
	}
}

// TestVersionsBeforeARollback records what a server that was set back lists, from a start
// that had recorded later versions: those are not the server's for the next start.
func TestVersionsBeforeARollback(t *testing.T) {
	for _, stopped := range []bool{false, true} { // amid the list
		t.Run(fmt.Sprintf("stopped=%t", stopped), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			r.recorded(s, r.Object("a", "u1", "90"))
			r.recorded(s, r.Object("b", "u2", "80"))
			r.save(s, ledger.Checkpoint{ResourceVersion: "90", Recorded: "100", Synced: true, Form: s.Form})
			begin := func(want string) {
				t.Helper()
				s = r.feed(pods)
				if err := r.c.Prepare(s); err != nil {
					t.Fatal(err)
				}
				snap, err := r.c.Begin(s)
				if err != nil || snap.Recorded != want {
					t.Fatalf("the informer begins with %+v, %v, want %q", snap, err, want)
				}
			}
			begin("100")
			s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: "60", End: 3}, checkpoints: map[uint64]string{3: "60"}})
			s.position = 1 // what it began with
			rollback := &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "90", To: "60", FromTime: now, ToTime: now, Position: 3}
			r.commit(&gapFound{feed: s, gap: rollback}, addedTo(s, r.Object("a", "u1", "50")))
			if cp := r.saved(s); cp.Listing == nil || !cp.Listing.Rewound {
				t.Fatalf("amid the list: the checkpoint is %+v", cp)
			}
			last := r.Object("b", "u2", "40").WithPosition(3)
			if stopped {
				begin("")
				s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: "60", End: 3}, checkpoints: map[uint64]string{3: "60"}})
				r.commit(listedBy(s, r.Object("a", "u1", "50")), listedBy(s, last), &feedSynced{feed: s})
			} else {
				r.commit(addedTo(s, last))
			}
			if cp := r.saved(s); cp.ResourceVersion != "60" || cp.Recorded != "" || !cp.Resumable() {
				t.Errorf("behind the list: the checkpoint is %+v", cp)
			}
			begin("60")
		})
	}
}

// TestSetBack sets the cluster back: feeds that do not watch and have come further begin with the list of that, behind a gap from where
// they had come to, or from where their open one begins. Others stay as they are.
func TestSetBack(t *testing.T) {
	t.Parallel()
	const to = "60"
	r := newRig(t, disk(), committest.PodWatch())
	found, watching, away := r.feedIn(pods, "found"), r.feedIn(pods, "watching"), r.feedIn(pods, "away")
	found.Subscribed(&informer{})
	watching.Subscribed(&informer{})
	away.Subscribed(&informer{away: true})
	r.running = []*Feed{found, watching, away}
	earlier, later := now.Add(-time.Hour), now.Add(-time.Minute)
	before := map[string]ledger.Checkpoint{
		watching.ID:   {ResourceVersion: "90", Synced: true, Time: later},
		away.ID:       {ResourceVersion: "90", Recorded: "91", Synced: true, Time: later, SettledSince: earlier, Gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "70", FromTime: earlier}},
		"pods#ended":  {ResourceVersion: "80", Synced: true, Time: later, Epoch: 3},
		"pods#before": {ResourceVersion: to, Synced: true, Time: later},
		"pods#too":    {ResourceVersion: "90", Synced: true, Time: later, Epoch: 1, Listing: &ledger.Listing{ResourceVersion: to, Rewound: true}}, // found it, too
		"pods#again":  {ResourceVersion: "90", Synced: true, Time: later, Epoch: 1, Listing: &ledger.Listing{ResourceVersion: "70", Rewound: true}},
	}
	r.saveAll(before)
	rollback := &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "90", To: to, FromTime: later, ToTime: now}
	r.commit(&gapFound{feed: found, gap: rollback})
	set := func(from string, since time.Time, epoch int) ledger.Checkpoint {
		return ledger.Checkpoint{
			Synced: true, Time: later, Epoch: epoch, Listing: &ledger.Listing{ResourceVersion: to, Rewound: true, Blind: true},
			Gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: from, To: to, FromTime: since, ToTime: now},
		}
	}
	doubtful := before[watching.ID]
	doubtful.Doubt = rollback
	want := map[string]ledger.Checkpoint{
		watching.ID: doubtful, "pods#before": before["pods#before"],
		away.ID: set("70", earlier, 1), "pods#ended": set("80", later, 4), "pods#too": before["pods#too"], "pods#again": set("90", later, 2),
	}
	got := map[string]ledger.Checkpoint{}
	for id := range want {
		cp, _, err := r.c.ledger.Checkpoint(id)
		if err != nil {
			t.Fatal(err)
		}
		got[id] = cp
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("checkpoints (-want +got):\n%s", diff)
	}
	if _, ok, err := r.Store.Meta(ledger.SetBackMeta); !ok || err != nil {
		t.Errorf("that the feeds are to be checked is not noted: %v", err)
	}

	restart := func() ledger.Checkpoint {
		t.Helper()
		if err := r.c.HandOverCheckpoints(nil); err != nil {
			t.Fatal(err)
		}
		return r.saved(watching)
	}
	if diff := cmp.Diff(doubtful, restart()); diff != "" {
		t.Errorf("while it watches (-want +got):\n%s", diff)
	}
	r.running = nil
	if diff := cmp.Diff(set("90", later, 1), restart()); diff != "" {
		t.Errorf("it ends before it was checked (-want +got):\n%s", diff)
	}
	since := doubtful
	since.ResourceVersion, since.Time = "99", now
	r.save(watching, since)
	behind := set("90", later, 1)
	behind.Time = now
	if diff := cmp.Diff(behind, restart()); diff != "" {
		t.Errorf("it ends later, before it was checked (-want +got):\n%s", diff)
	}
	r.save(watching, doubtful)
	if err := ledger.DeleteMeta(r.Store, ledger.SetBackMeta); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(doubtful, restart()); diff != "" {
		t.Errorf("it was checked (-want +got):\n%s", diff)
	}
}

// TestDoubt: the doubt about a feed that was watching when another found a rollback ends when it finds the rollback itself, or when it was
// checked since. One that has found it before is not doubted.
func TestDoubt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		found, together, later, before, checked bool
		want                                    bool
	}{
		"not found": {want: true}, "not found, with a change": {together: true, want: true}, "found before": {found: true}, "found later": {later: true},
		"checked": {checked: true}, "the check began before": {before: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			finder, s := r.feedIn(pods, "finder"), r.feedIn(pods, "a")
			for _, f := range []*Feed{finder, s} {
				f.Subscribed(&informer{checkpoints: map[uint64]string{0: "90", 1: "91", 2: "92"}})
			}
			s.synced, s.epoch = true, 1
			r.running = []*Feed{finder, s}
			r.save(s, ledger.Checkpoint{ResourceVersion: "90", Synced: true, Time: now})
			rollback := func(s *Feed, to string) *gapFound {
				return &gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "90", To: to, FromTime: now.Add(-time.Minute), ToTime: now}}
			}
			if tc.found {
				r.commit(rollback(s, "60"))
			}
			checked := s.Doubts()
			if tc.together {
				r.commit(rollback(finder, "70"), addedTo(s, r.Object("y", "u", "91").WithPosition(1)))
			} else {
				r.commit(rollback(finder, "70"))
			}
			if tc.later {
				r.commit(rollback(s, "70"))
			}
			if tc.checked {
				checked = s.Doubts()
			}
			if tc.checked || tc.before {
				s.Settle(checked)
			}
			r.commit(addedTo(s, r.Object("x", "u", "92").WithPosition(2)))
			if cp := r.saved(s); (cp.Doubt != nil) != tc.want {
				t.Errorf("the checkpoint is %+v, in doubt for %+v", cp, cp.Doubt)
			}
		})
	}
}

// TestGapSinceADoubt: a feed that others put in doubt, and that finds the rollback itself later, may have missed something since the first of them did.
func TestGapSinceADoubt(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	finder, s := r.feedIn(pods, "finder"), r.feedIn(pods, "a")
	for _, f := range []*Feed{finder, s} {
		f.Subscribed(&informer{checkpoints: map[uint64]string{0: "90"}})
	}
	r.running = []*Feed{finder, s}
	r.save(s, ledger.Checkpoint{ResourceVersion: "90", Synced: true, Time: now})
	rollback := func(from string, since time.Time) *dynamicfactory.Gap {
		return &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: from, To: "60", FromTime: since, ToTime: now}
	}
	r.commit(&gapFound{feed: finder, gap: rollback("80", now.Add(-time.Hour))}, &gapFound{feed: finder, gap: rollback("81", now.Add(-time.Minute))})
	own := rollback("90", now.Add(-time.Second))
	r.commit(&rollbackFound{s, own}, &gapFound{feed: s, gap: own})
	r.expectGaps("w 80", "w 81", "w 80")
}

// TestListBehindAnEmptyOne commits a part of a list that follows one without objects, which a rollback led to and whose end no object
// carries: the next life begins with the later list, as the first after the rollback.
func TestListBehindAnEmptyOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	for _, name := range []string{"a", "b"} {
		r.commit(addedTo(s, r.Object(name, "u", "85")))
	}
	s.Subscribed(&informer{
		empty: &dynamicfactory.List{ResourceVersion: "60", End: 3}, list: &dynamicfactory.List{ResourceVersion: "80", End: 5},
		checkpoints: map[uint64]string{0: "90", 3: "60", 5: "80"},
	})
	s.synced, s.position = true, 2
	r.running = []*Feed{s}
	r.commit(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "90", To: "60", FromTime: now, ToTime: now, Position: 2}})
	gone := func(name string) *objectGone {
		return &objectGone{sighting: sighting{feed: s, obj: r.Object(name, "u", "85"), unknown: true}}
	}
	expect := func(version string) {
		t.Helper()
		if cp := r.saved(s); cp.Listing == nil || cp.ListVersion() != version || !cp.Listing.Rewound {
			t.Errorf("the checkpoint is %+v, of the list %+v, want that of %s", cp, cp.Listing, version)
		}
	}
	r.commit(gone("a"))
	expect("60")
	r.commit(addedTo(s, r.Object("c", "u", "70"))) // of the other list, before the rest of the empty one
	expect("80")
	r.commit(gone("b"))
	expect("80")
	r.commit(addedTo(s, r.Object("d", "u", "71").WithPosition(5)))
	if cp := r.saved(s); cp.Listing != nil || cp.ResourceVersion != "80" {
		t.Errorf("the checkpoint is %+v, want that of the whole list", cp)
	}
}

// TestListFromBeforeARollback takes in a list that began before another feed found a rollback, with the feed's watch lost and established
// meanwhile: the checkpoint is marked until the whole list is taken in, and the watch established.
func TestListFromBeforeARollback(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	other, s := r.feedIn(pods, "other"), r.feedIn(pods, "ns")
	r.save(s, ledger.Checkpoint{ResourceVersion: "90", Synced: true, Form: s.Form})
	if err := r.c.Prepare(s); err != nil {
		t.Fatal(err)
	}
	informs := &informer{away: true, list: &dynamicfactory.List{ResourceVersion: "95", End: 2}, checkpoints: map[uint64]string{2: "95"}}
	s.Subscribed(informs)
	other.Subscribed(&informer{})
	r.running = []*Feed{other, s}
	r.commit(&gapFound{feed: other, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "90", To: "60", FromTime: now, ToTime: now}})
	expect := func(marked bool) {
		t.Helper()
		if cp := r.saved(s); (cp.Listing != nil && cp.Listing.Rewound) != marked || cp.Epoch != map[bool]int{true: 1}[marked] {
			t.Errorf("the checkpoint is %+v", cp)
		}
	}
	expect(true)
	r.commit(addedTo(s, r.Object("a", "u1", "80")))
	expect(true)
	informs.away = false
	r.commit(addedTo(s, r.Object("b", "u2", "81")))
	expect(true)
	informs.away = true
	r.commit(addedTo(s, r.Object("c", "u3", "82").WithPosition(2)))
	expect(true)
	informs.away = false
	s.begun.Store(true)
	r.group.touchAll(r.running)
	r.commit()
	expect(false)
}

// TestListBehindADeletion ends a life that has recorded a deletion of a version that may
// have had more, and records the objects again in another form: the list shows what is
// recorded, and not the object that is gone.
func TestListBehindADeletion(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	s.synced, s.recordedForm = true, s.Form
	s.Subscribed(&informer{checkpoints: map[uint64]string{1: "8"}})
	r.commit(
		addedTo(s, r.Object("a", "u", "8").WithPosition(1)),
		deletedFrom(s, r.Object("a", "u", "9").WithPosition(2)),
	)
	r.Expect("added a u 8", "deleted a u 9")
	beta := pods
	beta.GVR.Version = "v2"
	next := r.feed(beta)
	if err := r.c.Prepare(next); err != nil {
		t.Fatal(err)
	}
	begin, err := r.c.Begin(next)
	if err != nil || !begin.Relist || begin.ResourceVersion != "9" {
		t.Errorf("the informer begins with %+v, %v", begin, err)
	}
}

// TestUnchangedCheckpointIsNotWritten commits a second time without news of the feed.
func TestUnchangedCheckpointIsNotWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	s.Subscribed(&informer{checkpoints: map[uint64]string{0: "9"}})
	s.begun.Store(true)
	r.group.touchAll([]*Feed{s})
	r.step()
	first := r.saved(s)
	r.save(s, ledger.Checkpoint{ResourceVersion: "of the test"})
	r.group.touchAll([]*Feed{s})
	r.step()
	if got := r.saved(s).ResourceVersion; first.ResourceVersion != "9" || got != "of the test" {
		t.Errorf("the checkpoint was at %q, and is written again: %q", first.ResourceVersion, got)
	}
}

// TestEmptyList moves past a list without objects only if the ledger has none either:
// otherwise its deletions have yet to come.
func TestEmptyList(t *testing.T) {
	for name, recorded := range map[string]bool{"nothing is recorded": false, "nothing is recorded, amid changes of others": false, "deletions have yet to come": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			i := &informer{list: &dynamicfactory.List{ResourceVersion: "9", End: 1, Last: true}, checkpoints: map[uint64]string{1: "9"}}
			s.Subscribed(i)
			if recorded {
				r.recorded(s, r.Object("a", "u", "4"))
			}
			if strings.Contains(name, "others") {
				other := pods
				other.GVR.Resource = "jobs"
				r.add(addedTo(r.feed(other), r.Object("b", "u", "5")))
			}
			r.group.touched[s] = struct{}{}
			r.step()
			want := uint64(1)
			if recorded {
				want = 0
			}
			if s.position != want || i.acked != want {
				t.Errorf("position %d, acknowledged %d, want %d", s.position, i.acked, want)
			}
		})
	}
}

// TestEmptyListBehindAnotherFeed loses history in a feed that has not come as far as what
// another had recorded, and lists nothing: the informer never had the object that exists
// since then, and its deletion follows from the list.
func TestEmptyListBehindAnotherFeed(t *testing.T) {
	for _, cause := range []string{dynamicfactory.CauseExpired, dynamicfactory.CauseRollback} {
		for name, tc := range map[string]struct {
			position uint64 // before the list
			list     uint64 // the position of the list
			had      bool   // the informer had the object's predecessor
		}{
			"its predecessor was listed": {1, 2, true},
			"it was not listed":          {1, 2, false},
			"nothing was listed before":  {0, 0, false},
		} {
			t.Run(cause+", "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, disk(), committest.PodWatch())
				s := r.feed(pods)
				i := &informer{list: &dynamicfactory.List{ResourceVersion: "9", End: tc.list, Last: true}, checkpoints: map[uint64]string{tc.position: "5", tc.list: "9"}}
				s.Subscribed(i)
				s.begun.Store(true)
				s.position, s.synced, s.ahead = tc.position, true, map[string]string{"ns": "7"}
				r.recorded(s, r.Object("a", "new", "7"))
				r.add(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: cause, From: "5", To: "9", FromTime: now, ToTime: now, Position: tc.list}})
				if tc.had {
					r.add(missingFrom(s, r.Object("a", "old", "4").WithPosition(1)))
				}
				r.commit()
				r.group.touchAll([]*Feed{s})
				r.commit()
				var told []event.Type
				for _, e := range r.Events() {
					told = append(told, e.Type)
				}
				slices.Sort(told)
				if want := []event.Type{event.Deleted, event.Gap}; !slices.Equal(told, want) {
					t.Errorf("events are %v, want %v", told, want)
				}
				if cp := r.saved(s); i.acked != tc.list || cp.ResourceVersion != "9" || !cp.Resumable() || cp.Ahead != nil {
					t.Errorf("acknowledged up to %d, the checkpoint is %+v", i.acked, cp)
				}
			})
		}
	}
}

// TestBeginGap puts gaps of every cause in force.
func TestBeginGap(t *testing.T) {
	gap := func(cause string, blind time.Duration) *dynamicfactory.Gap {
		return &dynamicfactory.Gap{Cause: cause, From: "1", To: "9", FromTime: now.Add(-blind), ToTime: now, Position: 2}
	}
	for _, tc := range []struct {
		name  string
		open  *dynamicfactory.Gap
		gap   *dynamicfactory.Gap
		want  []told
		check func(s *Feed) bool
	}{
		{
			name: "rollback", gap: gap(dynamicfactory.CauseRollback, time.Minute),
			want: []told{{Type: event.Gap, Cause: "rollback"}}, check: func(s *Feed) bool { return s.epoch == 1 && s.rewind },
		},
		{name: "consistency check", gap: gap(CauseConsistencyCheck, time.Minute), check: func(s *Feed) bool { return s.repair == 2 && s.open != nil }},
		{name: "short", gap: gap(dynamicfactory.CauseExpired, time.Minute), check: func(s *Feed) bool { return s.open != nil }},
		{
			name: "long", gap: gap(dynamicfactory.CauseExpired, time.Hour),
			want: []told{{Type: event.Gap, Cause: "expired"}}, check: func(s *Feed) bool { return s.open == nil },
		},
		{
			name: "behind one that is open", open: gap(dynamicfactory.CauseExpired, time.Hour), gap: gap(dynamicfactory.CauseExpired, time.Minute),
			want: []told{{Type: event.Gap, Cause: "expired"}}, check: func(s *Feed) bool { return s.open == nil },
		},
		{
			name: "of a check that began before the one that is open", open: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "5", FromTime: now},
			gap: gap(CauseConsistencyCheck, time.Minute), check: func(s *Feed) bool { return s.open.From == "1" && s.open.FromTime.Before(now) },
		},
		{
			name: "of a check behind one that is open", open: gap(dynamicfactory.CauseExpired, time.Hour),
			gap:   &dynamicfactory.Gap{Cause: CauseConsistencyCheck, From: "5", To: "9", FromTime: now, ToTime: now, Position: 2},
			check: func(s *Feed) bool { return s.open.From == "1" && s.open.FromTime.Equal(now.Add(-time.Hour)) },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			s.open = tc.open
			r.group.batch = r.Store.NewBatch()
			if err := r.group.beginGap(s, tc.gap, now); err != nil {
				t.Fatal(err)
			}
			if err := r.Store.Commit(r.group.batch); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, r.told()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if !tc.check(s) || s.blindTo != tc.gap.Position {
				t.Errorf("open %+v, repair %d, epoch %d, blind to %d", s.open, s.repair, s.epoch, s.blindTo)
			}
		})
	}
}

// TestCheckpointOfAFeedThatIsBehind commits what happened long ago: the checkpoint has the time of its version,
// from which a gap would count, and keeps it while the version stays.
func TestCheckpointOfAFeedThatIsBehind(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.liveFeed()
	known := r.at.Add(-time.Hour)
	i := s.acks.(*informer)
	i.checkpoints, i.known = map[uint64]string{1: "5"}, known
	for _, version := range []string{"6", "7"} {
		r.commit(addedTo(s, r.Object("a", "u", version).WithPosition(1)))
		if cp, _, err := r.c.ledger.Checkpoint(s.ID); err != nil || cp.ResourceVersion != "5" || cp.Recorded == "" || !cp.Time.Equal(known) {
			t.Errorf("the checkpoint is %+v, %v", cp, err)
		}
		i.known = time.Time{}
	}
	i.checkpoints, i.known = map[uint64]string{1: "8"}, r.at.Add(time.Hour) // the clock was set back
	r.commit(addedTo(s, r.Object("a", "u", "9").WithPosition(2)))
	if cp, _, err := r.c.ledger.Checkpoint(s.ID); err != nil || cp.ResourceVersion != "8" || !cp.Time.Equal(r.at) {
		t.Errorf("the checkpoint is %+v, %v", cp, err)
	}
}

// TestSettledByOtherRules prepares the feed of a watch that selects by other rules than before: the history does not count as kept
// by one set of rules until the next checkpoint, which has the new ones.
func TestSettledByOtherRules(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.liveFeed()
	s.acks.(*informer).checkpoints = map[uint64]string{0: "5"}
	r.commit(&feedSynced{feed: s})
	prepare := func(labels string, settled time.Time) {
		t.Helper()
		r.watches[0].Selection.Labels = labels
		s = r.liveFeed()
		if err := r.c.Prepare(s); err != nil {
			t.Fatal(err)
		}
		if cp := r.saved(s); !cp.SettledSince.Equal(settled) || !cp.HistorySince.Equal(now) {
			t.Errorf("the checkpoint is %+v, want it settled since %v", cp, settled)
		}
	}
	prepare("", now)
	prepare("tier=web", time.Time{})
	prepare("", time.Time{})
	r.pass(time.Minute)
	r.group.touchAll(r.running)
	r.commit()
	if cp := r.saved(s); !cp.SettledSince.Equal(r.at) || !cp.HistorySince.Equal(now) {
		t.Errorf("the checkpoint is %+v, want it settled since %v", cp, r.at)
	}
}

// TestKeepHistory: the history is whole from the first list on, and begins again where more of it is kept.
func TestKeepHistory(t *testing.T) {
	before := now.Add(-time.Hour)
	one, all := []ledger.Kept{{Namespaces: []string{"ns"}}}, []ledger.Kept{{}}
	for _, tc := range []struct {
		name      string
		was, kept []ledger.Kept
		since     time.Time
		synced    bool
		want      time.Time
	}{
		{name: "before the first list", kept: all},
		{name: "behind the first list", kept: all, synced: true, want: now},
		{name: "by the same rules", was: all, kept: all, since: before, synced: true, want: before},
		{name: "of less", was: all, kept: one, since: before, synced: true, want: before},
		{name: "of more", was: one, kept: all, since: before, synced: true, want: now},
		{name: "of more, before a list", was: one, kept: all, since: before},
		{name: "of nothing", was: all, since: before, synced: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &Feed{progress: progress{saved: ledger.Checkpoint{Kept: tc.was}, historySince: tc.since, synced: tc.synced}}
			if s.keepHistory(tc.kept, now); !s.historySince.Equal(tc.want) {
				t.Errorf("since %v, want %v", s.historySince, tc.want)
			}
		})
	}
}

// TestSetBackTwice sets the cluster back again while the checkpoints of feeds begin with the list after the first time: what a feed that
// watches has received since then counts, and not what one that does not had received before.
func TestSetBackTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	found, watching, away := r.feedIn(pods, "found"), r.feedIn(pods, "watching"), r.feedIn(pods, "away")
	found.Subscribed(&informer{})
	watching.Subscribed(&informer{seen: "90"})
	away.Subscribed(&informer{seen: "90", away: true})
	r.running = []*Feed{found, watching, away}
	cp := ledger.Checkpoint{Synced: true, Time: now, Epoch: 1, Listing: &ledger.Listing{ResourceVersion: "60", Rewound: true}}
	r.saveAll(map[string]ledger.Checkpoint{watching.ID: cp, away.ID: cp})
	r.commit(&gapFound{feed: found, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "90", To: "70", FromTime: now, ToTime: now}})
	if got := r.saved(watching); got.Doubt == nil {
		t.Errorf("the checkpoint of the one that watches is %+v, not in doubt", got)
	}
	if diff := cmp.Diff(cp, r.saved(away)); diff != "" {
		t.Errorf("the checkpoint of the other one (-want +got):\n%s", diff)
	}
}

// TestWatchGoesOnAfterARollback has a feed watch again from where it was when another one found a rollback: the checkpoint that begins with
// the list after that is replaced, although nothing has changed.
func TestWatchGoesOnAfterARollback(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	other, s := r.feedIn(pods, "other"), r.feedIn(pods, "ns")
	informs := &informer{checkpoints: map[uint64]string{0: "90"}}
	s.Subscribed(informs)
	s.begun.Store(true)
	other.Subscribed(&informer{})
	r.running = []*Feed{other, s}
	r.group.touchAll([]*Feed{s})
	r.commit()
	before := r.saved(s)
	informs.away = true
	r.commit(&gapFound{feed: other, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "90", To: "60", FromTime: now, ToTime: now}})
	if cp := r.saved(s); before.ResourceVersion != "90" || cp.ListVersion() != "60" {
		t.Fatalf("the checkpoint was %+v, and is %+v while the feed does not watch", before, cp)
	}
	informs.away = false
	r.group.touchAll([]*Feed{s})
	r.commit()
	if diff := cmp.Diff(before, r.saved(s)); diff != "" {
		t.Errorf("the checkpoint once it watches (-want +got):\n%s", diff)
	}
}

// TestNarrowed: the times at which the rules that keep the history became narrower, or states were lost, are those of a history
// that is whole since then.
func TestNarrowed(t *testing.T) {
	before := now.Add(-time.Hour)
	one, all := []ledger.Kept{{Namespaces: []string{"ns"}}}, []ledger.Kept{{}}
	full := make([]time.Time, ledger.MaxNarrowed)
	for _, tc := range []struct {
		name      string
		was, kept []ledger.Kept
		since     time.Time
		lost      bool
		list      []time.Time
		want      []time.Time
	}{
		{name: "the same rules", was: all, kept: all, since: before, list: []time.Time{before}, want: []time.Time{before}},
		{name: "wider rules", was: one, kept: all, since: before, list: []time.Time{before}, want: []time.Time{before}},
		{name: "narrower rules", was: all, kept: one, since: before, list: []time.Time{before}, want: []time.Time{before, now}},
		{name: "lost states", was: all, kept: all, since: before, lost: true, want: []time.Time{now}},
		{name: "a history that begins again", was: all, kept: one, since: now, lost: true, list: []time.Time{before}},
		{name: "more than are kept", was: all, kept: one, since: before, list: full, want: append(full[1:], now)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			saved := ledger.Checkpoint{Kept: tc.was, HistorySince: before, Narrowed: tc.list}
			s := &Feed{progress: progress{saved: saved, historySince: tc.since, lost: tc.lost}}
			if diff := cmp.Diff(tc.want, s.narrowed(tc.kept, now)); diff != "" || s.lost {
				t.Errorf("lost is %t; the times (-want +got):\n%s", s.lost, diff)
			}
		})
	}
}
