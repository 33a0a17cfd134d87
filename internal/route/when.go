package route

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/internal/celjson"
	"github.com/watcherd/watcherd/pkg/event"
)

// defaultLimits allows about 100 ms, as Kubernetes admission does.
func defaultLimits() celexpr.Limits { return celexpr.Limits{Cost: 1_000_000, Memory: 16 << 20} }

// provenCost is the estimated worst-case cost below which metering costs more than
// it saves.
const provenCost = 100_000

// expressions compiles expressions in one environment, which is expensive to create.
type expressions struct {
	env    *cel.Env
	views  *views
	limits celexpr.Limits
	guards cel.ProgramOption
}

// ordinary is the environment of all routers. It has no state.
var ordinary = sync.OnceValues(func() (*expressions, error) { return newExpressions(defaultLimits()) })

func newExpressions(l celexpr.Limits) (*expressions, error) {
	v := newViews()
	// Versions are those whose functions denial knows: a later one may have more.
	opts := append(celjson.QuantityOptions(),
		cel.OptionalTypes(),
		ext.Strings(ext.StringsVersion(5)),
		ext.Lists(ext.ListsVersion(5)),
		ext.Math(ext.MathVersion(3)),
		ext.Encoders(ext.EncodersVersion(2)),
		ext.Regex(),
		ext.Network(),
		ext.Bindings(),
		ext.TwoVarComprehensions(),
		cel.Variable("object", cel.DynType),
		cel.Variable("oldObject", cel.DynType),
		cel.Variable("metadata", v.metadata.Type),
		cel.Variable("event", v.event.Type),
		cel.Variable("resource", v.resource.Type),
	)
	base, err := cel.NewEnv(append(opts, celexpr.Bounds()...)...)
	if err != nil {
		return nil, fmt.Errorf("route: CEL environment: %w", err)
	}
	env, err := base.Extend(cel.CustomTypeProvider(v.provider(base.CELTypeProvider())))
	if err != nil {
		return nil, fmt.Errorf("route: CEL environment: %w", err)
	}
	guards, err := celexpr.Guarded(base, map[string]func([]ref.Val) error{
		"indexOf": celexpr.CheckSearch, "lastIndexOf": celexpr.CheckSearch, "flatten": celexpr.CheckFlatten,
	})
	if err != nil {
		return nil, fmt.Errorf("route: %w", err)
	}
	return &expressions{env: env, views: v, limits: l, guards: guards}, nil
}

// condition is a compiled expression: a `when`, or a label of a metric.
type condition struct {
	program cel.Program
	inflate bool // it may read more than type and metadata
	metered bool // its cost is not bounded at load
	reads   []string

	ofChange string // a variable that it reads and that a state alone does not have; "": none
}

// isCondition returns why a type is not that of a condition, "" if it is.
func isCondition(t *cel.Type) string {
	if t.IsExactType(types.BoolType) || t.IsExactType(types.DynType) {
		return ""
	}
	return "the expression must be a bool, not " + cel.FormatCELType(t)
}

// compile compiles an expression of a type that is accepted, or returns all its faults.
func (x *expressions) compile(text string, refuse func(*cel.Type) string) (*condition, []celexpr.Fault) {
	ast, faults := celexpr.Compile(x.env, text)
	if faults != nil {
		return nil, faults
	}
	if faults := x.denied(ast); len(faults) > 0 {
		return nil, faults
	}
	if msg := refuse(ast.OutputType()); msg != "" {
		return nil, []celexpr.Fault{{Line: 1, Column: 1, Msg: msg}}
	}
	tree := ast.NativeRep()
	// A loop or a bound value can hold one list many times, which an estimate does not count. It takes time that
	// doubles with each value that is bound to a list of the one before.
	c := &condition{inflate: needsBody(tree), metered: hasComprehension(tree) || calls(tree, overloads.Matches), reads: reads(tree), ofChange: ofChange(tree)}
	if !c.metered {
		cost, err := x.env.EstimateCost(ast, sizes{})
		c.metered = err != nil || cost.Max > min(provenCost, x.limits.Cost)
	}
	opts := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize), x.guards}
	if c.metered {
		opts = append(opts, x.limits.CostOptions(ast)...)
	}
	if c.metered && buildsValues(tree) {
		opts = append(opts, x.limits.MemoryOptions()...)
	}
	program, err := x.env.Program(ast, opts...)
	if err != nil {
		return nil, []celexpr.Fault{{Line: 1, Column: 1, Msg: err.Error()}}
	}
	c.program = program
	return c, nil
}

// Condition is an expression over changes. It is safe for concurrent use.
type Condition struct {
	when    *condition
	readOld bool
	router  *Router     // for its evaluations
	head    cel.Program // with unknown values; nil: it reads nothing that a Head has
}

// CompileCondition compiles an expression as that of a route, or returns all its faults.
func CompileCondition(text string) (*Condition, []celexpr.Fault) {
	x, err := ordinary()
	if err != nil {
		return nil, []celexpr.Fault{{Line: 1, Column: 1, Msg: err.Error()}}
	}
	when, faults := x.compile(text, isCondition)
	if faults != nil {
		return nil, faults
	}
	r, err := Compile(nil)
	if err != nil {
		return nil, []celexpr.Fault{{Line: 1, Column: 1, Msg: err.Error()}}
	}
	return &Condition{when, strings.Contains(text, "oldObject"), r, x.onHeads(text)}, nil
}

// Head is what the headline of a change has.
type Head struct {
	Type            event.Type
	Resource        event.Resource
	Cluster         string
	Namespace, Name string
	Manager         string
}

// onHeads compiles an expression for [Condition.RulesOut], nil if that is of no use. Loops, patterns and
// what builds values are left out: their cost is bounded in the whole evaluation only.
func (x *expressions) onHeads(text string) cel.Program {
	checked, faults := celexpr.Compile(x.env, text)
	if faults != nil {
		return nil
	}
	tree := checked.NativeRep()
	known := len(ast.MatchDescendants(ast.NavigateAST(tree), func(e ast.NavigableExpr) bool {
		if e.Kind() != ast.IdentKind {
			return false
		}
		name := e.AsIdent()
		return name == "event" || name == "metadata" || name == "resource"
	})) > 0
	if !known || hasComprehension(tree) || calls(tree, overloads.Matches) || buildsValues(tree) {
		return nil
	}
	program, err := x.env.Program(checked, cel.EvalOptions(cel.OptOptimize, cel.OptPartialEval))
	if err != nil {
		return nil
	}
	return program
}

// headless are the attributes that a Head lacks.
var headless = sync.OnceValue(func() []*cel.AttributePatternType {
	list := []*cel.AttributePatternType{
		cel.AttributePattern("object"), cel.AttributePattern("oldObject"), cel.AttributePattern("event").QualString("time"),
	}
	for _, name := range []string{"operation", "subresource", "time"} {
		list = append(list, cel.AttributePattern("event").QualString("changedBy").QualString(name))
	}
	for name := range metadataFields() {
		if name != "name" && name != "namespace" {
			list = append(list, cel.AttributePattern("metadata").QualString(name))
		}
	}
	return list
})

// ReadsHead reports whether RulesOut may be true.
func (c *Condition) ReadsHead() bool { return c.head != nil }

// RulesOut reports whether the expression is false for every change with the head.
func (c *Condition) RulesOut(h *Head) bool {
	e := c.router.evaluations.Get().(*evaluation)
	change := Change{Type: h.Type, Resource: h.Resource, Cluster: h.Cluster}
	if h.Manager != "" {
		change.ChangedBy = &event.ChangedBy{Manager: h.Manager}
	}
	e.reset(&change, 0)
	e.head = h
	defer func() {
		e.release()
		c.router.evaluations.Put(e)
	}()
	vars, err := cel.PartialVars(e, headless()...)
	if err != nil {
		return false
	}
	v, _, err := c.head.Eval(vars)
	return err == nil && v == types.False
}

// ReadsOld reports whether the expression may read the state before.
func (c *Condition) ReadsOld() bool { return c.readOld }

// Match reports whether the expression is true. One that reads what is not there is false: missing, with the error.
func (c *Condition) Match(change *Change) (match, missing bool, err error) {
	e := c.router.evaluations.Get().(*evaluation)
	e.reset(change, 0)
	defer func() {
		e.release()
		c.router.evaluations.Put(e)
	}()
	return c.when.eval(e)
}

// errNotBool is the error of an expression whose type is not known at load.
var errNotBool = errors.New("the expression's value must be a bool")

// value evaluates the expression.
func (c *condition) value(e *evaluation) (ref.Val, error) {
	if c.metered {
		return celexpr.Eval(c.program, e)
	}
	v, _, err := c.program.Eval(e)
	return v, err
}

// eval evaluates the expression. missing reports an error that only means that the
// object lacks a key, a field or an item.
func (c *condition) eval(e *evaluation) (match, missing bool, err error) {
	v, err := c.value(e)
	if err != nil {
		return false, isMissing(err), celexpr.Shorten(err)
	}
	b, ok := v.(types.Bool)
	if !ok {
		return false, false, fmt.Errorf("%w, not %s", errNotBool, v.Type().TypeName())
	}
	return bool(b), false, nil
}

// isMissing matches the text, as CEL has no type for these errors.
func isMissing(err error) bool {
	msg := err.Error()
	return strings.HasPrefix(msg, "no such key: ") || strings.HasPrefix(msg, "index out of bounds: ")
}
