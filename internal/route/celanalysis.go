package route

import (
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/pkg/event"
)

// denied returns the faults of an expression that compiles: calls of unbounded cost,
// and comparisons that are always false.
func (x *expressions) denied(checked *cel.Ast) []celexpr.Fault {
	var faults []celexpr.Fault
	var visit func(e ast.NavigableExpr)
	visit = func(e ast.NavigableExpr) {
		if e.Kind() == ast.CallKind {
			msg := denial(e.AsCall())
			if msg == "" {
				msg = neverTrue(e.AsCall())
			}
			if msg != "" {
				faults = append(faults, celexpr.FaultAt(checked, e.ID(), msg))
			}
		}
		for _, child := range e.Children() {
			visit(child)
		}
	}
	visit(ast.NavigateAST(checked.NativeRep()))
	return faults
}

// denial returns why a call is denied, "" if it is allowed. Denied are functions of
// unbounded cost: those that repeat text or lists in others, those that compare every
// item with every other, and those that CEL has no cost for, so that their calls always
// exceed the limit. One call on an object of legal size can take all memory, or
// minutes, before a limit applies.
func denial(call ast.CallExpr) string {
	switch name := call.FunctionName(); name {
	case "cel.@mapInsert":
		return "transformMap() and transformMapEntry() are not supported in filters: unbounded cost"
	case "replace", "regex.replace", "regex.extract", "regex.extractAll", "join", "format", "distinct",
		"hasAny", "hasAll", "hasOnly", "hasExactly", "json.encode", "json.parse", "yaml.encode", "yaml.parse":
		return name + "() is not supported in filters: unbounded cost"
	}
	return ""
}

// neverTrue reports a comparison of event.type with a text that is not a type. Otherwise
// the mistake would only show in missing events.
func neverTrue(call ast.CallExpr) string {
	args := slices.Clone(call.Args())
	switch call.FunctionName() {
	case operators.Equals, operators.NotEquals:
		if !isEventType(args[0]) {
			args[0], args[1] = args[1], args[0]
		}
		if isEventType(args[0]) {
			return notAType(args[1])
		}
	case operators.In:
		if !isEventType(args[0]) || args[1].Kind() != ast.ListKind {
			break
		}
		for _, item := range args[1].AsList().Elements() {
			if msg := notAType(item); msg != "" {
				return msg
			}
		}
	}
	return ""
}

func isEventType(e ast.Expr) bool {
	path, ok := selectPath(e)
	return ok && slices.Equal(path, []string{"event", "type"})
}

// notAType reports a literal that is not an event type.
func notAType(e ast.Expr) string {
	if e.Kind() != ast.LiteralKind {
		return ""
	}
	text, ok := e.AsLiteral().(types.String)
	if !ok || eventBit(event.Type(text)) != 0 {
		return ""
	}
	return fmt.Sprintf("event.type is added, updated, deleted or sync, never %q", string(text))
}

// needsBody reports whether an expression may read fields that require inflating the
// object. A false positive only changes the order of a route's tests.
func needsBody(a *ast.AST) bool { return exprNeedsBody(ast.NavigateAST(a)) }

func exprNeedsBody(e ast.NavigableExpr) bool {
	switch e.Kind() {
	case ast.IdentKind:
		name := e.AsIdent()
		return name == "object" || name == "oldObject"
	case ast.SelectKind:
		if path, ok := selectPath(e); ok && len(path) > 1 {
			switch path[0] {
			case "object", "oldObject":
				return !atHand(path[1:])
			case "metadata":
				return !atHand(path)
			}
		}
	}
	return slices.ContainsFunc(e.Children(), exprNeedsBody)
}

// ofChange returns a variable that an expression reads and that only a change has, "" if it
// reads none.
func ofChange(a *ast.AST) string {
	for _, e := range ast.MatchDescendants(ast.NavigateAST(a), ast.KindMatcher(ast.IdentKind)) {
		if name := e.AsIdent(); name == "oldObject" || name == "event" {
			return name
		}
	}
	return ""
}

// hasComprehension reports whether the expression has a loop or a bound value.
func hasComprehension(a *ast.AST) bool {
	return len(ast.MatchDescendants(ast.NavigateAST(a), ast.KindMatcher(ast.ComprehensionKind))) > 0
}

// calls reports whether the expression calls a function.
func calls(a *ast.AST, function string) bool {
	return len(ast.MatchDescendants(ast.NavigateAST(a), ast.FunctionMatcher(function))) > 0
}

// buildsValues reports whether an expression may create values larger than its inputs:
// lists, maps or text. Predicates, the usual filters, do not.
func buildsValues(a *ast.AST) bool {
	for _, e := range ast.MatchDescendants(ast.NavigateAST(a), ast.AllMatcher()) {
		switch e.Kind() {
		case ast.MapKind, ast.StructKind:
			return true
		case ast.ListKind:
			if slices.ContainsFunc(e.AsList().Elements(), func(item ast.Expr) bool { return item.Kind() != ast.LiteralKind }) {
				return true
			}
		case ast.CallKind:
			if !isPredicate(e.AsCall().FunctionName()) {
				return true
			}
		}
	}
	return false
}

// isPredicate reports whether the result of a function is a scalar or a part of an argument.
func isPredicate(function string) bool {
	switch function {
	case operators.Conditional, operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.NotStrictlyFalse,
		operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
		operators.Negate, operators.Subtract, operators.Multiply, operators.Divide, operators.Modulo,
		operators.In, operators.Index, operators.OptIndex, operators.OptSelect,
		"size", "startsWith", "endsWith", "contains", "matches", "int", "uint", "double", "bool", "duration", "timestamp", "type", "dyn",
		"hasValue", "value", "orValue", "or", "quantity", "isQuantity", "isLessThan", "isGreaterThan", "compareTo", "asInteger":
		return true
	}
	return false
}

// atHand reports whether a path in an object is readable without inflating it.
func atHand(path []string) bool {
	if path[0] != "metadata" {
		return path[0] == "kind" || path[0] == "apiVersion"
	}
	if len(path) < 2 {
		return false
	}
	switch path[1] {
	case "name", "namespace", "uid", "resourceVersion", "generation", "labels", "creationTimestamp", "deletionTimestamp":
		return true
	}
	return false
}

// selectPath returns the path of a chain of plain selections (a.b.c).
func selectPath(e ast.Expr) ([]string, bool) {
	switch e.Kind() {
	case ast.IdentKind:
		return []string{e.AsIdent()}, true
	case ast.SelectKind:
		path, ok := selectPath(e.AsSelect().Operand())
		return append(path, e.AsSelect().FieldName()), ok
	}
	return nil, false
}

// reads returns the paths that an expression reads in an object without asking whether
// they are there.
func reads(a *ast.AST) (paths []string) {
	var asked []string
	var visit func(e ast.NavigableExpr)
	visit = func(e ast.NavigableExpr) {
		if path, ok := objectPath(e); ok {
			if e.Kind() == ast.SelectKind && e.AsSelect().IsTestOnly() {
				asked = append(asked, path)
			} else {
				paths = append(paths, path)
			}
			return
		}
		for _, child := range e.Children() {
			visit(child)
		}
	}
	visit(ast.NavigateAST(a))
	return slices.DeleteFunc(paths, func(path string) bool {
		return slices.ContainsFunc(asked, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
	})
}

// objectPath returns the path of a chain of selections and constant keys in an object, in
// the syntax of rawjson.ParsePath. An optional selection is not part of it.
func objectPath(e ast.Expr) (string, bool) {
	var inner ast.Expr
	var key string
	switch e.Kind() {
	case ast.SelectKind:
		inner, key = e.AsSelect().Operand(), e.AsSelect().FieldName()
	case ast.CallKind:
		call := e.AsCall()
		if call.FunctionName() != operators.Index || call.Args()[1].Kind() != ast.LiteralKind {
			return "", false
		}
		text, ok := call.Args()[1].AsLiteral().(types.String)
		if !ok {
			return "", false
		}
		inner, key = call.Args()[0], string(text)
	default:
		return "", false
	}
	step := `["` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"]`
	if inner.Kind() == ast.IdentKind {
		switch inner.AsIdent() {
		case "object", "oldObject":
			return step, true
		case "metadata":
			return "metadata" + step, true
		}
		return "", false
	}
	path, ok := objectPath(inner)
	return path + step, ok
}

// sizes bounds the sizes of variables for the cost estimator.
type sizes struct{}

var _ cost.Estimator = sizes{}

// EstimateCallCost returns nil: the estimator's defaults apply.
func (sizes) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// Sizes implied by the API server's limits.
const (
	maxName   = 253
	maxObject = 3 << 20 // etcd's limit is 1.5 MiB by default
)

// EstimateSize bounds the size of a part of a variable.
func (sizes) EstimateSize(n cost.AstNode) *cost.SizeEstimate {
	path := n.Path()
	if len(path) == 0 {
		return nil
	}
	s := cost.RangedSizeEstimate(0, maxObject)
	switch path[0] {
	case "event", "resource":
		s = cost.RangedSizeEstimate(0, maxName)
	case "metadata":
		if len(path) == 2 && (path[1] == "name" || path[1] == "namespace" || path[1] == "uid" || path[1] == "resourceVersion") {
			s = cost.RangedSizeEstimate(0, maxName)
		}
	}
	return &s
}
