package dynamicfactory_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// A redirect to another server is not followed, as the credentials would go with it. One
// within the server is.
func TestRedirectToAnotherServer(t *testing.T) {
	credentials := make(chan string, 1)
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case credentials <- r.Method + " " + r.URL.Path + " with " + r.Header.Get("Authorization"):
		default:
		}
		http.NotFound(w, r)
	}))
	defer thief.Close()
	lists, moved := make(chan struct{}, 100), make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/moved"):
			moved <- struct{}{}
			http.Redirect(w, r, thief.URL+r.URL.Path, http.StatusTemporaryRedirect)
		case strings.HasSuffix(r.URL.Path, "/configmaps"):
			lists <- struct{}{}
			http.Redirect(w, r, r.URL.Path+"/moved", http.StatusTemporaryRedirect)
		case r.URL.Query().Get("fieldSelector") == "metadata.name=kube-system": // the probe before a retry
			_, _ = w.Write([]byte(`{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`))
		default:
			http.Redirect(w, r, thief.URL+r.URL.Path, http.StatusFound)
		}
	}))
	defer server.Close()
	cfg := &rest.Config{Host: server.URL, BearerToken: "of-the-daemon", QPS: -1}

	r, err := dynamicfactory.NewResolver(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("discovery: %v", err)
	}
	f, err := dynamicfactory.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Shutdown()
	f.Start(t.Context().Done())
	if _, err := f.Subscribe(t.Context(), configMapKey, cache.ResourceEventHandlerFuncs{}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second one is behind the end of the first
		<-lists
		<-moved
	}
	select {
	case got := <-credentials:
		t.Error("another server got:", got)
	default:
	}
}

// Discovery that does not end takes bounded memory, and ends.
func TestEndlessDiscovery(t *testing.T) {
	const more = 200 << 20
	var sent atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		text := `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[` + strings.Repeat(" ", 1<<20)
		for sent.Load() < more {
			n, err := w.Write([]byte(text))
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	r, err := dynamicfactory.NewResolver(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("discovery: %.200v", err)
	}
	if n := sent.Load(); n > 100<<20 {
		t.Errorf("%d MiB were read", n>>20)
	}
}
