package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/watcherd/watcherd/internal/waittest"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

var eventually = waittest.Until

// replaceFile swaps a file as whoever rotates it does: by a rename.
func replaceFile(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(content), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

func TestStatus(t *testing.T) {
	want := map[int]sinks.Class{
		400: sinks.ClassPoison, 413: sinks.ClassPoison, 422: sinks.ClassPoison,
		408: sinks.ClassRetry, 409: sinks.ClassRetry, 425: sinks.ClassRetry, 429: sinks.ClassRetry,
		500: sinks.ClassRetry, 501: sinks.ClassRetry, 502: sinks.ClassRetry, 503: sinks.ClassRetry, 504: sinks.ClassRetry, 599: sinks.ClassRetry,
		300: sinks.ClassPause, 304: sinks.ClassPause, 401: sinks.ClassPause, 402: sinks.ClassPause, 403: sinks.ClassPause,
		404: sinks.ClassRetry, 405: sinks.ClassPause, 407: sinks.ClassPause, 410: sinks.ClassPause, 415: sinks.ClassPause, 451: sinks.ClassPause,
	}
	e := newEndpoint(t)
	defer e.stop()
	s := sinktest.Open(t, e.config())
	for status, class := range want {
		e.set(echo(status))
		err := s.Write(t.Context(), sinktest.Events(1, 1))
		if got, _ := sinks.Classify(err); err == nil || got != class {
			t.Errorf("%d: class %s, want %s: %v", status, got, class, err)
		}
		if sinks.IsTooLarge(err) != (status == http.StatusRequestEntityTooLarge) {
			t.Errorf("%d: too large is %v", status, sinks.IsTooLarge(err))
		}
		if err != nil && !has(err.Error(), fmt.Sprintf("status %d", status), "127.0.0.1") {
			t.Errorf("%d: the error does not name status and host: %v", status, err)
		}
	}
	for _, status := range []int{200, 201, 202, 204, 299} {
		e.set(func(w http.ResponseWriter, _ *http.Request, _ []string) { w.WriteHeader(status) })
		if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// TestResults: the document decides about each event; without it none is accepted.
func TestResults(t *testing.T) {
	const secret = "canary-token-4711"
	token := secretFile(t, secret)
	e := newEndpoint(t)
	defer e.stop()
	c := e.config()
	c.Results, c.BearerToken = true, &token
	answer := func(status int, document string) {
		e.set(func(w http.ResponseWriter, _ *http.Request, _ []string) {
			w.WriteHeader(status)
			fmt.Fprint(w, document)
		})
	}
	events := sinktest.Events(4, 4)
	batch := sinktest.Open(t, c, func(o *sinks.Options) { o.BatchMode = true })
	single := sinktest.Open(t, c)

	answer(200, `{"results":[{"status":"accepted"},{"status":"poison","message":"no: `+secret+`"},{"status":"retry","retryAfter":7},{"status":"pause","message":"`+strings.Repeat("x", 246)+secret+`"}]}`)
	failed, ok := errors.AsType[*sinks.BatchError](batch.Write(t.Context(), events))
	if !ok || len(failed.Failed) != 3 {
		t.Fatalf("error %v", failed)
	}
	for i, want := range map[int]sinks.Class{1: sinks.ClassPoison, 2: sinks.ClassRetry, 3: sinks.ClassPause} {
		if class, _ := sinks.Classify(failed.Failed[i]); class != want {
			t.Errorf("event %d: class %s, want %s", i, class, want)
		}
		if strings.Contains(failed.Failed[i].Error(), secret[:5]) {
			t.Errorf("event %d: the error holds a secret: %v", i, failed.Failed[i])
		}
	}
	if _, after := sinks.Classify(failed.Failed[2]); after != 7*time.Second {
		t.Errorf("event 2: after %v", after)
	}

	answer(202, `{"results":[{"status":"accepted"},{"status":"accepted"},{"status":"accepted"},{"status":"accepted"}]}`)
	if err := batch.Write(t.Context(), events); err != nil {
		t.Error(err)
	}
	answer(200, `{"results":[{"status":"poison"}]}`)
	if failed, ok = errors.AsType[*sinks.BatchError](single.Write(t.Context(), events)); !ok || len(failed.Failed) != 4 {
		t.Errorf("one by one: %v", failed)
	} else if class, _ := sinks.Classify(failed.Failed[3]); class != sinks.ClassPoison {
		t.Errorf("one by one: class %s", class)
	}
	for _, document := range []string{"", "ok", `{"results":[{"status":"accepted"}]}`, strings.Repeat(" ", 1<<20)} {
		answer(200, document)
		err := batch.Write(t.Context(), events)
		if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassRetry || !has(err.Error(), "results document") {
			t.Errorf("%.40q: class %s: %v", document, class, err)
		}
	}
	answer(422, `{"results":[{"status":"accepted"},{"status":"accepted"},{"status":"accepted"},{"status":"accepted"}]}`)
	if class, _ := sinks.Classify(batch.Write(t.Context(), events)); class != sinks.ClassPoison {
		t.Errorf("422 with results: class %s", class)
	}
}

func TestRetryAfter(t *testing.T) {
	e := newEndpoint(t)
	defer e.stop()
	s := sinktest.Open(t, e.config())
	for _, test := range []struct {
		value    string
		min, max time.Duration
	}{
		{"", 0, 0},
		{"0", 0, 0},
		{"7", 7 * time.Second, 7 * time.Second},
		{" 7 ", 7 * time.Second, 7 * time.Second},
		{"-5", 0, 0},
		{"-99999999999999999999", 0, 0},
		{"soon", 0, 0},
		{"1.5", 0, 0},
		{"99999999999", 24 * time.Hour, 400 * 24 * time.Hour},
		{"99999999999999999999", 24 * time.Hour, 400 * 24 * time.Hour},
		{time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), 50 * time.Minute, time.Hour},
		{time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), 0, 0},
		{"Fri, 31 Dec 9999 23:59:59 GMT", 24 * time.Hour, 400 * 24 * time.Hour},
	} {
		e.set(func(w http.ResponseWriter, _ *http.Request, _ []string) {
			if test.value != "" {
				w.Header().Set("Retry-After", test.value)
			}
			w.WriteHeader(http.StatusTooManyRequests)
		})
		class, after := sinks.Classify(s.Write(t.Context(), sinktest.Events(1, 1)))
		if class != sinks.ClassRetry || after < test.min || after > test.max {
			t.Errorf("%q: class %s after %v, want from %v to %v", test.value, class, after, test.min, test.max)
		}
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	other := newEndpoint(t)
	defer other.stop()
	e := newEndpoint(t)
	defer e.stop()
	const secret = "canary-in-location"
	e.set(func(w http.ResponseWriter, r *http.Request, _ []string) {
		http.Redirect(w, r, other.URL+"/"+secret+"?t="+secret, http.StatusPermanentRedirect)
	})
	err := sinktest.Open(t, e.config()).Write(t.Context(), sinktest.Events(1, 1))
	if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassPause {
		t.Fatalf("error %v, class %s; pause is wanted", err, class)
	}
	if !has(err.Error(), "308", other.Listener.Addr().String()) || has(err.Error(), secret) {
		t.Errorf("the error must name the new host alone: %v", err)
	}
	if _, n := other.last(); n != 0 {
		t.Error("the redirect was followed")
	}
}

// TestExcerpt: what a stranger answers is short, one line, harmless.
func TestExcerpt(t *testing.T) {
	e := newEndpoint(t)
	defer e.stop()
	e.set(func(w http.ResponseWriter, _ *http.Request, _ []string) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, "first line\r\nlevel=ERROR forged\x1b[2J\xff"+strings.Repeat("long ", 50_000))
	})
	err := sinktest.Open(t, e.config()).Write(t.Context(), sinktest.Events(1, 1))
	if err == nil {
		t.Fatal("no error")
	}
	text := err.Error()
	if len(text) > 400 || strings.ContainsAny(text, "\r\n\x1b") || !utf8.ValidString(text) || !has(text, "first line level=ERROR forged") {
		t.Errorf("error of %d bytes: %q", len(text), text)
	}
}

// TestEndlessAnswer: an answer that never ends takes nothing back of its status,
// and costs the timeout at most.
func TestEndlessAnswer(t *testing.T) {
	e := newEndpoint(t)
	defer e.stop()
	for _, status := range []int{http.StatusOK, http.StatusServiceUnavailable} {
		e.set(func(w http.ResponseWriter, r *http.Request, _ []string) {
			w.WriteHeader(status)
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte("x")); err != nil {
					return
				}
				if err := http.NewResponseController(w).Flush(); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
		c := e.config()
		c.Timeout = sinks.Duration(300 * time.Millisecond)
		err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
		if (err == nil) != (status == http.StatusOK) {
			t.Errorf("%d: error %v", status, err)
		}
	}
	e.set(func(w http.ResponseWriter, _ *http.Request, _ []string) {
		w.WriteHeader(http.StatusInternalServerError)
		for range 1000 {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	if err := sinktest.Open(t, e.config()).Write(t.Context(), sinktest.Events(1, 1)); err == nil || !has(err.Error(), "status 500") {
		t.Errorf("error %v", err)
	}
}

// TestSwitchOfProtocols: an endpoint that goes over to another protocol, as one for
// WebSockets does, gives an answer whose body the transport never ends.
func TestSwitchOfProtocols(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn) // until the client goes away
		_ = conn.Close()
	}))
	defer server.Close()
	c := webhook.NewConfig()
	c.URL.Text, c.Timeout = server.URL, sinks.Duration(200*time.Millisecond)
	s := sinktest.Open(t, c)
	// It ends by itself, or by the test's own timeout.
	err := s.Write(t.Context(), sinktest.Events(1, 1))
	if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassPause || !has(err.Error(), "status 101") {
		t.Errorf("class %s: %v", class, err)
	}
}

// TestTimeout: an endpoint that accepts and then says nothing gets the event again,
// with the same id.
func TestTimeout(t *testing.T) {
	e := newEndpoint(t)
	defer e.stop()
	e.set(e.hang)
	c := e.config()
	c.Timeout = sinks.Duration(100 * time.Millisecond)
	s := sinktest.Open(t, c)
	events := sinktest.Events(1, 1)
	err := s.Write(t.Context(), events)
	if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassRetry || !has(err.Error(), "timed out") {
		t.Fatalf("error %v, class %s; retry is wanted", err, class)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error does not say that the deadline passed: %v", err)
	}
	first, _ := e.last()
	e.set(nil)
	if err := s.Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	if again, _ := e.last(); again.header.Get("Idempotency-Key") != first.header.Get("Idempotency-Key") {
		t.Error("the second attempt has another id")
	}
}

// TestTimeoutOverHTTP1 names the timeout once: there the transport returns the cause itself.
func TestTimeoutOverHTTP1(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server notices the end of the connection only then
		<-r.Context().Done()
	}))
	defer server.Close()
	c := webhook.NewConfig()
	c.URL.Text, c.Timeout = server.URL, sinks.Duration(100*time.Millisecond)
	err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
	if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassRetry || strings.Count(err.Error(), "timed out") != 1 {
		t.Errorf("class %s: %v", class, err)
	}
}

// TestClosedConnection: a connection the server gave up between two requests is
// replaced unseen, over HTTP/1.1; over HTTP/2 it may cost an attempt.
func TestClosedConnection(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	c := webhook.NewConfig()
	c.URL.Text = server.URL
	s := sinktest.Open(t, c)
	for i := range 20 {
		if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		server.CloseClientConnections()
	}

	e := newEndpoint(t)
	defer e.stop()
	s = sinktest.Open(t, e.config())
	for i := range 20 {
		err := s.Write(t.Context(), sinktest.Events(1, 1))
		if err != nil {
			if class, _ := sinks.Classify(err); class != sinks.ClassRetry {
				t.Fatalf("request %d: class %s: %v", i, class, err)
			}
			err = s.Write(t.Context(), sinktest.Events(1, 1))
		}
		if err != nil {
			t.Fatalf("request %d, second attempt: %v", i, err)
		}
		e.CloseClientConnections()
	}
}

func TestNobodyListens(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	address := server.URL
	server.Close()
	c := webhook.NewConfig()
	c.URL.Text = address + "/canary-path?canary-query"
	err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
	if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassRetry || has(err.Error(), "canary-path") || has(err.Error(), "canary-query") {
		t.Errorf("error %v, class %s", err, class)
	}
}

// TestOneByOne: without batches a Write of several events makes a request each,
// and an object's later event is not sent after its earlier one failed.
func TestOneByOne(t *testing.T) {
	e := newEndpoint(t)
	defer e.stop()
	events := sinktest.Events(6, 2) // objects 0 1 0 1 0 1
	write := func(status int) (*sinks.BatchError, int) {
		t.Helper()
		s := sinktest.Open(t, e.config())
		_, before := e.last()
		e.set(func(w http.ResponseWriter, _ *http.Request, ids []string) {
			if ids[0] == events[2].ID {
				w.Header().Set("Retry-After", "60")
				w.WriteHeader(status)
			}
		})
		batch, ok := errors.AsType[*sinks.BatchError](s.Write(t.Context(), events))
		if !ok {
			t.Fatal("no BatchError")
		}
		_, after := e.last()
		return batch, after - before
	}
	indexes := func(b *sinks.BatchError) (out []int) {
		for i := range events {
			if b.Failed[i] != nil {
				out = append(out, i)
			}
		}
		return out
	}
	// The event's fault: the other object goes on.
	if b, n := write(http.StatusUnprocessableEntity); fmt.Sprint(indexes(b)) != "[2 4]" || n != 5 {
		t.Errorf("poison: failed %v in %d requests", indexes(b), n)
	} else if class, _ := sinks.Classify(b.Failed[2]); class != sinks.ClassPoison {
		t.Errorf("class %s", class)
	}
	// Perhaps the endpoint's fault: no use in going on. What was not sent is not blamed.
	for _, status := range []int{http.StatusBadGateway, http.StatusTooManyRequests, http.StatusForbidden} {
		b, n := write(status)
		if fmt.Sprint(indexes(b)) != "[2 3 4 5]" || n != 3 {
			t.Errorf("%d: failed %v in %d requests", status, indexes(b), n)
		}
		for _, i := range []int{3, 4, 5} {
			if class, after := sinks.Classify(b.Failed[i]); class != sinks.ClassRetry || after != 0 {
				t.Errorf("%d: event %d was not sent, and fails with class %s after %s", status, i, class, after)
			}
		}
	}
}

// TestAcceptOfBrokenAnswer: an answer that breaks off has neither accepted nor refused the event by its body, whatever the
// beginning looks like.
func TestAcceptOfBrokenAnswer(t *testing.T) {
	e := newEndpoint(t)
	defer e.stop()
	e.set(func(w http.ResponseWriter, _ *http.Request, _ []string) {
		_, _ = io.WriteString(w, "result: ")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	for accept, accepted := range map[string]bool{
		`body.endsWith("accepted")`:                                        false,
		`body != "result: refused"`:                                        false,
		`body.endsWith("accepted") ? "accepted" : "pause"`:                 false,
		`body.?ok.orValue(false)`:                                          false,
		`body[?0].hasValue() ? "accepted" : "poison"`:                      false,
		`has(body.error) ? "poison" : "accepted"`:                          false,
		`[body].exists(b, b == "busy") ? "retry" : "poison"`:               false,
		`optional.ofNonZeroValue(body).hasValue() ? "accepted" : "poison"`: false,
		`status == 200`:                 true,
		`status == 200 || body.ok`:      true,
		`headers["content-type"] != ""`: true,
	} {
		c := e.config()
		c.Accept = accept
		if err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)); !accepted {
			sinktest.WantClass(t, err, sinks.ClassRetry, "broke off")
		} else if err != nil {
			t.Errorf("%s: %v", accept, err)
		}
	}
}
