package delivery

import (
	"context"
	"fmt"

	"github.com/watcherd/watcherd/internal/store"
)

// chunk is what one Read returned, or why there will be no more.
type chunk struct {
	items []store.Item
	err   error
}

// read hands on the queue's items in order until ctx is done or the store
// fails, and holds at most one chunk.
func read(ctx context.Context, q Queue, chunks chan<- chunk) {
	var after uint64
	for {
		// Read returns nothing only if nothing up to the tail is left: it was
		// acknowledged, or set aside as unreadable.
		tail := q.Stats().Tail
		items, err := q.Read(after, readItems, readBytes)
		switch {
		case err != nil:
			err = fmt.Errorf("read the queue: %w", err)
		case len(items) > 0:
			after = items[len(items)-1].Position
		default:
			after = max(after, tail)
			if err = q.Wait(ctx, after); err == nil {
				continue
			}
			err = fmt.Errorf("wait for events: %w", err)
		}
		if ctx.Err() != nil {
			return
		}
		select {
		case chunks <- chunk{items: items, err: err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}
