package watcherd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// TestUnavailable: a loaded state has the secrets that the process cannot read.
func TestUnavailable(t *testing.T) {
	t.Setenv("WATCHERD_TEST_URL", "")
	file := filepath.Join(t.TempDir(), "watcherd.yaml")
	const text = `apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
watches: [{name: w, resources: [pods]}]
sinks: [{name: s, webhook: {url: {env: WATCHERD_TEST_URL}}}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := watcherd.Load(file, kinds.Builtin())
	if err != nil {
		t.Fatal(err)
	}
	if len(st.Unavailable) != 1 || !strings.HasSuffix(st.Unavailable[0].Error(), "environment variable WATCHERD_TEST_URL is not set here, or is empty") {
		t.Errorf("unavailable: %v", st.Unavailable)
	}
	t.Setenv("WATCHERD_TEST_URL", "http://127.0.0.1:1")
	if st, err = watcherd.Load(file, kinds.Builtin()); err != nil || len(st.Unavailable) != 0 {
		t.Errorf("with the variable: %v, %v", st.Unavailable, err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.WriteFile(file, []byte(strings.ReplaceAll(text, "{env: WATCHERD_TEST_URL}", "{file: "+pipe+"}")), 0o600)); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if st, err = watcherd.Load(file, kinds.Builtin()); err != nil || len(st.Unavailable) != 1 || !strings.Contains(st.Unavailable[0].Error(), "not a regular file") {
		t.Errorf("with a pipe: %v, %v", st.Unavailable, err)
	}
}
