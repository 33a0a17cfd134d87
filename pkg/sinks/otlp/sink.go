package otlp

import (
	"context"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	collogs "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/halves"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
)

type sink struct {
	url     *url.URL
	client  *post.Client
	records records
	log     *slog.Logger
	metrics *metrics
	warned  atomic.Bool // about a receiver that warns
}

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

// post makes one attempt at one request.
func (s *sink) post(ctx context.Context, events []*event.Event) error {
	body, err := s.records.append(nil, events)
	if err != nil {
		return sinks.Poison(fmt.Errorf("encode: %w", err))
	}
	a, err := s.client.Do(ctx, http.MethodPost, s.url, protobuf, body)
	switch {
	case err != nil:
		return err
	case a.Accepted():
		return s.success(a, len(events))
	case strings.HasPrefix(a.Header.Get("Content-Type"), protobuf):
		return a.Refusal(a.Status, statusMessage(a.Body))
	default:
		return a.Refusal(a.Status, string(a.Body))
	}
}

// protobuf is the media type of requests and answers.
const protobuf = "application/x-protobuf"

// success reads a 2xx answer, which may reject records without naming them.
func (s *sink) success(a *post.Answer, events int) error {
	var result collogs.ExportLogsServiceResponse
	var err error
	switch media, _, _ := mime.ParseMediaType(a.Header.Get("Content-Type")); { // not every receiver answers in that of the request
	case len(a.Body) == 0:
	case media == protobuf, media == "application/protobuf":
		err = proto.Unmarshal(a.Body, &result)
	case media == "application/json":
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(a.Body, &result)
	}
	if err != nil {
		return a.Errorf("the answer is not understood: %w", err)
	}
	part := result.GetPartialSuccess()
	if n := part.GetRejectedLogRecords(); n > 0 {
		s.metrics.rejected.Add(float64(n))
		return sinks.Poison(a.Errorf("%d of %d records are rejected: %s", n, events, a.Excerpt(part.GetErrorMessage())))
	}
	if text := part.GetErrorMessage(); text != "" && !s.warned.Swap(true) {
		s.log.Warn("the receiver accepts records with a warning", "warning", a.Excerpt(text))
	}
	return nil
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

// Close closes the connections.
func (s *sink) Close(context.Context) error {
	s.client.Close()
	return nil
}
