package strict

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/watcherd/watcherd/internal/days"
	"github.com/watcherd/watcherd/internal/nearest"
)

// MaxProblems bounds what is collected from one document.
const MaxProblems = 200

// maxItems bounds a list.
const maxItems = 10_000

// Decoder decodes one document and collects its problems. It is for one use by
// one goroutine.
type Decoder struct {
	doc      *Document
	handlers map[reflect.Type]func(n Node, into reflect.Value)
	notText  func(t reflect.Type) string
	fields   map[reflect.Type]fields
	problems []Problem
}

// NewDecoder makes a decoder of d.
func NewDecoder(d *Document) *Decoder {
	return &Decoder{doc: d, handlers: map[reflect.Type]func(Node, reflect.Value){}, fields: map[reflect.Type]fields{}}
}

// Handle decodes every value of type T with f. The node is not null.
func Handle[T any](d *Decoder, f func(n Node, into *T)) {
	d.handlers[reflect.TypeFor[T]()] = func(n Node, into reflect.Value) {
		f(n, into.Addr().Interface().(*T))
	}
}

// ExplainText sets what to say when a plain value is given for a struct of type
// t; "" leaves it to the usual message.
func (d *Decoder) ExplainText(f func(t reflect.Type) string) { d.notText = f }

// Decode decodes the whole document into a pointer.
func (d *Decoder) Decode(into any) {
	d.Value(Node{yaml: resolve(d.doc.root), at: d.doc.root}, into)
}

// Problems is what has been found, in the order it was found.
func (d *Decoder) Problems() []Problem { return d.problems }

// Report adds a problem that keeps the value n from being decoded.
func (d *Decoder) Report(n Node, format string, args ...any) {
	d.add(Problem{Line: n.at.Line, Column: n.at.Column, Path: n.Path, Msg: fmt.Sprintf(format, args...), Lost: true})
}

func (d *Decoder) reportKey(k *yaml.Node, path, format string, args ...any) {
	d.add(Problem{Line: k.Line, Column: k.Column, Path: path, Msg: fmt.Sprintf(format, args...)})
}

func (d *Decoder) add(p Problem) {
	if !d.full() {
		d.problems = append(d.problems, p)
	}
}

func (d *Decoder) full() bool { return len(d.problems) >= MaxProblems }

// Value decodes n into a pointer.
func (d *Decoder) Value(n Node, into any) { d.value(n, reflect.ValueOf(into).Elem()) }

// Others takes the keys of a mapping that are no fields of the struct it is
// decoded into.
type Others struct {
	Names []string                  // what Take knows
	As    string                    // what such a key stands for, for messages
	Take  func(name string, n Node) // called for each of Names that is there
}

// Mapping decodes n into a pointer to a struct, and its other keys into others. It
// returns the keys, reported, that are neither.
func (d *Decoder) Mapping(n Node, into any, others Others) (unknown []string) {
	return d.mapping(n, reflect.ValueOf(into).Elem(), others)
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	jsonType     = reflect.TypeFor[json.Unmarshaler]()
)

// value decodes n into v, which is addressable.
func (d *Decoder) value(n Node, v reflect.Value) {
	if n.IsNull() {
		return
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(fresh(v.Type().Elem()).Addr())
		}
		d.value(n, v.Elem())
		return
	}
	if handle, ok := d.handlers[v.Type()]; ok {
		handle(n, v)
		return
	}
	switch {
	case v.Type() == durationType:
		d.duration(n, v)
	case v.Addr().Type().Implements(jsonType):
		d.unmarshal(n, func() error { return v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(n.JSON()) })
	case v.Addr().Type().Implements(textType):
		text, ok := n.Text()
		if !ok {
			d.mismatch(n, "a string")
			return
		}
		d.unmarshal(n, func() error { return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)) })
	default:
		d.byKind(n, v)
	}
}

func (d *Decoder) unmarshal(n Node, f func() error) {
	if err := f(); err != nil {
		d.Report(n, "%s", strings.TrimPrefix(err.Error(), "json: "))
	}
}

func (d *Decoder) byKind(n Node, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(n, v, Others{})
	case reflect.Map:
		d.table(n, v)
	case reflect.Slice:
		d.list(n, v)
	case reflect.Interface:
		if v.NumMethod() == 0 {
			v.Set(reflect.ValueOf(plain(n.yaml)))
			return
		}
		panic("strict: cannot decode into " + v.Type().String())
	default:
		d.scalar(n, v)
	}
}

// fresh is an addressable value of t with the defaults of its type.
func fresh(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	if s, ok := reflect.TypeAssert[interface{ SetDefaults() }](v.Addr()); ok {
		s.SetDefaults()
	}
	return v
}

func (d *Decoder) list(n Node, v reflect.Value) {
	if n.yaml.Kind != yaml.SequenceNode {
		d.mismatch(n, "a list")
		return
	}
	if len(n.yaml.Content) > maxItems {
		d.Report(n, "the list has %d items; %d are the most", len(n.yaml.Content), maxItems)
		return
	}
	l := reflect.MakeSlice(v.Type(), 0, len(n.yaml.Content))
	for i, c := range n.yaml.Content {
		item := Node{Path: Index(n.Path, i), yaml: resolve(c), at: c}
		e := fresh(v.Type().Elem())
		if item.IsNull() {
			d.Report(item, "the item is empty")
		}
		d.value(item, e)
		l = reflect.Append(l, e)
	}
	v.Set(l)
}

func (d *Decoder) table(n Node, v reflect.Value) {
	if n.yaml.Kind != yaml.MappingNode {
		d.mismatch(n, "a mapping")
		return
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	d.eachKey(n, func(_ *yaml.Node, key string, value Node) {
		e := fresh(v.Type().Elem())
		if value.IsNull() {
			d.Report(value, "the value is empty")
		}
		d.value(value, e)
		v.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), e)
	})
}

func (d *Decoder) mapping(n Node, v reflect.Value, others Others) (unknown []string) {
	if n.yaml.Kind != yaml.MappingNode {
		if n.yaml.Kind == yaml.ScalarNode && d.notText != nil {
			if why := d.notText(v.Type()); why != "" {
				d.Report(n, "%s", why)
				return nil
			}
		}
		d.mismatch(n, "a mapping")
		return nil
	}
	fields, ok := d.fields[v.Type()]
	if !ok {
		fields = fieldsOf(v.Type())
		d.fields[v.Type()] = fields
	}
	d.eachKey(n, func(k *yaml.Node, key string, value Node) {
		if index, ok := fields.index[key]; ok {
			d.value(value, v.FieldByIndex(index))
			return
		}
		if slices.Contains(others.Names, key) {
			others.Take(key, value)
			return
		}
		unknown = append(unknown, key)
		if !d.full() {
			d.unknownKey(k, n, key, fields.names, others)
		}
	})
	return unknown
}

// eachKey calls f for each key of a mapping, once, and reports keys that are no
// keys at all or come twice.
func (d *Decoder) eachKey(n Node, f func(k *yaml.Node, key string, value Node)) {
	first := make(map[string]*yaml.Node, len(n.yaml.Content)/2)
	for i := 0; i+1 < len(n.yaml.Content); i += 2 {
		k, v := n.yaml.Content[i], n.yaml.Content[i+1]
		name := resolve(k)
		if name.Kind != yaml.ScalarNode || name.ShortTag() == nullTag {
			d.reportKey(k, n.Path, "a key must be a string, not %s", describe(name))
			continue
		}
		path := Key(n.Path, name.Value)
		if name.ShortTag() == mergeTag {
			d.reportKey(k, n.Path, "merge keys (<<) are not supported; repeat the keys or use an alias for a whole value")
			continue
		}
		if before := first[name.Value]; before != nil {
			d.reportKey(k, path, "the key is given twice; the first is on line %d", before.Line)
			continue
		}
		first[name.Value] = k
		f(k, name.Value, Node{Path: path, yaml: resolve(v), at: valueOrKey(k, v)})
	}
}

// unknownKey reports a key of the mapping n.
func (d *Decoder) unknownKey(k *yaml.Node, n Node, key string, known []string, others Others) {
	p := Problem{Line: k.Line, Column: k.Column, Path: Key(n.Path, key)}
	near := nearest.Of(key, slices.Concat(known, others.Names))
	switch {
	case near != "":
		p.Msg = fmt.Sprintf("unknown key; did you mean %q?", near)
		if !n.Has(near) {
			p.Meant = Key(n.Path, near)
		}
	case len(known)+len(others.Names) == 0:
		p.Msg = "unknown key; this block has none"
	default:
		p.Msg = "unknown key; known here are " + strings.Join(slices.Sorted(slices.Values(known)), ", ")
		if len(others.Names) > 0 {
			p.Msg += ", and as " + others.As + " one of " + strings.Join(others.Names, ", ")
		}
	}
	d.add(p)
}

type fields struct {
	names []string
	index map[string][]int // key → field index for reflect.Value.FieldByIndex
}

// fieldsOf lists the exported fields of a struct type that carry a json tag with
// a name; those of embedded structs without one count as the struct's own.
func fieldsOf(t reflect.Type) fields {
	f := fields{index: map[string][]int{}}
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || name == "" || name == "-" {
			continue
		}
		if _, ok := f.index[name]; !ok {
			f.index[name] = field.Index
			f.names = append(f.names, name)
		}
	}
	return f
}

// mismatch reports a value of a wrong type.
func (d *Decoder) mismatch(n Node, want string) {
	got := describe(n.yaml)
	if want == "a string" && n.yaml.Kind == yaml.ScalarNode {
		d.Report(n, "must be a string, not %s; put quotes around it: %s", got, strconv.Quote(Shorten(n.yaml.Value)))
		return
	}
	d.Report(n, "must be %s, not %s", want, got)
}

func (d *Decoder) duration(n Node, v reflect.Value) {
	text, ok := n.Scalar()
	if !ok {
		d.mismatch(n, "a duration such as 500ms, 24h or 7d")
		return
	}
	value, err := days.ParseDuration(text)
	if err != nil {
		d.Report(n, "%q is not a duration; write it like 500ms, 30s, 24h or 7d", Shorten(text))
		return
	}
	v.SetInt(int64(value))
}

func (d *Decoder) scalar(n Node, v reflect.Value) {
	tag := n.yaml.ShortTag()
	if n.yaml.Kind != yaml.ScalarNode {
		tag = ""
	}
	switch v.Kind() {
	case reflect.String:
		if tag != stringTag {
			d.mismatch(n, "a string")
			return
		}
		v.SetString(n.yaml.Value)
	case reflect.Bool:
		var b bool
		if tag != boolTag || n.yaml.Decode(&b) != nil {
			d.mismatch(n, "true or false")
			return
		}
		v.SetBool(b)
	case reflect.Float32, reflect.Float64:
		var f float64
		if tag != intTag && tag != floatTag || n.yaml.Decode(&f) != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			d.mismatch(n, "a number")
			return
		}
		if v.OverflowFloat(f) {
			d.Report(n, "the number is out of range")
			return
		}
		v.SetFloat(f)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		d.integer(n, tag, func() bool {
			var i int64
			if n.yaml.Decode(&i) != nil || v.OverflowInt(i) {
				return false
			}
			v.SetInt(i)
			return true
		})
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		d.integer(n, tag, func() bool {
			var u uint64
			if n.yaml.Decode(&u) != nil || v.OverflowUint(u) {
				return false
			}
			v.SetUint(u)
			return true
		})
	default:
		panic("strict: cannot decode into " + v.Type().String())
	}
}

func (d *Decoder) integer(n Node, tag string, set func() bool) {
	if tag != intTag {
		d.mismatch(n, "a whole number")
		return
	}
	if !set() {
		d.Report(n, "the number is out of range")
	}
}
