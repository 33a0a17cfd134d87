package testcluster

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster/playground"
)

// Tool is the path of one of hack/tools' programs, which is built if necessary.
func Tool(t testing.TB, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs " + name + ", which takes minutes to build for the first time")
	}
	source, err := playground.Source(".")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "tool", "-n", name)
	cmd.Dir = filepath.Join(filepath.Dir(source), "hack", "tools")
	// promtool's service discoveries are not asked for anything here.
	cmd.Env = append(os.Environ(), "GOFLAGS=-tags=remove_all_sd")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, &stderr)
	}
	return strings.TrimSpace(string(out))
}
