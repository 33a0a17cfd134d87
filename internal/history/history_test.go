package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/scrub"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	served = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true}
	pods   = event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
	names  = []string{"a", "b", "c", "d", "e", "f"}
)

func pod(name string) Object { return Object{pods, space(name), name} }

// space is the namespace of an object: those of the first names share one, and so do all others.
func space(name string) string {
	if name == "b" || name == "c" {
		return "few"
	}
	return "ns"
}

// world is a store that a committer writes to, and a model of what was in its ledger when.
type world struct {
	*testing.T
	rng   *rand.Rand
	begin time.Time // of the test's clock

	disk  *vfs.MemFS
	fs    vfs.FS        // of the store; nil: the disk
	keep  time.Duration // retention
	watch plan.Watch
	life

	version  int
	shown    atomic.Int64 // the version, for the committer
	skew     atomic.Int64 // of the clock
	skewed   bool         // the clock was set wrong
	clocks   []clock      // the settings of the clock, the oldest first
	cluster  map[string]*compact.Object
	moments  []moment
	noted    uint64                              // the last record, as of the last moment
	changes  []Change                            // of the ledger, the oldest first
	obscured []duration                          // periods in which history was off, or lost
	missed   []time.Time                         // when something changed unseen, by a clock that is right
	unseen   map[string][]duration               // periods in which an object was not as the ledger has it, by name and a clock that is right
	shownAt  map[string]time.Time                // when the last list after a gap showed an object, by name and a clock that is right
	list     atomic.Pointer[dynamicfactory.List] // that the informer makes up for lost history with
}

type duration struct{ from, to time.Time }

// moment is what the ledger has from a time on: "uid version value", by name.
type moment struct {
	at, truth time.Time // by the clock, and by one that is right
	last      uint64    // record
	state     map[string]string
}

// clock is how the clock is set from a time on, by a clock that is right.
type clock struct {
	from time.Time
	skew time.Duration
}

// life is one of the process.
type life struct {
	st    *store.Store
	c     *commit.Committer
	feed  *commit.Feed
	dicts *compact.Dictionaries
	codec *compact.Codec
	r     *Reader
	table *redact.Table
	kill  func()
	seen  uint64 // position

	stage    string       // that a scrub goes on with
	scrubbed *commit.Feed // the feed, once the scrub is done
}

// now is the clock of the world: that of the bubble, in this century, if it is not set wrong.
func (w *world) now() time.Time { return w.truth().Add(time.Duration(w.skew.Load())) }

// rest lets what has happened be recorded, and two minutes pass.
func (w *world) rest() time.Time {
	w.c.Flush()
	time.Sleep(2 * time.Minute)
	return w.now()
}

// truth is a clock that is right.
func (w *world) truth() time.Time {
	return time.Unix(1_900_000_000, 0).UTC().Add(time.Since(w.begin))
}

// set sets the clock wrong, or right.
func (w *world) set() {
	w.skewed = true
	w.skew.Store(int64(w.rng.IntN(3)-1) * w.rng.Int64N(int64([]time.Duration{time.Minute, 20 * time.Minute}[w.rng.IntN(2)])))
	if n := len(w.moments); n > 0 {
		if behind := w.moments[n-1].at.Sub(w.now()); behind > 0 && behind < 2*jitter {
			w.skew.Add(-int64(2 * jitter)) // by less, the records do not show it: their times are as those of another order
		}
	}
	w.clocks = append(w.clocks, clock{w.truth(), time.Duration(w.skew.Load())})
	w.obscured = append(w.obscured, duration{w.now().Add(-time.Hour), w.now().Add(time.Hour)})
}

// showed are the times, by a clock that is right, at which the clock showed a time after the last
// moment that is not later: none if it was set ahead over it.
func (w *world) showed(t time.Time) (list []time.Time) {
	i := len(w.moments) - 1
	for i >= 0 && w.moments[i].at.After(t) {
		i--
	}
	from, to := w.begun(), w.truth()
	if i >= 0 {
		from = w.moments[i].truth
	}
	if i+1 < len(w.moments) {
		to = w.moments[i+1].truth
	}
	for k, c := range w.clocks {
		end := to
		if k+1 < len(w.clocks) && w.clocks[k+1].from.Before(to) {
			end = w.clocks[k+1].from
		}
		if at := t.Add(-c.skew); !at.Before(from) && !at.Before(c.from) && !at.After(end) {
			list = append(list, at)
		}
	}
	return list
}

func (w *world) begun() time.Time { return time.Unix(1_900_000_000, 0).UTC() }

// wasUnseen reports whether the ledger did not have an object as it was whenever the clock showed a
// time since the last moment before it.
func (w *world) wasUnseen(name string, t time.Time) bool {
	all := w.showed(t)
	return len(all) > 0 && !slices.ContainsFunc(all, func(at time.Time) bool { return !within(at, w.unseen[name]) })
}

// hasMissed reports whether something changed unseen in a period, however it is read where the clock
// showed one of its ends twice.
func (w *world) hasMissed(from, to time.Time) bool {
	began, ended := w.showed(from), w.showed(to)
	return len(began) > 0 && len(ended) > 0 && slices.ContainsFunc(w.missed, func(at time.Time) bool {
		return at.After(began[len(began)-1]) && at.Before(ended[0])
	})
}

func newWorld(t *testing.T, seed uint64, keep time.Duration) *world {
	w := &world{T: t, rng: rand.New(rand.NewPCG(seed, 1)), begin: time.Now(), disk: vfs.NewCrashableMem(), keep: keep, cluster: map[string]*compact.Object{}, unseen: map[string][]duration{}, version: 100}
	w.shown.Store(100)
	w.clocks = []clock{{from: w.begun()}}
	w.watch = plan.Watch{Name: "w", Resources: []string{"pods"}, Snapshot: true, History: true, Edits: redact.DefaultEdits()}
	w.open()
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// stream is what the committer sees of an informer.
type stream struct{ w *world }

func (stream) Ack(uint64)                            {}
func (s stream) Checkpoint(uint64) string            { return strconv.FormatInt(s.w.shown.Load(), 10) }
func (stream) Watch() (w dynamicfactory.WatchStatus) { return w }

func (stream) Known(uint64) time.Time              { return time.Time{} }
func (stream) Quiet(uint64) string                 { return "" }
func (stream) Informer() cache.SharedIndexInformer { return objects{} }
func (s stream) NextList(position uint64, _ bool) (l dynamicfactory.List, ok bool) {
	if list := s.w.list.Load(); list != nil && position < list.End {
		return *list, true
	}
	return l, false
}

type objects struct{ cache.SharedIndexInformer }

func (objects) GetStore() cache.Store { return cache.NewStore(cache.MetaNamespaceKeyFunc) }

// open begins a life.
func (w *world) open() {
	w.Helper()
	var err error
	w.life = life{}
	w.st, err = store.Open("store", store.Options{FS: cmp.Or[vfs.FS](w.fs, w.disk), Now: w.now, RetentionMaxAge: w.keep})
	w.must(err)
	w.dicts, err = ledger.LoadDictionaries(w.st)
	w.must(err)
	l := ledger.New(w.st, w.dicts)
	var accepted redact.Accepted
	accepted.Add(redact.Resource{Resource: "pods", Edits: w.watch.Edits})
	w.table, err = redact.Compile(accepted, nil, make([]byte, 32))
	w.must(err)
	w.r = New(passing{w.st}, l, &record.Inflater{Cluster: "test", Dictionaries: w.dicts, Edit: w.table.Edit})
	w.r.now, w.r.places = w.now, 2 // objects of a list in a scan
	w.codec = compact.NewCodecFor(w.dicts, "pods")
	w.c, err = commit.New(commit.Config{
		Cluster: "test", Store: w.st, Ledger: l, Dictionaries: w.dicts, Logger: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry(), Now: w.now, Running: func() []*commit.Feed { return []*commit.Feed{w.feed} },
	})
	w.must(err)
	id, err := commit.IdentityOf(&w.watch, served, "", "", make([]byte, 32))
	w.must(err)
	watch := w.watch
	w.feed = w.c.NewFeed(id, commit.NewWatchRef(&watch))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- w.c.Run(ctx, ctx) }()
	go func() { done <- w.st.Run(ctx) }()
	w.kill = func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				w.Error(err)
			}
		}
	}
	router, err := route.Compile(nil)
	w.must(err)
	w.must(w.c.AtBarrier(func(b commit.Barrier) { b.Adopt(router) }))

	w.must(w.c.Prepare(w.feed))
	w.feed.Subscribed(stream{w})
	snapshot, err := w.c.Begin(w.feed)
	w.must(err)
	h := w.c.Handler(w.feed)
	if snapshot.Relist { // the last object carries the position of the list
		for i, name := range slices.Sorted(maps.Keys(w.cluster)) {
			raw, err := w.cluster[name].AppendJSON(nil)
			w.must(err)
			w.cluster[name] = w.encode(raw).WithPosition(0)
			if w.seen = 1; i == len(w.cluster)-1 {
				w.cluster[name] = w.cluster[name].WithPosition(w.seen)
			}
			h.OnAdd(w.cluster[name], true)
		}
	} else {
		for _, o := range snapshot.Objects {
			h.OnAdd(o, true)
		}
	}
	w.c.Synced(w.feed)
	w.c.Flush()
	w.c.Flush() // the sweep
	w.catchUp(snapshot)
	w.note()
}

// catchUp delivers the changes that a resumed watch has missed.
func (w *world) catchUp(snapshot *dynamicfactory.WarmStart) {
	w.Helper()
	if snapshot.Relist {
		return
	}
	h, known := w.c.Handler(w.feed), map[string]*compact.Object{}
	for _, o := range snapshot.Objects {
		if known[o.GetName()] = o; w.cluster[o.GetName()] == nil {
			h.OnDelete(w.object(o.GetName(), string(o.GetUID())))
		}
	}
	for name, o := range w.cluster {
		old := known[name]
		if old != nil && old.GetResourceVersion() == o.GetResourceVersion() {
			w.cluster[name] = old
			continue
		}
		raw, err := o.AppendJSON(nil)
		w.must(err)
		if w.cluster[name] = w.encode(raw); old == nil {
			h.OnAdd(w.cluster[name], false)
		} else {
			h.OnUpdate(old, w.cluster[name])
		}
	}
	w.c.Flush()
}

// passing has headlines that are valid during the call only.
type passing struct{ *store.Store }

func (p passing) ScanHeadlines(from, to uint64, newestFirst bool, f func(blocks []byte) error) error {
	var buf []byte
	return p.Store.ScanHeadlines(from, to, newestFirst, func(blocks []byte) error {
		buf = append(buf[:0], blocks...)
		defer func() {
			for i := range buf {
				buf[i] = '?'
			}
		}()
		return f(buf)
	})
}

// restart ends a life, by a power cut or not, and begins the next. A cut loses some of what is
// not synced.
func (w *world) restart(cut bool) {
	clone := w.disk
	if cut {
		for range w.rng.IntN(100) {
			runtime.Gosched() // anywhere in what the committer and the store do
		}
		clone = w.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: w.rng.IntN(101), RNG: w.rng})
	}
	w.kill()
	w.must(w.st.Close())
	w.disk = clone
	w.open()
}

func (w *world) end() {
	w.kill()
	w.must(w.st.Close())
}

func (w *world) encode(raw []byte) *compact.Object {
	w.Helper()
	var by rawjson.Change
	out, err := w.feed.Edit(nil, raw, &by)
	w.must(err)
	meta, err := rawjson.Scan(out)
	w.must(err)
	meta.Change = &by
	o, err := w.codec.Encode(out, &meta, 0)
	w.must(err)
	w.seen++
	return o.WithPosition(w.seen)
}

// object makes the next version of an object.
func (w *world) object(name, uid string) *compact.Object {
	w.version++
	w.shown.Store(int64(w.version))
	return w.encode(fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":%q,"name":%q,"uid":%q,"resourceVersion":"%d"},"spec":{"value":"%d","secret":"of %s"}}`,
		space(name), name, uid, w.version, w.rng.IntN(3), uid))
}

// step lets an object or more change, at one time.
func (w *world) step() {
	w.Helper()
	w.change()
	w.c.Flush()
	w.note()
}

func (w *world) change() {
	w.Helper()
	for _, name := range names {
		if w.rng.IntN(3) > 0 {
			continue
		}
		w.observe(w.mutate(name))
	}
}

// mutate lets an object change in the cluster, and returns its state before and the one since
// then, or nil and its last one.
func (w *world) mutate(name string) (old, object *compact.Object, deleted bool) {
	old, uid := w.cluster[name], fmt.Sprint("u", w.version)
	switch n := w.rng.IntN(10); {
	case old == nil, n == 6: // created, or deleted and created again, unseen
		w.cluster[name] = w.object(name, uid)
	case n < 6:
		w.cluster[name] = w.object(name, string(old.GetUID()))
	default:
		delete(w.cluster, name)
		return old, w.object(name, string(old.GetUID())), true
	}
	return old, w.cluster[name], false
}

// observe has the committer see a change.
func (w *world) observe(old, object *compact.Object, deleted bool) {
	switch h := w.c.Handler(w.feed); {
	case deleted:
		h.OnDelete(object)
	case old == nil:
		h.OnAdd(object, false)
	default:
		h.OnUpdate(old, object)
	}
}

// miss lets objects change unseen. The list that makes up for it shows the deletions, and all
// objects one after the other.
func (w *world) miss() {
	if w.skewed { // a record shows how the clock is set: the deletions of a list do not
		w.observe(w.mutate(names[0]))
		w.c.Flush()
		w.note()
	}
	known, from := maps.Clone(w.cluster), w.now()
	pause := func(most time.Duration) { time.Sleep(1 + time.Duration(w.rng.Int64N(int64(most)))) }
	since := map[string]time.Time{}
	change := func(name string) {
		w.mutate(name)
		w.missed = append(w.missed, w.truth())
		if since[name].IsZero() {
			since[name] = w.truth()
		}
	}
	longest := []time.Duration{time.Minute, 5 * time.Minute}[w.rng.IntN(2)]
	for range 1 + w.rng.IntN(4) {
		pause(longest)
		change(names[w.rng.IntN(len(names))])
	}
	if len(w.cluster) == 0 {
		change(names[0])
	}
	pause(time.Minute)
	lost := w.truth()
	w.relist(known, from)
	for name, t := range since {
		until := lost
		if known[name] != nil || w.cluster[name] != nil {
			until = w.shownAt[name].Add(-1)
		}
		w.unseen[name] = append(w.unseen[name], duration{t, until})
	}
	w.obscured = append(w.obscured, duration{from, w.now()})
}

// relist shows the deletions and the present objects to the committer, after a gap that began at a
// time. The last object carries the position of the list.
func (w *world) relist(known map[string]*compact.Object, from time.Time) {
	h, end := w.c.Handler(w.feed), w.seen
	w.list.Store(&dynamicfactory.List{ResourceVersion: strconv.Itoa(w.version), End: end})
	w.c.HistoryLost(w.feed, dynamicfactory.Gap{
		Cause: dynamicfactory.CauseExpired, From: "1", To: strconv.Itoa(w.version), FromTime: from, ToTime: w.now(), Position: end,
	})
	w.shownAt = map[string]time.Time{}
	show := func(name string) {
		w.c.Flush()
		w.shownAt[name] = w.truth()
		w.note()
	}
	// The life may end amid the list: the next one begins with a list.
	interrupted := func() bool {
		if len(w.shownAt) == 0 || w.rng.IntN(12) > 0 { // of the list nothing is committed
			return false
		}
		w.list.Store(nil)
		w.restart(w.rng.IntN(2) == 0)
		for _, name := range names {
			if w.shownAt[name].IsZero() {
				w.shownAt[name] = w.moments[len(w.moments)-1].truth
			}
		}
		return true
	}
	for _, name := range names {
		if o := known[name]; o != nil && w.cluster[name] == nil {
			if interrupted() {
				return
			}
			h.OnDelete(cache.DeletedFinalStateUnknown{Key: space(name) + "/" + name, Obj: o})
			show(name)
		}
	}
	present := slices.Sorted(maps.Keys(w.cluster))
	for i, name := range present {
		if interrupted() {
			return
		}
		changed := known[name] == nil || known[name].GetResourceVersion() != w.cluster[name].GetResourceVersion()
		if w.skewed && changed && w.rng.IntN(6) == 0 { // a record shows it
			w.set()
		}
		o := w.cluster[name].WithPosition(0)
		if i == len(present)-1 {
			o = o.WithPosition(end)
		}
		if w.cluster[name] = o; known[name] == nil {
			h.OnAdd(o, false)
		} else {
			h.OnUpdate(known[name], o)
		}
		show(name)
	}
	w.list.Store(nil)
}

// within reports whether a time is in one of some periods.
func within(t time.Time, periods []duration) bool {
	return slices.ContainsFunc(periods, func(d duration) bool { return !t.Before(d.from) && !t.After(d.to) })
}

// lose loses history.
func (w *world) lose() {
	w.obscured = append(w.obscured, duration{w.now().Add(-6 * time.Minute), w.now()})
	w.c.HistoryLost(w.feed, dynamicfactory.Gap{
		Cause: dynamicfactory.CauseExpired, From: "1", To: strconv.Itoa(w.version),
		FromTime: w.now().Add(-6 * time.Minute), ToTime: w.now(),
	})
	w.c.Flush()
}

// note adds what the ledger has to the model.
func (w *world) note() {
	w.Helper()
	m := moment{w.now(), w.truth(), w.st.LogStats().Last, map[string]string{}}
	_, err := ledger.New(w.st, w.dicts).Scan("pods", "", "", func(_ string, o *compact.Object) error {
		raw, err := o.AppendJSON(nil)
		m.state[o.GetName()] = shape(raw)
		return err
	})
	w.must(err)
	var before map[string]string
	if n := len(w.moments); n > 0 {
		before = w.moments[n-1].state
	}
	for _, name := range names {
		c := Change{Version: Version{Time: m.at}, Name: name}
		was, is := before[name], m.state[name]
		var wasUID, isUID string
		_, _ = fmt.Sscan(was, &wasUID)
		_, _ = fmt.Sscan(is, &isUID)
		switch {
		case was == is:
			continue
		case was == "":
			c.Type = event.Added
		case is == "":
			c.Type = event.Deleted
		case wasUID == isUID:
			c.Type = event.Updated
		default:
			c.Type = event.Deleted
			w.changes = append(w.changes, c)
			c.Type = event.Added
		}
		w.changes = append(w.changes, c)
	}
	if m.last != w.noted || !maps.Equal(before, m.state) { // else nothing tells what the clock showed
		w.moments, w.noted = append(w.moments, m), m.last
	}
	if pause := 1 + w.rng.IntN(30_000); w.rng.IntN(4) > 0 {
		time.Sleep(time.Duration(pause) * time.Millisecond)
	} else { // within a microsecond, as under load
		time.Sleep(time.Duration(1 + pause%300))
	}
}

// shape is what of an object the model compares: not what edits change.
func shape(raw []byte) string {
	if len(raw) == 0 {
		return ""
	}
	var o struct {
		Metadata struct{ UID, ResourceVersion string }
		Spec     struct{ Value string }
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return err.Error()
	}
	return o.Metadata.UID + " " + o.Metadata.ResourceVersion + " " + o.Spec.Value
}

// content is the shape without the version.
func content(shape string) string {
	var uid, version, value string
	_, _ = fmt.Sscan(shape, &uid, &version, &value)
	return uid + " " + value
}

// at is what the ledger had when the clock showed a time last.
func (w *world) at(t time.Time) map[string]string {
	for _, m := range slices.Backward(w.moments) {
		if !m.at.After(t) {
			return m.state
		}
	}
	return nil
}

// someTime is a time from a little before the first record until now, often that of a change.
func (w *world) someTime() time.Time {
	if t := w.moments[w.rng.IntN(len(w.moments))].at; w.rng.IntN(2) == 0 && !t.After(w.now()) {
		return t
	}
	from := w.moments[0].at.Add(-time.Minute)
	if now := w.now(); now.Before(from) {
		from = now.Add(-time.Minute)
	}
	return from.Add(time.Duration(w.rng.Int64N(int64(w.now().Sub(from)))))
}

// check compares answers with the model, and returns how many were exact.
func (w *world) check() (exact, all int) {
	w.Helper()
	ctx := w.Context()
	_, horizon, err := w.r.horizon()
	w.must(err)
	clear := func(t time.Time) bool {
		return !t.Before(horizon) && (w.keep == 0 || t.After(w.now().Add(-w.keep))) && !within(t, w.obscured)
	}
	for i := range 24 {
		if busy := i >= 20; busy { // the scrub and retention go on amid the answers
			w.r.store = &busyStore{passing{w.st}, w}
			clear = func(time.Time) bool { return false }
		}
		t := w.someTime()
		model := w.at(t)
		list, err := w.r.ListAt(ctx, Objects{Resource: pods}, t, "", 100)
		w.must(err)
		listed := map[string]string{}
		for _, s := range list.Items {
			if listed[s.Name] = shape(s.Object); s.As == Exact && listed[s.Name] != model[s.Name] {
				w.Errorf("at %v the list has %q, want %q", t, listed[s.Name], model[s.Name])
			}
			if s.As == Exact && w.wasUnseen(s.Name, t) {
				w.Errorf("%s in the list at %v is exact, and had changed unseen", s.Name, t)
			}
			w.checkSecret(&s)
		}
		if list.As == Exact {
			want := maps.Clone(model)
			for _, s := range list.Items {
				if s.As != Exact { // it may have been there
					want[s.Name] = ""
				}
			}
			for _, name := range names {
				if _, ok := listed[name]; ok && w.wasUnseen(name, t) { // not as an exact one
					want[name] = ""
				}
			}
			if diff := gocmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(listed))); diff != "" {
				w.Errorf("list at %v: %s", t, diff)
			}
			for _, name := range names {
				if _, ok := listed[name]; !ok && w.wasUnseen(name, t) {
					w.Errorf("the list at %v is exact, and lacks %s, which changed unseen", t, name)
				}
			}
		}
		for _, name := range names {
			s, err := w.r.At(ctx, pod(name), t)
			w.must(err)
			all++
			if s.As != Exact {
				if clear(t) {
					w.Errorf("%s at %v is %s, and should be known (the history begins at %v)", name, t, s.As, horizon)
				}
				continue
			}
			exact++
			w.checkSecret(&s)
			w.checkLed(&s)
			if w.wasUnseen(name, t) {
				w.Errorf("%s at %v is exact, and had changed unseen", name, t)
			}
			if got := shape(s.Object); got != model[name] || s.Exists != (model[name] != "") {
				w.Errorf("%s at %v is %q, want %q", name, t, got, model[name])
			}
		}
		w.checkPeriod(t, w.someTime())
		w.checkListPages(t)
	}
	w.r.store = passing{w.st}
	for _, name := range names {
		w.checkVersions(name)
		w.checkVersionPages(name)
		w.checkBlame(name)
	}
	w.checkPages()
	return exact, all
}

// checkSecret wants no state to have what the edits of now hide.
func (w *world) checkSecret(s *State) {
	w.Helper()
	if len(w.watch.Edits.Redact) > 0 && bytes.Contains(s.Object, []byte(`"of u`)) {
		w.Errorf("%s", s.Object)
	}
}

// checkLed wants a state to name the change that led to it, not a record of its form.
func (w *world) checkLed(s *State) {
	w.Helper()
	if s.Sequence == 0 {
		return
	}
	rec, err := w.r.read(s.Sequence)
	w.must(err)
	if rec != nil && (rec.Rerecorded || !rec.Event.Time.Equal(s.Time) || rec.Event.Type != s.Type) {
		w.Errorf("%s is of %d, %s at %v, which is no change that led to it", s.Name, s.Sequence, s.Type, s.Time)
	}
}

// checkListPages compares the pages of a list with the states of its objects.
func (w *world) checkListPages(t time.Time) {
	w.Helper()
	all := Objects{Resource: pods, Namespace: []string{"", "ns", "few", "none"}[w.rng.IntN(4)]}
	got, want, after := map[string]State{}, map[string]State{}, ""
	for pages := 0; ; pages++ {
		list, err := w.r.ListAt(w.Context(), all, t, after, 1+w.rng.IntN(3))
		w.must(err)
		for _, s := range list.Items {
			if _, twice := got[s.Name]; twice {
				w.Errorf("%s is on two pages of a list at %v", s.Name, t)
			}
			got[s.Name] = s
		}
		if after = list.Continue; after == "" {
			break
		}
		if pages > len(names) {
			w.Fatalf("%d pages of a list at %v", pages, t)
		}
	}
	if _, busy := w.r.store.(*busyStore); busy {
		return // retention has gone on between two answers
	}
	for _, name := range names {
		s, err := w.r.At(w.Context(), pod(name), t)
		w.must(err)
		if all.Namespace != "" && all.Namespace != space(name) || s.As == Exact && !s.Exists {
			continue
		}
		if _, ok := got[name]; ok || s.Exists {
			want[name] = s
		}
	}
	if diff := gocmp.Diff(want, got, cmpopts.IgnoreUnexported(State{})); diff != "" {
		w.Errorf("list of namespace %q at %v (-states +pages):\n%s", all.Namespace, t, diff)
	}
}

// busyStore is a store in which retention, and a scrub, go on amid the answers.
type busyStore struct {
	passing
	w *world
}

func (b *busyStore) rest() {
	switch w := b.w; w.rng.IntN(8) {
	case 0:
		time.Sleep(time.Duration(w.rng.Int64N(int64(10 * time.Second))))
	case 1:
		if w.stage != scrub.Files { // which waits for the end of all reads
			w.scrub()
		}
	}
}

func (b *busyStore) ScanHeadlines(from, to uint64, newestFirst bool, f func(blocks []byte) error) error {
	return b.passing.ScanHeadlines(from, to, newestFirst, func(blocks []byte) error {
		b.rest()
		return f(blocks)
	})
}

func (b *busyStore) ReadRecord(sequence uint64) (store.Item, bool, error) {
	b.rest()
	return b.passing.ReadRecord(sequence)
}

// scrub takes a step of rewriting what is recorded as the edits of now want it.
func (w *world) scrub() {
	w.Helper()
	if w.scrubbed == w.feed {
		return
	}
	progress := ledger.Scrub{Resources: []string{"pods"}, Stage: w.stage}
	progress, err := scrub.New(scrub.Config{
		Store: w.st, Dictionaries: w.dicts, Edits: w.table, AtBarrier: w.c.AtBarrier, Now: w.now,
		Keep: func(ledger.Scrub) error { return nil }, Count: func(int, int) {},
	}, progress).Next(w.Context())
	w.must(err)
	if w.stage = progress.Stage; w.stage == "" {
		w.scrubbed = w.feed
	}
}

func (w *world) checkPeriod(from, to time.Time) {
	w.Helper()
	if to.Before(from) {
		from, to = to, from
	}
	ctx, was, is := w.Context(), w.at(from), w.at(to)
	for _, name := range names {
		d, err := w.r.Diff(ctx, pod(name), from, to)
		w.must(err)
		if d.From.As == Exact && d.To.As == Exact && (d.Diff == "") != (content(was[name]) == content(is[name])) && w.watch.History && len(w.obscured) == 0 {
			w.Errorf("%s from %q to %q: %s", name, was[name], is[name], d.Diff)
		}
	}
	c, err := w.r.Changes(ctx, Filter{From: from, To: to}, false)
	w.must(err)
	got, want := map[string]string{}, map[string]string{}
	proven := c.Complete
	for _, n := range c.Items {
		if n.Before == Exact && w.wasUnseen(n.Name, from) || n.After == Exact && w.wasUnseen(n.Name, to) {
			w.Errorf("an end of %v to %v is exact for %s, which had changed unseen: %+v", from, to, n.Name, n)
		}
		if n.Before == Exact && n.After == Exact {
			got[n.Name] = n.Change
		} else {
			proven = false
		}
	}
	for _, name := range names {
		switch {
		case was[name] == "" && is[name] == "", content(was[name]) == content(is[name]):
		case was[name] == "":
			want[name] = "created"
		case is[name] == "":
			want[name] = "deleted"
		default:
			want[name] = "changed"
		}
	}
	for name, change := range got {
		if want[name] != change {
			w.Errorf("from %v to %v %s is %s, want %q", from, to, name, change, want[name])
		}
	}
	if proven && !maps.Equal(got, want) {
		w.Errorf("from %v to %v the changes are %v, want %v", from, to, got, want)
	}
	missed := w.hasMissed(from, to)
	if c.Complete && missed {
		w.Errorf("the changes from %v to %v are complete, and some were unseen", from, to)
	}
	h, err := w.r.Histogram(ctx, Filter{From: from, To: to, Types: []event.Type{event.Added, event.Updated, event.Deleted}}, 1+w.rng.IntN(MaxBuckets))
	w.must(err)
	n := sum(&h)
	if h.Complete && missed {
		w.Errorf("the counts from %v to %v are complete, and some changes were unseen", from, to)
	}
	if want := len(w.changesIn(from, to)); n > want || h.Complete && n != want && (w.keep == 0 || !w.skewed) {
		w.Errorf("from %v to %v there are %d changes, want %d (complete: %t)", from, to, n, want, h.Complete)
	}
}

func (w *world) changesIn(from, to time.Time) (list []Change) {
	for _, c := range w.changes {
		if !c.Time.Before(from) && !c.Time.After(to) {
			list = append(list, c)
		}
	}
	return list
}

// checkVersions compares the versions of an object with the model's, which may be more.
func (w *world) checkVersions(name string) {
	w.Helper()
	v, err := w.r.Versions(w.Context(), VersionQuery{Object: pod(name), Limit: 1 + w.rng.IntN(100)})
	w.must(err)
	model := slices.DeleteFunc(slices.Clone(w.changes), func(c Change) bool { return c.Name != name })
	slices.Reverse(model)
	i := 0
	for _, x := range v.Items {
		for i < len(model) && (!model[i].Time.Equal(x.Time) || model[i].Type != x.Type) {
			if len(w.obscured) == 0 {
				w.Errorf("versions of %s lack %s at %v", name, model[i].Type, model[i].Time)
			}
			i++
		}
		if i == len(model) {
			w.Fatalf("%s has a version %+v that the model lacks", name, x)
		}
		if x.Summary == "" {
			w.Errorf("%s has no summary: %+v", name, x)
		}
		i++
	}
	for i, x := range v.Items {
		w.checkVersion(name, v.Items[:i], x)
	}
}

// checkVersion compares the state that a version left, and what it changed, with the ledger's at that
// moment. newer are the versions after it.
func (w *world) checkVersion(name string, newer []Version, v Version) {
	w.Helper()
	s, err := w.r.AtVersion(pod(name), v.Sequence)
	w.must(err)
	i, _ := slices.BinarySearchFunc(w.moments, v.Sequence, func(m moment, sequence uint64) int { return cmp.Compare(m.last, sequence) })
	if i == len(w.moments) {
		w.Fatalf("version %d of %s is not noted", v.Sequence, name)
	}
	want := w.moments[i].state[name]
	if v.Type == event.Deleted {
		want = ""
	} else if len(newer) > 0 && newer[len(newer)-1].Sequence <= w.moments[i].last {
		want = shape(s.Object) // the moment is of a later version
	}
	if s.As != Exact || s.Sequence != v.Sequence || shape(s.Object) != want || s.Exists != (v.Type != event.Deleted) {
		w.Errorf("version %d of %s is %s %q (exists: %t), want %q", v.Sequence, name, s.As, shape(s.Object), s.Exists, want)
	}
	w.checkSecret(&s)
	d, err := w.r.DiffVersion(w.Context(), pod(name), 0, v.Sequence)
	w.must(err)
	if v.Type == event.Updated && d.From.As == Exact && d.From.Exists && d.From.Sequence != 0 {
		base, err := w.r.AtVersion(pod(name), d.From.Sequence)
		w.must(err)
		if (d.Diff == "") != (content(shape(base.Object)) == content(shape(s.Object))) && w.watch.History && len(w.watch.Edits.Redact) == 0 {
			w.Errorf("version %d of %s from %q to %q: %s", v.Sequence, name, shape(base.Object), shape(s.Object), d.Diff)
		}
	}
	if v.Type == event.Added && d.From.As == Exact && d.From.Exists || d.To.As != Exact {
		w.Errorf("version %d of %s: %+v", v.Sequence, name, d)
	}
}

// checkVersionPages compares the pages of an object's versions, and two parts of them, with the
// whole.
func (w *world) checkVersionPages(name string) {
	w.Helper()
	read := func(q VersionQuery) (list []uint64) {
		q.Object = pod(name)
		for {
			q.Limit = cmp.Or(q.Limit, 1+w.rng.IntN(5))
			v, err := w.r.Versions(w.Context(), q)
			w.must(err)
			for _, x := range v.Items {
				list = append(list, x.Sequence)
			}
			if v.More != (v.Continue != "") || v.More && v.Before != Exact {
				w.Errorf("more is %t, the next page %q, before %s", v.More, v.Continue, v.Before)
			}
			if q.Continue = v.Continue; !v.More {
				return list
			}
		}
	}
	all, t := read(VersionQuery{Limit: 10_000}), w.someTime()
	if pages := read(VersionQuery{}); !slices.Equal(pages, all) {
		w.Errorf("pages of the versions of %s are %v, want %v", name, pages, all)
	}
	if parts := append(read(VersionQuery{From: t.Add(1)}), read(VersionQuery{To: t})...); !slices.Equal(parts, all) {
		w.Errorf("the versions of %s since %v and until then are %v, want %v", name, t, parts, all)
	}
}

// checkBlame compares the time at which a value was set with the model's.
func (w *world) checkBlame(name string) {
	w.Helper()
	b, err := w.r.Blame(w.Context(), pod(name))
	w.must(err)
	if b.Deleted != (w.moments[len(w.moments)-1].state[name] == "") && len(b.Fields) > 0 && len(w.obscured) == 0 {
		w.Errorf("%s is deleted: %t", name, b.Deleted)
	}
	if b.Deleted { // its last state is news of the deletion
		return
	}
	var set time.Time
	before := ""
	for _, m := range w.moments {
		if is := content(m.state[name]); m.state[name] != "" {
			if is != before {
				set = m.at
			}
			before = is
		}
	}
	for _, f := range b.Fields {
		switch {
		case f.Path != "spec.value":
		case f.As == Exact && !f.Time.Equal(set):
			w.Errorf("%s has its value since %v, want %v", name, f.Time, set)
		case f.As != Exact && len(w.obscured) == 0 && w.keep == 0:
			w.Errorf("it is %s who set the value of %s", f.As, name)
		}
	}
}

// checkPages reads all changes in pages.
func (w *world) checkPages() {
	w.Helper()
	for _, oldest := range []bool{true, false} {
		var sequences []uint64
		q := Query{Oldest: oldest, Limit: 1 + w.rng.IntN(50)}
		for {
			p, err := w.r.Query(w.Context(), q)
			w.must(err)
			for _, c := range p.Items {
				sequences = append(sequences, c.Sequence)
			}
			if p.Continue == "" {
				break
			}
			q.Continue = p.Continue
		}
		if !oldest {
			slices.Reverse(sequences)
		}
		if w.keep == 0 { // the test takes time, and retention does not wait
			w.checkTested(oldest)
		}
		var want []uint64
		event := func(row *headline.Row) bool { return row.Flags&headline.Rerecorded == 0 }
		w.must(w.r.rows(w.Context(), 0, w.st.LogStats().Last, false, "", event, func(row *headline.Row) error {
			want = append(want, row.Sequence)
			return nil
		}))
		if !slices.Equal(sequences, want) {
			w.Errorf("pages have %d changes, want %d (oldest first: %t)", len(sequences), len(want), oldest)
		}
	}
}

// checkTested reads the changes that pass a slow test which fails on some.
func (w *world) checkTested(oldest bool) {
	w.Helper()
	odd := func(r *record.Record) (bool, error) {
		version, err := strconv.Atoi(r.Event.ResourceVersion)
		switch {
		case version%7 == 0:
			err = errors.New("a multiple of seven")
		case version%5 == 0:
			err = fmt.Errorf("%w: a multiple of five", ErrAbsent)
		}
		return version%2 == 1 && err == nil, err
	}
	var sequences, want []uint64
	failed, failures, absent, lacking, pages := 0, 0, 0, 0, 0
	q := Query{Oldest: oldest, Limit: 1000, Test: &Test{Accepts: func(r *record.Record) (bool, error) {
		time.Sleep(slice / 10)
		return odd(r)
	}}}
	for ; ; pages++ {
		began := time.Now()
		p, err := w.r.Query(w.Context(), q)
		w.must(err)
		if took := time.Since(began); took > 2*slice {
			w.Errorf("a page takes %v", took)
		}
		for _, c := range p.Items {
			sequences = append(sequences, c.Sequence)
		}
		failed, absent = failed+p.Failed, absent+p.Absent
		if p.Failed > 0 && p.FirstError != "a multiple of seven" {
			w.Errorf("the first error is %q", p.FirstError)
		}
		if p.Continue == "" {
			break
		}
		q.Continue = p.Continue
	}
	if !oldest {
		slices.Reverse(sequences)
	}
	w.must(w.r.rows(w.Context(), 0, w.st.LogStats().Last, false, "", func(row *headline.Row) bool { return row.Flags&headline.Rerecorded == 0 && row.Type != event.Gap }, func(row *headline.Row) error {
		rec, err := w.r.read(row.Sequence)
		w.must(err)
		ok, err := odd(rec.Record)
		if ok {
			want = append(want, row.Sequence)
		}
		switch {
		case errors.Is(err, ErrAbsent):
			lacking++
		case err != nil:
			failures++
		}
		return nil
	}))
	if !slices.Equal(sequences, want) || failed != failures || absent != lacking || pages < len(want)/20 {
		w.Errorf("%d changes pass, %d tests fail and %d lack something, want %d, %d and %d, in %d pages (oldest first: %t)", len(sequences), failed, absent, len(want), failures, lacking, pages, oldest)
	}
}

// Histories of all kinds: no answer is wrong, and where nothing obscures the history all are
// exact.
func TestHistory(t *testing.T) {
	seeds := uint64(1)
	if os.Getenv("WATCHERD_SOAK") != "" {
		seeds = 200
	}
	for name, tc := range map[string]struct {
		keep         time.Duration
		wild, skewed bool
	}{
		"kept": {}, "trimmed": {keep: 5 * time.Minute}, "wild": {wild: true}, "wild and trimmed": {5 * time.Minute, true, false},
		"a clock set wrong": {skewed: true}, "a clock set wrong, trimmed": {5 * time.Minute, false, true},
		"wild, a clock set wrong": {wild: true, skewed: true}, "wild, a clock set wrong, trimmed": {5 * time.Minute, true, true},
	} {
		for seed := range seeds {
			t.Run(fmt.Sprint(name, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, seed, tc.keep)
					defer w.end()
					exact, all := 0, 0
					for range 3 {
						for range 20 {
							w.turn(tc.wild, tc.skewed)
						}
						e, n := w.check()
						exact, all = exact+e, all+n
					}
					t.Logf("%d of %d answers are exact", exact, all)
					if t.Failed() {
						w.describe()
					}
				})
			})
		}
	}
}

// describe logs the moments of the model, and the records.
func (w *world) describe() {
	for _, m := range w.moments {
		w.Logf("moment %v, record %d: %v", m.at, m.last, m.state)
	}
	stats := w.st.LogStats()
	all := func(*headline.Row) bool { return true }
	w.must(w.r.rows(w.Context(), stats.First, stats.Last, false, "", all, func(row *headline.Row) error {
		w.Logf("record %d at %v: %s of %s, flags %b", row.Sequence, row.Time().UTC(), row.Type, row.Name, row.Flags)
		return nil
	}))
}

// turn lets something happen.
func (w *world) turn(wild, skewed bool) {
	w.step()
	switch w.rng.IntN(20) {
	case 0:
		w.restart(false)
	case 1:
		w.restart(true)
	case 5, 6:
		w.change()
		w.restart(true)
	case 2: // stricter edits: another form of what is recorded
		if len(w.watch.Edits.Redact) == 0 {
			w.watch.Edits.Redact = []string{"spec.secret"}
		} else {
			w.watch.Edits.Drop = append(redact.DefaultEdits().Drop, "spec.secret")
		}
		w.restart(false)
	case 3:
		if wild {
			w.lose()
		}
	case 8:
		if wild {
			w.miss()
		}
	case 9: // a namespace goes with all that is in it
		for _, name := range names {
			if space(name) == "few" && w.cluster[name] != nil {
				gone := w.object(name, string(w.cluster[name].GetUID()))
				delete(w.cluster, name)
				w.c.Handler(w.feed).OnDelete(gone)
			}
		}
		w.c.Flush()
		w.note()
	case 10:
		w.scrub()
	case 4:
		if wild {
			w.watch.History = false
			w.restart(false)
			w.step()
			w.step()
			w.watch.History = true
			w.restart(w.rng.IntN(2) == 0)
			w.step()
			w.obscured = append(w.obscured, duration{time.Unix(0, 0), w.now().Add(24 * time.Hour)})
		}
	case 7:
		if skewed { // and a record shows that before the clock shows the time of the last one again
			w.set()
			w.observe(w.mutate(names[0]))
			w.c.Flush()
			w.note()
		}
	case 11:
		if wild { // a part is selected for a time
			apply := []func(){w.reload, func() { w.restart(w.rng.IntN(2) == 0) }}[w.rng.IntN(2)]
			w.selects("few")
			apply()
			w.step()
			w.step()
			w.selects()
			apply()
			w.step()
			w.obscured = append(w.obscured, duration{time.Unix(0, 0), w.now().Add(24 * time.Hour)})
		}
	}
}

// sum is how many changes are in the buckets.
func sum(h *Histogram) (n int) {
	for _, b := range h.Buckets {
		for _, k := range b.Counts {
			n += k
		}
	}
	return n
}

// fill writes records of objects in turn, three milliseconds apart, and the states of the last
// ones. more is JSON of members that each spec has.
func fill(tb testing.TB, st *store.Store, dicts *compact.Dictionaries, objects, records int, more string) (last time.Time) {
	codec := compact.NewCodec(dicts)
	const size = 256 // of a commit
	prev := map[int]uint64{}
	at := time.Now().Add(-time.Hour)
	var block headline.Block
	for begin := 0; begin < records; begin += size {
		batch := st.NewBatch()
		block.Reset()
		for i := begin; i < min(begin+size, records); i++ {
			n := i % objects
			at = at.Add(3 * time.Millisecond)
			name := fmt.Sprintf("object-%d", n)
			o, err := codec.Encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":%q,"uid":"u","resourceVersion":"%d"},"spec":{"a":%d%s}}`, name, i, i, more), nil, 0)
			if err != nil {
				tb.Fatal(err)
			}
			rec := record.Record{Event: event.Event{ID: "00", Type: event.Updated, Time: at, Resource: pods, Namespace: "ns", Name: name, UID: "u"}, Object: o.Body(), State: true, Prev: prev[n]}
			if i < objects {
				rec.Event.Type = event.Added
			}
			payload, err := record.Append(nil, &rec)
			if err != nil {
				tb.Fatal(err)
			}
			prev[n] = batch.Append(store.Record{Time: at, Payload: payload}, nil)
			row := rec.Headline(prev[n], event.Inside)
			row.Manager = []string{"kubelet", "kubectl-edit"}[n%2]
			block.Add(&row)
			if i >= records-objects {
				o.RecordedAs(prev[n])
				batch.PutState("pods", ledger.Key("ns", name), o.AppendBinary(nil))
			}
		}
		batch.PutHeadlines(block.Bytes())
		if err := st.Commit(batch); err != nil {
			tb.Fatal(err)
		}
	}
	return at
}

// BenchmarkMillion asks a store of a million records of 5,000 objects.
func BenchmarkMillion(b *testing.B) {
	st, err := store.Open(b.TempDir(), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	dicts := compact.NewDictionaries(nil)
	at := fill(b, st, dicts, 5000, 1_000_000, "")
	awaitQuiet(b)
	r := New(st, ledger.New(st, dicts), &record.Inflater{Dictionaries: dicts})
	if _, err := r.allGaps(); err != nil { // which a reader reads once
		b.Fatal(err)
	}
	ctx, begin := b.Context(), at.Add(-50*time.Minute)
	for name, ask := range map[string]func() error{
		"versions": func() error {
			_, err := r.Versions(ctx, VersionQuery{Object: pod("object-77"), Limit: 100})
			return err
		},
		"all": func() error {
			_, err := r.Versions(ctx, VersionQuery{Object: pod("object-77"), Limit: 1000})
			return err
		},
		"at": func() error { _, err := r.At(ctx, pod("object-77"), at.Add(-25*time.Minute)); return err },
		"page": func() error {
			_, err := r.Query(ctx, Query{Filter: Filter{Manager: "kubectl-edit"}, Limit: 100})
			return err
		},
		"nothing": func() error {
			_, err := r.Query(ctx, Query{Filter: Filter{Types: []event.Type{event.Deleted}}, Limit: 100})
			return err
		},
		"tested": func() error { // the lone hit is the oldest record: pages of half a second
			q := Query{Limit: 100, Test: &Test{Accepts: func(r *record.Record) (bool, error) { return r.Prev == 1, nil }}}
			for {
				p, err := r.Query(ctx, q)
				if q.Continue = p.Continue; err != nil || p.Continue == "" {
					return err
				}
			}
		},
		"histogram": func() error { _, err := r.Histogram(ctx, Filter{From: begin, To: at}, 200); return err },
	} {
		b.Run(name, func(b *testing.B) {
			before, n := cpu(b), 0
			for b.Loop() {
				if err := ask(); err != nil {
					b.Fatal(err)
				}
				n++
			}
			b.ReportMetric(float64((cpu(b)-before).Milliseconds())/float64(n), "cpu-ms/op")
		})
	}
}

// awaitQuiet waits for the compactions that go on for a while.
func awaitQuiet(b *testing.B) {
	runtime.GC()
	for before, idle := cpu(b), false; !idle; {
		time.Sleep(time.Second)
		now := cpu(b)
		before, idle = now, now-before < 20*time.Millisecond
	}
}

// cpu is the time that the process has used, which other processes lengthen less than the one
// that has passed.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
