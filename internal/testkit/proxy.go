package testkit

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy is the network between clients and a TCP server: it can be cut, and it can fall silent with every connection
// standing. Its methods may be called from any goroutine.
type Proxy struct {
	Addr string // for clients

	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	down    bool          // guarded by mu
	conns   []net.Conn    // guarded by mu
	asks    chan struct{} // guarded by mu; closed: what clients send passes
	answers chan struct{} // guarded by mu; closed: what the server sends passes
	late    time.Duration // guarded by mu; of what the server sends
}

// NewProxy starts a proxy before the server at an address, until the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l := Listen(t)
	open := make(chan struct{})
	close(open)
	p := &Proxy{Addr: l.Addr().String(), target: target, listener: l, asks: open, answers: open}
	p.running.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// Close ends the proxy before the test does.
func (p *Proxy) Close() {
	p.listener.Close()
	p.Cut()
	p.running.Wait()
}

// Cut closes all connections, and new ones until Restore.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
	p.passLocked()
}

// Hang lets nothing pass in either direction until Restore. Connections stand.
func (p *Proxy) Hang() {
	p.HangAnswers()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asks = p.answers
}

// HangAnswers holds back what the server sends until Restore; what clients send reaches it.
func (p *Proxy) HangAnswers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passLocked()
	p.answers = make(chan struct{})
}

// Delay makes what the server sends late by d.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = d
}

// Restore ends Cut, Hang and HangAnswers: what was held back passes.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
	p.passLocked()
}

func (p *Proxy) passLocked() {
	select {
	case <-p.answers:
	default:
		close(p.answers)
	}
	p.asks = p.answers
}

func (p *Proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.target)
		if err != nil {
			near.Close()
			continue
		}
		if !p.keep(near, far) {
			continue
		}
		p.running.Go(func() { p.pump(far, near, false) })
		p.running.Go(func() { p.pump(near, far, true) })
	}
}

// keep notes a pair of connections, or closes them.
func (p *Proxy) keep(near, far net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		near.Close()
		far.Close()
		return false
	}
	p.conns = append(p.conns, near, far)
	return true
}

func (p *Proxy) pump(to, from net.Conn, answers bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		gate, late := p.asks, time.Duration(0)
		if answers {
			gate, late = p.answers, p.late
		}
		p.mu.Unlock()
		<-gate
		time.Sleep(late)
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}
