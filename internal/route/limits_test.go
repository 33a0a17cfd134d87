package route

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestPatternsTogether: a few characters of a pattern take thousands of instructions, and an expression may have hundreds of patterns: it is
// refused before these are compiled, which would take gigabytes and a quarter of a minute.
func TestPatternsTogether(t *testing.T) {
	matches := func(pattern string, times int) string {
		return strings.TrimSuffix(strings.Repeat(fmt.Sprintf("metadata.name.matches(%q) || ", pattern), times), " || ")
	}
	for expression, accepted := range map[string]bool{
		matches(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$|(?i)^\pL+ (error|warning)$`, 60): true,
		matches(strings.Repeat(`\pL{999}`, 4), 150):                                    false,
		matches(strings.Repeat(`\pL{999}`, 1200), 1):                                   false,
		matches(strings.Repeat(`\pL`, 3000), 1):                                        false,
		matches(strings.Repeat(`\pL`, 30), 60):                                         false,
		`regex.extract(metadata.name, "` + strings.Repeat(`a{999}`, 2000) + `") == ""`: false,
	} {
		testkit.Allocates(t, 100<<20, func() {
			if _, faults := CompileCondition(expression); (faults == nil) != accepted {
				t.Errorf("%.80s: %v", expression, faults)
			}
		})
	}
}

// hugeObject has a text of so many bytes and a list of so many items.
func hugeObject(text, items int) string {
	var b strings.Builder
	b.WriteString(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"prod"},"big":"`)
	b.WriteString(strings.Repeat("a", text))
	b.WriteString(`","digits":"`)
	b.WriteString(strings.Repeat("9", text/10))
	b.WriteString(`","numbers":[`)
	b.WriteString(strings.TrimSuffix(strings.Repeat("1,", items), ","))
	b.WriteString(`],"list":[`)
	for i := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"n":%d,"s":"item-%d"}`, i, i)
	}
	b.WriteString(`]}`)
	return b.String()
}

// costly are expressions that would take all memory, or minutes, of a [hugeObject].
func costly() []string {
	bound := func(depth int, inner string) string { // two lists of 10^depth items that are ten each
		expr := strings.NewReplacer("LAST", fmt.Sprint("a", depth), "OTHER", fmt.Sprint("b", depth)).Replace(inner)
		for i := depth; i > 0; i-- {
			for _, list := range []string{"a", "b"} {
				expr = fmt.Sprintf("cel.bind(%s%d, [%s], %s)", list, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("%s%d,", list, i-1), 10), ","), expr)
			}
		}
		return "cel.bind(a0, 1, cel.bind(b0, 1, " + expr + "))"
	}
	nested := func(inner string) string { // 10^7 items that are one list in ten
		lists := []string{"b", "c", "d", "e", "f", "g"}
		expr, last := inner, "g"
		for i, list := range slices.Backward(lists) {
			of := "a"
			if i > 0 {
				of = lists[i-1]
			}
			expr = fmt.Sprintf("cel.bind(%s, [%s], %s)", list, strings.TrimSuffix(strings.Repeat(of+",", 10), ","), expr)
		}
		return "cel.bind(a, [1,2,3,4,5,6,7,8,9,10], " + strings.ReplaceAll(expr, "LAST", last) + ")"
	}
	return []string{
		`object.list.all(a, object.list.all(b, a.n != b.n || a.s == b.s))`,
		`object.list.all(a, object.list.all(b, object.list.all(c, a != b || b != c || true)))`,
		`object.list.map(a, object.big).size() > 0`,
		`object.list.map(a, object.big + string(a.n)).size() > 0`,
		`object.list.map(a, object.list + object.list).size() > 0`,
		`object.list.all(x, object.big.matches("a*b|a*c|(a|b|c)*d") || true)`,
		`object.big.split("").map(c, object.big.split("")).size() > 0`,
		`lists.range(1000000000).size() > 0`,
		`(` + strings.TrimSuffix(strings.Repeat("object.big+", 20), "+") + `).size() > 0`,
		`cel.bind(x, object.big + object.big, cel.bind(y, x + x, cel.bind(z, y + y, cel.bind(w, z + z, (w + w + w + w).size() > 0))))`,
		nested("LAST == [LAST]"),
		nested("LAST.exists(x, x == LAST)"),

		`object.big.matches(object.big)`,
		`object.big.matches("(?:a?){500}a{500}$")`,
		`object.big.matches("([a-z]+){1,60}[0-9]{1,60}z")`,
		`regex.extract(object.big, "(?:a?){500}a{500}$").hasValue()`,
		`object.big.replace("a", object.big).size() > 0`,
		`["a", "b"].join(object.big).size() > 0`,
		`"%s%s".format([object.big, object.big]).size() > 0`,
		`"%.999999999f".format([1.0]).size() > 0`,
		`regex.replace(object.big, "a", object.big).size() > 0`,
		`regex.extract(object.big, object.big).hasValue()`,
		`object.list.distinct().size() > 0`,
		`sets.contains(object.list, object.list)`,
		`object.list.transformMap(i, v, v).size() > 0`,

		// CEL charges nothing for an iteration that is constant, and for these calls as if their time were, too.
		`object.list.all(a, object.list.filter(b, false).size() == 0)`,
		`object.list.all(a, object.list.map(b, false, b).size() == 0)`,
		`object.list.all(a, !object.list.exists_one(b, false))`,
		`object.list.all(a, object.big.size() > 0)`,
		`object.list.all(a, int(object.digits) > 0 || a.n >= 0)`,
		`object.list.all(a, double(object.digits) > 0.0 || a.n >= 0)`,
		`object.list.all(a, bytes(object.big) != b"")`,
		`object.list.all(a, string(object.big) != "")`,
		`object.list.all(a, timestamp(object.big) > timestamp("2026-01-01T00:00:00Z") || a.n >= 0)`,
		`object.list.all(a, duration(object.big) > duration("1s") || a.n >= 0)`,
		`object.list.all(a, timestamp("2026-01-01T00:00:00Z").getHours("Europe/Vienna") == 1)`,
		`object.list.all(a, timestamp("2026-01-01T00:00:00Z").getHours(object.big) == 1 || a.n >= 0)`,
		`object.list.all(a, quantity("1e999").compareTo(quantity("1e-999")) > 0)`,
		`object.list.all(a, isQuantity("1e-999") && isQuantity("1e999"))`,
		`object.list.all(a, object.big.reverse() != "")`,
		`object.list.all(a, object.list.reverse().size() > 0)`,
		`object.list.all(a, object.numbers.sort().size() > 0)`,
		`object.list.all(a, math.greatest(object.numbers) > 0)`,
		`object.list.all(a, !(-1 in object.numbers))`,
		`object.list.all(a, object.big <= oldObject.big)`,

		// CEL charges a comparison of lists and maps for their own items alone.
		`object.list.all(a, object == oldObject)`,
		`object.list.all(a, [object.numbers] == [oldObject.numbers])`,
		`object.list.all(a, !([object.numbers] != [oldObject.numbers]))`,
		`object.list.all(a, [object.numbers] in [[oldObject.numbers]])`,
		`object.list.all(a, optional.of([object.numbers]) == optional.of([oldObject.numbers]))`,
		bound(3, "object.list.all(x, LAST == OTHER)"),

		// CEL charges nothing for the length of a text here, but counts its characters, or compares it.
		`object.list.all(a, optional.of([object.numbers]).hasValue([oldObject.numbers]))`,
		`object.list.all(a, !"".contains(object.big))`,
		`object.list.all(a, matches(object.big, ""))`,
		`object.list.all(a, "".indexOf(object.big) < 0)`,
		`object.list.all(a, "".lastIndexOf(object.big) < 0)`,
		`object.list.all(a, object.big.containsIP("10.0.0.1") || a.n >= 0)`,
		`object.list.all(a, cidr("10.0.0.0/8").containsCIDR(object.big) || a.n >= 0)`,
		`cel.bind(l, [object.big, oldObject.big], object.list.all(a, l.sort().size() > 0))`,
		`cel.bind(l, [string(object.big), string(oldObject.big)], object.list.all(a, l.sort().size() > 0))`,
		`cel.bind(l, [object.big, oldObject.big], object.list.all(a, l.sortBy(t, t).size() > 0))`,
		`cel.bind(l, [string(object.big), string(oldObject.big)], object.list.all(a, l.sortBy(t, t).size() > 0))`,
	}
}

// Costly expressions are refused at load or cut off.
func TestLimits(t *testing.T) {
	o := newObjects(t)
	huge := o.from(hugeObject(100_000, 1000))
	c := change(event.Updated, huge, huge)
	// A tenth of the real limits and of an object that would just pass them: what
	// matters is that the limits see it.
	x, err := newExpressions(celexpr.Limits{Cost: 100_000, Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, when := range costly() {
		compiled, faults := x.compile(when, isCondition)
		if faults != nil {
			continue
		}
		e := newEvaluation(x.views)
		e.reset(c, 0)
		if _, missing, err := compiled.eval(e); err == nil || missing {
			t.Errorf("%.100s: no limit stops it (metered %t, missing %t)", when, compiled.metered, missing)
		}
	}
}

// A call that one object makes take minutes before a limit applies is refused at load. CEL charges for these
// when they have returned: hasAll() of two lists of 60,000 numbers took more than 100 s.
func TestDenied(t *testing.T) {
	for _, call := range []string{
		`object.a.hasAny(object.b)`, `object.a.hasAll(object.b)`, `object.a.hasOnly(object.b)`, `object.a.hasExactly(object.b)`,
		`json.encode(object) == ""`, `json.parse(object.a).hasValue()`, `yaml.encode(object) == ""`, `yaml.parse(object.a).hasValue()`,
		`object.a.distinct() == []`, `object.a.join() == ""`, `object.a.replace("a", "b") == ""`, `"%s".format([object.a]) == ""`,
		`regex.extract(object.a, "a").hasValue()`, `regex.replace(object.a, "a", "b") == ""`, `regex.extractAll(object.a, "a") == []`,
	} {
		if _, faults := CompileCondition(call); len(faults) != 1 || !strings.Contains(faults[0].Msg, "unbounded cost") {
			t.Errorf("%s: %v", call, faults)
		}
	}
}

// The limits leave room for what a filter may sensibly ask of a large object.
func TestLimitsLeaveRoom(t *testing.T) {
	o := newObjects(t)
	raw := hugeObject(500_000, 5000)
	c := change(event.Updated, o.from(raw), o.from(strings.Replace(raw, "item-4999", "item", 1)))
	for _, when := range []string{
		`object.list.exists(a, a.n == 4999)`,
		`object.list.all(a, a.n >= 0 && a.s.startsWith("item"))`,
		`object.list.map(a, a.n).size() == 5000`,
		`object.list.filter(a, a.n > 100).size() == 4899`,
		`object.list != oldObject.list && object.big == oldObject.big && object != oldObject`,
		`object.big.matches("^a+$")`,
		`!object.big.matches("error|warning") && metadata.name.matches("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")`,
		`object.big.contains("aaaa") && !object.big.endsWith("b")`,
		`{"x": 1} in object.list || true`,
		`object.list.all(a, !object.?big.hasValue(a.s))`,
		`object.list.all(a, quantity(string(a.n)).isLessThan(quantity("5k")))`,
		`object.list.sortBy(a, a.s).size() == 5000 && object.list.map(a, a.s).sort().size() == 5000`,
		`object.list.all(a, !(object.big in ["a", "b"]) && !(a.s in ["nothing", object.big]))`,
		`object.list.all(a, !{"a": 1}[?object.big].hasValue())`,
		`{"item": 1, "none": 2}[object.list[4999].s] == 1 && object.list[4999].s in {"item": 1} && {1: "a"}[object.list[1].n] == "a"`,
		`{"a": 1} == {"a": 1} && {"b": {"a": 1}}.b.a == 1 && {"ä": 2}["ä"] == 2 && {"a": 1, "b": 2}.all(k, v, k < "c" && v < 3) && !({"a": 1}[?object.big].hasValue())`,
		`object.list.exists(a, a.s in ["item-4999", "item"]) && object.list[1].n in [1, 2] && !("item" in [])`,
	} {
		r, err := Compile([]Spec{{Name: "r", When: when, Sinks: []string{"s"}}})
		if err != nil {
			t.Errorf("%s: %v", when, err)
			continue
		}
		if got, s := r.Route(nil, c), r.Stats()[0]; len(got) != 1 || s.Errors > 0 {
			t.Errorf("%s: %d targets, %+v", when, len(got), s)
		}
	}
}

// An object of the API server's size does not take seconds, whatever is in it. The cost
// limit comes too late for this: it counts each lookup once, and calls that have returned.
func TestHostileObjects(t *testing.T) {
	var wide strings.Builder
	wide.WriteString(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{"l":"x"`)
	for i := range 5_000 {
		fmt.Fprintf(&wide, `,"l%d":""`, i)
	}
	wide.WriteString(`}},"text":"` + strings.Repeat("a", 100_000) + `","part":"` + strings.Repeat("a", 50_000) + `b","data":{"d":"x"`)
	for i := range 30_000 {
		fmt.Fprintf(&wide, `,"%d":""`, i)
	}
	wide.WriteString(`}}`)
	o := newObjects(t)
	c := change(event.Added, nil, o.from(wide.String()))
	for when, want := range map[string]string{
		`object.data.exists_one(k, object.data[k] == "x")`:                              "",
		`metadata.labels.exists_one(k, metadata.labels[k] == "x")`:                      "",
		`object.metadata.labels.exists_one(k, object.metadata.labels[k] == "x")`:        "",
		`object.data.exists_one(k, v, v == "x")`:                                        "",
		`object.text.indexOf(object.part) < 0 && object.text.indexOf("b") < 0`:          "cost limit",
		`object.text.lastIndexOf(object.part) < 0 || object.text.lastIndexOf("b") == 0`: "cost limit",
	} {
		r, err := Compile([]Spec{{Name: "r", When: when, Sinks: []string{"s"}}})
		if err != nil {
			t.Errorf("%s: %v", when, err)
			continue
		}
		got, s := r.Route(nil, c), r.Stats()[0]
		if want == "" && (len(got) != 1 || s.Errors > 0) || want != "" && (s.FirstError == nil || !strings.Contains(s.FirstError.Error(), want)) {
			t.Errorf("%s: %d targets, %+v", when, len(got), s)
		}
	}
}

// TestKeysInALoop: a loop over the keys of a map, within another loop, takes what it reads of them. It took all of them each time, which
// CEL does not charge for: a minute, of an object of 900 KB.
func TestKeysInALoop(t *testing.T) {
	const keys, items = 5_000, 2_000
	var members strings.Builder
	for i := range keys {
		fmt.Fprintf(&members, `,"k%d":""`, i)
	}
	o := newObjects(t)
	c := change(event.Added, nil, o.from(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{"l":""`+members.String()+`}},"data":{"d":""`+
		members.String()+`},"items":[1`+strings.Repeat(",1", items)+`]}`))
	for _, when := range []string{
		`object.items.all(i, object.data.exists(k, true))`, `object.items.all(i, object.data.exists(k, v, true))`,
		`object.items.all(i, metadata.labels.exists(k, true))`, `object.items.all(i, object.metadata.exists(k, true))`,
		`object.items.all(i, object.metadata.labels.exists(k, true))`, `object.items.all(i, object.exists(k, true))`,
		`object.items.all(i, metadata.labels != {"l": "x"})`,
	} {
		r, err := Compile([]Spec{{Name: "r", When: when, Sinks: []string{"s"}}})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		testkit.Allocates(t, keys*items, func() {
			if got := r.Route(nil, c); len(got) != 1 {
				t.Errorf("%s: %v", when, r.Stats()[0].FirstError)
			}
		})
	}
}

// TestLongKeys: a text that no key is as long as is found nowhere, without a hash or an error that takes all of it, and one that may be a key of
// an absurd length is an error. A loop that looked up a text of 700 KB held up all watches for 10 s, and for minutes as a field of metadata.
func TestLongKeys(t *testing.T) {
	const items = 2_000
	var members strings.Builder
	for i := range 20 {
		fmt.Fprintf(&members, `"k%d":"",`, i)
	}
	text := strings.Repeat("a", 200_000)
	o := newObjects(t)
	c := change(event.Added, nil, o.from(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{`+members.String()+`"l":""}},"data":{`+members.String()+`"d":""},"text":"`+
		text+`","long":{`+members.String()+`"`+text+`b":""},"list":[{`+members.String()+`"`+text+`b":""},1],"items":[1`+strings.Repeat(",1", items)+`]}`))
	for when, want := range map[string]string{
		`object.items.all(i, !object.data[?object.text].hasValue())`:                               "",
		`object.items.all(i, !metadata.labels[?object.text].hasValue())`:                           "",
		`!(object.text in object.data) && object.data.k1 == "" && object.long[?"k1"].hasValue()`:   "",
		`object.items.all(i, dyn(metadata)[object.text] == "")`:                                    "no such field: aaa",
		`object.items.all(i, object.long[?object.text].hasValue())`:                                "too long for a key",
		`cel.bind(m, {object.text + "b": 1}, object.items.all(i, m[?object.text].hasValue()))`:     "too long for a key",
		`cel.bind(m, {object.data.d: 1}, object.items.all(i, !m[?object.text].hasValue()))`:        "",
		`cel.bind(l, object.list + [], object.items.all(i, l[0][?object.text].hasValue()))`:        "too long for a key",
		`cel.bind(l, object.list.slice(0, 1), object.items.all(i, l[0][?object.text].hasValue()))`: "too long for a key",
		`cel.bind(l, object.list.reverse(), object.items.all(i, l[1][?object.text].hasValue()))`:   "too long for a key",
	} {
		r, err := Compile([]Spec{{Name: "r", When: when, Sinks: []string{"s"}}})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		testkit.Allocates(t, 20<<20, func() {
			got, s := r.Route(nil, c), r.Stats()[0]
			if want == "" && (len(got) != 1 || s.Errors > 0) || want != "" && (s.FirstError == nil || !strings.Contains(s.FirstError.Error(), want)) {
				t.Errorf("%s: %d targets, %v", when, len(got), s.FirstError)
			}
		})
	}
}

// TestTextInALoop: a loop over a text, which has no items, fails at once. In each iteration of another loop, which continues after an error, CEL
// counted its characters: an object of 1 MB held up all watches for a minute.
func TestTextInALoop(t *testing.T) {
	o := newObjects(t)
	c := change(event.Added, nil, o.from(`{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a"},"none":"","text":"`+strings.Repeat("a", 1<<20)+`","items":[1`+strings.Repeat(",1", 12_000)+`]}`))
	for when, want := range map[string]string{
		`object.items.exists(i, object.text.exists(t, t == i))`:                       "over a list or a map",
		`object.items.exists(i, object.text.exists(k, v, v == i))`:                    "over a list or a map",
		`object.items.exists(i, object.?text.orValue([]).exists(t, t == i))`:          "over a list or a map",
		`object.items.exists(i, (i > 0 ? object.text : []).exists(t, t == i))`:        "over a list or a map",
		`object.items.exists(i, object["te" + "xt"].map(t, t) == [i])`:                "over a list or a map",
		`cel.bind(x, object.text, object.items.exists(i, x.filter(t, t == i) != []))`: "over a list or a map",
		`object.none.all(t, t == "a") && object.items.all(i, i == 1)`:                 "",
	} {
		r, err := Compile([]Spec{{Name: "r", When: when, Sinks: []string{"s"}}})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		began := time.Now()
		got, s := r.Route(nil, c), r.Stats()[0]
		if want == "" && (len(got) != 1 || s.Errors > 0) || want != "" && (s.FirstError == nil || !strings.Contains(s.FirstError.Error(), want)) {
			t.Errorf("%s: %d targets, %v", when, len(got), s.FirstError)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s took %v", when, took)
		}
	}
}

// TestDeepLists: lists that nest deep are read once, not again for each of their levels, or each list that they are compared with: a comparison of two of 1 MB that differ in
// the innermost list took 15 s where they nested 1,000 deep.
func TestDeepLists(t *testing.T) {
	o := newObjects(t)
	nested := func(depth int) *Change {
		list := func(last string) *compact.Object {
			return o.from(`{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a"},"deep":` + strings.Repeat("[", depth) + strings.Repeat("1,", 50_000) + last + strings.Repeat("]", depth) +
				`,"long":[["` + strings.Repeat("a", 500_000) + `"]],"lists":[[["b"]]` + strings.Repeat(`,[["b"]]`, 20_000) + `]}`)
		}
		return change(event.Updated, list("1"), list("2"))
	}
	flat, deep := nested(1), nested(9000)
	x, err := newExpressions(defaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	for when, want := range map[string]string{
		`object.deep != oldObject.deep`:                           "",
		`!(object.deep in [oldObject.deep])`:                      "",
		`optional.of(object.deep) != optional.of(oldObject.deep)`: "",
		`!(object.long in object.lists)`:                          "",
		`object.deep.flatten(32) != []`:                           "",
		`object.deep.flatten(9000) == []`:                         "9000 levels are too many",
	} {
		compiled, faults := x.compile(when, isCondition)
		if faults != nil {
			t.Fatal(faults)
		}
		took := func(c *Change) time.Duration {
			e := newEvaluation(x.views)
			e.reset(c, 0)
			begin := time.Now()
			match, _, err := compiled.eval(e)
			if want == "" && (err != nil || !match) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: %t, %v", when, match, err)
			}
			return time.Since(begin)
		}
		if once, each := took(flat), took(deep); each > 100*once+2*time.Second {
			t.Errorf("%s takes %s, and %s of a flat list", when, each, once)
		}
	}
}

// What is not metered is bounded by its text.
func TestMetered(t *testing.T) {
	x, err := newExpressions(defaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	for when, want := range map[string]bool{
		`metadata.name == "x" && metadata.labels["app"] in ["a", "b"]`:   false,
		`object.status.phase == "Failed" || has(object.metadata.labels)`: false,
		`quantity(object.q).isLessThan(quantity("1"))`:                   false,
		`object.a.exists(x, x == 1)`:                                     true,
		`[1, 2].all(x, x > 0)`:                                           true,
		`cel.bind(x, [1], x == x)`:                                       true,
		`object.a == oldObject.a`:                                        true,
		`object.a.matches("(a|b)*c")`:                                    true,
		`object.a.split("").size() > 1`:                                  true,
	} {
		c, faults := x.compile(when, isCondition)
		if faults != nil {
			t.Errorf("%s: %v", when, faults)
			continue
		}
		if c.metered != want {
			t.Errorf("%s is metered: %t", when, c.metered)
		}
	}
}

// TestNesting: an expression of a client whose types take seconds to check is refused. One of 500 bytes took 7 s and 2 GB.
func TestNesting(t *testing.T) {
	for name, form := range map[string]string{
		"list": "[%s]", "map": "{'a': %s}", "optional": "optional.of(%s)", "not zero": "optional.ofNonZeroValue(%s)", "type": "type(%s)",
		"condition": "[true ? %s : dyn([])]", "loop": "[1].map(x, %s)",
	} {
		of := func(n int) []celexpr.Fault {
			text := "1"
			for range n {
				text = strings.Replace(form, "%s", text, 1)
			}
			_, faults := CompileCondition("dyn(" + text + ") == 1")
			return faults
		}
		if faults := of(10); len(faults) > 0 {
			t.Errorf("%s, 10 deep: %v", name, faults)
		}
		if faults := of(60); len(faults) != 1 || !strings.Contains(faults[0].Msg, "nest deeper than") {
			t.Errorf("%s, 60 deep: %v", name, faults)
		}
	}
}

// TestBoundValues: each value that is bound to a list with the one before twice doubled the time to estimate the cost. An expression of 700
// characters, of a client that may only read, took a quarter of an hour.
func TestBoundValues(t *testing.T) {
	const values = 30
	expression := fmt.Sprintf("x%d == x%d", values, values)
	for i := values; i > 0; i-- {
		expression = fmt.Sprintf("cel.bind(x%d, [x%d, x%d], %s)", i, i-1, i-1, expression)
	}
	done := make(chan []celexpr.Fault, 1)
	go func() {
		_, faults := CompileCondition("cel.bind(x0, 1, " + expression + ")")
		done <- faults
	}()
	select {
	case faults := <-done:
		if faults != nil {
			t.Error(faults)
		}
	case <-time.After(time.Minute):
		t.Fatal("it is still compiled")
	}
}
