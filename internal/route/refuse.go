package route

import (
	"fmt"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"github.com/watcherd/watcherd/pkg/event"
)

// refused finds what compiles and yet must not run: calls without a bound, and
// comparisons that are always false.
func (x *expressions) refused(checked *cel.Ast) []expressionError {
	var faults []expressionError
	info := checked.NativeRep().SourceInfo()
	var visit func(e ast.NavigableExpr)
	visit = func(e ast.NavigableExpr) {
		if e.Kind() == ast.CallKind {
			msg := refusal(e.AsCall())
			if msg == "" {
				msg = neverTrue(e.AsCall())
			}
			if msg != "" {
				at := info.GetStartLocation(e.ID())
				faults = append(faults, expressionError{line: max(at.Line(), 1), column: at.Column() + 1, msg: msg})
			}
		}
		for _, child := range e.Children() {
			visit(child)
		}
	}
	visit(ast.NavigateAST(checked.NativeRep()))
	return faults
}

// refusal tells the functions whose cost is known only when it has been paid: what
// repeats text or lists in others, and what compares every item with every other. A
// single call on an object of legal size can take all memory, or minutes, before any
// limit sees it. A filter can do without.
func refusal(call ast.CallExpr) string {
	switch name := call.FunctionName(); name {
	case "cel.@mapInsert":
		return "transformMap() and transformMapEntry() are not offered in filters, as nothing can bound what they cost"
	case "replace", "regex.replace", "join", "format", "distinct":
		return name + "() is not offered in filters, as nothing can bound what it costs"
	case "matches", "regex.extract", "regex.extractAll":
		args := call.Args()
		if len(args) == 0 || args[len(args)-1].Kind() != ast.LiteralKind {
			return name + "() needs its pattern as a literal, so that it can be checked at load"
		}
	}
	return ""
}

// neverTrue tells a comparison of event.type with what is no type, a mistake that
// would else show only in what does not arrive.
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

// notAType complains of a literal that event.type never is.
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
