package celexpr

import (
	"strings"
	"testing"

	"cel.dev/cel-go/cel"
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

// TestLookup: so is the key of a map in the expression, but for a key that is absurdly long.
func TestLookup(t *testing.T) {
	env, err := cel.NewEnv(cel.Variable("text", cel.StringType), cel.OptionalTypes())
	if err != nil {
		t.Fatal(err)
	}
	for expression, want := range map[string]struct {
		text    string
		longest int // of the keys of a constant; -1: there is none
		is      ref.Val
	}{
		`{"aaa": 1, "b": 2}[?text].orValue(0)`:        {strings.Repeat("a", 1_000_000), 3, types.Int(0)},
		`{"aaa": 1, "b": 2}[text]`:                    {"aaa", 3, types.Int(1)},
		`text in {"aaa": 1}`:                          {"aaaa", 3, types.False},
		`{"ä": 1}[?text].hasValue()`:                  {"ää", 2, types.False},
		`{"a": {"bb": 1}}.a[?text].orValue(0)`:        {"bb", 1, types.Int(1)}, // the outer map comes last
		`{1: 2, "c": 3}[?text].hasValue()`:            {"1", 1, types.False},
		`{}[?text].hasValue()`:                        {"1", 0, types.False},
		`{"a": text}[?text].hasValue()`:               {"b", -1, types.False},
		`{text: 1}[text]`:                             {strings.Repeat("a", MaxKey), -1, types.Int(1)},
		`{?"a": optional.of(text)}[?text].hasValue()`: {"b", -1, types.False},
		`optional.ofNonZeroValue({}).hasValue()`:      {"", 0, types.False},
		`["a", "b"].all(k, {"b": 2, "a": 1}[k] > 0)`:  {"", 1, types.True},
	} {
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		longest := -1
		program, err := env.Program(ast, cel.CustomDecoratorV2(lookup), cel.EvalOptions(cel.OptOptimize), cel.CustomDecoratorV2(func(e interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
			if c, ok := e.(interpreter.InterpretableConst); ok {
				if m, ok := c.Value().(table); ok {
					longest = m.longest
				}
			}
			return e, nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := program.Eval(map[string]any{"text": want.text})
		if err != nil || got != want.is || longest != want.longest {
			t.Errorf("%s: %v %v, of at most %d bytes", expression, got, err, longest)
		}
	}
	tooLong, issues := env.Compile(`{text: 1}.size() == 1`)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	program, err := env.Program(tooLong, Limits{Cost: 1000}.CostOptions(tooLong)...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Eval(program, map[string]any{"text": strings.Repeat("a", MaxKey+1)}); err == nil || !strings.Contains(err.Error(), "too long for a key") {
		t.Error(err)
	}
}

// TestFaultsKeepSecrets: the fault of an expression whose quotes do not match has nothing of its texts, as a key of an API may be in a body. Logs
// and the status have the fault, and so has the configuration that is shown without secrets.
func TestFaultsKeepSecrets(t *testing.T) {
	env, err := cel.NewEnv(Bounds()...)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`{"key": "SECRET0123}`, `{"key" "SECRET0123"}`, `{"key": "a" "SECRET0123"}`, `{"key": 1 b"SECRET0123"}`, `{"key": "SECRET0123\q"}`,
		"{'key': 'SECRET0123\n'}", `{"key": """SECRET0123}`, `{"key": "a"SECRET0123"}`, `r"SECRET0123`, `"\uSECRET0123"`, `{"key": SECRET0123"}`,
		`{"key": SECRET 0123}`, `{"key" SECRET0123 at '"}`, "{`SECRET0123`: 1}", `{"key": "at 'SECRET0123`,
		`{"key": SECRET0123}`, `{"key": a.SECRET0123}`, `{SECRET0123: 1}`, `SECRET0123(1)`, `1.SECRET0123()`, `SECRET0123{}`, `SECRET0123{a: 1}`, `{"key": b0123.SECRET0123}`,
	} {
		_, faults := Compile(env, text)
		if len(faults) == 0 {
			t.Errorf("%s has no fault", text)
		}
		for _, f := range faults {
			if strings.Contains(f.Msg, "0123") {
				t.Errorf("%s: %s", text, f.Msg)
			}
		}
	}
	for text, want := range map[string]string{"1 and 2": `Syntax error: unexpected "and"`, "1)": `Syntax error: unexpected ")"`, `{"a" 1}`: `Syntax error: missing ':'`, "objct": `undeclared reference to 'objct'`} {
		if _, faults := Compile(env, text); len(faults) == 0 || faults[0].Msg != want {
			t.Errorf("%s: %v", text, faults)
		}
	}
}
