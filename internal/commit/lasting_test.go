package commit

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/route"
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
	r := newRig(t, disk(), podWatch())
	r.route(stuck)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.object("a", "u", "1")), addedTo(s, r.object("b", "x", "1", "stuck")))
	r.pass(time.Minute)
	r.commit(updatedIn(s, r.object("a", "u", "2", "stuck"), nil))
	began := r.at
	r.pass(9 * time.Minute)
	lasted := r.takes("sink", "updated b 1")[0]
	if lasted.For == nil || !lasted.For.Since.Equal(now) || lasted.Object == nil {
		t.Errorf("for is %v, want since %s", lasted.For, now)
	}
	r.commit(updatedIn(s, r.object("a", "u", "3", "stuck"), nil)) // it still matches
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
	r.commit(updatedIn(s, r.object("a", "u", "4", "stuck"), nil))
	r.pass(time.Hour)
	r.takes("sink")

	r.commit(updatedIn(s, r.object("a", "u", "5"), nil), deletedFrom(s, r.object("b", "x", "6")))
	r.commit(updatedIn(s, r.object("a", "u", "7", "stuck"), nil), addedTo(s, r.object("b", "y", "8", "stuck")))
	r.pass(5 * time.Minute)
	r.commit(updatedIn(s, r.object("a", "u", "9"), nil), updatedIn(s, r.object("a", "u", "10", "stuck"), nil))
	r.pass(5 * time.Minute)
	r.takes("sink", "updated b 8")
	r.pass(5 * time.Minute)
	r.takes("sink", "updated a 10")
}

// TestForIsCountedAndSampled has the events of a for be those that the metric counts, and
// that the sample has.
func TestForIsCountedAndSampled(t *testing.T) {
	r := newRig(t, disk(), podWatch())
	half, all := stuck, stuck
	half.Name, half.Sample = "half", 0.5
	half.Metric = &route.Metric{Name: "half", MaxSeries: 10}
	all.Metric = &route.Metric{Name: "all", MaxSeries: 100, Labels: map[string]string{"name": "metadata.name"}}
	r.route(half, all)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	const n = 40
	for i := range n {
		r.commit(addedTo(s, r.object(fmt.Sprint("p", i), fmt.Sprint("u", i), "1", "stuck")))
	}
	r.pass(10 * time.Minute)
	delivered := len(r.delivered("sink"))
	counted := map[string]uint64{}
	for _, m := range r.c.router.(*route.Router).Metrics() {
		for _, series := range m.Series {
			counted[m.Name] += series.Count
			if m.Name == "all" && (series.Count != 1 || series.Values[0] == "") {
				t.Errorf("series %+v", series)
			}
		}
	}
	if sampled := delivered - n; sampled <= 0 || sampled >= n || counted["half"] != uint64(sampled) || counted["all"] != n {
		t.Errorf("%d delivered, counts %v", delivered, counted)
	}
	r.pass(time.Hour)
	r.takes("sink")
}

// TestForOfRecordedObjects begins the timers of objects that were recorded before the
// route, and of all when its condition changes.
func TestForOfRecordedObjects(t *testing.T) {
	r := newRig(t, disk(), podWatch())
	s := r.liveFeed()
	r.commit(addedTo(s, r.object("a", "u", "1", "stuck")), addedTo(s, r.object("b", "x", "2", "other")), &feedSynced{feed: s})
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

// TestForWaitsForTheWatch does not report a match of which nobody knows whether it lasts.
func TestForWaitsForTheWatch(t *testing.T) {
	r := newRig(t, disk(), podWatch())
	r.route(stuck)
	s := r.feed(pods)
	watch := &informer{checkpoints: map[uint64]string{}}
	s.Subscribed(watch)
	s.begun.Store(true)
	r.running = []*Feed{s}
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.object("a", "u", "1", "stuck")), addedTo(s, r.object("b", "x", "2", "stuck")))
	watch.watching = r.at.Add(10 * time.Minute) // it has just been opened again
	r.pass(10 * time.Minute)
	r.takes("sink")
	r.commit(updatedIn(s, r.object("a", "u", "3"), nil))
	r.pass(settled)
	r.takes("sink", "updated b 2")
}

// TestForAfterLostHistory begins a match again that may have been broken unseen.
func TestForAfterLostHistory(t *testing.T) {
	r := newRig(t, disk(), podWatch())
	r.route(stuck)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.object("a", "u", "1", "stuck")), addedTo(s, r.object("b", "x", "2", "stuck")))
	r.pass(5 * time.Minute)
	r.commit(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, Position: 0, From: "2", To: "9", FromTime: r.at.Add(-time.Hour), ToTime: r.at}})
	s.blindTo = 1 // the list is being taken in
	r.commit(updatedIn(s, r.object("a", "u", "8", "stuck"), nil))
	r.pass(5 * time.Minute)
	events := r.takes("sink", "gap  ", "updated b 2")
	if events[1].For == nil {
		t.Error("the match that was not broken is not reported")
	}
	r.pass(5 * time.Minute)
	r.takes("sink", "updated a 8")
}

// TestForModel compares a route with a model, over restarts and crashes: a match is
// reported once, when it has lasted, and no other is.
func TestForModel(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { forModel(t, rand.New(rand.NewPCG(seed, 2))) })
	}
}

func forModel(t *testing.T, random *rand.Rand) {
	fs := vfs.NewCrashableMem()
	life := func() (*rig, *Feed) {
		r := newRig(t, fs, podWatch())
		r.route(stuck)
		s := r.liveFeed()
		r.commit(&feedSynced{feed: s})
		return r, s
	}
	r, s := life()
	version, uid := 0, 0
	exists, since := map[string]string{}, map[string]time.Time{} // by name
	reported, known := map[string]bool{}, map[string]bool{}      // by name; by id
	look := func() {
		for _, e := range r.delivered("sink") {
			if known[e.ID] {
				continue // a crash took its acknowledgement back
			}
			known[e.ID] = true
			began, matches := since[e.Name]
			if !matches || reported[e.Name] || e.UID != exists[e.Name] || !e.For.Since.Equal(began) || r.at.Sub(began) < stuck.For {
				t.Fatalf("%s since %s is reported, reported before: %v", e.Name, e.For.Since, reported[e.Name])
			}
			reported[e.Name] = true
		}
		for name, began := range since {
			if r.at.Sub(began) >= stuck.For && !reported[name] {
				t.Fatalf("%s has matched since %s and is not reported", name, began)
			}
		}
	}
	for range 200 {
		name := string(rune('a' + random.IntN(3)))
		version++
		tier := []string{"stuck", "stuck", "fine"}[random.IntN(3)]
		switch n := random.IntN(20); {
		case n < 9:
			o := r.object(name, exists[name], fmt.Sprint(version), tier)
			if exists[name] == "" {
				uid++
				exists[name] = fmt.Sprint("u", uid)
				o = r.object(name, exists[name], fmt.Sprint(version), tier)
				r.commit(addedTo(s, o))
			} else {
				r.commit(updatedIn(s, o, nil))
			}
			if _, matches := since[name]; !matches && tier == "stuck" {
				since[name] = r.at
			} else if tier != "stuck" {
				delete(since, name)
				delete(reported, name)
			}
		case n < 11 && exists[name] != "":
			r.commit(deletedFrom(s, r.object(name, exists[name], fmt.Sprint(version))))
			delete(exists, name)
			delete(since, name)
			delete(reported, name)
		case n < 18:
			r.pass(time.Duration(random.IntN(300)) * time.Second)
		default:
			clock := r.at
			fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: random})
			r, s = life()
			r.at = clock
			r.pass(0)
		}
		r.pass(0)
		look()
	}
}

func TestForSummary(t *testing.T) {
	r := newRig(t, disk(), podWatch())
	brief := stuck
	brief.Payload = []string{"summary"}
	r.route(brief)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.object("a", "u", "1", "stuck")))
	r.pass(stuck.For)
	if e := r.takes("sink", "updated a 1: matches for 10m0s")[0]; strings.Contains(string(e.Object), "a") {
		t.Error("the object is there unasked")
	}
}
