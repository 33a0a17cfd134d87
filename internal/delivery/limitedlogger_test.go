package delivery

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// TestLongCause: what a receiver answers does not become a line of megabytes.
func TestLongCause(t *testing.T) {
	for name, say := range map[string]func(l *limitedLogger, err error){
		"backing off": func(l *limitedLogger, err error) { l.backingOff(err, time.Second) },
		"paused":      func(l *limitedLogger, err error) { l.paused(err, time.Second) },
		"repeat":      func(l *limitedLogger, err error) { l.repeat(stillFails, err) },
	} {
		var log bytes.Buffer
		say(newLimitedLogger(slog.New(slog.NewTextHandler(&log, nil))), errors.New("refused: "+strings.Repeat("\x00", 1<<20)))
		if log.Len() > 32<<10 || !strings.Contains(log.String(), "refused: ") {
			t.Errorf("%s: %d bytes: %.100s", name, log.Len(), &log)
		}
	}
}

// TestLongName: nor does the name of an object, of which kinds of RBAC have no bound.
func TestLongName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		var log bytes.Buffer
		w := start(t, s, newReceiver(t, refuse(true, 1)), func(c *Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			c.Decode = func(item store.Item) (*event.Event, error) {
				e, err := decodeChange(item)
				e.Namespace = strings.Repeat("a", 1<<20)
				return e, err
			}
		})
		s.add(numbered(1, 1, 2)...)
		time.Sleep(time.Hour)
		w.stop()
		if !strings.Contains(log.String(), "became a dead letter") || log.Len() > 32<<10 {
			t.Errorf("%d bytes: %.100s", log.Len(), &log)
		}
	})
}

// TestLongNameThatFails: nor does a status, which has a thousand objects, have all of such names.
func TestLongNameThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		w := start(t, s, newReceiver(t, failOne(change{Object: 1, N: 1}, errors.New("500"))), func(c *Config) {
			c.Decode = func(item store.Item) (*event.Event, error) {
				e, err := decodeChange(item)
				e.Name = strings.Repeat("a", 1<<20)
				return e, err
			}
		})
		defer w.stop()
		s.add(numbered(1, 1, 2)...)
		time.Sleep(time.Minute)
		if st := w.Status(); len(st.Failing) != 1 || !strings.HasPrefix(st.Failing[0].Subject, "/api/v1/pods/aaa") || len(st.Failing[0].Subject) > 8<<10 {
			t.Errorf("%d failing objects: %.200v", len(st.Failing), st.Failing)
		}
	})
}

// TestPausesInTurns: a receiver that refuses its clients and accepts events in turns does not fill the log, however long its answers are.
func TestPausesInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		refuse := false
		r := newReceiver(t, func(context.Context, []change) error {
			if refuse = !refuse; refuse {
				return sinks.Pause(errors.New("403 " + strings.Repeat("x", 64<<10)))
			}
			return nil
		})
		var log bytes.Buffer
		w := start(t, s, r, func(c *Config) {
			c.Delivery, c.Logger = sinks.Delivery{MaxEvents: 1}, slog.New(slog.NewTextHandler(&log, nil))
		})
		s.add(numbered(1, upTo(200)...)...)
		time.Sleep(time.Hour)
		w.stop()
		if n := strings.Count(log.String(), "trying another event"); n == 0 || n > 10 || log.Len() > 100<<10 {
			t.Errorf("%d lines, %d bytes", n, log.Len())
		}
		if got := len(r.got()); got < 100 {
			t.Errorf("%d events arrived", got)
		}
	})
}
