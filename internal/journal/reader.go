package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/store"
)

// Reader reads the entries that follow a directory.
type Reader struct {
	j    *Client
	at   store.Position // of the directory, with what was returned
	seen uint64         // sequence of the last message read
	part assembly

	silence time.Duration // of the writer of that message
	replica string        // as above

	verified bool               // the entry of at was found in the stream
	consumer jetstream.Consumer // of messages
	messages jetstream.MessagesContext
	quiet    time.Time // since when nothing came from messages
}

// Read begins to read behind a position. The entry there is looked at, too: it must be the one that
// the directory has.
func (j *Client) Read(at store.Position) *Reader {
	j.knows(at.Last)
	return &Reader{j: j, at: at, seen: max(at.First, 1) - 1, verified: at.Last == 0}
}

// At is the position of the last entry returned.
func (r *Reader) At() store.Position { return r.at }

// Seen is the sequence of the last message read, which may be a part of an entry that is not complete.
func (r *Reader) Seen() uint64 { return r.seen }

// Silence is how long the writer of the last message read may write nothing until another takes over, by its own configuration; 0
// where that is not known.
func (r *Reader) Silence() time.Duration { return r.silence }

// Replica names the writer of the last message read; "" before the first.
func (r *Reader) Replica() string { return r.replica }

// silence is how long a subscription may bring nothing before it is made again: the server it lived on may be gone.
const silence = 2 * time.Second

// Next returns the next entry, or nil when none came within wait. Errors other than those of this package pass:
// call it again.
func (r *Reader) Next(ctx context.Context, wait time.Duration) (*Entry, error) {
	deadline := time.Now().Add(wait)
	for {
		if r.messages == nil {
			if err := r.subscribe(ctx); err != nil {
				return nil, err
			}
		}
		m, err := r.message(ctx, time.Until(deadline))
		if err != nil || m == nil {
			return nil, err
		}
		e, err := r.take(m)
		if e != nil || err != nil {
			return e, err
		}
	}
}

// readAhead bounds what is in memory, in bytes, of a journal that a replica is far behind, unless prefetch messages have more.
const readAhead = 32 << 20

// ahead is how many messages that have readAhead at most: the parts of a large entry have max_payload.
func (j *Client) ahead() int {
	return min(jetstream.DefaultMaxMessages, max(prefetch, readAhead/max(int(j.conn.MaxPayload()), 1)))
}

// subscribe checks that the stream continues the directory, and asks for what is not seen yet.
func (r *Reader) subscribe(ctx context.Context) error {
	x, err := r.j.Extent(ctx)
	if err != nil {
		return err
	}
	switch {
	case x.Last < r.seen || !r.verified && x.Last < r.at.Last:
		return fmt.Errorf("%w: the stream %s ends at %d, this store is at %d", ErrDiverged, r.j.Stream, x.Last, max(r.seen, r.at.Last))
	case x.First > r.seen+1:
		return fmt.Errorf("%w: the stream %s begins at %d, this store is at %d", ErrTrimmed, r.j.Stream, x.First, r.at.First)
	}
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	consumer, err := r.j.js.OrderedConsumer(ctx, r.j.Stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: r.seen + 1,
		// Further attempts would outlast every context, and not look at the stream and the server again.
		MaxResetAttempts: 1,
	})
	if err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	r.consumer = consumer
	r.messages, err = consumer.Messages(jetstream.PullExpiry(2*time.Second), jetstream.PullHeartbeat(500*time.Millisecond),
		jetstream.PullMaxMessages(r.j.ahead()))
	if err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	r.quiet = time.Now()
	return nil
}

// message returns nil when nothing comes within wait. A subscription that seems to be dead is closed.
func (r *Reader) message(ctx context.Context, wait time.Duration) (jetstream.Msg, error) {
	if wait <= 0 {
		wait = time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	m, err := r.messages.Next(jetstream.NextContext(ctx))
	if err == nil {
		r.quiet = time.Now()
		return m, nil
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) {
		if time.Since(r.quiet) > silence {
			r.Close()
		}
		return nil, nil //nolint:nilnil // nothing new
	}
	r.Close()
	return nil, fmt.Errorf("read the journal: %w", err)
}

func (r *Reader) take(m jetstream.Msg) (*Entry, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDiverged, err)
	}
	seq := meta.Sequence.Stream
	if seq != r.seen+1 {
		r.Close()
		return nil, fmt.Errorf("read the journal: sequence %d follows %d", seq, r.seen)
	}
	f, part, err := r.j.Keys.parse(m.Headers().Get(header), m.Data())
	if err != nil {
		return nil, fmt.Errorf("entry at sequence %d of the stream %s: %w", seq, r.j.Stream, err)
	}
	r.silence, r.replica = f.silence(), f.Replica
	if !r.verified {
		if f.Term != r.at.Term || uint64(f.Sum) != r.at.Sum {
			return nil, fmt.Errorf("%w: at sequence %d of the stream %s is another entry than the store's last", ErrDiverged, seq, r.j.Stream)
		}
		r.seen = seq
		r.verified = seq == r.at.Last
		return nil, nil //nolint:nilnil // it is in the directory
	}
	e, err := r.part.add(seq, f, part, r.at)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", r.j.Stream, err)
	}
	r.seen = seq
	r.j.saw(seq)
	if e != nil {
		r.at = e.Position
	}
	return e, nil
}

// CaughtUp reports whether everything that the stream has is read. It fails while the stream has no leader.
func (r *Reader) CaughtUp(ctx context.Context) (bool, error) {
	x, err := r.j.Extent(ctx)
	if err != nil {
		return false, err
	}
	if x.Last < r.seen {
		return false, fmt.Errorf("%w: the stream %s ends at %d, this store is at %d", ErrDiverged, r.j.Stream, x.Last, r.seen)
	}
	return r.verified && x.Last == r.seen, nil
}

// Close ends the subscription; Next begins another.
func (r *Reader) Close() {
	if r.messages != nil {
		r.messages.Stop()
		r.messages = nil
		r.j.leave(r.consumer)
	}
}

// leave has the servers remove a consumer, which they keep for minutes otherwise: they may have a limit for them. It does not wait.
func (j *Client) leave(c jetstream.Consumer) {
	info := c.CachedInfo()
	_ = j.conn.PublishRequest(jetstream.DefaultAPIPrefix+"CONSUMER.DELETE."+info.Stream+"."+info.Name, j.conn.NewInbox(), nil) // else it takes these minutes
}
