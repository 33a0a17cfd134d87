package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/admin/client"
	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

const (
	podPath  = "/api/v1/pods"
	noGroups = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[]}`
	onlyPods = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{},"versions":[
{"version":"v1","freshness":"Current","resources":[
 {"resource":"pods","singularResource":"pod","scope":"Namespaced","verbs":["get","list","watch"],"responseKind":{"group":"","version":"v1","kind":"Pod"}}]}]}]}`
)

// taping is a recording in the process of the test, of an API server with pods.
type taping struct {
	*testing.T
	api     *apitest.Server
	dir     string
	store   map[string]any
	options recordOptions
	before  func(w http.ResponseWriter, r *http.Request) bool // answers requests; may be nil
	begun   func(status.Status)                               // is called before the command
	during  func()                                            // runs in place of the command
}

func newTaping(t *testing.T, pods int) *taping {
	t.Helper()
	r := &taping{T: t, api: apitest.New(t), dir: t.TempDir(), store: map[string]any{}}
	r.options = recordOptions{dir: r.dir, ready: 20 * time.Second, stdout: io.Discard}
	r.api.Serve(podPath, "v1", "Pod")
	for i := range pods {
		r.api.Put(podPath, "ns", fmt.Sprintf("pod-%06d", i), nil)
	}
	r.api.Intercept(func(w http.ResponseWriter, req *http.Request) bool {
		if r.before != nil && r.before(w, req) {
			return true
		}
		body, ok := map[string]string{"/api": onlyPods, "/apis": noGroups}[req.URL.Path]
		if ok {
			w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
			_, _ = io.WriteString(w, body)
		}
		return ok
	})
	return r
}

// onLine is standard error that calls a function at a line.
type onLine struct {
	text string
	call func()

	mu sync.Mutex
	bytes.Buffer
}

func (o *onLine) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(o.text)) {
		o.call()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Buffer.Write(b)
}

// run records, and returns what is printed.
func (r *taping) run() (printed string, err error) {
	r.Helper()
	r.store["path"] = filepath.Join(r.dir, recordedStore)
	file := filepath.Join(r.dir, recordedConfig)
	state, err := temporaryConfig(file, r.store, map[string]any{"name": "recording", "resources": []string{"*"}}, nil)
	if err != nil {
		r.Fatal(err)
	}
	out := &onLine{text: "watcherd: recording "}
	r.options.stderr = out
	// The command waits for what stands in its place.
	goes, done := filepath.Join(r.TempDir(), "goes"), filepath.Join(r.TempDir(), "done")
	var running sync.WaitGroup
	err = watcherd.Run(r.Context(), watcherd.Options{
		ConfigFile: file, Kinds: kinds.Builtin(), State: state, REST: r.api.Config(), ClusterName: "test", Logger: slog.New(slog.DiscardHandler),
		Foreground: func(ctx context.Context, d watcherd.Local) error {
			out.call = func() {
				if r.begun == nil {
					return
				}
				var st status.Status
				if err := client.NewLocal(d.API).Get(ctx, "/api/v1/status", nil, &st); err != nil {
					r.Error(err)
				}
				r.begun(st)
			}
			running.Go(func() {
				for ctx.Err() == nil {
					if _, err := os.Stat(goes); err == nil {
						break
					}
					time.Sleep(5 * time.Millisecond)
				}
				if r.during != nil && ctx.Err() == nil {
					r.during()
				}
				if err := os.WriteFile(done, nil, 0o600); err != nil {
					r.Error(err)
				}
			})
			return r.options.record(ctx, r.Context(), d, []string{"sh", "-c", `touch "$0"; while [ ! -e "$1" ]; do sleep 0.02; done`, goes, done}, os.Environ())
		},
	})
	running.Wait()
	return out.String(), err
}

const complete = "complete: every change of the period is recorded"

// TestRecordingHasEverythingBefore: when the command begins, everything that exists is recorded.
func TestRecordingHasEverythingBefore(t *testing.T) {
	pods := 5000
	if os.Getenv("WATCHERD_SOAK") != "" {
		pods = 100_000
	}
	r := newTaping(t, pods)
	r.options.ready = 5 * time.Minute
	r.begun = func(st status.Status) {
		if st.Store.LoggedEvents != int64(pods) {
			t.Errorf("the command begins with %d of %d pods recorded", st.Store.LoggedEvents, pods)
		}
	}
	r.during = func() {
		for i := range 100 {
			r.api.Put(podPath, "ns", fmt.Sprintf("pod-%06d", i*10), map[string]any{"status": map[string]any{"phase": "Failed"}})
			r.api.Put(podPath, "ns", fmt.Sprintf("new-%06d", i), nil)
		}
	}
	printed, err := r.run()
	if err != nil || !strings.Contains(printed, complete) {
		t.Errorf("%v\n%s", err, printed)
	}
	text, _ := os.ReadFile(filepath.Join(r.dir, recordedChanges))
	for _, of := range []string{"new-", "pod-"} {
		names := map[string]bool{}
		for part := range strings.SplitSeq(string(text), `"name": "`+of) {
			names[part[:min(6, len(part))]] = true
		}
		if n := len(names) - 1; n != 100 {
			t.Errorf("%d of 100 changes of %s are in the summary", n, of)
		}
	}
}

// TestRecordingInAFullStore ends before the command, or with an error behind it, and does not
// wait for ever.
func TestRecordingInAFullStore(t *testing.T) {
	t.Run("before", func(t *testing.T) {
		r := newTaping(t, 20)
		r.store["minFree"] = "1000Ti"
		r.options.ready = 2 * time.Second
		r.begun = func(status.Status) { t.Error("the command has run, and nothing is recorded") }
		printed, err := r.run()
		if err == nil || !strings.Contains(err.Error(), "the store is paused: ") || strings.Contains(printed, complete) {
			t.Errorf("%v\n%s", err, printed)
		}
	})
	t.Run("while", func(t *testing.T) {
		r := newTaping(t, 20)
		r.store["maxBytes"], r.store["retention"] = "64Mi", map[string]any{"maxAge": "87600h"}
		r.options.ready = 3 * time.Second
		r.during = func() {
			text := noise(1 << 20)
			for i := range 90 {
				r.api.Put(podPath, "ns", fmt.Sprintf("big-%06d", i), map[string]any{"status": map[string]any{"text": text}})
			}
		}
		printed, err := r.run()
		if err == nil || strings.Contains(printed, complete) {
			t.Errorf("%v\n%s", err, printed)
		}
	})
}

// TestRecordingWithoutAWatch: a watch that is down at the end of the command is waited for, and
// a recording in which it stays so is not complete.
func TestRecordingWithoutAWatch(t *testing.T) {
	for name, back := range map[string]bool{"comes back": true, "stays down": false} {
		t.Run(name, func(t *testing.T) {
			r := newTaping(t, 20)
			var down atomic.Bool
			var refused atomic.Int64
			r.before = func(w http.ResponseWriter, req *http.Request) bool {
				if req.URL.Path != podPath || req.URL.Query().Get("watch") != "true" || !down.Load() {
					return false
				}
				if refused.Add(1); back && refused.Load() > 2 {
					return false
				}
				apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
				return true
			}
			if !back {
				r.options.ready = 2 * time.Second
			}
			r.during = func() {
				down.Store(true)
				r.api.Cut()
				r.api.Put(podPath, "ns", "last", nil)
			}
			printed, err := r.run()
			if says := strings.Contains(printed, complete); says != back || (err == nil) != back {
				t.Errorf("%v\n%s", err, printed)
			}
			if says := strings.Contains(printed, "pods/last"); says != back {
				t.Errorf("the last change is not in\n%s", printed)
			}
		})
	}
}

// TestRecordingOfADeepObject: an object of which the interface has no difference, as it nests too deep, is in the
// recording, and takes no other from its page.
func TestRecordingOfADeepObject(t *testing.T) {
	r := newTaping(t, 1)
	r.during = func() {
		deep := any(strings.Repeat("a\n", 100_000))
		for range 100 {
			deep = map[string]any{"a": deep}
		}
		r.api.Put(podPath, "ns", "deep", map[string]any{"spec": deep})
		r.api.Put(podPath, "ns", "other", nil)
	}
	printed, err := r.run()
	if err != nil || !strings.Contains(printed, complete) || !strings.Contains(printed, "pods/deep") {
		t.Errorf("%v\n%s", err, printed)
	}
	page, err := os.ReadFile(filepath.Join(r.dir, recordedPage))
	if err != nil || !bytes.Contains(page, []byte("objects/pods/ns/other/diff")) {
		t.Errorf("the page has %d bytes without the other object, %v", len(page), err)
	}
	if left := regexp.MustCompile(`"leftOut":\d+`).FindString(string(page)); left != `"leftOut":1` {
		t.Errorf("of one object that is not in full, the page has %s", left)
	}
}

// TestRecordingAfterItsEnd: what a recording has of a time after its end is the last that it has, with a note of that.
func TestRecordingAfterItsEnd(t *testing.T) {
	r := newTaping(t, 1)
	r.during = func() { r.api.Put(podPath, "ns", "last", nil) }
	if printed, err := r.run(); err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	now := time.Now().UTC().Format(time.RFC3339Nano)
	for _, args := range [][]string{{"get", "pods", "--at", now}, {"diff", "pods", "last"}, {"blame", "pods", "last"}} {
		var notes bytes.Buffer
		code := run(t.Context(), append(args, "--store", r.dir), io.Discard, &notes)
		if code != exitOK || !strings.Contains(notes.String(), "the store ends there") {
			t.Errorf("%s: %d\n%s", args[0], code, &notes)
		}
	}
}

// noise is text that cannot be compressed.
func noise(n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(rand.Text())
	}
	return b.String()
}

// TestRecordingOfANode: objects in no namespace are in the recording and its page.
func TestRecordingOfANode(t *testing.T) {
	r := newTaping(t, 1)
	const nodePath = "/api/v1/nodes"
	r.api.Serve(nodePath, "v1", "Node")
	r.before = func(w http.ResponseWriter, req *http.Request) bool {
		if req.URL.Path != "/api" {
			return false
		}
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		_, _ = io.WriteString(w, strings.Replace(onlyPods, `}}]}]}]}`, `}},
 {"resource":"nodes","singularResource":"node","scope":"Cluster","verbs":["get","list","watch"],"responseKind":{"group":"","version":"v1","kind":"Node"}}]}]}]}`, 1))
		return true
	}
	r.during = func() { r.api.Put(nodePath, "", "worker", nil) }
	printed, err := r.run()
	if err != nil || !strings.Contains(printed, complete) || !strings.Contains(printed, "nodes/worker") {
		t.Errorf("%v\n%s", err, printed)
	}
	page, err := os.ReadFile(filepath.Join(r.dir, recordedPage))
	if err != nil || !bytes.Contains(page, []byte(`objects/nodes/-/worker\u0026version=`)) {
		t.Errorf("the page has %d bytes without the state of the node, %v", len(page), err)
	}
}
