// Package imports draws who imports whom from the code, into ARCHITECTURE.md.
package imports

import (
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/watcherd/watcherd/"
	begin  = "<!-- imports: go test ./hack/imports -update -->\n```\n"
	end    = "```\n<!-- end of imports -->"
)

var update = flag.Bool("update", false, "write the picture into ARCHITECTURE.md")

// TestPicture compares the picture of ARCHITECTURE.md with the code.
func TestPicture(t *testing.T) {
	path := filepath.Join(root, "ARCHITECTURE.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	drawn, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("ARCHITECTURE.md has no place for the picture")
	}
	want := draw(t)
	if drawn == want {
		return
	}
	if !*update {
		t.Fatalf("the picture of ARCHITECTURE.md is stale: run go test ./hack/imports -update. It is\n%s", want)
	}
	if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o600); err != nil {
		t.Fatal(err)
	}
}

// draw lists the packages of the daemon and what of the project each imports, importers
// first. Packages below internal folders of pkg count as their parents.
func draw(t *testing.T) string {
	t.Helper()
	imports := map[string]map[string]bool{}
	for _, top := range []string{"cmd", "config", "internal", "pkg"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			from, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			from = room(filepath.ToSlash(from))
			if imports[from] == nil {
				imports[from] = map[string]bool{}
			}
			for _, spec := range f.Imports {
				if to, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module); ours && room(to) != from {
					imports[from][room(to)] = true
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for p := range imports {
		for _, tests := range []string{"internal/apitest", "internal/testcluster", "internal/e2e", "internal/simulation"} {
			if strings.HasPrefix(p, tests) {
				delete(imports, p)
			}
		}
	}
	depth := map[string]int{}
	var measure func(p string) int
	measure = func(p string) int {
		if d, ok := depth[p]; ok {
			return d
		}
		depth[p] = 0
		for to := range imports[p] {
			depth[p] = max(depth[p], 1+measure(to))
		}
		return depth[p]
	}
	var rooms []string
	for p := range imports {
		rooms = append(rooms, p)
		measure(p)
	}
	slices.SortFunc(rooms, func(a, b string) int {
		if depth[a] != depth[b] {
			return depth[b] - depth[a]
		}
		return strings.Compare(a, b)
	})
	var b strings.Builder
	for _, p := range rooms {
		var to []string
		for x := range imports[p] {
			to = append(to, x[strings.LastIndexByte(x, '/')+1:])
		}
		slices.Sort(to)
		line := fmt.Sprintf("%-22s %s", p, strings.Join(to, " "))
		fmt.Fprintln(&b, strings.TrimRight(line, " "))
	}
	return b.String()
}

// room is the package that a package below pkg belongs to.
func room(path string) string {
	path, _, _ = strings.Cut(path, "/internal/")
	if rest, ok := strings.CutPrefix(path, "pkg/sinks/"); ok && rest != "" {
		return "pkg/sinks"
	}
	return path
}
