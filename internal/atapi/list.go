package atapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	operators "k8s.io/apimachinery/pkg/selection"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	// held is how much of a list is held back: up to there it can still become an error.
	held = 512 << 10
	// writeTimeout bounds how long a client may take for each part of a list, and listTimeout for all of it: other lists wait
	// for it.
	writeTimeout = 30 * time.Second
	listTimeout  = 10 * time.Minute
)

// selection is which objects a list is asked for.
type selection struct {
	labels labels.Selector
	names  fields.Selector // of the name and the namespace
	values []value
	limit  int
	after  string // the place to continue at
}

// value is what a field is, or is not.
type value struct {
	path rawjson.Path
	fields.Requirement
}

// matches reports whether the object is selected, by all but its name.
func (s *selection) matches(raw []byte) bool {
	for _, v := range s.values {
		text := ""
		if found, ok := rawjson.Lookup(raw, v.path); ok && found[0] == '"' {
			text = rawjson.Unquote(found)
		}
		if (text == v.Value) != (v.Operator != operators.NotEquals) {
			return false
		}
	}
	return s.labels.Empty() || s.labels.Matches(labelsOf(raw))
}

// selectable are the fields that the API server selects by, as far as they are texts of the
// object: those that kubectl describe asks for, and the most used.
func selectable(gr schema.GroupResource, name string) bool {
	switch gr.String() {
	case "events":
		return strings.HasPrefix(name, "involvedObject.") || name == "reason" || name == "type"
	case "events.events.k8s.io":
		return strings.HasPrefix(name, "regarding.") || name == "reason" || name == "type"
	case "pods":
		return name == "spec.nodeName" || name == "status.phase"
	}
	return false
}

// selected reads the selectors of a request, and takes its time from the page before.
func selected(r *request, gr schema.GroupResource) (sel selection, err error) {
	q := r.URL.Query()
	var all fields.Selector
	if sel.labels, all, err = selector.OfRequest(q.Get("labelSelector"), q.Get("fieldSelector")); err != nil {
		return sel, apierrors.NewBadRequest(err.Error())
	}
	var names []fields.Selector
	for _, rule := range all.Requirements() {
		path, err := rawjson.ParsePath(rule.Field)
		switch {
		case rule.Field == "metadata.name" || rule.Field == "metadata.namespace":
			one := fields.OneTermEqualSelector(rule.Field, rule.Value)
			if rule.Operator == operators.NotEquals {
				one = fields.OneTermNotEqualSelector(rule.Field, rule.Value)
			}
			names = append(names, one)
		case err == nil && selectable(gr, rule.Field):
			sel.values = append(sel.values, value{path, rule})
		default:
			return sel, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s; all resources are selected by metadata.name and metadata.namespace, pods by spec.nodeName and status.phase, events by involvedObject, those of events.k8s.io by regarding, and both by reason and type", rule.Field))
		}
	}
	sel.names = fields.AndSelectors(names...)
	if text := q.Get("limit"); text != "" {
		if sel.limit, err = strconv.Atoi(text); err != nil || sel.limit < 0 {
			return sel, apierrors.NewBadRequest("limit must be a number")
		}
	}
	if sel.limit == 0 {
		sel.limit = math.MaxInt
	}
	if token := q.Get("continue"); token != "" {
		p, err := history.ParseListPlace(token, time.Now())
		if err != nil {
			return sel, apierrors.NewBadRequest("continue is not what an earlier page gave")
		}
		r.at, sel.after = p.At, p.After
	}
	return sel, nil
}

// visible returns an error if the objects do not have what they are selected by.
func (t *target) visible(sel *selection) error {
	var paths []rawjson.Path
	for _, v := range sel.values {
		paths = append(paths, v.path)
	}
	if err := query.Selectable(t.GVR.GroupResource(), t.reading(), sel.labels, paths...); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

func (s *Server) list(ctx context.Context, w http.ResponseWriter, r *request, t *target, sel *selection) error {
	worth, err := s.History.WorthAt(t.about, t.namespace, r.at)
	if err != nil {
		return err
	}
	what := t.GVR.GroupResource().String()
	if worth.As != history.Exact {
		return unknown(worth.As, what, r.at, &worth)
	}
	warn(w, t, &worth)
	out := &listing{w: w, form: &r.form, end: time.Now().Add(listTimeout)}
	all := history.Objects{Resource: t.about, Namespace: t.namespace}
	if !sel.names.Empty() {
		all.Named = func(namespace, name string) bool {
			return sel.names.Matches(fields.Set{"metadata.name": name, "metadata.namespace": namespace})
		}
	}
	as, next, err := s.History.EachAt(ctx, all, r.at, sel.after, sel.limit, func(state *history.State) bool {
		if state.As != history.Exact {
			object := *t
			object.namespace, object.name = state.Namespace, state.Name
			out.err = unknown(state.As, object.object(), r.at, &worth)
			return false
		}
		if sel.matches(state.Object) {
			out.add(state.Object)
		}
		return out.err == nil
	})
	if errors.Is(err, history.ErrContinue) {
		return apierrors.NewResourceExpired(err.Error())
	}
	if err == nil {
		err = out.err
	}
	if err == nil && as != history.Exact {
		err = unknown(as, what, r.at, &worth)
	}
	var meta metav1.ListMeta
	if next != "" {
		meta.Continue = history.ListPlace{At: r.at, After: next}.Token()
	}
	return out.finish(meta, err)
}

func labelsOf(raw []byte) labels.Set {
	set := labels.Set{}
	meta, _ := rawjson.ScanHead(raw) // it is an object
	for key, value := range meta.Labels.All() {
		set[string(key)] = string(value)
	}
	return set
}

type listing struct {
	w    http.ResponseWriter
	form *form
	end  time.Time // of its time
	buf  []byte
	n    int
	sent bool  // a part of it
	err  error // the first
}

func (l *listing) add(raw []byte) {
	if l.n == 0 {
		l.buf = l.form.begin(l.buf)
	} else {
		l.buf = append(l.buf, ',')
	}
	l.n++
	if l.buf, l.err = l.form.item(l.buf, raw); l.err == nil && len(l.buf) >= held {
		l.flush()
	}
}

func (l *listing) flush() {
	l.w.Header().Set("Content-Type", "application/json")
	l.sent = true
	late := time.Now().Add(writeTimeout)
	if late.After(l.end) {
		late = l.end
	}
	_ = http.NewResponseController(l.w).SetWriteDeadline(late) // there are deadlines on TCP
	_, l.err = l.w.Write(l.buf)
	l.buf = l.buf[:0]
}

// finish completes the list. After an error the list stays incomplete, so no client takes it for a whole
// one.
func (l *listing) finish(meta metav1.ListMeta, err error) error {
	if err != nil {
		if l.sent {
			panic(http.ErrAbortHandler)
		}
		return err
	}
	if l.n == 0 {
		l.buf = l.form.begin(l.buf)
	}
	end, err := json.Marshal(&meta)
	if err != nil {
		return err
	}
	l.buf = append(append(append(l.buf, `],"metadata":`...), end...), "}\n"...)
	l.flush()
	return nil
}
