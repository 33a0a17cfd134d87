// Package celexpr compiles the CEL expressions of a configuration: filters of routes,
// bodies of sinks, and the verdict on a webhook's answers.
//
// Guarantees:
//
//   - Every fault has a line and a column in the expression.
//   - An expression is bounded in length and nesting, an evaluation in cost, iterations and
//     memory, a call of matches() in the work of its pattern.
//
// Which functions and variables there are is decided by the importing packages.
package celexpr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/functions"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"

	"github.com/watcherd/watcherd/internal/nearest"
)

// Bounds of an expression at load.
const (
	MaxExpression = 16 << 10 // characters
	maxDepth      = 100
	maxNesting    = 32           // of lists, maps, loops, optional values and types: the time to check it grows faster than its cube
	maxRegex      = 5_000        // instructions of a compiled regular expression
	maxRegexes    = 4 * maxRegex // of all in an expression together, about
)

// Bounds returns the limits of an environment's expressions.
func Bounds() []cel.EnvOption {
	return []cel.EnvOption{
		cel.ParserExpressionSizeLimit(MaxExpression),
		cel.RegexProgramSizeLimit(maxRegex),
		cel.DefaultUTCTimeZone(true),
	}
}

// Fault is one fault of an expression.
type Fault struct {
	Line, Column int // from 1; columns in characters
	Msg          string
}

// Compile parses and checks an expression, or returns all its faults. The patterns of
// matches() must be literals.
func Compile(env *cel.Env, text string) (*cel.Ast, []Fault) {
	checked, issues := env.Parse(text)
	if issues.Err() == nil {
		if deep := tooDeep(ast.NavigateAST(checked.NativeRep()), 0); deep != nil {
			return nil, []Fault{FaultAt(checked, deep.ID(), fmt.Sprintf("lists, maps, loops, optional values and types nest deeper than %d", maxNesting))}
		}
		if at := tooManyPatterns(ast.NavigateAST(checked.NativeRep())); at != nil { // which the check compiles
			return nil, []Fault{FaultAt(checked, at.ID(), "the regular expressions of this expression are too large together")}
		}
		checked, issues = env.Check(checked)
	}
	var faults []Fault
	if issues.Err() == nil {
		for _, e := range ast.MatchDescendants(ast.NavigateAST(checked.NativeRep()), ast.FunctionMatcher(overloads.Matches)) {
			if args := e.AsCall().Args(); len(args) == 0 || args[len(args)-1].Kind() != ast.LiteralKind {
				faults = append(faults, FaultAt(checked, e.ID(), "matches() needs a literal pattern, which is checked at load"))
			}
		}
		return checked, faults
	}
	for _, e := range issues.Errors() {
		faults = append(faults, Fault{
			Line:   max(e.Location.Line(), 1),
			Column: max(e.Location.Column()+1, 1),
			Msg:    withNearest(env, plain(e.Message)),
		})
	}
	return nil, faults
}

// tooDeep returns what is nested too deep in an expression that is in depth others, nil if there is nothing.
func tooDeep(e ast.NavigableExpr, depth int) ast.NavigableExpr {
	switch e.Kind() {
	case ast.ListKind, ast.MapKind, ast.StructKind, ast.ComprehensionKind:
		depth++
	case ast.CallKind:
		switch e.AsCall().FunctionName() {
		case "of", "ofNonZeroValue", "optional.of", "type":
			depth++
		}
	}
	if depth > maxNesting {
		return e
	}
	for _, child := range e.Children() {
		if deep := tooDeep(child, depth); deep != nil {
			return deep
		}
	}
	return nil
}

// tooManyPatterns returns the call with whose pattern the patterns of an expression are too large together, nil if there is none.
func tooManyPatterns(e ast.NavigableExpr) ast.NavigableExpr {
	size := 0
	for _, call := range ast.MatchDescendants(e, ast.KindMatcher(ast.CallKind)) {
		switch call.AsCall().FunctionName() {
		case overloads.Matches, "replace", "extract", "extractAll": // these of regex
		default:
			continue
		}
		for _, arg := range call.AsCall().Args() {
			if arg.Kind() != ast.LiteralKind {
				continue
			}
			text, _ := arg.AsLiteral().(types.String)
			if parsed, err := syntax.Parse(string(text), syntax.Perl); err == nil {
				size += patternSize(parsed)
			}
			if size > maxRegexes {
				return call
			}
		}
	}
	return nil
}

// patternSize is about the number of instructions that a pattern is compiled to, with the ranges of character classes: thousands
// of instructions, or of ranges, are written in a few characters.
func patternSize(re *syntax.Regexp) int {
	size := 1
	switch re.Op {
	case syntax.OpLiteral:
		size += len(re.Rune)
	case syntax.OpCharClass:
		size += len(re.Rune) / 8
	default:
	}
	for _, sub := range re.Sub {
		size += patternSize(sub)
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Min, re.Max, 1)
	}
	return size
}

var (
	noOverload = regexp.MustCompile(`^found no matching overload for '(.+)' applied to '(.+)'$`)
	unknown    = regexp.MustCompile(`^(undeclared reference to|undefined field) '([^']+)'(?: \(.*\))?$`)
	missing    = regexp.MustCompile(`^(Syntax error: missing .+?) at '(?s:.*)'$`)
	unexpected = regexp.MustCompile(`^Syntax error: (?:token recognition error at|mismatched input|extraneous input|no viable alternative at input):? '((?s:.*?))'(?: expecting .*)?$`)
)

// harmless is what a syntax error quotes: operators and short words. Anything else may be part of a text, such as the key of
// an API in a body.
var harmless = regexp.MustCompile(`^([^\w"'` + "`" + `]{1,3}|[A-Za-z]{1,8})$`)

// plain is a message of the CEL library in the words of its users.
func plain(msg string) string {
	// watcherd does not use CEL's containers.
	msg = strings.ReplaceAll(msg, " (in container '')", "")
	if m := noOverload.FindStringSubmatch(msg); m != nil {
		function, applied := m[1]+"()", strings.ReplaceAll(m[2], "watcherd.Event", "event")
		if display, ok := operators.FindReverse(m[1]); ok && display != "" {
			function = display
		}
		msg = fmt.Sprintf("%s cannot be applied to %s", function, strings.ReplaceAll(applied, "watcherd.", ""))
		if applied != m[2] {
			msg += "; event is an object: did you mean a field of it, such as event.type?"
		}
		return msg
	}
	if word, ok := strings.CutPrefix(msg, "reserved identifier: "); ok {
		return fmt.Sprintf("%s is a reserved word; a field is reached through its object, such as metadata.%s or object.spec.%s", word, word, word)
	}
	if m := missing.FindStringSubmatch(msg); m != nil {
		return m[1]
	}
	switch m := unexpected.FindStringSubmatch(msg); {
	case m == nil:
		return msg
	case strings.TrimSpace(m[1]) == "=":
		return "Syntax error: use == to compare"
	case m[1] == "<EOF>":
		return "Syntax error: the expression ends too early"
	case !harmless.MatchString(m[1]):
		return "Syntax error: unexpected text, or quotes that do not match"
	default:
		return fmt.Sprintf("Syntax error: unexpected %q", m[1])
	}
}

// withNearest adds the name that an unknown one was most likely meant to be to the message about it.
func withNearest(env *cel.Env, msg string) string {
	m := unknown.FindStringSubmatch(msg)
	if m == nil {
		return msg
	}
	var known []string
	for _, v := range env.Variables() {
		if m[1] == "undefined field" {
			fields, _ := env.CELTypeProvider().FindStructFieldNames(v.Type().TypeName())
			known = append(known, fields...)
		} else {
			known = append(known, v.Name())
		}
	}
	if m[1] != "undefined field" {
		known = slices.AppendSeq(known, maps.Keys(env.Functions())) // operators are near no name
		for _, macro := range env.Macros() {
			known = append(known, macro.Function())
		}
	}
	slices.Sort(known)
	msg = fmt.Sprintf("%s '%s'", m[1], m[2]) // without what the library would enable
	if !word.MatchString(m[2]) {
		msg = m[1] + " a name here, or a text without quotes"
	}
	if near := nearest.Of(m[2], slices.Compact(known)); near != "" {
		msg = fmt.Sprintf("%s '%s'; did you mean %q?", m[1], m[2], near)
	}
	return msg
}

// word is a name that is quoted. Any other, unless it is nearly one that is known, may be a text that lacks its quotes, such as the
// key of an API in a body.
var word = regexp.MustCompile(`^([A-Za-z_.]{1,20}|\w{1,4})$`)

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

// Options bound an evaluation by [Eval] in cost, iterations, memory and the work of patterns. They are for the program of the
// expression.
func (l Limits) Options(checked *cel.Ast) []cel.ProgramOption {
	return append(append(l.MemoryOptions(), l.CostOptions(checked)...), cel.EvalOptions(cel.OptOptimize))
}

// CostOptions bound an evaluation by [Eval] in cost and iterations, and matches() in the work of
// its pattern. Patterns must be literals. They are for the program of the expression.
func (l Limits) CostOptions(checked *cel.Ast) []cel.ProgramOption {
	r := regexes{}
	options := []cel.ProgramOption{cel.CostTracking(r)}
	for overload, function := range underpriced {
		options = append(options, cel.CostTrackerOptions(cost.OverloadTracker(overload, func(args []ref.Val, result ref.Val) *uint64 {
			return r.CallCost(function, "", args, result)
		})))
	}
	return append(options,
		cel.CostLimit(l.Cost),
		cel.InterruptCheckFrequency(uint(l.Cost/iterationCost)),
		cel.CustomDecoratorV2(membership),
		cel.CustomDecoratorV2(lookup),
		cel.CustomDecoratorV2(rangesOf(checked)),
		cel.OptimizeRegex(&interpreter.RegexOptimization{
			Function: overloads.Matches, OverloadID: overloads.MatchesString, RegexIndex: 1, Factory: r.compile,
		}),
	)
}

// iterationCost is at most what CEL charges for an iteration that reads an item, and compares it.
const iterationCost = 2

// spent is done, so that the first check for an interrupt ends an evaluation. CEL counts the iterations of
// all loops between two checks, and charges nothing for one that evaluates a constant.
var spent = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("its loops have more iterations than the cost limit permits"))
	return ctx
}()

// Eval evaluates a program that has CostOptions.
func Eval(p cel.Program, vars any) (ref.Val, error) {
	v, _, err := p.ContextEval(spent, vars)
	return v, err
}

// SizeUnit is the number of bytes that count as one element of a value's size.
const SizeUnit = 10

// measureEvery is the number of loop iterations between two measurements of the
// accumulated value.
const measureEvery = 512

// MemoryOptions bounds the size of every value that an expression creates.
func (l Limits) MemoryOptions() []cel.ProgramOption {
	elements := l.Memory / SizeUnit
	return []cel.ProgramOption{cel.MemoryLimit(elements), cel.MemoryTracking(
		types.MemoryTrackerSampleInterval(measureEvery),
		types.MemoryTrackerSizeCalculator(sizes(int(elements))),
	)}
}

// sizes returns the calculator of the sizes of values. It looks at so many values at most.
func sizes(most int) *types.SizeCalculator {
	return types.NewSizeCalculator(
		types.SizeCalculatorStringUnitLength(SizeUnit),
		types.SizeCalculatorMaxDepth(maxDepth),
		types.SizeCalculatorMaxTraversal(most),
	)
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

// Failure shortens an evaluation's error and adds its position. The error that CEL shares
// among all evaluations has the position of any.
func Failure(a *cel.Ast, err error) error {
	at, ok := errors.AsType[*types.Err](err)
	err = Shorten(err)
	if !ok || at.NodeID() == 0 || strings.TrimSpace(at.String()) == "no such overload" {
		return err
	}
	f := FaultAt(a, at.NodeID(), "")
	return fmt.Errorf("line %d, column %d: %w", f.Line, f.Column, err)
}

// A pattern takes at most about 20 ns for each of its instructions and each byte of the
// text (RE2's bound, as Go's regexp has it). CEL charges for the length of the pattern
// instead, and after the call: "(?:a?){500}a{500}$" on 1 MB took 37 s.
const (
	maxRegexWork     = 10 << 20 // instructions times bytes of one call: at most about 200 ms
	regexWorkPerCost = 20       // of a unit of cost; most patterns are far below their bound
)

// membership cuts a text behind the longest one of a constant list that it is looked for in: it is not in the list either way. CEL
// hashes the whole text, in each iteration of a loop, and charges nothing.
func membership(e interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := e.(interpreter.InterpretableCall)
	if !ok || call.OverloadID() != overloads.InList {
		return e, nil
	}
	args := call.Args()
	constant, ok := args[1].(interpreter.InterpretableConst)
	if !ok {
		return e, nil
	}
	list, ok := constant.Value().(traits.Lister)
	if !ok {
		return e, nil
	}
	return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), []interpreter.InterpretableV2{cut{args[0], longestText(list) + 1}, constant},
		func(values ...ref.Val) ref.Val { return list.Contains(values[0]) }), nil
}

// longestText is the length of the longest text among the items, or the keys.
func longestText(items traits.Iterable) (longest int) {
	for it := items.Iterator(); it.HasNext() == types.True; {
		if text, ok := it.Next().(types.String); ok {
			longest = max(longest, len(text))
		}
	}
	return longest
}

// cut is a value of which a text has so many bytes at most.
type cut struct {
	interpreter.InterpretableV2

	bytes int
}

func (c cut) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	v := c.InterpretableV2.Exec(frame)
	if text, ok := v.(types.String); ok && len(text) > c.bytes {
		return text[:c.bytes]
	}
	return v
}

// Eval is Exec without a frame.
func (c cut) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, c.Exec)
}

// rangesOf has the loops of an expression fail for a text before CEL counts its characters, in each iteration of a loop around them, and
// charges nothing.
func rangesOf(checked *cel.Ast) interpreter.InterpretableDecoratorV2 {
	ranges := map[int64]bool{}
	for _, loop := range ast.MatchDescendants(ast.NavigateAST(checked.NativeRep()), ast.KindMatcher(ast.ComprehensionKind)) {
		ranges[loop.AsComprehension().IterRange().ID()] = true
	}
	return func(e interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		if !ranges[e.ID()] {
			return e, nil
		}
		if field, ok := e.(interpreter.InterpretableAttribute); ok {
			return rangeField{field}, nil
		}
		return rangeValue{e}, nil
	}
}

// rangeValue is what a loop is over, and rangeField that as a field, which CEL takes no other value for.
type (
	rangeValue struct{ interpreter.InterpretableV2 }
	rangeField struct {
		interpreter.InterpretableAttribute
	}
)

func (r rangeValue) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	return itemsOf(r.ID(), r.InterpretableV2.Exec(frame))
}

func (r rangeField) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	return itemsOf(r.ID(), r.InterpretableAttribute.Exec(frame))
}

// itemsOf is a value to be looped over, or an error for a text. An empty one has no items.
func itemsOf(id int64, v ref.Val) ref.Val {
	if text, ok := v.(types.String); ok && text != "" {
		return types.NewErrWithNodeID(id, "a loop is over a list or a map, not over a text")
	}
	return v
}

// Eval is Exec without a frame.
func (r rangeValue) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, r.Exec)
}

// Eval is Exec without a frame.
func (r rangeField) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, r.Exec)
}

// lookup has a map of the expression look for a text as [table] does.
func lookup(e interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	made, ok := e.(interpreter.InterpretableConstructor)
	if !ok || made.Type() != types.MapType {
		return e, nil
	}
	if slices.ContainsFunc(made.InitVals(), func(v interpreter.InterpretableV2) bool {
		_, constant := v.(interpreter.InterpretableConst)
		return !constant
	}) {
		return constructor{made}, nil
	}
	m, ok := made.Eval(interpreter.EmptyActivation()).(madeMap)
	if !ok { // a key is there twice
		return e, nil
	}
	return interpreter.NewConstValue(made.ID(), table{m, longestText(m)}), nil
}

// constructor makes tables, without keys that are longer than [MaxKey].
type constructor struct {
	interpreter.InterpretableConstructor
}

func (c constructor) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	v := c.InterpretableConstructor.Exec(frame)
	m, ok := v.(madeMap)
	if !ok {
		return v
	}
	longest := longestText(m)
	if longest > MaxKey {
		return TooLong(longest)
	}
	return table{m, longest}
}

// Eval is Exec without a frame.
func (c constructor) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, c.Exec)
}

// madeMap is what CEL's own maps are.
type madeMap interface {
	traits.Mapper
	traits.Foldable
	traits.Zeroer
	types.AggregateSizeVisitor
}

// table is a map in which a text that is longer than its keys is not found, without a hash of it.
type table struct {
	madeMap

	longest int // length of a key
}

func (t table) Find(key ref.Val) (ref.Val, bool) {
	if text, ok := key.(types.String); ok && len(text) > t.longest {
		return nil, false
	}
	return t.madeMap.Find(key)
}

func (t table) Get(key ref.Val) ref.Val {
	if v, found := t.Find(key); found {
		return v
	}
	return types.NewErr("no such key: %.64v", key)
}

func (t table) Contains(key ref.Val) ref.Val {
	_, found := t.Find(key)
	return types.Bool(found)
}

// MaxKey is the length of the longest text that expressions look up as a key, or make one. CEL charges nothing for that, and a loop
// does so hundreds of thousands of times.
const MaxKey = 4 << 10

// TooLong is the error of a text of so many bytes as a key.
func TooLong(bytes int) ref.Val {
	return types.NewErr("a text of %d bytes is too long for a key: at most %d", bytes, MaxKey)
}

// regexes are the patterns of one expression: all are literals.
type regexes map[string]int // → instructions

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

// CallCost charges for calls that CEL charges as if their time were constant, nil for all others.
func (r regexes) CallCost(function, overload string, args []ref.Val, _ ref.Val) *uint64 {
	if units, ok := comparedText(function, args); ok {
		units++
		return &units
	}
	units := uint64(0)
	switch zoned := strings.HasPrefix(function, "get") && len(args) == 2; {
	case function == overloads.Matches && len(args) == 2:
		text, _ := args[0].(types.String)
		pattern, _ := args[1].(types.String)
		units = 1 + uint64(len(text))*uint64(max(r[string(pattern)], 1))/regexWorkPerCost // CEL does not compile the empty one
	case zoned:
		units = zoneCost + work(function, args)
	case function == "quantity" || function == "isQuantity":
		units = quantityCost
	case function == search && len(args) > 1:
		text, _ := args[0].(types.String)
		part, _ := args[1].(types.String)
		units = 1 + work(function, args) + uint64(len(text)*len(part))/SizeUnit
	case function == "cel.@mapInsert": // of transformMap(): each entry copies the keys of those before it
		units = 1 + uint64(entries(args[0])+entries(args[1]))/2
	case overload == "" || converts[function]:
		units = 1 + work(function, args)
	}
	if compares[function] && len(args) == 2 {
		units = max(units, 1+compared(function, args[0], args[1]))
	}
	if units <= 1 {
		return nil
	}
	return &units
}

// underpriced are overloads whose price in CEL lacks the length of a text that it compares, or of which it counts the characters, with the
// functions that they are charged as.
var underpriced = map[string]string{
	"optional_hasValue_value":    operators.Equals,
	"cidr_contains_cidr":         "containsCIDR",
	"cidr_contains_cidr_string":  "containsCIDR",
	"cidr_contains_ip_ip":        "containsIP",
	"cidr_contains_ip_string":    "containsIP",
	"string_index_of_string":     search,
	"string_index_of_string_int": search,

	"string_last_index_of_string":     search,
	"string_last_index_of_string_int": search,

	"list_string_sort":                 "sort",
	"list_bytes_sort":                  "sort",
	"list_string_sortByAssociatedKeys": sortByKeys,
	"list_bytes_sortByAssociatedKeys":  sortByKeys,
	"list_distinct":                    "distinct",
}

const (
	search     = "indexOf"
	sortByKeys = "@sortByAssociatedKeys" // what sortBy() calls: the list, and its keys
)

// quantityCost is that of parsing a quantity of Kubernetes, which computes all zeros of its exponent.
const quantityCost = 50

// zoneCost is that of reading a time zone by its name.
const zoneCost = 200

// entries is the number of entries of a map, 0 for other values.
func entries(v ref.Val) types.Int {
	m, ok := v.(traits.Mapper)
	if !ok {
		return 0
	}
	n, _ := m.Size().(types.Int)
	return n
}

// converts are the functions whose time is linear in a text, and that CEL charges a unit.
var converts = map[string]bool{
	overloads.Size: true, overloads.TypeConvertBool: true, overloads.TypeConvertBytes: true, overloads.TypeConvertDouble: true,
	overloads.TypeConvertDuration: true, overloads.TypeConvertInt: true, overloads.TypeConvertString: true,
	overloads.TypeConvertTimestamp: true, overloads.TypeConvertUint: true,
	"reverse": true, // a list that is not CEL's own is copied
}

// compares are the functions that compare lists and maps with all that is in them. CEL charges for their own items alone:
// a list of one list, however long, is one.
var compares = map[string]bool{operators.Equals: true, operators.NotEquals: true, operators.In: true}

// comparedText returns the cost of comparing a text, with another or with all of a list. CEL counts the characters of the whole
// text to charge for the shorter one, or for none: 0.2 ms in each iteration of a loop, which may have hundreds of thousands.
func comparedText(function string, args []ref.Val) (units uint64, ok bool) {
	if len(args) != 2 {
		return 0, false
	}
	a, text := contained(args[0]).(types.String)
	b, other := contained(args[1]).(types.String)
	switch function {
	case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		return uint64(min(len(a), len(b))) / SizeUnit, text || other
	case operators.In:
		return work(function, args), text
	case overloads.Contains: // of nothing, or in it, which is free
		return work(function, args), b == "" && other || a == "" && text
	}
	return 0, false
}

// compared returns the cost of comparing two values, 0 if one of them has nothing in it.
func compared(function string, a, b ref.Val) uint64 {
	a, b = contained(a), contained(b)
	if !holds(a) || !holds(b) {
		return 0
	}
	n := uint64(contents.AggregateSize(b))
	if function != operators.In { // a comparison ends with the smaller one
		n = min(n, uint64(contents.AggregateSize(a)))
	}
	return n
}

// contained returns the value in an optional one.
func contained(v ref.Val) ref.Val {
	for {
		o, ok := v.(*types.Optional)
		if !ok || !o.HasValue() {
			return v
		}
		v = o.GetValue()
	}
}

func holds(v ref.Val) bool {
	switch v.(type) {
	case traits.Lister, traits.Mapper:
		return true
	}
	return false
}

// contents measures what is in a list or a map, up to what is above every limit of cost.
var contents = sizes(math.MaxInt32)

// work returns the cost of a call whose time is linear in its texts and, but for some functions, in the items of its
// lists. CEL has a cost for most of these, but not where the types, and with them the overload, are known only when it runs.
func work(function string, args []ref.Val) (units uint64) {
	for i, arg := range args {
		var n uint64
		switch v := arg.(type) {
		case types.String:
			n = uint64(len(v)) / SizeUnit
		case types.Bytes:
			n = uint64(len(v)) / SizeUnit
		case traits.Lister:
			items, _ := v.Size().(types.Int)
			switch function {
			case overloads.Size, operators.Add, operators.Index, operators.OptIndex:
			case "sort", sortByKeys:
				if n = uint64(items); function == "sort" || i > 0 { // with all that is in them, as in a comparison
					n = uint64(contents.AggregateSize(v)) * uint64(bits.Len64(n))
				}
			case "distinct": // compares each item with those before it
				n = uint64(items) * max(2*uint64(items), uint64(contents.AggregateSize(v))/2)
			default:
				n = uint64(items)
			}
		}
		switch function {
		case operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
			if i > 0 { // they end with the shorter one
				units = min(units, n)
				continue
			}
		}
		units += n
	}
	return units
}

// Guarded puts guards before functions of an environment, by their names. The error of a
// guard is that of the call. CEL charges for a call when it has returned, so a function
// whose work is not linear in its arguments needs a guard.
func Guarded(env *cel.Env, guards map[string]func(args []ref.Val) error) (cel.ProgramOption, error) {
	var all []*functions.Overload
	for name, check := range guards {
		bindings, err := env.Functions()[name].Bindings()
		if err != nil {
			return nil, fmt.Errorf("function %s: %w", name, err)
		}
		for _, b := range bindings {
			all = append(all, guard(*b, check))
		}
	}
	return cel.Functions(all...), nil //nolint:staticcheck // nothing else wraps a function of a library
}

func guard(b functions.Overload, check func(args []ref.Val) error) *functions.Overload {
	if call := b.Unary; call != nil {
		b.Unary = func(v ref.Val) ref.Val {
			if err := check([]ref.Val{v}); err != nil {
				return types.WrapErr(err)
			}
			return call(v)
		}
	}
	if call := b.Binary; call != nil {
		b.Binary = func(v, w ref.Val) ref.Val {
			if err := check([]ref.Val{v, w}); err != nil {
				return types.WrapErr(err)
			}
			return call(v, w)
		}
	}
	if call := b.Function; call != nil {
		b.Function = func(args ...ref.Val) ref.Val {
			if err := check(args); err != nil {
				return types.WrapErr(err)
			}
			return call(args...)
		}
	}
	return &b
}

// maxSearch bounds the bytes of a text times those of what is searched for in it.
const maxSearch = 64 << 20

// CheckSearch is the guard of indexOf() and lastIndexOf().
func CheckSearch(args []ref.Val) error {
	if len(args) < 2 {
		return nil // the function reports it
	}
	text, _ := args[0].(types.String)
	part, _ := args[1].(types.String)
	if len(part) > 0 && len(text) > maxSearch/len(part) {
		return fmt.Errorf("indexOf(): a text of %d bytes is too long to find %d bytes in it", len(text), len(part))
	}
	return nil
}

// CheckFlatten is the guard of flatten(): a list of the object reads all that is in it for each of its levels.
func CheckFlatten(args []ref.Val) error {
	if len(args) < 2 {
		return nil
	}
	if depth, ok := args[1].(types.Int); ok && depth > maxNesting {
		return fmt.Errorf("flatten(): %d levels are too many: at most %d", depth, maxNesting)
	}
	return nil
}
