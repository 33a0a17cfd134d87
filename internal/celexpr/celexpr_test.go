package celexpr

import (
	"strings"
	"testing"

	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// CEL's own cost of a comparison counts the characters of both texts, however short one of them is: a loop that compared
// a text of the object with each item of a list took a minute.
func TestComparedText(t *testing.T) {
	long := types.String(strings.Repeat("a", 1_000_000))
	optional := func(v ref.Val) ref.Val { return types.OptionalOf(v) }
	names := types.NewStringList(types.DefaultTypeAdapter, []string{"a", "b", "c"})
	for _, c := range []struct {
		function, overload string
		a, b               ref.Val
		want               uint64
	}{
		{operators.Equals, overloads.Equals, long, types.String("b"), 1},
		{operators.NotEquals, overloads.NotEquals, types.String("b"), long, 1},
		{operators.Equals, overloads.Equals, long, types.NullValue, 1},
		{operators.Equals, overloads.Equals, types.Int(1), long, 1},
		{operators.Equals, overloads.Equals, optional(long), optional(types.String("b")), 1},
		{operators.Equals, overloads.Equals, long, names, 1},
		{operators.Equals, overloads.Equals, long, long, 100_001},
		{operators.Less, overloads.LessString, long, types.String("b"), 1},
		{operators.LessEquals, overloads.LessEqualsString, long, long, 100_001},
		{operators.Greater, overloads.GreaterString, types.String("b"), long, 1},
		{operators.GreaterEquals, overloads.GreaterEqualsString, long, types.String("b"), 1},
		{operators.In, overloads.InList, long, names, 100_004},
		{overloads.Contains, overloads.ContainsString, long, types.String(""), 100_001},
	} {
		if cost := (regexes{}).CallCost(c.function, c.overload, []ref.Val{c.a, c.b}, nil); cost == nil || *cost != c.want {
			t.Errorf("%s of %T and %T: not %d", c.function, c.a, c.b, c.want)
		}
	}
}

// TestMembership: a text is looked up in a constant list by no more bytes than decide it, as CEL hashes them all in each iteration of a
// loop, with any result: 500,000 lookups of a text of 500 KB took a quarter of a minute.
func TestMembership(t *testing.T) {
	for _, c := range []struct {
		text   types.String
		list   any
		looked types.String
		in     types.Bool
	}{
		{types.String(strings.Repeat("a", 1_000_000)), []string{"aaa", "b"}, "aaaa", types.False},
		{"aaa", []string{"aaa", "b"}, "aaa", types.True},
		{"aaaa", []string{"aaa", "b"}, "aaaa", types.False},
		{"ää", []string{"ä"}, "ä\xc3", types.False},
		{"aa", []int64{1, 2}, "a", types.False},
		{"a", []string{}, "a", types.False},
	} {
		args := []interpreter.InterpretableV2{interpreter.NewConstValue(1, c.text), interpreter.NewConstValue(2, types.DefaultTypeAdapter.NativeToValue(c.list))}
		made, err := membership(interpreter.NewCall(3, operators.In, overloads.InList, args, nil))
		if err != nil {
			t.Fatal(err)
		}
		looked := made.(interpreter.InterpretableCall).Args()[0].Eval(interpreter.EmptyActivation())
		if in := made.Eval(interpreter.EmptyActivation()); looked != c.looked || in != c.in {
			t.Errorf("%.10s in %v: %v, by %.10v", c.text, c.list, in, looked)
		}
	}
}
