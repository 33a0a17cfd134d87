package atapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// History is what was recorded. *history.Reader implements it.
type History interface {
	At(ctx context.Context, o history.Object, t time.Time) (history.State, error)
	EachAt(ctx context.Context, all history.Objects, t time.Time, after string, limit int, f func(*history.State) bool) (as history.As, next string, err error)
	WorthAt(resource event.Resource, namespace string, t time.Time) (history.Worth, error)
}

// Server answers requests for paths that begin with a time: TIME/api/v1/pods. Any goroutine may
// use it.
type Server struct {
	History   History
	Resources func() ([]query.Recorded, error)
	Parse     func(text string, now time.Time) (time.Time, error) // of the time in a path
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if err := s.serve(r.Context(), w, r); err != nil {
		refuse(w, err)
	}
}

func refuse(w http.ResponseWriter, err error) {
	status := apierrors.APIStatus(apierrors.NewInternalError(err))
	_ = errors.As(err, &status)
	body := status.Status()
	body.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(body.Code))
	_ = json.NewEncoder(w).Encode(&body) // the client is gone
}

// failure is an error that a client gets as a Status.
func failure(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// notFound is the answer for an unknown path or resource.
func notFound(format string, args ...any) error {
	return failure(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf(format, args...))
}

func unsupported(message string) error {
	return failure(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, message)
}

type request struct {
	*http.Request
	at        time.Time
	wrong     error // in the time; discovery does not depend on it, and clients show none of its errors
	resources []query.Recorded
	form      form
}

func (s *Server) serve(ctx context.Context, w http.ResponseWriter, hr *http.Request) error {
	text, path, _ := strings.Cut(hr.URL.Path, "/")
	r := &request{Request: hr}
	now := time.Now()
	var err error
	switch r.at, err = s.Parse(text, now); {
	case err != nil:
		r.wrong = apierrors.NewBadRequest(err.Error())
	case r.at.After(now):
		r.wrong = apierrors.NewBadRequest(text + " is in the future")
	}
	if hr.Method != http.MethodGet && hr.Method != http.MethodHead {
		return unsupported("the past cannot be changed: " + hr.Method + " is not supported")
	}
	var ok bool
	if r.form, ok = accepted(hr.Header.Values("Accept")); !ok {
		return failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "only application/json is sent")
	}
	if r.resources, err = s.Resources(); err != nil {
		if errors.Is(err, dynamicfactory.ErrNotReady) {
			return apierrors.NewServiceUnavailable("the API server has not been reached since the start of watcherd: the names of resources are not known yet")
		}
		return err
	}
	parts := strings.Split(strings.TrimSuffix(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		return s.objects(ctx, w, r, schema.GroupVersion{Version: parts[1]}, parts[2:])
	case parts[0] == "apis" && len(parts) > 3:
		return s.objects(ctx, w, r, schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:])
	}
	return discover(w, r, parts)
}

// target is what a request for objects names.
type target struct {
	*query.Recorded
	about           event.Resource
	namespace, name string
}

// object is the path of an object for messages.
func (t *target) object() string {
	text := fmt.Sprintf("%s %q", t.GVR.GroupResource(), t.name)
	if t.namespace != "" {
		text += " in namespace " + t.namespace
	}
	return text
}

func (s *Server) objects(ctx context.Context, w http.ResponseWriter, r *request, gv schema.GroupVersion, parts []string) error {
	watch, values := parts[0] == "watch", r.URL.Query()["watch"]
	if !watch {
		_ = runtime.Convert_Slice_string_To_bool(&values, &watch, nil) // as the API server reads it; all texts are valid
	}
	if watch {
		return unsupported("a time in the past has nothing to watch: list or get")
	}
	t := &target{}
	if parts[0] == "namespaces" && len(parts) > 2 {
		t.namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 2 {
		return notFound("the history has no subresources: %s of %s", parts[2], parts[0])
	}
	if len(parts) == 2 {
		t.name = parts[1]
	}
	if r.wrong != nil {
		return r.wrong
	}
	if err := t.find(r.resources, gv.WithResource(parts[0])); err != nil {
		if gv.Group == "" && parts[0] == "namespaces" && t.name != "" {
			// After an object that is not found kubectl asks for its namespace, and reports that in its place if it is not found either.
			return apierrors.NewResourceExpired(fmt.Sprintf("the state of namespaces %q is unknown: %v", t.name, err))
		}
		return err
	}
	if t.Namespaced && t.name != "" && t.namespace == "" || !t.Namespaced && t.namespace != "" {
		return notFound("the path does not fit %s", t.GVR.GroupResource())
	}
	if err := t.warn(w); err != nil {
		return err
	}
	sel, err := selected(r, t.GVR.GroupResource())
	if err == nil {
		err = t.visible(&sel)
	}
	if err != nil {
		return err
	}
	r.form.of(t, r.at, r.URL.Query().Get("includeObject"))
	if r.form.kind == asTable {
		if err := s.tableOf(ctx, r, t); err != nil {
			return err
		}
	}
	if t.name != "" {
		return s.get(ctx, w, r, t)
	}
	return s.list(ctx, w, r, t, &sel)
}

// find looks for the resource among those that are recorded.
func (t *target) find(resources []query.Recorded, gvr schema.GroupVersionResource) error {
	var versions []string
	for i := range resources {
		switch of := &resources[i]; {
		case of.GVR == gvr:
			t.Recorded = of
			t.about = event.Resource{Group: gvr.Group, Version: gvr.Version, Resource: gvr.Resource, Kind: of.Kind}
			return nil
		case of.GVR.GroupResource() == gvr.GroupResource():
			versions = append(versions, of.GVR.Version)
		}
	}
	if versions != nil {
		return notFound("the watches read %s in version %s", gvr.GroupResource(), strings.Join(versions, ", "))
	}
	return notFound("no watch with a history reads %s", gvr.GroupResource())
}

// reading returns the watches that cover the request, or a part of it.
func (t *target) reading() (list []query.RecordedBy) {
	for _, by := range t.Watches {
		if t.namespace == "" || by.Reads(t.namespace) {
			list = append(list, by)
		}
	}
	return list
}

// warn adds a warning if the watches cover only a part of the request, and fails if they cover
// nothing of it.
func (t *target) warn(w http.ResponseWriter) error {
	reading := t.reading()
	if len(reading) == 0 {
		return notFound("no watch with a history reads %s in namespace %s", t.GVR.GroupResource(), t.namespace)
	}
	var partial []string
	for _, by := range reading {
		if by.MetadataOnly && !slices.Contains(partial, by.Watch) {
			partial = append(partial, by.Watch)
		}
	}
	if partial != nil {
		warning(w, fmt.Sprintf("only the metadata is recorded of the %s that these watches read: %s", t.GVR.GroupResource(), strings.Join(partial, ", ")))
	}
	if slices.ContainsFunc(reading, func(by query.RecordedBy) bool { return by.Selects == "" }) {
		return nil
	}
	var rules []string
	for _, by := range reading {
		rule := fmt.Sprintf("watch %s: %s", by.Watch, by.Selects)
		if !slices.Contains(rules, rule) {
			rules = append(rules, rule)
		}
	}
	warning(w, fmt.Sprintf("only the %s that watches select are recorded (%s)", t.GVR.GroupResource(), strings.Join(rules, "; ")))
	return nil
}

// warning adds a warning to the answer, which kubectl prints.
func warning(w http.ResponseWriter, text string) {
	const most = 500
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil { // it fails for control characters
		w.Header().Add("Warning", header)
	}
}

// second is a time in a message.
func second(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// secondAfter is the end of what is not known in a message: the state of the time that is shown is known.
func secondAfter(t time.Time) string { return second(t.Add(time.Second - 1)) }

// unknown is the error for a state that is not known.
func unknown(as history.As, what string, at time.Time, worth *history.Worth) error {
	message := fmt.Sprintf("the state of %s at %s is unknown", what, at.UTC().Format(time.RFC3339Nano))
	switch {
	case as == history.Gap && len(worth.Near) > 0:
		g := worth.Near[0]
		message += fmt.Sprintf(": the history has a gap from %s to %s (%s)", second(g.From), secondAfter(g.To), g.Cause)
	case as == history.Gap:
		message += ": the history has a gap there, or a record cannot be read"
	case worth.Since.IsZero():
		message += ": its history has not begun"
	case at.Before(worth.Since):
		message += ": its history begins at " + secondAfter(worth.Since)
	default:
		message += ": nothing is recorded of it that early"
	}
	return apierrors.NewResourceExpired(message)
}

// warn adds warnings for gaps near the time, and for what was not read up to it.
func warn(w http.ResponseWriter, t *target, worth *history.Worth) {
	if len(worth.Near) > 0 {
		g := worth.Near[0]
		warning(w, fmt.Sprintf("the history of %s has a gap near this time, from %s to %s (%s)", t.GVR.GroupResource(), second(g.From), secondAfter(g.To), g.Cause))
	}
	if len(worth.Unread) > 0 {
		u := worth.Unread[0]
		warning(w, fmt.Sprintf("changes of %s since %s are not read yet: %s", t.GVR.GroupResource(), second(u.Since), u.Cause))
	}
}

func (s *Server) get(ctx context.Context, w http.ResponseWriter, r *request, t *target) error {
	worth, err := s.History.WorthAt(t.about, t.namespace, r.at)
	if err != nil {
		return err
	}
	state, err := s.History.At(ctx, history.Object{Resource: t.about, Namespace: t.namespace, Name: t.name}, r.at)
	switch {
	case err != nil:
		return err
	case state.As != history.Exact:
		return unknown(state.As, t.object(), r.at, &worth)
	}
	warn(w, t, &worth)
	if !state.Exists {
		return apierrors.NewNotFound(t.GVR.GroupResource(), t.name)
	}
	body, err := r.form.single(nil, state.Object)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // the client is gone
	return nil
}
