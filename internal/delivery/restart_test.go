package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// restart closes and opens the store, as a new process does.
func (s *storage) restart() {
	s.t.Helper()
	s.close()
	s.open()
}

func TestRestartKeepsTheReceiversDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(20)...)...)
		begin := time.Now()
		r := newReceiver(t, func(context.Context, []change) error {
			if time.Since(begin) < 5*time.Minute {
				return sinks.RetryAfter(errors.New("429"), 5*time.Minute-time.Since(begin))
			}
			return nil
		})
		tune := func(c *Config) { c.Delivery.MaxEvents, c.Fingerprint = 10, "one" }
		for range 4 {
			w := start(t, s, r, tune)
			time.Sleep(time.Minute)
			if st := w.Status(); st.State != BackingOff || (st.Reason != "429" && st.Reason != textOfBefore) || st.Attempts != 1 {
				t.Errorf("status %+v", st)
			}
			w.stop()
			s.restart()
		}
		if n := len(r.log()); n != 1 {
			t.Errorf("%d writes in four minutes and four starts, want 1", n)
		}
		w := start(t, s, r, tune)
		time.Sleep(3 * time.Minute)
		w.stop()
		if len(r.got()) != 20 || len(r.log()) > 6 {
			t.Errorf("%d events in %d writes", len(r.got()), len(r.log()))
		}
	})
}

func TestChangedSinkIsTriedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(20)...)...)
		r := newReceiver(t, script(sinks.RetryAfter(errors.New("429"), time.Hour)))
		w := start(t, s, r, func(c *Config) { c.Fingerprint = "one" })
		time.Sleep(time.Second)
		w.stop()
		w = start(t, s, r, func(c *Config) { c.Fingerprint = "two" })
		synctest.Wait()
		w.stop()
		if len(r.got()) != 20 {
			t.Errorf("%d events arrived, want 20", len(r.got()))
		}
	})
}

func TestRestartedPauseIsProbedAtOnceByOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(20)...)...)
		r := newReceiver(t, func(context.Context, []change) error { return sinks.Pause(errors.New("410 Gone")) })
		tune := func(c *Config) { c.Delivery.MaxEvents = 10 }
		w := start(t, s, r, tune)
		time.Sleep(time.Second)
		w.stop()
		s.restart()
		w = start(t, s, r, tune)
		time.Sleep(time.Second)
		if st := w.Status(); st.State != Paused || st.Reason != "410 Gone" {
			t.Errorf("status %+v", st)
		}
		w.stop()
		if log := r.log(); len(log) != 3 || len(log[1].batch) != 1 || len(log[2].batch) != 1 {
			t.Errorf("writes: %+v", log)
		}
	})
}

func TestRestartKeepsPoisonAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(2, upTo(20)...)...)
		r := newReceiver(t, refuse(false, 7))
		// One refusal a run: the second comes later than the run lasts.
		tune := func(c *Config) {
			c.Delivery.MaxEvents, c.Retry.Initial, c.Retry.Max = 10, time.Minute, time.Minute
		}
		singles := func() (n int) {
			for _, wr := range r.log() {
				if len(wr.batch) == 1 && wr.batch[0] == (change{Object: 7, N: 1}) {
					n++
				}
			}
			return n
		}
		for run := 1; run <= 3; run++ {
			w := start(t, s, r, tune)
			for singles() < run {
				time.Sleep(time.Second)
			}
			time.Sleep(time.Second)
			w.stop()
			if letters := len(s.letters()); letters != run/3 {
				t.Errorf("after %d refusals: %d dead letters", run, letters)
			}
			s.restart()
		}
		w := start(t, s, r, tune)
		synctest.Wait()
		w.stop()
		letters := s.letters()
		if len(letters) != 1 || letters[0].Attempts != 3 || singles() != 3 {
			t.Errorf("after %d refusals: %+v", singles(), letters)
		}
		if len(r.got()) != 39 {
			t.Errorf("%d events arrived, want 39", len(r.got()))
		}
		r.checkOrder()
	})
}

// After a kill an event that failed may stand behind one of its object that was accepted,
// the acknowledgement of which was lost. It waits for its retry behind that one, and not
// before it, if the earlier one fails now.
func TestKnownEventStaysBehindEarlierOnes(t *testing.T) {
	for _, others := range []int{0, 3} {
		for _, alone := range []bool{false, true} {
			t.Run(fmt.Sprintf("others=%d,alone=%t", others, alone), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStorage(t)
					defer s.close()
					s.add(numbered(3, upTo(1+others)...)...)
					items, err := s.queue.Read(0, 100, 1<<20)
					if err != nil {
						t.Fatal(err)
					}
					second := items[1+others].Position // of object 0
					note := fmt.Sprintf(`{"version":1,"events":[{"position":%d,"tries":1,"next":%q,"alone":%t}]}`,
						second, time.Now().Add(10*time.Second).Format(time.RFC3339), alone)
					if err := s.queue.PutNote([]byte(note)); err != nil {
						t.Fatal(err)
					}
					failed := false
					r := newReceiver(t, func(_ context.Context, batch []change) error {
						if i := slices.Index(batch, change{Object: 0, N: 1}); i >= 0 && !failed {
							failed = true
							return &sinks.BatchError{Failed: map[int]error{i: sinks.RetryAfter(errors.New("down"), time.Minute)}}
						}
						return nil
					})
					w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 10 })
					time.Sleep(5 * time.Minute)
					w.stop()
					if got := len(r.got()); got != 3*(1+others) {
						t.Errorf("%d events arrived: %v", got, r.got())
					}
					r.checkOrder()
				})
			})
		}
	}
}

// Whatever a note holds, everything is delivered, and soon.
func TestNotesNeverHoldAnythingUp(t *testing.T) {
	for name, note := range map[string]string{
		"garbage":       "\x00\xff{",
		"empty":         "",
		"newer":         `{"version":99,"state":"paused","next":"2100-01-01T00:00:00Z"}`,
		"far future":    `{"version":1,"state":"backing-off","attempts":-7,"next":"9999-01-01T00:00:00Z","events":[{"position":1,"next":"9999-01-01T00:00:00Z","tries":1000000,"alone":true},{"position":4,"next":"9999-01-01T00:00:00Z"}]}`,
		"paused":        `{"version":1,"state":"paused","attempts":999999,"next":"9999-01-01T00:00:00Z"}`,
		"strange state": `{"version":1,"state":"sleeping","next":"9999-01-01T00:00:00Z"}`,
		"unknown event": `{"version":1,"events":[{"position":77777,"refusals":2,"next":"2001-01-01T00:00:00Z","alone":true}]}`,
		"refused often": `{"version":1,"events":[{"position":2,"refusals":2000000,"next":"0001-01-01T00:00:00Z","alone":true},{"position":3,"refusals":-5,"tries":-1}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(numbered(3, upTo(5)...)...)
				if err := s.queue.PutNote([]byte(note)); err != nil {
					t.Fatal(err)
				}
				r := newReceiver(t, accept)
				w := start(t, s, r, nil)
				time.Sleep(6 * time.Minute)
				w.stop()
				if len(r.got()) != 15 || len(s.letters()) != 0 {
					t.Errorf("%d events arrived, want 15", len(r.got()))
				}
				r.checkOrder()
				raw, _, err := s.queue.Note()
				if err != nil || strings.Contains(string(raw), "position\":1,") {
					t.Errorf("note afterwards: %s, %v", raw, err)
				}
			})
		})
	}
}

// TestRestartWithAnEarlierClock restarts a sink that refuses its last events, after its clock was a day
// ahead when it refused them first. They become dead letters as if it had been right.
func TestRestartWithAnEarlierClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(2)...)...)
		items, err := s.queue.Read(0, 10, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		content := noteContent{Version: noteVersion}
		for _, item := range items {
			content.Events = append(content.Events, noteEvent{Position: item.Position, Tries: 1, Refusals: 1, First: time.Now().Add(24 * time.Hour), Next: time.Now()})
		}
		raw, err := json.Marshal(content)
		if err := errors.Join(err, s.queue.PutNote(raw)); err != nil {
			t.Fatal(err)
		}
		s.restart()
		began := time.Now()
		w := start(t, s, newReceiver(t, func(context.Context, []change) error { return sinks.Poison(errors.New("400")) }), nil)
		time.Sleep(10 * time.Minute)
		if st := w.Status(); st.DeadLetters != 2 {
			t.Errorf("status %+v", st)
		}
		w.stop()
		letters, err := s.queue.DeadLetters(0, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range letters {
			if l.First.After(began) {
				t.Errorf("the first attempt was %v after the restart", l.First.Sub(began))
			}
		}
	})
}

// TestRestoredScheduleIsMonotonic: the time of an attempt that an earlier run scheduled does not move when the wall clock
// is corrected after the start, as that of a machine is which began without one.
func TestRestoredScheduleIsMonotonic(t *testing.T) {
	now := time.Now()
	stored := now.Add(time.Minute).Round(0)
	at := clampTime(stored, now, time.Hour)
	if !at.Equal(stored) || !strings.Contains(at.String(), " m=") {
		t.Errorf("%v became %v, want the same time with a monotonic reading", stored, at)
	}
}
