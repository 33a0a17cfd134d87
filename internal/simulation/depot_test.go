package simulation

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/store"
)

// TestManyDeadLetters makes more dead letters than one call returns, of a sink that has all that it may have. None is lost.
func TestManyDeadLetters(t *testing.T) {
	const load, most = 16_000, 400
	withDepot(t, 64<<20, func(t *testing.T, d *depot) {
		queue := d.fill(most, load)
		for range most {
			items, err := queue.Read(0, 1, load)
			if err != nil {
				t.Fatal(err)
			}
			err = queue.DeadLetter(items[0].Position, store.Letter{Reason: "refused", First: d.now(), Time: d.now()})
			if errors.Is(err, store.ErrDeadLettersFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		dead := int(queue.Stats().DeadLetters)
		if dead == most {
			t.Fatal("there is room for more dead letters")
		}
		box := d.boxes[moody]
		box.committed = box.committed[:dead]
		d.check(moody)
	})
}

// TestIngestAfterAScrub rewrites a backlog, with which there is no room until what is obsolete is erased.
func TestIngestAfterAScrub(t *testing.T) {
	withDepot(t, 12<<20, func(t *testing.T, d *depot) {
		for range 10 {
			d.fill(38, 8000)
			time.Sleep(time.Second)
		}
		if err := d.scrub(-1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if d.store.Ingests() {
			t.Fatal("there is room beside what was rewritten")
		}
		if err := d.commit(1, 20, func() bool { return true }); err != nil {
			t.Error(err)
		}
	})
}

// withDepot calls f with a depot of which only the live sink has a worker.
func withDepot(t *testing.T, maxBytes int64, f func(*testing.T, *depot)) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(ageing)
		d := newDepot(t, 1)
		d.limits.MaxBytes, d.limits.DeadLetterMaxBytes = maxBytes, 0
		if err := d.begin(live); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if _, err := d.end(); err != nil {
				t.Error(err)
			}
		}()
		for _, name := range []string{moody, fickle} {
			if _, err := d.store.EnsureSink(name, store.FromNow); err != nil {
				t.Fatal(err)
			}
		}
		f(t, d)
	})
}

// fill commits changes of as many objects for the moody sink, and returns its queue.
func (d *depot) fill(objects, load int) *store.Queue {
	d.t.Helper()
	b := d.store.NewBatch()
	for object := range objects {
		d.n[object]++
		p := parcel{object, d.n[object]}
		b.Append(store.Record{Time: d.now(), Lane: uint64(object), Payload: p.pack(load)}, []store.Route{{Sink: moody}})
		d.boxes[moody].committed = append(d.boxes[moody].committed, p)
	}
	queue, err := d.store.Queue(moody)
	if err := errors.Join(err, d.store.Commit(b)); err != nil {
		d.t.Fatal(err)
	}
	return queue
}
