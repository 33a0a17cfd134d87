package imports

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	row    = regexp.MustCompile(`(?m)^\| (.+?) \| (.+?) \|`)
)

// TestWalk: what ARCHITECTURE.md names on the way of an update is where it says.
func TestWalk(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, walk, _ := strings.Cut(string(page), "\n## One update, hop by hop\n")
	walk, _, _ = strings.Cut(walk, "\n## ")
	named := 0
	for _, hop := range row.FindAllStringSubmatch(walk, -1) {
		code, dir := "", ""
		for _, place := range quoted.FindAllStringSubmatch(hop[2], -1) {
			name := place[1]
			if !strings.Contains(name, "/") {
				name = path.Join(dir, name)
			}
			dir = path.Dir(name)
			code += source(t, name)
		}
		for _, q := range quoted.FindAllStringSubmatch(hop[1], -1) {
			owner, method, isMethod := strings.Cut(q[1], ".")
			there := `(?m)^(type |func |\t)` + owner + ` ?(struct|\()`
			if isMethod { // it is declared or called
				there = `(?mi)^func \(\w* ?\*?` + owner + `\) ` + method + `\(|\.` + method + `\(`
			}
			named++
			if !regexp.MustCompile(there).MatchString(code) {
				t.Errorf("ARCHITECTURE.md: %s is not in %s", q[1], hop[2])
			}
		}
	}
	if named < 9 {
		t.Errorf("the walk names %d things, want 9 or more", named)
	}
}

// source is the text of a file, or of the files of a folder.
func source(t *testing.T, name string) string {
	t.Helper()
	files := []string{filepath.Join(root, name)}
	if !strings.HasSuffix(name, ".go") {
		var err error
		if files, err = filepath.Glob(filepath.Join(root, name, "*.go")); err != nil || len(files) == 0 {
			t.Errorf("ARCHITECTURE.md: there is no %s (%v)", name, err)
			return ""
		}
	}
	text := ""
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("ARCHITECTURE.md: %v", err)
		}
		text += string(b)
	}
	return text
}
