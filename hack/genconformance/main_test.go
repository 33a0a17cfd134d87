package main

import (
	"os"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// TestPage holds the page against the code: it has every kind and every check.
func TestPage(t *testing.T) {
	t.Chdir("../..")
	page, err := os.ReadFile("docs/sinks.md")
	if err != nil {
		t.Fatal(err)
	}
	all := results{}
	names, err := checks()
	if err != nil {
		t.Fatal(err)
	}
	built := kinds.Builtin()
	if len(built) != len(columns) {
		t.Errorf("the page has %d of %d kinds", len(columns), len(built))
	}
	for _, k := range columns {
		if built[k.name] == nil {
			t.Errorf("there is no kind %s", k.name)
		}
		for _, check := range names {
			all[cell{k.name, check}] = map[string]int{}
		}
	}
	blank, err := all.page()
	if err != nil {
		t.Fatal(err)
	}
	unmarked := func(s string) string { return strings.ReplaceAll(s, " ✓ |", " |") }
	if unmarked(string(page)) != unmarked(blank) {
		t.Error("docs/sinks.md is stale: make it from a run of the tests, as hack/genconformance says")
	}
	if strings.Count(string(page), "✓") < 5*len(names) {
		t.Error("docs/sinks.md has hardly a mark")
	}
}

func TestFailedCheck(t *testing.T) {
	if _, err := read(strings.NewReader(`{"Action":"fail","Package":"x/kafka","Test":"TestConformance/json/takes_values"}`)); err == nil || !strings.Contains(err.Error(), "takes_values failed") {
		t.Error(err)
	}
}
