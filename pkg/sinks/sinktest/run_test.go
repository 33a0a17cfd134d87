package sinktest_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// list is a destination in memory, and a kind of sink that leaves its delivery to the worker.
type list struct {
	mu     sync.Mutex
	ids    []string
	broken bool
}

func (l *list) Validate() error                                         { return nil }
func (l *list) Defaults() sinks.Delivery                                { return sinks.Delivery{} }
func (l *list) Open(context.Context, sinks.Options) (sinks.Sink, error) { return l, nil }
func (l *list) Close(context.Context) error                             { return nil }

func (l *list) Write(ctx context.Context, batch []*event.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return errors.New("broken")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, e := range batch {
		var sent struct{ ID string }
		if err := json.Unmarshal(sinks.JSON.Append(nil, e), &sent); err != nil {
			return err
		}
		l.ids = append(l.ids, sent.ID)
	}
	return nil
}

func (l *list) setBroken(broken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = broken
}

func (l *list) received(*testing.T) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ids)
}

// TestRun: the least that keeps the contract passes.
func TestRun(t *testing.T) {
	sinktest.Run(t, func(*testing.T) sinktest.Destination {
		l := &list{}
		return sinktest.Destination{
			Config:   func() sinks.Config { return l },
			Received: l.received,
			Break:    func(*testing.T) { l.setBroken(true) },
			Repair:   func(*testing.T) { l.setBroken(false) },
		}
	})
}
