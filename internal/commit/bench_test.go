package commit

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// BenchmarkUpdate commits updates of 1,000 pods in groups, without a disk.
func BenchmarkUpdate(b *testing.B) {
	when := `object.status.phase == "Pending"`
	for name, spec := range map[string]route.Spec{
		"free":              {},
		"free with patch":   {Payload: []string{"object", "patch"}},
		"throttle":          {Throttle: time.Hour},
		"throttle to patch": {Throttle: time.Hour, Payload: []string{"object", "patch"}},
		"when":              {When: when},
		"metric":            {Metric: &route.Metric{Name: "m", Labels: map[string]string{"namespace": "metadata.namespace"}, MaxSeries: 10}},
		"sample of all":     {Sample: 0.999999},
		"meaningful":        {Changed: []string{route.Meaningful}},
		"summary":           {Payload: []string{"summary"}},
		"for":               {When: when, For: time.Hour},
	} {
		b.Run(name, func(b *testing.B) { benchmarkUpdate(b, spec, true) })
	}
}

// BenchmarkHistory commits updates with and without a history, in turn. The route takes all of
// them, with the object or without, or none.
func BenchmarkHistory(b *testing.B) {
	for name, spec := range map[string]route.Spec{
		"object":   {},
		"summary":  {Payload: []string{"summary"}},
		"unrouted": {Watches: []string{"another"}},
	} {
		for _, history := range []bool{true, false, true, false} {
			b.Run(fmt.Sprintf("%s/history=%t", name, history), func(b *testing.B) { benchmarkUpdate(b, spec, history) })
		}
	}
}

// bench is a committer with one route, and a feed of pods.
type bench struct {
	*testing.B
	st    *store.Store
	c     *Committer
	feed  *Feed
	codec *compact.Codec
	group *group
	at    time.Time
}

func openBench(b *testing.B, dir string, fs vfs.FS, spec route.Spec, history bool) *bench {
	b.Helper()
	x := &bench{B: b, at: now}
	var err error
	x.st, err = store.Open(dir, store.Options{FS: fs})
	x.must(err)
	dicts, err := ledger.LoadDictionaries(x.st)
	x.must(err)
	x.c, err = New(Config{
		Cluster: "test", Store: x.st, Ledger: ledger.New(x.st, dicts), Dictionaries: dicts,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Now: func() time.Time { return x.at }, Running: func() []*Feed { return nil },
	})
	x.must(err)
	spec.Name, spec.Sinks = "r", []string{"sink"}
	_, err = x.st.EnsureSink("sink", store.FromNow)
	x.must(err)
	router, err := route.Compile([]route.Spec{spec})
	x.must(err)
	x.c.adopt(router)
	w := plan.Watch{Name: "w", Resources: []string{"pods"}, History: history}
	id, err := IdentityOf(&w, pods, "", "", redactKey)
	x.must(err)
	x.feed, x.codec, x.group = x.c.NewFeed(id, NewWatchRef(&w)), compact.NewCodecFor(dicts, "pods"), newGroup(x.c)
	x.feed.recordedForm = x.feed.Form // as in a life that has begun
	return x
}

func (x *bench) must(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

// pod is a version of a pod of about five kilobytes.
func (x *bench) pod(i, version int) *compact.Object {
	x.Helper()
	o, err := x.codec.Encode(fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"pod-%d","uid":"u-%d","resourceVersion":"%d","annotations":{"a":%q}},"status":{"phase":"Pending"}}`,
		i, i, version, strings.Repeat("five kilobytes ", 330)), nil, 0)
	x.must(err)
	return o
}

// update commits an update with the group, at the end of one of 50.
func (x *bench) update(n int, old, obj *compact.Object) {
	x.group.add(&objectSeen{sighting: sighting{feed: x.feed, obj: obj, at: x.at, rewound: true}, old: old})
	if n%50 == 49 {
		x.must(x.group.commit(false))
	}
}

func benchmarkUpdate(b *testing.B, spec route.Spec, history bool) {
	x := openBench(b, "store", vfs.NewMem(), spec, history)
	defer x.st.Close()
	const objects = 1000
	var states [2][objects]*compact.Object
	for i := range objects {
		for j := range states {
			states[j][i] = x.pod(i, j)
		}
		x.group.add(&objectSeen{sighting: sighting{feed: x.feed, obj: states[0][i], at: x.at}, initial: true})
	}
	x.must(x.group.commit(false))
	n, began := objects, cpu(b)
	for b.Loop() {
		x.update(n, states[(n/objects+1)%2][n%objects], states[n/objects%2][n%objects])
		n++
	}
	b.StopTimer()
	b.ReportMetric(float64((cpu(b)-began).Microseconds())/float64(n-objects), "cpu-µs/op")
	x.must(x.group.commit(false))
}

// cpu is the time that the process has used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkHeld measures a committer, on a disk, whose route holds an event of each of so many
// objects: its start, its memory, an update of one of the objects, and the delivery of all.
// It is to run once: -benchtime 1x.
func BenchmarkHeld(b *testing.B) {
	for _, objects := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprint(objects), func(b *testing.B) {
			if objects > 10_000 && os.Getenv("WATCHERD_SOAK") == "" {
				b.Skip("WATCHERD_SOAK is not set")
			}
			benchmarkHeld(b, objects)
		})
	}
}

func benchmarkHeld(b *testing.B, objects int) {
	spec, dir := route.Spec{Throttle: time.Hour, Payload: []string{"object", "patch"}}, b.TempDir()
	x := openBench(b, dir, vfs.Default, spec, true)
	bucket := x.c.timers.throttles["sink"][0]
	obj := x.pod(0, 1)
	of := record.Record{
		Event:  event.Event{Type: event.Updated, Time: x.at, Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Namespace: "ns", ResourceVersion: "1"},
		Object: obj.Body(), OldObject: obj.Body(), Targets: []record.Target{{Sink: "sink", Routes: "r", Flags: record.Object | record.Patch}},
	}
	x.must(x.group.commit(false))
	for i := 0; i < objects; {
		batch := x.st.NewBatch()
		for range 1000 {
			of.Event.ID, of.Event.Name, of.Event.UID = fmt.Sprintf("%032x", i), fmt.Sprintf("pod-%d", i), fmt.Sprintf("u-%d", i)
			held, err := record.Append(nil, &of)
			x.must(err)
			start := x.at.Add(time.Duration(i) * time.Millisecond)
			x.c.timers.table.Put(batch, bucket, of.Event.PartitionKey(), nil, &timer.Row{Start: start, Armed: true, UID: of.Event.UID, Sequence: 1, Record: held})
			i++
		}
		x.c.timers.table.Seal(batch)
		x.must(x.st.Commit(batch))
		x.c.timers.table.Committed()
	}
	x.must(x.st.Close())
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for b.Loop() {
		b.StopTimer()
		before, began := heap(), time.Now()
		x = openBench(b, dir, vfs.Default, spec, true)
		x.at = x.at.Add(time.Duration(objects) * time.Millisecond)
		x.group.lookAtTimers()
		x.must(x.group.commit(true))
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-start")
		b.ReportMetric((heap()-before)/1e6, "MB")
		if held := x.c.timers.throttles["sink"][0].Held(); held != objects {
			b.Fatalf("%d are held, want %d", held, objects)
		}
		const updates = 5000
		var states [2][updates]*compact.Object
		for i := range updates {
			states[0][i], states[1][i] = x.pod(i*(objects/updates), 1), x.pod(i*(objects/updates), 2)
		}
		began = time.Now()
		for i := range updates {
			x.update(i, states[0][i], states[1][i])
		}
		b.ReportMetric(float64(time.Since(began).Microseconds())/updates, "µs/update")
		x.at = x.at.Add(time.Hour)
		began = time.Now()
		slowest := time.Duration(0)
		x.group.lookAtTimers()
		for len(x.group.jobs) > 0 {
			one := time.Now()
			x.must(x.group.commit(true))
			slowest = max(slowest, time.Since(one))
		}
		b.ReportMetric(float64(time.Since(began).Microseconds())/float64(objects), "µs/delivery")
		b.ReportMetric(float64(slowest.Milliseconds()), "ms-slowest-commit")
		q, err := x.st.Queue("sink")
		x.must(err)
		if n := q.Stats().Length; int(n) != objects {
			b.Fatalf("%d are delivered, want %d", n, objects)
		}
		x.must(x.st.Close())
		b.StartTimer()
	}
}
