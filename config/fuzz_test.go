package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/config"
)

// FuzzParse: whatever the input, an answer comes soon and is either a usable
// configuration or problems with their places.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, "watcherd.yaml") {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse("f", data, kinds())
		if err == nil {
			if c == nil || c.Validate() != nil {
				t.Errorf("accepted and yet not valid: %v", c.Validate())
			}
			return
		}
		list, ok := errors.AsType[*config.Errors](err)
		if !ok || c != nil || len(list.List) == 0 {
			t.Fatalf("%T %v, %v", err, err, c)
		}
		for _, e := range list.List {
			if e.Line < 1 || e.Column < 1 || len(e.Error()) > 8_000 {
				t.Errorf("%+v", e)
			}
		}
	})
}

// hostileSize is enough for anything worse than linear to be felt.
const hostileSize = config.MaxSize / 8

// TestHostileInputIsCheap parses inputs that are made to cost much more than their
// size. One that hangs ends in the test's timeout.
func TestHostileInputIsCheap(t *testing.T) {
	fill := func(prefix, item, suffix string) string {
		return prefix + strings.Repeat(item, (hostileSize-len(prefix)-len(suffix))/len(item)) + suffix
	}
	const flow = header + "watches:\n- {name: w, resources: [pods]}\n"
	for name, text := range map[string]string{
		"unknown keys":       numbered(header, "k%: 1\n"),
		"duplicate keys":     fill(header, "store: {}\n", ""),
		"empty watches":      fill(header+"watches:\n", "- {}\n", ""),
		"wrong enums":        fill(flow+"routes:\n- {name: r, sinks: [s], events: [", "x,", "]}\n"),
		"dangling sinks":     fill(flow+"routes:\n- {name: r, sinks: [", "s,", "]}\n"),
		"many names":         numbered(header+"watches:\n", "- {name: n%, resources: [pods]}\n"),
		"open brackets":      fill(header+"x: ", "[", ""),
		"open braces":        fill(header+"x: ", "{", ""),
		"brackets and pairs": fill(header+"x: ", "[a: ", ""),
		"question marks":     fill(header, "? ", ""),
		"dashes":             fill(header+"watches:\n", "- ", ""),
		"anchors":            numbered(header+"x:\n", "- &a% 1\n"),
		"aliases":            fill(header+"x: &x {}\ny: [", "*x,", "]\n"),
		"one long string":    fill(header+"cluster: {name: \"", "a", "\"}\n"),
		"one long key":       fill(header, "a", ": 1\n"),
		"quotes":             fill(header+"x: ", "\"\" ", ""),
		"comments":           fill(header, "#\n", ""),
		"blank lines":        fill(header, "\n", "x: 1\n"),
		"block scalar":       fill(header+"x: |\n", "  a\n", ""),
		"folded scalar":      fill(header+"x: >\n", "  a\n\n", ""),
		"documents":          fill(header, "---\n", ""),
		"directives":         fill("", "%TAG ! a\n", ""),
		"tags":               fill(header+"x: [", "!!int a,", "]"),
		"tabs":               fill(header+"x:", "\t", "1"),
		"indents":            indented(),
		"long durations":     fill(header+"consistencyCheck: {interval: ", "9", "s}\n"),
		"long quantity":      fill(header+"store: {maxBytes: ", "9", "}\n"),
		"long number":        fill(header+"kubeAPI: {burst: ", "9", "}\n"),
		"ors":                fill(header+"x: ", "a b ", ""),
	} {
		t.Run(name, func(t *testing.T) {
			if len(text) > hostileSize {
				text = text[:hostileSize]
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := config.Parse("w.yaml", []byte(text), kinds())
			runtime.ReadMemStats(&after)
			if err == nil && name != "comments" && name != "many names" {
				t.Error("accepted")
			}
			if spent := (after.TotalAlloc - before.TotalAlloc) >> 20; spent > 128 {
				t.Errorf("%d MiB allocated", spent)
			}
		})
	}
}

// numbered repeats item with % replaced by a number until hostileSize is reached.
func numbered(prefix, item string) string {
	var b strings.Builder
	b.WriteString(prefix)
	for i := 0; b.Len() < hostileSize-2*len(item)-16; i++ {
		b.WriteString(strings.ReplaceAll(item, "%", "n"+strconv.Itoa(i)))
	}
	return b.String()
}

// indented nests mappings one blank deeper each line.
func indented() string {
	var b strings.Builder
	b.WriteString(header)
	for i := 0; b.Len() < hostileSize-3000; i++ {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}
