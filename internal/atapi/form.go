package atapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"mime"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/columns"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// kind is a form in which objects, or groups of resources, are sent.
type kind int

const (
	asObjects kind = iota
	asTable
	asMetadata
	asGroups // of discovery, aggregated
)

// form is how the objects of an answer are sent.
type form struct {
	kind
	at         time.Time
	apiVersion string
	name       string // of the objects' kind
	include    string // of the objects, in a table: None, Metadata or Object
	table      *columns.Table
}

// accepted finds the first form of an Accept header that can be sent.
func accepted(headers []string) (form, bool) {
	all := strings.Join(headers, ",")
	if all == "" {
		return form{}, true
	}
	for clause := range strings.SplitSeq(all, ",") {
		media, params, err := mime.ParseMediaType(strings.TrimSpace(clause))
		if err != nil || media != "application/json" && media != "application/*" && media != "*/*" {
			continue
		}
		switch is := params["as"] + "/" + params["g"] + "/" + params["v"]; is {
		case "//":
			return form{}, true
		case "Table/meta.k8s.io/v1":
			return form{kind: asTable}, true
		case "PartialObjectMetadata/meta.k8s.io/v1", "PartialObjectMetadataList/meta.k8s.io/v1":
			return form{kind: asMetadata}, true
		case "APIGroupDiscoveryList/apidiscovery.k8s.io/v2":
			return form{kind: asGroups}, true
		}
	}
	return form{}, false
}

// of sets the resource, the time and the part of objects that the form shows.
func (f *form) of(t *target, at time.Time, include string) {
	f.at, f.apiVersion, f.name, f.include = at, t.GVR.GroupVersion().String(), t.Kind, include
}

// begin appends what comes before the first object.
func (f *form) begin(dst []byte) []byte {
	switch f.kind {
	case asTable:
		b, _ := json.Marshal(f.table.Columns) //nolint:errchkjson // texts and numbers
		dst = append(append(dst, `{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":`...), b...)
		return append(dst, `,"rows":[`...)
	case asMetadata:
		return append(dst, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[`...)
	default:
		dst = rawjson.AppendString(append(dst, `{"kind":`...), f.name+"List")
		dst = rawjson.AppendString(append(dst, `,"apiVersion":`...), f.apiVersion)
		return append(dst, `,"items":[`...)
	}
}

// single appends an object that is asked for by its name.
func (f *form) single(dst, raw []byte) ([]byte, error) {
	if f.kind != asTable {
		return f.item(dst, raw)
	}
	dst, err := f.item(f.begin(dst), raw)
	return append(dst, `],"metadata":{}}`...), err
}

func (f *form) item(dst, raw []byte) ([]byte, error) {
	switch f.kind {
	case asTable:
		return f.row(dst, raw)
	case asMetadata:
		return partial(dst, raw), nil
	default:
		return f.object(dst, raw)
	}
}

// hashesAsBytes encodes the hashes in place of a Secret's values as those are, in base64: clients that have the type of Secrets
// read no others.
var hashesAsBytes = sync.OnceValues(func() (*rawjson.Editor, error) {
	return rawjson.NewEditor(rawjson.Rule{Path: "data[*]", Replace: func(dst, value []byte, _ *rawjson.Place) []byte {
		if !event.IsRedacted(value) {
			return append(dst, value...)
		}
		dst = base64.StdEncoding.AppendEncode(append(dst, '"'), value[1:len(value)-1])
		return append(dst, '"')
	}})
})

// object appends an object with the kind of its resource: a watch of metadata records another.
func (f *form) object(dst, raw []byte) ([]byte, error) {
	meta, err := rawjson.ScanHead(raw)
	switch {
	case err != nil || len(meta.Kind) == 0 || string(meta.Kind) == "PartialObjectMetadata":
	case f.apiVersion == "v1" && f.name == "Secret":
		e, err := hashesAsBytes()
		if err != nil {
			return dst, err
		}
		return e.Append(dst, raw)
	default:
		return append(dst, raw...), nil
	}
	dst = rawjson.AppendString(append(dst, `{"apiVersion":`...), f.apiVersion)
	dst = rawjson.AppendString(append(dst, `,"kind":`...), f.name)
	for key, value := range rawjson.Members(raw) {
		if name := string(key); name != "apiVersion" && name != "kind" {
			dst = append(rawjson.AppendString(append(dst, ','), name), ':')
			dst = append(dst, value...)
		}
	}
	return append(dst, '}'), nil
}

// partial appends the metadata of an object.
func partial(dst, raw []byte) []byte {
	metadata := []byte("{}")
	for key, value := range rawjson.Members(raw) {
		if string(key) == "metadata" {
			metadata = value
		}
	}
	dst = append(append(dst, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":`...), metadata...)
	return append(dst, '}')
}

// row appends an object as a row of a table.
func (f *form) row(dst, raw []byte) ([]byte, error) {
	cells, err := f.table.Row(raw, f.at)
	if err != nil {
		return dst, err
	}
	b, err := json.Marshal(cells)
	if err != nil {
		return dst, err
	}
	dst = append(append(dst, `{"cells":`...), b...)
	dst = append(dst, `,"object":`...)
	switch f.include {
	case "None":
		dst = append(dst, "null"...)
	case "Object":
		if dst, err = f.object(dst, raw); err != nil {
			return dst, err
		}
	default:
		dst = partial(dst, raw)
	}
	return append(dst, '}'), nil
}

var definitions = event.Resource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions", Kind: "CustomResourceDefinition"}

// tableOf sets the columns of a table: those of the kind, or those of the resource's definition, if that is recorded.
func (s *Server) tableOf(ctx context.Context, r *request, t *target) error {
	own, err := s.printerColumns(ctx, r.at, t.GVR)
	r.form.table = columns.Of(schema.GroupKind{Group: t.GVR.Group, Kind: t.Kind}, own)
	return err
}

// printerColumns are those that the definition of a custom resource had at a time, or has now if it did not have the version
// then or is not recorded that early. They are nil if no definition is recorded, and empty if it has none.
func (s *Server) printerColumns(ctx context.Context, at time.Time, gvr schema.GroupVersionResource) ([]columns.Column, error) {
	if !strings.Contains(gvr.Group, ".") { // no definition has such a group
		return nil, nil
	}
	for _, t := range []time.Time{at, time.Now()} {
		state, err := s.History.At(ctx, history.Object{Resource: definitions, Name: gvr.Resource + "." + gvr.Group}, t)
		if err != nil {
			return nil, err
		}
		if state.As != history.Exact || !state.Exists {
			continue
		}
		own, err := columns.OfDefinition(state.Object, gvr.Version)
		if err != nil {
			return nil, fmt.Errorf("definition of %s: %w", gvr.GroupResource(), err)
		}
		if own != nil {
			return own, nil
		}
	}
	return nil, nil
}
