package webhook

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// encoder turns events into the body and headers of a request.
type encoder struct {
	format sinks.Format
	batch  bool       // bodies are arrays, even of one event
	join   sinks.Join // nil: bodies are made event by event
	zips   *sync.Pool // of *gzip.Writer; nil: no compression

	userAgent []string // a header value that all requests share

	payloads *sync.Pool // of *payload
}

func newEncoder(o sinks.Options, compress bool) encoder {
	c := encoder{format: o.Format, batch: o.BatchMode, join: o.Join, userAgent: []string{"watcherd"}, payloads: &sync.Pool{}}
	if compress {
		c.zips = &sync.Pool{}
	}
	return c
}

// maxAttributes bounds the attributes of an event as headers, in bytes. Names of RBAC have no bound of their own, and what a server makes
// of headers that are too large is not said of the event: a status that pauses, the end of the connection, or, of HTTP/2, a limit
// of which the client learns before it sends them.
const maxAttributes = 8 << 10

type message struct {
	id     string // the same for the same events
	header http.Header
	body   *payload // of which the holder of the message is a user
}

func (c *encoder) encode(events []*event.Event) (m message, err error) {
	m = message{id: events[0].ID, header: http.Header{"User-Agent": c.userAgent}}
	if c.format == sinks.CloudEventsBinary {
		size := 0
		for _, a := range event.Attributes(events[0]) {
			value := event.HeaderValue(a.Value)
			m.header.Set("Ce-"+a.Name, value)
			size += len("ce-") + len(a.Name) + len(value)
		}
		if size > maxAttributes {
			return m, sinks.Poison(fmt.Errorf("the attributes are headers of %d bytes, and servers take about %d: use format cloudevents", size, maxAttributes))
		}
	}
	if c.together(events) {
		m.id = batchID(events)
	}
	contentType, err := c.fill(&m, events)
	if err != nil {
		return m, err
	}
	m.header["Content-Type"] = []string{contentType}
	m.header.Set("Idempotency-Key", m.id)
	if c.zips == nil {
		return m, nil
	}
	defer m.body.done()
	packed, err := c.compress(m.body.buf)
	if err != nil {
		return m, err
	}
	m.body = &payload{buf: packed}
	m.header.Set("Content-Encoding", "gzip")
	return m, nil
}

// together reports whether the events are sent in one request. Those with bodies of their
// own are not.
func (c *encoder) together(events []*event.Event) bool {
	return c.batch && (c.join != nil || events[0].Body == nil)
}

// fill makes the body of a request and returns its content type.
func (c *encoder) fill(m *message, events []*event.Event) (contentType string, err error) {
	if len(events) > 1 && c.join != nil {
		var body []byte
		if body, contentType, err = c.join(events); err == nil && body == nil {
			err = errors.New("null for several events")
		}
		if err != nil {
			return "", sinks.Poison(fmt.Errorf("body: %w", err)) // of several events, one of which may have no body
		}
		m.body = &payload{buf: body}
		return contentType, nil
	}
	size := 2
	for _, e := range events {
		size += e.Size()
	}
	m.body = newPayload(c.payloads, size)
	contentType = c.format.ContentType(events[0])
	switch {
	case !c.batch || events[0].Body != nil:
		m.body.buf = c.format.Append(m.body.buf, events[0])
		return contentType, nil
	case contentType == event.ContentTypeCloudEvent:
		contentType = event.ContentTypeBatch
	}
	body := m.body.buf
	for i, e := range events {
		body = append(body, "[,"[min(i, 1)])
		body = c.format.Append(body, e)
	}
	m.body.buf = append(body, ']')
	return contentType, nil
}

func (c *encoder) compress(body []byte) ([]byte, error) {
	var out bytes.Buffer
	z, ok := c.zips.Get().(*gzip.Writer)
	if !ok {
		z = gzip.NewWriter(nil)
	}
	defer c.zips.Put(z)
	z.Reset(&out)
	if _, err := z.Write(body); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	return out.Bytes(), nil
}

// batchID is the identity of a batch: of its events' and their order.
func batchID(events []*event.Event) string {
	h := sha256.New()
	for _, e := range events {
		h.Write([]byte(e.ID))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

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

func (p *payload) done() {
	if p.users.Add(-1) == 0 && p.pool != nil && cap(p.buf) <= maxPooled {
		p.pool.Put(p)
	}
}

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
