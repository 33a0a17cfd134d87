package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
)

const (
	maxBody   = 64 << 10 // bytes of an answer that are read
	maxReason = 1 << 10  // characters of the reason why there is no answer
)

// answer reads and closes the response to a request, and returns what it means. What is
// hidden is never part of an error.
func (s *sink) answer(resp *http.Response, a *attempt) error {
	status := resp.StatusCode
	renew := s.tokens != nil && s.tokens.judge(a.token, status)
	if s.results && status/100 == 2 {
		return s.readResults(resp, a)
	}
	// Reading to the end lets the connection be used again.
	rest := io.LimitReader(resp.Body, maxBody)
	if status/100 == 2 && s.accept == nil {
		// A body that fails or is longer takes nothing back of the status.
		_, _ = io.Copy(io.Discard, rest)
		_ = resp.Body.Close()
		return nil
	}
	if status == http.StatusSwitchingProtocols {
		rest = http.NoBody // its body is the connection, which no timeout ends
	}
	body, readErr := io.ReadAll(rest)
	closeErr := resp.Body.Close()
	mask := post.NewMask(a.hidden)
	err := fmt.Errorf("post to %s: status %d%s", a.to.url.Host, status, excerpt(mask.HideCut(string(body))))
	broken := readErr != nil || closeErr != nil
	if broken {
		err = fmt.Errorf("%w (the answer broke off)", err)
	}
	if s.accept != nil {
		verdict, failure := s.accept.status(resp, body, broken)
		switch {
		case failure != nil:
			return fmt.Errorf("%w; %s", err, post.Clean(mask.Hide(failure.Error()), post.MaxExcerpt))
		case verdict == sinks.StatusAccepted:
			return nil
		case verdict != "":
			return refusal(resp, verdict, fmt.Errorf("%w (accept: %s)", err, verdict))
		}
	}
	if renew {
		return err // with another token it may work
	}
	class := classOf(status)
	if status == http.StatusNotFound {
		class = s.missing.class(time.Now())
	}
	switch class {
	case sinks.ClassPoison:
		if status == http.StatusRequestEntityTooLarge {
			return sinks.TooLarge(err)
		}
		return sinks.Poison(err)
	case sinks.ClassPause:
		if host, ok := redirectedTo(resp); ok {
			err = fmt.Errorf("post to %s: status %d: redirected to host %s; redirects are not followed, set url to the new address",
				a.to.url.Host, status, post.Clean(mask.Hide(host), post.MaxExcerpt))
		}
		return sinks.Pause(err)
	default:
		return refusal(resp, sinks.StatusRetry, err)
	}
}

// refusal is the error of an answer that does not accept the events.
func refusal(resp *http.Response, verdict sinks.Status, err error) error {
	switch verdict {
	case sinks.StatusPoison:
		return sinks.Poison(err)
	case sinks.StatusPause:
		return sinks.Pause(err)
	}
	if d := post.RetryAfter(resp.Header.Get("Retry-After"), time.Now()); d > 0 {
		return sinks.RetryAfter(err, d)
	}
	return err
}

// readResults reads the results document of a 2xx answer. One that is not understood
// proves nothing: the events come again.
func (s *sink) readResults(resp *http.Response, a *attempt) error {
	limit := int64(sinks.ResultsLimit(a.events)) + 1
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	err = errors.Join(err, resp.Body.Close())
	mask := post.NewMask(a.hidden)
	var results []sinks.Result
	if err == nil {
		results, err = mask.Results(body, a.events)
	}
	if err != nil {
		return fmt.Errorf("post to %s: status %d without a results document (results: true): %s",
			a.to.url.Host, resp.StatusCode, post.Clean(mask.Hide(err.Error()), maxReason))
	}
	return sinks.ResultsError(results)
}

// classOf is what a status other than 2xx means.
func classOf(status int) sinks.Class {
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return sinks.ClassPoison
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return sinks.ClassRetry
	}
	if status >= 500 {
		return sinks.ClassRetry
	}
	// Everything else is the fault of neither the event nor the moment: an operator
	// has to change the sink or the endpoint.
	return sinks.ClassPause
}

// redirectedTo returns the host that a redirect leads to; the rest of the address
// may hold a secret.
func redirectedTo(resp *http.Response) (host string, ok bool) {
	if resp.StatusCode/100 != 3 {
		return "", false
	}
	u, err := resp.Location()
	if err != nil || u.Host == "" {
		return "", false
	}
	return u.Host, true
}

// excerpt is the beginning of an answer, on one line. The mask comes before the cut, so
// that no half of a secret is left.
func excerpt(masked string) string {
	if text := post.Clean(masked, post.MaxExcerpt); text != "" {
		return ": " + text
	}
	return ""
}

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
			program, err := env.Program(ast, acceptLimits.Options(ast)...)
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
// status is 2xx, and what the status means elsewhere. Where the expression needs the body of a broken answer, it fails:
// half of it may look like another answer.
func (a *acceptance) status(resp *http.Response, body []byte, broken bool) (sinks.Status, error) {
	headers := make(map[string]string, len(resp.Header))
	for name, values := range resp.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	known := map[string]any{"status": resp.StatusCode, "headers": headers}
	if !broken {
		var value any
		if json.Unmarshal(body, &value) != nil {
			value = string(body)
		}
		known["body"] = value
	}
	v, err := celexpr.Eval(a.program, known)
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
