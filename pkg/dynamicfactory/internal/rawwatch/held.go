package rawwatch

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"sync"
	"time"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/apiclient"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/spool"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// errorLine begins a watch that the server rejects after its headers.
var errorLine = []byte(`{"type":"ERROR"`)

// held is a watch request that runs while a list is read, from the list's version on. It
// buffers the watch, so that the server's history need not last as long as the list. The
// stream that takes it over reads the buffer first and then the watch itself.
type held struct {
	version string
	began   time.Time
	timeout time.Duration
	cancel  context.CancelCauseFunc
	opened  chan struct{} // closed when the server has answered, or failure is set
	done    chan struct{} // closed when run has ended; body is the reader's then
	buffer  *spool.Buffer

	// Of run and, after its end, of the reader.
	body   io.Reader
	closer io.Closer // nil: no response

	mu      sync.Mutex // guards the fields below
	failure error      // the server rejected the request
	taken   bool
}

// hold sends a watch request from a version on, unless h still runs. The caller closes
// the result or takes it over. After an error the list must begin again.
func (s *Source) hold(ctx context.Context, h *held, version string) (*held, error) {
	if h != nil {
		err := h.rejected()
		switch {
		case apiclient.IsExpired(err):
			return h, err
		case err == nil || apiclient.IsPermanent(err):
			return h, nil
		}
		h.close()
	}
	timeout := s.watchTimeout(quietTimeout)
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	h = &held{
		version: version, began: time.Now(), timeout: timeout, cancel: cancel,
		opened: make(chan struct{}), done: make(chan struct{}), buffer: s.cfg.Spool.NewBuffer(),
	}
	s.running.Go(func() {
		defer close(h.done)
		h.run(ctx, s, version)
	})
	return h, nil
}

// run buffers the watch until a stream takes it over, the watch ends, or the buffer is
// full.
func (h *held) run(ctx context.Context, s *Source, version string) {
	body, err := s.getWatch(ctx, h.cancel, version, h.timeout)
	if err != nil {
		h.reject(err)
		close(h.opened)
		return
	}
	r := bufio.NewReaderSize(body, 16) // the minimum; longer reads bypass it
	h.body, h.closer = r, body
	close(h.opened)
	if start, err := r.Peek(len(errorLine)); err == nil && bytes.Equal(start, errorLine) {
		h.reject(readError(apiclient.NewLines(r)))
		return
	}
	buf := make([]byte, spool.Chunk)
	for {
		n, err := r.Read(buf)
		switch {
		case !h.buffer.Write(buf[:n]):
			s.log(ctx).Info("no more events are buffered before the list is read; the server may end the watch")
			h.buffer.End(err)
			return
		case err != nil:
			h.buffer.End(err)
			return
		case h.isTaken():
			h.buffer.End(nil)
			return
		}
	}
}

func readError(l *apiclient.Lines) error {
	line, err := l.Next()
	if err != nil {
		return err
	}
	_, raw, err := rawjson.SplitWatchLine(line)
	if err != nil {
		return &apiclient.UnreadableError{Err: err}
	}
	return apiclient.StatusError(raw)
}

// reject notes the error with which the server rejected the request.
func (h *held) reject(err error) {
	h.mu.Lock()
	h.failure = err
	h.mu.Unlock()
	h.buffer.End(err)
}

// rejected is the error with which the server rejected the request, or nil.
func (h *held) rejected() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failure
}

func (h *held) isTaken() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.taken
}

// takeOver leaves reading to the caller. It waits for the server's answer and returns the
// error of a rejection.
func (h *held) takeOver(ctx context.Context) error {
	select {
	case <-h.opened:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.taken = true
	return h.failure
}

// Read reads the buffer, and then the watch itself.
func (h *held) Read(p []byte) (int, error) {
	if n, err := h.buffer.Read(p); n > 0 || err != nil {
		return n, err
	}
	return h.body.Read(p)
}

// Close ends the request and frees the buffer.
func (h *held) Close() error {
	h.close()
	return nil
}

func (h *held) close() {
	if h == nil {
		return
	}
	h.cancel(nil)
	<-h.done
	if h.closer != nil {
		_ = h.closer.Close()
	}
	h.buffer.Close()
}
