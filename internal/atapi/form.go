package atapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

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
	columns    []column
}

// column is one of a table. Without a path it is the name or the age.
type column struct {
	metav1.TableColumnDefinition
	path *jsonpath.JSONPath
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
		definitions := make([]metav1.TableColumnDefinition, len(f.columns))
		for i := range f.columns {
			definitions[i] = f.columns[i].TableColumnDefinition
		}
		b, _ := json.Marshal(definitions) //nolint:errchkjson // texts and numbers
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

// item appends an object.
func (f *form) item(dst, raw []byte) ([]byte, error) {
	switch f.kind {
	case asTable:
		return f.row(dst, raw)
	case asMetadata:
		return partial(dst, raw), nil
	default:
		return f.object(dst, raw), nil
	}
}

// object appends an object with the kind of its resource: a watch of metadata records another.
func (f *form) object(dst, raw []byte) []byte {
	meta, err := rawjson.ScanHead(raw)
	if err == nil && len(meta.Kind) > 0 && string(meta.Kind) != "PartialObjectMetadata" {
		return append(dst, raw...)
	}
	dst = rawjson.AppendString(append(dst, `{"apiVersion":`...), f.apiVersion)
	dst = rawjson.AppendString(append(dst, `,"kind":`...), f.name)
	for key, value := range rawjson.Members(raw) {
		if name := string(key); name != "apiVersion" && name != "kind" {
			dst = append(rawjson.AppendString(append(dst, ','), name), ':')
			dst = append(dst, value...)
		}
	}
	return append(dst, '}')
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
	meta, err := rawjson.ScanHead(raw)
	if err != nil {
		return dst, err
	}
	var content any
	cells := make([]any, len(f.columns))
	for i := range f.columns {
		c := &f.columns[i]
		switch {
		case c.path != nil:
			if content == nil {
				if err := utiljson.Unmarshal(raw, &content); err != nil { // with integers
					return dst, err
				}
			}
			cells[i] = c.cell(content, f.at)
		case c.Format == "name":
			cells[i] = string(meta.Name)
		default:
			cells[i] = age(string(meta.CreationTimestamp), f.at)
		}
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
		dst = f.object(dst, raw)
	default:
		dst = partial(dst, raw)
	}
	return append(dst, '}'), nil
}

// age is how long before a time another was, as kubectl shows it.
func age(timestamp string, at time.Time) string {
	t, err := time.Parse(time.RFC3339, timestamp)
	if err != nil {
		return "<unknown>"
	}
	return duration.HumanDuration(at.Sub(t))
}

// cell is the value of a column of a custom resource, nil if the object lacks it.
func (c *column) cell(object any, at time.Time) any {
	found, err := c.path.FindResults(object)
	if err != nil || len(found) == 0 || len(found[0]) == 0 || !found[0][0].CanInterface() {
		return nil
	}
	value := found[0][0].Interface()
	switch c.Type {
	case "integer":
		switch n := value.(type) {
		case int64:
			return n
		case float64:
			return int64(n)
		}
	case "number":
		switch value.(type) {
		case int64, float64:
			return value
		}
	case "boolean":
		if b, ok := value.(bool); ok {
			return b
		}
	case "date":
		if text, ok := value.(string); ok {
			return age(text, at)
		}
	case "string":
		var text bytes.Buffer
		if c.path.PrintResults(&text, found[0]) == nil {
			return text.String()
		}
	}
	return nil
}

var definitions = event.Resource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions", Kind: "CustomResourceDefinition"}

// columns sets the columns of a table: the name, and the age or what the resource's definition
// had at the time, if that is recorded.
func (s *Server) columns(ctx context.Context, r *request, t *target) error {
	name := metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: "Name of the object."}
	r.form.columns = []column{{TableColumnDefinition: name}}
	own, err := s.printerColumns(ctx, r.at, t.GVR)
	if err != nil {
		return err
	}
	if own == nil {
		own = []column{{TableColumnDefinition: metav1.TableColumnDefinition{Name: "Age", Type: "string", Description: "Time from the object's creation to the time that is asked for."}}}
	}
	r.form.columns = append(r.form.columns, own...)
	return nil
}

// printerColumns are those of a custom resource at a time, nil if its definition is not
// recorded or has none.
func (s *Server) printerColumns(ctx context.Context, at time.Time, gvr schema.GroupVersionResource) ([]column, error) {
	if !strings.Contains(gvr.Group, ".") { // no definition has such a group
		return nil, nil
	}
	state, err := s.History.At(ctx, history.Object{Resource: definitions, Name: gvr.Resource + "." + gvr.Group}, at)
	if err != nil || state.As != history.Exact || !state.Exists {
		return nil, err
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Name                     string
				AdditionalPrinterColumns []struct {
					Name, Type, Format, Description, JSONPath string
					Priority                                  int32
				}
			}
		}
	}
	if err := json.Unmarshal(state.Object, &crd); err != nil {
		return nil, fmt.Errorf("definition of %s: %w", gvr.GroupResource(), err)
	}
	var list []column
	for _, v := range crd.Spec.Versions {
		if v.Name != gvr.Version {
			continue
		}
		for _, c := range v.AdditionalPrinterColumns {
			path := jsonpath.New(c.Name).AllowMissingKeys(true)
			if err := path.Parse("{" + c.JSONPath + "}"); err != nil {
				continue // as the API server does
			}
			list = append(list, column{metav1.TableColumnDefinition{Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Priority: c.Priority}, path})
		}
	}
	return list, nil
}
