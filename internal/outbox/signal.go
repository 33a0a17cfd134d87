package outbox

import "sync"

// signal wakes everyone who waits. The zero value is ready.
type signal struct {
	mu sync.Mutex
	ch chan struct{} // guarded by mu; nil while nobody waits
}

// wait returns a channel that the next notify closes. Take it before looking at
// the condition.
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
