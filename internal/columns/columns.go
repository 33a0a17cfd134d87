// Package columns makes rows of tables from objects, as kubectl get shows them: with the
// printer columns of a custom resource, with the usual ones of the common kinds of Kubernetes,
// and with the age of any other object.
//
// A cell shows what the object holds. Where a watch drops a field, or has a hash in its place,
// the cell is empty or zero.
//
// The work for a row is linear in the object and in the text of the columns, whose authors may
// be hostile: see the bounds of printer columns.
package columns

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Column is a printer column of a CustomResourceDefinition.
type Column struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Format      string `json:"format,omitempty"`
	Description string `json:"description,omitempty"`
	Priority    int32  `json:"priority,omitempty"` // above 0: of wide tables
	JSONPath    string `json:"jsonPath"`
}

// OfDefinition returns the printer columns of a version in a CustomResourceDefinition, nil if it does not have the version.
func OfDefinition(definition []byte, version string) ([]Column, error) {
	var crd struct {
		Spec struct {
			Versions []struct {
				Name                     string
				AdditionalPrinterColumns []Column
			}
		}
	}
	if err := json.Unmarshal(definition, &crd); err != nil {
		return nil, err
	}
	for _, v := range crd.Spec.Versions {
		if v.Name == version {
			return append([]Column{}, v.AdditionalPrinterColumns...), nil
		}
	}
	return nil, nil
}

// Table makes rows of the objects of one kind.
type Table struct {
	Columns []metav1.TableColumnDefinition // the name first
	cells   func(raw []byte, at time.Time) ([]any, error)
}

// Of is the table of a kind. With printer columns it is that of a custom resource.
func Of(kind schema.GroupKind, own []Column) *Table {
	t := &Table{Columns: []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name", Description: "Name of the object."}}}
	common, known := kinds[kind]
	switch {
	case len(own) > 0:
		t.custom(own)
	case known:
		for name := range strings.FieldsSeq(common.columns) {
			name, wide := strings.CutSuffix(name, "*")
			c := metav1.TableColumnDefinition{Name: strings.ReplaceAll(name, "_", " "), Type: "string"}
			if wide {
				c.Priority = 1
			}
			t.Columns = append(t.Columns, c)
		}
		t.cells = common.cells
	default:
		t.Columns = append(t.Columns, metav1.TableColumnDefinition{Name: "Age", Type: "string", Description: "Time since the object's creation."})
	}
	return t
}

// Row returns the cells of an object at a time. A cell is nil where the object lacks the value.
func (t *Table) Row(raw []byte, at time.Time) ([]any, error) {
	meta, err := rawjson.ScanHead(raw)
	if err != nil {
		return nil, err
	}
	row := append(make([]any, 0, len(t.Columns)), string(meta.Name))
	if t.cells != nil && string(meta.Kind) != "PartialObjectMetadata" {
		cells, err := t.cells(raw, at)
		return append(row, cells...), err
	}
	for _, c := range t.Columns[1:] {
		var cell any
		if c.Name == "Age" {
			cell = Age(string(meta.CreationTimestamp), at)
		}
		row = append(row, cell)
	}
	return row, nil
}

// Age is how long before a time another was, as kubectl shows it.
func Age(timestamp string, at time.Time) string {
	t, err := time.Parse(time.RFC3339, timestamp)
	if err != nil {
		return "<unknown>"
	}
	return duration.HumanDuration(at.Sub(t))
}

// Bounds of printer columns. What is above them is left out.
const (
	maxColumns = 64
	maxPaths   = 8 << 10 // bytes, of all columns together
	maxCell    = 8 << 10 // bytes
)

// linear reports whether a path visits each value of an object once: it has no recursive
// descent, union or range, each of which multiplies the work of those that follow.
func linear(nodes []jsonpath.Node) bool {
	return !slices.ContainsFunc(nodes, func(node jsonpath.Node) bool {
		switch node := node.(type) {
		case *jsonpath.RecursiveNode, *jsonpath.UnionNode, *jsonpath.IdentifierNode:
			return true
		case *jsonpath.ListNode:
			return !linear(node.Nodes)
		case *jsonpath.FilterNode:
			return !linear(node.Left.Nodes) || !linear(node.Right.Nodes)
		}
		return false
	})
}

// custom adds the printer columns of a custom resource.
func (t *Table) custom(own []Column) {
	var paths []*jsonpath.JSONPath
	size := 0
	for _, c := range own {
		if size += len(c.JSONPath); size > maxPaths || len(paths) == maxColumns {
			break
		}
		text := "{" + c.JSONPath + "}"
		parsed, err := jsonpath.Parse(c.Name, text)
		path := jsonpath.New(c.Name).AllowMissingKeys(true)
		if err != nil || !linear(parsed.Root.Nodes) || path.Parse(text) != nil {
			continue // as the API server does with a path that is none
		}
		paths = append(paths, path)
		t.Columns = append(t.Columns, metav1.TableColumnDefinition{Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Priority: c.Priority})
	}
	t.cells = func(raw []byte, at time.Time) ([]any, error) {
		cells := make([]any, len(paths))
		var content any
		if utiljson.Unmarshal(raw, &content) != nil { // with integers
			return cells, nil //nolint:nilerr // a number that no type holds hides no other object
		}
		for i, path := range paths {
			cells[i] = value(path, t.Columns[i+1].Type, content, at)
		}
		return cells, nil
	}
}

// value is what a path finds first in an object, as the API server shows it: nil if it is missing or of another type.
func value(path *jsonpath.JSONPath, kind string, object any, at time.Time) any {
	found, err := path.FindResults(object)
	if err != nil || len(found) == 0 || len(found[0]) == 0 || !found[0][0].CanInterface() {
		return nil
	}
	first := found[0][0].Interface()
	switch kind {
	case "integer":
		switch n := first.(type) {
		case int64:
			return n
		case float64:
			return int64(n)
		}
	case "number":
		switch first.(type) {
		case int64, float64:
			return first
		}
	case "boolean":
		if b, ok := first.(bool); ok {
			return b
		}
	case "date":
		if text, ok := first.(string); ok {
			if _, err := time.Parse(time.RFC3339, text); err != nil {
				return "<invalid>"
			}
			return Age(text, at)
		}
	case "string":
		var text cell
		if path.PrintResults(&text, []reflect.Value{reflect.ValueOf(first)}) == nil {
			return text.String()
		}
	}
	return nil
}

// cell is a text of which the rest is left out.
type cell struct{ strings.Builder }

func (c *cell) Write(b []byte) (int, error) {
	c.WriteString(strings.ToValidUTF8(string(b[:min(len(b), maxCell-c.Len())]), ""))
	return len(b), nil
}

// kind are the columns of a common kind after the name, and their cells. A star marks those
// of wide tables.
type kind struct {
	columns string
	cells   func(raw []byte, at time.Time) ([]any, error)
}

// typed is the kind of an object's Go type.
func typed[T any](columns string, cells func(o *T, at time.Time) []any) kind {
	return kind{columns, func(raw []byte, at time.Time) ([]any, error) {
		o := new(T)
		_ = json.Unmarshal(raw, o) // what is of another type, such as a redacted number, is left out
		return cells(o, at), nil
	}}
}
