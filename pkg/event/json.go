package event

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Media types of the encodings.
const (
	ContentTypeCloudEvent = "application/cloudevents+json"
	ContentTypeBatch      = "application/cloudevents-batch+json"
	ContentTypeJSON       = "application/json"
)

// DataSchema is the CloudEvents dataschema attribute: the part of [Schema] that is about
// the data. An incompatible change of the data changes it.
const DataSchema = "https://watcherd.dev/schemas/event-v1.json#data"

//go:embed schema.json
var schema string

// Schema is the JSON Schema (draft 2020-12) of events in every format.
func Schema() []byte { return []byte(schema) }

// AppendCloudEvent appends the event as one CloudEvents 1.0 JSON object
// (structured mode) without a trailing newline.
// See https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md.
func AppendCloudEvent(dst []byte, e *Event) []byte {
	dst = append(dst, `{"specversion":"1.0","id":`...)
	dst = appendString(dst, e.ID)
	dst = append(dst, `,"source":"`...)
	dst = e.appendSource(dst) // as the subject, without a character that JSON escapes
	dst = append(dst, `","type":"`...)
	dst = append(dst, e.Type.CloudEvent()...)
	dst = append(dst, `","subject":"`...)
	dst = e.appendSubject(dst)
	dst = append(dst, `","time":"`...)
	dst = e.Time.UTC().AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, `","sequence":"`...)
	dst = appendSequence(dst, e.Sequence)
	dst = append(dst, `","partitionkey":`...)
	dst = appendString(dst, e.PartitionKey())
	if e.ClusterUID != "" {
		dst = appendString(append(dst, `,"clusteruid":`...), e.ClusterUID)
	}
	dst = append(dst, `,"datacontenttype":"application/json","dataschema":"`+DataSchema+`","data":`...)
	dst = AppendData(dst, e)
	return append(dst, '}')
}

// AppendBatch appends the events as one CloudEvents JSON batch.
func AppendBatch(dst []byte, batch []*Event) []byte {
	dst = append(dst, '[')
	for i, e := range batch {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendCloudEvent(dst, e)
	}
	return append(dst, ']')
}

// AppendJSON appends the event in the `json` format: its data plus type, id,
// time, sequence and cluster, as one object.
func AppendJSON(dst []byte, e *Event) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, e.Type...)
	dst = append(dst, `","id":`...)
	dst = appendString(dst, e.ID)
	dst = append(dst, `,"time":"`...)
	dst = e.Time.UTC().AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, `","sequence":`...)
	dst = strconv.AppendUint(dst, e.Sequence, 10)
	dst = append(dst, `,"cluster":`...)
	dst = appendString(dst, e.Cluster)
	dst = append(dst, ',')
	dst = appendDataFields(dst, e)
	return append(dst, '}')
}

// AppendData appends the CloudEvents data of the event.
func AppendData(dst []byte, e *Event) []byte {
	dst = append(dst, '{')
	dst = appendDataFields(dst, e)
	return append(dst, '}')
}

// appendDataFields appends the members of data, without the braces; there is
// always at least one.
func appendDataFields(dst []byte, e *Event) []byte {
	if e.Gap != nil {
		return appendGap(dst, e.Gap)
	}
	dst = appendResource(dst, &e.Resource)
	dst = append(dst, `,"namespace":`...)
	dst = appendString(dst, e.Namespace)
	dst = append(dst, `,"name":`...)
	dst = appendString(dst, e.Name)
	dst = append(dst, `,"uid":`...)
	dst = appendString(dst, e.UID)
	dst = append(dst, `,"resourceVersion":`...)
	dst = appendString(dst, e.ResourceVersion)
	dst = appendRaw(dst, "object", e.Object)
	dst = appendRaw(dst, "oldObject", e.OldObject)
	dst = appendRaw(dst, "patch", e.Patch)
	dst = appendFlag(dst, "patchOmitted", e.PatchOmitted)
	dst = appendSummary(dst, e.Summary)
	dst = appendChangedBy(dst, e.ChangedBy)
	dst = appendEnrichment(dst, e)
	if e.Coalesced > 0 {
		dst = strconv.AppendInt(append(dst, `,"coalesced":`...), int64(e.Coalesced), 10)
	}
	if e.For != nil {
		dst = e.For.Since.UTC().AppendFormat(append(dst, `,"for":{"since":"`...), time.RFC3339Nano)
		dst = append(dst, `"}`...)
	}
	if e.Selection != Inside {
		dst = append(dst, `,"selection":"`...)
		dst = append(dst, e.Selection...)
		dst = append(dst, '"')
	}
	dst = appendFlag(dst, "finalStateUnknown", e.FinalStateUnknown)
	dst = appendFlag(dst, "replay", e.Replay)
	dst = appendFlag(dst, "repair", e.Repair)
	return appendFlag(dst, "truncated", e.Truncated)
}

func appendSummary(dst []byte, line string) []byte {
	if line == "" {
		return dst
	}
	return rawjson.AppendString(append(dst, `,"summary":`...), line) // an arrow stays one
}

func appendChangedBy(dst []byte, c *ChangedBy) []byte {
	if c == nil {
		return dst
	}
	dst = append(dst, `,"changedBy":{"manager":`...)
	dst = appendString(dst, c.Manager)
	dst = append(dst, `,"operation":`...)
	dst = appendString(dst, c.Operation)
	dst = append(dst, `,"subresource":`...)
	dst = appendString(dst, c.Subresource)
	dst = append(dst, `,"time":"`...)
	dst = c.Time.UTC().AppendFormat(dst, time.RFC3339)
	return append(dst, `"}`...)
}

func appendRaw(dst []byte, name string, raw json.RawMessage) []byte {
	if len(raw) == 0 {
		return dst
	}
	dst = append(dst, `,"`...)
	dst = append(dst, name...)
	dst = append(dst, `":`...)
	return append(dst, raw...)
}

func appendFlag(dst []byte, name string, set bool) []byte {
	if !set {
		return dst
	}
	dst = append(dst, `,"`...)
	dst = append(dst, name...)
	return append(dst, `":true`...)
}

func appendResource(dst []byte, r *Resource) []byte {
	dst = append(dst, `"resource":{"group":`...)
	dst = appendString(dst, r.Group)
	dst = append(dst, `,"version":`...)
	dst = appendString(dst, r.Version)
	dst = append(dst, `,"resource":`...)
	dst = appendString(dst, r.Resource)
	dst = append(dst, `,"kind":`...)
	dst = appendString(dst, r.Kind)
	return append(dst, '}')
}

func appendGap(dst []byte, g *GapData) []byte {
	dst = append(dst, `"watch":`...)
	dst = appendString(dst, g.Watch)
	dst = append(dst, ',')
	dst = appendResource(dst, &g.Resource)
	for _, f := range [...]struct{ name, value string }{
		{"namespace", g.Namespace},
		{"name", g.Name},
		{"fromResourceVersion", g.FromResourceVersion},
		{"toResourceVersion", g.ToResourceVersion},
		{"cause", g.Cause},
		{"from", g.From.UTC().Format(time.RFC3339Nano)},
		{"to", g.To.UTC().Format(time.RFC3339Nano)},
	} {
		if f.value == "" && (f.name == "namespace" || f.name == "name") {
			continue
		}
		dst = append(dst, `,"`...)
		dst = append(dst, f.name...)
		dst = append(dst, `":`...)
		dst = appendString(dst, f.value)
	}
	return dst
}

// SequenceText is a sequence as the CloudEvents sequence extension wants it:
// text whose lexicographical order is the numerical one.
// See https://github.com/cloudevents/spec/blob/main/cloudevents/extensions/sequence.md.
func SequenceText(n uint64) string { return string(appendSequence(nil, n)) }

// appendSequence pads to 20 digits, the length of the largest uint64.
func appendSequence(dst []byte, n uint64) []byte {
	var digits [20]byte
	text := strconv.AppendUint(digits[:0], n, 10)
	dst = append(dst, "00000000000000000000"[len(text):]...)
	return append(dst, text...)
}

// appendString appends s as a JSON string. Names, uids and versions of the API
// server are plain ASCII, so it seldom leaves its fast path. Bytes that are not
// UTF-8 become U+FFFD.
func appendString(dst []byte, s string) []byte {
	if !plain(s) {
		quoted, err := json.Marshal(s)
		if err != nil { // a string always marshals
			panic(fmt.Sprintf("event: marshal string: %v", err))
		}
		return append(dst, quoted...)
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// plain reports whether s stands for itself between JSON's quotes.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// Parse reads what [AppendCloudEvent] writes: for programs that follow the event
// stream. Members it does not know are ignored.
func Parse(data []byte) (*Event, error) {
	var in struct {
		SpecVersion string    `json:"specversion"`
		ClusterUID  string    `json:"clusteruid"`
		ID          string    `json:"id"`
		Source      string    `json:"source"`
		Type        string    `json:"type"`
		Time        time.Time `json:"time"`
		Sequence    string    `json:"sequence"`
		Data        struct {
			Resource          json.RawMessage `json:"resource"`
			Namespace         string          `json:"namespace"`
			Name              string          `json:"name"`
			UID               string          `json:"uid"`
			ResourceVersion   string          `json:"resourceVersion"`
			Object            json.RawMessage `json:"object"`
			OldObject         json.RawMessage `json:"oldObject"`
			Patch             json.RawMessage `json:"patch"`
			PatchOmitted      bool            `json:"patchOmitted"`
			Summary           string          `json:"summary"`
			ChangedBy         *ChangedBy      `json:"changedBy"`
			Owner             *Owner          `json:"owner"`
			InvolvedObject    *InvolvedObject `json:"involvedObject"`
			Enrichment        string          `json:"enrichment"`
			Coalesced         int             `json:"coalesced"`
			For               *For            `json:"for"`
			Selection         Selection       `json:"selection"`
			FinalStateUnknown bool            `json:"finalStateUnknown"`
			Replay            bool            `json:"replay"`
			Repair            bool            `json:"repair"`
			Truncated         bool            `json:"truncated"`
			GapData
		} `json:"data"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("read a CloudEvent: %w", err)
	}
	if in.SpecVersion != "1.0" {
		return nil, fmt.Errorf("read a CloudEvent: specversion is %q, not 1.0", in.SpecVersion)
	}
	kind, ok := parseType(in.Type)
	if !ok {
		return nil, fmt.Errorf("read a CloudEvent: unknown type %q", in.Type)
	}
	escaped := strings.TrimPrefix(in.Source, sourcePrefix)
	feed := ""
	if i := strings.LastIndex(escaped, feedPrefix); i >= 0 {
		escaped, feed = escaped[:i], escaped[i+len(feedPrefix):] // a name that needs no escapes
	}
	cluster, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, fmt.Errorf("read a CloudEvent: source: %w", err)
	}
	e := &Event{
		ID: in.ID, Type: kind, Time: in.Time.UTC(),
		Cluster: cluster, Feed: feed, ClusterUID: in.ClusterUID,
		Namespace: in.Data.Namespace, Name: in.Data.Name, UID: in.Data.UID, ResourceVersion: in.Data.ResourceVersion,
		Object: in.Data.Object, OldObject: in.Data.OldObject, Patch: in.Data.Patch,
		PatchOmitted: in.Data.PatchOmitted, Summary: in.Data.Summary, ChangedBy: in.Data.ChangedBy,
		Owner: in.Data.Owner, InvolvedObject: in.Data.InvolvedObject, Incomplete: in.Data.Enrichment == Incomplete,
		Coalesced: in.Data.Coalesced, For: in.Data.For, Selection: in.Data.Selection, FinalStateUnknown: in.Data.FinalStateUnknown, Replay: in.Data.Replay, Repair: in.Data.Repair,
		Truncated: in.Data.Truncated,
	}
	if e.Sequence, err = strconv.ParseUint(in.Sequence, 10, 64); err != nil {
		return nil, errors.New("read a CloudEvent: its sequence is not a number")
	}
	if err := json.Unmarshal(in.Data.Resource, &e.Resource); err != nil {
		return nil, fmt.Errorf("read a CloudEvent: data.resource: %w", err)
	}
	if kind == Gap { // it has the members of other events and some of its own
		e.Gap = &in.Data.GapData
		e.Gap.Resource, e.Gap.Namespace, e.Gap.Name = e.Resource, e.Namespace, e.Name
	}
	return e, nil
}

func parseType(text string) (Type, bool) {
	for _, t := range [...]Type{Added, Updated, Deleted, Sync, Gap, Heartbeat} {
		if t.CloudEvent() == text {
			return t, true
		}
	}
	return "", false
}
