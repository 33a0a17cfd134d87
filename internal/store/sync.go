package store

import "sync"

// lifetime counts the calls that are using Pebble, so that Close can wait for
// them and reject new ones. Pebble panics when used after its Close.
type lifetime struct {
	mu     sync.Mutex
	users  int           // guarded by mu
	closed bool          // guarded by mu
	ended  chan struct{} // closed by end
	idle   chan struct{} // closed when ended and no users are left
}

func newLifetime() *lifetime {
	return &lifetime{ended: make(chan struct{}), idle: make(chan struct{})}
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
