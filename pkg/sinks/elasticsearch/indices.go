package elasticsearch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
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
	a, err := s.client.Do(ctx, http.MethodGet, to, "", nil)
	if err != nil {
		return err
	}
	if a.Accepted() {
		return nil
	}
	if a.Status != http.StatusNotFound {
		return operators(a.Refusal(a.Status, string(a.Body)))
	}
	if a, err = s.client.Do(ctx, http.MethodGet, s.url, "", nil); err != nil {
		return err
	}
	if !a.Accepted() {
		return operators(a.Refusal(a.Status, string(a.Body)))
	}
	var server struct{ Version struct{ Distribution string } }
	if err := json.Unmarshal(a.Body, &server); err != nil {
		return a.Errorf("this is neither Elasticsearch nor OpenSearch: %w", err)
	}
	body, err := json.Marshal(s.template(server.Version.Distribution == "opensearch"))
	if err != nil {
		return err
	}
	if a, err = s.client.Do(ctx, http.MethodPut, to, "application/json", body); err != nil {
		return err
	}
	if !a.Accepted() {
		return operators(a.Refusal(a.Status, string(a.Body)))
	}
	s.log.Info("index template created", "template", name)
	return nil
}

// operators makes an error that would blame an event one that needs an operator: no event is part of the request.
func operators(err error) error {
	if class, _ := sinks.Classify(err); class == sinks.ClassPoison {
		return sinks.Pause(err)
	}
	return err
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
	body, err := json.Marshal(query)
	if err == nil {
		to := s.url.JoinPath(s.names.Sample("*"), "_delete_by_query")
		to.RawQuery = "conflicts=proceed&wait_for_completion=false&ignore_unavailable=true"
		var a *post.Answer
		if a, err = s.client.Do(ctx, http.MethodPost, to, "application/json", body); err == nil && !a.Accepted() {
			err = a.Refusal(a.Status, string(a.Body))
		}
	}
	if err == nil {
		s.metrics.expired.WithLabelValues("succeeded").Inc()
		return
	}
	s.metrics.expired.WithLabelValues("failed").Inc()
	if !s.warned.Swap(true) {
		s.log.Warn("documents of deleted objects are not removed; the sink retries every hour", "error", err)
	}
}
