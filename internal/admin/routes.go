package admin

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/ui"
)

// endpoints are what the index lists.
const endpoints = `watcherd

/ui/                       the page, for a browser
/livez, /readyz            health; ?verbose lists every check, ?exclude=NAME leaves some out
/metrics                   Prometheus metrics
/api/openapi.json          this interface as an OpenAPI document
/api/v1/status             how watches, routes, sinks and the store are doing, JSON
/api/v1/config             what runs, the file, and its problems at their lines
/api/v1/objects/RESOURCE   the objects that the watches see; /NAMESPACE, /NAMESPACE/NAME
                           ?at=TIME, and /NAMESPACE/NAME/versions, /diff, /blame, /owned
/api/v1/history            the recorded changes; /histogram counts them
/api/v1/changes            what a period changed
/api/v1/events             the event log as server-sent events
                           /SEQUENCE/explain: what the routes make of an event
/at/TIME/                  a Kubernetes API of that time: kubectl --server
`

// past is what a Kubernetes API of a time is below.
const past = "/at/"

// adminHandler serves everything to those who may.
func (s *Server) adminHandler(bound net.Addr) http.Handler {
	mux := http.NewServeMux()
	s.handleHealth(mux, true)
	s.handle(mux, "GET /{$}", func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, err := fmt.Fprint(w, endpoints)
		return ignoreGone(err)
	})
	s.operations(mux, true)
	opened := s.opened()
	mux.Handle("/api/v1/", opened)
	mux.Handle(past, opened)
	s.handle(mux, "/", notFound)

	// The page holds no data: a browser gets it before it has a token, and by links of other sites.
	outer, page, guarded := http.NewServeMux(), ui.Handler(), s.guarded(bound, mux)
	toPage := func(w http.ResponseWriter) {
		w.Header().Set("Location", "ui/") // relative: a proxy may have taken a prefix away
		w.WriteHeader(http.StatusSeeOther)
	}
	s.handle(outer, "GET /ui/", func(w http.ResponseWriter, r *http.Request) error {
		release := takeOpen(r)
		defer release()
		page.ServeHTTP(w, r)
		return nil
	})
	outer.HandleFunc("GET /ui", func(w http.ResponseWriter, _ *http.Request) { toPage(w) })
	outer.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" && reads(r) && strings.Contains(r.Header.Get("Accept"), "text/html") {
			toPage(w)
			return
		}
		guarded.ServeHTTP(w, r)
	})
	return s.limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if clean(r.URL.Path) {
			outer.ServeHTTP(w, r)
		} else { // outer would answer with a redirect
			guarded.ServeHTTP(w, r)
		}
	}))
}

// clean reports whether http.ServeMux takes a path as it is.
func clean(p string) bool {
	return strings.HasPrefix(p, "/") && (p == "/" || path.Clean(p) == strings.TrimSuffix(p, "/"))
}

// opened serves what needs the store.
func (s *Server) opened() http.Handler {
	mux := http.NewServeMux()
	s.operations(mux, false)
	at := http.StripPrefix(past, s.cfg.At)
	s.handle(mux, past, func(w http.ResponseWriter, r *http.Request) error {
		if release, ok := take(r, s.lists); ok {
			defer release()
			at.ServeHTTP(w, r)
		}
		return nil
	})
	s.handle(mux, "/", notFound)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.cfg.Opened:
			mux.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			reason := "the daemon is starting: its store is being opened and checked; try again soon"
			if j := s.cfg.Status().Store.Journal; j != nil {
				reason = "this replica follows; ask the one that leads: " + cmp.Or(j.Leader, "not known yet")
			}
			problemf(http.StatusServiceUnavailable, "%s", reason).write(w)
		}
	})
}

// operations registers those that are served before the store is open, or the others.
func (s *Server) operations(mux *http.ServeMux, early bool) {
	for _, op := range Operations() {
		if op.early == early {
			s.handle(mux, op.Pattern, op.strict(op.serve(s)))
		}
	}
}

// probesHandler serves what the kubelet and Prometheus ask for, to anyone.
func (s *Server) probesHandler(net.Addr) http.Handler {
	mux := http.NewServeMux()
	s.handleHealth(mux, false)
	s.handle(mux, "/", notFound)
	return s.limited(counted(mux)) // of anyone
}

func (s *Server) handleHealth(mux *http.ServeMux, reasons bool) {
	s.handle(mux, "GET /livez", s.livez(reasons))
	s.handle(mux, "GET /livez/{check...}", s.livez(reasons))
	s.handle(mux, "GET /readyz", s.readyz(reasons))
	s.handle(mux, "GET /readyz/{check...}", s.readyz(reasons))
	s.handle(mux, "GET /metrics", s.exposition())
}

func (s *Server) handle(mux *http.ServeMux, pattern string, h handler) {
	s.patterns = append(s.patterns, pattern)
	mux.Handle(pattern, s.metrics.instrument(pattern, s.recovered(h)))
}

// limited bounds what a request may send and how long its answer may take. What
// takes longer sets its own deadlines.
func (s *Server) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Fails only where there are no deadlines: not on TCP.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(requestTimeout))
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

func notFound(_ http.ResponseWriter, r *http.Request) error {
	return problemf(http.StatusNotFound, "there is no %s %s; GET / lists what there is", r.Method, r.URL.Path)
}

// Operation is a part of the HTTP interface, for its OpenAPI document.
type Operation struct {
	Pattern    string // as it is registered
	Summary    string
	Parameters string // of the query, separated by blanks, those that may be given several times with a *
	Body       any    // a value of the request's type; nil: there is none
	Answer     any    // a value of the answer's type; nil: see Content
	Content    string // the media type of an answer that is not JSON

	serve func(s *Server) handler
	early bool // before the store is open, too
}

// strict refuses a query of which a part would be ignored: the answer would be that to another question.
func (op *Operation) strict(h handler) handler {
	known := strings.Fields(op.Parameters)
	return func(w http.ResponseWriter, r *http.Request) error {
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			return problemf(http.StatusBadRequest, "the query is not understood: %v", err)
		}
		for _, name := range slices.Sorted(maps.Keys(query)) {
			switch given := len(query[name]); {
			case slices.Contains(known, name+"*"):
			case !slices.Contains(known, name):
				return problemf(http.StatusBadRequest, "unknown parameter %q; known are %s", name, cmp.Or(strings.ReplaceAll(strings.Join(known, ", "), "*", ""), "none"))
			case given > 1:
				return problemf(http.StatusBadRequest, "%s is given %d times: name one value", name, given)
			}
		}
		return h(w, r)
	}
}

func plain(f func(*Server, http.ResponseWriter, *http.Request) error) func(*Server) handler {
	return func(s *Server) handler {
		return func(w http.ResponseWriter, r *http.Request) error { return f(s, w, r) }
	}
}

// Operations are all operations below /api/.
func Operations() []Operation {
	const period, page = " from to", " limit continue"
	return []Operation{
		{Pattern: "GET /api/openapi.json", Summary: "This document", Answer: map[string]any{}, serve: plain((*Server).openapi), early: true},
		{Pattern: "GET /api/v1/status", Summary: "How watches, routes, sinks and the store are doing", Answer: status.Status{}, serve: plain((*Server).status), early: true},
		{Pattern: "GET /api/v1/config", Summary: "The configuration that runs and the file, without secrets", Answer: Configuration{}, serve: asked((*Server).configuration)},
		{Pattern: "GET /api/v1/objects/{resource}", Summary: "Objects that the watches see, or of a time", Parameters: "at namespace name labelSelector metadata columns" + page, Answer: map[string]any{}, serve: plain((*Server).objects)},
		{Pattern: "GET /api/v1/objects/{resource}/{first}", Summary: "Objects of a namespace, or an object without one", Parameters: "at version name labelSelector metadata columns" + page, Answer: map[string]any{}, serve: plain((*Server).objects)},
		{Pattern: "GET /api/v1/objects/{resource}/{first}/{name}", Summary: "An object, or its state at a time or after a change", Parameters: "at version metadata", Answer: map[string]any{}, serve: plain((*Server).objects)},
		{Pattern: "GET /api/v1/objects/{resource}/{first}/{name}/versions", Summary: "The versions of an object", Parameters: "limit continue" + period, Answer: history.Versions{}, serve: asked((*Server).versions)},
		{Pattern: "GET /api/v1/objects/{resource}/{first}/{name}/diff", Summary: "The difference of two states of an object", Parameters: "from to version base", Answer: history.Difference{}, serve: asked((*Server).diff)},
		{Pattern: "GET /api/v1/objects/{resource}/{first}/{name}/blame", Summary: "Who set the fields of an object last", Answer: history.Blame{}, serve: asked((*Server).blame)},
		{Pattern: "GET /api/v1/objects/{resource}/{first}/{name}/owned", Summary: "The objects that an object owns", Parameters: "at version limit", Answer: history.Owned{}, serve: asked((*Server).owned)},
		{Pattern: "GET /api/v1/history", Summary: "Recorded changes", Parameters: "resource namespace name type* manager noise before path when order" + period + page, Answer: history.Page{}, serve: asked((*Server).changed)},
		{Pattern: "GET /api/v1/history/histogram", Summary: "Recorded changes, counted over time", Parameters: "resource namespace name type* manager noise buckets" + period, Answer: history.Histogram{}, serve: asked((*Server).histogram)},
		{Pattern: "GET /api/v1/changes", Summary: "What a period changed in each object", Parameters: "group resource namespace name" + period, Answer: history.Changes{}, serve: asked((*Server).netChanges)},
		{Pattern: "GET /api/v1/events", Summary: "The event log as server-sent events", Parameters: "since follow limit view resource* namespace* name manager noise route* type*", Content: "text/event-stream", serve: plain((*Server).events)},
		{Pattern: "GET /api/v1/events/{event}/explain", Summary: "What the watches and routes of now make of an event", Answer: retrace.Explanation{}, serve: asked((*Server).explain)},
		{Pattern: "POST /api/v1/backtest", Summary: "Run routes over the history", Body: BacktestRequest{}, Answer: Progress{}, serve: plain((*Server).backtest)},
		{Pattern: "POST /api/v1/replay", Summary: "Deliver recorded changes to a sink again", Body: ReplayRequest{}, Answer: Progress{}, serve: plain((*Server).replay)},
		{Pattern: "POST /api/v1/snapshot", Summary: "Deliver the current state to a sink", Body: SnapshotRequest{}, Answer: Progress{}, serve: plain((*Server).snapshot)},
		{Pattern: "POST /api/v1/backup", Summary: "Copy the store to a new directory", Body: BackupRequest{}, Answer: Progress{}, serve: plain((*Server).backup)},
		{Pattern: "POST /api/v1/reload", Summary: "Read the configuration file", Answer: status.Config{}, serve: plain((*Server).reload)},
		{Pattern: "POST /api/v1/plan", Summary: "What a reload to a configuration would do", Body: PlanRequest{}, Answer: Planned{}, serve: plain((*Server).plan)},
		{Pattern: "GET /api/v1/deadletters/{sink}", Summary: "The dead letters of a sink", Parameters: "limit after events type* resource namespace name reason" + period, Answer: DeadLetterList{}, serve: asked((*Server).listLetters)},
		{Pattern: "POST /api/v1/deadletters/{sink}/retry", Summary: "Deliver dead letters again", Body: LettersRequest{}, Answer: Progress{}, serve: onLetters(Letters.Retry)},
		{Pattern: "POST /api/v1/deadletters/{sink}/drop", Summary: "Delete dead letters", Body: LettersRequest{}, Answer: Progress{}, serve: onLetters(Letters.Drop)},
		{Pattern: "POST /api/v1/sinks/{sink}/pause", Summary: "Keep a sink's events until it is resumed", Answer: map[string]any{}, serve: onSink(Sinks.Pause)},
		{Pattern: "POST /api/v1/sinks/{sink}/resume", Summary: "Have a sink that waits or is paused tried now", Answer: map[string]any{}, serve: onSink(Sinks.Resume)},
		{Pattern: "POST /api/v1/sinks/{sink}/skip", Summary: "Move an event of a sink to its dead letters", Body: SkipRequest{}, Answer: Skipped{}, serve: plain((*Server).skipEvent)},
		{Pattern: "POST /api/v1/sinks/{sink}/purge", Summary: "Delete a sink that is not configured, with its backlog", Answer: map[string]any{}, serve: onSink(Sinks.Purge)},
	}
}

//go:generate go run ../../hack/genopenapi openapi.json

// openapi is the OpenAPI document of Operations.
//
//go:embed openapi.json
var openapi []byte

func (s *Server) openapi(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, err := w.Write(openapi)
	return ignoreGone(err)
}
