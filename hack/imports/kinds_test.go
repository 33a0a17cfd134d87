package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKindsAreApart: each kind of sink has its block in the linter's configuration, without which it may import the others.
func TestKindsAreApart(t *testing.T) {
	lint, err := os.ReadFile(filepath.Join(root, ".golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}
	kinds, err := filepath.Glob(filepath.Join(root, "pkg/sinks/*/config.go"))
	if err != nil || len(kinds) < 11 {
		t.Fatalf("%d kinds: %v", len(kinds), err)
	}
	for _, k := range kinds {
		kind := filepath.Base(filepath.Dir(k))
		if !strings.Contains(string(lint), "\n        sinks-"+kind+":\n") {
			t.Errorf(".golangci.yml has no block sinks-%s", kind)
		}
	}
}

// TestGoroutinesAreCounted: the tests of a package that starts goroutines look for those that are left.
func TestGoroutinesAreCounted(t *testing.T) {
	looks := []string{"goleak.", "testcluster.Main(", "natstest.VerifyMain("}
	for _, dir := range folders(t) {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		starts, tested, looked := "", false, false
		for _, name := range files {
			source, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(name, "_test.go") {
				tested = true
				for _, look := range looks {
					looked = looked || strings.Contains(string(source), look)
				}
			} else if startsGoroutines(t, name, source) {
				starts = name
			}
		}
		if starts != "" && tested && !looked {
			t.Errorf("%s starts goroutines, and the tests beside it do not look for those that are left", starts)
		}
	}
}

// folders are those of the module's packages, without the suite that looks for goroutines itself.
func folders(t *testing.T) (dirs []string) {
	t.Helper()
	for _, top := range []string{"cmd", "config", "internal", "pkg"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				if d.Name() == "node_modules" || d.Name() == "testdata" || d.Name() == "sinktest" {
					return filepath.SkipDir
				}
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return dirs
}

func startsGoroutines(t *testing.T, name string, source []byte) (starts bool) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			starts = true
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Go" { // of a sync.WaitGroup or an errgroup.Group
				starts = true
			}
		}
		return true
	})
	return starts
}
