package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// acceptance is the compiled `accept` expression. It is safe for concurrent use.
type acceptance struct {
	ast     *cel.Ast
	program cel.Program
}

// Bounds of the expression and of its evaluation: about 10 ms, over an answer of at most
// maxBody bytes.
const (
	maxAccept      = 4 << 10 // characters
	maxAcceptDepth = 50
	maxAcceptRegex = 500 // instructions
	maxAcceptCost  = 100_000
)

var acceptEnv = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.OptionalTypes(),
		cel.ParserExpressionSizeLimit(maxAccept),
		cel.ExpressionNestingDepthLimit(maxAcceptDepth),
		cel.RegexProgramSizeLimit(maxAcceptRegex),
		cel.Variable("status", cel.IntType),
		cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("body", cel.DynType),
	)
})

// compileAccept compiles the expression. The error joins a *sinks.FieldError for every
// fault.
func compileAccept(text string) (*acceptance, error) {
	fault := func(line, column int, msg string) error {
		return &sinks.FieldError{Path: "accept", Msg: msg, Line: max(line, 1), Column: max(column, 1)}
	}
	env, err := acceptEnv()
	if err != nil {
		return nil, fmt.Errorf("CEL environment: %w", err)
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		var errs []error
		for _, e := range issues.Errors() {
			errs = append(errs, fault(e.Location.Line(), e.Location.Column()+1, strings.ReplaceAll(e.Message, " (in container '')", "")))
		}
		return nil, errors.Join(errs...)
	}
	switch out := ast.OutputType(); {
	case out.IsExactType(types.BoolType), out.IsExactType(types.StringType), out.IsExactType(types.DynType):
	default:
		return nil, fault(1, 1, "the value must be a bool, or accepted, retry, poison or pause, not "+cel.FormatCELType(out))
	}
	program, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxAcceptCost))
	if err != nil {
		return nil, fault(1, 1, err.Error())
	}
	return &acceptance{ast: ast, program: program}, nil
}

// status is what the expression makes of an answer. False is the event's fault where the
// status is 2xx, and what the status means elsewhere.
func (a *acceptance) status(resp *http.Response, body []byte) (sinks.Status, error) {
	headers := make(map[string]string, len(resp.Header))
	for name, values := range resp.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	var value any
	if json.Unmarshal(body, &value) != nil {
		value = string(body)
	}
	v, _, err := a.program.Eval(map[string]any{"status": resp.StatusCode, "headers": headers, "body": value})
	if err != nil {
		return "", a.failure(err)
	}
	if accepted, ok := v.(types.Bool); ok {
		switch {
		case bool(accepted):
			return sinks.StatusAccepted, nil
		case resp.StatusCode/100 == 2:
			return sinks.StatusPoison, nil
		default:
			return "", nil
		}
	}
	text, _ := v.(types.String)
	switch s := sinks.Status(text); s {
	case sinks.StatusAccepted, sinks.StatusRetry, sinks.StatusPoison, sinks.StatusPause:
		return s, nil
	}
	return "", errors.New("accept: the value is neither a bool nor accepted, retry, poison or pause")
}

// failure places the error of an evaluation, which may quote the answer, in the expression.
func (a *acceptance) failure(err error) error {
	if at, ok := errors.AsType[*types.Err](err); ok && at.NodeID() != 0 {
		place := a.ast.NativeRep().SourceInfo().GetStartLocation(at.NodeID())
		return fmt.Errorf("accept: line %d, column %d: %w", max(place.Line(), 1), place.Column()+1, err)
	}
	return fmt.Errorf("accept: %w", err)
}
