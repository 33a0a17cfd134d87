package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// TestLibraryPrograms pastes each program of the docs into an empty module, builds it and
// runs it against an API server.
func TestLibraryPrograms(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := filepath.Glob(root + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	fence := regexp.MustCompile("(?s)```go\n(package main\n.*?)```")
	programs := 0
	for _, doc := range append(docs, root+"/README.md") {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range fence.FindAllStringSubmatch(string(text), -1) {
			programs++
			t.Run(fmt.Sprint(filepath.Base(doc), i), func(t *testing.T) { tryProgram(t, root, m[1]) })
		}
	}
	if programs == 0 {
		t.Error("the docs have no program")
	}
}

func tryProgram(t *testing.T, root, source string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/main.go", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(root + "/go.sum")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/go.sum", sums, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"mod init example.com/program",
		"mod edit -require=github.com/watcherd/watcherd@v0.0.0 -replace=github.com/watcherd/watcherd=" + root,
		"build -mod=mod -o program .",
	} {
		cmd := exec.CommandContext(t.Context(), "go", strings.Fields(args)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", args, err, out)
		}
	}
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	cmd := exec.CommandContext(t.Context(), dir+"/program")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.Apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: pasted, namespace: "+ns+"}\n")
	found := false
	lines := bufio.NewScanner(out)
	for !found && lines.Scan() { // the end of the test ends the program
		found = lines.Text() == "added "+ns+"/pasted"
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	for lines.Scan() {
	}
	if err := cmd.Wait(); err != nil || !found {
		t.Errorf("the program saw the config map: %v; it ended with %v", found, err)
	}
}
