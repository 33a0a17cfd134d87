package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/waittest"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

const podPath = "/api/v1/pods"

// inBubble runs a test where waiting takes no time.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(27 * 366 * 24 * time.Hour) // a bubble begins with the year 2000, which the store refuses
		f(t)
	})
}

// live is a Manager that runs against an API server of the test.
type live struct {
	*testing.T
	api     *apitest.Server
	m       *Manager
	store   *store.Store
	metrics *prometheus.Registry
	ended   chan error // of Run; a test that expects an error takes it, and puts nil back
	stop    func()     // as SIGTERM does

	told  history // of the log, up to the sequence after
	after uint64
}

func runLive(t *testing.T, dir string, opts store.Options, api *apitest.Server, resolver Resolver) *live {
	t.Helper()
	return runKeyed(t, dir, opts, api, resolver, testKey)
}

// runKeyed is runLive with another redaction key.
func runKeyed(t *testing.T, dir string, opts store.Options, api *apitest.Server, resolver Resolver, key []byte) *live {
	t.Helper()
	return runLogged(t, dir, opts, api, resolver, key, slog.DiscardHandler)
}

func runLogged(t *testing.T, dir string, opts store.Options, api *apitest.Server, resolver Resolver, key []byte, log slog.Handler) *live {
	t.Helper()
	st, err := store.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	metrics := prometheus.NewRegistry()
	m, err := New(Config{
		Cluster: "test", REST: api.Config(), Store: st, Resolver: resolver,
		Logger: slog.New(log), Registerer: metrics, Drain: time.Second,
		RedactionKey: key, Now: opts.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	storeCtx, stopStore := context.WithCancel(context.WithoutCancel(t.Context()))
	var storing sync.WaitGroup
	storing.Go(func() { _ = st.Run(storeCtx) })
	l := &live{T: t, api: api, m: m, store: st, metrics: metrics, ended: make(chan error, 1)}
	go func() { l.ended <- m.Run(ctx) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-l.ended; err != nil {
			t.Errorf("run: %v", err)
		}
		stopStore()
		storing.Wait()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(l.stop)
	return l
}

// state is a state without routes: everything is in the log only.
func (l *live) state(watches ...plan.Watch) *plan.State {
	l.Helper()
	router, err := route.Compile(nil)
	if err != nil {
		l.Fatal(err)
	}
	return &plan.State{Watches: watches, Router: router, Cluster: "test", Store: plan.Store{RetentionMaxAge: time.Hour}}
}

// routed is a state in which one route takes the first watch to the sink x, which no
// worker delivers.
func (l *live) routed(watches ...plan.Watch) *plan.State {
	l.Helper()
	st := l.state(watches...)
	st.Routes = []route.Spec{{Name: "r", Watches: []string{watches[0].Name}, Sinks: []string{"x"}}}
	var err error
	if st.Router, err = route.Compile(st.Routes); err != nil {
		l.Fatal(err)
	}
	return st
}

// defined returns when it is noted that a resource has a definition.
func (l *live) defined(resource string) {
	l.Helper()
	eventually(l.T, "the definition is noted", func() (noted bool) {
		err := l.store.ScanMeta(definedMeta+resource, func(string, []byte) error { noted = true; return nil })
		return noted && err == nil
	})
}

func (l *live) apply(st *plan.State) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), 20*time.Second)
	defer cancel()
	if err := l.m.Apply(ctx, st); err != nil {
		l.Fatal(err)
	}
}

// history is what the log has of each object, "type version", in order.
type history map[string][]string

func (h history) add(payload []byte) error {
	r, err := record.Decode(payload)
	if err != nil {
		return err
	}
	if r.Rerecorded {
		return nil
	}
	e := &r.Event
	line := string(e.Type) + " " + e.ResourceVersion
	if e.FinalStateUnknown {
		line += " unknown"
	}
	if e.Type == event.Gap {
		line = "gap " + e.Gap.Cause
	}
	h[e.Name] = append(h[e.Name], line)
	return nil
}

// log is what was ever read of the log: each call reads what is new.
func (l *live) log() history {
	l.Helper()
	if l.told == nil {
		l.told = history{}
	}
	for {
		items, err := l.store.ReadLog(l.after, 1000)
		if err != nil {
			l.Fatal(err)
		}
		if len(items) == 0 {
			return maps.Clone(l.told)
		}
		for _, it := range items {
			l.after = it.Sequence
			if err := l.told.add(it.Payload); err != nil {
				l.Fatal(err)
			}
		}
	}
}

// queued is what the queue of sink x has of each object.
func (l *live) queued() history {
	l.Helper()
	q, err := l.store.Queue("x")
	if err != nil {
		l.Fatal(err)
	}
	h := history{}
	for after := uint64(0); ; {
		items, err := q.Read(after, 1000, 1<<30)
		if err != nil {
			l.Fatal(err)
		}
		if len(items) == 0 {
			return h
		}
		for _, it := range items {
			after = it.Sequence
			if err := h.add(it.Payload); err != nil {
				l.Fatal(err)
			}
		}
	}
}

// check fails the test unless these are the types of the first objects, and the others have been synced alone.
func (h history) check(t *testing.T, names []string, first ...string) {
	t.Helper()
	for i, n := range names {
		want := "sync"
		if i < len(first) {
			want = first[i]
		}
		if h.types(n) != want {
			t.Errorf("%s: %q, want %s", n, h[n], want)
		}
	}
}

// types is what happened to an object, without versions.
func (h history) types(name string) string {
	out := ""
	for i, line := range h[name] {
		if i > 0 {
			out += " "
		}
		var t string
		_, _ = fmt.Sscan(line, &t)
		out += t
	}
	return out
}

// caughtUp waits until everything that happened to the pods is committed.
func (l *live) caughtUp() {
	l.Helper()
	version := l.api.Version()
	l.api.Put(podPath, "ns", "marker", map[string]any{"status": map[string]any{"at": version}})
	version = l.api.Version()
	eventually(l.T, "the marker is committed", func() bool {
		value, ok, err := l.store.State("pods", ledger.Key("ns", "marker"), nil)
		if err != nil || !ok {
			return false
		}
		o, err := compact.NewCodec(l.m.dicts).Decode(value)
		return err == nil && o.GetResourceVersion() == version
	})
	l.m.committer.Flush() // the log shows a commit after the ledger does
}

// synced waits until a whole list is committed.
func (l *live) synced() {
	l.Helper()
	eventually(l.T, "synced", func() bool {
		cp, ok, err := l.m.ledger.Checkpoint("pods#")
		return err == nil && ok && cp.Synced && cp.ResourceVersion != "" && !cp.Sweeping && cp.Listing == nil
	})
	l.m.committer.Flush()
}

var eventually = waittest.Until

// podServer serves pods pod-00000, pod-00001 and so on.
func podServer(t *testing.T, n int) (*apitest.Server, []string) {
	t.Helper()
	api := apitest.New(t)
	api.Serve(podPath, "v1", "Pod")
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("pod-%05d", i)
		api.Put(podPath, "ns", names[i], nil)
	}
	return api, names
}

// podsAndWidgets is a server of both, without any.
func podsAndWidgets(t *testing.T) *apitest.Server {
	t.Helper()
	api := apitest.New(t)
	api.Serve(podPath, "v1", "Pod")
	api.ServeCustom(widgetPath, "example.com/v1", "Widget")
	return api
}

// both is a state of a watch of pods and one of widgets.
func (l *live) both() *plan.State {
	return l.state(watchOf("p", nil, "pods"), watchOf("w", nil, "widgets.example.com"))
}

// forbid refuses the requests for which forbidden is true.
func forbid(api *apitest.Server, forbidden func(r *http.Request) bool) {
	api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		refused := forbidden(r)
		if refused {
			apitest.Fail(w, http.StatusForbidden, "Forbidden")
		}
		return refused
	})
}

func phase(p string) map[string]any { return map[string]any{"status": map[string]any{"phase": p}} }

// changing is a Resolver whose answers a test changes.
type changing struct {
	changed chan struct{}

	mu   sync.Mutex
	list []dynamicfactory.Resource
}

func (c *changing) Changed() <-chan struct{} { return c.changed }

func (c *changing) set(list ...dynamicfactory.Resource) {
	c.mu.Lock()
	c.list = list
	c.mu.Unlock()
	c.changed <- struct{}{}
}

func (c *changing) Resolve(pattern string) ([]dynamicfactory.Resource, error) {
	return c.Table()(pattern)
}

func (c *changing) Table() func(string) ([]dynamicfactory.Resource, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return served(c.list).Resolve
}

// metric is the sum of a metric's series.
func (l *live) metric(name string) (sum float64) {
	l.Helper()
	families, err := l.metrics.Gather()
	if err != nil {
		l.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

func (l *live) withX() *live {
	l.Helper()
	if _, err := l.store.EnsureSink("x", store.FromNow); err != nil {
		l.Fatal(err)
	}
	return l
}
