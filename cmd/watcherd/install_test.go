package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestInstall builds the command from what the module proxy has of a release: the files of
// the repository without those of modules within it. go install refuses a go.mod that
// replaces or excludes modules.
func TestInstall(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	run := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	if mod := run(root, "go", "mod", "edit", "-json"); !strings.Contains(mod, `"Replace": null`) || !strings.Contains(mod, `"Exclude": null`) {
		t.Errorf("go.mod has a replace or exclude:\n%s", mod)
	}
	files := strings.Split(strings.TrimSuffix(run(root, "git", "ls-files", "-z"), "\x00"), "\x00")
	var modules []string
	for _, file := range files {
		if dir, ok := strings.CutSuffix(file, "/go.mod"); ok {
			modules = append(modules, dir+"/")
		}
	}
	copied := t.TempDir()
	for _, file := range files {
		within := false
		for _, m := range modules {
			within = within || strings.HasPrefix(file, m)
		}
		info, err := os.Lstat(filepath.Join(root, file))
		if within || err != nil || !info.Mode().IsRegular() { // a file that is deleted and not committed, or a link
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(copied, file)
		if err := os.MkdirAll(filepath.Dir(to), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(t.TempDir(), "watcherd")
	run(copied, "go", "build", "-mod=readonly", "-o", program, "./cmd/watcherd")
	if out := run(copied, program, "schema"); !strings.Contains(out, "WatcherConfig") {
		t.Errorf("watcherd schema printed %.200s", out)
	}
}
