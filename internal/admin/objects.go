package admin

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/columns"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

const (
	defaultPage = 500
	maxPage     = 5000
	// pageBytes is about how large a page may become; one object is always sent.
	pageBytes = 16 << 20
	// maxReads bounds the answers with objects that are written at a time, each of which
	// holds one in memory. Others wait.
	maxReads = 32
)

// objects answers
//
//	/api/v1/objects/RESOURCE                  all, or of ?namespace=
//	/api/v1/objects/RESOURCE/NAMESPACE        of a namespace
//	/api/v1/objects/RESOURCE/NAMESPACE/NAME   one
//	/api/v1/objects/RESOURCE/NAME             one that is in no namespace
//
// with ?labelSelector=, ?name=, ?limit=, ?continue= and ?columns=true for lists, and ?metadata=true
// for objects without spec, status and data. ?at= asks the history for the states of a time, ?version= for
// the one that a version of an object left.
func (s *Server) objects(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	bare, err := boolean(query, "metadata")
	if err != nil {
		return err
	}
	version, err := sequence(query, "version")
	if err != nil {
		return err
	}
	at, err := gone(query, "at")
	if err != nil {
		return err
	}
	if version != 0 || !at.IsZero() {
		return s.pastObjects(w, r, at, version)
	}
	view, err := s.cfg.Objects.View(r.PathValue("resource"))
	if err != nil {
		return err
	}
	resource, namespaced, unsynced := view.About()
	namespace, name := objectOf(r, namespaced)
	release, ok := take(r, s.reads)
	if !ok {
		return nil
	}
	defer release()
	if name == "" {
		return list(r.Context(), w, query, view, namespace, bare)
	}
	o := view.Get(namespace, name)
	if o == nil {
		where := ""
		if namespaced {
			where = " in namespace " + namespace
		}
		why := ""
		if unsynced != "" {
			why = "; " + unsynced
		}
		return problemf(http.StatusNotFound, "%s %q%s is not among the objects that the watches see%s", resource, name, where, why)
	}
	body, err := appendObject(nil, o, resource, bare)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, err = w.Write(append(body, '\n'))
	return ignoreGone(err)
}

// objectOf is the namespace and the name that the path and the query of a request for objects have: of a resource without
// namespaces the path has the name alone, or behind a - in place of a namespace.
func objectOf(r *http.Request, namespaced bool) (namespace, name string) {
	first, name := r.PathValue("first"), r.PathValue("name")
	if !namespaced {
		return "", cmp.Or(name, first)
	}
	return cmp.Or(first, r.URL.Query().Get("namespace")), name
}

// selection is what a list of objects is asked for: those with these labels, and how many.
func selection(query url.Values) (byLabel labels.Selector, limit int, err error) {
	if byLabel, _, err = selector.OfRequest(query.Get("labelSelector"), ""); err != nil {
		return nil, 0, problemf(http.StatusBadRequest, "%v", err)
	}
	limit, err = number(query, "limit", defaultPage, maxPage)
	return byLabel, limit, err
}

func list(ctx context.Context, w http.ResponseWriter, query url.Values, view View, namespace string, bare bool) error {
	byLabel, limit, err := selection(query)
	if err != nil {
		return err
	}
	all := view.List(namespace, byLabel)
	if name := query.Get("name"); name != "" {
		all = slices.DeleteFunc(all, func(o *compact.Object) bool { return o.GetName() != name })
	}
	if token := query.Get("continue"); token != "" {
		after, err := parsePlace(token)
		if err != nil {
			return problemf(http.StatusBadRequest, "continue is not what an earlier page gave")
		}
		if all, err = after.rest(all); err != nil {
			return err
		}
	}
	resource, _, unsynced := view.About()
	meta := ListMeta{Incomplete: unsynced}
	if wanted, err := boolean(query, "columns"); err != nil {
		return err
	} else if wanted {
		meta.Columns = view.Columns(ctx)
	}
	return writeList(w, resource, meta, all, limit, bare)
}

// writeList sends a page object by object, as an ObjectList: a reader, however slow, holds
// one of them in memory. Only before the first one it may fail.
func writeList(w http.ResponseWriter, resource event.Resource, meta ListMeta, all []*compact.Object, limit int, bare bool) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	buf := []byte(`{"apiVersion":"v1","kind":"List","items":[`)
	size := 0
	for i, o := range all {
		if i == limit || size > pageBytes {
			last := all[i-1]
			meta.Continue = place{last.GetNamespace(), history.Place(last.GetName())}.token()
			meta.RemainingItemCount = len(all) - i
			break
		}
		if i > 0 {
			buf = append(buf[:0], ',')
		}
		before := len(buf)
		var err error
		if buf, err = appendObject(buf, o, resource, bare); err != nil {
			if i > 0 {
				panic(http.ErrAbortHandler) // what was sent is not a list
			}
			return err
		}
		size += len(buf) - before
		if _, err := w.Write(buf); err != nil { //nolint:gosec // JSON, like the content type
			return ignoreGone(err)
		}
		buf = buf[:0]
	}
	end, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	_, err = w.Write(append(append(append(buf, `],"metadata":`...), end...), "}\n"...)) //nolint:gosec // JSON, like the content type
	return ignoreGone(err)
}

// ObjectList is a page of objects, in the form of a Kubernetes List.
type ObjectList struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   ListMeta          `json:"metadata"`
	Items      []json.RawMessage `json:"items"`
}

// ListMeta describes what follows a page.
type ListMeta struct {
	Continue           string `json:"continue,omitempty"`
	RemainingItemCount int    `json:"remainingItemCount,omitempty"`
	Incomplete         string `json:"incomplete,omitempty"` // why objects may be missing

	Columns []columns.Column `json:"columns,omitempty"` // the printer columns of a custom resource, if asked for
}

// appendObject appends an object's JSON, as it was recorded or with its metadata alone.
func appendObject(dst []byte, o *compact.Object, resource event.Resource, bare bool) ([]byte, error) {
	if !bare {
		return o.AppendJSON(dst)
	}
	kind := metav1.TypeMeta{APIVersion: o.APIVersion(), Kind: o.Kind()}
	if kind.Kind == "PartialObjectMetadata" { // the watch reads metadata only
		kind.APIVersion, kind.Kind = schema.GroupVersion{Group: resource.Group, Version: resource.Version}.String(), resource.Kind
	}
	metadata, err := json.Marshal(&metav1.PartialObjectMetadata{
		TypeMeta: kind,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
			Generation: o.GetGeneration(), CreationTimestamp: o.GetCreationTimestamp(),
			DeletionTimestamp: o.GetDeletionTimestamp(), Labels: o.GetLabels(),
		},
	})
	return append(dst, metadata...), err
}

// place is where a page ended: behind an object, whose name is a [history.Place].
type place struct{ namespace, name string }

// rest returns what follows in a list.
func (p place) rest(all []*compact.Object) ([]*compact.Object, error) {
	begin, long := history.Begin(p.name)
	all = all[sort.Search(len(all), func(i int) bool {
		namespace, name := all[i].GetNamespace(), all[i].GetName()
		return namespace > p.namespace || namespace == p.namespace && (name > begin || long && name == begin)
	}):]
	if !long {
		return all, nil
	}
	for i, o := range all {
		if o.GetNamespace() != p.namespace || !strings.HasPrefix(o.GetName(), begin) {
			break
		}
		if history.Place(o.GetName()) == p.name {
			return all[i+1:], nil
		}
	}
	return nil, problemf(http.StatusGone, "the object that the page before ended with has a name that is too long for a token, and is not in the list any more: list again")
}

func (p place) token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.namespace + "\n" + p.name))
}

var errNoPlace = errors.New("not a continue token")

func parsePlace(token string) (place, error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	namespace, name, ok := strings.Cut(string(b), "\n")
	if err != nil || !ok {
		return place{}, errNoPlace
	}
	return place{namespace, name}, nil
}

func boolean(query url.Values, key string) (bool, error) {
	text := query.Get(key)
	if text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, problemf(http.StatusBadRequest, "%s must be true or false", key)
	}
	return b, nil
}
