package commit

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

var slow = route.Spec{Name: "slow", Payload: []string{"object", "oldObject", "patch", "summary"}, Sinks: []string{"sink"}, Throttle: time.Minute}

// pass lets time pass, and commits what is due then.
func (r *rig) pass(d time.Duration) {
	r.Helper()
	r.at = r.at.Add(d)
	r.group.lookAtTimers()
	r.commit()
}

// delivered are the events of the sink's queue, which it takes.
func (r *rig) delivered(sink string) []*event.Event {
	r.Helper()
	q, err := r.Store.Queue(sink)
	if err != nil {
		r.Fatal(err)
	}
	items, err := q.Read(0, 10_000, 1<<30)
	if err != nil {
		r.Fatal(err)
	}
	var list []*event.Event
	for _, it := range items {
		e, err := r.In.Event(it.Sequence, record.Flags(it.Flags), it.Payload, sink)
		if err != nil {
			r.Fatal(err)
		}
		list = append(list, e)
		if err := q.Ack(it.Position); err != nil {
			r.Fatal(err)
		}
	}
	return list
}

// takes compares what a sink has been given since the last call with lines of
// "type name version coalesced summary".
func (r *rig) takes(sink string, want ...string) []*event.Event {
	r.Helper()
	events := r.delivered(sink)
	var lines []string
	for _, e := range events {
		line := fmt.Sprintf("%s %s %s", e.Type, e.Name, e.ResourceVersion)
		if e.Coalesced > 0 {
			line += fmt.Sprintf(" replaces %d", e.Coalesced)
		}
		if e.Type == event.Updated && e.Summary != "" {
			line += ": " + e.Summary
		}
		lines = append(lines, line)
	}
	if fmt.Sprint(lines) != fmt.Sprint(want) {
		r.Fatalf("sink %s is given\n%s\nwant\n%s", sink, strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	return events
}

func TestThrottleEndsWithTheLastState(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(slow)
	s := r.feed(pods)
	v := func(version, tier string) *compact.Object { return r.Object("a", "u", version, tier) }
	r.commit(addedTo(s, v("1", "one")))
	r.takes("sink", "added a 1")
	r.commit(updatedIn(s, v("2", "two"), nil), updatedIn(s, v("3", "three"), nil))
	r.pass(10 * time.Second)
	r.commit(updatedIn(s, v("4", "four"), nil))
	r.takes("sink")
	r.pass(49 * time.Second)
	r.takes("sink")
	r.pass(time.Second)
	last := r.takes("sink", "updated a 4 replaces 2: label tier one -> four")[0]
	if !strings.Contains(string(last.Patch), "four") || !strings.Contains(string(last.OldObject), "one") {
		t.Errorf("patch %s, oldObject %s: not against the state that was sent last", last.Patch, last.OldObject)
	}
	logged := r.Events()
	if of := logged[len(logged)-1]; of.Sequence != last.Sequence || of.ID != last.ID {
		t.Errorf("the held event has id %s and sequence %d, its record %s and %d", last.ID, last.Sequence, of.ID, of.Sequence)
	}
	r.commit(updatedIn(s, v("5", "five"), nil)) // its period began with the last delivery
	r.takes("sink")
	r.pass(time.Minute)
	r.takes("sink", "updated a 5: label tier four -> five")
	r.pass(time.Minute)
	r.commit(updatedIn(s, v("6", "six"), nil))
	r.takes("sink", "updated a 6: label tier five -> six")
}

func TestThrottleDoesNotHoldDeletions(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(slow)
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u", "1")), updatedIn(s, r.Object("a", "u", "2"), nil), updatedIn(s, r.Object("a", "u", "3"), nil))
	r.commit(deletedFrom(s, r.Object("a", "u", "4")))
	r.takes("sink", "added a 1", "updated a 3 replaces 1: no visible change", "deleted a 4")
	r.commit(addedTo(s, r.Object("a", "v", "5"))) // another object
	r.takes("sink", "added a 5")
	r.commit(updatedIn(s, r.Object("a", "v", "6"), nil))
	r.commit(addedTo(s, r.Object("a", "w", "7"))) // deleted and created again between two looks
	r.takes("sink", "updated a 6: no visible change", "deleted a 6", "added a 7")
}

// TestThrottleBesideOtherRoutes has an event that another route takes to the same sink at
// once come after what is held of its object.
func TestThrottleBesideOtherRoutes(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	if _, err := r.Store.EnsureSink("other", store.FromNow); err != nil {
		t.Fatal(err)
	}
	urgent := route.Spec{Name: "urgent", Sinks: []string{"sink"}, When: `metadata.labels["tier"] == "urgent"`}
	slower := slow
	slower.Name, slower.Throttle, slower.Payload = "slower", 2*time.Minute, nil
	held := slow
	held.Payload, held.Sinks = nil, []string{"sink", "other"}
	r.route(held, urgent, slower)
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u", "1")), updatedIn(s, r.Object("a", "u", "2"), nil))
	r.commit(updatedIn(s, r.Object("a", "u", "3", "urgent"), nil))
	r.takes("sink", "added a 1", "updated a 2", "updated a 3")
	r.takes("other", "added a 1")
	r.commit(updatedIn(s, r.Object("a", "u", "4"), nil), updatedIn(s, r.Object("a", "u", "5"), nil))
	r.pass(time.Minute)
	r.takes("sink", "updated a 5 replaces 1") // both routes hold it, and it is delivered once
	r.takes("other", "updated a 5 replaces 3")
	r.pass(time.Hour)
	r.takes("sink")
}

// TestThrottleReconfigured releases what routes hold that are not configured any more, and
// follows another period.
func TestThrottleReconfigured(t *testing.T) {
	fs := disk()
	r := newRig(t, fs, committest.PodWatch())
	r.route(slow)
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u", "1")), updatedIn(s, r.Object("a", "u", "2"), nil))
	r.takes("sink", "added a 1")
	slower := slow
	slower.Throttle = time.Hour
	r.route(slower)
	r.pass(time.Minute)
	r.takes("sink")
	r.pass(time.Hour)
	r.takes("sink", "updated a 2: no visible change")
	r.commit(updatedIn(s, r.Object("a", "u", "3"), nil))
	free := slow
	free.Throttle = 0
	r.route(free)
	r.commit(updatedIn(s, r.Object("a", "u", "4"), nil)) // what was held comes first
	r.takes("sink", "updated a 3: no visible change", "updated a 4: no visible change")
	r.route(slow)
	r.commit(updatedIn(s, r.Object("a", "u", "5"), nil), updatedIn(s, r.Object("a", "u", "6"), nil))
	r.takes("sink", "updated a 5: no visible change")
	gone := slow
	gone.Name = "renamed"
	r.route(gone)
	r.pass(0)
	r.takes("sink", "updated a 6: no visible change")
	if names, err := r.c.timers.table.Names(); err != nil || len(names) > 0 {
		t.Errorf("%v are left, %v", names, err)
	}
}

// TestThrottleWithAClockSetBack delivers what is held within a period of the clock that
// shows another time.
func TestThrottleWithAClockSetBack(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(slow)
	s := r.feed(pods)
	r.at = now.Add(1000 * time.Hour)
	r.commit(addedTo(s, r.Object("a", "u", "1")), updatedIn(s, r.Object("a", "u", "2"), nil))
	r.takes("sink", "added a 1")
	r.at = now
	r.pass(time.Second)
	r.commit(addedTo(s, r.Object("b", "x", "3")), updatedIn(s, r.Object("b", "x", "4"), nil))
	r.pass(time.Minute)
	r.takes("sink", "added b 3", "updated a 2: no visible change", "updated b 4: no visible change")
}

// TestThrottleWithTheClockOfTheMachine goes by the time that it shows, not by the time that
// has passed, which a clock that is set back does not change.
func TestThrottleWithTheClockOfTheMachine(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(slow)
	s := r.feed(pods)
	r.at = time.Now()
	r.commit(addedTo(s, r.Object("a", "u", "1")), updatedIn(s, r.Object("a", "u", "2"), nil))
	r.pass(time.Minute)
	if at := r.c.timers.looked; at != at.Round(0) { //nolint:revive // Equal does not look at the monotonic reading
		t.Errorf("%v has a monotonic reading", at)
	}
	r.takes("sink", "added a 1", "updated a 2: no visible change")
}

// TestThrottleOfABusyCommitter delivers in time what began to be held in the commit that
// looked for what is due.
func TestThrottleOfABusyCommitter(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(slow)
	s := r.feed(pods)
	r.group.lookAtTimers()
	r.commit(addedTo(s, r.Object("a", "u", "1")))
	r.commit(updatedIn(s, r.Object("a", "u", "2"), nil))
	r.pass(time.Minute)
	r.takes("sink", "added a 1", "updated a 2: no visible change")

	r.pass(time.Minute)
	r.commit(addedTo(s, r.Object("b", "x", "3")))
	r.at = r.at.Add(-time.Second)
	r.add(addedTo(s, r.Object("c", "y", "4"))) // was observed before, and waited
	r.at = r.at.Add(2 * time.Second)
	r.route(slow)
	r.group.lookAtTimers()
	r.commit()
	r.commit(updatedIn(s, r.Object("b", "x", "5"), nil), updatedIn(s, r.Object("c", "y", "6"), nil))
	r.pass(time.Minute)
	r.takes("sink", "added b 3", "added c 4", "updated c 6: no visible change", "updated b 5: no visible change")
}

// TestThrottleOfWhatNoChangeLedTo compares nothing with matches that have lasted, or with
// objects that a watch is given again, and the next change with what was sent.
func TestThrottleOfWhatNoChangeLedTo(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	lasts := slow
	lasts.Name, lasts.When, lasts.For, lasts.Throttle = "lasts", `metadata.labels["tier"] == "stuck"`, time.Minute, time.Hour
	if _, err := r.Store.EnsureSink("other", store.FromNow); err != nil {
		t.Fatal(err)
	}
	lasts.Sinks = []string{"other"}
	r.route(slow, lasts)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")))
	j := newSnapshot(s, s.Watches()[0])
	Barrier{r.group}.add(j)
	r.commit()
	r.pass(time.Minute)
	given := r.takes("sink", "added a 1", "sync a 1")[1]
	if len(given.OldObject)+len(given.Patch) > 0 {
		t.Errorf("a sync event has the old object %s and the patch %s", given.OldObject, given.Patch)
	}
	r.commit(updatedIn(s, r.Object("a", "u", "2"), nil), updatedIn(s, r.Object("a", "u", "3", "stuck"), nil))
	r.takes("other", "updated a 1: matches for 1m0s")
	r.pass(time.Minute)
	r.takes("other")
	r.pass(time.Hour)
	lasted := r.takes("other", "updated a 3: matches for 1m0s")[0]
	if len(lasted.OldObject)+len(lasted.Patch) > 0 {
		t.Errorf("a match has the old object %s and the patch %s", lasted.OldObject, lasted.Patch)
	}
}

// TestThrottleWithAPayloadThatComparesLater compares with what was sent, or with nothing, when
// the payload begins to compare while an event is held.
func TestThrottleWithAPayloadThatComparesLater(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	if _, err := r.Store.EnsureSink("other", store.FromNow); err != nil {
		t.Fatal(err)
	}
	light, all := slow, route.Spec{Name: "all", Payload: slow.Payload, Sinks: []string{"other"}}
	light.Payload = nil
	r.route(light, all)
	s := r.feed(pods)
	v := func(name, version, tier string) *objectSeen {
		return updatedIn(s, r.Object(name, "u"+name, version, tier), nil)
	}
	r.commit(v("a", "1", "one"), v("b", "2", "one"), v("a", "3", "two"), v("a", "4", "three"))
	r.takes("sink", "added a 1", "added b 2")
	r.route(slow, all)
	r.commit(v("a", "5", "four"), v("b", "6", "two"), v("b", "7", "three"))
	r.pass(time.Minute)
	events := r.takes("sink", "updated a 5 replaces 2", "updated b 7 replaces 1: label tier one -> three")
	if e := events[0]; len(e.OldObject)+len(e.Patch) > 0 || !e.PatchOmitted {
		t.Errorf("the event is compared with %s, by %s: what was sent is not known", e.OldObject, e.Patch)
	}
	if e := events[1]; !strings.Contains(string(e.OldObject), "one") || !strings.Contains(string(e.Patch), "three") {
		t.Errorf("patch %s, oldObject %s", e.Patch, e.OldObject)
	}
	r.commit(v("a", "8", "five"))
	r.pass(time.Minute)
	r.takes("sink", "updated a 8: label tier four -> five")
}

// TestHeldIsCounted has the number of what each route holds, without reading it, over a restart
// and until a former route holds nothing.
func TestHeldIsCounted(t *testing.T) {
	fs := disk()
	r := newRig(t, fs, committest.PodWatch())
	holds := func(want ...string) {
		t.Helper()
		metrics := make(chan prometheus.Metric, 10)
		r.c.metrics.waiting.Collect(metrics)
		close(metrics)
		var got []string
		for m := range metrics {
			var d dto.Metric
			if err := m.Write(&d); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s/%s: %v", d.Label[0].GetValue(), d.Label[1].GetValue(), d.Gauge.GetValue()))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("held are %q, want %q", got, want)
		}
	}
	r.route(slow, stuck)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	holds("slow/sink: 0", "stuck/: 0")
	for _, name := range []string{"a", "b", "c"} {
		r.commit(addedTo(s, r.Object(name, "u"+name, "1", "stuck")), updatedIn(s, r.Object(name, "u"+name, "2", "stuck"), nil), updatedIn(s, r.Object(name, "u"+name, "3", "stuck"), nil))
	}
	holds("slow/sink: 3", "stuck/: 3")
	r.commit(deletedFrom(s, r.Object("a", "ua", "4")), updatedIn(s, r.Object("b", "ub", "5"), nil))
	holds("slow/sink: 2", "stuck/: 1")
	fs, clock := fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{}), r.at
	r = newRig(t, fs, committest.PodWatch())
	r.at = clock
	r.route(slow, stuck)
	s = r.liveFeed()
	r.commit(&feedSynced{feed: s})
	holds("slow/sink: 2", "stuck/: 1")
	r.pass(time.Minute)
	holds("slow/sink: 0", "stuck/: 1")
	r.commit(updatedIn(s, r.Object("c", "uc", "6", "stuck"), nil))
	holds("slow/sink: 1", "stuck/: 1")
	r.route()
	r.pass(0)
	r.pass(0)
	holds()
	if err := r.Store.ScanMeta("timer/", func(key string, _ []byte) error { return fmt.Errorf("%s is left", key) }); err != nil {
		t.Error(err)
	}
}

// TestFormerRoutesOfADamagedStore finds what former routes hold also where a part of it cannot
// be read, and what that hides when it can be again. Damaged rows are deleted with theirs.
func TestFormerRoutesOfADamagedStore(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	lasts := slow
	lasts.Name, lasts.Sinks = "zone", []string{"other"}
	if _, err := r.Store.EnsureSink("other", store.FromNow); err != nil {
		t.Fatal(err)
	}
	r.route(slow, stuck, lasts)
	s := r.liveFeed()
	r.commit(&feedSynced{feed: s})
	r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")), addedTo(s, r.Object("b", "x", "1", "stuck")), updatedIn(s, r.Object("a", "u", "2", "stuck"), nil), updatedIn(s, r.Object("b", "x", "2", "stuck"), nil))
	r.takes("sink", "added a 1", "added b 1")
	r.takes("other", "added a 1", "added b 1")
	b := r.Store.NewBatch()
	b.PutMeta("timer/row/slow/sink/pods/ns/a", []byte("damaged"))
	b.PutMeta("timer/row/stuck//"+s.Partition+"\nns/a", []byte("damaged"))
	if err := r.Store.Commit(b); err != nil {
		t.Fatal(err)
	}
	broken := &brokenStore{Store: r.Store, prefix: "timer/row/"}
	r.c.timers.table = timer.NewTable(broken)
	r.route()
	r.pass(0)
	r.pass(0)
	r.takes("sink", "updated b 2: no visible change")
	r.takes("other", "updated a 2: no visible change", "updated b 2: no visible change")
	broken.prefix = "none"
	r.pass(unreadable)
	r.pass(0)
	if err := r.Store.ScanMeta("timer/", func(key string, _ []byte) error { return fmt.Errorf("%s is left", key) }); err != nil {
		t.Error(err)
	}
	if !r.c.timers.idle() {
		t.Errorf("what is left of the routes is %v and %v", r.c.timers.throttles, r.c.timers.lasting)
	}
}

// brokenStore cannot scan keys with a prefix.
type brokenStore struct {
	*store.Store
	prefix     string
	unreadable string // begins keys that cannot be read by themselves; "": all can
	reads      int
}

func (b *brokenStore) ScanMetaFrom(prefix, from string, f func(key string, value []byte) error) error {
	if strings.HasPrefix(prefix, b.prefix) {
		return store.ErrUnreadable
	}
	return b.Store.ScanMetaFrom(prefix, from, f)
}

func (b *brokenStore) Meta(key string) ([]byte, bool, error) {
	b.reads++
	if b.unreadable != "" && strings.HasPrefix(key, b.unreadable) {
		return nil, false, store.ErrUnreadable
	}
	return b.Store.Meta(key)
}

// TestThrottleAfterADamagedRecord holds on, and delivers the last state, when the record that
// was held, or sent, cannot be read.
func TestThrottleAfterADamagedRecord(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(slow)
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u", "1")), addedTo(s, r.Object("b", "x", "2")), updatedIn(s, r.Object("b", "x", "3"), nil))
	b := r.Store.NewBatch()
	if err := r.c.timers.table.Rows(nil, "", func(key string, row *timer.Row) error {
		timer.Revise(b, key, row, []byte("damaged"))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.Store.Commit(b); err != nil {
		t.Fatal(err)
	}
	r.commit(updatedIn(s, r.Object("a", "u", "4"), nil), updatedIn(s, r.Object("b", "x", "5"), nil))
	r.pass(time.Minute)
	r.takes("sink", "added a 1", "added b 2", "updated a 4: no visible change", "updated b 5 replaces 1")
}

// TestThrottleOfADamagedState goes on when a state that was held cannot be read. What the
// sink makes of its event is the sink's.
func TestThrottleOfADamagedState(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(slow)
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u", "1")), updatedIn(s, r.Object("a", "u", "2"), nil))
	b := r.Store.NewBatch()
	if err := r.c.timers.table.Rows(nil, "", func(key string, row *timer.Row) error {
		held, err := record.Decode(row.Record)
		if err != nil {
			return err
		}
		held.OldObject = compact.Body{Dict: 99, RawLen: 9, Data: []byte("damaged")}
		damaged, err := record.Append(nil, held)
		timer.Revise(b, key, row, damaged)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.Store.Commit(b); err != nil {
		t.Fatal(err)
	}
	r.pass(time.Minute)
	q, err := r.Store.Queue("sink")
	if err != nil {
		t.Fatal(err)
	}
	if n := q.Stats().Length; n != 2 {
		t.Errorf("the sink has %d events, want 2", n)
	}
}

// setClock sets the clock back or ahead, one time in three. Times that are then to come are now.
func setClock(random *rand.Rand, now time.Time, times map[string]time.Time) time.Time {
	if random.IntN(3) > 0 {
		return now
	}
	now = now.Add(time.Duration(random.IntN(2000)-1000) * time.Minute)
	for name, t := range times {
		if t.After(now) {
			times[name] = now
		}
	}
	return now
}

// TestThrottleModel compares a throttled sink with a model, over edits, restarts, crashes, lost
// history and clocks that are set: for each object it is given the first event of a period, then one a period, and in the end the
// last; deletions at once; sequences that rise.
func TestThrottleModel(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { throttleModel(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func throttleModel(t *testing.T, random *rand.Rand) {
	fs, clock, spec := vfs.NewCrashableMem(), now, slow
	life := func() (*rig, *Feed) {
		r := newRig(t, fs, committest.PodWatch())
		r.at = clock
		r.route(spec)
		return r, r.feed(pods)
	}
	r, s := life()
	version, uid, taken, edited := 0, 0, true, false
	exists := map[string]string{} // uid by name
	last := map[string]string{}   // the last event by name
	sent := map[string]string{}   // the last that the sink has
	sequences, at := map[string]uint64{}, map[string]time.Time{}
	seen := map[uint64]bool{}
	look := func() {
		events := r.delivered("sink")
		for i, e := range events {
			if seen[e.Sequence] || e.Type == event.Gap {
				continue // a crash took its acknowledgement back
			}
			seen[e.Sequence] = true
			if e.Sequence <= sequences[e.Name] {
				t.Fatalf("%s: sequence %d after %d", e.Name, e.Sequence, sequences[e.Name])
			}
			if before, ok := at[e.Name]; ok && !edited && r.at.Sub(before) < spec.Throttle && !deletedAfter(events[i:]) {
				t.Fatalf("%s: two events within %s of %s", e.Name, r.at.Sub(before), spec.Throttle)
			}
			sequences[e.Name], at[e.Name] = e.Sequence, r.at
			if e.Type == event.Deleted {
				delete(at, e.Name)
			}
			sent[e.Name] = fmt.Sprint(e.Type, e.ResourceVersion)
		}
		maps.DeleteFunc(at, func(_ string, began time.Time) bool { return r.at.Sub(began) >= spec.Throttle })
	}
	for range 200 {
		name := string(rune('a' + random.IntN(3)))
		version++
		switch n := random.IntN(24); {
		case n < 10 && exists[name] != "":
			r.commit(updatedIn(s, r.Object(name, exists[name], fmt.Sprint(version)), nil))
			if taken {
				last[name] = fmt.Sprint(event.Updated, version)
			}
		case n < 10:
			uid++
			exists[name] = fmt.Sprint("u", uid)
			r.commit(addedTo(s, r.Object(name, exists[name], fmt.Sprint(version))))
			if taken {
				last[name] = fmt.Sprint(event.Added, version)
			}
		case n < 12 && exists[name] != "":
			r.commit(deletedFrom(s, r.Object(name, exists[name], fmt.Sprint(version))))
			delete(exists, name)
			if !taken {
				delete(at, name)
				break
			}
			look()
			if last[name] = fmt.Sprint(event.Deleted, version); sent[name] != last[name] {
				t.Fatalf("%s: %s is not delivered at once", name, last[name])
			}
		case n < 18:
			r.pass(time.Duration(random.IntN(40)) * time.Second)
		case n == 18:
			spec.Throttle = time.Duration(1+random.IntN(100)) * time.Second
			r.route(spec)
			taken = true
		case n == 19: // other routes begin other periods
			if taken = random.IntN(2) == 0; taken {
				spec.Name = []string{"slow", "renamed"}[random.IntN(2)]
				r.route(spec)
			} else {
				r.route()
			}
			if random.IntN(2) == 0 && exists[name] != "" { // before what is held is released
				r.commit(updatedIn(s, r.Object(name, exists[name], fmt.Sprint(version)), nil))
				if taken {
					last[name] = fmt.Sprint(event.Updated, version)
				}
			}
			r.pass(0)
			edited = true
			look()
			edited = false
			clear(at)
		case n == 20:
			spec.Payload = [][]string{{"object", "summary"}, slow.Payload, nil}[random.IntN(3)]
			r.route(spec)
			taken = true
		case n == 21:
			r.commit(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "2", To: "9", FromTime: r.at, ToTime: r.at}})
		default:
			clock = setClock(random, r.at, at)
			if r.at = clock; random.IntN(4) > 0 {
				fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: random})
				r, s = life()
				taken = true
			}
			r.pass(0)
		}
		look()
	}
	r.pass(time.Hour)
	look()
	for name, want := range last {
		if sent[name] != want {
			t.Errorf("%s: the sink has %s in the end, want %s", name, sent[name], want)
		}
	}
}

// deletedAfter reports whether the object of the first event is deleted by one of them: what
// is held goes before the deletion.
func deletedAfter(events []*event.Event) bool {
	return slices.ContainsFunc(events, func(e *event.Event) bool { return e.Name == events[0].Name && e.Type == event.Deleted })
}

// measured is a store with small batches, which notes the largest one.
type measured struct {
	Store
	most int
}

func (*measured) BatchBytes() int { return 16 << 10 }

func (m *measured) Commit(b *store.Batch) error {
	m.most = max(m.most, b.Size())
	return m.Store.Commit(b)
}

// TestTimersOfLargeObjects releases what routes hold of many large objects at once: in batches
// that are bounded by their size, as those of other jobs.
func TestTimersOfLargeObjects(t *testing.T) {
	const n, size = 60, 2 << 10
	lasting := route.Spec{Name: "lasting", When: "true", Sinks: []string{"sink"}, For: time.Minute}
	for _, tc := range []struct {
		spec route.Spec
		want int // events of each object
	}{{slow, 2}, {lasting, 1}} {
		t.Run(tc.spec.Name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			r.route(tc.spec)
			s := r.liveFeed()
			r.commit(&feedSynced{feed: s})
			random := rand.New(rand.NewPCG(1, 2))
			object := func(i int, version string) *compact.Object {
				noise := make([]byte, size)
				for j := range noise {
					noise[j] = byte(random.IntN(256))
				}
				return r.edited(s, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"pod-%d","uid":"u%d","resourceVersion":%q},"data":"%x"}`, i, i, version, noise))
			}
			for i := range n {
				r.commit(addedTo(s, object(i, "1")))
			}
			for i := range n {
				r.commit(updatedIn(s, object(i, "2"), nil))
			}
			m := &measured{Store: r.c.store}
			r.c.store = m
			r.pass(2 * time.Minute)
			if most := m.BatchBytes() + 8*size; m.most > most {
				t.Errorf("a batch has %d bytes, want at most %d", m.most, most)
			}
			came := map[string]int{}
			for _, e := range r.delivered("sink") {
				came[e.Name]++
			}
			for i := range n {
				if name := fmt.Sprint("pod-", i); came[name] != tc.want {
					t.Errorf("%s came %d times, want %d", name, came[name], tc.want)
				}
			}
		})
	}
}

// TestThrottleKeepsAnEntry: an object that enters the selection while its events are held has entered for the
// receiver, whatever of it comes before the release.
func TestThrottleKeepsAnEntry(t *testing.T) {
	filter, err := selector.NewFilter(selector.Namespaces{}, "tier=web", "")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, disk(), committest.PodWatch(func(w *plan.Watch) { w.Filter = filter }))
	web := slow
	web.When = `metadata.labels["tier"] == "web"` // does not take what leaves
	r.route(web)
	s := r.feed(pods)
	last := r.Object("a", "u", "1", "web")
	r.commit(addedTo(s, last))
	for i, tier := range []string{"db", "web", "web"} {
		next := r.Object("a", "u", strconv.Itoa(i+2), tier)
		r.commit(updatedIn(s, next, last))
		last = next
	}
	r.pass(time.Minute)
	var got []string
	for _, e := range r.delivered("sink") {
		got = append(got, fmt.Sprintf("%s %s %s", e.Type, e.ResourceVersion, e.Selection))
	}
	if diff := cmp.Diff([]string{"added 1 ", "updated 4 entered"}, got); diff != "" {
		t.Errorf("delivered (-want +got):\n%s", diff)
	}
}

// TestSnapshotBeginsNoPeriod gives a sink an object again: the next change does not wait for that.
func TestSnapshotBeginsNoPeriod(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(slow)
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u", "1")))
	r.pass(time.Minute)
	j := newSnapshot(s, s.Watches()[0])
	j.forSink("sink")
	Barrier{r.group}.add(j)
	r.commit()
	r.commit(updatedIn(s, r.Object("a", "u", "2"), nil))
	r.takes("sink", "added a 1", "sync a 1", "updated a 2: no visible change")
}

// TestThrottleOfAnUnreadableRow gives a sink the next event at once if what its route holds of the object cannot be read.
func TestThrottleOfAnUnreadableRow(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(slow)
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u", "1")))
	r.commit(updatedIn(s, r.Object("a", "u", "2"), nil))
	r.c.timers.table = timer.NewTable(&brokenStore{Store: r.Store, prefix: "none", unreadable: "timer/row/"})
	r.commit(updatedIn(s, r.Object("a", "u", "3"), nil))
	r.takes("sink", "added a 1", "updated a 3: no visible change")
}

// TestReleaseHeld gives a sink that no route leads to all that is held for it, in groups.
func TestReleaseHeld(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(slow)
	s := r.feed(pods)
	const objects = timerLook + 1
	for i := range objects {
		r.add(addedTo(s, r.Object(fmt.Sprint("a", i), "u", "1")))
	}
	r.commit()
	for i := range objects {
		r.add(updatedIn(s, r.Object(fmt.Sprint("a", i), "u", "2"), nil))
	}
	r.commit()
	if n := len(r.delivered("sink")); n != objects {
		t.Fatalf("the sink is given %d events, want those that do not wait, %d", n, objects)
	}
	r.route()
	before := r.Store.LogStats().Last
	part := &releaseHeld{of: []*timer.Bucket{{Name: timer.Name{Route: "slow", Sink: "sink"}, Former: true}}}
	if err := r.group.commitAlone(part); err != nil {
		t.Fatal(err)
	}
	if n := len(r.delivered("sink")); n != timerLook {
		t.Errorf("the sink is given %d events with the first group, want %d", n, timerLook)
	}
	if err := (Barrier{r.group}).ReleaseHeld("sink"); err != nil {
		t.Fatal(err)
	}
	if n := len(r.delivered("sink")); n != objects-timerLook {
		t.Errorf("the sink is given %d events, want the others that waited, %d", n, objects-timerLook)
	}
	if last := r.Store.LogStats().Last; last != before {
		t.Errorf("%d records were added", last-before)
	}
}

// TestNextLookAtTimers is when the first is due, but for a pause between two looks.
func TestNextLookAtTimers(t *testing.T) {
	for due, want := range map[time.Duration]time.Duration{0: timerPause, time.Second: time.Second, time.Hour: checkpointInterval} {
		b := &timer.Bucket{}
		b.Postpone(now.Add(due))
		x := timers{looked: now, throttles: map[string][]*timer.Bucket{"sink": {b}}}
		if got := x.next().Sub(now); got != want {
			t.Errorf("due in %v, the next look is in %v, want %v", due, got, want)
		}
	}
}
