package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/plugin"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "canary-token-4711"

const root = "../../.."

func startPython(t *testing.T) *testservers.Plugin {
	t.Helper()
	t.Setenv("PLUGIN_TEST_TOKEN", "Bearer "+canary)
	return testservers.StartPlugin(t, root, canary)
}

// history are the ids of the events that a plugin has, in the order in which they came.
func history(t *testing.T, p *testservers.Plugin) (ids []string) {
	t.Helper()
	for _, text := range p.History(0) {
		var e struct{ ID string }
		if err := json.Unmarshal(text, &e); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, e.ID)
	}
	return ids
}

// configOf leads to the plugin with its token.
func configOf(p *testservers.Plugin) *plugin.Config {
	c := plugin.NewConfig()
	c.URL = "unix://" + p.Socket
	c.Headers = map[string]sinks.Header{"Authorization": {Secret: sinks.Secret{Env: "PLUGIN_TEST_TOKEN"}}}
	return c
}

// destination is the plugin for the suite of sinks.
func destination(p *testservers.Plugin) sinktest.Destination {
	return sinktest.Destination{
		Config:   func() sinks.Config { return configOf(p) },
		Received: func(t *testing.T) []string { return history(t, p) },
		Break:    func(*testing.T) { p.Kill() },
		Hang:     func(*testing.T) { p.Freeze() },
		Refuse: func(*testing.T) {
			p.Token = "another"
			p.Restart()
		},
		Repair: func(*testing.T) {
			p.Token = canary
			p.Restart()
		},
		Restart:    func(*testing.T) { p.Restart() },
		Idempotent: true,
		Secrets:    []string{canary},
		Stop:       p.Kill,
	}
}

// TestConformance runs the suite of sinks over the example in Python, which is killed, stopped and restarted.
func TestConformance(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		if strings.Contains(t.Name(), "body") {
			t.Skip("the example wants CloudEvents")
		}
		return destination(startPython(t))
	})
}

// front is a proxy with TLS before a plugin. It spoils events, so that the plugin refuses them.
type front struct {
	*httptest.Server

	mu     sync.Mutex
	spoilt map[string]bool // by id
}

func newFront(t *testing.T, p *testservers.Plugin) *front {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", p.Socket)
	}, DisableKeepAlives: true}
	f := &front{spoilt: map[string]bool{}}
	f.Server = httptest.NewTLSServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "plugin"
			body, err := io.ReadAll(r.In.Body)
			if err != nil {
				body = nil // the client has left
			}
			body = f.spoil(body)
			r.Out.Body, r.Out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		},
		Transport: transport,
		ErrorLog:  slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	})
	f.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	return f
}

func (f *front) spoil(body []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	var batch []map[string]json.RawMessage
	if len(f.spoilt) == 0 || json.Unmarshal(body, &batch) != nil {
		return body
	}
	for _, e := range batch {
		if f.spoilt[strings.Trim(string(e["id"]), `"`)] {
			e["sequence"] = json.RawMessage(`"spoilt"`)
		}
	}
	body, _ = json.Marshal(batch) // was read from JSON
	return body
}

// config leads to the plugin by way of the front.
func (f *front) config(t *testing.T, p *testservers.Plugin) *plugin.Config {
	t.Helper()
	c := configOf(p)
	c.URL, c.TLS.CAFile = f.URL+"/events", filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(c.TLS.CAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestConformanceTLS runs the suite of sinks over the example in Python behind a proxy with TLS, which refuses events.
func TestConformanceTLS(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		if strings.Contains(t.Name(), "body") {
			t.Skip("the example wants CloudEvents")
		}
		p := startPython(t)
		f := newFront(t, p)
		d := destination(p)
		config := f.config(t, p)
		d.Config = func() sinks.Config { return config }
		d.Reject = func(_ *testing.T, id string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.spoilt[id] = true
		}
		d.Repair = func(*testing.T) {
			f.mu.Lock()
			clear(f.spoilt)
			f.mu.Unlock()
			p.Token = canary
			p.Restart()
		}
		d.Stop = func() {
			p.Kill()
			f.Close()
		}
		return d
	})
}

// TestTrust: a certificate that is not trusted gets no events, and the error says so.
func TestTrust(t *testing.T) {
	p := startPython(t)
	f := newFront(t, p)
	defer f.Close()
	trusted, untrusted, plain := f.config(t, p), f.config(t, p), f.config(t, p)
	untrusted.TLS.CAFile = ""
	plain.TLS.CAFile, plain.URL = "", strings.Replace(f.URL, "https:", "http:", 1)
	for _, test := range []struct {
		config *plugin.Config
		want   string
	}{{trusted, ""}, {untrusted, "certificate"}, {plain, "HTTPS"}} {
		err := sinktest.Open(t, test.config).Write(t.Context(), sinktest.Events(1, 1))
		if test.want == "" {
			if err != nil {
				t.Error(err)
			}
		} else if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), canary) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}

// inetd starts the example in shell for each connection, which is its standard input and output, as socat does.
type inetd struct {
	t            *testing.T
	socket, file string
	listener     *net.UnixListener
	running      sync.WaitGroup

	mu      sync.Mutex
	hangs   bool                 // connections are taken, and get no program
	pending map[io.Closer]func() // what ends each connection
}

func startShell(t *testing.T) *inetd {
	t.Helper()
	for _, tool := range []string{"jq", "flock"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skipf("%s is not installed: apt-get install -y --no-install-recommends jq util-linux", tool)
		}
	}
	d := &inetd{t: t, socket: filepath.Join(testservers.SocketDir(t), "s"), file: filepath.Join(t.TempDir(), "events.jsonl"), pending: map[io.Closer]func(){}}
	d.start()
	t.Cleanup(d.kill)
	return d
}

func (d *inetd) start() {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.socket})
	if err != nil {
		d.t.Error(err)
		return
	}
	d.listener, d.hangs = l, false
	d.running.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			d.running.Go(func() { d.serve(c) })
		}
	})
}

func (d *inetd) serve(c *net.UnixConn) {
	f, err := c.File()
	if err != nil {
		d.t.Error(err)
		return
	}
	cmd := exec.Command(root + "/examples/plugin/sink.sh")
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(os.Environ(), "SINK_FILE="+d.file), f, f, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	d.mu.Lock()
	end := func() {}
	if !d.hangs {
		if err := cmd.Start(); err != nil {
			d.t.Error(err)
		} else {
			end = func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // with what it runs
		}
	}
	d.pending[c] = end
	hangs := d.hangs
	d.mu.Unlock()
	if hangs {
		_, _ = io.Copy(io.Discard, c) // until one of both leaves
	} else {
		_ = cmd.Wait() // its client may have left
	}
	d.mu.Lock()
	delete(d.pending, c)
	d.mu.Unlock()
	_ = f.Close()
	_ = c.Close()
}

// kill ends the programs and the listener at once, if they still run.
func (d *inetd) kill() {
	if d.listener == nil {
		return
	}
	_ = d.listener.Close()
	d.mu.Lock()
	for c, end := range d.pending {
		end()
		_ = c.Close()
	}
	d.mu.Unlock()
	d.running.Wait()
	d.listener = nil
}

func (d *inetd) restart() {
	d.kill()
	d.start()
}

// ids are those of the lines that are not cut short.
func (d *inetd) ids() (ids []string) {
	content, err := os.ReadFile(d.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.t.Fatal(err)
	}
	for line := range bytes.Lines(content) {
		var e struct{ ID string }
		if json.Unmarshal(line, &e) == nil {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

func (d *inetd) config() *plugin.Config {
	c := plugin.NewConfig()
	c.URL = "unix://" + d.socket
	return c
}

// TestConformanceShell runs the suite of sinks over the example in shell.
func TestConformanceShell(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		d := startShell(t)
		return sinktest.Destination{
			Config:   func() sinks.Config { return d.config() },
			Received: func(*testing.T) []string { return d.ids() },
			Break:    func(*testing.T) { d.kill() },
			Hang: func(*testing.T) {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.hangs = true
			},
			Repair:  func(*testing.T) { d.restart() },
			Restart: func(*testing.T) { d.restart() },
			Stop:    d.kill,
		}
	})
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
		p := startPython(t)
		for name, o := range check(t, configOf(p)) {
			if o.Err != nil {
				t.Errorf("%s: %v", name, o.Err)
			}
		}
		if n := len(history(t, p)); n < 300 {
			t.Errorf("%d events", n)
		}
	})
	t.Run("shell", func(t *testing.T) {
		d := startShell(t)
		for name, o := range check(t, d.config()) {
			if o.Err != nil {
				t.Errorf("%s: %v", name, o.Err)
			}
		}
		if n := len(d.ids()); n < 300 {
			t.Errorf("%d events", n)
		}
	})
}

// TestPythonOnAFullDisk: a batch whose second event finds the disk full leaves nothing behind, so that what comes again is stored in
// order.
func TestPythonOnAFullDisk(t *testing.T) {
	const script = `
import sys
sys.path.insert(0, sys.argv[1])
import sink, sqlite3

def event(key, sequence, size):
    return {"id": str(sequence), "partitionkey": key, "sequence": str(sequence), "type": "t.updated", "data": {"object": "x" * size}}

store = sink.Store(sys.argv[2])
batch = [event("a", 1, 10), event("b", 2, 200000), event("a", 3, 10)]
pages = store.db.execute("pragma page_count").fetchone()[0]
store.db.execute("pragma max_page_count = %d" % (pages + 3))
try:
    store.write(batch)
    print("accepted")
except sqlite3.OperationalError as e:
    print(e)
store.db.execute("pragma max_page_count = 1000000")
store.write(batch)
print([id for id, in store.db.execute("select id from history order by rowid")])
`
	cmd := exec.Command(testservers.Python(t), "-B", "-c", script, root+"/examples/plugin", filepath.Join(t.TempDir(), "db"))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if want := "database or disk is full\n['1', '2', '3']\n"; err != nil || string(out) != want {
		t.Errorf("got %s, %v, want %s", out, err, want)
	}
}

// TestShellBehindHalfALine: an event that comes behind a write that was cut short is a line of its own.
func TestShellBehindHalfALine(t *testing.T) {
	d := startShell(t)
	s := sinktest.Open(t, d.config())
	events := sinktest.Events(3, 3)
	if err := s.Write(t.Context(), events[:1]); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(d.file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"specversion":"1.0","id":`); err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	if err := s.Write(t.Context(), events[1:]); err != nil {
		t.Fatal(err)
	}
	if ids, want := d.ids(), sinktest.IDs(events); !slices.Equal(ids, want) {
		t.Errorf("the file has %v, want %v", ids, want)
	}
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
	outcomes := check(t, c)
	for _, fails := range []string{"answers after a request that broke off", "answers after a request whose client left"} {
		if outcomes[fails].Err != nil { // the program may take its time to notice the first
			return
		}
	}
	t.Error("the checks pass")
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
	if _, err := c.Open(t.Context(), sinks.Options{Format: sinks.CloudEventsBinary}); err == nil {
		t.Error("a format that needs headers is accepted")
	}
}
