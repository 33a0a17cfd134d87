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
	"github.com/watcherd/watcherd/internal/wait"
)

// Writer appends entries, until another does.
type Writer struct {
	j       *Client
	replica string
	id      string
	term    uint64
	at      store.Position            // of the last entry; without a Last in a journal that begins
	last    uint64                    // sequence of the stream's last message
	proof   atomic.Pointer[time.Time] // when this was the writer for sure: see Age
	written atomic.Uint64             // bytes of all messages
}

// ErrFull is returned where the stream, or the servers, have no room for the entry that begins a term, and no writer that makes some.
var ErrFull = errors.New("there is no room for the journal")

// full reports whether an append failed for want of room in the stream, or of what the servers give to the account or have for all.
func full(err error) bool {
	const accountFull, serverFull, storageFull, storeFailed = 10002, 10023, 10047, 10077
	var e *jetstream.APIError
	if !errors.As(err, &e) {
		return false
	}
	switch e.ErrorCode {
	case accountFull, serverFull, storageFull:
		return true
	default: // with the reason in words
		return e.ErrorCode == storeFailed && strings.Contains(e.Description, "maximum bytes")
	}
}

// Contend begins a term as the writer behind what r has read, with everything it has in a directory. It returns the
// entry of that, with the batch, which the directory needs, too; [store.ErrStolen] if there is more in the stream; [ErrDiverged] if another
// stream of the same length has taken its place; [ErrFull] to be called again after the stream was trimmed.
func (r *Reader) Contend(ctx context.Context, replica string, batch []byte) (*Writer, *Entry, error) {
	if err := r.j.continues(ctx, r.at); err != nil {
		return nil, nil, err
	}
	w := &Writer{j: r.j, replica: replica, id: rand.Text(), term: r.at.Term + 1, at: r.at, last: r.seen}
	e, err := w.append(ctx, Term, batch)
	if err != nil {
		return nil, nil, err
	}
	return w, e, nil
}

// Begin begins a journal with a directory that has records and is in none, behind the stream's last message. Only copies
// of the directory can follow. It fails with [store.ErrStolen] if there is more in the stream, and with [ErrFull] as Contend does.
func (j *Client) Begin(ctx context.Context, replica string, last uint64, batch []byte) (*Writer, *Entry, error) {
	if err := j.dropSnapshot(ctx); err != nil { // it is of another past
		return nil, nil, err
	}
	w := &Writer{j: j, replica: replica, id: rand.Text(), term: last + 1, last: last} // there were fewer terms than messages
	w.at.Sum = mathrand.Uint64() | 1
	e, err := w.append(ctx, Term, batch)
	if err != nil {
		return nil, nil, err
	}
	return w, e, nil
}

// Begun reports whether the message at a sequence, the stream's last, is the entry with which a replica has begun a journal. Nothing is
// recorded in that yet. It returns the silence of the writer of that message, too: see [Reader.Silence].
func (j *Client) Begun(ctx context.Context, replica string, sequence uint64) (begun bool, silence time.Duration, err error) {
	f, ok, err := j.frameAt(ctx, sequence)
	if !ok {
		return false, 0, err
	}
	return f.Replica == replica && f.Kind == Term && f.Term == sequence && f.Prev != 0, f.silence(), nil
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

// Resign implements [store.Journal]: it reports to the others that nothing follows, so that one of them takes over at once.
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
	e.Term, e.Sum = w.term, after(w.at.Sum, w.term, kind, w.id, batch)
	f := frame{
		Kind: kind, Term: e.Term, Replica: w.replica, Writer: w.id, Prev: sum(w.at.Sum), Sum: sum(e.Sum), Silence: w.j.Silence.Milliseconds(),
	}
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
		w.j.saw(w.last)
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
	var failure error    // of the last attempt to send it
	began := time.Now()
	// Another stream may have taken the place of this one, and have grown to its length: after a silence, and after a
	// failure, a look at the stream comes first.
	for absent := w.proof.Load() == nil || w.Age() < attempt; ctx.Err() == nil; {
		sent, written := time.Now(), false
		if absent {
			failure = w.j.publish(ctx, m, w.last)
			written = failure == nil
		}
		err := failure
		if !written && ctx.Err() == nil && !errors.Is(err, nats.ErrMaxPayload) {
			written, absent, err = w.resolve(ctx, m)
			switch {
			case written: // by an earlier attempt: another may have followed since, and lead
				sent = began
			case absent && failure == nil:
				continue
			case absent:
				err = failure
			case failure != nil:
				err = fmt.Errorf("%w (and then %w)", failure, err)
			}
		}
		switch {
		case written:
			w.proof.Store(&sent)
			if !silent.IsZero() {
				w.j.Log.Info("the journal answers again", "after", time.Since(began).Round(time.Millisecond))
			}
			return nil
		case ctx.Err() != nil:
			continue
		case errors.Is(err, store.ErrStolen), errors.Is(err, ErrDiverged), errors.Is(err, nats.ErrMaxPayload):
			return err
		case kind == Term && full(err):
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		if silent.IsZero() && time.Since(began) > attempt {
			silent = time.Now()
			w.j.Log.Warn("the journal does not take anything; nothing is recorded until it does", "error", err)
		}
		_ = wait.For(ctx, repeatAfter) // the context is looked at next
	}
	return fmt.Errorf("append to the journal: %w", ctx.Err())
}

func (j *Client) publish(ctx context.Context, m *nats.Msg, last uint64) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	_, err := j.js.PublishMsg(ctx, m, jetstream.WithExpectStream(j.Stream), jetstream.WithExpectLastSequence(last), jetstream.WithRetryAttempts(0))
	j.reached(err)
	return err
}

// resolve reports whether a message is in the stream behind what this writer has written, or is absent and may be sent: the
// stream ends with what this writer has written. It is neither with an error.
func (w *Writer) resolve(ctx context.Context, m *nats.Msg) (written, absent bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	there, err := w.j.stored(ctx, w.j.Stream, "", w.last+1)
	w.j.reached(err)
	switch {
	case err == nil && there.Header.Get(header) == m.Header.Get(header):
		return true, false, nil
	case err == nil:
		return false, false, fmt.Errorf("%w: another replica writes the journal since sequence %d of the stream %s", store.ErrStolen, w.last+1, w.j.Stream)
	case !errors.Is(err, jetstream.ErrMsgNotFound):
		return false, false, err
	}
	x, err := w.j.extent(ctx, w.last)
	switch {
	case err != nil:
		return false, false, err
	case x.First > w.last+1:
		return false, false, fmt.Errorf("%w: another replica writes the journal, and has trimmed the stream %s up to %d", store.ErrStolen, w.j.Stream, x.First)
	case x.Last < w.last:
		return false, false, fmt.Errorf("%w: the stream %s has lost entries, it ends at %d and had %d", ErrDiverged, w.j.Stream, x.Last, w.last)
	case x.Last > w.last:
		return false, false, errors.New("the journal has grown this moment")
	}
	err = w.j.continues(ctx, w.at)
	return false, err == nil, err
}
