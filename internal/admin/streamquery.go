package admin

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/days"
	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/event"
)

// streamQuery is what a reader of the event stream asks for.
type streamQuery struct {
	after    uint64 // the sequence before the first
	fromPast bool   // the reader named a place, and wants to know if it is gone
	follow   bool
	limit    int // 0: none
	frames   bool
	noNoise  bool   // in frames: no rows of what headline.Row.Noise reports
	name     string // empty: all
	manager  string // as the name

	resources  []selector.Resource
	unscoped   bool // one of them has objects in no namespace, which the namespaces do not filter
	namespaces []string
	routes     []string
	types      []string
}

func (s *Server) parseStream(r *http.Request) (*streamQuery, error) {
	query := r.URL.Query()
	q := &streamQuery{
		follow:     true,
		name:       query.Get("name"),
		manager:    query.Get("manager"),
		namespaces: values(query, "namespace"), routes: values(query, "route"), types: values(query, "type"),
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(values(query, "resource")))) { // a look-up may read the log
		resource, namespaced, err := s.resource(name)
		if err != nil {
			return nil, err
		}
		q.resources, q.unscoped = append(q.resources, resource), q.unscoped || !namespaced
	}
	for _, t := range q.types {
		if err := checkType(t); err != nil {
			return nil, err
		}
	}
	if err := s.checkRoutes(q.routes); err != nil {
		return nil, err
	}
	switch view := query.Get("view"); view {
	case "", "feed":
		q.frames = view != ""
	default:
		return nil, problemf(http.StatusBadRequest, "view must be feed")
	}
	switch shown, err := noise(query); {
	case err != nil:
		return nil, err
	case !shown && (!q.frames || len(q.routes) > 0):
		return nil, problemf(http.StatusBadRequest, "noise=false is for view=feed without route")
	default:
		q.noNoise = !shown
	}
	if text := query.Get("follow"); text != "" {
		var err error
		if q.follow, err = boolean(query, "follow"); err != nil {
			return nil, err
		}
	}
	if text := query.Get("limit"); text != "" {
		var err error
		if q.limit, err = strconv.Atoi(text); err != nil || q.limit < 1 {
			return nil, problemf(http.StatusBadRequest, "limit must be a number of events")
		}
	}
	return q, s.place(q, r.Header.Get("Last-Event-ID"), query.Get("since"))
}

func (s *Server) checkRoutes(names []string) error {
	if len(names) == 0 {
		return nil
	}
	var known []string
	for _, r := range s.cfg.Status().Routes {
		known = append(known, r.Name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return problemf(http.StatusNotFound, "unknown route %q; known are %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// place finds where the stream begins.
func (s *Server) place(q *streamQuery, lastID, since string) error {
	_, last := s.cfg.Log.Bounds()
	q.after = last
	if lastID != "" {
		n, err := strconv.ParseUint(lastID, 10, 64)
		if err != nil {
			return problemf(http.StatusBadRequest, "Last-Event-ID must be the id of an event, a sequence")
		}
		if n >= s.cfg.Log.Next() { // the id is of another log: the reader has nothing of this one, and would wait for as long as it is behind
			n = 0
		}
		q.after, q.fromPast = n, true
		return nil
	}
	if since == "" {
		return nil
	}
	if n, err := strconv.ParseUint(since, 10, 64); err == nil {
		q.after, q.fromPast = max(n, 1)-1, n > 1
		return nil
	}
	at, err := ParseSince(since, time.Now())
	if err != nil {
		return problemf(http.StatusBadRequest, "since: %v", err)
	}
	q.after = max(s.firstSince(at), 1) - 1
	return nil
}

// disorder is how far times fall with sequences while the clock is not set back: deletions that a list shows have its time.
const disorder = time.Minute

// firstSince finds the sequence of the first event at or after a time.
func (s *Server) firstSince(at time.Time) uint64 {
	low, first := s.halved(at.Add(-disorder))
	err := s.cfg.Log.Headlines(max(low, 1)-1, func(row *headline.Row) bool {
		early := row.Time().Before(at)
		if !early {
			first = row.Sequence
		}
		return early
	})
	if err != nil { // they are damaged: rather more events than too few
		return low
	}
	return first
}

// halved finds the sequence of an event that none since a time is before, by halves: times rise with sequences, except by the
// disorder and where the clock was set back. end is that of the next event of the log.
func (s *Server) halved(at time.Time) (low, end uint64) {
	low, last := s.cfg.Log.Bounds()
	high := last + 1
	for low < high {
		middle := low + (high-low)/2
		t, found, ok := s.cfg.Log.TimeOf(middle)
		switch {
		case !ok || found >= high:
			high = middle
		case t.Before(at):
			low = found + 1
		default:
			high = middle
		}
	}
	return low, last + 1
}

// ParseSince reads a point in time as people give it: how long ago (90s, 2h, 3d) or
// when (RFC 3339).
func ParseSince(text string, now time.Time) (time.Time, error) {
	if d, ok := ParseAgo(text); ok {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, strings.Replace(text, " ", "+", 1)) // as a URL has it, where a plus sign stands for a blank
	if err != nil {
		return at, problemf(http.StatusBadRequest, "%q is neither how long ago (15m, 2h, 3d) nor a time (2026-01-31T12:00:00Z)", text)
	}
	if at = at.UTC(); !at.After(time.Time{}) { // JSON has no earlier year, and the zero time stands for one that is left out
		at = time.Time{}.Add(1)
	}
	return at, nil
}

// ParseAgo reads how long ago a point in time is; ok is false for one that is given otherwise. A plus sign would be for the future.
func ParseAgo(text string) (d time.Duration, ok bool) {
	text = strings.TrimPrefix(text, "-")
	d, err := days.ParseDuration(text)
	return d, err == nil && !strings.ContainsAny(text[:1], "+-")
}

func (q *streamQuery) keep(e *event.Event, routes []string) bool {
	manager := ""
	if e.ChangedBy != nil {
		manager = e.ChangedBy.Manager
	}
	return q.wants(&headline.Row{Type: e.Type, Resource: e.Resource, Namespace: e.Namespace, Name: e.Name, Manager: manager}) &&
		(len(q.routes) == 0 || e.Type == event.Gap || slices.ContainsFunc(q.routes, func(r string) bool { return slices.Contains(routes, r) }))
}

// wants is keep for streams of all routes. A gap is of all objects, namespaces and managers, unless it names one. A namespace
// selects all objects of a resource that has none, as in the paths of its objects.
func (q *streamQuery) wants(row *headline.Row) bool {
	gap := row.Type == event.Gap
	return allows(q.types, string(row.Type)) && (q.name == "" || row.Name == q.name || gap && row.Name == "") && (q.manager == "" || gap || row.By(q.manager)) &&
		(len(q.namespaces) == 0 || (gap || q.unscoped) && row.Namespace == "" || slices.Contains(q.namespaces, row.Namespace)) &&
		(len(q.resources) == 0 || slices.ContainsFunc(q.resources, func(p selector.Resource) bool { return p.Matches(row.Resource) }))
}

func allows(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }

// resource resolves a name as kubectl takes it. Wildcards are taken as they are.
func (s *Server) resource(name string) (resource selector.Resource, namespaced bool, err error) {
	if p, err := selector.ParseResource(name); err == nil && p.Wildcard() {
		return p, true, nil
	}
	r, namespaced, err := s.cfg.Objects.Recorded(name)
	if err != nil {
		return selector.Resource{}, false, err
	}
	return selector.ResourceOf(schema.GroupResource{Group: r.Group, Resource: r.Resource}), namespaced, nil
}

// values are a parameter's, given several times or with commas.
func values(query url.Values, key string) []string {
	var list []string
	for _, v := range query[key] {
		for one := range strings.SplitSeq(v, ",") {
			if one = strings.TrimSpace(one); one != "" {
				list = append(list, one)
			}
		}
	}
	return list
}
