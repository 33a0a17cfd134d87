package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/pkg/event"
)

// expectEvent checks an event of the stream: its id and name, and a part of its data.
func expectEvent(t *testing.T, got string, id uint64, name, data string) {
	t.Helper()
	head := fmt.Sprintf("id: %d\nevent: %s\ndata: {", id, name)
	if !strings.HasPrefix(got, head) || !strings.Contains(got, data) || strings.Count(got, "\n") != 2 {
		t.Fatalf("got event %q, want %q … %q", got, head, data)
	}
}

func TestStreamResumes(t *testing.T) {
	f := newFixture(t).serve()
	first := f.store.LogStats().First
	sequence := func(n uint64) string { return fmt.Sprint(first + n - 1) }
	f.record(change(event.Added, "a", "one"), change(event.Updated, "a", "two"))

	live := f.stream("/api/v1/events")
	f.record(change(event.Deleted, "a", "three"))
	expectEvent(t, live.next(), first+2, "deleted", `"name":"three"`)

	resumed := f.stream("/api/v1/events", "Last-Event-ID", sequence(1))
	expectEvent(t, resumed.next(), first+1, "updated", `"name":"two"`)
	expectEvent(t, resumed.next(), first+2, "deleted", `"name":"three"`)
	f.record(change(event.Added, "a", "four"))
	expectEvent(t, resumed.next(), first+3, "added", `"specversion":"1.0"`)
	expectEvent(t, live.next(), first+3, "added", `"name":"four"`)

	for since, want := range map[string]int{"0": 4, "1": 4, sequence(1): 4, sequence(3): 2, sequence(5): 0, "1h": 4, time.Now().Add(time.Hour).Format(time.RFC3339): 0} {
		past := f.stream("/api/v1/events?follow=false&since=" + strings.ReplaceAll(since, "+", "%2B"))
		n := 0
		for past.next() != "" {
			n++
		}
		if n != want {
			t.Errorf("since %s: %d events, want %d", since, n, want)
		}
	}
	for query, code := range map[string]int{"since=soon": 400, "limit=-1": 400, "follow=maybe": 400, "type=odd": 400, "route=none": 404, "resource=nodes": 404} {
		got, body := f.get("/api/v1/events?" + query)
		f.expect(got, body, code)
	}
	got, body := f.get("/api/v1/events", "Last-Event-ID", "abc")
	f.expect(got, body, 400, "Last-Event-ID")
}

// TestIDOfAnotherLog: a reader that resumes with an id which the log has not reached, of another daemon or of a store whose
// clock was ahead, is notified and gets what the log has. It would have nothing until the log passes that.
func TestIDOfAnotherLog(t *testing.T) {
	f := newFixture(t).serve()
	f.record(change(event.Added, "a", "one"))
	first, ahead := f.store.LogStats().First, fmt.Sprint(f.store.LogStats().Last+1_000_000)
	for _, path := range []string{"/api/v1/events?follow=false", "/api/v1/events?follow=false&view=feed"} {
		s := f.stream(path, "Last-Event-ID", ahead)
		if got, want := s.next(), fmt.Sprintf("event: truncated\ndata: {\"firstSequence\":%d}", first); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
		if got, want := s.next(), fmt.Sprintf("id: %d\n", first); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	// Of the last event, nothing is lost.
	if got := f.stream("/api/v1/events?follow=false", "Last-Event-ID", fmt.Sprint(first)).next(); got != "" {
		t.Errorf("got %q after the last event", got)
	}
}

// TestSinceATime finds the place in a log by its times, of which some are earlier than those before.
func TestSinceATime(t *testing.T) {
	f := newFixture(t).serve()
	first := f.store.LogStats().First
	begin := time.Now().Add(-100 * time.Minute).Truncate(time.Second).UTC()
	for i := range 100 {
		e := change(event.Added, "a", fmt.Sprintf("n%d", i))
		e.Time = begin.Add(time.Duration(i) * time.Minute)
		late := change(event.Deleted, "a", fmt.Sprintf("late%d", i))
		late.Time = e.Time.Add(-30 * time.Second)
		f.record(e, late)
	}
	for _, i := range []int{0, 1, 49, 50, 98, 99} {
		s := f.stream("/api/v1/events?limit=1&since=" + begin.Add(time.Duration(i)*time.Minute).Format(time.RFC3339))
		expectEvent(t, s.next(), first+2*uint64(i), "added", fmt.Sprintf(`"name":"n%d"`, i))
		if more := s.next(); more != "" {
			t.Errorf("more than the limit: %s", more)
		}
	}
}

// TestParseAgo takes no time of the future for one of the past.
func TestParseAgo(t *testing.T) {
	for text, want := range map[string]time.Duration{"15m": 15 * time.Minute, "-15m": 15 * time.Minute, "-1d12h": 36 * time.Hour, "0": 0, "+15m": -1, "-+15m": -1, "--15m": -1, "": -1, "-": -1} {
		d, ok := ParseAgo(text)
		if !ok {
			d = -1
		}
		if d != want {
			t.Errorf("%q: got %s, want %s", text, d, want)
		}
	}
}

func TestStreamFilters(t *testing.T) {
	f := newFixture(t).serve()
	gap := change(event.Gap, "a", "")
	gap.Gap = &event.GapData{Cause: "expired", Resource: event.Resource{Version: "v1", Resource: "pods"}}
	f.record(change(event.Added, "a", "red"), change(event.Updated, "b", "blue1"), change(event.Deleted, "b", "red"), change(event.Sync, "c", "blue2"), gap)
	for query, want := range map[string]string{
		"":                             "added updated deleted sync gap",
		"namespace=b":                  "updated deleted",
		"namespace=b,c":                "updated deleted sync",
		"type=added&type=sync":         "added sync",
		"route=blue":                   "updated sync gap", // a gap concerns every route
		"resource=po&namespace=a":      "added gap",
		"resource=*.apps":              "",
		"resource=*&type=deleted":      "deleted",
		"route=blue&type=sync&limit=1": "sync",
	} {
		s := f.stream("/api/v1/events?follow=false&since=0&" + query)
		var names []string
		for e := s.next(); e != ""; e = s.next() {
			_, name, _ := strings.Cut(e, "event: ")
			name, _, _ = strings.Cut(name, "\n")
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q: got %q, want %q", query, got, want)
		}
	}
}

// TestGapsOfAllPassFilters: a gap that names no namespace or object may hide changes of any.
func TestGapsOfAllPassFilters(t *testing.T) {
	f := newFixture(t).serve()
	gap := func(namespace, name string) event.Event {
		e := change(event.Gap, namespace, name)
		e.Gap = &event.GapData{Cause: "expired", Resource: e.Resource}
		return e
	}
	f.record(gap("", ""), gap("a", ""), gap("a", "red"), change(event.Added, "b", "red"))
	for query, want := range map[string]int{
		"namespace=a": 3, "namespace=b": 2, "namespace=a&name=red": 3, "namespace=a&name=blue": 2, "name=red": 4, "manager=helm": 3, "resource=*.apps": 0, "type=added&name=red": 1,
	} {
		got := 0
		for s := f.stream("/api/v1/events?follow=false&since=0&" + query); s.next() != ""; got++ {
		}
		if got != want {
			t.Errorf("%q: got %d events, want %d", query, got, want)
		}
	}
}

// nodes are objects in no namespace.
type nodes struct{ Objects }

func (n nodes) Recorded(name string) (event.Resource, bool, error) {
	if name == "nodes" {
		return event.Resource{Version: "v1", Resource: name, Kind: "Node"}, false, nil
	}
	return n.Objects.Recorded(name)
}

// TestNamespaceOfClusterScope: a namespace selects all objects of a resource that has none, as in the history: a reader of both
// would miss what is recorded later.
func TestNamespaceOfClusterScope(t *testing.T) {
	f := newFixture(t)
	f.cfg.Objects = nodes{f}
	f.serve()
	node := change(event.Added, "", "node")
	node.Resource = event.Resource{Version: "v1", Resource: "nodes", Kind: "Node"}
	f.record(node, change(event.Added, "a", "one"), change(event.Added, "b", "two"))
	for query, want := range map[string]int{"namespace=a": 1, "namespace=a&resource=nodes": 1, "namespace=a&resource=pods": 1, "namespace=a&resource=nodes,pods": 2} {
		got := 0
		for s := f.stream("/api/v1/events?follow=false&since=0&" + query); s.next() != ""; got++ {
		}
		if got != want {
			t.Errorf("%q: got %d events, want %d", query, got, want)
		}
	}
}

// lookups counts the names that are looked up: those that are not served are looked for in the log.
type lookups struct {
	Objects
	asked atomic.Int32
}

func (l *lookups) Recorded(name string) (event.Resource, bool, error) {
	l.asked.Add(1)
	return l.Objects.Recorded(name)
}

// TestRepeatedResource: a name that a request repeats, as often as its length permits, is looked up once.
func TestRepeatedResource(t *testing.T) {
	f := newFixture(t)
	count := &lookups{Objects: f}
	f.cfg.Objects = count
	f.serve()
	code, body := f.ask(http.MethodGet, f.base+"/api/v1/events?follow=false&since=1&resource="+strings.Repeat("pods,", 1000), "")
	if code != http.StatusOK || count.asked.Load() != 1 {
		t.Errorf("%d %s: %d look-ups", code, body, count.asked.Load())
	}
}

func TestStreamsAreBounded(t *testing.T) {
	f := newFixture(t).serve()
	var streams []*streamReader
	for range maxStreams {
		streams = append(streams, f.stream("/api/v1/events"))
	}
	code, body := f.get("/api/v1/events")
	f.expect(code, body, 503, "event streams are open already")

	close(f.stopping)
	for _, s := range streams {
		if e := s.next(); !strings.Contains(e, "event: end\n") {
			t.Errorf("a stream was not told of the end: %q", e)
		}
		if e := s.next(); e != "" {
			t.Errorf("a stream goes on after the end: %q", e)
		}
	}
}

// TestBusyLog follows a log of which the reader wants nothing: it hears of the stream, and would
// resume near the end.
func TestBusyLog(t *testing.T) {
	for _, frames := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			body := aMinuteOf(t, busyLog{rate: 1}, &streamQuery{follow: true, frames: frames, name: "other"})
			beats := strings.Split(strings.TrimSpace(body), "\n\n")
			if len(beats) < 4 || beats[len(beats)-1] < "id: 44" {
				t.Errorf("frames %t: the reader has %q", frames, beats)
			}
		})
	}
}

// TestFramesOfABusyLog: a reader gets all counts, and no more rows than it can read.
func TestFramesOfABusyLog(t *testing.T) {
	for rate, want := range map[int][2]int{1000: {6000, 6200}, 50: {2990, 3000}} {
		synctest.Test(t, func(t *testing.T) {
			body := aMinuteOf(t, busyLog{rate: rate}, &streamQuery{follow: true, frames: true})
			total, rows, last := 0, 0, uint64(0)
			for part := range strings.SplitSeq(body, "\n\n") {
				if _, data, ok := strings.Cut(part, "\ndata: "); ok {
					var f Frame
					if err := json.Unmarshal([]byte(data), &f); err != nil {
						t.Fatal(err)
					}
					total, rows, last = total+f.Total, rows+len(f.Rows), f.Rows[len(f.Rows)-1].Sequence
				}
			}
			if total != int(last) || total < rate*59 || rows < want[0] || rows > want[1] {
				t.Errorf("%d a second: %d rows of %d changes up to %d, want from %d to %d", rate, rows, total, last, want[0], want[1])
			}
		})
	}
}

// TestOvertakenByRetention follows a log of which retention deletes records before the reader has them: no record is
// left out without a word.
func TestOvertakenByRetention(t *testing.T) {
	for _, frames := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			body := aMinuteOf(t, busyLog{rate: 1000, kept: 50}, &streamQuery{follow: true, frames: frames})
			next, lost := uint64(1), 0
			for part := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
				head, data, _ := strings.Cut(part, "\ndata: ")
				var got struct {
					FirstSequence uint64
					Total         uint64
				}
				if data == "" { // it is idle
					continue
				}
				if err := json.Unmarshal([]byte(data), &got); err != nil {
					t.Fatal(err)
				}
				var id uint64
				switch {
				case strings.Contains(head, "truncated"):
					next, lost = got.FirstSequence, lost+1
					continue
				case frames:
					next += got.Total - 1
				}
				if _, err := fmt.Sscanf(head, "id: %d", &id); err != nil || id != next {
					t.Fatalf("frames %t: %d follows, want %d: %v", frames, id, next, err)
				}
				next++
			}
			if lost < 100 || next < 59_000 {
				t.Errorf("frames %t: %d truncations up to %d", frames, lost, next)
			}
		})
	}
}

// slowReader takes its time for what is large.
type slowReader struct {
	*httptest.ResponseRecorder
	takes time.Duration
}

func (r slowReader) Write(b []byte) (int, error) {
	if len(b) > 1<<20 {
		time.Sleep(r.takes)
	}
	return r.ResponseRecorder.Write(b)
}

// TestStreamsEndWithTheirToken: a stream that was opened with a token which is replaced ends soon, busy or idle, though its reader
// is slow, and sends nothing after that.
func TestStreamsEndWithTheirToken(t *testing.T) {
	for _, path := range []string{"/api/v1/events", "/api/v1/events?view=feed", "/api/v1/events?name=other", "/api/v1/events?since=1"} {
		for _, rate := range []int{0, 1000} {
			synctest.Test(t, func(t *testing.T) {
				f := &fixture{t: t, stopping: make(chan struct{})}
				file := filepath.Join(t.TempDir(), "token")
				if err := os.WriteFile(file, []byte("first"), 0o600); err != nil {
					t.Fatal(err)
				}
				m, err := newMetrics(prometheus.NewRegistry())
				if err != nil {
					t.Fatal(err)
				}
				s := &Server{
					cfg: Config{Access: Access{ReadTokenFile: file}, Log: busyLog{fixture: f, begin: time.Now().Add(-5 * time.Minute), rate: rate}, Stopping: f.stopping}, log: slog.New(slog.DiscardHandler),
					metrics: m, streams: make(chan struct{}, 1), unreadable: map[string]string{},
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
				r.Header.Set("Authorization", "Bearer first")
				w, done := slowReader{httptest.NewRecorder(), writeTimeout - time.Second}, make(chan error, 1)
				go func() { done <- s.events(w, r) }()
				time.Sleep(time.Minute) // of fake time
				select {
				case err := <-done:
					t.Fatalf("%s: the stream of a good token ended: %v", path, err)
				default:
				}
				if err := os.WriteFile(file, []byte("second"), 0o600); err != nil {
					t.Fatal(err)
				}
				replaced := time.Now()
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if took := time.Since(replaced); took > 30*time.Second {
					t.Errorf("%s, %d a second: the stream ended after %s", path, rate, took)
				}
				if body := w.Body.String(); !strings.HasSuffix(body, "\n\n") || !strings.HasPrefix(body[strings.LastIndex(body[:len(body)-2], "\n\n")+2:], "event: end\ndata: {\"reason\":\"the token is not") {
					t.Errorf("%s, %d a second: the stream ended with %q", path, rate, body[max(0, len(body)-300):])
				}
			})
		}
	}
}

// aMinuteOf is what a stream of a busyLog sends in a minute.
func aMinuteOf(t *testing.T, log busyLog, q *streamQuery) string {
	t.Helper()
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := httptest.NewRecorder()
	st := &stream{w: w, rc: http.NewResponseController(w), metrics: m, asked: time.Now(), refused: func() *Problem { return nil }}
	log.begin = time.Now()
	st.run(ctx, log, q)
	return w.Body.String()
}

// busyLog has so many events more each second, and keeps the newest of them; kept is 0 if it keeps all.
type busyLog struct {
	*fixture
	begin time.Time
	rate  int
	kept  uint64
}

func (l busyLog) last() uint64 { return uint64(time.Since(l.begin).Seconds() * float64(l.rate)) }

func (l busyLog) Event(sequence uint64) (*event.Event, []string, error) {
	e := change(event.Updated, "a", "n")
	e.Sequence = sequence
	return &e, nil, nil
}

func (l busyLog) Bounds() (first, last uint64) {
	first, last = 1, l.last()
	if l.kept > 0 && last > l.kept {
		first = last - l.kept + 1
	}
	return first, last
}

func (l busyLog) Next() uint64 { return l.last() + 1 }

func (l busyLog) Read(after uint64, keep func(*event.Event, []string) bool) (out []Logged, err error) {
	first, last := l.Bounds()
	for n := max(after+1, first); n <= last && len(out) < 16_000; n++ { // about 4 MiB
		e := change(event.Updated, "a", "n")
		one := Logged{Sequence: n}
		if e.Sequence = n; keep(&e, nil) {
			one.Event = &e
		}
		out = append(out, one)
	}
	return out, nil
}

func (l busyLog) Headlines(after uint64, keep func(*headline.Row) bool) error {
	first, last := l.Bounds()
	for n := max(after+1, first); n <= last && keep(&headline.Row{Sequence: n, Type: event.Updated, Namespace: "a", Name: "n"}); n++ {
	}
	return nil
}

func (l busyLog) Wait(ctx context.Context, after uint64) error {
	for l.last() <= after && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
	}
	return ctx.Err()
}

// TestFeed reads a burst in frames: the counts are exact, the rows are the newest, and the rest
// follows from the last id.
func TestFeed(t *testing.T) {
	f := newFixture(t).serve()
	first := f.store.LogStats().First
	var burst []event.Event
	for i := range 200 {
		burst = append(burst, change([]event.Type{event.Added, event.Updated}[i%2], "a", fmt.Sprint("n", i)))
	}
	f.record(burst...)
	// frames are the frames of an answer as one: a slow reader gets more of them.
	frames := func(path string, headers ...string) (all Frame, id string) {
		all.Counts = map[event.Type]int{}
		s := f.stream(path, headers...)
		for e := s.next(); e != ""; e = s.next() {
			var frame Frame
			head, data, _ := strings.Cut(e, "\nevent: frame\ndata: ")
			if err := json.Unmarshal([]byte(data), &frame); err != nil {
				t.Fatalf("%v in %s", err, e)
			}
			if len(frame.Rows) > frameRows || len(frame.Rows) < min(frame.Total-frame.Noise, fewRows) {
				t.Errorf("%d rows of %d", len(frame.Rows), frame.Total)
			}
			all.Total, all.Noise, all.Rows = all.Total+frame.Total, all.Noise+frame.Noise, append(all.Rows, frame.Rows...)
			for of, n := range frame.Counts {
				all.Counts[of] += n
			}
			id = strings.TrimPrefix(head, "id: ")
		}
		return all, id
	}
	for query, want := range map[string]int{"": 200, "&type=updated": 100, "&name=n7": 1, "&namespace=b": 0, "&limit=1": 1, "&route=all": 200, "&route=blue": 0} {
		all, _ := frames("/api/v1/events?view=feed&follow=false&since=0" + query)
		if counted := all.Counts[event.Added] + all.Counts[event.Updated]; all.Total != want || counted != want {
			t.Errorf("%q: %d events, %d counted, want %d", query, all.Total, counted, want)
		}
		for _, row := range all.Rows {
			if row.Summary != fmt.Sprint("of ", row.Sequence) || row.Name != fmt.Sprint("n", row.Sequence-first) || row.Routes[0] != "all" {
				t.Errorf("%+v", row)
			}
		}
	}
	lease := change(event.Updated, "a", "lease")
	lease.Resource, lease.ChangedBy = event.Resource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases", Kind: "Lease"}, &event.ChangedBy{Manager: "kubelet"}
	f.record(lease, lease, change(event.Added, "a", "quiet"))
	for query, want := range map[string]string{
		"":                             "3 events, 2 of them noise, added 1, updated 2, rows [200 201 202]",
		"&noise=false":                 "3 events, 2 of them noise, added 1, updated 2, rows [202]",
		"&noise=false&manager=kubelet": "2 events, 2 of them noise, added 0, updated 2, rows []",
	} {
		all, _ := frames("/api/v1/events?view=feed&follow=false"+query, "Last-Event-ID", fmt.Sprint(first+199))
		rows := []uint64{}
		for _, row := range all.Rows {
			rows = append(rows, row.Sequence-first)
		}
		got := fmt.Sprintf("%d events, %d of them noise, added %d, updated %d, rows %v", all.Total, all.Noise, all.Counts[event.Added], all.Counts[event.Updated], rows)
		if got != want {
			t.Errorf("%q: got %s, want %s", query, got, want)
		}
	}
	for query, want := range map[string]string{"noise=false": "is for view=feed", "noise=false&view=feed&route=all": "without route", "noise=perhaps": "true or false"} {
		code, body := f.get("/api/v1/events?" + query)
		f.expect(code, body, 400, want)
	}
	f.headless = true
	if all, _ := frames("/api/v1/events?view=feed&follow=false&since=0"); all.Total != 203 || all.Noise != 2 {
		t.Errorf("without headlines: %d events, %d of them noise", all.Total, all.Noise)
	}
	f.headless = false
	all, id := frames("/api/v1/events?view=feed&follow=false", "Last-Event-ID", fmt.Sprint(first+149))
	if n := len(all.Rows); n == 0 || all.Rows[n-1].Name != "quiet" || id != fmt.Sprint(first+202) {
		t.Errorf("the rest in %d rows, up to %s", n, id)
	}
	live := f.stream("/api/v1/events?view=feed")
	f.record(change(event.Deleted, "a", "last"))
	if e := live.next(); !strings.Contains(e, `"counts":{"deleted":1}`) || !strings.Contains(e, `"name":"last"`) {
		t.Errorf("live: %s", e)
	}
	code, body := f.get("/api/v1/events?view=odd")
	f.expect(code, body, 400, "view must be feed")
}
