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

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// acceptance is the compiled `accept` expression. It is safe for concurrent use.
type acceptance struct {
	ast     *cel.Ast
	program cel.Program
}

// acceptLimits allow about 10 ms, over an answer of at most maxBody bytes.
var acceptLimits = celexpr.Limits{Cost: 100_000, Memory: 4 << 20}

var acceptEnv = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(append(celexpr.Bounds(),
		cel.OptionalTypes(),
		cel.Variable("status", cel.IntType),
		cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("body", cel.DynType),
	)...)
})

// compileAccept compiles the expression. The error joins a *sinks.FieldError for every
// fault.
func compileAccept(text string) (*acceptance, error) {
	env, err := acceptEnv()
	if err != nil {
		return nil, fmt.Errorf("CEL environment: %w", err)
	}
	ast, faults := celexpr.Compile(env, text)
	if faults == nil {
		switch out := ast.OutputType(); {
		case out.IsExactType(types.BoolType), out.IsExactType(types.StringType), out.IsExactType(types.DynType):
			program, err := env.Program(ast, acceptLimits.Options()...)
			if err == nil {
				return &acceptance{ast: ast, program: program}, nil
			}
			faults = []celexpr.Fault{{Line: 1, Column: 1, Msg: err.Error()}}
		default:
			faults = []celexpr.Fault{{Line: 1, Column: 1, Msg: "the value must be a bool, or accepted, retry, poison or pause, not " + cel.FormatCELType(out)}}
		}
	}
	var errs []error
	for _, f := range faults {
		errs = append(errs, &sinks.FieldError{Path: "accept", Msg: f.Msg, Line: f.Line, Column: f.Column})
	}
	return nil, errors.Join(errs...)
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
		return "", fmt.Errorf("accept: %w", celexpr.Failure(a.ast, err))
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
