package route

import (
	"slices"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/operators"
)

// needsBody tells whether an expression may look at more of an object than is at
// hand without inflating it. It errs on the side of yes; only the order in which a
// route's tests are done hangs on it.
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

// hasComprehension tells whether the expression has a loop or a bound value.
func hasComprehension(a *ast.AST) bool {
	return len(ast.MatchDescendants(ast.NavigateAST(a), ast.KindMatcher(ast.ComprehensionKind))) > 0
}

// buildsValues tells whether an expression may make values larger than those it is
// given: lists, maps or text. Predicates, the usual filters, do not.
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

// isPredicate tells the functions whose result is a scalar or a part of an argument.
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

// atHand tells whether a path within an object is served without inflating it.
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

// selectPath is the path of a chain of plain selections (a.b.c).
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

// sizes tells the cost estimator how large what an expression reads may be.
type sizes struct{}

var _ cost.Estimator = sizes{}

// EstimateCallCost leaves functions to the estimator.
func (sizes) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// Sizes an API server's own limits imply.
const (
	maxName   = 253
	maxObject = 3 << 20 // etcd's limit is 1.5 MiB by default
)

// EstimateSize bounds the size of a variable's part.
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
