// Package words checks the English of comments, messages and docs against the glossary
// of CONTRIBUTING.md.
package words

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// checked are the files with text, besides Go.
var checked = regexp.MustCompile(`(\.(md|ya?ml|sh|txt)|/NOTES\.txt|Makefile|Dockerfile|\.ci/run)$`)

// TestWords looks for the quoted phrases of the glossary's last column.
func TestWords(t *testing.T) {
	guide, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(guide), "\n## Words\n")
	glossary, after, found := strings.Cut(rest, "\n## ")
	rejected, terms := patterns(glossary)
	if !found || terms < 30 {
		t.Fatalf("the glossary of CONTRIBUTING.md has %d terms", terms)
	}
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files").Output()
	if err != nil {
		t.Skip("not a git checkout:", err)
	}
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSuffix(name, "\n")
		isGo := strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
		if !isGo && !checked.MatchString(name) || strings.Contains(name, "/testdata/") {
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted and not committed
		}
		if err != nil {
			t.Fatal(err)
		}
		text := string(source)
		switch {
		case isGo:
			text = prose(t, name, source)
		case name == "CONTRIBUTING.md":
			text = before + strings.Repeat("\n", strings.Count(string(guide), "\n")-strings.Count(before+after, "\n")) + after
		}
		for _, at := range rejected.FindAllStringIndex(text, -1) {
			t.Errorf("%s:%d: %q: CONTRIBUTING.md has the term to use", name, 1+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]])
		}
	}
}

var quoted = regexp.MustCompile("`([^`]+)`")

// patterns makes one expression of the phrases that a glossary quotes in its last
// column. Words of a phrase may stand on two lines.
func patterns(glossary string) (rejected *regexp.Regexp, terms int) {
	var phrases []string
	for line := range strings.Lines(glossary) {
		cells := strings.Split(strings.Trim(line, "| \n"), "|")
		if len(cells) != 3 {
			continue
		}
		terms++
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			words := strings.Fields(m[1])
			for i := range words {
				words[i] = regexp.QuoteMeta(words[i])
			}
			phrases = append(phrases, strings.Join(words, `\s+(?:(?://|#|>)\s*)?`))
		}
	}
	return regexp.MustCompile(`(?i)\b(?:` + strings.Join(phrases, "|") + `)\b`), terms
}

// prose returns a Go file with everything but its comments and strings blanked out.
func prose(t *testing.T, name string, source []byte) string {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	text := slices.Clone(source)
	for i, b := range text {
		if b != '\n' {
			text[i] = ' '
		}
	}
	keep := func(n ast.Node) {
		from, to := files.Position(n.Pos()).Offset, files.Position(n.End()).Offset
		copy(text[from:to], source[from:to])
	}
	for _, group := range file.Comments {
		keep(group)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			keep(literal)
		}
		return true
	})
	return string(text)
}
