package status

import (
	"time"

	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// Status is how the daemon is doing.
type Status struct {
	Version   string    `json:"version"`
	Cluster   string    `json:"cluster"`        // its name, part of every event
	Feed      string    `json:"feed,omitempty"` // its name; empty: one process has the whole cluster
	APIServer string    `json:"apiServer"`      // its URL
	Started   time.Time `json:"started"`
	Stopping  bool      `json:"stopping,omitempty"` // stopping; deliveries in flight finish

	// Undiscovered is true until the API server has said for the first time which
	// resources it serves.
	Undiscovered   bool   `json:"undiscovered,omitempty"`
	DiscoveryError string `json:"discoveryError,omitempty"` // of the last attempt

	Config Config `json:"config"`
	Store  Store  `json:"store"`

	Pipeline
}

// Config is the state of the configuration file.
type Config struct {
	File         string    `json:"file"`
	Hash         string    `json:"hash"`                   // of the configuration that runs
	LastSuccess  time.Time `json:"lastSuccess,omitzero"`   // when the file last was what runs
	LastAttempt  time.Time `json:"lastAttempt,omitzero"`   // when the file was last read with an outcome
	LastError    string    `json:"lastError,omitempty"`    // why the file is not what runs
	NeedsRestart []string  `json:"needsRestart,omitempty"` // keys whose new values take effect at a restart
	Warnings     []string  `json:"warnings,omitempty"`     // what is allowed and looks like a mistake
}

// Store is the state of the store on disk. Sizes are in bytes.
type Store struct {
	Path         string        `json:"path"`
	Opening      bool          `json:"opening,omitempty"` // it is being opened and checked
	Failed       string        `json:"failed,omitempty"`
	Paused       bool          `json:"paused,omitempty"` // ingest waits
	Reason       string        `json:"reason,omitempty"` // why it is paused
	Bytes        int64         `json:"bytes"`
	MaxBytes     int64         `json:"maxBytes,omitempty"`
	DiskFree     int64         `json:"diskFree"` // -1 if unknown
	MinFree      int64         `json:"minFree,omitempty"`
	LastCommit   time.Time     `json:"lastCommit,omitzero"`
	CommitStuck  time.Duration `json:"commitStuck,omitempty"` // how long the commit in progress takes already, ns
	FirstEvent   uint64        `json:"firstEvent"`            // sequence of the oldest event in the log
	LastEvent    uint64        `json:"lastEvent"`             // of the newest; 0 if there never was one
	LoggedEvents int64         `json:"loggedEvents"`
	LoggedBytes  int64         `json:"loggedBytes"`
	Journal      *Journal      `json:"journal,omitempty"` // nil: the store has no replicas
}

// Journal is this process's part in a store with replicas.
type Journal struct {
	Stream  string        `json:"stream"`
	Replica string        `json:"replica"` // HOST/ID; empty until the store's folder is open
	Role    string        `json:"role"`    // leader or follower
	Leader  string        `json:"leader"`  // the replica that leads or led last; empty if not known
	Term    uint64        `json:"term"`    // number of the leader, counted from 1
	Last    uint64        `json:"last"`    // sequence, in the stream, of the last entry in the store's folder
	Lag     time.Duration `json:"lag"`     // since the replica had all there is, negative if it never had; of the leader, since its last append; ns
}

// The roles of a replica.
const (
	Leader   = "leader"
	Follower = "follower"
)

// Pipeline is the feed's part.
type Pipeline struct {
	// Applied is false until the first configuration runs.
	Applied bool `json:"applied"`
	// Beat is when the committer last turned to its queue. It does so at least
	// every few seconds, unless the store is paused or a commit hangs.
	Beat time.Time `json:"beat,omitzero"`

	Caches  []Cache `json:"caches"`
	Watches []Watch `json:"watches"`
	Routes  []Route `json:"routes"`
	Sinks   []Sink  `json:"sinks"`

	// Scrub is the last rewriting of what the store holds; nil if there never was one.
	Scrub *Scrub `json:"scrub,omitempty"`
}

// Scrub rewrites recorded events and states when the configuration hides more of some
// resources than before.
type Scrub struct {
	Resources []string  `json:"resources"`
	Began     time.Time `json:"began"`
	Done      time.Time `json:"done,omitzero"`   // zero: it runs
	Stage     string    `json:"stage,omitempty"` // log, held, ledger, sinks or files
	Rewritten int64     `json:"rewritten"`
	Failed    int64     `json:"failed,omitempty"` // what could not be read or edited, and stays as it is
}

// Cache is what is cached of a resource, all versions and namespaces of it. Watches
// share it.
type Cache struct {
	Resource string `json:"resource"` // such as deployments.apps
	Objects  int    `json:"objects"`
	Bytes    int64  `json:"bytes"`
}

// Watch is a configured watch.
type Watch struct {
	Name    string    `json:"name"`
	Sources []Source  `json:"sources"`           // one for each resource, and namespace where those are watched one by one
	Missing []Missing `json:"missing,omitempty"` // what it asks for and cannot be watched

	Warnings []string `json:"warnings,omitempty"` // ambiguous names, namespaces that do not exist, and paths that match nothing
}

// Missing is a part of a watch that is waited for.
type Missing struct {
	Resource string `json:"resource"` // as configured
	Reason   string `json:"reason"`
	// Pending means that the daemon is about to find out: its first list of the namespaces by
	// whose labels the watch selects, or of what the API server serves, is under way.
	Pending bool `json:"pending,omitempty"`
}

// Source is an informer that feeds a watch; other watches may share it.
type Source struct {
	Resource  string `json:"resource"`            // such as deployments.v1.apps
	Namespace string `json:"namespace,omitempty"` // empty: all
	Synced    bool   `json:"synced"`              // everything that existed at the start is recorded
	dynamicfactory.Status
	Edits  []Edit `json:"edits,omitempty"` // the configured paths
	Edited uint64 `json:"edited"`          // objects that they were applied to since the informer started
}

// Edit is a path of a watch's `drop` or `redact`, and how many values it named since the
// informer started.
type Edit struct {
	Key  string `json:"key"` // drop or redact
	Path string `json:"path"`
	Hits uint64 `json:"hits"`
}

// Route is a configured route, and what it did since its configuration was loaded.
type Route struct {
	Name       string   `json:"name"`
	Watches    []string `json:"watches,omitempty"` // none: all
	Sinks      []string `json:"sinks"`
	Matched    uint64   `json:"matched"`
	Filtered   uint64   `json:"filtered"`  // refused by its expression
	Unchanged  uint64   `json:"unchanged"` // nothing of `changed` changed
	Unsampled  uint64   `json:"unsampled"` // outside of the sample
	Missing    uint64   `json:"missing"`   // evaluations that lacked a field
	Errors     uint64   `json:"errors"`
	FirstError string   `json:"firstError,omitempty"`

	EmptyLabels []string `json:"emptyLabels,omitempty"` // of its metric, that were empty on every event
	Unseen      []Unseen `json:"unseen,omitempty"`      // what it reads and no change has had; the name may be wrong
}

// Unseen is a field that many changes lacked and none has had.
type Unseen struct {
	Key     string `json:"key"`   // changed, when, drop or redact
	Field   string `json:"field"` // the path, or the error of the expression
	Changes uint64 `json:"changes"`
}

// Sink is a sink with a queue. One that is no longer configured keeps its backlog.
type Sink struct {
	Name       string `json:"name"`
	Kind       string `json:"kind,omitempty"`
	Configured bool   `json:"configured"`

	State       string    `json:"state"`            // opening, idle, running, rate-limited, backing-off, paused, draining or stopped
	Reason      string    `json:"reason,omitempty"` // why it is backing off or paused
	OnRequest   bool      `json:"pausedOnRequest,omitempty"`
	Since       time.Time `json:"since,omitzero"`
	Attempts    int       `json:"attempts,omitempty"` // failures in a row
	NextAttempt time.Time `json:"nextAttempt,omitzero"`

	LastError     string    `json:"lastError,omitempty"`
	LastErrorTime time.Time `json:"lastErrorTime,omitzero"`
	LastSuccess   time.Time `json:"lastSuccess,omitzero"`

	Queued      int64     `json:"queued"`
	QueuedBytes int64     `json:"queuedBytes"`
	Oldest      time.Time `json:"oldest,omitzero"` // time of the oldest event in the queue
	InFlight    int       `json:"inFlight"`
	Blocked     int       `json:"blocked"`     // wait for a retry of their own, or behind one
	Stalled     bool      `json:"stalled"`     // so many are blocked that no more are read
	Delivered   uint64    `json:"delivered"`   // since the process started, or a reload replaced the sink
	DeadLetters int64     `json:"deadLetters"` // that are kept
	HeldBytes   int64     `json:"heldBytes"`   // of the event log, that cannot be deleted because of this queue
	HeldSince   time.Time `json:"heldSince,omitzero"`

	FailingObjects int       `json:"failingObjects"`    // with an event that failed and waits for a retry
	Failing        []Failing `json:"failing,omitempty"` // those that fail for the longest time
}

// Failing is an object whose events a sink does not accept.
type Failing struct {
	Subject   string    `json:"subject,omitempty"` // empty: not known yet, after a restart
	Sequence  uint64    `json:"sequence"`          // of its event that failed
	Since     time.Time `json:"since"`
	Attempts  int       `json:"attempts"`
	LastError string    `json:"lastError,omitempty"`
	Next      time.Time `json:"next,omitzero"` // when it is tried again
	Behind    int       `json:"behind"`        // later events of the object that wait
}
