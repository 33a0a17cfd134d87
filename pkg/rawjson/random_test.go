package rawjson

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
)

// jsonGen writes random JSON objects over a few keys: every kind of value, escapes, white space, keys that occur twice.
type jsonGen struct {
	*rand.Rand
	out strings.Builder
}

var genKeys = []string{`a`, `b`, `\u0061`, `c.d`, `metadata`, `name`, `labels`, `kind`, `"e\"`, `ü`, `*`, ``}

func (g *jsonGen) object() []byte {
	g.out.Reset()
	g.space()
	g.members(0)
	g.space()
	return []byte(g.out.String())
}

func (g *jsonGen) space() {
	g.out.WriteString([]string{"", "", "", "", "", " ", "\n", "\t \r"}[g.IntN(8)])
}

func (g *jsonGen) key() {
	k := genKeys[g.IntN(len(genKeys))]
	if strings.HasPrefix(k, `"`) {
		k = `\"e\\`
	}
	g.out.WriteString(`"` + k + `"`)
}

func (g *jsonGen) members(depth int) {
	g.out.WriteByte('{')
	g.space()
	for i := range g.IntN(5) {
		if i > 0 {
			g.out.WriteByte(',')
			g.space()
		}
		g.key()
		g.space()
		g.out.WriteByte(':')
		g.space()
		g.value(depth + 1)
		g.space()
	}
	g.out.WriteByte('}')
}

func (g *jsonGen) value(depth int) {
	kind := g.IntN(8)
	if depth > 4 {
		kind = 2 + g.IntN(6)
	}
	switch kind {
	case 0:
		g.members(depth)
	case 1:
		g.out.WriteByte('[')
		g.space()
		for i := range g.IntN(4) {
			if i > 0 {
				g.out.WriteByte(',')
				g.space()
			}
			g.value(depth + 1)
			g.space()
		}
		g.out.WriteByte(']')
	case 2, 3:
		g.out.WriteString([]string{`""`, `"x"`, `"\\"`, `"a longer text than eight bytes"`, `"\ud83d\ude00\n"`, `"€ and more €€€"`, `"\u003c1234567\""`}[g.IntN(7)])
	case 4, 5:
		g.out.WriteString([]string{`0`, `-1`, `12.50`, `1e9`, `-0.5E-3`, `12345678901234567890`}[g.IntN(6)])
	default:
		g.out.WriteString([]string{"true", "false", "null"}[g.IntN(3)])
	}
}

func (g *jsonGen) path() string {
	var b strings.Builder
	for i := range 1 + g.IntN(3) {
		switch g.IntN(6) {
		case 0:
			b.WriteString("[*]")
		case 1:
			if i > 0 {
				fmt.Fprintf(&b, "[%d]", g.IntN(3))
				continue
			}
			fallthrough
		default:
			fmt.Fprintf(&b, "[%s]", []string{`"a"`, `"b"`, `"c.d"`, `"metadata"`, `"\"e\\"`, `"ü"`, `"*"`, `""`}[g.IntN(8)])
		}
	}
	return b.String()
}

// TestRandomEdits holds the Editor, Values and Members against what the rules mean on decoded JSON.
func TestRandomEdits(t *testing.T) {
	for seed := range uint64(6_000) {
		g := &jsonGen{Rand: rand.New(rand.NewPCG(seed, 7))}
		raw := g.object()
		var o oracle
		for range g.IntN(4) {
			r := Rule{Path: g.path()}
			if g.IntN(2) == 0 {
				r.Replace = wrap
			}
			p, err := ParsePath(r.Path)
			if err != nil {
				t.Fatal(err)
			}
			o.rules, o.paths = append(o.rules, r), append(o.paths, p)
		}
		decoded := decodeJSON(raw)
		if decoded == nil {
			t.Fatalf("seed %d: the generator wrote %s", seed, raw)
		}
		got, err := mustEditor(t, o.rules...).Append(nil, raw)
		if err != nil {
			t.Fatalf("seed %d: %s with %v: %v", seed, raw, paths(o.rules), err)
		}
		if want := o.edit(decoded, nil); !reflect.DeepEqual(decodeJSON(got), want) {
			t.Fatalf("seed %d: %s with %v:\n got %s\nwant %v", seed, raw, paths(o.rules), got, want)
		}
	}
}

// TestRandomDamage changes valid JSON by a few bytes, so that most of it is just not valid any more: Scan and the Editor
// take what encoding/json takes, and nothing else.
func TestRandomDamage(t *testing.T) {
	alphabet := "{}[]\",:\\ \n01e.-tfnu\x00\x1fa\xff"
	drop := mustEditor(t, Rule{Path: "a"}, Rule{Path: "metadata[*]"}, Rule{Path: "b[0]"})
	valid := 0
	for seed := range uint64(12_000) {
		g := &jsonGen{Rand: rand.New(rand.NewPCG(seed, 9))}
		raw := g.object()
		for range 1 + g.IntN(2) {
			at := g.IntN(len(raw) + 1)
			switch c := alphabet[g.IntN(len(alphabet))]; {
			case g.IntN(3) == 0:
				raw = append(raw[:at:at], append([]byte{c}, raw[at:]...)...)
			case g.IntN(2) == 0:
				raw = raw[:at]
			case at < len(raw):
				raw[at] = c
			}
		}
		_, isObject := decodeJSON(raw).(map[string]any)
		ok := json.Valid(raw) && isObject
		if ok {
			valid++
		}
		out, err := drop.Append(nil, raw)
		if (err == nil) != ok || ok && !json.Valid(out) {
			t.Fatalf("seed %d: %q, valid: %t, edited: %q, %v", seed, raw, ok, out, err)
		}
		// Metadata of the wrong type is another reason for Scan to refuse; it never takes what is not valid.
		m, err := Scan(raw)
		if err == nil && !ok {
			t.Fatalf("seed %d: Scan took %q", seed, raw)
		}
		if want, plain, wantErr := decodeMeta(raw); ok && plain && wantErr == nil && (err != nil || string(m.Name) != want.Name || !equality.Semantic.DeepEqual(m.Labels.Map(), want.Labels)) {
			t.Fatalf("seed %d: %q: got %+v, %v, want %+v", seed, raw, m, err, want)
		}
	}
	if valid < 500 || valid > 11_000 {
		t.Errorf("%d of 12,000 were valid: the test shows little", valid)
	}
}
