package elasticsearch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/halves"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
	"github.com/watcherd/watcherd/pkg/sinks/internal/template"
)

type sink struct {
	url        *url.URL
	client     *post.Client
	names      template.Template
	state      bool
	create     bool
	tombstones time.Duration
	cluster    string
	format     sinks.Format
	log        *slog.Logger
	metrics    metrics

	preparing *solo.Runner // makes the index template
	prepared  atomic.Bool
	opened    time.Time
	expired   atomic.Int64 // when tombstones were last deleted, since opened
	warned    atomic.Bool  // of that deletion
}

// maxAnswer is what is read of an answer: some kilobytes for each event of a batch that is refused.
const maxAnswer = 16 << 20

var _ sinks.Sink = (*sink)(nil)

// Write sends the batch in rounds, each with at most one event of an object and as one bulk request.
func (s *sink) Write(ctx context.Context, batch []*event.Event) error {
	err := s.prepare(ctx)
	if err != nil {
		return err
	}
	w := &write{sink: s, batch: batch, objects: make([]string, len(batch)), accepted: make([]bool, len(batch))}
	var rest, round []int
	for i, e := range batch {
		w.objects[i] = e.PartitionKey()
		if w.accepted[i] = s.state && e.Type == event.Gap; !w.accepted[i] {
			rest = append(rest, i)
		}
	}
	for len(rest) > 0 && err == nil {
		round, rest = w.failed.Round(rest, w.objects)
		err = w.send(ctx, round)
	}
	if err = w.failed.End(err, w.accepted); err == nil {
		s.expire(ctx)
	}
	return err
}

// write is one batch in flight.
type write struct {
	sink     *sink
	batch    []*event.Event
	objects  []string // of the events
	accepted []bool   // by index in the batch
	failed   halves.Failures
}

// send makes a request for the events with these indexes, and of halves where the cluster refuses the request as a
// whole. The error is one that ends the Write.
func (w *write) send(ctx context.Context, at []int) error {
	if len(at) == 0 {
		return nil
	}
	events := make([]*event.Event, len(at))
	for n, i := range at {
		events[n] = w.batch[i]
	}
	results, err := w.sink.bulk(ctx, events)
	switch class, _ := sinks.Classify(err); {
	case err == nil:
	case class != sinks.ClassPoison:
		return err
	case len(at) == 1:
		w.failed.Add(at[0], w.objects[at[0]], err)
		return nil
	default:
		if err := w.send(ctx, at[:len(at)/2]); err != nil {
			return err
		}
		return w.send(ctx, at[len(at)/2:])
	}
	for n, i := range at {
		if w.accepted[i] = results[n] == nil; w.accepted[i] {
			continue
		}
		w.failed.Add(i, w.objects[i], results[n])
		if class, _ := sinks.Classify(results[n]); class != sinks.ClassPoison && err == nil {
			err = results[n]
		}
	}
	return err
}

// bulk makes one attempt at one request, and returns the error of each event.
func (s *sink) bulk(ctx context.Context, events []*event.Event) ([]error, error) {
	const members = 512 // of the document beside the event, and the action
	size := 0
	for _, e := range events {
		size += e.Size() + members
	}
	body := make([]byte, 0, size)
	for _, e := range events {
		body = s.appendAction(body, e)
		body = append(body, '\n')
		document := len(body)
		var err error
		if body, err = s.appendDocument(body, e); err != nil {
			return nil, sinks.Poison(err) // alone in its half in the end
		}
		for rest := body[document:]; ; {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				break
			}
			rest[i], rest = ' ', rest[i+1:] // between tokens, where it means the same
		}
		body = append(body, '\n')
	}
	to := s.url.JoinPath("_bulk")
	to.RawQuery = "filter_path=items.*.status,items.*.result,items.*.failure_store,items.*.error.type,items.*.error.reason"
	a, err := s.client.Do(ctx, http.MethodPost, to, "application/x-ndjson", body)
	if err != nil {
		return nil, err
	}
	if !a.Accepted() {
		return nil, a.Refusal(a.Status, string(a.Body))
	}
	var answer struct {
		Items json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(a.Body, &answer); err != nil {
		return nil, a.Errorf("the answer is not one of the bulk API: %w", err)
	}
	var results []error
	for raw := range rawjson.Items(answer.Items) {
		var named struct{ Create, Index *item } // no map: its size would be the answer's choice
		if err := json.Unmarshal(raw, &named); err != nil {
			return nil, a.Errorf("the answer is not one of the bulk API: %w", err)
		}
		it := cmp.Or(named.Create, named.Index)
		if it == nil {
			return nil, a.Errorf("a result has no action")
		}
		if results = append(results, s.result(a, *it)); len(results) > len(events) {
			break
		}
	}
	if len(results) != len(events) {
		return nil, a.Errorf("%d results or more for %d events", len(results), len(events))
	}
	return results, nil
}

// item is the result of one event.
type item struct {
	Status       int    `json:"status"`
	Result       string `json:"result"`
	FailureStore string `json:"failure_store"`
	Error        struct {
		Type   string `json:"type"`
		Reason string `json:"reason"`
	} `json:"error"`
}

func (s *sink) result(a *post.Answer, it item) error {
	switch {
	case it.FailureStore == "used": // with a status of success
		return a.Refusal(http.StatusBadRequest, "the data stream refuses the document, and its failure store has the reason")
	case it.Result == "noop": // as above
		return a.Refusal(http.StatusBadRequest, "an ingest pipeline drops the document")
	case it.Status/100 == 2:
		return nil
	case it.Status == http.StatusConflict && it.Error.Type == "version_conflict_engine_exception":
		if s.state {
			s.metrics.superseded.Inc()
		} else {
			s.metrics.duplicates.Inc()
		}
		return nil
	}
	status := it.Status
	switch it.Error.Type {
	case "cluster_block_exception": // 403: read-only until there is room on the disk again
		status = http.StatusTooManyRequests
	case "index_closed_exception": // 400
		status = http.StatusForbidden
	}
	return a.Refusal(status, it.Error.Type+": "+it.Error.Reason)
}

// appendAction appends the line with what to do with the document of the next one.
func (s *sink) appendAction(dst []byte, e *event.Event) []byte {
	if s.state {
		dst = append(dst, `{"index":{"_index":`...)
	} else {
		dst = append(dst, `{"create":{"_index":`...)
	}
	dst = rawjson.AppendString(dst, string(s.indexOf(nil, e)))
	dst = append(dst, `,"_id":`...)
	if !s.state {
		return append(rawjson.AppendString(dst, e.ID), "}}"...)
	}
	dst = rawjson.AppendString(dst, documentID(e))
	dst = append(dst, `,"version_type":"external_gte","version":`...)
	return append(strconv.AppendUint(dst, e.Sequence, 10), "}}"...)
}

// documentID is the id of an object's document in mode state.
func documentID(e *event.Event) string {
	const longest = 512 // bytes
	id := e.Cluster + "/" + e.PartitionKey()
	if len(id) <= longest {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])
}

// appendDocument appends what is stored of an event.
func (s *sink) appendDocument(dst []byte, e *event.Event) ([]byte, error) {
	if e.Body != nil && !s.state {
		return appendBody(dst, e)
	}
	at := `{"@timestamp":"`
	if s.state {
		at = `{"time":"`
	}
	dst = appendTime(append(dst, at...), e.Time)
	dst = strconv.AppendUint(append(dst, `","sequence":`...), e.Sequence, 10)
	for _, field := range [...]struct{ name, value string }{
		{"id", e.ID},
		{"type", string(e.Type)},
		{"selection", string(e.Selection)},
		{"cluster", e.Cluster},
		{"api_group", e.Resource.Group},
		{"version", e.Resource.Version},
		{"resource", e.Resource.Resource},
		{"kind", e.Resource.Kind},
		{"namespace", e.Namespace},
		{"name", e.Name},
		{"uid", e.UID},
		{"resource_version", e.ResourceVersion},
		{"summary", e.Summary},
		{"changed_by", changedBy(e)},
	} {
		if field.value != "" {
			dst = rawjson.AppendString(append(append(append(dst, `,"`...), field.name...), `":`...), field.value)
		}
	}
	switch {
	case !s.state:
		dst = s.format.Append(append(dst, `,"event":`...), e)
	case len(e.Object) > 0:
		dst = append(append(dst, `,"object":`...), e.Object...)
	}
	if s.state && (e.Type == event.Deleted || e.Selection == event.Left) {
		dst = append(appendTime(append(dst, `,"deleted_at":"`...), e.Time), '"')
	}
	return append(dst, '}'), nil
}

func changedBy(e *event.Event) string {
	if e.ChangedBy == nil {
		return ""
	}
	return e.ChangedBy.Manager
}

func appendTime(dst []byte, t time.Time) []byte { return t.UTC().AppendFormat(dst, time.RFC3339Nano) }

// appendBody appends what the sink's `body` made of the event, with a time if it has none: a data stream demands one.
func appendBody(dst []byte, e *event.Event) ([]byte, error) {
	body := bytes.TrimSpace(e.Body)
	if len(body) == 0 || body[0] != '{' {
		return dst, errors.New("the body is not a JSON object, which documents are")
	}
	empty := true
	for key := range rawjson.Members(body) {
		if empty = false; string(key) == `@timestamp` {
			return append(dst, body...), nil
		}
	}
	dst = append(appendTime(append(dst, `{"@timestamp":"`...), e.Time), '"')
	if !empty {
		dst = append(dst, ',')
	}
	return append(dst, body[1:]...), nil
}

// Close closes the connections.
func (s *sink) Close(context.Context) error {
	s.client.Close()
	return nil
}
