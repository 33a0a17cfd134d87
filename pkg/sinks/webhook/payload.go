package webhook

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
)

// payload is the body of a request. A large one's buffer is reused when no one
// can read it any more, which is not when the answer has come: a transport may
// still be sending then. So every reader counts as a user until it is closed, as
// the transport promises to do.
//
// A small one is left to the garbage collector: net/http sends a body that it
// knows to be in memory together with the headers, and only then can it know, on
// a connection that the peer has closed, that nothing was sent.
type payload struct {
	buf   []byte
	users atomic.Int32
	pool  *sync.Pool // nil: the buffer is not used again
}

// Buffers of these sizes are used again.
const (
	minPooled = 32 << 10
	maxPooled = 4 << 20
)

// newPayload returns an empty one for about size bytes, with one user: the
// caller.
func newPayload(pool *sync.Pool, size int) *payload {
	var p *payload
	if size >= minPooled {
		p, _ = pool.Get().(*payload)
	} else {
		pool = nil
	}
	if p == nil {
		p = &payload{pool: pool}
	}
	p.buf = slices.Grow(p.buf[:0], size)
	p.users.Store(1)
	return p
}

// done ends the use by one user.
func (p *payload) done() {
	if p.users.Add(-1) == 0 && p.pool != nil && cap(p.buf) <= maxPooled {
		p.pool.Put(p)
	}
}

// reader returns a new reader of all of it.
func (p *payload) reader() io.ReadCloser {
	if p.pool == nil {
		return io.NopCloser(bytes.NewReader(p.buf))
	}
	p.users.Add(1)
	return &payloadReader{payload: p}
}

// payloadReader may be closed by one goroutine while another reads.
type payloadReader struct {
	mu      sync.Mutex
	payload *payload // guarded by mu; nil when closed
	at      int      // guarded by mu
}

var errBodyClosed = errors.New("read of a closed body")

func (r *payloadReader) Read(dst []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.payload == nil {
		return 0, errBodyClosed
	}
	if r.at == len(r.payload.buf) {
		return 0, io.EOF
	}
	n := copy(dst, r.payload.buf[r.at:])
	r.at += n
	return n, nil
}

func (r *payloadReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.payload != nil {
		r.payload.done()
		r.payload = nil
	}
	return nil
}
