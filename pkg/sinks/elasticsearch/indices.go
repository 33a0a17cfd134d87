package elasticsearch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
)

// prepare makes the index template, where that is asked for unless one of its name exists.
func (s *sink) prepare(ctx context.Context) error {
	if !s.create || s.prepared.Load() {
		return nil
	}
	return s.preparing.Do(ctx, func() error {
		if s.prepared.Load() { // by another Write
			return nil
		}
		err := s.makeTemplate(ctx)
		s.prepared.Store(err == nil)
		return err
	})
}

func (s *sink) makeTemplate(ctx context.Context) error {
	name := s.names.Sample("any")
	to := s.url.JoinPath("_index_template", name)
	if a, err := s.ask(ctx, http.MethodGet, to, nil); err == nil || a == nil || a.Status != http.StatusNotFound {
		return err
	}
	a, err := s.ask(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return err
	}
	var server struct{ Version struct{ Distribution string } }
	if err := json.Unmarshal(a.Body, &server); err != nil {
		return a.Errorf("this is neither Elasticsearch nor OpenSearch: %w", err)
	}
	if _, err = s.ask(ctx, http.MethodPut, to, s.template(server.Version.Distribution == "opensearch")); err == nil {
		s.log.Info("index template created", "template", name)
	}
	return err
}

// ask makes a request that no event is part of: where an answer would blame one, an operator is needed. The answer is nil
// if there was none.
func (s *sink) ask(ctx context.Context, method string, to *url.URL, content object) (*post.Answer, error) {
	var body []byte
	if content != nil {
		var err error
		if body, err = json.Marshal(content); err != nil {
			return nil, err
		}
	}
	a, err := s.client.Do(ctx, method, to, "application/json", body)
	if err != nil || a.Accepted() {
		return a, err
	}
	err = a.Refusal(a.Status, string(a.Body))
	if class, _ := sinks.Classify(err); class == sinks.ClassPoison {
		err = sinks.Pause(err)
	}
	return a, err
}

type object map[string]any

// template is the index template. Nothing in an object becomes a field of its own: a cluster's objects have more
// paths than an index can have fields, and the same path has different types.
func (s *sink) template(opensearch bool) object {
	anything := object{"type": "flattened", "depth_limit": 1000, "ignore_above": 1024} // the limit is on the depth of what is accepted
	if opensearch {
		anything = object{"type": "flat_object"}
	}
	fields := object{"sequence": object{"type": "long"}, "summary": object{"type": "text"}}
	for _, name := range []string{
		"id", "type", "selection", "cluster", "api_group", "version", "resource", "kind", "namespace", "name", "uid", "resource_version", "changed_by",
	} {
		fields[name] = object{"type": "keyword", "ignore_above": 1024}
	}
	out := object{"index_patterns": []string{s.names.Sample("*")}, "priority": 500, "_meta": object{"description": "events of watcherd"}}
	if s.state {
		fields["time"], fields["deleted_at"], fields["object"] = object{"type": "date_nanos"}, object{"type": "date_nanos"}, anything
	} else {
		fields["@timestamp"], fields["event"] = object{"type": "date_nanos"}, anything
		out["data_stream"] = object{}
	}
	out["template"] = object{"mappings": object{"dynamic": false, "properties": fields}}
	return out
}

// expireEvery is how often tombstones are deleted.
const expireEvery = time.Hour

// expire has the cluster delete old tombstones, at most every [expireEvery]. A failure fails no Write: they are deleted later.
func (s *sink) expire(ctx context.Context) {
	now, last := int64(time.Since(s.opened)), s.expired.Load()
	if !s.state || s.tombstones == 0 || last != 0 && now-last < int64(expireEvery) || !s.expired.CompareAndSwap(last, max(now, 1)) {
		return
	}
	query := object{"query": object{"bool": object{"filter": []object{
		{"range": object{"deleted_at": object{"lt": fmt.Sprintf("now-%ds", int64(s.tombstones.Seconds()))}}},
		{"term": object{"cluster": s.cluster}},
		{"exists": object{"field": "sequence"}},
	}}}}
	to := s.url.JoinPath(s.names.Sample("*"), "_delete_by_query")
	to.RawQuery = "conflicts=proceed&wait_for_completion=false&ignore_unavailable=true"
	_, err := s.ask(ctx, http.MethodPost, to, query)
	if err == nil {
		s.metrics.expired.WithLabelValues("succeeded").Inc()
		return
	}
	s.metrics.expired.WithLabelValues("failed").Inc()
	if !s.warned.Swap(true) {
		s.log.Warn("documents of deleted objects are not removed; the sink retries every hour", "error", err)
	}
}
