package celexpr

import (
	"fmt"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/functions"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

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
