package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/plugin"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "canary-token-4711"

// python is the example in Python.
type python struct {
	t           *testing.T
	socket, db  string
	token       string
	cmd         *exec.Cmd
	interpreter string
}

// interpreter is Python's own program: what is in the path may be a script that looks for it.
var interpreter = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("python3", "-c", "import sys, sqlite3; print(sys.executable)").Output()
	return strings.TrimSpace(string(out)), err
})

func startPython(t *testing.T) *python {
	t.Helper()
	program, err := interpreter()
	if err != nil {
		const missing = "Python is not installed: apt-get install -y --no-install-recommends python3"
		if os.Getenv("CI") == "true" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	dir, err := os.MkdirTemp("", "plugin") //nolint:usetesting // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	p := &python{t: t, socket: filepath.Join(dir, "s"), db: filepath.Join(dir, "db"), token: canary, interpreter: program}
	t.Cleanup(func() {
		p.kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	p.start()
	return p
}

func (p *python) start() {
	p.t.Helper()
	_ = os.Remove(p.socket) // of an earlier process
	p.cmd = exec.Command(p.interpreter, "../../../examples/plugin/sink.py", p.socket, p.db)
	p.cmd.Env = append(os.Environ(), "SINK_TOKEN="+p.token, "PYTHONDONTWRITEBYTECODE=1")
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("unix", p.socket)
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatal(err)
		}
	}
}

func (p *python) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *python) restart() {
	p.kill()
	p.start()
}

// history are the rows, in the order in which they came.
func (p *python) history() (ids []string) {
	p.t.Helper()
	out, err := exec.Command(p.interpreter, "-c", `import json, sqlite3, sys
print(json.dumps([json.loads(e)["id"] for e, in sqlite3.connect(sys.argv[1]).execute("select event from history order by rowid")]))`, p.db).Output()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := json.Unmarshal(out, &ids); err != nil {
		p.t.Fatal(err)
	}
	return ids
}

func (p *python) config() *plugin.Config {
	c := plugin.NewConfig()
	c.URL = "unix://" + p.socket
	c.Headers = map[string]sinks.Header{"Authorization": {Secret: sinks.Secret{Env: "PLUGIN_TEST_TOKEN"}}}
	return c
}

// TestConformance runs the suite of sinks over the example in Python, which is killed, stopped and restarted.
func TestConformance(t *testing.T) {
	t.Setenv("PLUGIN_TEST_TOKEN", "Bearer "+canary)
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		if strings.Contains(t.Name(), "body") {
			t.Skip("the example wants CloudEvents")
		}
		p := startPython(t)
		return sinktest.Destination{
			Config:   func() sinks.Config { return p.config() },
			Received: func(*testing.T) []string { return p.history() },
			Break:    func(*testing.T) { p.kill() },
			Hang: func(t *testing.T) {
				if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Error(err)
				}
			},
			Refuse: func(*testing.T) {
				p.token = "another"
				p.restart()
			},
			Repair: func(*testing.T) {
				p.token = canary
				p.restart()
			},
			Restart:    func(*testing.T) { p.restart() },
			Idempotent: true,
			Secrets:    []string{canary},
			Stop:       p.kill,
		}
	})
}

// inetd starts a program for each connection, which is its standard input and output, as socat does.
func inetd(t *testing.T, program string, env ...string) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "plugin") //nolint:usetesting // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				f, err := c.File()
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				cmd := exec.Command(program)
				cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), f, f, os.Stderr
				_ = cmd.Run() // its client may have left
			})
		}
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		running.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return socket
}

// check runs the suite for programs and returns the outcomes by check.
func check(t *testing.T, c *plugin.Config) map[string]plugin.Outcome {
	t.Helper()
	out := map[string]plugin.Outcome{}
	if err := plugin.Check(t.Context(), c, func(o plugin.Outcome) {
		out[o.Check] = o
		t.Logf("%-60s %v %s%s", o.Check, o.Err, o.Skipped, o.Note)
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestExamples: both examples pass the suite for programs, and have its events.
func TestExamples(t *testing.T) {
	t.Run("python", func(t *testing.T) {
		t.Setenv("PLUGIN_TEST_TOKEN", "Bearer "+canary)
		p := startPython(t)
		for name, o := range check(t, p.config()) {
			if o.Err != nil {
				t.Errorf("%s: %v", name, o.Err)
			}
		}
		if n := len(p.history()); n < 300 {
			t.Errorf("%d events", n)
		}
	})
	t.Run("shell", func(t *testing.T) {
		for _, tool := range []string{"jq", "flock"} {
			if _, err := exec.LookPath(tool); err != nil {
				if os.Getenv("CI") == "true" {
					t.Fatal(err)
				}
				t.Skipf("%s is not installed: apt-get install -y --no-install-recommends jq util-linux", tool)
			}
		}
		file := filepath.Join(t.TempDir(), "events.jsonl")
		c := plugin.NewConfig()
		c.URL = "unix://" + inetd(t, "../../../examples/plugin/sink.sh", "SINK_FILE="+file)
		for name, o := range check(t, c) {
			if o.Err != nil {
				t.Errorf("%s: %v", name, o.Err)
			}
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(content), "\n"); n < 300 {
			t.Errorf("%d events", n)
		}
	})
}

// program is a plugin with a fault.
type program struct {
	t        *testing.T
	answer   func(w http.ResponseWriter, r *http.Request, batch []map[string]any)
	brokeOff func() // is called for a request that breaks off
}

func (p program) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		if p.brokeOff != nil && len(body) > 0 {
			p.brokeOff()
		}
		return
	}
	var batch []map[string]any
	if err := json.Unmarshal(body, &batch); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p.answer(w, r, batch)
}

// results answers with a status for each event.
func results(w io.Writer, batch []map[string]any, status func(e map[string]any) sinks.Status) {
	out := make([]map[string]any, len(batch))
	for i, e := range batch {
		out[i] = map[string]any{"status": status(e)}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"results": out}) // the client notices
}

// TestFaults: the suite finds the fault of each program.
func TestFaults(t *testing.T) {
	accepted := func(map[string]any) sinks.Status { return sinks.StatusAccepted }
	odd := func(e map[string]any) bool {
		data, _ := e["data"].(map[string]any)
		object, _ := data["object"].(map[string]any)
		return object["data"] != nil
	}
	var mu sync.Mutex
	seen := map[any]bool{}
	for name, test := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request, batch []map[string]any)
		fails  string
	}{
		"no document": {func(w http.ResponseWriter, _ *http.Request, _ []map[string]any) { w.WriteHeader(http.StatusNoContent) }, "accepts an event"},
		"one result for all": {func(w http.ResponseWriter, _ *http.Request, batch []map[string]any) {
			results(w, batch[:1], accepted)
		}, "accepts a batch, with a result for each event"},
		"refuses repeats": {func(w http.ResponseWriter, _ *http.Request, batch []map[string]any) {
			results(w, batch, func(e map[string]any) sinks.Status {
				mu.Lock()
				defer mu.Unlock()
				if seen[e["id"]] {
					return sinks.StatusPoison
				}
				seen[e["id"]] = true
				return sinks.StatusAccepted
			})
		}, "accepts what comes again, cut in another way"},
		"refuses gaps": {func(w http.ResponseWriter, _ *http.Request, batch []map[string]any) {
			results(w, batch, func(e map[string]any) sinks.Status {
				if e["type"] == "dev.watcherd.gap" {
					return sinks.StatusPoison
				}
				return sinks.StatusAccepted
			})
		}, "takes every type of event and every member"},
		"retries what it will never take": {func(w http.ResponseWriter, _ *http.Request, batch []map[string]any) {
			results(w, batch, func(e map[string]any) sinks.Status {
				if odd(e) {
					return sinks.StatusRetry
				}
				return sinks.StatusAccepted
			})
		}, "takes or refuses odd values, each alone"},
		"does not hold back": {func(w http.ResponseWriter, _ *http.Request, batch []map[string]any) {
			results(w, batch, func(e map[string]any) sinks.Status {
				if odd(e) {
					return sinks.StatusPoison
				}
				return sinks.StatusAccepted
			})
		}, "holds back what follows a refused event of its object"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(program{t: t, answer: test.answer})
			defer server.Close()
			c := plugin.NewConfig()
			c.URL = server.URL
			if o := check(t, c)[test.fails]; o.Err == nil {
				t.Errorf("%s passes", test.fails)
			}
		})
	}
}

// TestBrokenOff: the suite finds a program that half of a request brings down.
func TestBrokenOff(t *testing.T) {
	var down atomic.Bool
	server := httptest.NewServer(program{t, func(w http.ResponseWriter, _ *http.Request, batch []map[string]any) {
		if down.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		results(w, batch, func(map[string]any) sinks.Status { return sinks.StatusAccepted })
	}, func() { down.Store(true) }})
	defer server.Close()
	c := plugin.NewConfig()
	c.URL = server.URL
	if o := check(t, c)["answers after a request that broke off"]; o.Err == nil {
		t.Error("the check passes")
	}
}

// TestFirstCheck: a program that takes nothing ends the suite, so that its one fault is reported once.
func TestFirstCheck(t *testing.T) {
	c := plugin.NewConfig()
	c.URL = "unix://" + filepath.Join(t.TempDir(), "none")
	out := check(t, c)
	if o := out["accepts an event"]; o.Err == nil || len(out) != 1 || !strings.Contains(o.Err.Error(), c.URL[len("unix://"):]) {
		t.Errorf("%d checks, the first %v", len(out), o.Err)
	}
}

// TestResults: each event has its own result, and a batch that is refused as a whole is halved.
func TestResults(t *testing.T) {
	var whole bool
	server := httptest.NewServer(program{t: t, answer: func(w http.ResponseWriter, r *http.Request, batch []map[string]any) {
		bad := func(e map[string]any) bool { return strings.HasSuffix(fmt.Sprint(e["subject"]), "/web-2") }
		if whole && slices.ContainsFunc(batch, bad) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, "no ", r.Header.Get("Authorization"))
			return
		}
		out := make([]string, len(batch))
		for i, e := range batch {
			out[i] = `{"status": "accepted"}`
			if bad(e) {
				out[i] = `{"status": "retry", "retryAfter": 7, "message": "busy ` + r.Header.Get("Authorization") + `"}`
			}
		}
		fmt.Fprintf(w, `{"results": [%s]}`, strings.Join(out, ","))
	}})
	defer server.Close()
	t.Setenv("PLUGIN_TEST_TOKEN", "Bearer "+canary)
	c := plugin.NewConfig()
	c.URL, c.Headers = server.URL, map[string]sinks.Header{"Authorization": {Secret: sinks.Secret{Env: "PLUGIN_TEST_TOKEN"}}}
	s := sinktest.Open(t, c)
	for _, test := range []struct {
		whole bool
		want  string
	}{{false, "map[2:retry 7s]"}, {true, "map[2:poison 0s]"}} {
		whole = test.whole
		b, ok := errors.AsType[*sinks.BatchError](s.Write(t.Context(), sinktest.Events(9, 9)))
		if !ok {
			t.Fatal("no BatchError")
		}
		got := map[int]string{}
		for i := range maps.Keys(b.Failed) {
			class, after := sinks.Classify(b.Failed[i])
			got[i] = fmt.Sprint(class, " ", after)
			if strings.Contains(b.Failed[i].Error(), canary) {
				t.Errorf("a secret is in %v", b.Failed[i])
			}
		}
		if fmt.Sprint(got) != test.want {
			t.Errorf("failed %v, want %s", got, test.want)
		}
	}
}

// TestBodies: what `body` made of the events is the array, and what it made of the batch the request.
func TestBodies(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // else the comparison fails
		got = append(got, r.Header.Get("Content-Type")+" "+string(body))
		fmt.Fprint(w, `{"results": [{"status": "accepted"}, {"status": "accepted"}]}`)
	}))
	defer server.Close()
	c := plugin.NewConfig()
	c.URL = server.URL
	events := sinktest.Events(2, 2)
	events[0].Body, events[0].ContentType = []byte(`{"a": 1}`), event.ContentTypeJSON
	events[1].Body, events[1].ContentType = []byte(`plain "text"`), "text/plain"
	join := func([]*event.Event) ([]byte, string, error) { return []byte("all"), "text/plain", nil }
	for _, j := range []sinks.Join{nil, join} {
		if err := sinktest.Open(t, c, func(o *sinks.Options) { o.Join = j }).Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
	}
	if want := `[application/json [{"a": 1},"plain \"text\""] text/plain all]`; fmt.Sprint(got) != want {
		t.Errorf("requests %v, want %s", got, want)
	}
}

// TestConfig: each problem names its key.
func TestConfig(t *testing.T) {
	for _, test := range []struct {
		path   string
		change func(c *plugin.Config)
	}{
		{"url", func(c *plugin.Config) { c.URL = "" }},
		{"url", func(c *plugin.Config) { c.URL = "unix://run/sink.sock" }},
		{"url", func(c *plugin.Config) { c.URL = "https://me:canary@host/" }},
		{"url", func(c *plugin.Config) { c.URL = "unix:///" + strings.Repeat("x", 200) }},
		{"tls", func(c *plugin.Config) { c.TLS.CAFile = "x" }},
		{"headers.Authorization", func(c *plugin.Config) { c.Headers = map[string]sinks.Header{"Authorization": {Text: "canary"}} }},
		{"headers.X-Key", func(c *plugin.Config) {
			c.URL, c.Headers = "http://host/", map[string]sinks.Header{"X-Key": {Secret: sinks.Secret{Env: "A"}}}
		}},
		{"timeout", func(c *plugin.Config) { c.Timeout = 0 }},
	} {
		c := plugin.NewConfig()
		c.URL = "unix:///run/sink.sock"
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		test.change(c)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), test.path+": ") || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", test.path, err)
		}
	}
	c := plugin.NewConfig()
	c.URL = "unix:///run/sink.sock"
	if _, err := c.Open(context.Background(), sinks.Options{Format: sinks.CloudEventsBinary}); err == nil {
		t.Error("a format that needs headers is accepted")
	}
}
