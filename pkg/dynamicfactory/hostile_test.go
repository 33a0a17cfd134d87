package dynamicfactory_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/apitest"
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

// watching subscribes to the ConfigMaps of a server until the test ends.
func watching(t *testing.T, cfg *rest.Config) *dynamicfactory.Subscription {
	t.Helper()
	f, err := dynamicfactory.NewRESTFactory(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Shutdown)
	f.Start(t.Context().Done())
	sub, err := f.Subscribe(t.Context(), configMapKey, cache.ResourceEventHandlerFuncs{})
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// What a server, or a proxy before it, repeats of a request that it rejects has no credentials:
// errors are in the log and in the status.
func TestServerThatRepeatsTheCredentials(t *testing.T) {
	const token, password = "of-the-daemon", "of-the-user"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("fieldSelector") == "metadata.name=kube-system" { // the probe before a retry
			_, _ = w.Write([]byte(`{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`))
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
			"message": "rejected with Authorization: " + r.Header.Get("Authorization"),
		})
	}))
	defer server.Close()
	for name, cfg := range map[string]*rest.Config{
		"a token":    {Host: server.URL, BearerToken: token, QPS: -1},
		"a password": {Host: server.URL, Username: "u", Password: password, QPS: -1},
	} {
		t.Run(name, func(t *testing.T) {
			secrets := []string{token, base64.StdEncoding.EncodeToString([]byte("u:" + password))}
			check := func(what, message string) {
				t.Helper()
				for _, secret := range secrets {
					if !strings.Contains(message, "rejected with") || strings.Contains(message, secret) {
						t.Errorf("%s: %s", what, message)
					}
				}
			}
			r, err := dynamicfactory.NewResolver(cfg)
			if err != nil {
				t.Fatal(err)
			}
			check("discovery", fmt.Sprint(r.Refresh(t.Context())))
			sub := watching(t, cfg)
			eventually(t, "a failure is reported", func() bool { return sub.Status().Message != "" })
			check("status", sub.Status().Message)
		})
	}
}

// A list whose page continues with itself has no end.
func TestPageThatContinuesWithItself(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1","continue":"again"},"items":[]}`))
	}))
	defer server.Close()
	sub := watching(t, &rest.Config{Host: server.URL, QPS: -1})
	eventually(t, "the list is refused", func() bool { return strings.Contains(sub.Status().Message, "continues with itself") })
}

// An object is one line, whatever a server sends: receivers of lines and of server-sent events take another line for
// another event.
func TestObjectIsOneLine(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		const object = "{\n \"apiVersion\": \"v1\",\r\n \"kind\": \"ConfigMap\",\n\n \"metadata\": {\"name\":\"%s\",\r\"namespace\":\"ns\",\"uid\":\"u\",\"resourceVersion\":\"%d\"},\"data\":{\"a\":\"\\n \"}}"
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if isList(r) {
				_, _ = fmt.Fprintf(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"300"},"items":[`+object+`]}`, "a", 299)
				return true
			}
			_, _ = fmt.Fprintf(w, `{"type":"ADDED","object":`+strings.ReplaceAll(object, "\n", "\r")+"}\n", "b", 301)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return true
		})
		j, _ := subscribe(t, factory(t, s), configMapKey)
		for _, name := range []string{"a", "b"} {
			o := j.objects[name]
			if o == nil {
				t.Fatalf("no object %s", name)
			}
			raw, err := o.AppendJSON(nil)
			if err != nil || strings.ContainsAny(string(raw), "\r\n") || !strings.Contains(string(raw), `"\n "`) {
				t.Errorf("%q, %v", raw, err)
			}
		}
	})
}

// Resources whose names no API server accepts in a definition are not served: one with a dot could have the name of a
// resource of another group, and names are printed.
func TestResourcesWithOddNames(t *testing.T) {
	resolved(t, func(t *testing.T, _ *apitest.Server, d *served, r *dynamicfactory.Resolver) {
		d.set(func(groups []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
			return append(groups, group("com", version("v1", serves("widgets.example", "Widget"), serves("a\n- b", "A"), serves("x@y", "X"),
				serves("\x1b[2J", "E"), serves("", "N"), serves("..", "D"), serves("Large", "L"), serves("fine-2", "Fine"))))
		})
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		all, err := r.Resolve("*.com")
		if err != nil || len(all) != 1 || all[0].GVR.Resource != "fine-2" {
			t.Errorf("%+v, %v", all, err)
		}
	})
}
