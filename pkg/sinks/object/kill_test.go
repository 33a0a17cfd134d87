package object_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// fate is what a request meets on its way.
type fate int

const (
	passes    fate = iota
	lost           // before the server
	unclear        // behind the server: the answer is lost
	late           // at the server only when the client has given up, and later still
	fateCount = int(late) + 1
)

// wire is the way to a server, on which requests get lost.
type wire struct {
	*httptest.Server
	server string
	onward *http.Transport

	mu   sync.Mutex
	fate func(r *http.Request) fate
	kept []*http.Request
}

func newWire(t *testing.T, o *testservers.Object) *wire {
	t.Helper()
	w := &wire{server: o.Addr, onward: &http.Transport{}, fate: func(*http.Request) fate { return passes }}
	w.Server = httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(func() {
		w.Close()
		w.onward.CloseIdleConnections()
	})
	return w
}

func (w *wire) serve(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	w.mu.Lock()
	f := w.fate(r)
	w.mu.Unlock()
	if f == lost {
		panic(http.ErrAbortHandler)
	}
	next := r.Clone(context.WithoutCancel(r.Context()))
	next.URL.Scheme, next.URL.Host, next.RequestURI = "http", w.server, "" // Host, which is signed, stays
	next.Body = io.NopCloser(bytes.NewReader(body))
	if f == late {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.kept = append(w.kept, next)
		panic(http.ErrAbortHandler)
	}
	resp, err := w.onward.RoundTrip(next)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	if f == unclear {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(rw.Header(), resp.Header)
	rw.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(rw, resp.Body) // the client notices
}

// set changes what happens from now on.
func (w *wire) set(f func(r *http.Request) fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fate = f
}

// release sends what is late.
func (w *wire) release(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	kept := w.kept
	w.kept = nil
	w.mu.Unlock()
	for _, r := range kept {
		resp, err := w.onward.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
}

// spread makes events of two resources on two days, of which folders are made.
func spread(n int) []*event.Event {
	events := sinktest.Events(n, 5)
	for i, e := range events {
		if i%3 == 0 {
			e.Resource.Resource = "statefulsets"
		}
		if i >= n/2 {
			e.Time = e.Time.Add(24 * time.Hour)
		}
	}
	return events
}

// pending are the events of a run that are not known as accepted.
type pending struct {
	t      *testing.T
	events []*event.Event
}

// write writes some of the events, by index.
func (p *pending) write(s sinks.Sink, at ...int) bool {
	p.t.Helper()
	var batch []*event.Event
	for _, i := range at {
		batch = append(batch, p.events[i])
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer cancel()
	err := s.Write(ctx, batch)
	b, named := errors.AsType[*sinks.BatchError](err)
	settled := map[*event.Event]bool{}
	for i, e := range batch {
		settled[e] = err == nil || named && b.Failed[i] == nil
	}
	p.events = slices.DeleteFunc(p.events, func(e *event.Event) bool { return settled[e] })
	return err == nil
}

func indexes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// cuts are the ways in which pending events are written after a failure.
var cuts = map[string]func(p *pending, s sinks.Sink) bool{
	"whole": func(p *pending, s sinks.Sink) bool { return p.write(s, indexes(len(p.events))...) },
	"part":  func(p *pending, s sinks.Sink) bool { return p.write(s, indexes(7)...) },
	"one":   func(p *pending, s sinks.Sink) bool { return p.write(s, 0) },
	// A worker has tried these alone, and waits with them.
	"without the first": func(p *pending, s sinks.Sink) bool { return p.write(s, indexes(len(p.events))[4:]...) },
	"one of the middle": func(p *pending, s sinks.Sink) bool { return p.write(s, 9) },
}

// want fails the test unless the folder has each event once, in order.
func want(t *testing.T, o *testservers.Object, run string, events []*event.Event) {
	t.Helper()
	keys, lines := o.Lines(run)
	times := map[string]int{}
	for _, key := range keys {
		for _, line := range lines[key] {
			for _, e := range events {
				if bytes.Contains(line, []byte(e.ID)) {
					times[e.ID]++
				}
			}
		}
	}
	for _, e := range events {
		if times[e.ID] != 1 {
			t.Errorf("%s: event %d is there %d times", run, e.Sequence, times[e.ID])
		}
	}
}

// TestKillAtEveryStep: whichever request of a Write fails, and however, each event is there once, in the same process and in
// the next one, however the batches are cut then.
func TestKillAtEveryStep(t *testing.T) {
	o := start(t)
	w := newWire(t, o)
	runs := 0
	for cut, retry := range cuts {
		for f := lost; int(f) < fateCount; f++ {
			for _, killed := range []bool{false, true} {
				if killed && f == late {
					continue // what outlives a process is seen by nothing
				}
				for step := 1; ; step++ {
					runs++
					run := fmt.Sprintf("%s-%d-%v-%d", strings.ReplaceAll(cut, " ", "-"), f, killed, step)
					if !killAt(t, w, o, run, f, killed, step, retry) {
						break // the Write had no more steps
					}
				}
			}
		}
	}
	t.Logf("%d runs", runs)
}

// killAt has the step-th request of a Write, and those after it, meet a fate, and then writes what is pending. It reports whether
// there was such a request.
func killAt(t *testing.T, w *wire, o *testservers.Object, run string, f fate, killed bool, step int, retry func(*pending, sinks.Sink) bool) bool {
	t.Helper()
	c := configFor(t, o)
	c.S3.Endpoint, c.Path = w.URL, run+"/{resource}/dt={date}/"
	s := sinktest.Open(t, c)
	all := spread(60)
	p := &pending{t: t, events: slices.Clone(all)}
	if !p.write(s, indexes(20)...) {
		t.Fatal("the first write fails")
	}
	if killed {
		s = sinktest.Open(t, c) // with more requests for each Write
	}
	requests := 0
	w.set(func(*http.Request) fate {
		if requests++; requests == step {
			return f
		} else if requests > step {
			return lost
		}
		return passes
	})
	before := slices.Clone(p.events)
	ended := p.write(s, indexes(25)...)
	w.set(func(*http.Request) fate { return passes })
	if killed {
		p.events = before // nobody knows what was accepted
		s = sinktest.Open(t, c)
	}
	if !retry(p, s) {
		t.Errorf("%s: a write fails", run)
	}
	w.release(t)
	for len(p.events) > 0 {
		if !p.write(s, indexes(min(11, len(p.events)))...) {
			t.Fatalf("%s: a write fails", run)
		}
	}
	w.release(t)
	want(t, o, run, all)
	return !ended
}

// TestKillsAtRandom writes in random batches over a wire that loses requests, with sinks that end at any time.
func TestKillsAtRandom(t *testing.T) {
	o := start(t)
	w := newWire(t, o)
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 17))
		run := fmt.Sprint("random-", seed)
		c := configFor(t, o)
		c.S3.Endpoint, c.Path = w.URL, run+"/{resource}/dt={date}/"
		all := spread(120)
		p := &pending{t: t, events: slices.Clone(all)}
		s := sinktest.Open(t, c)
		for attempts := 0; len(p.events) > 0; attempts++ {
			if attempts == 2000 {
				t.Fatalf("%s: %d events are left", run, len(p.events))
			}
			killed := r.IntN(4) == 0
			fates := rand.New(rand.NewPCG(seed, uint64(attempts))) // of requests, of which some outlive their Write
			w.set(func(*http.Request) fate {
				switch {
				case fates.IntN(8) > 0:
					return passes
				case fates.IntN(2) > 0:
					return lost
				case fates.IntN(2) > 0 && !killed:
					return late
				}
				return unclear
			})
			before := slices.Clone(p.events)
			// Some wait, as behind failures, and some come later.
			at := slices.DeleteFunc(indexes(min(len(p.events), 1+r.IntN(40))), func(int) bool { return r.IntN(6) == 0 })
			if len(at) > 0 {
				p.write(s, at...)
			}
			if r.IntN(3) == 0 || killed {
				w.release(t)
			}
			if killed {
				if r.IntN(2) > 0 {
					p.events = before
				}
				s = sinktest.Open(t, c)
			}
		}
		w.set(func(*http.Request) fate { return passes })
		w.release(t)
		want(t, o, run, all)
	}
}

// TestKillBehindOldEvents: a batch of events that were set aside for a while makes an object that reaches beyond the beginning of
// many. The process is killed before it has noted that the batch was accepted, and the next one, which finds the storage down,
// begins with one event, and cuts the batch in another way.
func TestKillBehindOldEvents(t *testing.T) {
	o := start(t)
	c := configFor(t, o)
	all := sinktest.Events(60, 1)
	for i, e := range all {
		e.Sequence, e.Time = uint64(100+i), all[0].Time
	}
	for run, cut := range map[string][][]int{
		"one by one":         {{0}, {20}, {40}, {55}},
		"behind a new event": {{0, 58}, {59}, {55}, {20, 40}},
		"from the middle":    {{0, 20}, {40, 55}},
	} {
		name := strings.ReplaceAll(run, " ", "-")
		c.Path = name + "/dt={date}/"
		old := map[int]bool{0: true, 20: true, 40: true, 55: true}
		s := sinktest.Open(t, c)
		for i := range 58 {
			if p := (&pending{t: t, events: slices.Clone(all)}); !old[i] && !p.write(s, i) {
				t.Fatal("a write fails")
			}
		}
		if p := (&pending{t: t, events: slices.Clone(all)}); !p.write(s, 0, 20, 40, 55) {
			t.Fatal("a write fails")
		}
		s = sinktest.Open(t, c)
		for _, at := range cut {
			if p := (&pending{t: t, events: slices.Clone(all)}); !p.write(s, at...) {
				t.Fatal("a write fails")
			}
		}
		written := all
		if run != "behind a new event" {
			written = all[:58]
		}
		want(t, o, name, written)
	}
}
