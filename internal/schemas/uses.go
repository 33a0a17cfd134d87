package schemas

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/ext"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Use is a field that a configuration names.
type Use struct {
	At           string // key path
	Line, Column int    // of the field in the expression there; 0 where it is no expression
	Name         string // the field, for people
	Field        []Step
	Scopes       []Scope // what it is about
}

// Scope is the objects of some watches.
type Scope struct {
	Watches   []string          // nil: all
	Resources []config.Resource // of those; nil: all
}

// Uses are the fields that a valid configuration names.
func Uses(c *config.Config) ([]Use, error) {
	env, err := cel.NewEnv(cel.OptionalTypes(), ext.Strings(), ext.Lists(), ext.Math(), ext.Encoders(), ext.Regex(), ext.Bindings(), ext.TwoVarComprehensions())
	if err != nil {
		return nil, fmt.Errorf("CEL environment: %w", err)
	}
	u := &uses{env: env}
	for i := range c.Watches {
		w, at := &c.Watches[i], fmt.Sprintf("watches[%d]", i)
		scopes := []Scope{{Watches: []string{w.Name}}}
		u.paths(at+".drop", w.Drop, scopes)
		u.paths(at+".redact", w.Redact, scopes)
		if fields, err := selector.ParseFields(w.FieldSelector); err == nil {
			for _, r := range fields.Requirements() {
				u.path(at+".fieldSelector", r.Field, scopes)
			}
		}
	}
	bySink := map[string][]Scope{}
	for i := range c.Routes {
		r, at := &c.Routes[i], fmt.Sprintf("routes[%d]", i)
		scope := Scope{Watches: r.Watches, Resources: r.Resources}
		if !slices.Equal(r.Changed, config.Changed{config.ChangedMeaningful}) {
			u.paths(at+".changed", r.Changed, []Scope{scope})
		}
		u.paths(at+".drop", r.Drop, []Scope{scope})
		u.paths(at+".redact", r.Redact, []Scope{scope})
		u.expression(at+".when", r.When, []Scope{scope})
		if r.Metric != nil {
			for _, label := range slices.Sorted(maps.Keys(r.Metric.Labels)) {
				u.expression(at+".metric.labels."+label, r.Metric.Labels[label], []Scope{scope})
			}
		}
		for _, sink := range r.Sinks {
			bySink[sink] = append(bySink[sink], scope)
		}
	}
	for i := range c.Sinks {
		scopes := bySink[c.Sinks[i].Name]
		if len(c.Routes) == 0 {
			scopes = []Scope{{}}
		}
		u.expression(fmt.Sprintf("sinks[%d].body", i), c.Sinks[i].Body, scopes)
	}
	return u.list, nil
}

type uses struct {
	env  *cel.Env
	list []Use
}

func (u *uses) paths(at string, paths []string, scopes []Scope) {
	for i, p := range paths {
		u.path(fmt.Sprintf("%s[%d]", at, i), p, scopes)
	}
}

func (u *uses) path(at, path string, scopes []Scope) {
	if p, err := rawjson.ParsePath(path); err == nil {
		u.list = append(u.list, Use{At: at, Name: path, Field: StepsOf(p), Scopes: scopes})
	}
}

// expression finds what is selected of object and oldObject.
func (u *uses) expression(at, text string, scopes []Scope) {
	if text == "" {
		return
	}
	parsed, issues := u.env.Parse(text)
	if issues.Err() != nil {
		return // what is valid uses a function or macro of its own
	}
	info := parsed.NativeRep().SourceInfo()
	w := &walk{emit: func(e ast.Expr, field []Step) {
		place := info.GetStartLocation(e.ID())
		u.list = append(u.list, Use{
			At: at, Line: max(place.Line(), 1), Column: max(place.Column()+1, 1), Name: nameOf(field), Field: field, Scopes: scopes,
		})
	}}
	w.expr(parsed.NativeRep().Expr(), scope{"object": {}, "oldObject": {}, "events": {{Key: events, IsKey: true}}})
}

// nameOf spells a field as paths do.
func nameOf(field []Step) string {
	var b strings.Builder
	for i, s := range field {
		switch {
		case !s.IsKey:
			b.WriteString("[*]")
		case strings.ContainsAny(s.Key, `./[]"* `):
			fmt.Fprintf(&b, "[%q]", s.Key)
		case i > 0:
			b.WriteString("." + s.Key)
		default:
			b.WriteString(s.Key)
		}
	}
	return b.String()
}

// events is the step to the list of events that a body may read, which is no object.
const events = "\x00events"

// scope is where the variables of an expression lead in an object.
type scope map[string][]Step

type walk struct {
	emit func(e ast.Expr, field []Step)
}

// expr emits the longest fields in an expression.
func (w *walk) expr(e ast.Expr, in scope) {
	if field, ok := w.field(e, in); ok && len(field) > 0 && field[0].Key != events {
		w.emit(e, field)
		return
	}
	switch e.Kind() {
	case ast.SelectKind:
		w.expr(e.AsSelect().Operand(), in)
	case ast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() {
			w.expr(call.Target(), in)
		}
		for _, arg := range call.Args() {
			w.expr(arg, in)
		}
	case ast.ListKind:
		for _, item := range e.AsList().Elements() {
			w.expr(item, in)
		}
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			w.expr(entry.AsMapEntry().Key(), in)
			w.expr(entry.AsMapEntry().Value(), in)
		}
	case ast.ComprehensionKind:
		w.comprehension(e.AsComprehension(), in)
	}
}

// comprehension follows the variables of a macro: those of a loop are items, that of
// cel.bind() is the value itself.
func (w *walk) comprehension(c ast.ComprehensionExpr, in scope) {
	w.expr(c.IterRange(), in)
	w.expr(c.AccuInit(), in)
	inner := maps.Clone(in)
	item := c.IterVar()
	if c.HasIterVar2() {
		delete(inner, item)
		item = c.IterVar2()
	}
	delete(inner, item)
	if field, ok := w.field(c.IterRange(), in); ok {
		inner[item] = append(slices.Clone(field), Step{})
	}
	delete(inner, c.AccuVar())
	if field, ok := w.field(c.AccuInit(), in); ok { // cel.bind()
		inner[c.AccuVar()] = field
		w.expr(c.Result(), inner)
		return
	}
	for _, part := range []ast.Expr{c.LoopCondition(), c.LoopStep(), c.Result()} {
		w.expr(part, inner)
	}
}

// field is the field that an expression selects, if that can be known.
func (w *walk) field(e ast.Expr, in scope) ([]Step, bool) {
	switch e.Kind() {
	case ast.IdentKind:
		field, ok := in[e.AsIdent()]
		return field, ok
	case ast.SelectKind:
		return w.below(e.AsSelect().Operand(), Step{Key: e.AsSelect().FieldName(), IsKey: true}, in)
	case ast.CallKind:
		call := e.AsCall()
		switch call.FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
			step := Step{}
			if key := call.Args()[1]; key.Kind() == ast.LiteralKind {
				step.Key, step.IsKey = key.AsLiteral().Value().(string)
			}
			return w.below(call.Args()[0], step, in)
		case "orValue", "value":
			if call.IsMemberFunction() {
				return w.field(call.Target(), in)
			}
		}
	}
	return nil, false
}

func (w *walk) below(operand ast.Expr, step Step, in scope) ([]Step, bool) {
	field, ok := w.field(operand, in)
	if !ok {
		return nil, false
	}
	if len(field) == 2 && field[0].Key == events { // of an event
		return []Step{}, step.Key == "object" || step.Key == "oldObject"
	}
	return append(slices.Clone(field), step), true
}
