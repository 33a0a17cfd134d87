package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// Run checks a kind of sink. Start makes a fresh destination for each check; it
// may use t.TempDir and the like, but must end what it starts in Stop.
func Run(t *testing.T, start func(t *testing.T) Destination) {
	t.Helper()
	for _, check := range []struct {
		name string
		run  func(b *bench)
	}{
		{"delivers everything in order", checkOrder},
		{"defaults can be used", checkDefaults},
		{"keeps order per object in concurrent lanes", checkLanes},
		{"takes many events of one object at once", checkHotObject},
		{"keeps an object apart from the next one of its name", checkRecreated},
		{"takes values that are odd", checkOdd},
		{"sends the body of an event that has one", checkBody},
		{"holds back what follows a refused event of its object", checkHeld},
		{"continues after it is opened again", checkReopen},
		{"opens while the destination is down", checkOpenWhileDown},
		{"fails with a retry and then continues", checkBreak},
		{"delivers nothing after a failure and its end", checkNothingLate},
		{"delivers everything over a restart of the destination", checkRestart},
		{"returns soon after cancellation", checkCancel},
		{"returns soon after cancellation of much", checkCancelMuch},
		{"closes while the destination hangs", checkCloseHung},
		{"releases what it has when it has no time to close", checkCloseCut},
		{"leaves one copy of what is written again", checkIdempotent},
		{"does nothing when cancelled before", checkCancelledBefore},
		{"pauses when it is refused", checkRefuse},
		{"names the event that is refused for good", checkReject},
		{"takes events up to its limit", checkLimits},
		{"can be replaced while it is open", checkReplace},
		{"closes without ever having written", func(b *bench) { b.open().close() }},
	} {
		t.Run(check.name, func(t *testing.T) { check.run(newBench(t, start)) })
	}
}

// needs skips a check of what the destination cannot do.
func (b *bench) needs(able bool, to string) {
	if !able {
		b.t.Skip("the destination cannot " + to)
	}
}

// received waits until the destination has n events and returns their ids.
func (b *bench) received(n int) []string {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		got := b.dest.Received(b.t)
		if len(got) >= n {
			return got
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("the destination has %d events, %d are wanted", len(got), n)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// expect checks that exactly these events arrived, each once, in order.
func (b *bench) expect(events []*event.Event) {
	b.t.Helper()
	if got, want := b.received(len(events)), IDs(events); !slices.Equal(got, want) {
		b.t.Errorf("the destination has %d events that are not the %d sent, in order:\n got %v\nwant %v", len(got), len(want), got, want)
	}
}

// expectPerObject checks that all events arrived, first deliveries in order per
// object, repeats allowed.
func (b *bench) expectPerObject(events []*event.Event) {
	b.t.Helper()
	byID := map[string]*event.Event{}
	want := map[string][]string{}
	for _, e := range events {
		byID[e.ID] = e
		want[e.PartitionKey()] = append(want[e.PartitionKey()], e.ID)
	}
	got := map[string][]string{}
	seen := map[string]bool{}
	for _, id := range b.received(len(events)) {
		e := byID[id]
		if e == nil {
			b.t.Errorf("the destination has event %s, which was not sent or was refused", id)
			continue
		}
		if !seen[id] {
			seen[id] = true
			got[e.PartitionKey()] = append(got[e.PartitionKey()], id)
		}
	}
	for key, ids := range want {
		if !slices.Equal(got[key], ids) {
			b.t.Errorf("object %s: got %v, want %v", key, got[key], ids)
		}
	}
}

func checkOrder(b *bench) {
	s := b.open()
	events := Events(100, 7)
	for rest, size := events, 1; len(rest) > 0; size++ {
		n := min(size, len(rest))
		s.mustWrite(rest[:n])
		rest = rest[n:]
	}
	b.expect(events)
}

// checkBody gives the events bodies with other ids than their own.
func checkBody(b *bench) {
	if b.dest.Format == sinks.CloudEventsBinary {
		b.t.Skip("the ids are in headers")
	}
	s := b.open()
	events, want := Events(10, 3), make([]string, 10)
	for i, e := range events {
		want[i] = "body-of-" + e.ID
		e.Body, e.ContentType = fmt.Appendf(nil, `{"id": %q}`, want[i]), event.ContentTypeJSON
	}
	s.mustWrite(events[:1])
	s.mustWrite(events[1:])
	if got := b.received(len(want)); !slices.Equal(got, want) {
		b.t.Errorf("the destination has %v, not the bodies %v", got, want)
	}
}

func checkDefaults(b *bench) {
	d := b.dest.Config().Defaults()
	if d.MaxEvents < 0 || d.Concurrency < 0 || d.MaxBytes < 0 || d.MaxWait < 0 {
		b.t.Errorf("negative defaults: %+v", d)
	}
}

func checkLanes(b *bench) {
	s := b.open()
	const lanes, perLane = 4, 50
	events := Events(lanes*perLane, lanes)
	var done sync.WaitGroup
	for lane := range lanes {
		done.Go(func() {
			for i := range perLane {
				if err := s.write(b.t.Context(), []*event.Event{events[i*lanes+lane]}); err != nil {
					b.t.Errorf("lane %d: %v", lane, err)
				}
			}
		})
	}
	done.Wait()
	if got := b.received(len(events)); len(got) != len(events) {
		b.t.Errorf("the destination has %d events, %d were sent", len(got), len(events))
	}
	b.expectPerObject(events)
}

func checkHotObject(b *bench) {
	s := b.open()
	events := Events(60, 1)
	s.mustWrite(events[:20])
	s.mustWrite(events[20:])
	b.expect(events)
}

// checkHeld writes six events of one object, the third of which is refused for
// good: the three after it must not be there before it is settled.
func checkHeld(b *bench) {
	s := b.open()
	events := Events(6, 1)
	s.mustWrite(events[:1]) // some destinations report their limits only then
	const bad = 2
	limited, _ := s.Sink.(sinks.Limited)
	switch {
	case b.dest.Reject != nil:
		b.dest.Reject(b.t, events[bad].ID)
	case limited != nil && limited.Limits().MaxEventBytes > 0:
		events[bad] = Large(bad, 0, 2*limited.Limits().MaxEventBytes)
	default:
		b.t.Skip("the destination cannot refuse one event")
	}
	err := s.write(b.t.Context(), events[1:])
	failed := failures(events[1:], err)
	for i, e := range events[bad:] {
		why := failed[bad-1+i]
		if why == nil {
			b.t.Errorf("event %d was accepted although an earlier one of its object failed", e.Sequence)
		} else if class, _ := sinks.Classify(why); i > 0 && class == sinks.ClassPoison && !sameForAll(failed, 5) {
			b.t.Errorf("event %d is blamed for the failure of another: %v", e.Sequence, why)
		}
	}
	before := events[:bad]
	if failed[0] != nil {
		before = events[:1]
	}
	b.expect(before)
	rest := slices.DeleteFunc(slices.Clone(events[len(before):]), func(e *event.Event) bool { return e == events[bad] })
	s.deliver(rest)
	b.expect(slices.Concat(before, rest))
}

func checkReopen(b *bench) {
	events := Events(20, 3)
	first := b.open()
	first.mustWrite(events[:10])
	first.close()
	second := b.open()
	second.mustWrite(events[10:])
	b.expect(events)
}

func checkOpenWhileDown(b *bench) {
	b.needs(b.dest.Break != nil, "be down")
	b.dest.Break(b.t)
	s := b.open()
	b.dest.Repair(b.t)
	events := Events(5, 2)
	s.deliver(events)
	b.expectPerObject(events)
}

func checkBreak(b *bench) {
	b.needs(b.dest.Break != nil, "be broken")
	s := b.open()
	events := Events(12, 3)
	s.mustWrite(events[:4])
	b.dest.Break(b.t)
	WantClass(b.t, s.write(b.t.Context(), events[4:8]), sinks.ClassRetry)
	b.dest.Repair(b.t)
	s.deliver(events[4:8])
	s.deliver(events[8:])
	b.expectPerObject(events)
}

// checkNothingLate fails a Write, closes the sink and lets the destination recover: what
// failed must not arrive then. A client that continues in the background would deliver it
// behind what its successor has written since.
func checkNothingLate(b *bench) {
	b.needs(b.dest.Break != nil, "be broken")
	s := b.open()
	events := Events(12, 3)
	s.mustWrite(events[:3])
	b.dest.Break(b.t)
	if err := s.write(b.t.Context(), events[3:6]); err == nil {
		b.t.Fatal("a write to a broken destination succeeded")
	}
	s.close()
	b.dest.Repair(b.t)
	next := b.open()
	next.deliver(events[6:])
	b.expectPerObject(slices.Concat(events[:3], events[6:]))
}

// checkRestart restarts the destination again and again while events flow.
func checkRestart(b *bench) {
	b.needs(b.dest.Restart != nil, "be restarted")
	s := b.open()
	events := Events(600, 20)
	const steps = 6
	for step := range steps {
		part := events[step*len(events)/steps:][:len(events)/steps]
		restarted := make(chan struct{})
		if step > 0 {
			go func() {
				defer close(restarted)
				b.dest.Restart(b.t)
			}()
		} else {
			close(restarted)
		}
		for len(part) > 0 {
			n := min(10, len(part))
			s.deliver(part[:n])
			part = part[n:]
		}
		<-restarted
	}
	b.expectPerObject(events)
}

func checkRecreated(b *bench) {
	events := Recreated(1)
	s := b.open()
	s.mustWrite(Recreated(0)[:1]) // some destinations report their limits only then
	if b.dest.Reject == nil {
		s.mustWrite(events)
		b.expect(append(Recreated(0)[:1], events...))
		return
	}
	// The deletion is refused: the next object of the name must wait for it.
	b.dest.Reject(b.t, events[2].ID)
	failed := failures(events, s.write(b.t.Context(), events))
	for i, e := range events[2:] {
		if failed[2+i] == nil {
			b.t.Errorf("event %d of another uid was accepted although an earlier one of its name failed", e.Sequence)
		}
	}
	b.dest.Repair(b.t)
	var again []*event.Event
	for i, e := range events {
		if failed[i] != nil {
			again = append(again, e)
		}
	}
	s.deliver(again)
	b.expectPerObject(append(Recreated(0)[:1], events...))
}

// checkOdd: an odd value is taken, or the event that holds it is refused on its own.
func checkOdd(b *bench) {
	s := b.open()
	events := append(Odd(), Event(100, 100))
	poison := s.deliver(events)
	if len(poison) > 0 {
		b.t.Logf("%d of %d odd values are refused", len(poison), len(events)-1)
	}
	b.expectPerObject(slices.DeleteFunc(events, func(e *event.Event) bool { return slices.Contains(poison, e.ID) }))
}

// checkIdempotent writes events again, in the same batch and in one that is cut
// elsewhere, as after a crash.
func checkIdempotent(b *bench) {
	if !b.dest.Idempotent {
		b.t.Skip("the destination keeps every copy")
	}
	s := b.open()
	events := Events(80, 7)
	s.mustWrite(events[:50])
	s.mustWrite(events[:50])
	s.mustWrite(events)
	s.close()
	b.open().mustWrite(events[20:70])
	if got := b.received(len(events)); len(got) != len(events) {
		b.t.Errorf("the destination has %d events, %d were written", len(got), len(events))
	}
	b.expectPerObject(events)
}

func checkCancel(b *bench) { b.cancelled(Events(6, 2)) }

// checkCancelMuch writes more than the buffers between the sink and its destination hold.
func checkCancelMuch(b *bench) {
	s := b.open()
	first := Event(0, 0)
	s.mustWrite([]*event.Event{first}) // some destinations report their limits only then
	size := 1 << 20
	if limited, ok := s.Sink.(sinks.Limited); ok && limited.Limits().MaxEventBytes > 0 {
		size = min(size, limited.Limits().MaxEventBytes-1024)
	}
	s.close()
	events := Events(2, 2)[:1]
	for i := 1; (i-1)*size < 24<<20; i++ {
		events = append(events, Large(i, i, size))
	}
	b.cancelled(events)
}

// cancelled writes the first of the events, hangs the destination, and cancels the Write
// of the others.
func (b *bench) cancelled(events []*event.Event) {
	b.needs(b.dest.Hang != nil, "hang")
	s := b.open()
	s.deliver(events[:1])
	b.dest.Hang(b.t)
	s.mustHang(events[1:])
	b.dest.Repair(b.t)
	s.deliver(events[1:])
	b.expectPerObject(events)
}

// mustHang writes to a destination that hangs, and cancels.
func (s *opened) mustHang(events []*event.Event) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- s.write(ctx, events) }()
	select {
	case err := <-result:
		s.t.Fatalf("the write did not wait for the destination: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	cancel()
	select {
	case err := <-result:
		WantClass(s.t, err, sinks.ClassRetry)
	case <-time.After(patience):
		s.t.Fatal("the write continues after cancellation")
	}
}

// checkCloseHung closes the sink of a destination that hangs: Close ends with its
// context, and reports what is left.
func checkCloseHung(b *bench) {
	b.needs(b.dest.Hang != nil, "hang")
	s := b.open()
	events := Events(6, 2)
	s.mustWrite(events[:2])
	b.dest.Hang(b.t)
	s.mustHang(events[2:4])
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := s.closeWithin(100 * time.Millisecond); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			b.t.Errorf("close: %v", err)
		}
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		b.t.Error("close continues after its context")
	}
	b.dest.Repair(b.t)
	<-closed
}

// checkCloseCut closes a sink with a context that is done. What the sink has open is released all the
// same, for the next one and for the process, whose test looks for goroutines that are left.
func checkCloseCut(b *bench) {
	s := b.open()
	events := Events(6, 2)
	s.mustWrite(events[:2])
	s.closed = true
	ctx, cancel := context.WithCancel(b.t.Context())
	cancel()
	if err := s.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
		b.t.Errorf("close: %v", err)
	}
	b.open().deliver(events[2:])
	b.expectPerObject(events)
}

func checkCancelledBefore(b *bench) {
	s := b.open()
	events := Events(4, 2)
	ctx, cancel := context.WithCancel(b.t.Context())
	cancel()
	err := s.write(ctx, events)
	if err == nil {
		b.t.Error("a write with a context that was done succeeded")
	}
	for _, why := range failures(events, err) {
		if !errors.Is(why, context.Canceled) {
			b.t.Errorf("the error does not say that the context was done: %v", why)
		}
	}
	s.deliver(events)
	b.expectPerObject(events)
}

func checkRefuse(b *bench) {
	b.needs(b.dest.Refuse != nil, "refuse")
	s := b.open()
	events := Events(4, 2)
	b.dest.Refuse(b.t)
	WantClass(b.t, s.write(b.t.Context(), events), sinks.ClassPause)
	b.dest.Repair(b.t)
	s.deliver(events)
	b.expectPerObject(events)
}

func checkReject(b *bench) {
	b.needs(b.dest.Reject != nil, "reject one event")
	s := b.open()
	events := Events(12, 4)
	bad := events[5]
	b.dest.Reject(b.t, bad.ID)
	if poison := s.deliver(events); !slices.Equal(poison, []string{bad.ID}) {
		b.t.Errorf("poison: %v, only %s is wanted", poison, bad.ID)
	}
	b.expectPerObject(slices.DeleteFunc(events, func(e *event.Event) bool { return e == bad }))
}

func checkLimits(b *bench) {
	s := b.open()
	events := Events(3, 3)
	s.mustWrite(events[:1]) // some destinations report their limits only then
	limited, ok := s.Sink.(sinks.Limited)
	if !ok {
		b.t.Skip("the sink has no limits")
	}
	limits := limited.Limits()
	if limits.MaxEventBytes < 0 || limits.MaxBatch < 0 {
		b.t.Fatalf("limits no worker can keep to: %+v", limits)
	}
	if limits.MaxEventBytes == 0 {
		b.t.Skip("the sink has no limit for one event")
	}
	// The largest event within the limit must pass, and one far beyond it must be
	// blamed on the event.
	fits := Large(1, 1, limits.MaxEventBytes-1024)
	s.mustWrite([]*event.Event{fits})
	b.expect([]*event.Event{events[0], fits})
	WantClass(b.t, s.write(b.t.Context(), []*event.Event{Large(2, 2, 2*limits.MaxEventBytes)}), sinks.ClassPoison)
}

// checkReplace is what a reload does: the new sink is opened before the old one
// is closed.
func checkReplace(b *bench) {
	events := Events(20, 3)
	old := b.open()
	old.mustWrite(events[:10])
	next := b.open()
	old.close()
	next.mustWrite(events[10:])
	b.expect(events)
}
