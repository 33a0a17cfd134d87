package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// TestHeartbeat sends heartbeats as long as the sink flows: not while it fails or is paused, and never again
// after a failure. They leave no trace in the queue.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		const beating = -1
		var mu sync.Mutex          // guards what follows
		failing := map[int]error{} // by object
		attempts := 0
		fail := func(err error, objects ...int) { // nil: no more
			mu.Lock()
			defer mu.Unlock()
			for _, o := range objects {
				failing[o] = err
			}
		}
		r := newReceiver(t, func(_ context.Context, batch []change) error {
			mu.Lock()
			defer mu.Unlock()
			if batch[0].Object == beating {
				attempts++
			}
			return failing[batch[0].Object]
		})
		made := 0
		w := start(t, s, r, func(c *Config) {
			c.Delivery = sinks.Delivery{MaxEvents: 10, Concurrency: 3}
			c.Heartbeat = Heartbeat{Every: 10 * time.Second, Make: func() *event.Event {
				made++
				object, err := json.Marshal(change{Object: beating, N: made})
				if err != nil {
					t.Error(err)
				}
				return &event.Event{ID: "beat", Type: event.Heartbeat, Object: object}
			}}
		})
		defer w.stop()
		// after lets seconds pass and returns how many heartbeats were attempted since the last call.
		after := func(seconds int) int {
			time.Sleep(time.Duration(seconds) * time.Second)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			n := attempts
			attempts = 0
			return n
		}
		if n := after(35); n != 4 { // one at the start
			t.Errorf("%d heartbeats of an idle sink in 35 s, want 4", n)
		}
		s.add(numbered(3, upTo(20)...)...)
		if n := after(30); n != 3 {
			t.Errorf("%d heartbeats of a sink with events in 30 s, want 3", n)
		}
		fail(errors.New("503"), beating)
		if n := after(30); n != 3 {
			t.Errorf("%d heartbeats that fail in 30 s, want 3", n)
		}
		if st := w.Status(); st.State != Idle || st.DeadLetters+uint64(len(s.letters())) > 0 {
			t.Errorf("after heartbeats failed the sink is %+v", st)
		}
		fail(nil, beating)
		fail(errors.New("503"), upTo(20)...)
		s.add(numbered(1, 4, 7)...)
		after(10)
		if n := after(60); n != 0 || w.Status().State != BackingOff {
			t.Errorf("%d heartbeats of a sink that fails, which is %s", n, w.Status().State)
		}
		fail(nil, upTo(20)...)
		w.Retry()
		if n := after(15); n < 1 || n > 2 {
			t.Errorf("%d heartbeats in the 15 s after the sink answers again, want 1 or 2", n)
		}
		w.Pause()
		after(1)
		if n := after(60); n != 0 {
			t.Errorf("%d heartbeats of a paused sink", n)
		}
		w.Resume()
		if n := after(1); n != 1 {
			t.Errorf("%d heartbeats after the pause, want 1", n)
		}
		if st := w.Status(); st.Queue.Length != 0 || st.Delivered != 62 {
			t.Errorf("%d events delivered, %d in the queue; want 62 and none", st.Delivered, st.Queue.Length)
		}
	})
}
