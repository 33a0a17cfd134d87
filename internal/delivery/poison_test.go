package delivery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// refuse returns an answer that refuses these objects' first changes, by name
// or as a whole batch.
func refuse(named bool, objects ...int) func(context.Context, []change) error {
	bad := map[int]bool{}
	for _, o := range objects {
		bad[o] = true
	}
	return func(_ context.Context, batch []change) error {
		failed := map[int]error{}
		for i, c := range batch {
			if bad[c.Object] && c.N == 1 {
				failed[i] = sinks.Poison(fmt.Errorf("422: object %d is not wanted", c.Object))
			}
		}
		switch {
		case len(failed) == 0:
			return nil
		case named:
			return &sinks.BatchError{Failed: failed}
		default:
			return sinks.Poison(errors.New("422: the batch is not wanted"))
		}
	}
}

func TestOnePoisonEventIn500(t *testing.T) {
	for _, c := range []struct {
		named                bool
		batch, lanes, writes int
	}{
		{named: false, batch: 500, lanes: 1, writes: 40},
		{named: true, batch: 500, lanes: 1, writes: 10},
		{named: false, batch: 100, lanes: 4, writes: 60},
		{named: false, batch: 1, lanes: 1, writes: 504},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(numbered(1, upTo(500)...)...)
				r := newReceiver(t, refuse(c.named, 321))
				w := start(t, s, r, func(cfg *Config) {
					cfg.Delivery.MaxEvents, cfg.Delivery.Concurrency = c.batch, c.lanes
				})
				defer w.stop()
				synctest.Wait()
				// The others are there before the refused one is even tried again.
				if got := len(r.got()); got != 499 {
					t.Errorf("%d events arrived at once, want 499", got)
				}
				s.add(change{Object: 321, N: 2}, change{Object: 7, N: 2})
				synctest.Wait()
				if got := len(r.got()); got != 500 {
					t.Errorf("%d events arrived, want 500: the refused object's next waits, the other's does not", got)
				}
				time.Sleep(time.Minute)
				letters := s.letters()
				if len(letters) != 1 {
					t.Fatalf("%d dead letters, want 1", len(letters))
				}
				l := letters[0]
				if !strings.HasPrefix(l.Reason, "refused: 422") || l.Attempts != 3 || !strings.Contains(string(l.Payload), `"object":321`) || !l.First.Before(l.Letter.Time) {
					t.Errorf("dead letter %+v, payload %s", l.Letter, l.Payload)
				}
				if got := len(r.got()); got != 501 {
					t.Errorf("%d events arrived, want 501: the object's next goes on after the dead letter", got)
				}
				r.checkOrder()
				if n := len(r.log()); n > c.writes {
					t.Errorf("it took %d writes, want at most %d", n, c.writes)
				}
				if st := w.Status(); st.State != Idle || st.DeadLetters != 1 || st.Delivered != 501 || st.Blocked != 0 {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

// Many poison events at once neither stop the sink nor take others down.
func TestManyPoisonEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		var bad []int
		for o := range 300 {
			if o%3 != 0 {
				bad = append(bad, o)
			}
		}
		s.add(numbered(3, upTo(300)...)...)
		r := newReceiver(t, refuse(false, bad...))
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents, c.Delivery.Concurrency = 50, 2 })
		defer w.stop()
		time.Sleep(10 * time.Minute)
		if got, letters := len(r.got()), len(s.letters()); got != 700 || letters != 200 {
			t.Errorf("%d events arrived, %d dead letters; want 700 and 200", got, letters)
		}
		r.checkOrder()
		refused := map[change]bool{}
		for _, wr := range r.log() {
			for _, c := range wr.batch {
				if refused[c] && len(wr.batch) > 1 {
					t.Errorf("%v was written with others after it was refused alone", c)
				}
			}
			if wr.err != nil && len(wr.batch) == 1 {
				refused[wr.batch[0]] = true
			}
		}
	})
}

// An event that the receiver fails on with a 500 looks like an outage. It blocks
// its own object in the end, not the sink.
func TestOneEventThatAlwaysFails(t *testing.T) {
	for _, named := range []bool{false, true} {
		for _, batch := range []int{1, 20} {
			t.Run(fmt.Sprintf("named=%v,batch=%d", named, batch), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStorage(t)
					defer s.close()
					var mended atomic.Bool
					r := newReceiver(t, func(_ context.Context, batch []change) error {
						for i, c := range batch {
							if c.Object == 13 && !mended.Load() {
								if named {
									return &sinks.BatchError{Failed: map[int]error{i: errors.New("500")}}
								}
								return errors.New("500")
							}
						}
						return nil
					})
					w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents, c.Delivery.Concurrency = batch, 2 })
					defer w.stop()
					const rounds = 100
					for n := range rounds {
						s.add(numbered(n+1, upTo(30)...)[n*30:]...)
						time.Sleep(10 * time.Second)
					}
					if got := len(r.got()); got != rounds*29 {
						t.Errorf("%d events of healthy objects arrived, want %d", got, rounds*29)
					}
					st := w.Status()
					if st.State == Paused || st.State == BackingOff || st.Blocked != rounds {
						t.Errorf("status %+v", st)
					}
					mended.Store(true)
					time.Sleep(6 * time.Minute)
					if got := len(r.got()); got != rounds*30 {
						t.Errorf("%d events arrived in the end, want %d", got, rounds*30)
					}
					r.checkOrder()
					if len(s.letters()) != 0 {
						t.Error("an event that only needed time became a dead letter")
					}
				})
			})
		}
	}
}

func TestUndecodableRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(change{Object: 1, N: 1}, change{Object: 1, N: 2, Bad: true}, change{Object: 1, N: 3}, change{Object: 2, N: 1, Bad: true})
		r := newReceiver(t, accept)
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 10 })
		defer w.stop()
		synctest.Wait()
		if got := fmt.Sprint(r.got()); got != "[1/1 1/3]" {
			t.Errorf("arrived: %s", got)
		}
		letters := s.letters()
		if len(letters) != 2 || letters[0].Reason != "undecodable: no such dictionary" || letters[0].Attempts != 0 {
			t.Errorf("dead letters: %+v", letters)
		}
		if n := s.queue.Stats().Length; n != 0 {
			t.Errorf("%d events are left", n)
		}
	})
}

// A body that fails makes its event a dead letter, at once and alone. One that is nothing
// leaves it out.
func TestFailedBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(change{Object: 1, N: 1}, change{Object: 1, N: 2}, change{Object: 1, N: 3}, change{Object: 2, N: 1}, change{Object: 2, N: 2}, change{Object: 3, N: 2})
		r := newReceiver(t, accept)
		w := start(t, s, r, func(c *Config) {
			c.Delivery.MaxEvents = 10
			c.Render = func(e *event.Event) (send bool, err error) {
				switch e.ID {
				case "1/2":
					return false, errors.New("line 1, column 7: no such key: spec")
				case "3/2":
					panic("a fault in an expression")
				case "2/1":
					return false, nil
				}
				e.Body = []byte("body of " + e.ID)
				return true, nil
			}
		})
		defer w.stop()
		synctest.Wait()
		if got := fmt.Sprint(r.got()); got != "[1/1 1/3 2/2]" {
			t.Errorf("arrived: %s", got)
		}
		for _, e := range r.events {
			if string(e.Body) != "body of "+e.ID {
				t.Errorf("event %s has the body %q", e.ID, e.Body)
			}
		}
		letters := s.letters()
		if len(letters) != 2 || letters[0].Reason != "body: line 1, column 7: no such key: spec" || letters[0].Attempts != 0 || !strings.HasPrefix(letters[1].Reason, "body: panic") {
			t.Errorf("dead letters: %+v", letters)
		}
		if n := s.queue.Stats().Length; n != 0 {
			t.Errorf("%d events are left", n)
		}
	})
}

// An event whose body is too large is cut, and the body made again.
func TestOversizeBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(change{Object: 1, N: 1}, change{Object: 1, N: 2, Pad: strings.Repeat("x", 4000)})
		r := &capped{limit: 1000}
		w := start(t, s, newReceiver(t, accept), func(c *Config) {
			c.Open = func(context.Context) (sinks.Sink, error) { return r, nil }
			c.Oversize, c.Delivery.MaxEvents = OversizeTruncate, 10
			c.Render = func(e *event.Event) (send bool, err error) {
				e.Body = fmt.Appendf(nil, "%s: %s", e.ID, e.Object)
				return true, nil
			}
		})
		defer w.stop()
		synctest.Wait()
		if got := strings.Join(r.bodies, "\n"); got != "1/1: {\"object\":1,\"n\":1}\n1/2: {}" {
			t.Errorf("arrived: %s", got)
		}
	})
}

// A body that panics for an event that was cut does not fit.
func TestOversizePanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(change{Object: 1, N: 1, Pad: strings.Repeat("x", 4000)}, change{Object: 1, N: 2})
		r := &capped{limit: 1000}
		w := start(t, s, newReceiver(t, accept), func(c *Config) {
			c.Open = func(context.Context) (sinks.Sink, error) { return r, nil }
			c.Oversize = OversizeTruncate
			c.Render = func(e *event.Event) (send bool, err error) {
				if e.Truncated {
					panic("a fault in an expression")
				}
				e.Body = fmt.Appendf(nil, "%s: %s", e.ID, e.Object)
				return true, nil
			}
		})
		defer w.stop()
		synctest.Wait()
		if got := strings.Join(r.bodies, "\n"); got != "1/2: {\"object\":1,\"n\":2}" {
			t.Errorf("arrived: %s", got)
		}
		if letters := s.letters(); len(letters) != 1 || !strings.HasPrefix(letters[0].Reason, "oversize: ") {
			t.Errorf("dead letters: %+v", letters)
		}
	})
}

// capped is a sink with a limit.
type capped struct {
	limit  int
	bodies []string
}

func (c *capped) Limits() sinks.Limits { return sinks.Limits{MaxEventBytes: c.limit} }

func (c *capped) Write(_ context.Context, batch []*event.Event) error {
	for _, e := range batch {
		c.bodies = append(c.bodies, string(sinks.JSON.Append(nil, e)))
	}
	return nil
}

func (*capped) Close(context.Context) error { return nil }

func TestOversizeEvents(t *testing.T) {
	const limit = 4000
	large := change{Object: 1, N: 2, Pad: strings.Repeat("x", limit)}
	for _, policy := range []Oversize{OversizeDeadLetter, OversizeTruncate} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(change{Object: 1, N: 1}, large, change{Object: 1, N: 3})
				r := &sized{limit: limit, t: t}
				w := start(t, s, newReceiver(t, accept), func(c *Config) {
					c.Open = func(context.Context) (sinks.Sink, error) { return r, nil }
					c.Oversize, c.Delivery.MaxEvents = policy, 10
				})
				defer w.stop()
				synctest.Wait()
				letters := s.letters()
				if policy == OversizeDeadLetter {
					if r.full != 2 || r.bare != 0 || len(letters) != 1 ||
						!strings.HasPrefix(letters[0].Reason, "oversize: ") || !strings.Contains(letters[0].Reason, "the sink takes 4000") {
						t.Errorf("%d full events, %d without object, letters %+v", r.full, r.bare, letters)
					}
				} else if r.full != 2 || r.bare != 1 || len(letters) != 0 {
					t.Errorf("%d full events, %d without object, letters %+v", r.full, r.bare, letters)
				}
			})
		})
	}
}

// sized is a sink that no event may be too large for.
type sized struct {
	t          *testing.T
	limit      int
	full, bare int
}

func (s *sized) Limits() sinks.Limits { return sinks.Limits{MaxEventBytes: s.limit, MaxBatch: 2} }

func (s *sized) Write(_ context.Context, batch []*event.Event) error {
	if len(batch) > 2 {
		s.t.Errorf("a batch of %d", len(batch))
	}
	for _, e := range batch {
		if n := len(event.AppendCloudEvent(nil, e)); n > s.limit {
			s.t.Errorf("an event of %d bytes", n)
		}
		if e.Truncated {
			if string(e.Object) != "{}" { // it has no metadata
				s.t.Errorf("truncated object %s", e.Object)
			}
			s.bare++
		} else {
			s.full++
		}
	}
	return nil
}

func (*sized) Close(context.Context) error { return nil }

// An event is cut no further than it has to be, and says that it was.
func TestTruncation(t *testing.T) {
	padding := func(n int) string { return strings.Repeat("x", n) }
	whole := &event.Event{
		Type: event.Updated, Name: "web", UID: "uid", ResourceVersion: "7",
		Object:    fmt.Appendf(nil, `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","labels":{"a":%q}},"spec":%q}`, padding(1000), padding(10_000)),
		OldObject: fmt.Appendf(nil, `{"old":%q}`, padding(10_000)),
		Patch:     fmt.Appendf(nil, `[%q]`, padding(1000)),
	}
	before := *whole
	for limit, want := range map[int]string{
		1 << 20: "object old patch",
		20_000:  "object patch truncated",
		11_600:  "object truncated",
		3000:    "metadata truncated",
		1000:    "truncated",
		100:     "",
	} {
		e := &engine{cfg: &Config{Oversize: OversizeTruncate}, metrics: testMetrics(t)}
		en := &entry{event: whole, size: estimate(whole)}
		var got []string
		if err := e.fit(en, limit); err == nil {
			got = parts(en.event, whole)
			if size := len(event.AppendCloudEvent(nil, en.event)); size > limit {
				t.Errorf("limit %d: %d bytes", limit, size)
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("limit %d leaves %q, want %q", limit, got, want)
		}
	}
	if !reflect.DeepEqual(*whole, before) {
		t.Error("the event itself was changed")
	}
}

// parts names what is left of the whole event.
func parts(e, whole *event.Event) (names []string) {
	switch {
	case bytes.Equal(e.Object, whole.Object):
		names = append(names, "object")
	case bytes.HasPrefix(e.Object, []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web",`)) && !bytes.Contains(e.Object, []byte("spec")):
		names = append(names, "metadata")
	case e.Object != nil:
		names = append(names, "some of the object")
	}
	if e.OldObject != nil {
		names = append(names, "old")
	}
	if e.Patch != nil {
		names = append(names, "patch")
	}
	if e.Truncated {
		names = append(names, "truncated")
	}
	return names
}

func testMetrics(t *testing.T) *metrics {
	t.Helper()
	m, err := newMetrics(&Config{Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Every event up to the very limit is delivered, and none above it.
func TestSizeAtTheLimit(t *testing.T) {
	e := &engine{cfg: &Config{Oversize: OversizeDeadLetter}}
	for _, f := range []sinks.Format{sinks.CloudEvents, sinks.CloudEventsBinary, sinks.JSON} {
		e.cfg.Format = f
		ev := &event.Event{
			ID: "0123456789abcdef", Cluster: "prod", Type: event.Updated, UID: strings.Repeat("u", 36), Namespace: "a-namespace",
			Name: strings.Repeat("n", 253), Object: []byte(`{"a":1}`), OldObject: []byte(`{"a":0}`), Patch: []byte(`[]`), ResourceVersion: "123456",
			Resource: event.Resource{Group: "apps.example.com", Version: "v1beta1", Resource: "deployments", Kind: "Deployment"},
		}
		size := e.measure(ev)
		if est := estimate(ev); est < size || est > size+1500 {
			t.Errorf("%s: estimate %d of %d bytes", f, est, size)
		}
		for limit, fits := range map[int]bool{size - 1: false, size: true, size + 5000: true} {
			if err := e.fit(&entry{event: ev, size: estimate(ev)}, limit); (err == nil) != fits {
				t.Errorf("%s: %d bytes with limit %d: %v", f, size, limit, err)
			}
		}
	}
}

// typedError is an error type of which a sink returns a nil pointer, as if there were no error.
type typedError struct{ text string }

func (e *typedError) Error() string { return e.text }

// An error of a sink that panics when it is looked at is a panic of the sink alone.
func TestErrorsThatPanic(t *testing.T) {
	for name, err := range map[string]error{
		"nil pointer":               (*typedError)(nil),
		"nil pointer to BatchError": (*sinks.BatchError)(nil),
		"wrapped":                   fmt.Errorf("write: %w", (*sinks.BatchError)(nil)),
		"of one event":              &sinks.BatchError{Failed: map[int]error{0: (*typedError)(nil)}},
		"refused":                   &sinks.BatchError{Failed: map[int]error{0: sinks.Poison((*typedError)(nil))}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(numbered(2, upTo(5)...)...)
				var mended atomic.Bool
				r := newReceiver(t, func(context.Context, []change) error { return nil })
				w := start(t, s, r, func(c *Config) {
					c.Delivery.MaxEvents = 4
					c.Open = func(context.Context) (sinks.Sink, error) { return &answering{r, err, &mended}, nil }
				})
				defer w.stop()
				time.Sleep(time.Minute)
				if st := w.Status(); st.State != Paused || st.Queue.Length != 10 {
					t.Errorf("status %+v", st)
				}
				mended.Store(true)
				time.Sleep(10 * time.Minute)
				if got := len(r.got()); got != 10 || len(s.letters()) != 0 {
					t.Errorf("%d events arrived, %d letters", got, len(s.letters()))
				}
			})
		})
	}
}

// answering is a sink that answers each Write with an error, accepting nothing, until it is mended.
type answering struct {
	*receiver

	err    error
	mended *atomic.Bool
}

func (a *answering) Write(ctx context.Context, batch []*event.Event) error {
	if !a.mended.Load() {
		return a.err
	}
	return a.receiver.Write(ctx, batch)
}

func TestPanics(t *testing.T) {
	t.Run("of one event", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStorage(t)
			defer s.close()
			s.add(numbered(2, upTo(100)...)...)
			r := newReceiver(t, func(_ context.Context, batch []change) error {
				for _, c := range batch {
					if c.Object == 42 && c.N == 1 {
						panic("index out of range")
					}
				}
				return nil
			})
			w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents, c.Delivery.Concurrency = 64, 2 })
			defer w.stop()
			time.Sleep(time.Minute)
			letters := s.letters()
			if len(r.got()) != 199 || len(letters) != 1 || !strings.HasPrefix(letters[0].Reason, "panic: panic at ") {
				t.Errorf("%d events arrived, letters %+v", len(r.got()), letters)
			}
			r.checkOrder()
		})
	})
	t.Run("of the only event", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStorage(t)
			defer s.close()
			s.add(numbered(1, 1)...)
			r := newReceiver(t, func(context.Context, []change) error { panic("no") })
			w := start(t, s, r, nil)
			defer w.stop()
			time.Sleep(time.Minute)
			if st := w.Status(); st.State != Idle || len(s.letters()) != 1 || s.letters()[0].Attempts != 3 {
				t.Errorf("status %+v, letters %+v", st, s.letters())
			}
		})
	})
	t.Run("of the sink", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStorage(t)
			defer s.close()
			s.add(numbered(2, upTo(100)...)...)
			var mended atomic.Bool
			r := newReceiver(t, func(context.Context, []change) error {
				if !mended.Load() {
					panic("nil map")
				}
				return nil
			})
			w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 64 })
			defer w.stop()
			time.Sleep(time.Hour)
			if st := w.Status(); st.State != Paused || st.Queue.Length != 200 || len(s.letters()) != 0 {
				t.Errorf("status %+v", st)
			}
			if got := fmt.Sprint(sizes(r.log())[:9]); got != "[64 32 16 8 4 2 1 1 1]" {
				t.Errorf("batches of %s before the pause", got)
			}
			if gap := r.log()[9].at.Sub(r.log()[8].at); gap != 2*time.Second {
				t.Errorf("tried again after %v; three events should pause the sink", gap)
			}
			mended.Store(true)
			time.Sleep(6 * time.Minute)
			if len(r.got()) != 200 {
				t.Errorf("%d events arrived, want 200", len(r.got()))
			}
			r.checkOrder()
		})
	})
}
