package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// TestTextsAreWithheld shows what a receiver said of an event for as long as nothing of
// the event is hidden, and keeps it nowhere.
func TestTextsAreWithheld(t *testing.T) {
	const quoted = "no such password: hunter2"
	for name, answer := range map[string]error{
		"the sink fails":  errors.New(quoted),
		"the sink pauses": sinks.Pause(errors.New(quoted)),
		"an event fails":  &sinks.BatchError{Failed: map[int]error{0: errors.New(quoted)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(numbered(1, upTo(5)...)...)
				var hidden atomic.Uint64
				answering := make(chan struct{})
				r := newReceiver(t, func(context.Context, []change) error {
					<-answering
					return answer
				})
				w := start(t, s, r, func(c *Config) { c.Hidden = hidden.Load })
				texts := func() string {
					st := w.Status()
					all := st.Reason + st.LastError
					for _, f := range st.Failing {
						all += f.LastError
					}
					return all
				}
				answering <- struct{}{}
				synctest.Wait()
				if !strings.Contains(texts(), quoted) {
					t.Errorf("the answer is not shown: %q", texts())
				}
				hidden.Add(1)
				if strings.Contains(texts(), quoted) || !strings.Contains(texts(), textWithheld) {
					t.Errorf("shown at once: %q", texts())
				}
				time.Sleep(time.Hour) // the next write begins, and more is hidden during it
				hidden.Add(1)
				answering <- struct{}{}
				synctest.Wait()
				if strings.Contains(texts(), quoted) {
					t.Errorf("shown of the answer to what was sent before: %q", texts())
				}
				time.Sleep(time.Hour)
				answering <- struct{}{}
				synctest.Wait()
				if !strings.Contains(texts(), quoted) {
					t.Errorf("a new answer is not shown: %q", texts())
				}
				close(answering)
				w.stop()
				s.restart()
				note, _, err := s.queue.Note()
				if err != nil || strings.Contains(string(note), quoted) {
					t.Errorf("the schedule of retries is %s, %v", note, err)
				}
			})
		})
	}
}

// TestReasonOfRefusalsInARow: a sink whose receiver refused everything, and then is down, stays paused for what it said of the last event, which
// is not shown any more once more is hidden.
func TestReasonOfRefusalsInARow(t *testing.T) {
	const quoted = "no such password: hunter2"
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(refusedInARow+5)...)...)
		var hidden atomic.Uint64
		r := newReceiver(t, func(context.Context, []change) error {
			if hidden.Load() > 0 {
				return errors.New("the receiver is down")
			}
			return sinks.Poison(errors.New(quoted))
		})
		w := start(t, s, r, func(c *Config) { c.Hidden, c.Decoding = hidden.Load, hidden.Load })
		defer w.stop()
		for w.Status().State != Paused {
			time.Sleep(time.Second)
		}
		if st := w.Status(); !strings.Contains(st.Reason, quoted) {
			t.Errorf("the reason is %q", st.Reason)
		}
		hidden.Add(1)
		for range 1000 {
			if st := w.Status(); strings.Contains(fmt.Sprint(st), quoted) {
				t.Fatalf("the status is %+v", st)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

// TestSkippedOnceMoreIsHidden: the reason of an event that is skipped is withheld as soon as more is hidden, not only from the next step of the sink on.
func TestSkippedOnceMoreIsHidden(t *testing.T) {
	const quoted = "no such password: hunter2"
	for name, answer := range map[string]error{
		"the sink pauses": sinks.Pause(errors.New(quoted)),
		"an event fails":  &sinks.BatchError{Failed: map[int]error{0: errors.New(quoted)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(numbered(1, upTo(5)...)...)
				var hidden atomic.Uint64
				r := newReceiver(t, func(context.Context, []change) error { return answer })
				w := start(t, s, r, func(c *Config) { c.Hidden, c.Decoding = hidden.Load, hidden.Load })
				defer w.stop()
				synctest.Wait()
				hidden.Add(1)
				skipped, err := w.Skip(t.Context(), 0)
				if err != nil || skipped.Reason != textWithheld {
					t.Errorf("skipped %+v, %v", skipped, err)
				}
				if letters := s.letters(); len(letters) != 1 || letters[0].Reason != "skipped: "+textWithheld {
					t.Errorf("dead letters %+v", letters)
				}
			})
		})
	}
}

// TestDecodingChangesMeanwhile changes what is decoded while an event is written: the
// reason of its dead letter quotes nothing, and the next event is decoded again.
func TestDecodingChangesMeanwhile(t *testing.T) {
	const quoted = "no such password: hunter2"
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, 1, 2)...)
		var decoding atomic.Uint64
		answering := make(chan error)
		r := newReceiver(t, func(context.Context, []change) error { return <-answering })
		w := start(t, s, r, func(c *Config) {
			c.Retry.PoisonAttempts = 1
			c.Decoding = decoding.Load
			c.Decode = func(item store.Item) (*event.Event, error) {
				e, err := decodeChange(item)
				if err == nil {
					e.Cluster = fmt.Sprint("decoded ", decoding.Load())
				}
				return e, err
			}
		})
		defer w.stop()
		synctest.Wait()
		decoding.Add(1)
		answering <- sinks.Poison(errors.New(quoted))
		answering <- nil      // the other object's event: the receiver does not refuse everything
		time.Sleep(time.Hour) // the refused event is written again
		decoding.Add(1)
		answering <- sinks.Poison(errors.New(quoted))
		synctest.Wait()
		if letters := s.letters(); len(letters) != 1 || letters[0].Reason != "refused: "+textWithheld {
			t.Errorf("dead letters %+v", letters)
		}
		if len(r.events) != 1 || r.events[0].Cluster != "decoded 1" {
			t.Errorf("delivered %+v", r.events)
		}
	})
}
