package pipeline

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// verdict is what /readyz says, but for discovery and the configuration file.
func (l *live) verdict() status.Verdict {
	s := status.Status{Pipeline: l.m.Reader().Status()}
	return status.Worst(s.Checks(time.Now()))
}

// gate answers the requests for a path with a status code, none while it is 0.
type gate struct {
	path string
	code atomic.Int64
}

func (g *gate) answer(w http.ResponseWriter, r *http.Request) bool {
	code := int(g.code.Load())
	if code == 0 || r.URL.Path != g.path || strings.Contains(r.URL.RawQuery, "kube-system") {
		return false
	}
	apitest.Fail(w, code, map[int]string{http.StatusForbidden: "Forbidden", http.StatusServiceUnavailable: "ServiceUnavailable"}[code])
	return true
}

// closed is a gate that answers nothing before it is opened.
func closed(t *testing.T, api *apitest.Server, path string) (open func()) {
	t.Helper()
	opened := make(chan struct{})
	api.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == path && !strings.Contains(r.URL.RawQuery, "kube-system") {
			select {
			case <-opened:
			case <-r.Context().Done():
			case <-t.Context().Done():
			}
		}
		return false
	})
	return func() { close(opened) }
}

// TestReadyOnceNamespacesAreListed: a watch that selects namespaces by label begins when they
// are listed. Before that the daemon is not ready, so that the first change of somebody who waits
// for it is an addition and not a part of the first list.
func TestReadyOnceNamespacesAreListed(t *testing.T) {
	api, _ := podServer(t, 3)
	api.Put(namespacePath, "", "ns", map[string]any{"metadata": map[string]any{"name": "ns", "uid": "uid-ns", "labels": map[string]any{"env": "prod"}}})
	open := closed(t, api, namespacePath)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch(committest.ProdPods)))
	if got := l.verdict(); got != status.Failed {
		t.Errorf("before the namespaces are listed: %v", got)
	}
	open()
	eventually(t, "ready", func() bool { return l.verdict() == status.OK })
	api.Put(podPath, "ns", "first", nil)
	l.caughtUp()
	if got := l.log().types("first"); got != "added" {
		t.Errorf("the first change is %s", got)
	}
}

// TestReadyWithoutNamespaces: namespaces that may not be listed are a fault that no waiting mends.
func TestReadyWithoutNamespaces(t *testing.T) {
	api, _ := podServer(t, 3)
	g := &gate{path: namespacePath}
	g.code.Store(http.StatusForbidden)
	api.Intercept(g.answer)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch(committest.ProdPods)))
	eventually(t, "degraded", func() bool { return l.verdict() == status.Degraded })
	g.code.Store(0)
	eventually(t, "ready", func() bool { return l.verdict() == status.OK })
}

// TestReadyAfterDiscovery: what is served has been read, and the watches have not started yet.
func TestReadyAfterDiscovery(t *testing.T) {
	api, _ := podServer(t, 3)
	resolver := unfound()
	l := runLive(t, t.TempDir(), store.Options{}, api, resolver)
	l.apply(l.state(committest.PodWatch()))
	if got := l.verdict(); got != status.Failed {
		t.Errorf("before the watches start: %v", got)
	}
	resolver.set(pods)
	eventually(t, "ready", func() bool { return l.verdict() == status.OK })
}

// TestReadyAfterARefusedList: a first list that is refused for a moment is still to come.
func TestReadyAfterARefusedList(t *testing.T) {
	api, _ := podServer(t, 3)
	g := &gate{path: podPath}
	g.code.Store(http.StatusServiceUnavailable)
	api.Intercept(g.answer)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	eventually(t, "refused", func() bool {
		return l.m.informerList()[0].sub.Load().Watch().State == dynamicfactory.StateBackingOff
	})
	if got := l.verdict(); got != status.Failed {
		t.Errorf("after a refused list: %v", got)
	}
	g.code.Store(0)
	eventually(t, "ready", func() bool { return l.verdict() == status.OK })
}

// TestReadyOnceCommitted: what an informer has read and the store has not is not complete.
func TestReadyOnceCommitted(t *testing.T) {
	api, _ := podServer(t, 3)
	open := closed(t, api, podPath)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	held, release := make(chan struct{}), make(chan struct{})
	go func() { _ = l.m.committer.AtBarrier(func(commit.Barrier) { close(held); <-release }) }()
	<-held
	open()
	<-l.m.informerList()[0].sub.Load().Synced()
	if got := l.verdict(); got != status.Failed {
		t.Errorf("before the list is committed: %v", got)
	}
	close(release)
	eventually(t, "ready", func() bool { return l.verdict() == status.OK })
	if n := len(l.log()); n != 3 {
		t.Errorf("ready with %d of 3 pods in the log", n)
	}
}
