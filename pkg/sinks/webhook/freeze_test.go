package webhook_test

import (
	"net"
	"sync"
)

// freezer is a listener whose server can be frozen: it keeps its connections, and reads
// and writes nothing any more.
type freezer struct {
	net.Listener

	mu   sync.Mutex
	gate chan struct{} // closed: not frozen
}

func newFreezer(l net.Listener) *freezer {
	f := &freezer{Listener: l, gate: make(chan struct{})}
	close(f.gate)
	return f
}

// freeze freezes the server until thaw.
func (f *freezer) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gate = make(chan struct{})
}

func (f *freezer) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.gate:
	default:
		close(f.gate)
	}
}

func (f *freezer) frozen() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gate
}

// Accept implements net.Listener.
func (f *freezer) Accept() (net.Conn, error) {
	c, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &freezable{Conn: c, freezer: f, closed: make(chan struct{})}, nil
}

type freezable struct {
	net.Conn
	freezer *freezer
	closed  chan struct{}
	once    sync.Once
}

func (c *freezable) wait() {
	select {
	case <-c.freezer.frozen():
	case <-c.closed:
	}
}

// Read implements net.Conn.
func (c *freezable) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wait()
	return n, err
}

// Write implements net.Conn.
func (c *freezable) Write(p []byte) (int, error) {
	c.wait()
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *freezable) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
