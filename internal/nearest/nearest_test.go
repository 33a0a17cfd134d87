package nearest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/nearest"
)

func TestNearest(t *testing.T) {
	known := []string{"selectorSide", "labelSelector", "fieldSelector", "drop", "redact", "name", "a"}
	for text, want := range map[string]string{
		"labelSelector":  "labelSelector",
		"labelselector":  "labelSelector",
		"lableSelector":  "labelSelector",
		"labelSelectors": "labelSelector",
		"feildSelector":  "fieldSelector",
		"slectorside":    "selectorSide",
		"dorp":           "drop",
		"drops":          "drop",
		"nam":            "name",
		"":               "a",
		"unrelated":      "",
		"colour":         "",
		"b":              "a",
		"bc":             "",
	} {
		if got := nearest.Of(text, known); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := nearest.Of(strings.Repeat("a", 81), []string{strings.Repeat("a", 81)}); got != "" {
		t.Errorf("a very long text: %q", got)
	}
	if got := nearest.Of("drop", make([]string, 1000)); got != "" {
		t.Errorf("very many candidates: %q", got)
	}
	if got := nearest.Of("drop", nil); got != "" {
		t.Errorf("no candidates: %q", got)
	}
}

func TestFirst(t *testing.T) {
	for text, want := range map[string]string{"op": "ops archive audit", "audti": "audit archive ops", "unrelated": "archive audit ops"} {
		if got := nearest.First(text, []string{"audit", "ops", "archive"}); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
