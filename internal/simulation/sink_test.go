package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// received is one event as a receiver keeps it.
type received struct {
	ID, Path, UID, Version string
	Type                   event.Type
	Selection              event.Selection
	Sequence               uint64
	N                      int
	Unknown, Repair        bool
	Gap                    string // the cause
	From, To               uint64 // versions, of a gap
	Since, Until           time.Time
	In                     string // its namespace
	Epoch                  bool   // its versions were used twice
	Earlier                bool   // of before the last state that a rollback took back, which its watch had not come to: both may come
}

// receiver is what stands behind one sink. It outlives the processes that deliver to
// it. Its fields are guarded by mu.
type receiver struct {
	name   string
	mu     sync.Mutex
	mode   string
	poison string // the object path that mode picky refuses
	events []received
	former map[string]received // of before the cluster was restored, by id
	had    map[string]bool     // by uid: objects that it had then, and whose end its watch, which was away, has yet to report
}

// The modes of a receiver.
const (
	well   = "well"
	down   = "down"
	paused = "paused"
	slow   = "slow"
	picky  = "picky"
)

var errDown = errors.New("the receiver is down")

// sink is the sink of one life. A killed life's writes reach nobody.
type sink struct {
	*receiver
	life *life
}

func (s sink) Write(ctx context.Context, batch []*event.Event) error {
	s.mu.Lock()
	mode := s.mode
	s.mu.Unlock()
	switch mode {
	case down:
		return errDown
	case paused:
		return sinks.Pause(errDown)
	case slow:
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if mode == hanging {
		s.hang()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.killed || s.life.over {
		return errDown
	}
	failed, held := map[int]error{}, map[string]bool{}
	for i, e := range batch {
		got := receive(e)
		switch {
		case held[got.Path]:
			failed[i] = sinks.Held(errDown)
		case mode == picky && got.Path == s.poison:
			failed[i], held[got.Path] = errDown, true
		default:
			if before, again := s.former[got.ID]; again && before.Type == got.Type && before.Version == got.Version && before.N == got.N {
				continue
			}
			s.events = append(s.events, got)
			gap := ""
			if got.Type == event.Gap {
				gap = fmt.Sprintf("%s %d-%d %v-%v", got.Gap, got.From, got.To, got.Since.Format(time.TimeOnly), got.Until.Format(time.TimeOnly))
			}
			account.tell("    ", s.name+":", got.Type, got.Path+"@"+got.Version, got.Selection, gap)
		}
	}
	if len(failed) > 0 {
		return &sinks.BatchError{Failed: failed}
	}
	return nil
}

// hang returns after five minutes, or when the process has ended.
func (s sink) hang() {
	for range 300 {
		time.Sleep(time.Second)
		s.mu.Lock()
		over := s.life.killed || s.life.over
		s.mu.Unlock()
		if over {
			return
		}
	}
}

func (sink) Close(context.Context) error { return nil }

var pathOfN = rawjson.MustParsePath("spec.n")

func receive(e *event.Event) received {
	resource := e.Resource.Resource
	if e.Resource.Group != "" {
		resource += "." + e.Resource.Group
	}
	got := received{
		ID: e.ID, Path: path(resource, e.Namespace, e.Name), UID: e.UID, Version: e.ResourceVersion, Type: e.Type,
		Selection: e.Selection, Sequence: e.Sequence, Unknown: e.FinalStateUnknown, Repair: e.Repair,
	}
	if e.Gap != nil {
		got.Gap, got.In = e.Gap.Cause, e.Gap.Namespace
		got.From, _ = strconv.ParseUint(e.Gap.FromResourceVersion, 10, 64)
		got.To, _ = strconv.ParseUint(e.Gap.ToResourceVersion, 10, 64)
		got.Since, got.Until = e.Gap.From, e.Gap.To
	}
	if len(e.Object) > 0 && !json.Valid(e.Object) {
		panic(fmt.Sprintf("the object of %s is %q", e.ID, e.Object))
	}
	if n, ok := rawjson.Lookup(e.Object, pathOfN); ok {
		got.N, _ = strconv.Atoi(string(n))
	}
	return got
}

// sinkConfig is the block of kind sim.
type sinkConfig struct{ world *world }

func (sinkConfig) Validate() error { return nil }

func (sinkConfig) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 20, MaxBytes: 1 << 20, Concurrency: 2}
}

func (c sinkConfig) Open(_ context.Context, o sinks.Options) (sinks.Sink, error) {
	return sink{c.world.receivers[o.Name], c.world.life}, nil
}
