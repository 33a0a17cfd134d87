package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/rogpeppe/go-internal/testscript"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// patience is how long a script waits for a condition. It is no expectation of
// speed.
const patience = 60 * time.Second

// TestScripts runs the program as its users do: each script starts daemons against
// a real API server and asks them by the commands.
func TestScripts(t *testing.T) {
	cluster := testcluster.Shared(t)
	bin, err := program(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			w := &world{t: t, cluster: cluster, namespace: cluster.Namespace(t), bin: bin, receiver: newReceiver(t)}
			testscript.Run(t, testscript.Params{
				Files: []string{file}, Setup: w.setup, RequireUniqueNames: true,
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"expand": w.expand, "eventually": w.eventually, "apply": w.apply, "delete": w.remove,
					"http": w.http, "get-eventually": w.getEventually, "lint-metrics": w.lintMetrics, "answer": w.receiver.answer, "received": w.receiver.received, "grant": w.grant,
				},
			})
		})
	}
}

// program builds the binary in a directory, which it returns.
func program(dir string) (string, error) {
	out, err := exec.CommandContext(context.Background(), "go", "build", "-race", "-o", filepath.Join(dir, "watcherd"), ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, nil
}

// world is what a script works with: a namespace of the cluster, free ports, and a
// webhook receiver.
type world struct {
	t         *testing.T
	cluster   *testcluster.Cluster
	namespace string
	bin       string
	receiver  *receiver
}

func (w *world) setup(env *testscript.Env) error {
	env.Setenv("PATH", w.bin+string(os.PathListSeparator)+env.Getenv("PATH"))
	env.Setenv("KUBECONFIG", w.cluster.Kubeconfig)
	env.Setenv("NS", w.namespace)
	env.Setenv("RECEIVER", w.receiver.server.URL)
	for _, name := range []string{"PORT", "PORT2"} {
		env.Setenv(name, strconv.Itoa(testkit.Port(w.t)))
	}
	env.Setenv("ADMIN", "http://127.0.0.1:"+env.Getenv("PORT"))
	return nil
}

// expand FILE...: replaces ${NAME} by the script's variables.
func (w *world) expand(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		text := os.Expand(ts.ReadFile(name), ts.Getenv)
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o600))
	}
}

// eventually REGEXP COMMAND...: runs the command until it succeeds and its standard
// output matches. With ! it waits for the output not to match.
func (w *world) eventually(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: eventually REGEXP COMMAND...")
	}
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for deadline := time.Now().Add(patience); ; {
		err := ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout")
		if err == nil && re.MatchString(out) != neg {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%v did not come to match %q: %v\n%s%s", args[1:], args[0], err, out, ts.ReadFile("stderr"))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// apply FILE...: applies manifests.
func (w *world) apply(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		w.cluster.Apply(w.t, os.Expand(ts.ReadFile(name), ts.Getenv))
	}
}

// delete RESOURCE NAME: of the core group, in the script's namespace.
func (w *world) remove(ts *testscript.TestScript, _ bool, args []string) {
	client := w.cluster.Dynamic(w.t).Resource(schema.GroupVersionResource{Version: "v1", Resource: args[0]})
	ts.Check(client.Namespace(w.namespace).Delete(w.t.Context(), args[1], metav1.DeleteOptions{}))
}

// grant USER FILE: writes a kubeconfig of a user who may do only what roles say.
func (w *world) grant(ts *testscript.TestScript, _ bool, args []string) {
	b, err := os.ReadFile(w.cluster.UserKubeconfig(w.t, args[0]))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), b, 0o600))
}

// http CODE METHOD URL [HEADER:VALUE]... [BODY]: sends a request, expects the status
// code, and puts the body on the standard output. A body begins with {.
func (w *world) http(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 3 {
		ts.Fatalf("usage: http CODE METHOD URL [HEADER:VALUE]... [BODY]")
	}
	var body io.Reader
	header := http.Header{}
	host := ""
	for _, a := range args[3:] {
		name, value, _ := strings.Cut(a, ":")
		switch {
		case strings.HasPrefix(a, "{"):
			body = strings.NewReader(a)
		case name == "Host":
			host = value
		default:
			header.Set(name, value)
		}
	}
	code, out, err := w.request(args[1], args[2], host, header, body)
	ts.Check(err)
	if code != args[0] {
		ts.Fatalf("%s %s: status %s, want %s\n%s", args[1], args[2], code, args[0], out)
	}
	_, err = ts.Stdout().Write(out)
	ts.Check(err)
}

// get-eventually REGEXP URL: waits for the answer to match.
func (w *world) getEventually(ts *testscript.TestScript, _ bool, args []string) {
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		_, out, err := w.request(http.MethodGet, args[1], "", nil, nil)
		if err == nil && re.Match(out) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s did not come to match %q: %v\n%s", args[1], args[0], err, out)
		}
	}
}

// lint-metrics URL: fails if a metric breaks the rules of 'promtool check metrics'.
func (w *world) lintMetrics(ts *testscript.TestScript, _ bool, args []string) {
	_, out, err := w.request(http.MethodGet, args[0], "", nil, nil)
	ts.Check(err)
	problems, err := promlint.New(bytes.NewReader(out)).Lint()
	ts.Check(err)
	for _, p := range problems {
		ts.Logf("%s: %s", p.Metric, p.Text)
	}
	if len(problems) > 0 {
		ts.Fatalf("%d problems", len(problems))
	}
}

func (w *world) request(method, url, host string, header http.Header, body io.Reader) (code string, out []byte, err error) {
	req, err := http.NewRequestWithContext(w.t.Context(), method, url, body)
	if err != nil {
		return "", nil, err
	}
	req.Host = host
	if header != nil {
		req.Header = header
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", nil, err
	}
	out, err = io.ReadAll(resp.Body)
	return strconv.Itoa(resp.StatusCode), out, errors.Join(err, resp.Body.Close())
}
