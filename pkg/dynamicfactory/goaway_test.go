package dynamicfactory_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// An API server that spreads its clients (--goaway-chance) sends GOAWAY behind a request. Requests that
// run on the connection are carried on, and the next ones take another.
func TestGoAway(t *testing.T) {
	var mu sync.Mutex
	conns := map[string]bool{}
	watching, send := make(chan struct{}), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		conns[r.RemoteAddr] = true
		mu.Unlock()
		w.Header().Set("Connection", "close") // GOAWAY with HTTP/2
		switch q := r.URL.Query(); {
		case r.ProtoMajor != 2:
			t.Errorf("%s", r.Proto)
		case q.Get("watch") != "":
			w.(http.Flusher).Flush()
			close(watching)
			<-send
			_, _ = fmt.Fprintln(w, `{"type":"ADDED","object":{"metadata":{"name":"c","namespace":"ns","resourceVersion":"101"}}}`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case q.Get("continue") == "":
			_, _ = fmt.Fprint(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"100","continue":"next"},"items":[{"metadata":{"name":"a","namespace":"ns","resourceVersion":"1"}}]}`)
		default:
			_, _ = fmt.Fprint(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"100"},"items":[{"metadata":{"name":"b","namespace":"ns","resourceVersion":"2"}}]}`)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	f, err := dynamicfactory.NewRESTFactory(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}, dynamicfactory.WithCompactStore())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Shutdown()
	j := newJournal()
	sub, err := f.SubscribeDurable(t.Context(), configMapKey, j, dynamicfactory.DurableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-sub.Synced()
	<-watching
	close(send)
	eventually(t, "the event", func() bool { return sub.Status().Events == 1 })
	eventually(t, "it is handled", func() bool { j.mu.Lock(); defer j.mu.Unlock(); return len(j.lines) == 3 })
	j.expect(t, "initial a", "initial b", "add c")
	st := sub.Status()
	is(t, "restarts", st.Restarts, 0)
	is(t, "relists", st.Relists, 0)
	mu.Lock()
	defer mu.Unlock()
	if len(conns) < 2 {
		t.Errorf("%d connections", len(conns))
	}
}
