package store

import (
	"errors"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// Commit writes the batch atomically and returns when it is durable: after the fsync, or
// with a journal once that has it. It ends the batch, with an error too.
//
// After ErrFailed it is unknown whether the batch is on disk, and the store is unusable.
// After any other error (a route to an unknown sink, ErrClosed) nothing was written and
// the store still works.
func (s *Store) Commit(b *Batch) error {
	if b.s != s || b.done {
		return errors.New("commit of a batch that has ended")
	}
	defer b.Discard()
	if b.err == nil {
		b.seal()
	}
	if b.err != nil {
		return b.err
	}
	if b.pb.Empty() {
		return nil
	}
	for _, p := range b.partitions {
		p.written.Store(true)
	}
	if err := s.write(b); err != nil {
		return err
	}
	b.publish()
	return nil
}

func (b *Batch) seal() {
	if b.appending {
		if b.s.next-1 > maxSequence {
			b.misuse(errNoSequences)
			return
		}
		b.merge(layout.CounterKey(layout.KindPosition, 0), layout.Counter{High: b.s.next - 1})
	}
	if b.records > 0 {
		b.sealLog()
	}
	for _, d := range b.queues {
		b.merge(layout.CounterKey(layout.KindQueue, d.queue.id), layout.Counter{Count: d.count, Bytes: d.bytes})
		if d.detached.Count != 0 {
			b.merge(layout.CounterKey(layout.KindDetached, d.queue.id), d.detached)
		}
	}
}

func (b *Batch) sealLog() {
	l := b.s.log
	l.mu.Lock()
	count, bytes := l.totalLocked()
	due := l.marks.due(b.firstTime, bytes)
	m := mark{sequence: b.first, clock: b.firstTime, time: b.firstTime, count: count, bytes: bytes}
	l.mu.Unlock()
	if due {
		b.mark = m
		b.misuseIf(b.pb.Set(layout.MarkKey(m.sequence), m.append(nil), nil))
	}
	b.merge(layout.CounterKey(layout.KindLog, 0), layout.Counter{Count: int64(b.records), Bytes: b.bytes})
}

func (b *Batch) merge(key []byte, c layout.Counter) {
	var value [layout.CounterLen]byte
	b.misuseIf(b.pb.Merge(key, c.Append(value[:0]), nil))
}

// write applies the batch and makes it durable, then checks that this process still owned the
// directory: a process that takes over later reads the batch.
func (s *Store) write(b *Batch) error {
	began := time.Now()
	s.commitBegan.Store(began.UnixNano())
	defer s.commitBegan.Store(0)
	s.lazy.Store(false) // earlier writes precede this one in the write-ahead log
	size := int64(b.pb.Len())
	err := s.apply(b.pb, pebble.Sync)
	b.pb = nil // closed, or Pebble may still be busy with it
	if err == nil {
		if err = s.files.CheckOwner(); err != nil {
			s.fail(err)
			err = s.failure
		}
	}
	s.metrics.committed(time.Since(began), b.records, err)
	if err != nil {
		return err
	}
	s.lastCommit.Store(s.opts.Now().UnixNano())
	s.gate.wrote(size)
	return nil
}

func (b *Batch) publish() {
	for _, p := range b.partitions {
		p.saved.Store(true)
	}
	// Queues before the log's tail: retention reads them in the other order.
	for _, d := range b.queues {
		d.queue.added(d)
	}
	if b.records > 0 {
		l := b.s.log
		l.mu.Lock()
		if b.mark.sequence != 0 {
			l.marks = l.marks.add(b.mark)
		}
		l.live.Count += int64(b.records)
		l.live.Bytes += b.bytes
		l.tail = b.last
		l.mu.Unlock()
		l.news.notify()
	}
	for _, f := range b.committed {
		f()
	}
	if b.appending {
		b.first = b.s.next // keep the positions
	}
}

// lifetime counts the calls that are using Pebble, so that Close can wait for
// them and reject new ones. Pebble panics when used after its Close.
type lifetime struct {
	mu     sync.Mutex
	users  int           // guarded by mu
	closed bool          // guarded by mu
	ended  chan struct{} // closed by end
	idle   chan struct{} // closed when ended and no users are left
}

func (l *lifetime) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.users++
	return true
}

func (l *lifetime) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users--
	if l.closed && l.users == 0 {
		close(l.idle)
	}
}

// end rejects new users; it returns false if it was called before. idle is closed when
// the last user has left.
func (l *lifetime) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.closed = true
	close(l.ended)
	if l.users == 0 {
		close(l.idle)
	}
	return true
}

// signal wakes all waiters. The zero value is ready.
type signal struct {
	mu sync.Mutex
	ch chan struct{} // guarded by mu; nil without a waiter
}

// wait returns a channel that the next notify closes. Take it before checking the
// condition.
func (g *signal) wait() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ch == nil {
		g.ch = make(chan struct{})
	}
	return g.ch
}

func (g *signal) notify() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ch != nil {
		close(g.ch)
		g.ch = nil
	}
}
