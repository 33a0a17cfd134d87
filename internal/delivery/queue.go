package delivery

import (
	"context"
	"fmt"

	"github.com/watcherd/watcherd/internal/store"
)

// Queue is a sink's queue in the store. An error of any method means that the store
// failed, and ends the worker, but for those that the methods name.
type Queue interface {
	// Read returns items after the position, oldest first: at most max of them
	// and about maxBytes of payload, but at least one if there is any.
	Read(after uint64, max, maxBytes int) ([]store.Item, error)
	// Wait blocks until there is an item after the position, or returns ctx's error.
	Wait(ctx context.Context, after uint64) error
	// Ack removes items for good.
	Ack(positions ...uint64) error
	// DeadLetter moves one item to the dead letters. [store.ErrDeadLettersFull]: it stays.
	DeadLetter(position uint64, letter store.Letter) error
	// Note and PutNote read and write a small blob of the queue. [store.ErrUnreadable]: it
	// is damaged.
	Note() (note []byte, found bool, err error)
	PutNote(note []byte) error
	// Stats is cheap and may be called from any goroutine.
	Stats() store.Stats
}

var _ Queue = (*store.Queue)(nil)

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
