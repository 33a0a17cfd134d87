package watcherd

import (
	"os"
	"path/filepath"
	"testing"
)

// What a killed process has left in the spool folder is removed at the next start.
func TestSpoolFolderIsEmptiedAtStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), spoolDir)
	for range 2 {
		if err := emptyDir(dir); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o700 {
			t.Errorf("the folder's mode is %v", info.Mode())
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "watch-1"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
