package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// index is what examples/customsink needs of OpenSearch's API: documents that are
// created once. It stores the second event it is sent and loses the answer. In place of the
// third, a proxy in front of it asks for a login.
type index struct {
	mu    sync.Mutex
	docs  map[string]bool // by path
	fresh [][]byte
	calls int
}

func (x *index) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/login" {
		return // with a form, and code 200
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPut || !strings.HasPrefix(r.URL.Path, "/k8s/_create/") {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.calls++
	switch {
	case x.calls == 1:
		w.WriteHeader(http.StatusTooManyRequests)
		return
	case x.calls == 3:
		http.Redirect(w, r, "/login", http.StatusFound)
		return
	case x.docs[r.URL.Path]:
		w.WriteHeader(http.StatusConflict)
		return
	}
	x.docs[r.URL.Path] = true
	x.fresh = append(x.fresh, body)
	if x.calls == 2 {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusCreated)
}

func (x *index) tap() *tap {
	return newTap("opensearch", func() ([][]byte, error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		fresh := x.fresh
		x.fresh = nil
		return fresh, nil
	})
}

// TestCustomSink builds and runs the example of a sink of one's own, which is a
// module that sees only the public packages.
func TestCustomSink(t *testing.T) {
	t.Parallel()
	const example = "../../examples/customsink"
	source, err := os.ReadFile(example + "/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if lines := bytes.Count(source, []byte("\n")); lines >= 80 {
		t.Errorf("%d lines, it is to be under 80", lines)
	}
	bin := t.TempDir() + "/customsink"
	build := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", bin, ".")
	build.Dir = example
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	x := &index{docs: map[string]bool{}}
	server := httptest.NewServer(x)
	defer server.Close()
	config, _, _ := strings.Cut(feedConfig(ns), "sinks:\n- name: archive")
	d := newDaemon(t, c.Kubeconfig, strings.Replace(config, "[archive]", "[search]", 1)+fmt.Sprintf(`
sinks:
- name: search
  opensearch: {url: %s/k8s}
  retry: {initial: 10ms, max: 100ms}
`, server.URL))
	w := newClient(t, c, ns)
	cmd := exec.CommandContext(t.Context(), bin)
	cmd.Dir, cmd.Stdout, cmd.Stderr = d.dir, d.log, d.log
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	taps := []*tap{x.tap()}
	awaitAll(t, taps, w.mark())
	if err := w.churn(t.Context(), "w", 1, 100); err != nil {
		t.Fatal(err)
	}
	awaitAll(t, taps, w.history.finals())
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, d.log)
	}
	checkAlike(t, taps, func(t testing.TB, events []got) { checkExact(t, w.history, events) })
}
