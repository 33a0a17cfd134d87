package strict_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/config/internal/strict"
)

// TestPathsLeadBack: the path a value is reported with is one that finds it.
func TestPathsLeadBack(t *testing.T) {
	const text = `plain: 1
with-dash: 1
"": 1
with.dot: 1
'with "quotes"': 1
'with [brackets]': 1
"with \\ backslash": 1
"with\nline": 1
ünicode: 1
7: 1
nested: {list: [{a: 1}, [1, {"b.c": 1}]]}
`
	doc, p := strict.Parse([]byte(text))
	if p != nil {
		t.Fatal(p)
	}
	d := strict.NewDecoder(doc)
	var into struct{}
	d.Decode(&into)
	if len(d.Problems()) != 11 {
		t.Fatalf("%d problems", len(d.Problems()))
	}
	for i, p := range d.Problems() {
		line, column := doc.Position(p.Path)
		if p.Line != i+1 || line != p.Line || column <= p.Column {
			t.Errorf("%s: key at %d:%d, value at %d:%d", p.Path, p.Line, p.Column, line, column)
		}
	}
	for path, want := range map[string][2]int{
		`nested.list[1][1]["b.c"]`: {11, 37},
		`nested.list[1][0]`:        {11, 26},
		`nested.list[0].a`:         {11, 21},
		`nested.list[0].b`:         {11, 17},
		`nested.list.a`:            {11, 16},
		`nested[0]`:                {11, 9},
		`nested.list[0`:            {11, 16},
		`nested.list["0"]`:         {11, 16},
		`nested..list`:             {11, 9},
		`nested["list`:             {11, 9},
	} {
		line, column := doc.Position(path)
		if diff := cmp.Diff(want, [2]int{line, column}); diff != "" {
			t.Errorf("%s (-want +got)\n%s", path, diff)
		}
	}
}

func TestProblemsAreBounded(t *testing.T) {
	doc, p := strict.Parse([]byte("x: [" + strings.Repeat("a,", 5000) + "]"))
	if p != nil {
		t.Fatal(p)
	}
	d := strict.NewDecoder(doc)
	var into struct {
		X []int `json:"x"`
	}
	d.Decode(&into)
	if len(d.Problems()) != strict.MaxProblems {
		t.Errorf("%d problems", len(d.Problems()))
	}
}

// TestUnsuitableType: a field that nothing can be decoded into is a mistake of the
// program, found by its first test.
func TestUnsuitableType(t *testing.T) {
	for name, into := range map[string]any{
		"channel": &struct {
			X chan int `json:"x"`
		}{},
		"interface": &struct {
			X error `json:"x"`
		}{},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it was decoded")
				}
			}()
			doc, p := strict.Parse([]byte("x: 1"))
			if p != nil {
				t.Fatal(p)
			}
			strict.NewDecoder(doc).Decode(into)
		})
	}
}
