package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// strict is a sink that refuses events for their size and does not say its limit
// beforehand.
type strict struct {
	limit  int
	named  bool // it says which event of a batch is too large
	sizes  []int
	tries  int
	events []*event.Event
}

func (s *strict) Write(_ context.Context, batch []*event.Event) error {
	s.tries++
	failed, stuck := map[int]error{}, map[string]error{}
	for i, e := range batch {
		if stuck[e.Name] != nil {
			failed[i] = sinks.Held(stuck[e.Name])
		} else if len(event.AppendCloudEvent(nil, e)) > s.limit {
			failed[i] = sinks.TooLarge(errors.New("413"))
			stuck[e.Name] = failed[i]
		}
	}
	if len(failed) > 0 && !s.named {
		return sinks.TooLarge(errors.New("413"))
	}
	for i, e := range batch {
		if failed[i] == nil {
			s.sizes = append(s.sizes, len(event.AppendCloudEvent(nil, e)))
			s.events = append(s.events, e)
		}
	}
	if len(failed) > 0 {
		return &sinks.BatchError{Failed: failed}
	}
	return nil
}

func (*strict) Close(context.Context) error { return nil }

// An event that the receiver refuses for its size is cut until it is accepted.
func TestTruncationAfterRefusal(t *testing.T) {
	for _, named := range []bool{true, false} {
		for _, batch := range []int{1, 10} {
			t.Run(fmt.Sprintf("named=%v,batch=%d", named, batch), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStorage(t)
					defer s.close()
					s.add(change{Object: 1, N: 1}, change{Object: 1, N: 2, Pad: strings.Repeat("x", 100<<10)}, change{Object: 1, N: 3}, change{Object: 2, N: 1})
					r := &strict{limit: 10 << 10, named: named}
					w := start(t, s, newReceiver(t, accept), func(c *Config) {
						c.Open = func(context.Context) (sinks.Sink, error) { return r, nil }
						c.Oversize, c.Delivery.MaxEvents = OversizeTruncate, batch
					})
					defer w.stop()
					synctest.Wait()
					cut := 0
					for _, e := range r.events {
						if e.Truncated {
							cut++
						}
					}
					if len(r.events) != 4 || cut != 1 || len(s.letters()) != 0 || r.tries > 12 {
						t.Errorf("%d events arrived, %d of them cut, after %d writes; letters %+v", len(r.events), cut, r.tries, s.letters())
					}
				})
			})
		}
	}
}

// The summary is short: it is left out last. The estimate is never too small for it.
func TestTruncationKeepsTheSummary(t *testing.T) {
	full := &event.Event{
		Type: event.Updated, Object: []byte(`{"kind":"Pod","metadata":{"name":"a"},"spec":1}`), OldObject: []byte(`{}`), Patch: []byte(`[]`),
		Summary: strings.Repeat(`\"`, 2000),
	}
	if size := len(event.AppendCloudEvent(nil, full)); size > estimate(full) {
		t.Errorf("the event takes %d bytes, more than the estimate of %d", size, estimate(full))
	}
	var summaries []bool
	if _, ok := truncate(full, func(e *event.Event) bool {
		summaries = append(summaries, e.Summary != "")
		return e.Summary == ""
	}); !ok || fmt.Sprint(summaries) != "[true true true true false]" {
		t.Errorf("the event fits: %t; the steps have a summary: %t", ok, summaries)
	}
}

// An event that is refused at any size becomes a dead letter, whatever the policy.
func TestRefusedAtAnySize(t *testing.T) {
	for _, policy := range []Oversize{OversizeDeadLetter, OversizeTruncate} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(change{Object: 1, N: 1, Pad: strings.Repeat("x", 100<<10)})
				r := &strict{}
				w := start(t, s, newReceiver(t, accept), func(c *Config) {
					c.Open = func(context.Context) (sinks.Sink, error) { return r, nil }
					c.Oversize = policy
				})
				defer w.stop()
				time.Sleep(time.Minute)
				letters := s.letters()
				if len(letters) != 1 || letters[0].Reason != "oversize: 413" || letters[0].Attempts != 3 || r.tries > 20 {
					t.Errorf("%d writes, letters %+v", r.tries, letters)
				}
			})
		})
	}
}
