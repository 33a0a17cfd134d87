package route

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"

	"github.com/watcherd/watcherd/internal/celjson"
)

// limits bound one evaluation.
type limits struct {
	cost   uint64 // in units of about 100 ns
	memory uint32 // bytes of one value
}

// defaultLimits allows about 100 ms, as Kubernetes admission does.
func defaultLimits() limits { return limits{cost: 1_000_000, memory: 16 << 20} }

const (

	// measureEvery is the number of loop iterations between two measurements of the
	// accumulated value.
	measureEvery = 64

	// provenCost is the estimated worst-case cost below which metering costs more than
	// it saves.
	provenCost = 100_000
)

// Limits of an expression at load.
const (
	maxExpression = 16 << 10 // characters
	maxDepth      = 100
	maxRegex      = 5_000 // instructions of a compiled regular expression
)

// expressions compiles expressions in one environment, which is expensive to create.
type expressions struct {
	env    *cel.Env
	views  *views
	limits limits
}

// ordinary is the environment of all routers. It has no state.
var ordinary = sync.OnceValues(func() (*expressions, error) { return newExpressions(defaultLimits()) })

func newExpressions(l limits) (*expressions, error) {
	v := newViews()
	opts := append(celjson.QuantityOptions(),
		cel.OptionalTypes(),
		ext.Strings(),
		ext.Lists(),
		ext.Math(),
		ext.Encoders(),
		ext.Regex(),
		ext.Network(),
		ext.Bindings(),
		ext.TwoVarComprehensions(),
		cel.ParserExpressionSizeLimit(maxExpression),
		cel.ExpressionNestingDepthLimit(maxDepth),
		cel.RegexProgramSizeLimit(maxRegex),
		cel.DefaultUTCTimeZone(true),
		cel.Variable("object", cel.DynType),
		cel.Variable("oldObject", cel.DynType),
		cel.Variable("metadata", v.metadata.celType),
		cel.Variable("event", v.event.celType),
		cel.Variable("resource", v.resource.celType),
	)
	base, err := cel.NewEnv(opts...)
	if err != nil {
		return nil, fmt.Errorf("route: CEL environment: %w", err)
	}
	env, err := base.Extend(cel.CustomTypeProvider(&viewProvider{base.CELTypeProvider(), v.byName()}))
	if err != nil {
		return nil, fmt.Errorf("route: CEL environment: %w", err)
	}
	return &expressions{env: env, views: v, limits: l}, nil
}

// condition is a compiled `when`.
type condition struct {
	program cel.Program
	inflate bool // it may read more than type and metadata
	metered bool // its cost is not bounded at load
	reads   []string
}

// expressionError is one fault of an expression.
type expressionError struct {
	line, column int // from 1
	msg          string
}

// compile compiles an expression or returns all its faults.
func (x *expressions) compile(text string) (*condition, []expressionError) {
	ast, issues := x.env.Compile(text)
	if issues.Err() != nil {
		var faults []expressionError
		for _, e := range issues.Errors() {
			faults = append(faults, expressionError{
				line:   max(e.Location.Line(), 1),
				column: max(e.Location.Column()+1, 1),
				msg:    withoutContainer(e.Message),
			})
		}
		return nil, faults
	}
	if faults := x.denied(ast); len(faults) > 0 {
		return nil, faults
	}
	if out := ast.OutputType(); !out.IsExactType(types.BoolType) && !out.IsExactType(types.DynType) {
		return nil, []expressionError{{1, 1, "the expression must be a bool, not " + cel.FormatCELType(out)}}
	}
	c := &condition{inflate: needsBody(ast.NativeRep()), metered: true, reads: reads(ast.NativeRep())}
	if cost, err := x.env.EstimateCost(ast, sizes{}); err == nil && cost.Max <= min(provenCost, x.limits.cost) {
		// A loop or a bound value can hold one list many times, which the estimate does
		// not count.
		c.metered = hasComprehension(ast.NativeRep())
	}
	opts := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize)}
	if calls(ast.NativeRep(), overloads.Matches) {
		c.metered = true
		opts = append(opts, regexes{}.options()...)
	}
	if c.metered {
		opts = append(opts, cel.CostLimit(x.limits.cost))
	}
	if c.metered && buildsValues(ast.NativeRep()) {
		opts = append(opts, x.limits.memoryOptions()...)
	}
	program, err := x.env.Program(ast, opts...)
	if err != nil {
		return nil, []expressionError{{1, 1, err.Error()}}
	}
	c.program = program
	return c, nil
}

// memoryOptions bounds the size of every value that an expression creates.
func (l limits) memoryOptions() []cel.ProgramOption {
	elements := l.memory / celjson.SizeUnit
	return []cel.ProgramOption{cel.MemoryLimit(elements), cel.MemoryTracking(
		types.MemoryTrackerSampleInterval(measureEvery),
		types.MemoryTrackerSizeCalculator(types.NewSizeCalculator(
			types.SizeCalculatorStringUnitLength(celjson.SizeUnit),
			types.SizeCalculatorMaxDepth(maxDepth),
			types.SizeCalculatorMaxTraversal(int(elements)),
		)),
	)}
}

// withoutContainer removes a remark on CEL containers, which watcherd does not use.
func withoutContainer(msg string) string {
	return strings.ReplaceAll(msg, " (in container '')", "")
}

// errNotBool is the error of an expression whose type is not known at load.
var errNotBool = errors.New("the expression's value must be a bool")

// noSuchKey is the prefix of errors of a missing key or field.
const noSuchKey = "no such key: "

// eval evaluates the expression. missing reports an error that only means that the
// object lacks a key, a field or an item.
func (c *condition) eval(e *evaluation) (match, missing bool, err error) {
	v, _, err := c.program.Eval(e)
	if err != nil {
		return false, isMissing(err), shortened(err)
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
	return strings.HasPrefix(msg, noSuchKey) || strings.HasPrefix(msg, "index out of bounds: ")
}

// maxError bounds the text of an error, which can quote any value of an object.
const maxError = 256

func shortened(err error) error {
	msg := err.Error()
	if len(msg) <= maxError {
		return err
	}
	return errors.New(strings.ToValidUTF8(msg[:maxError], "") + "...")
}
