package celexpr

import (
	"fmt"
	"regexp"
	"regexp/syntax"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// A pattern takes at most about 20 ns for each of its instructions and each byte of the
// text (RE2's bound, as Go's regexp has it). CEL charges for the length of the pattern
// instead, and after the call: "(?:a?){500}a{500}$" on 1 MB took 37 s.
const (
	maxRegexWork     = 10 << 20 // instructions times bytes of one call: at most about 200 ms
	regexWorkPerCost = 20       // of a unit of cost; most patterns are far below their bound
)

// regexes are the patterns of one expression: all are literals.
type regexes map[string]int // → instructions

// RegexOptions bounds and charges matches() in one program. Its patterns must be literals.
func RegexOptions() []cel.ProgramOption {
	r := regexes{}
	return []cel.ProgramOption{
		cel.CostTracking(r),
		cel.OptimizeRegex(&interpreter.RegexOptimization{
			Function: overloads.Matches, OverloadID: overloads.MatchesString, RegexIndex: 1, Factory: r.compile,
		}),
	}
}

// compile replaces a call of matches().
func (r regexes) compile(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	n, err := instructions(pattern)
	if err != nil {
		return nil, err
	}
	r[pattern] = n
	return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), func(values ...ref.Val) ref.Val {
		if len(values) != 2 {
			return types.NoSuchOverloadErr()
		}
		text, ok := values[0].(types.String)
		if !ok {
			return types.MaybeNoSuchOverloadErr(values[0])
		}
		if len(text)*n > maxRegexWork {
			return types.WrapErr(fmt.Errorf("matches(): a text of %d bytes is too long for this pattern: at most %d", len(text), maxRegexWork/n))
		}
		return types.Bool(re.MatchString(string(text)))
	}), nil
}

// instructions returns the length of the compiled pattern.
func instructions(pattern string) (int, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, err
	}
	return len(program.Inst), nil
}

// CallCost implements cost.ActualCostEstimator.
func (r regexes) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	if function != overloads.Matches || len(args) != 2 {
		return nil
	}
	text, _ := args[0].(types.String)
	pattern, _ := args[1].(types.String)
	units := 1 + uint64(len(text))*uint64(r[string(pattern)])/regexWorkPerCost
	return &units
}
