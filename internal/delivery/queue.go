package delivery

import (
	"context"

	"github.com/watcherd/watcherd/internal/store"
)

// Queue is a sink's queue in the store. An error of any method but Wait means that the
// store failed, and ends the worker.
type Queue interface {
	// Read returns items after the position, oldest first: at most max of them
	// and about maxBytes of payload, but at least one if there is any.
	Read(after uint64, max, maxBytes int) ([]store.Item, error)
	// Wait blocks until there is an item after the position, or ctx is done.
	Wait(ctx context.Context, after uint64) error
	// Ack removes items for good.
	Ack(positions ...uint64) error
	// DeadLetter moves one item to the dead letters.
	DeadLetter(position uint64, letter store.Letter) error
	// Note and PutNote read and write a small blob of the queue.
	Note() (note []byte, found bool, err error)
	PutNote(note []byte) error
	// Stats is cheap and may be called from any goroutine.
	Stats() store.Stats
}

var _ Queue = (*store.Queue)(nil)
