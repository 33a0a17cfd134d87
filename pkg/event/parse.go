package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Parse reads what [AppendCloudEvent] writes: for programs that follow the event
// stream. Members it does not know are ignored.
func Parse(data []byte) (*Event, error) {
	var in struct {
		SpecVersion string    `json:"specversion"`
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
	cluster, err := url.PathUnescape(strings.TrimPrefix(in.Source, sourcePrefix))
	if err != nil {
		return nil, fmt.Errorf("read a CloudEvent: source: %w", err)
	}
	e := &Event{
		ID: in.ID, Type: kind, Time: in.Time.UTC(),
		Cluster:   cluster,
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
	for _, t := range [...]Type{Added, Updated, Deleted, Sync, Gap} {
		if t.CloudEvent() == text {
			return t, true
		}
	}
	return "", false
}
