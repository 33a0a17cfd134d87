package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackageComments: each package has one comment, in doc.go if it is long; that of a large package has the reason.
func TestPackageComments(t *testing.T) {
	const long, large = 18, 2000 // lines
	for _, top := range []string{"cmd", "config", "internal", "pkg"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(dir string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() || d.Name() == "testdata" || d.Name() == "node_modules" {
				return err
			}
			files, err := filepath.Glob(filepath.Join(dir, "*.go"))
			if err != nil {
				return err
			}
			var comments []string
			lines, code := 0, false
			for _, name := range files {
				if strings.HasSuffix(name, "_test.go") {
					continue
				}
				source, err := os.ReadFile(name)
				if err != nil {
					return err
				}
				set := token.NewFileSet()
				f, err := parser.ParseFile(set, name, source, parser.PackageClauseOnly|parser.ParseComments)
				if err != nil {
					return err
				}
				code = true
				if !ast.IsGenerated(f) {
					lines += strings.Count(string(source), "\n")
				}
				if f.Doc == nil {
					continue
				}
				comments = append(comments, f.Doc.Text())
				if n := strings.Count(string(source[f.Doc.Pos()-f.FileStart:f.Doc.End()-f.FileStart]), "\n") + 1; n > long && filepath.Base(name) != "doc.go" {
					t.Errorf("%s: the package comment of %d lines belongs into doc.go", name, n)
				}
			}
			if code && len(comments) != 1 {
				t.Errorf("%s has %d package comments", dir, len(comments))
			} else if lines > large && !strings.Contains(strings.ReplaceAll(comments[0], "\n", " "), "package is larger than ") {
				t.Errorf("%s has %d lines: its comment says nothing of that (\"The package is larger than others, because …\")", dir, lines)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
