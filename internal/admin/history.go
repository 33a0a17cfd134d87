package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// History answers what was recorded. *history.Reader implements it.
type History interface {
	At(ctx context.Context, o history.Object, t time.Time) (history.State, error)
	AtVersion(o history.Object, sequence uint64) (history.State, error)
	ListAt(ctx context.Context, all history.Objects, t time.Time, page string, limit int) (history.List, error)
	Versions(ctx context.Context, q history.VersionQuery) (history.Versions, error)
	Diff(ctx context.Context, o history.Object, from, to time.Time) (history.Difference, error)
	DiffVersion(ctx context.Context, o history.Object, base, sequence uint64) (history.Difference, error)
	Query(ctx context.Context, q history.Query) (history.Page, error)
	Histogram(ctx context.Context, f history.Filter, buckets int) (history.Histogram, error)
	Changes(ctx context.Context, f history.Filter, byOwner bool) (history.Changes, error)
	// Blame returns who set the fields of an object last. What was set before the history it
	// finds in the managed fields of the object that the API server has.
	Blame(ctx context.Context, o history.Object) (*history.Blame, error)
	Owned(ctx context.Context, o history.Object, t time.Time, limit int) (history.Owned, error)
	OwnedVersion(ctx context.Context, o history.Object, sequence uint64, limit int) (history.Owned, error)
}

// maxAsks bounds the answers of the history that are made and written at a time, each of
// which is in memory, and those of the API of a time, which hold the names of all objects of a
// list. Others wait.
const maxAsks = 8

// take takes one of some places. It is not ok if the client has gone.
func take(r *http.Request, places chan struct{}) (release func(), ok bool) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, true
	case <-r.Context().Done():
		return nil, false
	}
}

// asked answers a request with what f returns of the history.
func asked(f func(s *Server, r *http.Request, query url.Values) (any, error)) func(*Server) handler {
	return plain(func(s *Server, w http.ResponseWriter, r *http.Request) error {
		release, ok := take(r, s.asks)
		if !ok {
			return nil
		}
		defer release()
		v, err := f(s, r, r.URL.Query())
		if err != nil {
			return err
		}
		return answer(w, v)
	})
}

// changed answers
//
//	/api/v1/history   the recorded changes, the newest first
//
// with ?resource=, ?namespace=, ?name=, ?type=, ?manager=, ?noise=false, ?from=, ?to=, ?before= with a sequence, ?path= for changes
// of a value, ?when= for those on which an expression is true, ?order=asc, ?limit= and ?continue=.
func (s *Server) changed(r *http.Request, query url.Values) (any, error) {
	q := history.Query{Oldest: query.Get("order") == "asc", Continue: query.Get("continue")}
	var err error
	if q.Filter, err = s.historyFilter(query); err != nil {
		return nil, err
	}
	if q.Before, err = sequence(query, "before"); err != nil {
		return nil, err
	}
	if q.Limit, err = number(query, "limit", 100, maxPage); err != nil {
		return nil, err
	}
	if text := query.Get("path"); text != "" {
		path, err := rawjson.ParsePath(text)
		if err == nil && path.Deep() {
			err = fmt.Errorf("path %q: ** is for drop and redact", text)
		}
		if err != nil {
			return nil, problemf(http.StatusBadRequest, "path: %v", err)
		}
		q.Path = &path
	}
	if text := query.Get("when"); text != "" {
		if q.Test, err = s.cfg.When(text); err != nil {
			return nil, problemf(http.StatusBadRequest, "when: %v", err)
		}
	}
	if order := query.Get("order"); order != "" && order != "asc" && order != "desc" {
		return nil, problemf(http.StatusBadRequest, "order must be asc or desc")
	}
	page, err := s.cfg.History.Query(r.Context(), q)
	return page, badContinue(err)
}

// histogram answers with counts of what changed would list; ?buckets= of them.
func (s *Server) histogram(r *http.Request, query url.Values) (any, error) {
	f, err := s.historyFilter(query)
	if err != nil {
		return nil, err
	}
	buckets, err := number(query, "buckets", 60, history.MaxBuckets)
	if err != nil {
		return nil, err
	}
	return s.cfg.History.Histogram(r.Context(), f, buckets)
}

// netChanges answers with what ?from= to ?to= changed in each object; with ?group=owner
// consequences are folded below the owners.
func (s *Server) netChanges(r *http.Request, query url.Values) (any, error) {
	f, err := s.historyFilter(query)
	if err != nil {
		return nil, err
	}
	if f.From.IsZero() {
		return nil, problemf(http.StatusBadRequest, "from is required")
	}
	group := query.Get("group")
	if group != "" && group != "none" && group != "owner" {
		return nil, problemf(http.StatusBadRequest, "group must be owner or none")
	}
	return s.cfg.History.Changes(r.Context(), f, group == "owner")
}

// blame answers with each field of an object and who set it last.
func (s *Server) blame(r *http.Request, _ url.Values) (any, error) {
	o, err := s.historyObject(r)
	if err != nil {
		return nil, err
	}
	return s.cfg.History.Blame(r.Context(), o)
}

// owned answers with the objects whose owner references name an object, now, at ?at=, or when the change ?version= was
// the last.
func (s *Server) owned(r *http.Request, query url.Values) (any, error) {
	o, err := s.historyObject(r)
	if err != nil {
		return nil, err
	}
	at, err := gone(query, "at")
	if err != nil {
		return nil, err
	}
	limit, err := number(query, "limit", defaultPage, maxPage)
	if err != nil {
		return nil, err
	}
	version, err := sequence(query, "version")
	switch {
	case err != nil:
		return nil, err
	case version != 0 && !at.IsZero():
		return nil, problemf(http.StatusBadRequest, "at is a time, and version is one of a change: use either")
	case version != 0:
		owned, err := s.cfg.History.OwnedVersion(r.Context(), o, version, limit)
		return owned, noVersion(err, &o)
	}
	return s.cfg.History.Owned(r.Context(), o, at, limit)
}

// versions answers with the versions of an object, the newest first.
func (s *Server) versions(r *http.Request, query url.Values) (any, error) {
	q := history.VersionQuery{Continue: query.Get("continue")}
	var err error
	if q.Object, err = s.historyObject(r); err != nil {
		return nil, err
	}
	if q.From, q.To, err = period(query); err == nil {
		err = inOrder(q.From, q.To)
	}
	if err != nil {
		return nil, err
	}
	if q.Limit, err = number(query, "limit", 100, maxPage); err != nil {
		return nil, err
	}
	versions, err := s.cfg.History.Versions(r.Context(), q)
	return versions, badContinue(err)
}

// badContinue is an error as a problem, if it is of the client's continuation.
func badContinue(err error) error {
	if errors.Is(err, history.ErrContinue) {
		return problemf(http.StatusBadRequest, "%v", err)
	}
	return err
}

// diff answers with the difference of an object's states at ?from= and ?to=, which is now if
// it is left out. Without ?from= it is that of the last change. With ?version= it is that of a version
// to the version ?base=, or without that to the state before.
func (s *Server) diff(r *http.Request, query url.Values) (any, error) {
	o, err := s.historyObject(r)
	if err != nil {
		return nil, err
	}
	version, err := sequence(query, "version")
	if err != nil {
		return nil, err
	}
	base, err := sequence(query, "base")
	switch {
	case err != nil:
		return nil, err
	case version != 0 && (query.Get("from") != "" || query.Get("to") != ""):
		return nil, problemf(http.StatusBadRequest, "from and to are times, and version is one of a change: use either")
	case version != 0:
		d, err := s.cfg.History.DiffVersion(r.Context(), o, base, version)
		return d, noVersion(err, &o)
	case base != 0:
		return nil, problemf(http.StatusBadRequest, "base is compared with a version: version is required")
	}
	from, err := gone(query, "from") // it may be later than to
	if err != nil {
		return nil, err
	}
	to, err := moment(query, "to")
	if err != nil {
		return nil, err
	}
	if now := time.Now(); to.IsZero() || to.After(now) {
		to = now
	}
	d, err := s.cfg.History.Diff(r.Context(), o, from, to)
	if errors.Is(err, history.ErrNoChange) {
		return nil, problemf(http.StatusNotFound, "no change of %s %q is recorded", o.Resource, o.Name)
	}
	return d, err
}

// noVersion is an error as a problem, if it is of the client's version.
func noVersion(err error, o *history.Object) error {
	if errors.Is(err, history.ErrNoVersion) {
		return problemf(http.StatusNotFound, "%s %q: %v", o.Resource, o.Name, err)
	}
	return err
}

// pastObjects answers as objects does, of the time at, or of when the change version was the last if that is not 0: with one
// state, or a page of them.
func (s *Server) pastObjects(w http.ResponseWriter, r *http.Request, at time.Time, version uint64) error {
	release, ok := take(r, s.asks)
	if !ok {
		return nil
	}
	defer release()
	resource, namespaced, err := s.cfg.Objects.Recorded(r.PathValue("resource"))
	if err != nil {
		return err
	}
	namespace, name := objectOf(r, namespaced)
	if version != 0 && (name == "" || !at.IsZero()) {
		return problemf(http.StatusBadRequest, "version is one of an object, without a time: name the object, and leave at out")
	}
	if name != "" {
		o := history.Object{Resource: resource, Namespace: namespace, Name: name}
		var state history.State
		if version != 0 {
			state, err = s.cfg.History.AtVersion(o, version)
		} else {
			state, err = s.cfg.History.At(r.Context(), o, at)
		}
		if err != nil {
			return noVersion(err, &o)
		}
		return answer(w, state)
	}
	query := r.URL.Query()
	byLabel, limit, err := selection(query)
	if err != nil {
		return err
	}
	if !byLabel.Empty() {
		if err := s.cfg.Objects.Selectable(resource, namespace, byLabel); err != nil {
			return err
		}
	}
	all := history.Objects{Resource: resource, Namespace: namespace}
	if wanted := query.Get("name"); wanted != "" {
		all.Named = func(_, name string) bool { return name == wanted }
	}
	list, err := s.cfg.History.ListAt(r.Context(), all, at, query.Get("continue"), limit)
	if err != nil {
		return badContinue(err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(state history.State) bool {
		var o metav1.PartialObjectMetadata
		return !byLabel.Empty() && state.As == history.Exact && (json.Unmarshal(state.Object, &o) != nil || !byLabel.Matches(labels.Set(o.Labels)))
	})
	return answer(w, list)
}

func (s *Server) historyObject(r *http.Request) (history.Object, error) {
	resource, namespaced, err := s.cfg.Objects.Recorded(r.PathValue("resource"))
	if err != nil {
		return history.Object{}, err
	}
	namespace, name := objectOf(r, namespaced)
	return history.Object{Resource: resource, Namespace: namespace, Name: name}, nil
}

func (s *Server) historyFilter(query url.Values) (history.Filter, error) {
	f := history.Filter{Namespace: query.Get("namespace"), Name: query.Get("name"), Manager: query.Get("manager")}
	if strings.Contains(f.Namespace, ",") {
		return f, problemf(http.StatusBadRequest, "namespace %q: name one, or leave it out for all", f.Namespace)
	}
	if name := query.Get("resource"); name != "" {
		resource, namespaced, err := s.cfg.Objects.Recorded(name)
		if err != nil {
			return f, err
		}
		if f.Resource = &resource; !namespaced {
			f.Namespace = "" // as in the paths of its objects
		}
	}
	shown, err := noise(query)
	if err != nil {
		return f, err
	}
	f.NoNoise = !shown
	for _, t := range values(query, "type") {
		if err := checkType(t); err != nil {
			return f, err
		}
		f.Types = append(f.Types, event.Type(t))
	}
	if f.From, f.To, err = period(query); err == nil {
		err = inOrder(f.From, f.To)
	}
	return f, err
}

// noise reports whether changes are wanted that most readers would rather not see.
func noise(query url.Values) (bool, error) {
	if query.Get("noise") == "" {
		return true, nil
	}
	return boolean(query, "noise")
}

func period(query url.Values) (from, to time.Time, err error) {
	if from, err = moment(query, "from"); err == nil {
		to, err = moment(query, "to")
	}
	return from, to, err
}

// inOrder returns an error for a period that ends before it begins. It ends now if to is zero.
func inOrder(from, to time.Time) error {
	if to.IsZero() {
		to = time.Now()
	}
	if to.Before(from) {
		return problemf(http.StatusBadRequest, "the period begins at %s, after its end at %s", shown(from), shown(to))
	}
	return nil
}

// shown is a time in a message, to the millisecond.
func shown(t time.Time) string { return t.UTC().Round(time.Millisecond).Format(time.RFC3339Nano) }

// gone is a time of the query that may not be in the future.
func gone(query url.Values, key string) (time.Time, error) {
	t, err := moment(query, key)
	if err == nil && t.After(time.Now()) {
		err = problemf(http.StatusBadRequest, "%s: %s is in the future", key, shown(t))
	}
	return t, err
}

// moment is a time of the query, zero if it is not there.
func moment(query url.Values, key string) (time.Time, error) {
	text := query.Get(key)
	if text == "" {
		return time.Time{}, nil
	}
	t, err := ParseSince(text, time.Now())
	if err != nil {
		err = problemf(http.StatusBadRequest, "%s: %v", key, err)
	}
	return t, err
}

// sequence is a record of the query, 0 if it is not there.
func sequence(query url.Values, key string) (uint64, error) {
	text := query.Get(key)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, problemf(http.StatusBadRequest, "%s must be the sequence of a version", key)
	}
	return n, nil
}

func number(query url.Values, key string, usual, most int) (int, error) {
	text := query.Get(key)
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, problemf(http.StatusBadRequest, "%s must be a number from 1 to %d", key, most)
	}
	return n, nil
}

var knownTypes = []event.Type{event.Added, event.Updated, event.Deleted, event.Sync, event.Gap}

func checkType(t string) error {
	if slices.Contains(knownTypes, event.Type(t)) {
		return nil
	}
	names := make([]string, len(knownTypes))
	for i, known := range knownTypes {
		names[i] = string(known)
	}
	return problemf(http.StatusBadRequest, "unknown type %q; known are %s", t, strings.Join(names, ", "))
}
