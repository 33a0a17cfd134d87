package webhook_test

import (
	"compress/gzip"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// request is what an endpoint was sent.
type request struct {
	header http.Header
	body   []byte
	proto  int
}

// endpoint is an HTTPS server that speaks HTTP/2 and keeps what it is sent.
type endpoint struct {
	*httptest.Server
	dir   string // holds ca.pem
	gates *freezer

	mu       sync.Mutex
	answer   func(w http.ResponseWriter, r *http.Request, ids []string) // nil: 204
	requests []request
	accepted []string
	hung     chan struct{} // closed when a hanging answer may end
}

func newEndpoint(t *testing.T) *endpoint {
	t.Helper()
	e := &endpoint{dir: t.TempDir(), hung: make(chan struct{})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.start(l)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(e.dir, "ca.pem"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *endpoint) start(l net.Listener) {
	e.gates = newFreezer(l)
	e.Server = httptest.NewUnstartedServer(e)
	e.Server.Listener.Close()
	e.Server.Listener = e.gates
	e.EnableHTTP2 = true
	e.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	e.StartTLS()
}

// restart ends the server and all its connections at once, and starts it again at its
// address.
func (e *endpoint) restart(t *testing.T) {
	_ = e.Config.Close()
	e.Server.Close()
	l, err := net.Listen("tcp", e.gates.Addr().String())
	if err != nil {
		t.Error(err)
		return
	}
	e.start(l)
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(decoded(r))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	ids := idsOf(r.Header, body)
	e.mu.Lock()
	e.requests = append(e.requests, request{header: r.Header.Clone(), body: body, proto: r.ProtoMajor})
	answer := e.answer
	if answer == nil {
		e.accepted = append(e.accepted, ids...)
	}
	e.mu.Unlock()
	if answer == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answer(w, r, ids)
}

func decoded(r *http.Request) io.Reader {
	if r.Header.Get("Content-Encoding") != "gzip" {
		return r.Body
	}
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return z
}

// idsOf reads the events' ids in whatever form they came.
func idsOf(h http.Header, body []byte) []string {
	if id := h.Get("Ce-Id"); id != "" {
		return []string{id}
	}
	type withID struct{ ID string }
	var many []withID
	if json.Unmarshal(body, &many) != nil {
		var one withID
		if json.Unmarshal(body, &one) != nil {
			return nil
		}
		many = []withID{one}
	}
	var out []string
	for _, e := range many {
		out = append(out, e.ID)
	}
	return out
}

func (e *endpoint) set(answer func(w http.ResponseWriter, r *http.Request, ids []string)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

func (e *endpoint) received() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.accepted)
}

// last returns the last request and how many there were.
func (e *endpoint) last() (request, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.requests) == 0 {
		return request{}, 0
	}
	return e.requests[len(e.requests)-1], len(e.requests)
}

// echo fails with that status and tells the client everything it said.
func echo(status int) func(w http.ResponseWriter, r *http.Request, _ []string) {
	return func(w http.ResponseWriter, r *http.Request, _ []string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, "you said %s %s with\n%v", r.Method, r.URL, r.Header)
	}
}

func (e *endpoint) hang(_ http.ResponseWriter, r *http.Request, _ []string) {
	select {
	case <-e.hung:
	case <-r.Context().Done():
	}
	panic(http.ErrAbortHandler)
}

// config is a block for the endpoint.
func (e *endpoint) config() *webhook.Config {
	c := webhook.NewConfig()
	c.URL.Text = e.URL + "/hook"
	c.TLS.CAFile = filepath.Join(e.dir, "ca.pem")
	return c
}

// stop ends the server; idle connections are gone only when both sides say so.
func (e *endpoint) stop() {
	close(e.hung)
	e.gates.thaw()
	e.Close()
}

// secretFile writes a secret and returns its place.
func secretFile(t *testing.T, value string) sinks.Secret {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return sinks.Secret{File: path}
}

func has(text string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(text, p) })
}
