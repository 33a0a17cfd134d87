package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/watcherd/watcherd/internal/testcluster"
	events "github.com/watcherd/watcherd/pkg/event"
)

// patience is how long a test waits for a condition before it gives up. It is no
// expectation of speed.
const patience = 90 * time.Second

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "watcherd-examples-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = sync.OnceValues(func() (string, error) { return build(dir) })
	testcluster.Main(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}

// binary is the path of the daemon, which the first caller builds.
var binary func() (string, error)

func build(dir string) (string, error) {
	path := filepath.Join(dir, "watcherd")
	out, err := exec.CommandContext(context.Background(), "go", "build", "-race", "-o", path, "github.com/watcherd/watcherd/cmd/watcherd").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the daemon: %w\n%s", err, out)
	}
	return path, nil
}

// run is an example at work: the real daemon on the example's file, in a folder of
// its own, against the shared cluster.
type run struct {
	*testing.T
	dir       string
	namespace string // of the test's own
	cluster   *testcluster.Cluster
	client    dynamic.Interface
	cmd       *exec.Cmd
	out, log  *testcluster.Output
	env       []string
}

// newRun prepares the run of an example whose endpoints are replaced, each of which
// the file must name. The admin listener is left out, so that runs can be parallel.
func newRun(t *testing.T, example string, replace map[string]string) *run {
	t.Helper()
	content, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content) + "\nadmin: {listen: \"\"}\n"
	for from, to := range replace {
		if !strings.Contains(text, from) {
			t.Fatalf("%s does not name %s", example, from)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	c := testcluster.Shared(t)
	r := &run{
		T: t, dir: t.TempDir(), namespace: c.Namespace(t), cluster: c, client: c.Dynamic(t),
		out: &testcluster.Output{}, log: &testcluster.Output{},
	}
	r.write("watcherd.yaml", text)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("its output:\n%s\nits log:\n%s", r.out, r.log)
		}
	})
	return r
}

func (r *run) write(name, content string) {
	r.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o600); err != nil {
		r.Fatal(err)
	}
}

// start runs the daemon and returns when the resources are in sync. At the end of
// the test it must stop cleanly.
func (r *run) start(resources ...string) {
	r.Helper()
	bin, err := binary()
	if err != nil {
		r.Fatal(err)
	}
	cmd := exec.Command(bin, "run", "--config", "watcherd.yaml", "--kubeconfig", r.cluster.Kubeconfig, "--log-format", "json")
	cmd.Dir, cmd.Env = r.dir, append(os.Environ(), r.env...)
	cmd.Stdout, cmd.Stderr = r.out, r.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	r.cmd = cmd
	r.Cleanup(func() {
		if r.cmd == nil {
			return
		}
		r.stop()
	})
	r.synced(resources...)
}

func (r *run) stop() {
	r.Helper()
	cmd := r.cmd
	r.cmd = nil
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.Error(err)
	}
	giveUp := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer giveUp.Stop()
	if err := cmd.Wait(); err != nil {
		r.Errorf("the daemon did not end well: %v", err)
	}
}

// synced waits until the log says that each of the resources is.
func (r *run) synced(resources ...string) {
	r.Helper()
	r.eventually(func() (bool, string) {
		seen := map[string]bool{}
		for line := range strings.Lines(r.log.String()) {
			var entry struct {
				Message  string `json:"msg"`
				Resource string `json:"resource"`
			}
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Message == "watch synced" {
				seen[entry.Resource] = true
			}
		}
		for _, want := range resources {
			if !seen[want] {
				return false, fmt.Sprintf("%s is not in sync; %v are", want, slices.Sorted(maps.Keys(seen)))
			}
		}
		return true, ""
	})
}

// eventually waits for a condition, which says what is missing while it doesn't hold.
func (r *run) eventually(ok func() (bool, string)) {
	r.Helper()
	deadline := time.Now().Add(patience)
	for {
		done, missing := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("gave up waiting: %s", missing)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// apply applies manifests, in the test's namespace if they say NAMESPACE.
func (r *run) apply(manifests string) {
	r.Helper()
	r.cluster.Apply(r, strings.ReplaceAll(manifests, "NAMESPACE", r.namespace))
}

// patch merges a patch into an object of the test's namespace.
func (r *run) patch(resource, name, patch string, subresource ...string) {
	r.Helper()
	_, err := r.client.Resource(gvr(resource)).Namespace(r.namespace).
		Patch(r.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
	if err != nil {
		r.Fatal(err)
	}
}

// remove deletes an object and waits until it is gone.
func (r *run) remove(resource, name string) {
	r.Helper()
	client := r.client.Resource(gvr(resource)).Namespace(r.namespace)
	background := metav1.DeletePropagationBackground
	now := int64(0)
	if err := client.Delete(r.Context(), name, metav1.DeleteOptions{PropagationPolicy: &background, GracePeriodSeconds: &now}); err != nil {
		r.Fatal(err)
	}
	r.eventually(func() (bool, string) {
		_, err := client.Get(r.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprintf("%s %s is still there: %v", resource, name, err)
	})
}

// gvr reads a resource as kubectl spells it in full: deployments.v1.apps, pods.v1.
func gvr(text string) schema.GroupVersionResource {
	parts := strings.SplitN(text+".", ".", 3)
	return schema.GroupVersionResource{Resource: parts[0], Version: parts[1], Group: strings.TrimSuffix(parts[2], ".")}
}

// event is what the tests look at in an event, in either encoding.
type event struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Subject string `json:"subject"`
	data
	Data *data `json:"data"`
}

type data struct {
	Namespace         string          `json:"namespace"`
	Name              string          `json:"name"`
	Object            map[string]any  `json:"object"`
	OldObject         map[string]any  `json:"oldObject"`
	Patch             json.RawMessage `json:"patch"`
	Selection         string          `json:"selection"`
	FinalStateUnknown bool            `json:"finalStateUnknown"`
}

func parse(t testing.TB, line []byte) event {
	t.Helper()
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		t.Fatalf("%v in %q", err, line)
	}
	if e.Data != nil {
		e.data = *e.Data
	}
	e.Type = e.Type[strings.LastIndexByte(e.Type, '.')+1:]
	return e
}

// String is short enough to compare: verb and name.
func (e event) String() string { return e.Type + " " + e.Name }

// mine are the events of the test's namespace in the files that match, and of
// objects in no namespace whose name begins with the test namespace's.
func (r *run) mine(pattern string) []event {
	r.Helper()
	files, err := filepath.Glob(filepath.Join(r.dir, pattern))
	if err != nil {
		r.Fatal(err)
	}
	var events []event
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // rotated
		}
		if err != nil {
			r.Fatal(err)
		}
		events = append(events, r.filter(content)...)
	}
	return events
}

// filter reads whole lines and keeps what belongs to the test.
func (r *run) filter(content []byte) []event {
	r.Helper()
	var events []event
	for line := range bytes.Lines(content) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // is being written
		}
		if err := valid(line); err != nil {
			r.Errorf("an event is not what the schema has: %v in %s", err, line)
		}
		e := parse(r, line)
		if e.Namespace == r.namespace || e.Namespace == "" && strings.HasPrefix(e.Name, r.namespace) {
			events = append(events, e)
		}
	}
	return events
}

// expect waits until there are as many events as wanted, or more, and compares
// them, each as its verb and name, in any order.
func (r *run) expect(got func() []event, want ...string) []event {
	r.Helper()
	var events []event
	r.eventually(func() (bool, string) {
		events = got()
		return len(events) >= len(want), fmt.Sprintf("got %v, want %q", events, want)
	})
	have := make([]string, len(events))
	for i, e := range events {
		have[i] = e.String()
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		r.Fatalf("got %q, want %q", have, want)
	}
	return events
}

// at follows keys into an object; nil if one is missing.
func at(object map[string]any, keys ...string) any {
	var value any = object
	for _, key := range keys {
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = m[key]
	}
	return value
}

// commands are the lines of a file's head that show what to type.
func commands(content string) []string {
	var lines []string
	for line := range strings.Lines(content) {
		if command, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "#   "); ok {
			lines = append(lines, command)
		}
		if !strings.HasPrefix(line, "#") {
			break
		}
	}
	return lines
}

// schemas are those of events as CloudEvents and in the json format.
var schemas = sync.OnceValue(func() (both [2]*jsonschema.Schema) {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(events.Schema()))
	if err != nil {
		panic(err)
	}
	name, part, _ := strings.Cut(events.DataSchema, "#data")
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name, document); err != nil {
		panic(err)
	}
	return [2]*jsonschema.Schema{c.MustCompile(name + part), c.MustCompile(name + "#json")}
})

// valid checks an event of a real daemon against the schema.
func valid(line []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err != nil {
		return err
	}
	if m, ok := v.(map[string]any); ok && m["specversion"] == nil {
		return schemas()[1].Validate(v)
	}
	return schemas()[0].Validate(v)
}

var secretValue = regexp.MustCompile(`^redacted:hmac-sha256:[0-9a-f]{16}$`)
