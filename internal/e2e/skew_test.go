package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
)

// release is a build of this source with one constant changed, as a later release would have it.
type release struct {
	file, was, is string
	build         func() (string, error)
}

var (
	newFormat = newRelease("internal/journal/entry.go", "const format = 1\n", "const format = 2\n")
	newLayout = newRelease("internal/store/layout/keys.go", "const Version = 4\n", "const Version = 5\n")
)

func newRelease(file, was, is string) *release {
	r := &release{file: file, was: was, is: is}
	r.build = sync.OnceValues(r.buildNow)
	return r
}

// buildNow overlays the file; the source itself stays.
func (r *release) buildNow() (string, error) {
	dir, err := os.MkdirTemp("", "watcherd-e2e-")
	if err != nil {
		return "", err
	}
	path, err := filepath.Abs(filepath.Join("..", "..", r.file))
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	changed := strings.Replace(string(text), r.was, r.is, 1)
	if changed == string(text) {
		return "", fmt.Errorf("%s has no %q", r.file, r.was)
	}
	with := filepath.Join(dir, "changed.go")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: with}})
	if err != nil {
		return "", err
	}
	for name, content := range map[string][]byte{with: []byte(changed), filepath.Join(dir, "overlay.json"): overlay} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			return "", err
		}
	}
	program := filepath.Join(dir, "watcherd")
	out, err := exec.CommandContext(context.Background(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program,
		"github.com/watcherd/watcherd/cmd/watcherd").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build another release: %w\n%s", err, out)
	}
	return program, nil
}

// skew are replicas of different releases, on three NATS servers and one API server.
type skew struct {
	t      *testing.T
	api    *apitest.Server
	config string
	kube   string
	events string
	puts   int
}

func newSkew(t *testing.T) *skew {
	t.Helper()
	s := &skew{t: t, api: apitest.New(t), events: filepath.Join(t.TempDir(), "events")}
	s.api.Serve(mapsPath, "v1", "ConfigMap")
	s.api.SetUID("uid")
	s.api.Intercept(discover)
	web := httptest.NewServer(&httputil.ReverseProxy{ // the API server is in memory
		Transport: &http.Transport{DialContext: s.api.Config().Dial}, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "apitest" },
	})
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	dir := t.TempDir()
	s.kube = filepath.Join(dir, "kubeconfig")
	key := filepath.Join(dir, "key")
	for name, text := range map[string]string{key: "the key of the journal", s.kube: fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: e2e
clusters: [{name: e2e, cluster: {server: %q}}]
users: [{name: e2e, user: {}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
`, web.URL)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.config = journaled(fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data}
admin: {listen: ""}
consistencyCheck: {enabled: false}
watches: [{name: maps, resources: [configmaps]}]
sinks: [{name: archive, file: {path: "%s/{resource}.jsonl"}}]
`, s.events), natstest.StartCluster(t), "SKEW", key)
	return s
}

// replica is of a release; nil is this one.
func (s *skew) replica(r *release) *daemon {
	s.t.Helper()
	d := newDaemon(s.t, s.kube, s.config)
	if r != nil {
		program, err := r.build()
		if err != nil {
			s.t.Fatal(err)
		}
		d.binary = program
	}
	return d
}

func (s *skew) start(d *daemon, text string) {
	s.t.Helper()
	d.log.Reset()
	d.start()
	s.await(d, text)
}

func (s *skew) await(d *daemon, text string) {
	s.t.Helper()
	eventually(s.t, func() bool { return strings.Contains(d.log.String(), text) }, func() string { return "no " + text + "\n" + d.log.Tail() })
}

// put makes a change, and returns when it is delivered, as are those before it, each once but for repetitions.
func (s *skew) put() {
	s.t.Helper()
	s.api.Put(mapsPath, "ns", fmt.Sprint("map-", s.puts), nil)
	s.puts++
	eventually(s.t, func() bool { return len(distinct(readEvents(s.t, s.events))) == s.puts },
		func() string {
			return fmt.Sprintf("%d of %d changes are delivered", len(distinct(readEvents(s.t, s.events))), s.puts)
		})
}

// refused waits until a replica has ended with what it must say.
func (s *skew) refused(d *daemon, texts ...string) {
	s.t.Helper()
	if code := d.wait(); code != 4 {
		s.t.Errorf("exit code %d, want 4", code)
	}
	for _, text := range texts {
		if !strings.Contains(d.log.String(), text) {
			s.t.Errorf("no %q in\n%s", text, d.log.Tail())
		}
	}
}

// TestSkewOfTheJournal upgrades replicas to a release whose entries have a newer format, one after the other.
func TestSkewOfTheJournal(t *testing.T) {
	t.Parallel()
	s := newSkew(t)
	old, other, next := s.replica(nil), s.replica(nil), s.replica(newFormat)
	s.start(old, "this replica leads")
	s.put()
	s.start(next, "this replica follows")
	s.put()
	old.kill()
	s.await(next, "this replica leads")
	s.put()
	other.start()
	s.refused(other, "written by a newer release", "upgrade this replica")
	old.log.Reset()
	old.start() // it led before, and does not contend
	s.refused(old, "written by a newer release", "upgrade this replica")
	s.put()
	other.binary = next.binary
	s.start(other, "this replica follows")
	next.stop()
	s.await(other, "this replica leads")
	s.put()
	other.stop()
}

// TestSkewOfTheStore has replicas of a release with another layout of the store: neither follows the other, both say
// what to do, and the one that leads is not disturbed.
func TestSkewOfTheStore(t *testing.T) {
	t.Parallel()
	s := newSkew(t)
	old, next := s.replica(nil), s.replica(newLayout)
	s.start(old, "this replica leads")
	s.put()
	next.start()
	s.refused(next, "written by an older release", "store.journal.stream")
	s.put()
	old.stop()
	next.log.Reset()
	next.start()
	s.refused(next, "written by an older release", "store.journal.stream")
	// As it says: another stream, and an empty folder.
	s.config = strings.NewReplacer("stream: SKEW", "stream: NEXT", s.events, s.events+"-next").Replace(s.config)
	s.events += "-next"
	next = s.replica(newLayout)
	s.start(next, "this replica leads")
	s.put()
	late := s.replica(nil)
	late.start()
	s.refused(late, "written by a newer release", "upgrade this replica")
	next.stop()
}
