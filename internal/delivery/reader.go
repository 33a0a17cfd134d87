package delivery

import (
	"context"
	"fmt"

	"github.com/watcherd/watcherd/internal/store"
)

// chunk is the result of one Read. An error ends the reader.
type chunk struct {
	items []store.Item
	err   error
}

// read sends the queue's items in order until ctx is done or the store fails. It holds at
// most one chunk.
func read(ctx context.Context, q Queue, chunks chan<- chunk) {
	var after uint64
	for {
		// Read returns nothing only if every entry up to the tail is acknowledged or a
		// dead letter.
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
