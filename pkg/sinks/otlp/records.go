package otlp

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	collogs "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logs "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// records makes log records of events, by the semantic conventions for CloudEvents and Kubernetes.
// See https://opentelemetry.io/docs/specs/semconv/registry/attributes/.
type records struct {
	format     sinks.Format
	cluster    string
	now        bool // the time of a record is when it is sent
	structured bool
}

// named are the kinds whose name and uid have attributes of their own in the conventions, with their
// groups, by the plural.
var named = map[string]struct{ group, attribute string }{
	"nodes":                    {"", "k8s.node"},
	"namespaces":               {"", "k8s.namespace"},
	"pods":                     {"", "k8s.pod"},
	"replicationcontrollers":   {"", "k8s.replicationcontroller"},
	"resourcequotas":           {"", "k8s.resourcequota"},
	"deployments":              {"apps", "k8s.deployment"},
	"replicasets":              {"apps", "k8s.replicaset"},
	"statefulsets":             {"apps", "k8s.statefulset"},
	"daemonsets":               {"apps", "k8s.daemonset"},
	"jobs":                     {"batch", "k8s.job"},
	"cronjobs":                 {"batch", "k8s.cronjob"},
	"horizontalpodautoscalers": {"autoscaling", "k8s.hpa"},
}

// maxAttributes is how many a record has at most.
const maxAttributes = 18

// attribute is one with text, in one piece of memory.
type attribute struct {
	pair  common.KeyValue
	value common.AnyValue
	text  common.AnyValue_StringValue
}

// slab has the memory of the attributes of a batch.
type slab struct {
	attributes []attribute
	pairs      []*common.KeyValue
}

// add appends an attribute. Protocol buffers take only valid UTF-8.
func (s *slab) add(name, value string) {
	if value == "" {
		return
	}
	a := &s.attributes[0]
	s.attributes = s.attributes[1:]
	a.text.StringValue = strings.ToValidUTF8(value, "\uFFFD")
	a.value.Value = &a.text
	a.pair.Key, a.pair.Value = name, &a.value
	s.pairs = append(s.pairs, &a.pair)
}

// take returns the attributes that were added since the last call.
func (s *slab) take() []*common.KeyValue {
	n := len(s.pairs)
	out := s.pairs[:n:n]
	s.pairs = s.pairs[n:]
	return out
}

func (r *records) append(dst []byte, events []*event.Event) ([]byte, error) {
	most := (len(events) + 1) * maxAttributes
	s := &slab{attributes: make([]attribute, most), pairs: make([]*common.KeyValue, 0, most)}
	s.add("service.name", "watcherd")
	s.add("k8s.cluster.name", r.cluster)
	of := &resource.Resource{Attributes: s.take()}
	all, out := make([]logs.LogRecord, len(events)), make([]*logs.LogRecord, len(events))
	sent := time.Now()
	for i, e := range events {
		out[i] = &all[i]
		r.fill(out[i], s, e, sent)
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, &collogs.ExportLogsServiceRequest{ResourceLogs: []*logs.ResourceLogs{{
		Resource:  of,
		ScopeLogs: []*logs.ScopeLogs{{Scope: &common.InstrumentationScope{Name: "github.com/watcherd/watcherd"}, LogRecords: out}},
	}}})
}

func (r *records) fill(rec *logs.LogRecord, s *slab, e *event.Event, sent time.Time) {
	rec.TimeUnixNano = uint64(e.Time.UnixNano())
	if r.now {
		rec.TimeUnixNano = uint64(sent.UnixNano())
	}
	rec.ObservedTimeUnixNano, rec.EventName, rec.Body = rec.TimeUnixNano, e.Type.CloudEvent(), r.body(e)
	rec.SeverityNumber, rec.SeverityText = logs.SeverityNumber_SEVERITY_NUMBER_INFO, "INFO"
	if e.Type == event.Gap {
		rec.SeverityNumber, rec.SeverityText = logs.SeverityNumber_SEVERITY_NUMBER_WARN, "WARN"
	}
	s.add("cloudevents.event_id", e.ID)
	s.add("cloudevents.event_source", e.Source())
	s.add("cloudevents.event_spec_version", "1.0")
	s.add("cloudevents.event_subject", e.Subject())
	s.add("cloudevents.event_type", rec.EventName)
	s.add("k8s.resource.group", e.Resource.Group)
	s.add("k8s.resource.name", e.Resource.Resource)
	s.add("k8s.namespace.name", e.Namespace)
	if n, ok := named[e.Resource.Resource]; ok && n.group == e.Resource.Group && (n.attribute != "k8s.namespace" || e.Namespace == "") {
		s.add(n.attribute+".name", e.Name)
		s.add(n.attribute+".uid", e.UID)
	}
	s.add("watcherd.name", e.Name)
	s.add("watcherd.uid", e.UID)
	s.add("watcherd.resource_version", e.ResourceVersion)
	s.add("watcherd.selection", string(e.Selection))
	s.add("watcherd.summary", e.Summary)
	s.pairs = append(s.pairs, &common.KeyValue{
		Key: "watcherd.sequence", Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: int64(e.Sequence)}},
	})
	rec.Attributes = s.take()
}

// text is a value. Protocol buffers take only valid UTF-8.
func text(s string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: strings.ToValidUTF8(s, "\uFFFD")}}
}

// body is the event as the format has it: text or, if it is JSON and that is asked for, a map.
func (r *records) body(e *event.Event) *common.AnyValue {
	encoded := r.format.Append(make([]byte, 0, e.Size()), e)
	if r.structured {
		d := json.NewDecoder(bytes.NewReader(encoded))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err == nil {
			return value(v)
		}
	}
	return text(string(encoded))
}

// value is a value of JSON. A number that is neither an integer nor a float of 64 bits stays text.
func value(v any) *common.AnyValue {
	switch v := v.(type) {
	case map[string]any:
		list := &common.KeyValueList{Values: make([]*common.KeyValue, 0, len(v))}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			list.Values = append(list.Values, &common.KeyValue{Key: strings.ToValidUTF8(name, "\uFFFD"), Value: value(v[name])})
		}
		return &common.AnyValue{Value: &common.AnyValue_KvlistValue{KvlistValue: list}}
	case []any:
		list := &common.ArrayValue{Values: make([]*common.AnyValue, len(v))}
		for i := range v {
			list.Values[i] = value(v[i])
		}
		return &common.AnyValue{Value: &common.AnyValue_ArrayValue{ArrayValue: list}}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: n}}
		}
		if f, err := strconv.ParseFloat(v.String(), 64); err == nil {
			return &common.AnyValue{Value: &common.AnyValue_DoubleValue{DoubleValue: f}}
		}
		return text(v.String())
	case bool:
		return &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: v}}
	case string:
		return text(v)
	default:
		return &common.AnyValue{} // null
	}
}
