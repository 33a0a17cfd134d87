package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/halves"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
)

// sink gives events to one program.
type sink struct {
	url     *url.URL
	client  *post.Client
	format  sinks.Format
	join    sinks.Join
	program *program // nil: it is started by others
}

var _ sinks.Sink = (*sink)(nil)

// Write sends the batch as one request, and in halves where the program refuses the request as a whole.
func (s *sink) Write(ctx context.Context, batch []*event.Event) error {
	if s.program != nil {
		if err := s.program.listening(ctx); err != nil {
			return err
		}
	}
	return halves.Write(batch, func(events []*event.Event) error { return s.send(ctx, events) })
}

// send makes one attempt at one request.
func (s *sink) send(ctx context.Context, events []*event.Event) error {
	body, contentType, err := s.encode(events)
	if err != nil {
		return err
	}
	return s.post(ctx, contentType, body, len(events))
}

// post sends a body with that many events.
func (s *sink) post(ctx context.Context, contentType string, body []byte, events int) error {
	a, err := s.client.Limit(sinks.ResultsLimit(events)+1).Do(ctx, http.MethodPost, s.url, contentType, body)
	switch {
	case err != nil:
		return err
	case !a.Accepted():
		return a.Refusal(a.Status, string(a.Body))
	case len(a.Body) == 0:
		return a.Errorf("no results document")
	}
	results, err := a.Results(events)
	if err != nil {
		return a.Errorf("%w", err)
	}
	return sinks.ResultsError(results)
}

// encode makes the request's body: an array of events.
func (s *sink) encode(events []*event.Event) (body []byte, contentType string, err error) {
	if s.join != nil && len(events) > 1 {
		if body, contentType, err = s.join(events); err == nil && body == nil {
			err = errors.New("null for several events")
		}
		if err != nil {
			return nil, "", sinks.Poison(fmt.Errorf("body: %w", err)) // of several events, one of which may have no body
		}
		return body, contentType, nil
	}
	if s.join != nil {
		return s.format.Append(nil, events[0]), s.format.ContentType(events[0]), nil
	}
	if contentType = s.format.ContentType(events[0]); contentType == event.ContentTypeCloudEvent {
		contentType = event.ContentTypeBatch
	} else {
		contentType = event.ContentTypeJSON
	}
	size := 2
	for _, e := range events {
		size += e.Size()
	}
	body = make([]byte, 0, size)
	for i, e := range events {
		body = append(body, "[,"[min(i, 1)])
		if e.Body != nil && !json.Valid(e.Body) {
			body = rawjson.AppendString(body, string(e.Body))
			continue
		}
		body = s.format.Append(body, e)
	}
	return append(body, ']'), contentType, nil
}

// Close closes the connections, and ends the program.
func (s *sink) Close(ctx context.Context) error {
	s.client.Close()
	if s.program == nil {
		return nil
	}
	return s.program.close(ctx)
}
