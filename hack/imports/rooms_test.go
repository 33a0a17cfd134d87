package imports

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRooms: ARCHITECTURE.md's table of rooms has each package once, and no other. These rooms are
// trees of packages, as is what lies in an internal folder of a room.
func TestRooms(t *testing.T) {
	trees := []string{"internal/testcluster", "internal/testservers", "internal/ui", "pkg/sinks", "playground"}
	page, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n## The rooms\n")
	table, _, _ = strings.Cut(table, "\nWho may ")
	rows := map[string]int{}
	for _, r := range row.FindAllStringSubmatch(table, -1) {
		for _, name := range quoted.FindAllStringSubmatch(r[1], -1) {
			rows[name[1]]++
		}
	}
	packages := map[string]bool{}
	for _, top := range []string{"cmd", "config", "internal", "pkg", "playground"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			dir, err := filepath.Rel(root, filepath.Dir(path))
			dir, _, _ = strings.Cut(filepath.ToSlash(dir), "/internal/")
			for _, tree := range trees {
				if strings.HasPrefix(dir, tree+"/") {
					dir = tree
				}
			}
			packages[dir] = true
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for p := range packages {
		if rows[p] != 1 {
			t.Errorf("ARCHITECTURE.md: the table of rooms has %s %d times", p, rows[p])
		}
		delete(rows, p)
	}
	for name := range rows {
		t.Errorf("ARCHITECTURE.md: the table of rooms has %s, which is no package", name)
	}
}
