package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

func newCircuit() *circuit {
	r := &Retry{}
	r.setDefaults()
	return &circuit{retry: r}
}

// Lanes that fail together are one failure, whatever order they return in.
func TestFailuresOfOneOutageCountOnce(t *testing.T) {
	c := newCircuit()
	now := time.Now()
	tickets := []ticket{c.start(), c.start(), c.start(), c.start()}
	for i, tk := range tickets {
		c.end(tk)
		if changed := c.fail(tk, now, 0, "down"); changed != (i == 0) {
			t.Errorf("failure %d: changed is %v", i, changed)
		}
	}
	if c.attempts != 1 || c.until.After(now.Add(500*time.Millisecond)) {
		t.Errorf("%d attempts, next in %v", c.attempts, c.until.Sub(now))
	}
	c = newCircuit()
	tickets = []ticket{c.start(), c.start(), c.start()}
	for _, tk := range tickets {
		c.pause(tk, now, "gone")
	}
	if c.attempts != 1 || !c.until.Equal(now.Add(2*time.Second)) {
		t.Errorf("%d attempts, next in %v", c.attempts, c.until.Sub(now))
	}
}

// A lane that returns late with a delay the receiver asked for is heard.
func TestLateRetryAfter(t *testing.T) {
	c := newCircuit()
	now := time.Now()
	a, b := c.start(), c.start()
	c.fail(a, now, 0, "down")
	c.fail(b, now, time.Minute, "slower")
	if c.until.Before(now.Add(time.Minute)) || c.attempts != 1 {
		t.Errorf("next in %v after %d attempts, want a minute after 1", c.until.Sub(now), c.attempts)
	}
}

// What was sent before an outage says nothing about its end.
func TestLateSuccessDoesNotEndAnOutage(t *testing.T) {
	c := newCircuit()
	now := time.Now()
	a, b := c.start(), c.start()
	c.fail(a, now, 0, "down")
	if c.answered(b, now, 100) != 0 || c.phase != backingOff {
		t.Error("an old write ended the outage")
	}
	later := now.Add(time.Second)
	if c.admit(later) != 1 {
		t.Fatal("no probe")
	}
	probe := c.start()
	if c.admit(later) != 0 {
		t.Error("two probes at once")
	}
	c.end(probe)
	if c.answered(probe, later, 100) != time.Second || c.phase != flowing || c.admit(later) != 2 {
		t.Error("the probe did not end the outage")
	}
}

// An outage that spans a restart has a line in the log of either run, and lasts from its first
// failure on.
func TestOutageSpansARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, 1)...)
		began := time.Now()
		r := newReceiver(t, func(context.Context, []change) error {
			if time.Since(began) < time.Hour {
				return errors.New("down")
			}
			return nil
		})
		var log strings.Builder
		tune := func(c *Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			c.Retry = Retry{Initial: time.Minute, Max: time.Minute}
		}
		w := start(t, s, r, tune)
		time.Sleep(59 * time.Minute)
		w.stop()
		s.restart()
		log.Reset()
		w = start(t, s, r, tune)
		time.Sleep(10 * time.Minute)
		w.stop()
		said := regexp.MustCompile(`level=WARN msg="the sink failed before the restart, retrying" state=backing-off since=\S+ retryIn=\S+\n(?:.*\n)*.*the sink answers again" after=1h\S*\n`)
		if !said.MatchString(log.String()) {
			t.Errorf("log of the second run:\n%s", &log)
		}
	})
}

// An outage that fails and is then refused lasts from its first failure on.
func TestDurationOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, 1)...)
		var log strings.Builder
		down := errors.New("down")
		w := start(t, s, newReceiver(t, script(down, down, sinks.Pause(errors.New("gone")), down)), func(c *Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			c.Retry = Retry{Initial: 10 * time.Second, Max: 10 * time.Second}
		})
		began := time.Now()
		time.Sleep(30 * time.Minute)
		w.stop()
		said := regexp.MustCompile(`time=(\S+) .*the sink answers again" after=(\S+)\n`).FindStringSubmatch(log.String())
		if said == nil {
			t.Fatalf("the end of the outage is not logged:\n%s", &log)
		}
		at, err := time.Parse(time.RFC3339, said[1])
		after, derr := time.ParseDuration(said[2])
		if err != nil || derr != nil || (at.Sub(began)-after).Abs() > time.Second {
			t.Errorf("%v after the begin it is said to have lasted %v:\n%s", at.Sub(began), after, &log)
		}
	})
}

// After an outage batches grow by doubling.
func TestBatchesGrowBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(200)...)...)
		r := newReceiver(t, script(errors.New("down")))
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 50 })
		time.Sleep(time.Minute)
		w.stop()
		if got := fmt.Sprint(sizes(r.log())); got != "[50 1 2 4 8 16 32 50 50 37]" {
			t.Errorf("batches of %s", got)
		}
	})
}

// Once others were accepted, an object whose events fail holds nobody up, not
// even when it is the only one left that is tried.
func TestFailingObjectDelaysNoOther(t *testing.T) {
	for name, fail := range map[string]func(i int) error{
		"unnamed": func(int) error { return errors.New("500") },
		"named": func(i int) error {
			return &sinks.BatchError{Failed: map[int]error{i: errors.New("500")}}
		},
	} {
		for _, batch := range []int{1, 20} {
			t.Run(fmt.Sprintf("%s,batch=%d", name, batch), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStorage(t)
					defer s.close()
					r := newReceiver(t, func(_ context.Context, batch []change) error {
						for i, c := range batch {
							if c.Object == 3 {
								return fail(i)
							}
						}
						return nil
					})
					w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = batch })
					defer w.stop()
					s.add(numbered(1, upTo(10)...)...)
					time.Sleep(time.Minute)
					for n := 2; n < 8; n++ {
						before := len(r.got())
						s.add(numbered(n, upTo(10)...)[(n-1)*10:]...)
						synctest.Wait()
						if got := len(r.got()) - before; got != 9 {
							t.Errorf("%d events of healthy objects arrived at once, want 9; %+v", got, w.Status())
						}
						time.Sleep(6 * time.Minute)
						if st := w.Status(); st.State != Running || st.Blocked != n {
							t.Errorf("while one object fails: %+v", st)
						}
					}
				})
			})
		}
	}
}

// Many failing objects don't add up to a storm of retries when nothing else is
// to be delivered: it may be the sink after all.
func TestManyFailingObjectsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(250)...)...)
		r := newReceiver(t, func(_ context.Context, batch []change) error {
			failed := map[int]error{}
			for i, c := range batch {
				if c.Object >= 10 {
					failed[i] = errors.New("500")
				}
			}
			if len(failed) > 0 {
				return &sinks.BatchError{Failed: failed}
			}
			return nil
		})
		w := start(t, s, r, func(c *Config) {
			c.Delivery.MaxEvents = 1
			c.Retry.Initial, c.Retry.Max = 100*time.Millisecond, 5*time.Second
		})
		defer w.stop()
		for n := 2; n < 10; n++ {
			time.Sleep(2 * time.Minute)
			s.add(numbered(n, upTo(10)...)[(n-1)*10:]...)
		}
		time.Sleep(5 * time.Minute)
		before := len(r.log())
		time.Sleep(5 * time.Minute)
		if n := len(r.log()) - before; n < 30 || n > 300 {
			t.Errorf("%d writes in five minutes", n)
		}
	})
}
