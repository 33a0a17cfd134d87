package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/columns"
	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// fixture is what a server under test serves: a real log, real compact objects, and
// a status that the test sets.
type fixture struct {
	headless bool // its headlines are damaged
	t        testing.TB
	cfg      Config
	store    *store.Store
	objects  []*compact.Object
	state    atomic.Pointer[status.Status]
	stopping chan struct{}
	run      func(ctx context.Context, progress func(int)) (int, error) // of a command
	letters  []DeadLetter
	retried  []uint64 // positions

	base string // URL of the admin listener
	srv  *Server
}

func newFixture(t testing.TB) *fixture {
	st, err := store.Open(t.TempDir(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &fixture{t: t, store: st, stopping: make(chan struct{})}
	f.state.Store(&status.Status{Pipeline: status.Pipeline{Applied: true, Routes: []status.Route{{Name: "all"}, {Name: "blue"}}}})
	opened := make(chan struct{})
	close(opened)
	r := prometheus.NewRegistry()
	f.cfg = Config{
		Listen: "127.0.0.1:0", Status: f.state.Load, Configuration: f.configuration, Objects: f, Log: f, When: f.When, Rehearsal: f, Commands: f, Sinks: f, Letters: lettersOf{f},
		At: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				w.WriteHeader(http.StatusMethodNotAllowed)
			}
		}),
		Opened: opened, Stopping: f.stopping, Gatherer: r, Registerer: r, Logger: slog.New(slog.DiscardHandler),
	}
	return f
}

// serve runs the server until the test ends.
func (f *fixture) serve(edit ...func(*Server)) *fixture {
	f.t.Helper()
	srv, err := Listen(f.t.Context(), f.cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range edit {
		e(srv)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("Run: %v", err)
		}
	})
	f.srv = srv
	scheme := "http://"
	if f.cfg.CertFile != "" {
		scheme = "https://"
	}
	f.base = scheme + srv.Addresses()[0].String()
	return f
}

// client has connections of its own, closed when the test ends.
func (f *fixture) client() *http.Client {
	tr := &http.Transport{}
	f.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// ask sends a request and returns the status code and the body. Headers are name and
// value in turn.
func (f *fixture) ask(method, url, body string, headers ...string) (int, string) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := f.client().Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (f *fixture) get(path string, headers ...string) (int, string) {
	f.t.Helper()
	return f.ask(http.MethodGet, f.base+path, "", headers...)
}

func (f *fixture) post(path, body string) (int, string) {
	f.t.Helper()
	return f.ask(http.MethodPost, f.base+path, body, "Content-Type", "application/json")
}

// expect fails the test unless the answer has the code and its body all the texts.
func (f *fixture) expect(code int, body string, wantCode int, texts ...string) {
	f.t.Helper()
	if code != wantCode {
		f.t.Errorf("status %d, want %d: %s", code, wantCode, body)
	}
	for _, text := range texts {
		if !strings.Contains(body, text) {
			f.t.Errorf("the answer doesn't say %q:\n%s", text, body)
		}
	}
}

// record appends events to the log.
func (f *fixture) record(events ...event.Event) {
	f.t.Helper()
	b := f.store.NewBatch()
	for i := range events {
		payload, err := json.Marshal(&events[i])
		if err != nil {
			f.t.Fatal(err)
		}
		b.Append(store.Record{Time: events[i].Time, Payload: payload}, nil)
	}
	if err := f.store.Commit(b); err != nil {
		f.t.Fatal(err)
	}
}

func change(t event.Type, namespace, name string) event.Event {
	return event.Event{
		ID: "00ff", Type: t, Time: time.Now().UTC(), Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
		Namespace: namespace, Name: name, UID: "u-" + name, Object: json.RawMessage(`{"kind":"Pod"}`),
	}
}

func (f *fixture) configuration() (Configuration, error) {
	return Configuration{Path: "w.yaml", Running: json.RawMessage(`{"sinks":[]}`), File: json.RawMessage(`{}`), Problems: []ConfigProblem{{Line: 1, Column: 2, Key: "kind", Message: "is missing"}}}, nil
}

func (f *fixture) Bounds() (first, last uint64) {
	s := f.store.LogStats()
	return s.First, s.Last
}

func (f *fixture) Next() uint64 { return f.store.LogStats().Next }

// Read knows events whose names begin with blue as those of the route blue.
func (f *fixture) Read(after uint64, keep func(*event.Event, []string) bool) ([]Logged, error) {
	items, err := f.store.ReadLog(after, 16)
	if err != nil {
		return nil, err
	}
	var out []Logged
	for _, it := range items {
		e := &event.Event{}
		if err := json.Unmarshal(it.Payload, e); err != nil {
			out = append(out, Logged{Sequence: it.Sequence, Err: err})
			continue
		}
		e.Sequence = it.Sequence
		routes := []string{"all"}
		if strings.HasPrefix(e.Name, "blue") {
			routes = append(routes, "blue")
		}
		if !keep(e, routes) {
			e = nil
		}
		out = append(out, Logged{Sequence: it.Sequence, Event: e})
	}
	return out, nil
}

// Headlines fails while f.headless.
func (f *fixture) Headlines(after uint64, keep func(*headline.Row) bool) error {
	if f.headless {
		return store.ErrUnreadable
	}
	items, err := f.store.ReadLog(after, 1000)
	for _, it := range items {
		var e event.Event
		if json.Unmarshal(it.Payload, &e) != nil {
			continue
		}
		manager := ""
		if e.ChangedBy != nil {
			manager = e.ChangedBy.Manager
		}
		if !keep(&headline.Row{Manager: manager, Sequence: it.Sequence, At: it.Time.UnixNano(), Type: e.Type, Resource: e.Resource, Namespace: e.Namespace, Name: e.Name}) {
			break
		}
	}
	return err
}

func (f *fixture) Event(sequence uint64) (e *event.Event, routes []string, err error) {
	item, ok, err := f.store.ReadRecord(sequence)
	if err != nil || !ok {
		return nil, nil, err
	}
	e = &event.Event{}
	if err := json.Unmarshal(item.Payload, e); err != nil {
		return nil, nil, nil //nolint:nilerr // like one that is gone
	}
	e.Sequence, e.Summary = sequence, fmt.Sprint("of ", sequence)
	return e, []string{"all"}, nil
}

func (f *fixture) Wait(ctx context.Context, after uint64) error { return f.store.WaitLog(ctx, after) }

func (f *fixture) TimeOf(sequence uint64) (t time.Time, at uint64, ok bool) {
	items, err := f.store.ReadLog(sequence-1, 1)
	if err != nil || len(items) == 0 {
		return t, 0, false
	}
	return items[0].Time, items[0].Sequence, true
}

// add puts objects into the view of pods.
func (f *fixture) add(raws ...string) {
	f.t.Helper()
	codec := compact.NewCodec(compact.NewDictionaries(func(uint32, []byte) error { return nil }))
	for _, raw := range raws {
		meta, err := rawjson.Scan([]byte(raw))
		if err != nil {
			f.t.Fatal(err)
		}
		o, err := codec.Encode([]byte(raw), &meta, 0)
		if err != nil {
			f.t.Fatal(err)
		}
		f.objects = append(f.objects, o)
	}
}

func (f *fixture) View(resource string) (View, error) {
	if !slices.Contains([]string{"pods", "pod", "po"}, strings.ToLower(resource)) {
		return nil, Refuse(http.StatusNotFound, fmt.Errorf("%s: no watch reads it", resource))
	}
	return f, nil
}

func (f *fixture) Recorded(name string) (resource event.Resource, namespaced bool, err error) {
	v, err := f.View(name)
	if err != nil {
		return resource, false, err
	}
	resource, namespaced, _ = v.About()
	return resource, namespaced, nil
}

func (f *fixture) Selectable(event.Resource, string, labels.Selector) error { return nil }

func (f *fixture) Columns(context.Context) []columns.Column { return nil }

func (f *fixture) About() (resource event.Resource, namespaced bool, unsynced string) {
	return event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, true, ""
}

func (f *fixture) List(namespace string, selector labels.Selector) []*compact.Object {
	var list []*compact.Object
	for _, o := range f.objects {
		if (namespace == "" || o.GetNamespace() == namespace) && selector.Matches(o.Labels()) {
			list = append(list, o)
		}
	}
	return list
}

func (f *fixture) Get(namespace, name string) *compact.Object {
	for _, o := range f.objects {
		if o.GetNamespace() == namespace && o.GetName() == name {
			return o
		}
	}
	return nil
}

func (f *fixture) Replay(ctx context.Context, r ReplayRequest, progress func(int)) (int, error) {
	if r.Sink != "archive" {
		return 0, Refuse(http.StatusNotFound, errors.New("no such sink"))
	}
	return f.run(ctx, progress)
}

func (f *fixture) Explain(_ context.Context, name string) (*retrace.Explanation, error) {
	if name != "7" {
		return nil, Refuse(http.StatusNotFound, errors.New("no such event"))
	}
	return &retrace.Explanation{Sequence: 7, Recorded: []retrace.Recorded{}, Watches: []retrace.WatchDecision{}, Routes: []route.Decision{}, Holds: []retrace.Hold{}}, nil
}

func (f *fixture) When(text string) (*history.Test, error) {
	if text == "(" {
		return nil, errors.New("line 1, column 2: Syntax error")
	}
	return &history.Test{Accepts: func(*record.Record) (bool, error) { return true, nil }}, nil
}

func (f *fixture) Backtest(ctx context.Context, r *BacktestRequest, progress func(int)) (*retrace.Backtest, error) {
	_, err := f.run(ctx, progress)
	return &retrace.Backtest{Scanned: len(r.Routes), Routes: []retrace.RouteTest{}, Sinks: []retrace.SinkTest{}}, err
}

func (f *fixture) Snapshot(ctx context.Context, _ SnapshotRequest, progress func(int)) (int, error) {
	return f.run(ctx, progress)
}

func (f *fixture) Backup(context.Context, string) (int, error) { return 7, nil }

func (f *fixture) Reload(context.Context) (status.Config, error) {
	return status.Config{Hash: "abc"}, nil
}

func (f *fixture) Plan(configuration string) (string, error) { return "nothing changed\n", nil }

func (f *fixture) Pause(context.Context, string) error  { return nil }
func (f *fixture) Resume(context.Context, string) error { return nil }

func (f *fixture) Skip(_ context.Context, sink string, sequence uint64) (Skipped, error) {
	if sink != "ops" {
		return Skipped{}, Refuse(http.StatusNotFound, errors.New("no such sink"))
	}
	return Skipped{Sequence: max(sequence, 41), Position: 3, Subject: "/api/v1/namespaces/a/pods/b", Reason: "status 403"}, nil
}

func (f *fixture) Purge(context.Context, string) error {
	return Refuse(http.StatusConflict, errors.New("it is configured"))
}

// lettersOf keeps dead letters in a slice.
type lettersOf struct{ f *fixture }

func (l lettersOf) List(_ string, after uint64, most int, events bool) ([]DeadLetter, error) {
	var page []DeadLetter
	for _, d := range l.f.letters {
		if d.Position > after && len(page) < min(most, 3) {
			page = append(page, d)
		}
	}
	return page, nil
}

// Retry has every letter refused again, under a new position.
func (l lettersOf) Retry(sink string, positions []uint64) (int, error) {
	l.f.retried = append(l.f.retried, positions...)
	n, err := l.Drop(sink, positions)
	for i := range uint64(n) {
		l.f.letters = append(l.f.letters, DeadLetter{Position: positions[len(positions)-1] + 1000 + i})
	}
	return n, err
}

func (l lettersOf) Drop(_ string, positions []uint64) (int, error) {
	before := len(l.f.letters)
	l.f.letters = slices.DeleteFunc(l.f.letters, func(d DeadLetter) bool { return slices.Contains(positions, d.Position) })
	return before - len(l.f.letters), nil
}

// streamReader reads server-sent events.
type streamReader struct {
	t    testing.TB
	resp *http.Response
	buf  []byte
}

func (f *fixture) stream(path string, headers ...string) *streamReader {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, f.base+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := f.client().Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		f.t.Fatalf("%s: status %d: %s", path, resp.StatusCode, b)
	}
	return &streamReader{t: f.t, resp: resp}
}

// next returns the next event, "" at the end of the stream. Comments and bare ids are skipped.
func (s *streamReader) next() string {
	s.t.Helper()
	for {
		if block, rest, ok := bytes.Cut(s.buf, []byte("\n\n")); ok {
			s.buf = rest
			if bytes.Contains(block, []byte("data: ")) {
				return string(block)
			}
			continue
		}
		chunk := make([]byte, 4096)
		n, err := s.resp.Body.Read(chunk)
		s.buf = append(s.buf, chunk[:n]...)
		if err != nil && n == 0 {
			return ""
		}
	}
}
