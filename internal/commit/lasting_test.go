package commit

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

var stuck = route.Spec{Name: "stuck", When: `metadata.labels["tier"] == "stuck"`, For: 10 * time.Minute, Sinks: []string{"sink"}}

// liveFeed is a feed whose watch has been open for long.
func (r *rig) liveFeed() *Feed {
	r.Helper()
	s := r.feed(pods)
	s.Subscribed(&informer{})
	s.begun.Store(true)
	r.running = []*Feed{s}
	return s
}

func TestForReportsAMatchOnce(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(stuck)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.Object("a", "u", "1")), addedTo(s, r.Object("b", "x", "1", "stuck")))
	r.pass(time.Minute)
	r.commit(updatedIn(s, r.Object("a", "u", "2", "stuck"), nil))
	began := r.at
	r.pass(9 * time.Minute)
	lasted := r.takes("sink", "updated b 1")[0]
	if lasted.For == nil || !lasted.For.Since.Equal(now) || lasted.Object == nil {
		t.Errorf("for is %v, want since %s", lasted.For, now)
	}
	r.commit(updatedIn(s, r.Object("a", "u", "3", "stuck"), nil)) // it still matches
	r.pass(59 * time.Second)
	r.takes("sink")
	r.pass(time.Second)
	lasted = r.takes("sink", "updated a 3")[0]
	if !lasted.For.Since.Equal(began) {
		t.Errorf("since %s, want %s", lasted.For.Since, began)
	}
	if want := event.ID("test", event.Updated, s.Resource, "/for/stuck", "u", "2"); lasted.ID != want {
		t.Errorf("the id is %s, want %s, which the start of the match decides", lasted.ID, want)
	}
	r.commit(updatedIn(s, r.Object("a", "u", "4", "stuck"), nil))
	r.pass(time.Hour)
	r.takes("sink")

	r.commit(updatedIn(s, r.Object("a", "u", "5"), nil), deletedFrom(s, r.Object("b", "x", "6")))
	r.commit(updatedIn(s, r.Object("a", "u", "7", "stuck"), nil), addedTo(s, r.Object("b", "y", "8", "stuck")))
	r.pass(5 * time.Minute)
	r.commit(updatedIn(s, r.Object("a", "u", "9"), nil), updatedIn(s, r.Object("a", "u", "10", "stuck"), nil))
	r.pass(5 * time.Minute)
	r.takes("sink", "updated b 8")
	r.pass(5 * time.Minute)
	r.takes("sink", "updated a 10")
}

// TestForOfRecordedObjects begins the timers of objects that were recorded before the
// route, and of all when its condition changes.
func TestForOfRecordedObjects(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.liveFeed()
	r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")), addedTo(s, r.Object("b", "x", "2", "other")), &feedSynced{feed: s})
	r.delivered("sink")
	r.route(stuck)
	r.pass(0)
	r.pass(10 * time.Minute)
	r.takes("sink", "updated a 1")
	longer := stuck
	longer.For = 20 * time.Minute
	r.route(longer)
	r.pass(time.Hour)
	r.takes("sink") // another time is not another match
	edited := stuck
	edited.When = `metadata.labels["tier"] in ["stuck", "other"]`
	r.route(edited)
	r.pass(0)
	r.pass(9 * time.Minute)
	r.takes("sink")
	r.pass(time.Minute)
	r.takes("sink", "updated a 1", "updated b 2")
	r.route()
	r.pass(0)
	if names, err := r.c.timers.table.Names(); err != nil || len(names) > 0 {
		t.Errorf("%v are left, %v", names, err)
	}
	r.route(edited)
	r.pass(0)
	r.pass(10 * time.Minute)
	r.takes("sink", "updated a 1", "updated b 2")
}

// TestForThatComesBack begins the matches again that another condition, or none, was there
// for meanwhile: the objects that changed were not judged by it.
func TestForThatComesBack(t *testing.T) {
	edited := stuck
	edited.When = `metadata.labels["tier"] in ["stuck", "other"]`
	for name, meanwhile := range map[string][]route.Spec{"edited": {edited}, "taken out": nil} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, disk(), committest.PodWatch())
			r.route(stuck)
			s := r.liveFeed()
			r.commit(&feedSynced{feed: s})
			r.commit(addedTo(s, r.Object("a", "u", "1")), addedTo(s, r.Object("b", "x", "2", "stuck")))
			r.pass(0)
			r.route(meanwhile...)
			r.at = r.at.Add(time.Minute)
			r.commit(updatedIn(s, r.Object("a", "u", "3", "stuck"), nil), updatedIn(s, r.Object("b", "x", "4"), nil), updatedIn(s, r.Object("b", "x", "5", "stuck"), nil))
			r.route(stuck)
			r.pass(0)
			r.pass(stuck.For - time.Second)
			r.takes("sink")
			r.pass(time.Second)
			r.takes("sink", "updated a 3", "updated b 5")
		})
	}
}

// TestForWaitsForTheWatch does not report a match of which nobody knows whether it lasts.
func TestForWaitsForTheWatch(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(stuck)
	s := r.feed(pods)
	watch := &informer{checkpoints: map[uint64]string{}}
	s.Subscribed(watch)
	s.begun.Store(true)
	r.running = []*Feed{s}
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")), addedTo(s, r.Object("b", "x", "2", "stuck")))
	watch.watching = r.at.Add(10 * time.Minute) // it has just been opened again
	r.pass(10 * time.Minute)
	r.takes("sink")
	r.commit(updatedIn(s, r.Object("a", "u", "3"), nil))
	r.pass(settled)
	r.takes("sink", "updated b 2")
}

// TestForWaitsForAPausedWatch does not report a match while the watch waits, with changes that it does not read.
func TestForWaitsForAPausedWatch(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(stuck)
	s := r.feed(pods)
	watch := &informer{watching: r.at, paused: r.at.Add(time.Minute)}
	s.Subscribed(watch)
	s.begun.Store(true)
	r.running = []*Feed{s}
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")), addedTo(s, r.Object("b", "x", "2", "stuck")))
	r.pass(10 * time.Minute)
	r.pass(settled)
	r.takes("sink")
	watch.paused = time.Time{}
	r.commit(updatedIn(s, r.Object("a", "u", "3"), nil))
	r.pass(settled)
	r.takes("sink", "updated b 2")
}

// TestForReadsWhatWaitsOnce reads due matches of a watch that is not connected again only when
// it is, and those of other watches meanwhile.
func TestForReadsWhatWaitsOnce(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(), committest.PodWatch(func(w *plan.Watch) { w.Name = "other" }))
	r.route(stuck)
	offline, live := r.feedIn(pods, "off"), r.feedIn(pods, "ns")
	watch := &informer{}
	for s, sub := range map[*Feed]*informer{offline: watch, live: {}} {
		s.Subscribed(sub)
		s.begun.Store(true)
		r.running = append(r.running, s)
	}
	r.commit(&feedSynced{feed: offline}, &feedSynced{feed: live})
	const n = 3 * timerLook
	for i := range n {
		o, err := r.Codec.Encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"off","name":"p%d","uid":"u%d","resourceVersion":"1","labels":{"tier":"stuck"}}}`, i, i), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.add(addedTo(offline, o))
	}
	r.commit()
	r.pass(time.Minute)
	r.commit(addedTo(live, r.Object("a", "u", "2", "stuck")))
	watch.watching = now.Add(20 * time.Minute)
	counted := &brokenStore{Store: r.Store, prefix: "none"}
	r.c.timers.table = timer.NewTable(counted)
	r.pass(9 * time.Minute)
	if counted.reads < n {
		t.Errorf("%d rows are read, want %d", counted.reads, n)
	}
	counted.reads = 0
	for range 12 {
		r.pass(settled)
	}
	r.takes("sink", "updated a 2")
	if counted.reads > 20 {
		t.Errorf("%d rows are read while the watch is not connected", counted.reads)
	}
	r.at = watch.watching
	r.pass(settled)
	if events := r.delivered("sink"); len(events) != n {
		t.Errorf("%d matches are reported, want %d", len(events), n)
	}
}

// TestForAfterLostHistory begins a match again that may have been broken unseen.
func TestForAfterLostHistory(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(stuck)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")), addedTo(s, r.Object("b", "x", "2", "stuck")))
	r.pass(5 * time.Minute)
	r.commit(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, Position: 0, From: "2", To: "9", FromTime: r.at.Add(-time.Hour), ToTime: r.at}})
	s.blindTo = 1 // the list is being taken in
	r.commit(updatedIn(s, r.Object("a", "u", "8", "stuck"), nil))
	r.pass(5 * time.Minute)
	events := r.takes("sink", "gap  ", "updated b 2")
	if events[1].For == nil {
		t.Error("the match that was not broken is not reported")
	}
	r.pass(5 * time.Minute)
	r.takes("sink", "updated a 8")
}

// TestForOfAFirstList begins the timers of what a first list has, of which a watch without a snapshot is given nothing, also where an
// earlier life had looked through its objects.
func TestForOfAFirstList(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(func(w *plan.Watch) { w.Snapshot = false }))
	r.route(stuck)
	r.commit(&feedSynced{feed: r.liveFeed()})
	r.pass(0)
	s := r.liveFeed()
	r.commit(listedBy(s, r.Object("a", "u", "1", "stuck").WithPosition(1)), &feedSynced{feed: s})
	r.pass(0)
	r.pass(stuck.For)
	r.takes("sink", "updated a 1")
}

// TestForOfWhatAWatchComesToCover begins the timers of recorded objects that the watch is not
// given: it has no snapshot.
func TestForOfWhatAWatchComesToCover(t *testing.T) {
	quiet := func(w *plan.Watch) { w.Snapshot, w.Namespaces, w.Fingerprint = false, []string{"other"}, "narrow" }
	r := newRig(t, disk(), committest.PodWatch(func(w *plan.Watch) { w.Name = "all" }), committest.PodWatch(quiet))
	lasts := stuck
	lasts.Watches = []string{"w"}
	r.route(lasts)
	s := r.liveFeed()
	r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")), &feedSynced{feed: s})
	r.pass(time.Hour)
	r.takes("sink")
	r.begin(s, false, r.watches[0], committest.PodWatch(quiet, func(w *plan.Watch) { w.Namespaces, w.Fingerprint = nil, "wide" }))
	r.pass(0)
	r.pass(stuck.For)
	r.takes("sink", "updated a 1")
}

// TestForOfWhatAWatchLeaves does not report a match of an object that the watches of the route cover no more.
func TestForOfWhatAWatchLeaves(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(stuck)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")))
	r.pass(time.Minute)
	r.begin(s, false, watchOf("w", "elsewhere"))
	r.pass(0)
	r.pass(time.Hour)
	r.takes("sink")
}

// TestForOfWhatWasForgotten begins a match again of an object whose recorded state was
// forgotten, as nothing watched it.
func TestForOfWhatWasForgotten(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(stuck)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")), addedTo(s, r.Object("b", "x", "2", "stuck")))
	r.pass(5 * time.Minute)
	r.running = nil
	b := r.Store.NewBatch()
	for _, name := range []string{"a", "b"} {
		b.DeleteState(s.Partition, ledger.Key("ns", name))
	}
	if err := r.Store.Commit(b); err != nil {
		t.Fatal(err)
	}
	r.pass(time.Minute)
	s = r.liveFeed()
	r.commit(listedBy(s, r.Object("a", "u", "1", "stuck")), &feedSynced{feed: s})
	began := r.at
	r.pass(9 * time.Minute)
	r.takes("sink")
	r.running = nil
	r.pass(time.Minute)
	r.running = []*Feed{s}
	r.pass(settled)
	if e := r.takes("sink", "updated a 1")[0]; !e.For.Since.Equal(began) {
		t.Errorf("since %s, want %s", e.For.Since, began)
	}
	rows := 0
	if err := r.c.timers.table.Rows(nil, "", func(string, *timer.Row) error { rows++; return nil }); err != nil || rows != 1 {
		t.Errorf("%d rows are left, %v, want that of a", rows, err)
	}
}

// TestForSampledAndCounted takes matches that have lasted by their IDs, and counts those.
func TestForSampledAndCounted(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	some := stuck
	some.Sample = 0.5
	some.Metric = &route.Metric{Name: "stuck", Labels: map[string]string{"name": "metadata.name"}, MaxSeries: 100}
	router := r.route(some)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	const n = 40
	for i := range n {
		r.commit(addedTo(s, r.Object(fmt.Sprint("p", i), fmt.Sprint("u", i), fmt.Sprint(i+1), "stuck")))
	}
	r.pass(stuck.For)
	r.pass(time.Hour)
	events := r.delivered("sink")
	if len(events) < n/4 || len(events) > 3*n/4 {
		t.Errorf("%d of %d are in the sample", len(events), n)
	}
	if counted := router.Metrics()[0].Series; len(counted) != len(events) {
		t.Errorf("%d are counted, %d delivered", len(counted), len(events))
	}
	if stats := router.Stats()[0]; int(stats.Matched) != len(events) || int(stats.Unsampled) != n-len(events) {
		t.Errorf("%+v, want %d matched", stats, len(events))
	}
}

// TestForModel compares a route with a model, over edits, restarts, crashes, lost history and
// clocks that are set: a match is reported once, when it has lasted, and no other is.
func TestForModel(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { forModel(t, rand.New(rand.NewPCG(seed, 2))) })
	}
}

func forModel(t *testing.T, random *rand.Rand) {
	fs, clock, spec := vfs.NewCrashableMem(), now, stuck
	life := func() (*rig, *Feed) {
		r := newRig(t, fs, committest.PodWatch())
		r.at = clock
		r.route(spec)
		s := r.liveFeed()
		r.commit(&feedSynced{feed: s})
		return r, s
	}
	r, s := life()
	version, uid := 0, 0
	exists, tiers, since := map[string]string{}, map[string]string{}, map[string]time.Time{} // by name
	reported, known := map[string]bool{}, map[uint64]bool{}                                  // by name; by sequence
	look := func() {
		for _, e := range r.delivered("sink") {
			if known[e.Sequence] || e.Type == event.Gap {
				continue // a crash took its acknowledgement back
			}
			known[e.Sequence] = true
			began, matches := since[e.Name]
			if !matches || reported[e.Name] || e.UID != exists[e.Name] || !e.For.Since.Equal(began) || r.at.Sub(began) < spec.For {
				t.Fatalf("%s since %s is reported, reported before: %v, since %s", e.Name, e.For.Since, reported[e.Name], began)
			}
			reported[e.Name] = true
		}
		for name, began := range since {
			if r.at.Sub(began) >= spec.For && !reported[name] {
				t.Fatalf("%s has matched since %s and is not reported", name, began)
			}
		}
	}
	judge := func(name string, anew bool) {
		if _, matches := since[name]; !strings.Contains(spec.When, tiers[name]) || exists[name] == "" {
			delete(since, name)
			delete(reported, name)
		} else if !matches || anew {
			since[name] = r.at
			delete(reported, name)
		}
	}
	for range 200 {
		name := string(rune('a' + random.IntN(3)))
		version++
		tier := []string{"stuck", "stuck", "fine", "other"}[random.IntN(4)]
		switch n := random.IntN(24); {
		case n < 9:
			tiers[name] = tier
			if exists[name] == "" {
				uid++
				exists[name] = fmt.Sprint("u", uid)
				r.commit(addedTo(s, r.Object(name, exists[name], fmt.Sprint(version), tier)))
			} else {
				r.commit(updatedIn(s, r.Object(name, exists[name], fmt.Sprint(version), tier), nil))
			}
			judge(name, false)
		case n < 11 && exists[name] != "":
			r.commit(deletedFrom(s, r.Object(name, exists[name], fmt.Sprint(version))))
			delete(exists, name)
			judge(name, false)
		case n < 18:
			r.pass(time.Duration(random.IntN(300)) * time.Second)
		case n == 18:
			spec.For = time.Duration(1+random.IntN(20)) * time.Minute
			r.route(spec)
		case n == 19: // the history is lost, and the list shows another version of the object
			r.commit(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "2", To: "9", FromTime: r.at, ToTime: r.at}})
			if exists[name] != "" {
				s.blindTo = 1
				r.commit(updatedIn(s, r.Object(name, exists[name], fmt.Sprint(version), tiers[name]), nil))
				s.blindTo = 0
				judge(name, true)
			}
		case n < 22:
			whens := []string{stuck.When, `metadata.labels["tier"] in ["stuck", "other"]`}
			before, out, anew := spec.When, random.IntN(2) == 0, false
			spec.When = whens[random.IntN(2)]
			if r.route(spec); out {
				r.route()
			}
			if random.IntN(2) == 0 && exists[name] != "" { // before its objects are looked through
				tiers[name], anew = tier, out || spec.When != before
				r.commit(updatedIn(s, r.Object(name, exists[name], fmt.Sprint(version), tier), nil))
				judge(name, false)
			}
			spec.When = whens[random.IntN(2)]
			r.route(spec)
			for other := range tiers {
				if anew || spec.When != before {
					judge(other, true)
				}
			}
		default:
			clock = setClock(random, r.at, since)
			if r.at = clock; random.IntN(4) > 0 {
				fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: random})
				r, s = life()
			}
		}
		r.pass(0)
		look()
	}
}

func TestForSummary(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	brief := stuck
	brief.Payload = []string{"summary"}
	r.route(brief)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")))
	r.pass(stuck.For)
	if e := r.takes("sink", "updated a 1: matches for 10m0s")[0]; strings.Contains(string(e.Object), "a") {
		t.Error("the object is there unasked")
	}
}

// TestForOfWhatAnotherWatchComesToCover: a match goes on if another watch of the route is given its object.
func TestForOfWhatAnotherWatchComesToCover(t *testing.T) {
	w, elsewhere := committest.PodWatch(), watchOf("second", "elsewhere")
	r := newRig(t, disk(), w, elsewhere)
	r.route(stuck)
	s := r.liveFeed()
	s.recordedForm = s.Form
	r.begin(s, false, w, elsewhere)
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")))
	r.pass(stuck.For / 2)
	r.begin(s, false, w, watchOf("second", "ns"))
	r.pass(0)
	r.takes("sink")
	r.pass(stuck.For / 2)
	if lasted := r.takes("sink", "updated a 1")[0]; !lasted.For.Since.Equal(now) {
		t.Errorf("it lasts since %v, want %v", lasted.For.Since, now)
	}
}

// TestForOfAStateInAnotherForm does not report a match that the recorded state, as it is now, does not meet: it was recorded again
// in another form, which no event shows.
func TestForOfAStateInAnotherForm(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(stuck)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")))
	r.pass(0)
	r.recorded(s, r.Object("a", "u", "1"))
	r.pass(stuck.For)
	r.takes("sink")
	if n := r.c.timers.lasting["stuck"].bucket.Held(); n != 0 {
		t.Errorf("%d matches are waited for", n)
	}
}
