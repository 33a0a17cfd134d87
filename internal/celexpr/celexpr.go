// Package celexpr compiles the CEL expressions of a configuration: filters of routes and
// bodies of sinks.
//
// Guarantees:
//
//   - Every fault has a line and a column in the expression.
//   - An expression is bounded in length and depth, an evaluation in cost and memory, a
//     call of matches() in the work of its pattern.
//
// Which functions and variables there are is decided by the importing packages.
package celexpr

import (
	"errors"
	"fmt"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"github.com/watcherd/watcherd/internal/celjson"
)

// Bounds of an expression at load.
const (
	MaxExpression = 16 << 10 // characters
	maxDepth      = 100
	maxRegex      = 5_000 // instructions of a compiled regular expression
)

// Bounds returns the limits of an environment's expressions.
func Bounds() []cel.EnvOption {
	return []cel.EnvOption{
		cel.ParserExpressionSizeLimit(MaxExpression),
		cel.ExpressionNestingDepthLimit(maxDepth),
		cel.RegexProgramSizeLimit(maxRegex),
		cel.DefaultUTCTimeZone(true),
	}
}

// Fault is one fault of an expression.
type Fault struct {
	Line, Column int // from 1; columns in characters
	Msg          string
}

func (f Fault) Error() string { return fmt.Sprintf("line %d, column %d: %s", f.Line, f.Column, f.Msg) }

// Compile parses and checks an expression, or returns all its faults.
func Compile(env *cel.Env, text string) (*cel.Ast, []Fault) {
	ast, issues := env.Compile(text)
	if issues.Err() == nil {
		return ast, nil
	}
	var faults []Fault
	for _, e := range issues.Errors() {
		faults = append(faults, Fault{
			Line:   max(e.Location.Line(), 1),
			Column: max(e.Location.Column()+1, 1),
			// watcherd does not use CEL's containers.
			Msg: strings.ReplaceAll(e.Message, " (in container '')", ""),
		})
	}
	return nil, faults
}

// FaultAt is a fault of the part of an expression that has the id.
func FaultAt(a *cel.Ast, id int64, msg string) Fault {
	at := a.NativeRep().SourceInfo().GetStartLocation(id)
	return Fault{Line: max(at.Line(), 1), Column: max(at.Column()+1, 1), Msg: msg}
}

// Limits bound one evaluation.
type Limits struct {
	Cost   uint64 // in units of about 100 ns
	Memory uint32 // bytes of one value
}

// measureEvery is the number of loop iterations between two measurements of the
// accumulated value.
const measureEvery = 64

// MemoryOptions bounds the size of every value that an expression creates.
func (l Limits) MemoryOptions() []cel.ProgramOption {
	elements := l.Memory / celjson.SizeUnit
	return []cel.ProgramOption{cel.MemoryLimit(elements), cel.MemoryTracking(
		types.MemoryTrackerSampleInterval(measureEvery),
		types.MemoryTrackerSizeCalculator(types.NewSizeCalculator(
			types.SizeCalculatorStringUnitLength(celjson.SizeUnit),
			types.SizeCalculatorMaxDepth(maxDepth),
			types.SizeCalculatorMaxTraversal(int(elements)),
		)),
	)}
}

// MaxError bounds the text of an error, which can quote any value of an object.
const MaxError = 256

// Shorten bounds the text of an evaluation's error.
func Shorten(err error) error {
	msg := err.Error()
	if len(msg) <= MaxError {
		return err
	}
	return errors.New(strings.ToValidUTF8(msg[:MaxError], "") + "...")
}
