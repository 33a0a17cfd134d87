package store

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// Record is one entry of the event log.
type Record struct {
	// Time orders retention and replay by time. Not zero.
	Time time.Time
	// Lane is kept for the readers: records of one object have the same.
	Lane uint64
	// Payload is copied by Append.
	Payload []byte
}

// Route puts a record into the queue of a sink.
type Route struct {
	// Sink is the name of an ensured sink.
	Sink string
	// Flags are handed to the reader of the queue.
	Flags uint32
}

// Batch collects what one Commit writes. It is not safe for concurrent use.
// Every batch ends with Commit or Discard.
type Batch struct {
	s   *Store
	pb  *pebble.Batch
	err error // the first misuse; Commit reports it

	appending bool   // holds s.appending
	first     uint64 // the position the first Append took
	last      uint64 // the sequence of the last record
	records   int
	bytes     int64
	firstTime time.Time
	mark      mark // set by Commit when the batch begins a segment

	queues     []queueDelta
	partitions []*partition // named in this batch for the first time
	committed  []func()     // called after the write succeeded
	done       bool
	key        []byte
}

// queueDelta is what a batch adds to a queue.
type queueDelta struct {
	queue     *Queue
	count     int64
	bytes     int64
	first     uint64
	last      uint64
	firstTime time.Time
	detached  layout.Counter // those that carry their payload
}

// NewBatch begins a batch.
func (s *Store) NewBatch() *Batch {
	b := &Batch{s: s}
	if err := s.use(); err != nil {
		b.err = err
		return b
	}
	defer s.life.leave()
	b.pb = s.db.NewBatch()
	return b
}

// Size is the number of bytes that are in the batch so far.
func (b *Batch) Size() int {
	if !b.usable() {
		return 0
	}
	return b.pb.Len()
}

func (b *Batch) usable() bool {
	if b.done {
		b.misuse(errors.New("batch used after its end"))
	}
	return b.err == nil
}

func (b *Batch) misuse(err error) {
	if b.err == nil {
		b.err = err
	}
}

// Append adds a record to the log and to the queues of its routes, which may be
// none, and returns its sequence. Sequences rise strictly; those of a batch that
// is discarded are given out again. An unknown sink makes Commit fail.
//
// The first Append of a batch waits until no other batch holds the right to
// append.
func (b *Batch) Append(r Record, routes []Route) uint64 {
	if !b.usable() {
		return 0
	}
	b.hold()
	if b.records == 0 {
		b.firstTime = r.Time
	}
	sequence := b.position()
	b.last = sequence
	b.records++
	b.bytes += int64(len(r.Payload))

	op := b.pb.SetDeferred(layout.LogKeyLen, layout.LogHeaderLen+len(r.Payload))
	layout.AppendLogKey(op.Key[:0], sequence)
	layout.PutLogHeader(op.Value, r.Time, r.Lane, uint32(len(r.Payload)))
	copy(op.Value[layout.LogHeaderLen:], r.Payload)
	b.misuseIf(op.Finish())

	e := layout.Entry{Kind: layout.EntryNew, Size: uint32(len(r.Payload)), Time: r.Time}
	for _, route := range routes {
		q := b.s.sinks.get(route.Sink)
		if q == nil {
			b.misuse(fmt.Errorf("%w %q", ErrUnknownSink, route.Sink))
			return sequence
		}
		e.Flags = route.Flags
		b.enqueue(q, sequence, &e)
	}
	return sequence
}

// Enqueue adds an entry with a payload of its own to the queue of a sink: a later form of
// the record with that sequence, which the log need not have any more. ok is false if there
// is no such sink.
func (b *Batch) Enqueue(r Record, sequence uint64, to Route) (ok bool) {
	if !b.usable() {
		return false
	}
	b.hold()
	q := b.s.sinks.get(to.Sink)
	if q == nil || q.isPurged() {
		return false
	}
	b.enqueue(q, b.position(), &layout.Entry{
		Kind: layout.EntryInline, Flags: to.Flags, Size: uint32(len(r.Payload)),
		Time: r.Time, Sequence: sequence, Lane: r.Lane, Payload: r.Payload,
	})
	return true
}

// PutHeadlines adds the headlines of the records appended so far, of which there are some:
// opaque bytes, which the store may join with those of other batches.
func (b *Batch) PutHeadlines(block []byte) {
	if b.usable() {
		b.misuseIf(b.pb.Set(layout.HeadlineKey(b.last), block, nil))
	}
}

// hold waits for the right to append, until the end of the batch.
func (b *Batch) hold() {
	if !b.appending {
		b.s.appending <- struct{}{}
		b.appending = true
		b.first = b.s.next
	}
}

// position hands out the next position; the batch holds the right to append.
func (b *Batch) position() uint64 {
	b.s.next++
	return b.s.next - 1
}

func (b *Batch) misuseIf(err error) {
	if err != nil {
		b.misuse(err)
	}
}

// enqueue writes a queue entry and counts it; the batch holds the right to append.
func (b *Batch) enqueue(q *Queue, position uint64, e *layout.Entry) {
	d := b.delta(q)
	if d == nil {
		return
	}
	op := b.pb.SetDeferred(layout.QueueKeyLen, e.EncodedLen())
	layout.AppendSinkKey(op.Key[:0], layout.PrefixQueue, q.id, position)
	e.Encode(op.Value)
	b.misuseIf(op.Finish())

	if d.count == 0 {
		d.first, d.firstTime = position, e.Time
	}
	d.count++
	d.bytes += int64(e.Size)
	d.last = position
	if e.Kind == layout.EntryInline {
		d.detached = d.detached.Plus(layout.Counter{Count: 1, Bytes: int64(e.Size)})
	}
}

// delta is what the batch adds to a queue; nil, and the batch fails, if the sink was
// purged.
func (b *Batch) delta(q *Queue) *queueDelta {
	for i := range b.queues {
		if b.queues[i].queue == q {
			return &b.queues[i]
		}
	}
	if q.isPurged() {
		b.misuse(fmt.Errorf("%w %q", ErrUnknownSink, q.name))
		return nil
	}
	b.queues = append(b.queues, queueDelta{queue: q})
	return &b.queues[len(b.queues)-1]
}

// PutState sets a ledger entry. The value is copied.
func (b *Batch) PutState(partition, key string, value []byte) {
	if !b.usable() {
		return
	}
	p := b.s.partitions.ensure(partition)
	b.use(p)
	b.key = layout.AppendStateKey(b.key[:0], p.id, key)
	b.misuseIf(b.pb.Set(b.key, value, nil))
}

// DeleteState removes a ledger entry, if there is one.
func (b *Batch) DeleteState(partition, key string) {
	if !b.usable() {
		return
	}
	p := b.s.partitions.get(partition)
	if p == nil {
		return
	}
	b.key = layout.AppendStateKey(b.key[:0], p.id, key)
	b.misuseIf(b.pb.Delete(b.key, nil))
}

// use writes the partition's name with the first entries it ever gets.
func (b *Batch) use(p *partition) {
	if p.saved.Load() || slices.Contains(b.partitions, p) {
		return
	}
	b.partitions = append(b.partitions, p)
	b.misuseIf(b.pb.Set(layout.NameKey(layout.KindPartition, p.name), layout.ID32(p.id), nil))
}

// PutMeta sets a value of the caller's metadata. The value is copied.
func (b *Batch) PutMeta(key string, value []byte) {
	if b.usable() {
		b.misuseIf(b.pb.Set(layout.MetaKey(key), value, nil))
	}
}

// DeleteMeta removes a value of the caller's metadata, if there is one.
func (b *Batch) DeleteMeta(key string) {
	if b.usable() {
		b.misuseIf(b.pb.Delete(layout.MetaKey(key), nil))
	}
}

// Discard ends a batch without writing it. After Commit it does nothing, so it
// may be deferred.
func (b *Batch) Discard() {
	if b.done {
		return
	}
	b.done = true
	if b.appending {
		b.s.next = b.first
	}
	b.release()
	if b.pb != nil {
		_ = b.pb.Close() // frees memory; cannot fail for a batch not committed
	}
}

func (b *Batch) release() {
	if b.appending {
		b.appending = false
		<-b.s.appending
	}
}
