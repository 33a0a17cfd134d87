package delivery

import (
	"testing"
)

func TestDeliversInOrder(t *testing.T) {
	for _, lanes := range []int{1, 4} {
		s := newStorage(t)
		defer s.close()
		r := newReceiver(t, accept)
		s.add(numbered(20, upTo(50)...)...)
		w := start(t, s, r, func(c *Config) {
			c.Delivery.MaxEvents, c.Delivery.Concurrency = 100, lanes
		})
		eventually(t, "the backlog is delivered", func() bool { return len(r.got()) == 1000 })
		s.add(change{Object: 3, N: 21})
		eventually(t, "a new event is delivered", func() bool { return len(r.got()) == 1001 })
		eventually(t, "everything is acknowledged", func() bool { return s.queue.Stats().Length == 0 })
		w.stop()
		r.checkOrder()
		if r.opened != 1 || r.closed != 1 {
			t.Errorf("opened %d times, closed %d times", r.opened, r.closed)
		}
		if r.peak > lanes {
			t.Errorf("%d writes at once with %d lanes", r.peak, lanes)
		}
	}
}
