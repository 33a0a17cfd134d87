package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/halves"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
)

// sink sends events to one URL.
type sink struct {
	request *http.Request // what all requests have in common
	target  *target
	accept  *acceptance // nil: any 2xx
	tokens  *tokens     // nil: no OAuth
	encoder encoder
	timeout time.Duration
	limits  sinks.Limits
	results bool // answers are results documents
	missing missing
	secrets *credentials
	sent    post.Sent
	clients *clients
	metrics *metrics
}

var (
	_ sinks.Sink    = (*sink)(nil)
	_ sinks.Limited = (*sink)(nil)
)

func (s *sink) Limits() sinks.Limits { return s.limits }

// Write posts the batch: as one request when batches were asked for, and
// otherwise one event after the other.
func (s *sink) Write(ctx context.Context, batch []*event.Event) error {
	if len(batch) == 1 || s.encoder.together(batch) {
		return s.post(ctx, batch)
	}
	var failed halves.Failures
	for i := range batch {
		key := batch[i].PartitionKey()
		if failed.Hold(i, key) {
			continue
		}
		err := s.post(ctx, batch[i:i+1])
		if one, ok := err.(*sinks.BatchError); ok { //nolint:errorlint // of a results document
			err = one.Failed[0]
		}
		if err == nil {
			continue
		}
		failed.Add(i, key, err)
		if class, _ := sinks.Classify(err); class != sinks.ClassPoison {
			if i == 0 {
				return err // nothing was accepted
			}
			for j := i + 1; j < len(batch); j++ {
				failed.Set(j, sinks.Held(err))
			}
			break
		}
	}
	return failed.Err()
}

// post makes one attempt at one request.
func (s *sink) post(ctx context.Context, events []*event.Event) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errTimeout)
	defer cancel()
	m, err := s.encoder.encode(events)
	if err != nil {
		return err
	}
	defer m.body.done()
	to, err := s.target.current()
	if err != nil {
		return sinks.Pause(err)
	}
	hidden, err := s.secrets.apply(m.header, m.id, m.body.buf)
	if err != nil {
		return sinks.Pause(err)
	}
	a := attempt{events: len(events), to: to, hidden: s.sent.Note(append(hidden, to.hidden...)...)}
	if s.tokens != nil {
		if a.token, err = s.tokens.value(ctx); err != nil {
			return err
		}
		m.header.Set("Authorization", "Bearer "+a.token)
		a.hidden = s.sent.Note(a.token)
	}
	client, err := s.clients.acquire()
	if err != nil {
		return sinks.Pause(err)
	}
	defer s.clients.release(client)
	req := s.request.WithContext(ctx)
	req.URL, req.Host, req.Header = to.url, to.url.Host, m.header
	// With GetBody and the Idempotency-Key net/http may replace a connection that
	// the peer has closed.
	req.ContentLength = int64(len(m.body.buf))
	req.Body = m.body.reader()
	req.GetBody = func() (io.ReadCloser, error) { return m.body.reader(), nil }
	resp, err := client.RoundTrip(req)
	if err != nil {
		s.metrics.response(0)
		return s.requestError(ctx, client, &a, err)
	}
	s.metrics.response(resp.StatusCode)
	return s.answer(resp, &a) //nolint:contextcheck // what it evaluates is bounded, not cancelled
}

// attempt is what is known of a request when its answer is read.
type attempt struct {
	events int
	to     *address
	token  string   // of OAuth
	hidden []string // what must not show up anywhere
}

// errTimeout is the cause of a context that ended by the sink's own timeout.
var errTimeout = errors.New("timed out")

// requestError is why there was no answer. It may quote what came instead of one.
func (s *sink) requestError(ctx context.Context, c *client, a *attempt, err error) error {
	masked := post.WithText(err, post.Clean(post.NewMask(a.hidden).Hide(err.Error()), maxReason))
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) { // HTTP/1.1 returns the cause itself
		err = fmt.Errorf("%w: %w", cause, masked)
	} else {
		err = masked
	}
	wrapped := fmt.Errorf("post to %s: %w", a.to.url.Host, err)
	if c.asked.Load() && ctx.Err() == nil {
		// The endpoint's reason comes after the handshake, where HTTP/2 loses it.
		wrapped = fmt.Errorf("%w (the endpoint asked for a client certificate, and tls.certFile names none)", wrapped)
	}
	if _, ok := errors.AsType[*privateError](err); ok {
		return sinks.Pause(wrapped)
	}
	return wrapped
}

func (s *sink) Close(context.Context) error {
	s.clients.close()
	return nil
}

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct {
	responses *prometheus.CounterVec
	reloads   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	r := sinks.NewMetrics(reg, "webhook")
	m := &metrics{
		responses: r.CounterVec("responses_total", "Responses by HTTP status; 0 for no response.", "code"),
		reloads:   r.CounterVec("tls_reloads_total", "Reloads of the TLS files by result.", "result"),
	}
	for _, result := range []string{"succeeded", "failed"} {
		m.reloads.WithLabelValues(result)
	}
	return m, r.Err()
}

func (m *metrics) reload(result string) { m.reloads.WithLabelValues(result).Inc() }

// response counts an answer; a status is a small number, so series are bounded.
func (m *metrics) response(status int) { m.responses.WithLabelValues(strconv.Itoa(status)).Inc() }
