package body

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/internal/celjson"
	"github.com/watcherd/watcherd/internal/record"
)

// dialect is the environments of bodies. They have no state.
type dialect struct {
	single *cel.Env // with the variables of one event
	list   *cel.Env // with `events`
	guards cel.ProgramOption
}

var ordinary = sync.OnceValues(newDialect)

func newDialect() (*dialect, error) {
	// Versions are those whose functions guards knows: a later one may have more.
	opts := append(celjson.QuantityOptions(),
		cel.OptionalTypes(),
		ext.Strings(ext.StringsVersion(5)),
		ext.Lists(ext.ListsVersion(4)), // without hasAll() and the like, which compare every item with every other
		ext.Math(ext.MathVersion(3)),
		ext.Encoders(ext.EncodersVersion(0)), // base64; json.encode is below
		ext.Bindings(),
		ext.TwoVarComprehensions(),
		cel.Function("json.encode", cel.Overload("watcherd_json_encode", []*cel.Type{cel.DynType}, cel.StringType, cel.UnaryBinding(jsonEncode))),
		cel.CostModel(
			cost.Overload("watcherd_json_encode", resultCost()),
			cost.Overload("base64_encode_bytes", resultCost()),
			cost.Overload("base64_decode_string", resultCost()),
			cost.Overload("strings_quote", resultCost()),
			cost.MemberOverload("string_format", resultCost()),
		),
	)
	common, err := cel.NewEnv(append(opts, celexpr.Bounds()...)...)
	if err != nil {
		return nil, fmt.Errorf("body: CEL environment: %w", err)
	}
	typed := cel.CustomTypeProvider(celjson.WithStructs(common.CELTypeProvider(), eventType, resourceType, changedByType, forType, metadataType, ownerType, involvedType))
	d := &dialect{}
	if d.single, err = common.Extend(typed,
		cel.Variable("event", eventType.Type),
		cel.Variable("object", cel.DynType),
		cel.Variable("oldObject", cel.DynType),
		cel.Variable("patch", cel.DynType),
		cel.Variable("metadata", metadataType.Type),
		cel.Variable("resource", resourceType.Type),
	); err != nil {
		return nil, fmt.Errorf("body: CEL environment: %w", err)
	}
	if d.list, err = common.Extend(typed, cel.Variable("events", cel.ListType(eventType.Type))); err != nil {
		return nil, fmt.Errorf("body: CEL environment: %w", err)
	}
	if d.guards, err = celexpr.Guarded(common, guards); err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	return d, nil
}

// resultCost charges for the length of the result.
func resultCost() cost.OverloadModelOption {
	return cost.EvalCost(cost.Sum(cost.Const(cost.CallCost), cost.StringScan(cost.Length(cost.Result()))))
}

func jsonEncode(v ref.Val) ref.Val {
	text, err := celjson.AppendJSON(nil, v, maxBytes)
	if err != nil {
		return types.WrapErr(fmt.Errorf("json.encode(): %w", err))
	}
	return types.String(text)
}

// Functions whose result can be much larger than their arguments, or whose time grows with
// the square of a list. CEL charges for a call when it has returned.
var guards = map[string]func(args []ref.Val) error{
	"replace":  checkReplace,
	"join":     checkJoin,
	"format":   checkFormat,
	"distinct": checkDistinct,
	"flatten":  checkFlatten,

	"indexOf":     celexpr.CheckSearch,
	"lastIndexOf": celexpr.CheckSearch,

	"cel.@mapInsert": checkInsert, // transformMap() and transformMapEntry()
}

const (
	maxDistinct = 64 << 20 // items times the bytes that each is compared with
	maxMap      = 2048     // entries of a map that is copied for each of them
	maxPrinted  = 100      // levels of lists and maps, each of which reads all that is within it
)

func tooLarge(function string) error {
	return fmt.Errorf("%s: the result is larger than %d bytes", function, maxBytes)
}

func text(args []ref.Val, i int) string {
	if i >= len(args) {
		return ""
	}
	s, _ := args[i].(types.String)
	return string(s)
}

func checkReplace(args []ref.Val) error {
	in, old, by := text(args, 0), text(args, 1), text(args, 2)
	n := strings.Count(in, old)
	if len(args) > 3 {
		if most, ok := args[3].(types.Int); ok && most >= 0 {
			n = min(n, int(most))
		}
	}
	if len(in)+n*(len(by)-len(old)) > maxBytes {
		return tooLarge("replace()")
	}
	return nil
}

func checkJoin(args []ref.Val) error {
	list, ok := args[0].(traits.Lister)
	if !ok {
		return nil // the function reports it
	}
	size := 0
	for it := list.Iterator(); it.HasNext() == types.True; {
		item, ok := it.Next().(types.String)
		if !ok {
			return nil // the same
		}
		if size += len(item) + len(text(args, 1)); size > maxBytes {
			return tooLarge("join()")
		}
	}
	return nil
}

// checkFormat bounds the number of clauses times the size of the arguments: each clause
// prints one of them.
func checkFormat(args []ref.Val) error {
	if len(args) < 2 {
		return nil
	}
	const longestNumber = 512 // bytes, such as %f of the largest double
	largest, clauses := longestNumber, strings.Count(text(args, 0), "%")
	if list, ok := args[1].(traits.Lister); ok {
		for it, n := list.Iterator(), 0; n < clauses && it.HasNext() == types.True; n++ { // the others are not printed
			v := it.Next()
			if s, ok := v.(types.String); ok {
				largest = max(largest, len(s))
				continue
			}
			printed, err := celjson.AppendJSON(nil, v, maxBytes)
			switch {
			case errors.Is(err, celjson.ErrTooLarge):
				return tooLarge("format()")
			case err != nil:
				continue // the function reports what it cannot print
			case celjson.Nests(printed, maxPrinted):
				return fmt.Errorf("format(): lists and maps nest deeper than %d", maxPrinted)
			}
			largest = max(largest, 2*len(printed))
		}
	}
	if len(text(args, 0))+clauses*largest > maxBytes {
		return tooLarge("format()")
	}
	return nil
}

func checkDistinct(args []ref.Val) error {
	list, ok := args[0].(traits.Lister)
	if !ok {
		return nil
	}
	if n, ok := list.Size().(types.Int); ok && n > 1 {
		if _, err := celjson.AppendJSON(nil, list, maxDistinct/int(n)); errors.Is(err, celjson.ErrTooLarge) {
			return fmt.Errorf("distinct(): %d items are too many, or too large", n)
		} else if err != nil {
			return fmt.Errorf("distinct(): %w", err)
		}
	}
	return nil
}

func checkInsert(args []ref.Val) error {
	if m, ok := args[0].(traits.Mapper); ok {
		if n, ok := m.Size().(types.Int); ok && n >= maxMap {
			return fmt.Errorf("transformMap(): the result has more than %d entries", maxMap)
		}
	}
	return nil
}

// checkFlatten bounds the items of the result: a list can hold another one many times.
func checkFlatten(args []ref.Val) error {
	if err := celexpr.CheckFlatten(args); err != nil {
		return err
	}
	left := maxBytes / celexpr.SizeUnit
	depth := 1
	if len(args) > 1 {
		n, ok := args[1].(types.Int)
		if !ok {
			return nil // the function reports it
		}
		depth = int(n)
	}
	if !countItems(args[0], depth, &left) {
		return tooLarge("flatten()")
	}
	return nil
}

func countItems(v ref.Val, depth int, left *int) bool {
	list, ok := v.(traits.Lister)
	if !ok || depth < 0 {
		*left--
		return *left >= 0
	}
	for it := list.Iterator(); it.HasNext() == types.True; {
		if !countItems(it.Next(), depth-1, left) {
			return false
		}
	}
	return true
}

// readsList reports whether an expression names the list of a message's events. Faults
// show when it is compiled.
func readsList(env *cel.Env, text string) bool {
	parsed, issues := env.Parse(text)
	if issues.Err() != nil {
		return false
	}
	return len(ast.MatchDescendants(ast.NavigateAST(parsed.NativeRep()), func(e ast.NavigableExpr) bool {
		return e.Kind() == ast.IdentKind && e.AsIdent() == "events"
	})) > 0
}

// sendable reports a value that has no JSON form, as far as its type is known.
func sendable(checked *cel.Ast) *celexpr.Fault {
	switch out := checked.OutputType(); out.Kind() {
	case types.TypeKind, types.ErrorKind, types.UnknownKind:
		return &celexpr.Fault{Line: 1, Column: 1, Msg: "the value cannot be sent: its type is " + cel.FormatCELType(out)}
	}
	return nil
}

// reads returns the parts of events that an expression may read. Only plain selections
// are followed: an event that is used as a whole has what the route gives it.
func reads(checked *cel.Ast) (parts record.Flags) {
	visit(ast.NavigateAST(checked.NativeRep()), func(path []string) {
		switch path[0] {
		case "object":
			parts |= record.Object
		case "oldObject":
			parts |= record.OldObject
		case "patch":
			parts |= record.Patch
		case "metadata":
			if len(path) < 2 || !slices.Contains([]string{"name", "namespace", "uid", "resourceVersion"}, path[1]) {
				parts |= record.Object
			}
		case "summary":
			parts |= record.Summary
		}
	}, checked)
	return parts
}

// visit calls f for each variable and each field of an event with the path below it.
func visit(e ast.NavigableExpr, f func(path []string), checked *cel.Ast) {
	if e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.OptSelect && isEvent(e.Children()[0], checked) {
		if field, ok := e.AsCall().Args()[1].AsLiteral().(types.String); ok {
			f([]string{string(field)})
		}
	}
	if path, of := selection(e, checked); len(path) > 0 {
		f(path)
		if of == nil {
			return
		}
		e = of
	}
	for _, child := range e.Children() {
		visit(child, f, checked)
	}
}

// selection returns the path of plain selections that ends in e, from a variable, or from
// a field of the event that of computes.
func selection(e ast.NavigableExpr, checked *cel.Ast) (path []string, of ast.NavigableExpr) {
	for {
		switch e.Kind() {
		case ast.IdentKind:
			if !isEvent(e, checked) {
				path = append(path, e.AsIdent())
			}
			slices.Reverse(path)
			return path, nil
		case ast.SelectKind:
			path = append(path, e.AsSelect().FieldName())
			operand := e.Children()[0]
			if isEvent(operand, checked) {
				slices.Reverse(path)
				return path, operand
			}
			e = operand
		default:
			return nil, nil
		}
	}
}

func isEvent(e ast.NavigableExpr, checked *cel.Ast) bool {
	return checked.NativeRep().GetType(e.ID()).TypeName() == eventType.Type.TypeName()
}
