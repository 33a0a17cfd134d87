package body

import (
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/internal/record"
)

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

func loops(a *cel.Ast) bool {
	return len(ast.MatchDescendants(ast.NavigateAST(a.NativeRep()), ast.KindMatcher(ast.ComprehensionKind))) > 0
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
