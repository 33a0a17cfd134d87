package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testkit"
)

// hookTimeout is the timeout that tests give to the webhook of an endpoint.
const hookTimeout = time.Second

// endpoint is a webhook's other end that can be in any kind of trouble.
type endpoint struct {
	t    testing.TB
	addr string

	mu     sync.Mutex
	server *http.Server  // nil while it is down
	served chan struct{} // closed when the server has ended
	behave behaviour
	fresh  [][]byte // accepted and not yet tapped
}

// behaviour is what becomes of a request: take accepts its events.
type behaviour func(w http.ResponseWriter, batch []json.RawMessage, take func())

func healthy(_ http.ResponseWriter, _ []json.RawMessage, take func()) { take() }

func failing(w http.ResponseWriter, _ []json.RawMessage, _ func()) {
	http.Error(w, "something broke", http.StatusInternalServerError)
}

func busy(w http.ResponseWriter, _ []json.RawMessage, _ func()) {
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusTooManyRequests)
}

// slow takes the events and answers late, often too late.
func slow(_ http.ResponseWriter, _ []json.RawMessage, take func()) {
	take()
	time.Sleep(rand.N(3 * hookTimeout / 2))
}

// cutting closes the connection instead of an answer, before or after it has taken
// the events.
func cutting(_ http.ResponseWriter, _ []json.RawMessage, take func()) {
	if rand.N(2) == 0 {
		take()
	}
	panic(http.ErrAbortHandler)
}

// newEndpoint starts one that takes everything.
func newEndpoint(t testing.TB) *endpoint {
	e := &endpoint{t: t, addr: testkit.Address(t), behave: healthy}
	e.up()
	t.Cleanup(e.down)
	return e
}

func (e *endpoint) url() string { return "http://" + e.addr }

// up begins to listen, at the same address as before.
func (e *endpoint) up() {
	e.t.Helper()
	l, err := net.Listen("tcp", e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	server := &http.Server{Handler: e}
	served := make(chan struct{})
	e.mu.Lock()
	e.server, e.served = server, served
	e.mu.Unlock()
	go func() {
		defer close(served)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			e.t.Error(err)
		}
	}()
}

// down closes the listener and every connection.
func (e *endpoint) down() {
	e.mu.Lock()
	server, served := e.server, e.served
	e.server = nil
	e.mu.Unlock()
	if server == nil {
		return
	}
	if err := server.Close(); err != nil {
		e.t.Error(err)
	}
	<-served
}

func (e *endpoint) become(b behaviour) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.behave = b
}

// ServeHTTP takes a batch of structured CloudEvents.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the daemon gave up
	}
	var batch []json.RawMessage
	if err := json.Unmarshal(body, &batch); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	behave := e.behave
	e.mu.Unlock()
	behave(w, batch, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, event := range batch {
			e.fresh = append(e.fresh, event)
		}
	})
}

// tap shows what the endpoint has accepted.
func (e *endpoint) tap() *tap {
	return newTap("webhook", func() ([][]byte, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		fresh := e.fresh
		e.fresh = nil
		return fresh, nil
	})
}
