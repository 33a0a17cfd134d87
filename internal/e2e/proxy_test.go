package e2e

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// proxy is the network between a daemon and the API server. It can be cut, and it
// can fall silent with every connection standing.
type proxy struct {
	target   string
	listener net.Listener
	silence  sync.RWMutex // held for writing while nothing passes
	running  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // guarded by mu; nil at the end
}

// newProxy starts a proxy before the cluster's API server.
func newProxy(t testing.TB, c *testcluster.Cluster) *proxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{target: strings.TrimPrefix(c.URL, "https://"), listener: l, conns: map[net.Conn]struct{}{}}
	p.running.Go(p.accept)
	t.Cleanup(func() {
		if p.silence.TryLock() {
			p.silence.Unlock()
		} else {
			p.resume()
		}
		l.Close()
		p.mu.Lock()
		open := p.conns
		p.conns = nil
		p.mu.Unlock()
		closeAll(open)
		p.running.Wait()
	})
	return p
}

// kubeconfig is a copy of another that leads through the proxy.
func (p *proxy) kubeconfig(t testing.TB, original string) string {
	t.Helper()
	text, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	through := strings.ReplaceAll(string(text), p.target, p.listener.Addr().String())
	if through == string(text) {
		t.Fatalf("%s does not lead to %s", original, p.target)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(through), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// cut ends every connection. New ones are let through.
func (p *proxy) cut() {
	p.mu.Lock()
	open := p.conns
	p.conns = map[net.Conn]struct{}{}
	p.mu.Unlock()
	closeAll(open)
}

// stall lets nothing pass in either direction, on no connection, until resume.
func (p *proxy) stall()  { p.silence.Lock() }
func (p *proxy) resume() { p.silence.Unlock() }

func closeAll(conns map[net.Conn]struct{}) {
	for c := range conns {
		c.Close()
	}
}

func (p *proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.target)
		if err != nil {
			near.Close()
			continue
		}
		if !p.keep(near, far) {
			return
		}
		p.running.Go(func() { p.pump(far, near) })
		p.running.Go(func() { p.pump(near, far) })
	}
}

// keep notes a pair of connections, unless this is the end, when it closes them.
func (p *proxy) keep(pair ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range pair {
		if p.conns == nil {
			c.Close()
			continue
		}
		p.conns[c] = struct{}{}
	}
	return p.conns != nil
}

func (p *proxy) pump(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	_, _ = io.Copy(writer(func(b []byte) (int, error) {
		p.silence.RLock()
		defer p.silence.RUnlock()
		return to.Write(b)
	}), from) // either side may end it
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
