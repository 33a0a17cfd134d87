package main

import (
	"context"
	"log/slog"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// GOGC stays at Go's default of 100. Measured on a stream of updates at full speed,
// twice and four times that saved no CPU that showed; it did cost 20 and 60 MiB.

// memoryShare is the part of the container's limit that Go may plan with. The rest
// is for what its runtime does not count: the binary's pages, above all.
const memoryShare = 0.9

// limitMemory makes the garbage collector work harder near the container's memory
// limit, instead of being killed there. GOMEMLIMIT, if set, has the last word.
func limitMemory(log *slog.Logger) {
	limit, err := memlimit.Set(memlimit.WithRatio(memoryShare), memlimit.WithProvider(memlimit.FromCgroup))
	if err != nil {
		log.Debug("no memory limit found", "reason", err)
		return
	}
	if limit > 0 {
		log.Info("memory limit taken from the container's", "GOMEMLIMIT", limit)
	}
}

const (
	trimTick     = 2 * time.Second
	trimInterval = 30 * time.Second // at most one collection for this purpose in it
	trimBusy     = 8 << 20          // allocated in a tick: soon needed again
	trimLeast    = 16 << 20         // not worth a collection below this
)

// startTrimming gives memory back to the system whenever the daemon comes to rest,
// after an initial list for one. By itself Go keeps as much as the heap last grew
// to, twice what is in use, until something allocates again. stop ends it and waits.
func startTrimming(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		trim(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func trim(ctx context.Context) {
	tick := time.NewTicker(trimTick)
	defer tick.Stop()
	var last heap
	var trimmed time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			h := readHeap()
			if h.allocated-last.allocated < trimBusy && h.excess() > max(trimLeast, h.live/4) && now.Sub(trimmed) >= trimInterval {
				debug.FreeOSMemory()
				h, trimmed = readHeap(), now
			}
			last = h
		}
	}
}

// heap is the state of Go's heap, in bytes.
type heap struct {
	allocated uint64 // since the start
	resident  uint64 // taken from the system
	live      uint64 // in use after the last collection
}

// excess is what a collection could give back, at most.
func (h heap) excess() uint64 { return h.resident - min(h.live, h.resident) }

func readHeap() heap {
	s := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	return heap{
		allocated: s[0].Value.Uint64(),
		live:      s[1].Value.Uint64(),
		resident:  s[2].Value.Uint64() + s[3].Value.Uint64() + s[4].Value.Uint64(),
	}
}
