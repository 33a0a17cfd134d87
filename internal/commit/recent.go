package commit

import (
	"sync/atomic"

	"github.com/watcherd/watcherd/pkg/compact"
)

// recentSize is how many updates' former states are at hand for those who follow
// the event stream.
const recentSize = 1024

// recent remembers the former states of the last updates while somebody follows
// the event stream: the log has them only where a route asks for them, and people
// want to see what changed. One goroutine puts; any may get.
type recent struct {
	followers atomic.Int32
	ring      [recentSize]atomic.Pointer[former]
}

// former is the state that the update recorded under a sequence followed on.
type former struct {
	sequence uint64
	old      *compact.Object
}

func (r *recent) put(sequence uint64, old *compact.Object) {
	if r.followers.Load() > 0 {
		r.ring[sequence%recentSize].Store(&former{sequence, old})
	}
}

func (r *recent) get(sequence uint64) *compact.Object {
	if f := r.ring[sequence%recentSize].Load(); f != nil && f.sequence == sequence {
		return f.old
	}
	return nil
}

// follow has states remembered until release is called.
func (r *recent) follow() (release func()) {
	r.followers.Add(1)
	return func() {
		if r.followers.Add(-1) > 0 {
			return
		}
		for i := range r.ring {
			r.ring[i].Store(nil)
		}
	}
}

// Former is the state that the update recorded under a sequence followed on, nil unless
// somebody followed the event stream by then.
func (c *Committer) Former(sequence uint64) *compact.Object { return c.recent.get(sequence) }

// Follow has former states remembered until release is called.
func (c *Committer) Follow() (release func()) { return c.recent.follow() }
