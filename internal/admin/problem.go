package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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
