package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
)

// Problem is the body of an error (RFC 9457).
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// Error is the detail: what a person wants to read.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return p.Title
	}
	return p.Detail
}

// Refuse makes an error of an interface one that the request is to blame for, or the
// moment, with an HTTP status code. All other errors are the daemon's
// own.
func Refuse(code int, err error) error { return problemf(code, "%v", err) }

func problemf(code int, format string, args ...any) *Problem {
	return &Problem{Title: http.StatusText(code), Status: code, Detail: fmt.Sprintf(format, args...)}
}

func problemOf(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	return problemf(http.StatusInternalServerError, "%v", err)
}

func (p *Problem) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	writeJSON(w, p)
}

// writeJSON writes v. An error means that the client is gone.
func writeJSON(w http.ResponseWriter, v any) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

// handler is an http.Handler that may fail before it has written anything.
type handler func(w http.ResponseWriter, r *http.Request) error

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		problemOf(err).write(w)
	}
}

var errPanicked = errors.New("the daemon failed at this request; its log has the reason")

// recovered answers a request whose handler panics with an error, or aborts an answer that
// has begun. The daemon continues.
func (s *Server) recovered(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v != http.ErrAbortHandler { //nolint:errorlint // the value that net/http compares with
				s.panicked(r, v)
			}
			if rec, ok := w.(*recorder); !ok || rec.wrote || v == http.ErrAbortHandler { //nolint:errorlint // see above
				panic(http.ErrAbortHandler)
			}
			problemOf(errPanicked).write(w)
		}()
		h.ServeHTTP(w, r)
	})
}

// panicked logs a panic of a request. The path is all of the request that is logged.
func (s *Server) panicked(r *http.Request, v any) {
	s.log.Error("request panicked", "request", r.Method+" "+r.URL.Path, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
}

func answer(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, v)
	return nil
}

// decode reads a small JSON body strictly.
func decode(r *http.Request, into any) error {
	if r.Header.Get("Content-Type") != "application/json" {
		return problemf(http.StatusUnsupportedMediaType, "send the request as application/json")
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return problemf(http.StatusRequestEntityTooLarge, "the request is larger than %d bytes", tooLarge.Limit)
		}
		return problemf(http.StatusBadRequest, "the request is not understood: %v", err)
	}
	return nil
}
