package otlp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"
	collogs "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/halves"
)

// sink posts log records to one URL.
type sink struct {
	url       *url.URL
	headers   map[string]sinks.Header
	dir       string
	tls       sinks.TLS
	timeout   time.Duration
	compress  bool
	records   records
	log       *slog.Logger
	metrics   *metrics
	transport *http.Transport
	warned    atomic.Bool // about a receiver that warns
}

const (
	maxIdle    = 8                // connections
	idle       = 90 * time.Second // how long they live
	maxAnswer  = 64 << 10         // bytes of an answer that are read
	maxExcerpt = 256              // characters of it in an error
)

var _ sinks.Sink = (*sink)(nil)

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct {
	responses *prometheus.CounterVec
	rejected  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	r := sinks.NewMetrics(reg, "otlp")
	m := &metrics{
		responses: r.CounterVec("responses_total", "Requests by the status of the answer; error if there was none.", "code"),
		rejected:  r.Counter("rejected_records_total", "Log records that receivers rejected in a partial success, each time that they did."),
	}
	return m, r.Err()
}

// Write sends the batch as one request or, where the receiver blames an event, in halves.
func (s *sink) Write(ctx context.Context, batch []*event.Event) error {
	return halves.Write(batch, func(events []*event.Event) error { return s.post(ctx, events) })
}

// errTimeout is the cause of a context that ended by the sink's own timeout.
var errTimeout = errors.New("timed out")

// post makes one attempt at one request.
func (s *sink) post(ctx context.Context, events []*event.Event) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errTimeout)
	defer cancel()
	body, err := s.body(events)
	if err != nil {
		return sinks.Poison(fmt.Errorf("encode: %w", err))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url.String(), bytes.NewReader(body))
	if err != nil {
		return sinks.Pause(errors.New("endpoint is not a URL"))
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", "watcherd")
	if s.compress {
		req.Header.Set("Content-Encoding", "gzip")
	}
	var hidden []string
	for name, header := range s.headers {
		v, err := header.Value(s.dir)
		if err != nil {
			return sinks.Pause(fmt.Errorf("headers.%s: %w", name, err))
		}
		req.Header.Set(name, v)
		if !header.Secret.IsZero() {
			hidden = append(hidden, strings.Fields(v)...)
		}
	}
	resp, err := s.transport.RoundTrip(req)
	if err != nil {
		s.metrics.responses.WithLabelValues("error").Inc()
		if text := err.Error(); excerpt(text, hidden) != excerpt(text, nil) {
			err = errors.New(excerpt(text, hidden)) // it quotes an answer that quotes the request
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return fmt.Errorf("post to %s: %w", s.url.Host, err)
	}
	s.metrics.responses.WithLabelValues(strconv.Itoa(resp.StatusCode)).Inc()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err = errors.Join(err, resp.Body.Close()); err != nil && resp.StatusCode == http.StatusOK {
		// The part that may reject records is not known.
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return fmt.Errorf("post to %s: status 200, and the answer broke off: %w", s.url.Host, err)
	}
	if resp.StatusCode/100 == 2 {
		return s.success(resp, answer, len(events), hidden)
	}
	return s.failure(resp, answer, hidden)
}

func (s *sink) body(events []*event.Event) ([]byte, error) {
	plain, err := s.records.append(nil, events)
	if err != nil || !s.compress {
		return plain, err
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	_, err = z.Write(plain)
	err = errors.Join(err, z.Close())
	return out.Bytes(), err
}

// success reads a 2xx answer, which may reject records without naming them.
func (s *sink) success(resp *http.Response, answer []byte, events int, hidden []string) error {
	var result collogs.ExportLogsServiceResponse
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-protobuf") {
		if err := proto.Unmarshal(answer, &result); err != nil {
			return fmt.Errorf("post to %s: status %d with an answer that is not understood: %w", s.url.Host, resp.StatusCode, err)
		}
	}
	part := result.GetPartialSuccess()
	if n := part.GetRejectedLogRecords(); n > 0 {
		s.metrics.rejected.Add(float64(n))
		return sinks.Poison(fmt.Errorf("post to %s: %d of %d records are rejected: %s", s.url.Host, n, events, excerpt(part.GetErrorMessage(), hidden)))
	}
	if text := part.GetErrorMessage(); text != "" && !s.warned.Swap(true) {
		s.log.Warn("the receiver accepts records with a warning", "warning", excerpt(text, hidden))
	}
	return nil
}

// failure is what another answer means.
func (s *sink) failure(resp *http.Response, answer []byte, hidden []string) error {
	status := resp.StatusCode
	reason := string(answer)
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-protobuf") {
		reason = statusMessage(answer)
	}
	err := fmt.Errorf("post to %s: status %d: %s", s.url.Host, status, excerpt(reason, hidden))
	switch {
	case status == http.StatusBadRequest || status == http.StatusUnprocessableEntity:
		return sinks.Poison(err)
	case status == http.StatusRequestEntityTooLarge:
		return sinks.TooLarge(err)
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= 500:
		if d := retryAfter(resp.Header.Get("Retry-After")); d > 0 {
			return sinks.RetryAfter(err, d)
		}
		return err
	case status/100 == 3:
		return sinks.Pause(fmt.Errorf("post to %s: status %d: redirects are not followed, set endpoint to the new address", s.url.Host, status))
	default:
		return sinks.Pause(err)
	}
}

// statusMessage is the message of a google.rpc.Status, its second field.
func statusMessage(b []byte) string {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			break
		}
		if b = b[n:]; number == 2 && kind == protowire.BytesType {
			message, _ := protowire.ConsumeBytes(b)
			return string(message)
		}
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			break
		}
		b = b[n:]
	}
	return ""
}

// excerpt makes a receiver's text fit for an error: a line, without what is hidden.
func excerpt(s string, hidden []string) string {
	for _, h := range hidden {
		if len(h) >= 4 { // what is shorter would mask half the alphabet
			s = strings.ReplaceAll(s, h, "***")
		}
	}
	var out []rune
	for _, r := range strings.ToValidUTF8(s, "") {
		if len(out) == maxExcerpt {
			break
		}
		if !unicode.IsPrint(r) {
			r = ' '
		}
		out = append(out, r)
	}
	return strings.TrimSpace(string(out))
}

// retryAfter reads the header: seconds or a date. What is not understood is 0; the worker has a cap.
func retryAfter(value string) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

func (s *sink) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: s.timeout}).DialContext(ctx, network, address)
}

// dialTLS makes a connection with TLS, whose files are read each time.
func (s *sink) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	trust, err := s.tls.Load()
	if err != nil {
		return nil, sinks.Pause(fmt.Errorf("tls: %w", err))
	}
	trust.ServerName = cmp.Or(trust.ServerName, s.url.Hostname())
	conn, err := s.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	secured := tls.Client(conn, trust)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // the other error is the one to report
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return secured, nil
}

func (s *sink) Close(context.Context) error {
	s.transport.CloseIdleConnections()
	return nil
}
