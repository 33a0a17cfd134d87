package admin

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// Local connects a client in this process with a server, without a port. Every client that has
// it may read and run commands.
type Local struct {
	connections chan net.Conn
	closed      chan struct{}
	close       sync.Once
}

var _ net.Listener = (*Local)(nil)

// NewLocal returns a Local for the Config of one server.
func NewLocal() *Local {
	return &Local{connections: make(chan net.Conn), closed: make(chan struct{})}
}

// Transport returns a client's side. URLs begin with http://localhost. Requests fail once the
// server is closed.
func (l *Local) Transport() *http.Transport {
	return &http.Transport{DialContext: l.dial}
}

func (l *Local) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.connections <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *Local) Accept() (net.Conn, error) {
	select {
	case c := <-l.connections:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Local) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *Local) Addr() net.Addr { return &net.UnixAddr{Name: "local", Net: "pipe"} }
