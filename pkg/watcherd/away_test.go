package watcherd_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

func TestMain(m *testing.M) { natstest.VerifyMain(m) }

const (
	podPath  = "/api/v1/pods"
	noGroups = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[]}`
	core     = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{},"versions":[
{"version":"v1","freshness":"Current","resources":[
 {"resource":"pods","singularResource":"pod","scope":"Namespaced","verbs":["get","list","watch"],"responseKind":{"group":"","version":"v1","kind":"Pod"}}]}]}]}`
)

// cluster is an API server that can be away.
type cluster struct {
	*apitest.Server
	answer atomic.Int32 // the status of every response; 0: the server works
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Server: apitest.New(t)}
	c.Serve(podPath, "v1", "Pod")
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if code := c.answer.Load(); code != 0 {
			reason := map[int32]string{401: "Unauthorized", 503: "ServiceUnavailable"}[code]
			apitest.Fail(w, int(code), reason)
			return true
		}
		body, ok := map[string]string{"/api": core, "/apis": noGroups}[r.URL.Path]
		if ok {
			w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
			_, _ = io.WriteString(w, body)
		}
		return ok
	})
	return c
}

// away has the server answer every request with a status, or work again with 0.
func (c *cluster) away(status int) {
	c.answer.Store(int32(status))
	if status != 0 {
		c.Cut()
	}
}

// receiver takes events, while it is up.
type receiver struct {
	*httptest.Server
	down atomic.Bool

	mu   sync.Mutex
	body bytes.Buffer
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r.down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		_, _ = io.Copy(&r.body, req.Body)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) has(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(r.body.String(), `"name":"`+name+`"`)
}

// process is a daemon in the test's process.
type process struct {
	*testing.T
	dir, admin string
	api        *cluster
	options    func(*watcherd.Options) // optional
	log        *testkit.Log
	stop       context.CancelFunc
	ended      chan error
}

func newProcess(t *testing.T, api *cluster, sink *receiver, watch string) *process {
	t.Helper()
	p := &process{T: t, dir: t.TempDir(), admin: testkit.Address(t), api: api}
	config := fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: test}
store: {path: %s}
admin: {listen: %q}
consistencyCheck: {enabled: false}
watches: [{name: w, %s}]
sinks: [{name: hook, webhook: {url: %q}, retry: {initial: 50ms, max: 100ms}}]
`, filepath.Join(p.dir, "data"), p.admin, watch, sink.URL)
	if err := os.WriteFile(p.config(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *process) config() string { return filepath.Join(p.dir, "watcherd.yaml") }

func (p *process) start() {
	p.Helper()
	ctx, cancel := context.WithCancel(p.Context())
	p.log, p.stop, p.ended = &testkit.Log{}, cancel, make(chan error, 1)
	o := watcherd.Options{
		ConfigFile: p.config(), Kinds: kinds.Builtin(), REST: p.api.Config(), Logger: slog.New(slog.NewTextHandler(p.log, nil)), ShutdownTimeout: time.Second,
	}
	if p.options != nil {
		p.options(&o)
	}
	go func() {
		p.ended <- watcherd.Run(ctx, o)
	}()
	p.Cleanup(cancel)
}

func (p *process) end() error {
	p.stop()
	return <-p.ended
}

func (p *process) until(what string, f func() bool) {
	p.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if f() {
			return
		}
	}
	p.Fatalf("never: %s\n%s", what, p.log)
}

// get asks the admin listener; the code is 0 while it does not answer.
func (p *process) get(path string) (code int, body string) {
	p.Helper()
	req, err := http.NewRequestWithContext(p.Context(), http.MethodGet, "http://"+p.admin+path, nil)
	if err != nil {
		p.Fatal(err)
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// TestServerAwayAtStart starts a daemon with a backlog while the API server is away:
// it delivers the backlog, is alive and not ready, and watches once the server is back.
func TestServerAwayAtStart(t *testing.T) {
	for _, tc := range []struct {
		status int
		says   string
	}{
		{http.StatusServiceUnavailable, "fails at discovery"},
		{http.StatusUnauthorized, "rejected the credentials (401)"},
	} {
		t.Run(fmt.Sprint(tc.status), func(t *testing.T) {
			api, sink := newCluster(t), newReceiver(t)
			sink.down.Store(true)
			p := newProcess(t, api, sink, "resources: [pods]")
			api.Put(podPath, "ns", "stored", nil)
			p.start()
			p.until("a backlog", func() bool { return strings.Contains(p.log.String(), "the sink fails") })
			if err := p.end(); err != nil {
				t.Fatal(err)
			}

			api.away(tc.status)
			sink.down.Store(false)
			p.start()
			p.until("the backlog is delivered", func() bool { return sink.has("stored") })
			if code, body := p.get("/livez"); code != http.StatusOK {
				t.Errorf("/livez: %d %s", code, body)
			}
			if code, body := p.get("/readyz?verbose"); code != http.StatusServiceUnavailable || !strings.Contains(body, tc.says) {
				t.Errorf("/readyz: %d %s", code, body)
			}
			api.Put(podPath, "ns", "later", nil)
			api.away(0)
			p.until("the watch's events", func() bool { return sink.has("later") })
			p.until("readiness", func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK })
			if log := p.log.String(); strings.Contains(log, "resource is not available") {
				t.Errorf("a resource is called unavailable because the server is away:\n%s", log)
			}
			if err := p.end(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestServerAwayThenWrong has the server come back as one that the daemon cannot work
// with: the daemon ends as it would have ended at its start.
func TestServerAwayThenWrong(t *testing.T) {
	t.Run("another cluster", func(t *testing.T) {
		api := newCluster(t)
		p := newProcess(t, api, newReceiver(t), "resources: [pods]")
		p.start()
		p.until("readiness", func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK })
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		api.away(http.StatusServiceUnavailable)
		api.SetUID("another")
		p.start()
		p.until("it runs", func() bool { code, _ := p.get("/livez"); return code == http.StatusOK })
		api.away(0)
		if err := <-p.ended; err == nil || !strings.Contains(err.Error(), "another cluster") {
			t.Errorf("the daemon ended with %v", err)
		}
	})
	t.Run("without a resource", func(t *testing.T) {
		api := newCluster(t)
		api.away(http.StatusServiceUnavailable)
		p := newProcess(t, api, newReceiver(t), "resources: [pods, gadgets.example.com], onMissing: fail")
		p.start()
		p.until("it runs", func() bool { _, body := p.get("/readyz?verbose"); return strings.Contains(body, "gadgets") })
		api.away(0)
		if err := <-p.ended; err == nil || !strings.Contains(err.Error(), "gadgets.example.com") {
			t.Errorf("the daemon ended with %v", err)
		}
	})
}
