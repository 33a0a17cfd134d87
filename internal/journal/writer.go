package journal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/store"
)

// Writer appends entries, until another does.
type Writer struct {
	j       *Client
	replica string
	id      string
	at      store.Position
	last    uint64                    // sequence of the stream's last message
	proof   atomic.Pointer[time.Time] // when this was the writer for sure: see Age
	written atomic.Uint64             // bytes of all messages
}

// ErrFull is returned where the stream has no room for the entry that begins a term, and no writer that trims it.
var ErrFull = errors.New("the journal's stream is full")

// full reports whether an append failed for want of room in the stream.
func full(err error) bool {
	const storeFailed = 10077 // with the reason in words
	var e *jetstream.APIError
	return errors.As(err, &e) && e.ErrorCode == storeFailed && strings.Contains(e.Description, "maximum bytes")
}

// Contend begins a term as the writer behind what r has read, with everything it has in a directory. It returns the
// entry of that, which the directory needs, too; [store.ErrStolen] if there is more in the stream; [ErrFull] to be
// called again after the stream was trimmed.
func (r *Reader) Contend(ctx context.Context, replica string) (*Writer, *Entry, error) {
	w := &Writer{j: r.j, replica: replica, id: rand.Text(), at: r.at, last: r.seen}
	w.at.Term++
	e, err := w.append(ctx, Term, nil)
	if err != nil {
		return nil, nil, err
	}
	return w, e, nil
}

// Begin begins a journal with a directory that has records and is in none, behind all that the stream has. Only copies
// of the directory can follow. It fails with [ErrFull] as Contend does.
func (j *Client) Begin(ctx context.Context, replica string) (*Writer, *Entry, error) {
	x, err := j.Extent(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := j.dropSnapshot(ctx); err != nil { // it is of another past
		return nil, nil, err
	}
	w := &Writer{j: j, replica: replica, id: rand.Text(), last: x.Last}
	w.at.Term = x.Last + 1 // there were fewer terms than messages
	w.at.Sum = mathrand.Uint64() | 1
	e, err := w.append(ctx, Term, nil)
	if err != nil {
		return nil, nil, err
	}
	return w, e, nil
}

// Append implements [store.Journal].
func (w *Writer) Append(ctx context.Context, batch []byte) (store.Position, error) {
	e, err := w.append(ctx, Batch, batch)
	if err != nil {
		return store.Position{}, err
	}
	return e.Position, nil
}

// Erase implements [store.Journal].
func (w *Writer) Erase(ctx context.Context) (store.Position, error) {
	e, err := w.append(ctx, Erase, nil)
	if err != nil {
		return store.Position{}, err
	}
	return e.Position, nil
}

// Resign reports to the others that nothing follows, so that one of them takes over at once.
func (w *Writer) Resign(ctx context.Context) error {
	_, err := w.append(ctx, Resign, nil)
	return err
}

// Age is how long ago the last successful append was sent, at first where its answer was lost, by the monotonic or the wall
// clock, whichever is more: one of them continues while a machine sleeps. It may be called from any goroutine.
func (w *Writer) Age() time.Duration {
	sent, now := *w.proof.Load(), time.Now()
	return max(now.Sub(sent), now.Round(0).Sub(sent.Round(0)))
}

// Written is the size in bytes of what was appended. It may be called from any goroutine.
func (w *Writer) Written() uint64 { return w.written.Load() }

func (w *Writer) append(ctx context.Context, kind Kind, batch []byte) (*Entry, error) {
	e := &Entry{Kind: kind, Replica: w.replica, Batch: batch}
	e.Term, e.Sum = w.at.Term, after(w.at.Sum, w.at.Term, kind, w.id, batch)
	f := frame{Kind: kind, Term: e.Term, Replica: w.replica, Writer: w.id, Prev: sum(w.at.Sum), Sum: sum(e.Sum)}
	headers, bodies, err := w.j.Keys.parts(f, batch, int(w.j.conn.MaxPayload()))
	if err != nil {
		return nil, err
	}
	e.First = w.last + 1
	for i, body := range bodies {
		m := &nats.Msg{Subject: w.j.subject(), Header: nats.Header{header: {string(headers[i])}}, Data: body}
		if err := w.publish(ctx, m, kind); err != nil {
			return nil, err
		}
		w.last++
		w.written.Add(uint64(len(headers[i]) + len(body)))
	}
	e.Last = w.last
	w.at = e.Position
	return e, nil
}

// publish appends one message, and repeats that until its fate is known. Where there is no room, it waits for some, but
// before a term: only a writer trims.
func (w *Writer) publish(ctx context.Context, m *nats.Msg, kind Kind) error {
	var silent time.Time // when it was said that there is no answer
	began := time.Now()
	for {
		sent := time.Now()
		err := w.j.publish(ctx, m, w.last)
		if err != nil && ctx.Err() == nil && !errors.Is(err, nats.ErrMaxPayload) {
			var written bool
			if written, err = w.j.resolve(ctx, m, w.last, err); written {
				// An earlier attempt wrote it: another may have followed since, and lead.
				sent, err = began, nil
			}
		}
		switch {
		case err == nil:
			w.proof.Store(&sent)
			if !silent.IsZero() {
				w.j.Log.Info("the journal answers again", "after", time.Since(began).Round(time.Millisecond))
			}
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("append to the journal: %w", ctx.Err())
		case errors.Is(err, store.ErrStolen), errors.Is(err, ErrDiverged), errors.Is(err, nats.ErrMaxPayload):
			return err
		case kind == Term && full(err):
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		if silent.IsZero() && time.Since(began) > attempt {
			silent = time.Now()
			w.j.Log.Warn("the journal does not take anything; nothing is recorded until it does", "error", err)
		}
		select {
		case <-time.After(repeatAfter):
		case <-ctx.Done():
		}
	}
}

func (j *Client) publish(ctx context.Context, m *nats.Msg, last uint64) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	_, err := j.js.PublishMsg(ctx, m, jetstream.WithExpectStream(j.Stream), jetstream.WithExpectLastSequence(last), jetstream.WithRetryAttempts(0))
	return err
}

// resolve finds out whether a message is in the stream behind the sequence last, after its publish returned failure.
// If it is not, and can be repeated, the error is failure.
func (j *Client) resolve(ctx context.Context, m *nats.Msg, last uint64, failure error) (written bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	there, err := j.stream.GetMsg(ctx, last+1)
	if err == nil {
		if there.Header.Get(header) == m.Header.Get(header) {
			return true, nil
		}
		return false, fmt.Errorf("%w: another replica writes the journal since sequence %d of the stream %s", store.ErrStolen, last+1, j.Stream)
	}
	if !errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, fmt.Errorf("%w (and then %w)", failure, err)
	}
	x, err := j.Extent(ctx)
	switch {
	case err != nil:
		return false, fmt.Errorf("%w (and then %w)", failure, err)
	case x.First > last+1:
		return false, fmt.Errorf("%w: another replica writes the journal, and has trimmed the stream %s up to %d", store.ErrStolen, j.Stream, x.First)
	case x.Last < last:
		return false, fmt.Errorf("%w: the stream %s has lost entries, it ends at %d and had %d", ErrDiverged, j.Stream, x.Last, last)
	}
	return false, failure
}
