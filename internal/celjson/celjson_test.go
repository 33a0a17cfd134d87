package celjson

import (
	"strings"
	"testing"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"
	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/compact"
)

const failedPod, barePod = apitest.FailedPod, apitest.BarePod

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestLazyIsDecoded compares the results and errors of lazy values with those of decoded ones.
func TestLazyIsDecoded(t *testing.T) {
	documents := []string{
		failedPod,
		barePod,
		`{"kind":"X","apiVersion":"v1","metadata":{"name":"n"},"a":1,"a":{"b":2},"z":[]}`,
		`{"kind":"X","apiVersion":"v1","metadata":{"name":"n"},"a":[1,1.0,2.5,-3,1e3,12345678901234567890,"1",true,null,{},[],{"k":[{"v":1}]}],"b":{"":0,"x y":1,"é":2}}`,
		`{"kind":"X","apiVersion":"v1","metadata":{"name":"n"},"p":{"x":1,"y":[1,2,{"z":1,"w":2}]},"q":{"y":[1, 2,{"w":2,"z":1}],"x":1},"r":{"x":1,"y":[1,2,{}]}}`,
		`{"kind":"X","apiVersion":"v1","metadata":{"name":"n"} , "a" : { "b" : [ 1 , 2 ] , "c" : "\u0041\n\"\\" } , "z" : {} }`,
		`{"kind":"X","apiVersion":"v1","metadata":{"name":"n"},"a":{"b":{"c":{"d":{"e":{"f":{"g":1}}}}}},"z":"` + strings.Repeat("x", 100) + `"}`,
	}
	expressions := []string{
		`object.a == object.a`, `object.a == object.z`, `object.a == {"b": 2}`, `{"b": 2} == object.a`, `object.a.b == 2`, `object.a.b.c.d.e.f.g == 1`,
		`object.a.size() == 12`, `size(object) == 5`, `size(object.z) == 0`, `object.a[1] == 1`, `object.a[1.0] == 1`, `object.a[11].k[0].v == 1`, `object.a[99] == 1`,
		`object.a["b"] == 2`, `object.a[0] == 1`, `object.a.exists(x, x == 1e3)`, `object.a.exists(x, type(x) == int && x == 1)`, `object.a.map(x, type(x)).size() == 12`,
		`object.a + [1] == object.a + [1]`, `[1] + object.a != object.a`, `1 in object.a`, `"b" in object.a`, `1 in object`, `null in object.a`, `{} in object.a`,
		`object.b[""] == 0 && object.b["x y"] == 1 && object.b["é"] == 2`, `object.b.map(k, k).size() == 3`, `object.b.all(k, object.b[k] >= 0)`,
		`object.exists(k, k == "z")`, `has(object.a.b)`, `has(object.a.b.c)`, `has(object.nothing)`, `object.nothing == 1`, `object.a.nothing == 1`, `object.a < 1`,
		`object.p == object.q`, `object.p == object.r`, `object.p.y == object.q.y`, `object.p.y == object.r.y`, `object.p.y[2] in object.q.y`, `has(object.metadata.generation)`,
		`object.a`, `object`, `string(object.a) == ""`, `dyn(object.a) == dyn(object.a)`, `object.a.c == "A\n\"\\"`, `object.z == "` + strings.Repeat("x", 100) + `"`,
		`object.metadata == {"name": "n"}`, `object.metadata.name == "n"`, `size(object.metadata) == 1`, `object.metadata.exists(k, k == "name")`, `object == {"a": 1}`,
		`object.metadata.labels == {"app": "web", "tier": "front"}`, `{"app": "web", "tier": "front"} == object.metadata.labels`, `object.metadata.labels.map(k, k).size() == 2`,
		`object.spec.containers == object.spec.containers.map(c, c)`, `object.spec.containers.map(c, c) == object.spec.containers`, `object.spec.containers.exists(c, c in object.spec.containers)`,
		`object.?a.?b.?c.hasValue()`, `object.?nothing.orValue(1) == 1`, `object.a.?b == optional.of(2)`, `object[?"a"].hasValue()`, `object.a[?0].hasValue()`,
		`object.a.exists(i, x, i == 0 && x == 1)`, `object.b.all(k, v, v >= 0)`, `object.a.slice(0, 2) == [1, 1.0]`, `object.a.flatten().size() > 0`, `object.a.reverse()[0] == 1`,
		`object.a.sort() == []`, `object.a.first() == optional.of(1)`, `base64.encode(bytes(object.metadata.name)) == "bg=="`, `type(object.a) == map`, `type(object.a) == list`,
	}
	env, err := cel.NewEnv(append(QuantityOptions(), cel.OptionalTypes(), ext.Lists(), ext.Encoders(), ext.TwoVarComprehensions(),
		cel.Variable("object", cel.DynType))...)
	if err != nil {
		t.Fatal(err)
	}
	codec := compact.NewCodec(compact.NewDictionaries(nil))
	for _, when := range expressions {
		ast, issues := env.Compile(when)
		if issues.Err() != nil {
			t.Errorf("%s: %v", when, issues.Err())
			continue
		}
		program, err := env.Program(ast, cel.CostLimit(1_000_000))
		if err != nil {
			t.Fatal(err)
		}
		for _, raw := range documents {
			o, err := codec.Encode([]byte(raw), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			var d Document
			d.Reset(o)
			got, _, gotErr := program.Eval(map[string]any{"object": d.Value()})
			want, _, wantErr := program.Eval(map[string]any{"object": decode([]byte(raw))})
			switch {
			case (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error():
				t.Errorf("%s of %s: error %v, decoded %v", when, raw, gotErr, wantErr)
			case gotErr == nil && types.Equal(got, want) != types.True:
				t.Errorf("%s of %s = %v, decoded %v", when, raw, got, want)
			}
		}
	}
}

func TestLastOfEach(t *testing.T) {
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(`"k` + strings.Repeat("x", i) + `":` + "0,")
		}
		return b.String()
	}
	for raw, want := range map[string]int{
		`{"a":1,"b":2,"a":3}`: 2,
		`{"a":1,"b":2}`:       2,
		`{}`:                  0,
		`{` + many(40) + `"a":1,"a":2,"a":3,"b":2}`: 42,
		`{` + many(40) + `"a":3,"b":2}`:             42,
	} {
		o := NewObject([]byte(raw))
		if n, _ := o.count(); n != want {
			t.Errorf("%s has %d keys, want %d", raw, n, want)
		}
		if v, found := o.find("a"); found && v.Value() != int64(3) && want != 2 {
			t.Errorf("%s: a is %v, want the last", raw, v)
		}
	}
}

// TestQuantityExponents parses and compares amounts with so many zeros that they are no
// amounts of anything: computing them takes all memory.
func TestQuantityExponents(t *testing.T) {
	env, err := cel.NewEnv(append(QuantityOptions(), cel.Variable("q", cel.StringType))...)
	if err != nil {
		t.Fatal(err)
	}
	ast, issues := env.Compile(`isQuantity(q) && quantity(q).isGreaterThan(quantity("1"))`)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	program, err := env.Program(ast)
	if err != nil {
		t.Fatal(err)
	}
	for q, want := range map[string]bool{
		"1e999999999": false, "1.5E999999999": false, "1234567890123456789e999999999": false, "1e-999999999": false, "1e+000999999999": false,
		"1e999": true, "2E": true, "1.5e3": true, "1e+0003": true, "5Mi": true, "1e-3": false, "12345678901234567890e10": true,
	} {
		got, _, err := program.Eval(map[string]any{"q": q})
		if err != nil || got != types.Bool(want) {
			t.Errorf("%s: %v, %v; want %t", q, got, err, want)
		}
	}
}
