package admin

import (
	_ "embed"
	"net/http"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/status"
)

// Operation is a part of the HTTP interface, for its OpenAPI document.
type Operation struct {
	Pattern    string // as it is registered
	Summary    string
	Parameters string // of the query, separated by blanks
	Body       any    // a value of the request's type; nil: there is none
	Answer     any    // a value of the answer's type; nil: see Content
	Content    string // the media type of an answer that is not JSON
}

// Operations are all operations below /api/.
func Operations() []Operation {
	const period, page = " from to", " limit continue"
	return []Operation{
		{Pattern: "GET /api/openapi.json", Summary: "This document", Answer: map[string]any{}},
		{Pattern: "GET /api/v1/status", Summary: "How watches, routes, sinks and the store are doing", Answer: status.Status{}},
		{Pattern: "GET /api/v1/config", Summary: "The configuration that runs and the file, without secrets", Answer: Configuration{}},
		{Pattern: "GET /api/v1/objects/{resource}", Summary: "Objects that the watches see, or of a time", Parameters: "at namespace name labelSelector metadata columns" + page, Answer: map[string]any{}},
		{Pattern: "GET /api/v1/objects/{resource}/{first}", Summary: "Objects of a namespace, or an object without one", Parameters: "at name labelSelector metadata columns" + page, Answer: map[string]any{}},
		{Pattern: "GET /api/v1/objects/{resource}/{first}/{name}", Summary: "An object, or its state at a time", Parameters: "at metadata", Answer: map[string]any{}},
		{Pattern: "GET /api/v1/objects/{resource}/{first}/{name}/versions", Summary: "The versions of an object", Parameters: "limit" + period, Answer: history.Versions{}},
		{Pattern: "GET /api/v1/objects/{resource}/{first}/{name}/diff", Summary: "The difference of two states of an object", Parameters: "from to", Answer: history.Difference{}},
		{Pattern: "GET /api/v1/objects/{resource}/{first}/{name}/blame", Summary: "Who set the fields of an object last", Answer: history.Blame{}},
		{Pattern: "GET /api/v1/history", Summary: "Recorded changes", Parameters: "resource namespace name type manager path when order" + period + page, Answer: history.Page{}},
		{Pattern: "GET /api/v1/history/histogram", Summary: "Recorded changes, counted over time", Parameters: "resource namespace name type manager buckets" + period, Answer: history.Histogram{}},
		{Pattern: "GET /api/v1/changes", Summary: "What a period changed in each object", Parameters: "group resource namespace name" + period, Answer: history.Changes{}},
		{Pattern: "GET /api/v1/events", Summary: "The event log as server-sent events", Parameters: "since follow limit view resource namespace name route type", Content: "text/event-stream"},
		{Pattern: "GET /api/v1/events/{event}/explain", Summary: "What the watches and routes of now make of an event", Answer: retrace.Explanation{}},
		{Pattern: "POST /api/v1/backtest", Summary: "Run routes over the history", Body: BacktestRequest{}, Answer: Progress{}},
		{Pattern: "POST /api/v1/replay", Summary: "Deliver recorded changes to a sink again", Body: ReplayRequest{}, Answer: Progress{}},
		{Pattern: "POST /api/v1/snapshot", Summary: "Deliver the current state to a sink", Body: SnapshotRequest{}, Answer: Progress{}},
		{Pattern: "POST /api/v1/backup", Summary: "Copy the store to a new directory", Body: BackupRequest{}, Answer: Progress{}},
		{Pattern: "POST /api/v1/reload", Summary: "Read the configuration file", Answer: status.Config{}},
		{Pattern: "POST /api/v1/plan", Summary: "What a reload to a configuration would do", Body: PlanRequest{}, Answer: Planned{}},
		{Pattern: "GET /api/v1/deadletters/{sink}", Summary: "The dead letters of a sink", Parameters: "limit after events type resource namespace name reason" + period, Answer: DeadLetterList{}},
		{Pattern: "POST /api/v1/deadletters/{sink}/retry", Summary: "Deliver dead letters again", Body: LettersRequest{}, Answer: Progress{}},
		{Pattern: "POST /api/v1/deadletters/{sink}/drop", Summary: "Delete dead letters", Body: LettersRequest{}, Answer: Progress{}},
		{Pattern: "POST /api/v1/sinks/{sink}/pause", Summary: "Keep a sink's events until it is resumed", Answer: map[string]any{}},
		{Pattern: "POST /api/v1/sinks/{sink}/resume", Summary: "Have a sink that waits or is paused tried now", Answer: map[string]any{}},
		{Pattern: "POST /api/v1/sinks/{sink}/skip", Summary: "Move an event of a sink to its dead letters", Body: SkipRequest{}, Answer: Skipped{}},
		{Pattern: "POST /api/v1/sinks/{sink}/purge", Summary: "Delete a sink that is not configured, with its backlog", Answer: map[string]any{}},
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
