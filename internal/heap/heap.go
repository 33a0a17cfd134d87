// Package heap keeps the daemon's heap within its container's memory limit, and small.
//
// It changes settings of the Go runtime, which are the whole process's: it is for the
// command, not for a library.
package heap

import (
	"context"
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// memoryShare is the part of the container's limit that Go may plan with. The rest
// is for what its runtime does not count: the binary's pages, above all.
const memoryShare = 0.9

// Limit makes the garbage collector work harder near the container's memory
// limit, instead of being killed there. GOMEMLIMIT, if set, has the last word.
func Limit(log *slog.Logger) {
	limit, err := memlimit.Set(memlimit.WithRatio(memoryShare), memlimit.WithProvider(memlimit.FromCgroup))
	if err != nil {
		log.Debug("no memory limit found", "reason", err)
		return
	}
	if limit > 0 && limit < math.MaxInt64 { // the latter stands for none
		log.Info("memory limit set from the container's limit", "GOMEMLIMIT", limit)
	}
}

const (
	tick = 2 * time.Second

	trimInterval = 30 * time.Second // at most one collection for this purpose in it
	trimBusy     = 8 << 20          // allocated in a tick: soon needed again
	trimLeast    = 16 << 20         // not worth a collection below this

	// A heap may grow by half of what is in use, and by this, until it is collected.
	paceHeadroom = 32 << 20
)

// Start looks after the heap until stop is called, which waits.
//
// It keeps a large heap from doubling between two collections (see pace), and gives
// memory back to the system whenever the daemon comes to rest, after an initial list
// for one: by itself Go keeps as much as the heap last grew to until something
// allocates again. GOGC, if set, has the last word on the pace.
func Start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		care(ctx, os.Getenv("GOGC") == "")
	}()
	return func() {
		cancel()
		<-done
	}
}

func care(ctx context.Context, paced bool) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var last state
	var trimmed time.Time
	percent := 100 // Go's default
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			h := read()
			if p := h.pace(); paced && p != percent {
				debug.SetGCPercent(p)
				percent = p
			}
			if h.allocated-last.allocated < trimBusy && h.excess() > max(trimLeast, h.live/4) && now.Sub(trimmed) >= trimInterval {
				trim()
				h, trimmed = read(), now
			}
			last = h
		}
	}
}

// trim collects garbage and gives memory back to the system. A sync.Pool keeps its content over one collection: the buffers of an
// initial list would stay until the next one, which may be hours away, and it gives nothing back.
func trim() {
	runtime.GC()
	debug.FreeOSMemory() // collects too
}

// state is that of Go's heap, in bytes.
type state struct {
	allocated uint64 // since the start
	resident  uint64 // taken from the system
	live      uint64 // in use after the last collection
}

// excess is what a collection could give back, at most.
func (h state) excess() uint64 { return h.resident - min(h.live, h.resident) }

// pace is the garbage collector's percentage for the heap: how much it may grow, of
// what is in use, before it is collected. Small heaps have Go's default of 100:
// measured on a stream of updates, twice and four times that saved no CPU that
// showed. Large ones hold cached objects above all, which are cheap to mark, so that
// half costs little: the initial list of 300,000 pods took the same CPU time with it,
// and its peak fell from 1.9 to 1.5 times of what stayed.
//
// It comes in steps of ten, because setting it stops the world for a moment.
func (h state) pace() int {
	if h.live == 0 {
		return 100 // no collection yet
	}
	return int(min(100, (50+100*paceHeadroom/h.live)/10*10))
}

func read() state {
	s := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	return state{
		allocated: s[0].Value.Uint64(),
		live:      s[1].Value.Uint64(),
		resident:  s[2].Value.Uint64() + s[3].Value.Uint64() + s[4].Value.Uint64(),
	}
}
