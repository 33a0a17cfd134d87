package main

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/columns"
	"github.com/watcherd/watcherd/pkg/event/pretty"
)

// Formats of objects.
const (
	formatTable  = "table"
	formatWide   = "wide"
	formatJSON   = "json"
	formatYAML   = "yaml"
	formatName   = "name"
	formatPath   = "jsonpath"
	formatCustom = "custom-columns"
)

var objectFormats = []string{formatTable, formatWide, formatJSON, formatYAML, formatName, formatPath + "=", formatCustom + "="}

// objectPrinter prints objects as kubectl get does.
type objectPrinter struct {
	out      io.Writer
	terminal bool // out is one
	format   string
	at       time.Time // of ages; zero: when a row is added
	single   bool      // objects are not items of a List
	kinds    bool      // names have the kind
	own      []columns.Column

	paths   []*jsonpath.JSONPath // of jsonpath, or of each custom column
	headers []string             // of the custom columns
	items   []json.RawMessage

	rows       *table // since the last flush, or since the first row of a format with one table
	kind       schema.GroupKind
	columns    *columns.Table
	namespaced bool
}

func newObjectPrinter(out io.Writer, output string) (*objectPrinter, error) {
	p := &objectPrinter{out: out, terminal: pretty.IsTerminal(out)}
	format, spec, _ := strings.Cut(output, "=")
	p.format = format
	switch {
	case !slices.Contains(objectFormats, strings.TrimSuffix(output, "=")) && spec == "":
		return nil, &usageError{fmt.Errorf("-o %q: use %s", output, strings.Join(objectFormats, ", "))}
	case format == formatPath:
		path := jsonpath.New(format).AllowMissingKeys(true)
		if err := path.Parse(pathTemplate(spec)); err != nil || spec == "" {
			return nil, &usageError{fmt.Errorf("-o %q is not a JSONPath template, such as {.metadata.name}: %w", output, err)}
		}
		p.paths = append(p.paths, path)
	case format == formatCustom:
		for column := range strings.SplitSeq(spec, ",") {
			header, text, found := strings.Cut(column, ":")
			path := jsonpath.New(header).AllowMissingKeys(true)
			if err := path.Parse(pathTemplate(text)); !found || err != nil {
				return nil, &usageError{fmt.Errorf("-o %s: %q is not HEADER:PATH, such as NAME:.metadata.name", formatCustom, column)}
			}
			p.headers, p.paths = append(p.headers, header), append(p.paths, path)
		}
	}
	return p, nil
}

var bare = regexp.MustCompile(`^\.?[^{}]*$`)

// pathTemplate is a template, also of a path without braces.
func pathTemplate(text string) string {
	if !bare.MatchString(text) {
		return text
	}
	return "{." + strings.TrimPrefix(text, ".") + "}"
}

// table reports whether the columns depend on the resource.
func (p *objectPrinter) table() bool { return p.format == formatTable || p.format == formatWide }

// together reports whether the objects become one document.
func (p *objectPrinter) together() bool {
	return !p.single && (p.format == formatJSON || p.format == formatYAML || p.format == formatPath)
}

// add prints an object, at a flush or the end at the latest.
func (p *objectPrinter) add(raw []byte) error {
	switch {
	case p.together():
		p.items = append(p.items, slices.Clone(raw))
		return nil
	case p.format == formatJSON || p.format == formatYAML:
		return printStructured(p.out, p.format, json.RawMessage(raw))
	case p.format == formatPath:
		return p.template(raw)
	case p.format == formatCustom:
		return p.customRow(raw)
	}
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal(raw, &o); err != nil {
		return fmt.Errorf("the answer of the daemon is not understood: %w", err)
	}
	gv, err := schema.ParseGroupVersion(o.APIVersion)
	if err != nil {
		return err
	}
	kind := schema.GroupKind{Group: gv.Group, Kind: o.Kind}
	if p.format == formatName {
		_, err := fmt.Fprintln(p.out, clean(nameOf(kind, o.Name)))
		return err
	}
	return p.row(raw, kind, &o.ObjectMeta)
}

// nameOf is what kubectl takes as a name: pod/web, deployment.apps/web.
func nameOf(kind schema.GroupKind, name string) string {
	kind.Kind = strings.ToLower(kind.Kind)
	return kind.String() + "/" + name
}

// row adds a row to the table of a resource.
func (p *objectPrinter) row(raw []byte, kind schema.GroupKind, o *metav1.ObjectMeta) error {
	if p.columns == nil || p.kind != kind {
		if err := p.flush(); err != nil {
			return err
		}
		if p.columns != nil {
			fmt.Fprintln(p.out)
		}
		p.kind, p.columns, p.namespaced = kind, columns.Of(kind, p.own), o.Namespace != ""
		p.rows = newTable(p.out, p.header()...)
	}
	at := p.at
	if at.IsZero() {
		at = time.Now()
	}
	values, err := p.columns.Row(raw, at)
	if err != nil {
		return err
	}
	var cells []string
	if p.namespaced {
		cells = append(cells, o.Namespace)
	}
	for i, value := range values {
		switch {
		case p.columns.Columns[i].Priority > 0 && p.format != formatWide:
		case i == 0 && p.kinds:
			cells = append(cells, nameOf(kind, o.Name))
		case value == nil:
			cells = append(cells, "<none>")
		default:
			cells = append(cells, fmt.Sprint(value))
		}
	}
	if p.format == formatWide {
		cells = append(cells, o.ResourceVersion, labels.FormatLabels(o.Labels))
	}
	p.rows.row(cells...)
	return nil
}

func (p *objectPrinter) header() (header []string) {
	if p.namespaced {
		header = append(header, "NAMESPACE")
	}
	for _, c := range p.columns.Columns {
		if c.Priority == 0 || p.format == formatWide {
			header = append(header, strings.ToUpper(c.Name))
		}
	}
	if p.format == formatWide {
		header = append(header, "RESOURCEVERSION", "LABELS")
	}
	return header
}

// customRow adds a row of custom columns.
func (p *objectPrinter) customRow(raw []byte) error {
	if p.rows == nil {
		p.rows = newTable(p.out, p.headers...)
	}
	var content any
	if err := utiljson.Unmarshal(raw, &content); err != nil {
		return err
	}
	cells := make([]string, len(p.paths))
	for i, path := range p.paths {
		var values []string
		found, err := path.FindResults(content)
		if err != nil {
			return err
		}
		for _, part := range found {
			for _, v := range part {
				if v.IsValid() && v.CanInterface() && v.Interface() != nil {
					values = append(values, fmt.Sprint(v.Interface()))
				}
			}
		}
		if cells[i] = strings.Join(values, ","); cells[i] == "" {
			cells[i] = "<none>"
		}
	}
	p.rows.row(cells...)
	return nil
}

// template prints what the JSONPath template finds.
func (p *objectPrinter) template(raw []byte) error {
	var content any
	if err := utiljson.Unmarshal(raw, &content); err != nil {
		return err
	}
	if !p.terminal {
		return p.paths[0].Execute(p.out, content)
	}
	var text strings.Builder
	if err := p.paths[0].Execute(&text, content); err != nil {
		return err
	}
	_, err := io.WriteString(p.out, cleanLines(text.String()))
	return err
}

// flush prints the rows so far.
func (p *objectPrinter) flush() error {
	if p.rows == nil {
		return nil
	}
	return p.rows.flush()
}

// end prints what is one document.
func (p *objectPrinter) end() error {
	if !p.together() {
		return p.flush()
	}
	list := admin.ObjectList{APIVersion: "v1", Kind: "List", Items: p.items}
	if p.items == nil {
		list.Items = []json.RawMessage{}
	}
	if p.format != formatPath {
		return printStructured(p.out, p.format, list)
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return p.template(raw)
}
