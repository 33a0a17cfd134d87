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

// append appends a request with the events.
func (r *records) append(dst []byte, events []*event.Event) ([]byte, error) {
	out := make([]*logs.LogRecord, len(events))
	sent := time.Now()
	for i, e := range events {
		out[i] = r.record(e, sent)
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, &collogs.ExportLogsServiceRequest{ResourceLogs: []*logs.ResourceLogs{{
		Resource: &resource.Resource{Attributes: []*common.KeyValue{
			attribute("service.name", "watcherd"), attribute("k8s.cluster.name", r.cluster),
		}},
		ScopeLogs: []*logs.ScopeLogs{{Scope: &common.InstrumentationScope{Name: "github.com/watcherd/watcherd"}, LogRecords: out}},
	}}})
}

func (r *records) record(e *event.Event, sent time.Time) *logs.LogRecord {
	at := uint64(e.Time.UnixNano())
	if r.now {
		at = uint64(sent.UnixNano())
	}
	rec := &logs.LogRecord{
		TimeUnixNano: at, ObservedTimeUnixNano: at, EventName: e.Type.CloudEvent(), Body: r.body(e),
		SeverityNumber: logs.SeverityNumber_SEVERITY_NUMBER_INFO, SeverityText: "INFO",
		Attributes: make([]*common.KeyValue, 0, 16),
	}
	if e.Type == event.Gap {
		rec.SeverityNumber, rec.SeverityText = logs.SeverityNumber_SEVERITY_NUMBER_WARN, "WARN"
	}
	add := func(name, value string) {
		if value != "" {
			rec.Attributes = append(rec.Attributes, attribute(name, value))
		}
	}
	add("cloudevents.event_id", e.ID)
	add("cloudevents.event_source", e.Source())
	add("cloudevents.event_spec_version", "1.0")
	add("cloudevents.event_subject", e.Subject())
	add("cloudevents.event_type", rec.EventName)
	add("k8s.resource.group", e.Resource.Group)
	add("k8s.resource.name", e.Resource.Resource)
	add("k8s.namespace.name", e.Namespace)
	if n, ok := named[e.Resource.Resource]; ok && n.group == e.Resource.Group && (n.attribute != "k8s.namespace" || e.Namespace == "") {
		add(n.attribute+".name", e.Name)
		add(n.attribute+".uid", e.UID)
	}
	add("watcherd.name", e.Name)
	add("watcherd.uid", e.UID)
	add("watcherd.resource_version", e.ResourceVersion)
	add("watcherd.selection", string(e.Selection))
	add("watcherd.summary", e.Summary)
	rec.Attributes = append(rec.Attributes, &common.KeyValue{
		Key: "watcherd.sequence", Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: int64(e.Sequence)}},
	})
	return rec
}

func attribute(name, value string) *common.KeyValue {
	return &common.KeyValue{Key: name, Value: text(value)}
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
