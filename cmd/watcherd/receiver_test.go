package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// receiver is a webhook's other end.
type receiver struct {
	server *httptest.Server

	mu       sync.Mutex
	code     int      // guarded by mu; what it answers
	object   string   // guarded by mu; to events of the object of that name; "": to all
	accepted []string // guarded by mu; the events it answered with 200
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{code: http.StatusOK}
	r.server = httptest.NewServer(r)
	t.Cleanup(r.server.Close)
	return r
}

// ServeHTTP takes an event or refuses it.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the daemon gave up
	}
	r.mu.Lock()
	hangs := r.code == hang
	r.mu.Unlock()
	if hangs {
		<-req.Context().Done()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.code != http.StatusOK && (r.object == "" || strings.Contains(string(body), `"name":"`+r.object+`"`)) {
		http.Error(w, "no thanks", r.code)
		return
	}
	r.accepted = append(r.accepted, string(body))
}

// hang is the code of no answer.
const hang = 0

// answer CODE [OBJECT]: what the receiver answers from now on to events of the
// object, or to all; to others it answers 200. With code 0 it does not answer.
func (r *receiver) answer(ts *testscript.TestScript, _ bool, args []string) {
	code, err := strconv.Atoi(args[0])
	ts.Check(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.code, r.object = code, strings.Join(args[1:], "")
}

// received: puts the events that the receiver has accepted on the standard output, a
// line each, in its order.
func (r *receiver) received(ts *testscript.TestScript, _ bool, _ []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, body := range r.accepted {
		_, err := io.WriteString(ts.Stdout(), body+"\n")
		ts.Check(err)
	}
}
