package watcherd

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/replica"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
	"github.com/watcherd/watcherd/pkg/watcherd/jetstream"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// TestListenersAnswerWhileTheStoreOpens holds the store's opening up: the daemon is alive,
// not ready and says why, and does not answer what needs the store. Then it shows its configuration.
func TestListenersAnswerWhileTheStoreOpens(t *testing.T) {
	dir, listen, probes := t.TempDir(), testkit.Address(t), testkit.Address(t)
	file := filepath.Join(dir, "watcherd.yaml")
	config := fmt.Sprintf("apiVersion: watcherd.dev/v1alpha1\nkind: WatcherConfig\nstore: {path: %s}\nadmin: {listen: %q, probes: %q}\nwatches: [{name: w, resources: [pods]}]\n",
		filepath.Join(dir, "data"), listen, probes)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	held, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- run(ctx, Options{
			ConfigFile: file, Kinds: kinds.Builtin(), REST: &rest.Config{Host: "http://127.0.0.1:1"}, Logger: slog.New(slog.DiscardHandler),
		}, func(st *plan.State, o Options) (*store.Store, error) { //nolint:contextcheck // a repair that has begun is completed
			close(held)
			<-release
			return openStore(st, o)
		})
	}()
	get := func(address, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	<-held
	for _, tc := range []struct {
		address, path string
		code          int
		text          string
	}{
		{probes, "/livez", 200, "ok"},
		{probes, "/readyz", 503, "store failed"},
		{probes, "/metrics", 200, "watcherd_"},
		{listen, "/livez", 200, "ok"},
		{listen, "/readyz", 503, "[-]store failed: it is being opened and checked"},
		{listen, "/api/v1/status", 200, `"opening":true`},
		{listen, "/api/v1/objects/pods", 503, "its store is being opened"},
		{listen, "/api/v1/config", 503, "its store is being opened"},
		{listen, "/api/v1/events", 503, "its store is being opened"},
	} {
		if code, body := get(tc.address, tc.path); code != tc.code || !strings.Contains(body, tc.text) {
			t.Errorf("%s: status %d, want %d with %q: %s", tc.path, code, tc.code, tc.text, body)
		}
	}
	close(release)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if code, _ := get(listen, "/api/v1/history"); code == http.StatusOK {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the store never opens")
		}
	}
	// What runs is shown beside the file, whose problems are at their lines.
	configuration := func() (c admin.Configuration) {
		t.Helper()
		code, body := get(listen, "/api/v1/config")
		if err := json.Unmarshal([]byte(body), &c); code != http.StatusOK || err != nil || c.Path != file {
			t.Fatalf("status %d, %v: %s", code, err, body)
		}
		return c
	}
	for end := time.Now().Add(20 * time.Second); configuration().Running == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing runs")
		}
	}
	first := configuration()
	if !first.Equal || !bytes.Equal(first.Running, first.File) || len(first.Problems) > 0 || !bytes.Contains(first.Running, []byte(`"resources":["pods"]`)) {
		t.Errorf("got %+v", first)
	}
	for text, want := range map[string]admin.ConfigProblem{
		config + "sinks: [{name: s, webhook: {url: \"https://h/c4n4ry\", bearerToken: c4n4ry}}]\nbogus: 1\n": {Line: 7, Column: 1, Key: "bogus"},
		config + "sinks: [": {Line: 6},
		config + "sinks:\n- {name: s, webhook: {url: \"http://u:c4n4ry@[h\"}}\n":                         {Line: 7},
		config + "sinks:\n- {name: s, webhook: {url: \"http://u:c4n4ry@h\"}}\n":                          {Line: 7},
		config + "sinks:\n- {name: s, webhook: {url: \"http://h\", headers: {A: \"c4n4ry\\u0001\"}}}\n":  {Line: 7},
		config + "sinks:\n- {name: s, webhook: {url: \"http://h\", proxyURL: \"http://u:c4n4ry@[h\"}}\n": {Line: 7},
		config + "sinks:\n- {name: s, postgres: {url: \"postgres://u:c4n4ry@[h/x\"}}\n":                  {Line: 7},
		config + "sinks:\n- {name: s, nats: {url: \"nats://u:c4n4ry@[h\", subject: a}}\n":                {Line: 7},
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := configuration()
		at := slices.IndexFunc(c.Problems, func(p admin.ConfigProblem) bool {
			return p.Line == want.Line && (want.Key == "" || p.Key == want.Key && p.Column == want.Column)
		})
		if c.Equal || !bytes.Equal(c.Running, first.Running) || at < 0 || strings.Contains(fmt.Sprint(string(c.File), c.Problems), "c4n4ry") {
			t.Errorf("got %+v of the file %s (equal: %t), want the problem %+v", c.Problems, c.File, c.Equal, want)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if c := configuration(); c.File != nil || len(c.Problems) != 1 || c.Equal {
		t.Errorf("got %+v of no file", c)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// TestDamagedNotes damages what the store remembers and a start cannot do without: the start ends with what to do, and as
// one whose store cannot be opened.
func TestDamagedNotes(t *testing.T) {
	dir := t.TempDir()
	n := newNotes(t, dir)
	n.damage()
	err := Run(t.Context(), n.options("", slog.New(slog.DiscardHandler)))
	if !errors.Is(err, ErrStoreOpen) || !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), "redaction key") ||
		!strings.Contains(err.Error(), "watcherd store export") {
		t.Errorf("got %v", err)
	}
}

// TestDamagedNotesOfAReplica: a replica that ends so is seeded at its next start.
func TestDamagedNotesOfAReplica(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := newNotes(t, dir)
	node := natstest.Start(t, natstest.Spec{Name: "solo", Dir: t.TempDir()})
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("the key of the journal"), 0o600); err != nil {
		t.Fatal(err)
	}
	more := fmt.Sprintf(", journal: {nats: {urls: [%s]}, stream: S, encryptionKey: {file: %s}}", node.URL, key)
	runUntil := func(says string) error {
		t.Helper()
		var log testkit.Log
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- Run(ctx, n.options(more, slog.New(slog.NewTextHandler(&log, nil)))) }()
		for end := time.Now().Add(time.Minute); !strings.Contains(log.String(), says); time.Sleep(10 * time.Millisecond) {
			if len(ended) > 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("it never says %q:\n%s", says, log.String())
			}
		}
		cancel()
		return <-ended
	}
	if err := runUntil("the journal has a new snapshot"); err != nil {
		t.Fatal(err)
	}
	n.damage()
	if err := runUntil("watcherd is running"); !errors.Is(err, ErrStoreOpen) || !errors.Is(err, store.ErrDamaged) {
		t.Errorf("a start: %v", err)
	}
	if err := runUntil("watcherd is running"); err != nil {
		t.Errorf("the next: %v", err)
	}
}

// notes is a store with notes in blocks of their own.
type notes struct {
	*testing.T
	dir   string
	noise [64 << 10]byte
}

func newNotes(t *testing.T, dir string) *notes {
	t.Helper()
	n := &notes{T: t, dir: dir}
	_, _ = rand.Read(n.noise[:])
	st, err := store.Open(n.data(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := st.NewBatch()
	for _, key := range []string{"a", "z"} { // the block of the key is between those of other things
		b.PutMeta(key, n.noise[:])
	}
	if err := st.Commit(b); err != nil {
		t.Fatal(err)
	}
	if _, err := ledger.LoadRedactKey(st, nil); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *notes) data() string { return filepath.Join(n.dir, "data") }

// damage damages the store, which is closed.
func (n *notes) damage() {
	n.Helper()
	r, err := store.OpenReplica(n.data(), store.Options{}) // the log becomes tables
	if err != nil {
		n.Fatal(err)
	}
	if err := r.Close(); err != nil {
		n.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(n.data(), "db", "*.sst"))
	if err != nil {
		n.Fatal(err)
	}
	hit := 0
	for _, path := range tables {
		content, err := os.ReadFile(path)
		if err != nil {
			n.Fatal(err)
		}
		if at := bytes.LastIndex(content, n.noise[1000:2000]); at >= 0 {
			hit++
			content[at] ^= 1
			if err := os.WriteFile(path, content, 0o600); err != nil {
				n.Fatal(err)
			}
		}
	}
	if hit != 1 {
		n.Fatalf("%d tables are damaged", hit)
	}
}

// options are those of a daemon with the store; more is what its configuration has besides.
func (n *notes) options(more string, log *slog.Logger) Options {
	n.Helper()
	file := filepath.Join(n.dir, "watcherd.yaml")
	config := fmt.Sprintf("apiVersion: watcherd.dev/v1alpha1\nkind: WatcherConfig\nstore: {path: %s%s}\nadmin: {listen: \"127.0.0.1:0\"}\nwatches: [{name: w, resources: [pods]}]\n", n.data(), more)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		n.Fatal(err)
	}
	return Options{
		ConfigFile: file, Kinds: kinds.Builtin(), REST: &rest.Config{Host: "http://127.0.0.1:1"}, Logger: log,
		Journal: func(c replica.Config) (replica.Member, error) {
			c.Journal.Replicas = 1
			return jetstream.Journal(c)
		},
	}
}
