package imports

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// modules are those whose packages a package links, without this one.
func modules(t *testing.T, pkg string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", pkg)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	list := strings.Fields(string(out))
	slices.Sort(list)
	list = slices.Compact(list)
	return slices.DeleteFunc(list, func(m string) bool { return m+"/" == module })
}

// TestModules compares the modules in the program with the list of those that are accepted.
func TestModules(t *testing.T) {
	const golden = "testdata/modules.txt"
	got := strings.Join(modules(t, "./cmd/watcherd"), "\n") + "\n"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(filepath.FromSlash(golden))
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the modules of the program differ from %s: if that is meant, run go test ./hack/imports -update. They are\n%s", golden, got)
	}
}

// TestSize builds the program as the image has it, and bounds its size.
func TestSize(t *testing.T) {
	const most = 60_000_000 // bytes
	path := filepath.Join(t.TempDir(), "watcherd")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./cmd/watcherd")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if t.Logf("%d bytes", info.Size()); info.Size() > most {
		t.Errorf("the program has %d bytes, more than %d", info.Size(), most)
	}
}

// TestLibraryLinksNoKind: a program that embeds the daemon links the client libraries of the kinds
// that it names, and of no other.
func TestLibraryLinksNoKind(t *testing.T) {
	linked := modules(t, "./pkg/watcherd")
	for _, client := range []string{"github.com/nats-io/nats.go", "github.com/twmb/franz-go", "github.com/twmb/franz-go/pkg/kmsg", "github.com/jackc/pgx/v5", "go.opentelemetry.io/proto/slim/otlp", "github.com/minio/minio-go/v7", "github.com/valkey-io/valkey-go"} {
		if slices.Contains(linked, client) {
			t.Errorf("pkg/watcherd links %s", client)
		}
	}
}
