package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/columns"
	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// Config is what a Server serves. All but the addresses and files is required. An
// error of one of its interfaces that the request is to blame for is made with
// [Refuse].
type Config struct {
	Listen string // address of the admin listener; "" for none
	Probes string // address of the probes listener; "" for none
	Local  *Local // what a client in this process asks; nil: there is none

	Access            Access
	CertFile, KeyFile string // the server's certificate; "": plain HTTP
	ClientCAFile      string // whose certificates clients must show; "": none

	Status func() *status.Status // how the daemon is doing, now
	// Configuration is the one that runs, and the file as it is now.
	Configuration func() (Configuration, error)

	Objects   Objects
	Log       Log
	History   History
	When      func(expression string) (*history.Test, error) // compiles one as that of a route; the error has its faults
	Rehearsal Rehearsal
	Commands  Commands
	Sinks     Sinks
	Letters   Letters
	At        http.Handler // of what is below /at/: a Kubernetes API of a time, which changes nothing

	// Opened is closed once everything but the status can be asked. Until then the server
	// answers for health, status and metrics.
	Opened <-chan struct{}
	// Stopping is closed when the daemon starts to stop: streams and commands
	// end, everything else is answered until Run's context is done.
	Stopping <-chan struct{}

	Gatherer   prometheus.Gatherer
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// Configuration is what runs beside what the file has. Both are JSON without comments and
// secrets: see config.Masked.
type Configuration struct {
	Path     string          `json:"path"`              // of the file
	Running  json.RawMessage `json:"running,omitempty"` // left out if none was applied, or a program made it
	File     json.RawMessage `json:"file,omitempty"`    // left out if it cannot be read, or is not YAML
	Equal    bool            `json:"equal"`             // the file has what runs
	Problems []ConfigProblem `json:"problems"`          // of the file
}

// ConfigProblem is one problem of a configuration file.
type ConfigProblem struct {
	Line    int    `json:"line,omitempty"` // from 1, as Column; 0: the place is not known
	Column  int    `json:"column,omitempty"`
	Key     string `json:"key,omitempty"` // its path; empty: the file as a whole
	Message string `json:"message"`
}

// Objects finds what the watches see of a resource.
type Objects interface {
	// View takes names as kubectl does.
	View(resource string) (View, error)
	// Recorded returns the resource of a name that View takes, and whether its objects are in namespaces: also of one that
	// no watch reads, or that the cluster does not serve, if the history has it.
	Recorded(name string) (resource event.Resource, namespaced bool, err error)
	// Selectable returns an error if the history does not have labels by which objects of a namespace, or of all, are selected.
	Selectable(resource event.Resource, namespace string, byLabel labels.Selector) error
}

// View reads one resource.
type View interface {
	// About describes the watch of a resource. unsynced is why objects may be missing, empty
	// if the caches are complete.
	About() (resource event.Resource, namespaced bool, unsynced string)
	// List returns the matching objects of a namespace, or of all if it is empty,
	// sorted by namespace and name. The slice is the caller's.
	List(namespace string, selector labels.Selector) []*compact.Object
	// Get returns nil if there is no such object.
	Get(namespace, name string) *compact.Object
	// Columns returns the printer columns of a custom resource, none if they are not known.
	Columns(ctx context.Context) []columns.Column
}

// Log is the event log.
type Log interface {
	// Bounds returns the sequences of the oldest and the newest event. first is
	// greater than last if there are none.
	Bounds() (first, last uint64)
	// Next is a sequence that is above all that the log has given, and not above those that follow.
	Next() uint64
	// Read returns events after a sequence, in order, as many as are convenient; none
	// at the end of the log. Of those that keep refuses nothing but the sequence is
	// there: keep is given an event without its objects.
	Read(after uint64, keep func(*event.Event, []string) bool) ([]Logged, error)
	// Headlines calls f with the headlines of the records after a sequence, in order, until f
	// returns false. A row is valid during the call only.
	Headlines(after uint64, f func(*headline.Row) bool) error
	// Event is an event of the log with its summary and the routes that took it when it was recorded, nil if it is
	// not there any more or cannot be read.
	Event(sequence uint64) (e *event.Event, routes []string, err error)
	// Wait returns when there is an event after a sequence, or with ctx's error.
	Wait(ctx context.Context, after uint64) error
	// TimeOf is when the first event at or after the sequence was recorded; ok is false
	// if there is none.
	TimeOf(sequence uint64) (t time.Time, at uint64, ok bool)
}

// Logged is an event of the log.
type Logged struct {
	Sequence uint64
	Event    *event.Event // nil if the filter refused it
	Err      error        // the record cannot be read
}

// Rehearsal runs routes over what is recorded.
type Rehearsal interface {
	// Explain takes the sequence or the id of an event.
	Explain(ctx context.Context, event string) (*retrace.Explanation, error)
	Backtest(ctx context.Context, r *BacktestRequest, progress func(int)) (*retrace.Backtest, error)
}

// BacktestRequest asks what routes would have made of a period. A zero To is now.
type BacktestRequest struct {
	retrace.Proposal
	From time.Time `json:"from"`
	To   time.Time `json:"to,omitzero"`
}

// Commands are the operations for operators. progress is called repeatedly with
// the count so far.
type Commands interface {
	Replay(ctx context.Context, r ReplayRequest, progress func(int)) (int, error)
	Snapshot(ctx context.Context, r SnapshotRequest, progress func(int)) (int, error)
	// Backup copies the store to a new directory, checks the copy, and returns how many
	// recorded events it has.
	Backup(ctx context.Context, dir string) (int, error)
	// Reload reads the configuration file and returns the outcome.
	Reload(ctx context.Context) (status.Config, error)
	// Plan returns the effect that a reload to a configuration would have, for people.
	Plan(configuration string) (string, error)
}

// PlanRequest asks what a reload would do.
type PlanRequest struct {
	Configuration string `json:"configuration"` // the content of the file
}

// Planned is the effect of a reload, a line for each block that does not stay.
type Planned struct {
	Plan string `json:"plan"`
}

// Sinks acts on sinks.
type Sinks interface {
	// Pause ends deliveries to a sink until Resume.
	Pause(ctx context.Context, sink string) error
	// Resume ends a pause, and has a sink that waits tried now.
	Resume(ctx context.Context, sink string) error
	// Skip moves an event of a sink to its dead letters: the one with this sequence,
	// or with 0 the one that blocks the sink.
	Skip(ctx context.Context, sink string, sequence uint64) (Skipped, error)
	// Purge deletes a sink that is no longer configured, with its backlog.
	Purge(ctx context.Context, sink string) error
}

// Letters are the dead letters.
type Letters interface {
	// List returns at most max dead letters with positions greater than after, with their
	// events if that is asked for: as many as are convenient, none if there are no more.
	List(sink string, after uint64, max int, events bool) ([]DeadLetter, error)
	// Retry puts letters back into the queue, Drop deletes them; both return how many.
	Retry(sink string, positions []uint64) (int, error)
	Drop(sink string, positions []uint64) (int, error)
}

// ReplayRequest asks for events to be delivered to a sink again. Zero bounds are
// open.
type ReplayRequest struct {
	Sink         string    `json:"sink"`
	FromSequence uint64    `json:"fromSequence,omitempty"`
	ToSequence   uint64    `json:"toSequence,omitempty"`
	FromTime     time.Time `json:"fromTime,omitzero"`
	ToTime       time.Time `json:"toTime,omitzero"`
}

// BackupRequest names the new directory of a backup, on the host of the daemon.
type BackupRequest struct {
	Dir string `json:"dir"` // absolute
}

// SnapshotRequest asks for the current state as Sync events.
type SnapshotRequest struct {
	Sink  string `json:"sink"`
	Watch string `json:"watch,omitempty"` // empty: all
}

// SkipRequest names the event to skip.
type SkipRequest struct {
	Sequence uint64 `json:"sequence,omitempty"` // 0: the event that blocks the sink
}

// Skipped is the event that a skip moved to the dead letters.
type Skipped struct {
	Sequence uint64 `json:"sequence"`
	Position uint64 `json:"position"` // of the dead letter
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"` // empty if the event cannot be read
	Subject  string `json:"subject,omitempty"`
	Reason   string `json:"reason"` // why it was not delivered
}

// LettersRequest names dead letters: by position, by a filter, or all.
type LettersRequest struct {
	Positions []uint64      `json:"positions,omitempty"`
	Filter    *LetterFilter `json:"filter,omitempty"`
	All       bool          `json:"all,omitempty"`
	DryRun    bool          `json:"dryRun,omitempty"` // only count them
	Count     *int          `json:"count,omitempty"`  // of a dry run: refuse the request if another number matches by now
}

// LetterFilter selects dead letters. What is empty selects all.
type LetterFilter struct {
	Types     []string  `json:"types,omitempty"`
	Resource  string    `json:"resource,omitempty"` // as kubectl takes it
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	Reason    string    `json:"reason,omitempty"` // a part of it
	From      time.Time `json:"from,omitzero"`    // of the last attempt, as To
	To        time.Time `json:"to,omitzero"`
}

// Progress is a line of a command's answer: how far it is, and in the last line how
// it ended.
type Progress struct {
	Count int    `json:"count"`
	Done  bool   `json:"done,omitempty"`
	Error string `json:"error,omitempty"`

	Backtest *retrace.Backtest `json:"backtest,omitempty"` // the result of one
}

// DeadLetter is an event that a sink refused for good.
type DeadLetter struct {
	Sink     string    `json:"sink"`
	Position uint64    `json:"position"` // names it among the sink's
	Sequence uint64    `json:"sequence"`
	Reason   string    `json:"reason"`
	Attempts int       `json:"attempts"`
	First    time.Time `json:"first,omitzero"` // attempt
	Last     time.Time `json:"last,omitzero"`
	Type     string    `json:"type,omitempty"` // of the event, empty if it cannot be read
	Subject  string    `json:"subject,omitempty"`
	Time     time.Time `json:"time,omitzero"` // of the event
	ID       string    `json:"id,omitempty"`

	Resource  *event.Resource `json:"resource,omitempty"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name,omitempty"`
	Event     json.RawMessage `json:"event,omitempty"` // a CloudEvent, as the sink would get it now; if asked for
}

// DeadLetterList is a page of dead letters.
type DeadLetterList struct {
	Items    []DeadLetter `json:"items"`
	Continue uint64       `json:"continue,omitempty"` // the after of the next page; 0: this was the last
}
