package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// forgetful stands between a daemon and the API server, and leaves watch events
// that hold a word out, as servers have done.
type forgetful struct {
	*httptest.Server
	word atomic.Pointer[string]
	left atomic.Int32 // how many events were left out
}

func newForgetful(t testing.TB, c *testcluster.Cluster) *forgetful {
	t.Helper()
	cfg := c.Config(t)
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	f := &forgetful{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error {
			if r.Request.URL.Query().Get("watch") != "" && r.StatusCode == http.StatusOK {
				r.Body = f.filter(r.Body)
			}
			return nil
		},
	}
	f.Server = httptest.NewServer(proxy)
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func (f *forgetful) filter(body io.ReadCloser) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		in := bufio.NewReader(body)
		for {
			line, err := in.ReadBytes('\n')
			if word := f.word.Load(); word != nil && bytes.Contains(line, []byte(*word)) {
				f.left.Add(1)
				continue
			}
			if _, werr := w.Write(line); werr != nil || err != nil {
				w.CloseWithError(err)
				body.Close()
				return
			}
		}
	}()
	return struct {
		io.Reader
		io.Closer
	}{r, closers{r, body}}
}

type closers []io.Closer

func (c closers) Close() error {
	for _, one := range c {
		one.Close()
	}
	return nil
}

func (f *forgetful) kubeconfig(t testing.TB) string {
	name := t.TempDir() + "/kubeconfig"
	err := os.WriteFile(name, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
current-context: proxy
clusters: [{name: proxy, cluster: {server: %q}}]
contexts: [{name: proxy, context: {cluster: proxy, user: proxy}}]
users: [{name: proxy, user: {}}]
`, f.URL), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// TestConsistencyCheckFindsMissedChanges loses an update, a creation and a deletion
// between server and daemon.
func TestConsistencyCheckFindsMissedChanges(t *testing.T) {
	t.Parallel()
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	w := newClient(t, c, ns)
	f := newForgetful(t, c)
	widget := kinds[3]
	d := newDaemon(t, f.kubeconfig(t), fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {path: ./data}
admin: {listen: ""}
consistencyCheck: {interval: 3s}
watches: [{name: all, resources: [widgets.example.com], namespaces: {include: [%s]}}]
routes: [{name: all, payload: [object, oldObject], sinks: [archive]}]
sinks: [{name: archive, file: {path: "./events/{resource}.jsonl"}}]
`, ns))
	updated, err := w.create(t.Context(), widget, "lost-update")
	if err != nil {
		t.Fatal(err)
	}
	removed, err := w.create(t.Context(), widget, "lost-deletion")
	if err != nil {
		t.Fatal(err)
	}
	d.start()
	w.settleAll(d.path("events"), widget)

	word := "lost-"
	f.word.Store(&word)
	if _, err := w.update(t.Context(), widget, updated); err != nil {
		t.Fatal(err)
	}
	if _, err := w.create(t.Context(), widget, "lost-creation"); err != nil {
		t.Fatal(err)
	}
	if err := w.remove(t.Context(), widget, removed); err != nil {
		t.Fatal(err)
	}
	w.settleAll(d.path("events"), widget) // the watch has passed them by
	eventually(t, func() bool { return f.left.Load() >= 3 }, func() string { return "nothing was left out" })

	repairs := func() map[string]string {
		m := map[string]string{}
		for _, g := range readEvents(t, d.path("events")) {
			// Others that the list happened to bring are marked as well.
			if g.Data.Repair && strings.HasPrefix(g.Data.Name, "lost-") {
				m[g.Data.Name] = g.verb()
			}
		}
		return m
	}
	// The check waits until the watch has come as far as its list. Further writes
	// show that sooner than the next bookmark.
	eventually(t, func() bool {
		w.settleAll(d.path("events"), widget)
		return len(repairs()) >= 3
	}, func() string { return fmt.Sprintf("repairs are %v", repairs()) })
	d.stop()

	want := map[string]string{"lost-update": "updated", "lost-creation": "added", "lost-deletion": "deleted"}
	if got := repairs(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("repairs are %v, want %v", got, want)
	}
	checkExact(t, w.history, readEvents(t, d.path("events")))
	if !strings.Contains(d.log.String(), "consistency check") {
		t.Error("the log doesn't mention the consistency check")
	}
}
