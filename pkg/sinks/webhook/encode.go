package webhook

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"sync"

	"github.com/klauspost/compress/gzip"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// encoder turns events into the body and headers of a request.
type encoder struct {
	format sinks.Format
	batch  bool       // bodies are arrays, even of one event
	zips   *sync.Pool // of *gzip.Writer; nil: no compression

	contentType []string // header values that all requests share
	userAgent   []string

	payloads *sync.Pool // of *payload
}

func newEncoder(format sinks.Format, batch, compress bool) encoder {
	c := encoder{format: format, batch: batch, userAgent: []string{"watcherd"}, payloads: &sync.Pool{}}
	switch {
	case format == sinks.JSON, format == sinks.CloudEventsBinary:
		c.contentType = []string{event.ContentTypeJSON}
	case batch:
		c.contentType = []string{event.ContentTypeBatch}
	default:
		c.contentType = []string{event.ContentTypeCloudEvent}
	}
	if compress {
		c.zips = &sync.Pool{}
	}
	return c
}

// message is one request to be.
type message struct {
	id     string // the same for the same events
	header http.Header
	body   *payload // of which the holder of the message is a user
}

func (c *encoder) encode(events []*event.Event) (m message, err error) {
	m = message{id: events[0].ID, header: http.Header{"Content-Type": c.contentType, "User-Agent": c.userAgent}}
	if c.format == sinks.CloudEventsBinary {
		for _, a := range event.Attributes(events[0]) {
			m.header.Set("Ce-"+a.Name, event.HeaderValue(a.Value))
		}
	}
	size := 2
	for _, e := range events {
		size += e.Size()
	}
	m.body = newPayload(c.payloads, size)
	body := m.body.buf
	if c.batch {
		m.id = batchID(events)
		for i, e := range events {
			body = append(body, "[,"[min(i, 1)])
			body = c.format.Append(body, e)
		}
		body = append(body, ']')
	} else {
		body = c.format.Append(body, events[0])
	}
	m.body.buf = body
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
