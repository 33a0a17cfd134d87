package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/watcherd/watcherd/config/internal/strict"
)

// MaxSize is the largest configuration that is read, in bytes: what a ConfigMap
// can hold.
const MaxSize = 1 << 20

// Kinds maps the name of a kind of sink, which is its key in the file, to a
// constructor of its settings: a pointer to a struct with json tags that holds
// the kind's defaults. If it has a method Validate() error, that is called; the
// errors joined in its result may have a method Field() (path, msg string) that
// names the key of the block. If it has a method Starts() string, that is the key of the
// program that its sinks start, "" for none, which a [Policy] refuses.
type Kinds = map[string]func() any

// Load reads the file at path. An error is an *[Errors] unless the file cannot be
// read.
func Load(path string, kinds Kinds) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, unreadable(path, err)
	}
	return Parse(path, data, kinds)
}

func unreadable(path string, err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	return fmt.Errorf("cannot read %s: %w", path, err)
}

// Parse reads data, the content of the file called name. An error is an *[Errors], whose
// Partial is the Config with it.
func Parse(name string, data []byte, kinds Kinds) (*Config, error) {
	if len(data) > MaxSize {
		return nil, NewErrors(&Error{File: name, Line: 1, Column: 1, Msg: fmt.Sprintf("the file is larger than %d bytes", MaxSize)})
	}
	doc, problem := strict.Parse(data)
	if problem != nil {
		return nil, NewErrors(located(name, *problem))
	}
	c := Default()
	c.APIVersion, c.Kind = "", ""
	c.source = source{file: name, doc: doc, kinds: slices.Sorted(maps.Keys(kinds))}

	l := loader{config: &c, kinds: kinds, decoder: strict.NewDecoder(doc), misnamed: map[string]bool{}}
	l.decode()
	var list []*Error
	lost := map[string]bool{}
	for _, p := range l.decoder.Problems() {
		list = append(list, located(name, p))
		if p.Lost {
			lost[p.Path] = true
		}
		if p.Meant != "" {
			lost[p.Meant] = true
		}
	}
	c.source.lost = lost
	for _, e := range c.problems() {
		// A missing value is not reported when it could not be decoded, nor is
		// the kind when its key is misspelt.
		if !within(e.Path, lost) && !l.misnamed[e.Path] {
			list = append(list, e)
		}
	}
	if len(list) == 0 {
		return &c, nil
	}
	err := NewErrors(list...)
	if found, ok := errors.AsType[*Errors](err); ok {
		found.partial = &c
	}
	return nil, err
}

// within reports whether path or one around it is in the set.
func within(path string, set map[string]bool) bool {
	for path != "" && !set[path] {
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return set[path]
}

func located(file string, p strict.Problem) *Error {
	return &Error{File: file, Line: p.Line, Column: p.Column, Path: maskedPath(p.Path), Msg: p.Msg}
}

// loader decodes one document into a Config.
type loader struct {
	config  *Config
	kinds   Kinds
	decoder *strict.Decoder

	misnamed map[string]bool // paths of sinks whose kind probably is an unknown key
}

func (l *loader) decode() {
	d := l.decoder
	d.ExplainText(explainText)
	strict.Handle(d, func(n strict.Node, into *resource.Quantity) { decodeQuantity(d, n, into) })
	strict.Handle(d, func(n strict.Node, into *Resource) { decodeResource(d, n, into) })
	strict.Handle(d, func(n strict.Node, into *Changed) { decodeChanged(d, n, into) })
	strict.Handle(d, func(n strict.Node, into *Watch) {
		into.Raw = n.JSON()
		d.Mapping(n, into, strict.Others{})
	})
	strict.Handle(d, l.store)
	strict.Handle(d, l.sink)
	d.Decode(l.config)
}

func (l *loader) store(n strict.Node, into *Store) {
	l.decoder.Mapping(n, into, strict.Others{})
	if !n.Has("retention", "maxBytes") {
		into.fitRetention()
	}
	if !n.Has("deadLetters", "maxBytes") {
		into.fitDeadLetters()
	}
}

// sink decodes the common keys, and the block of the kind into what the kind's
// constructor makes.
func (l *loader) sink(n strict.Node, into *Sink) {
	into.Raw = n.JSON()
	unknown := l.decoder.Mapping(n, into, strict.Others{
		Names: l.config.source.kinds,
		As:    "the sink's kind",
		Take: func(kind string, block strict.Node) {
			if into.Kind != "" {
				l.decoder.Report(block, "the sink is of kind %s already; make it two sinks", into.Kind)
				return
			}
			into.Kind = kind
			into.Settings = l.settings(kind, block)
		},
	})
	l.misnamed[n.Path] = len(unknown) > 0
}

func (l *loader) settings(kind string, block strict.Node) any {
	made := l.kinds[kind]()
	p := reflect.ValueOf(made)
	if p.Kind() != reflect.Pointer {
		p = reflect.New(p.Type())
		p.Elem().Set(reflect.ValueOf(made))
		l.decoder.Value(block, p.Interface())
		return p.Elem().Interface()
	}
	l.decoder.Value(block, made)
	return made
}

// explainText describes what to write instead of a plain value for a secret, which is
// a type that fetches its value itself.
func explainText(t reflect.Type) string {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[interface{ Value() (string, error) }]()) {
		return "a secret is never written into this file; name where it is kept: {env: NAME} or {file: PATH}"
	}
	return ""
}

var quantity = regexp.MustCompile(`^[0-9]{1,15}(\.[0-9]{1,9})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$`)

func decodeQuantity(d *strict.Decoder, n strict.Node, into *resource.Quantity) {
	const want = "write bytes like 512Mi, 10Gi or 1048576"
	text, ok := n.Scalar()
	if !ok {
		d.Report(n, "must be a quantity; %s", want)
		return
	}
	if !quantity.MatchString(text) {
		d.Report(n, "%q is not a quantity; %s", strict.Shorten(text), want)
		return
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.CmpInt64(1<<60) > 0 {
		d.Report(n, "%q is out of range; %s", text, want)
		return
	}
	*into = q
}

// fieldOf takes a problem of a kind's block apart.
func fieldOf(err error) (path, msg string) {
	type fieldError interface {
		error
		Field() (path, msg string)
	}
	if f, ok := errors.AsType[fieldError](err); ok {
		return f.Field()
	}
	return "", err.Error()
}
