// Package replica is what the daemon knows of the replicas of its store, with any kind of journal.
package replica

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
)

// Config is what an Opener needs; all fields but First and Accept are required.
type Config struct {
	Journal    plan.Journal
	First      string        // host of the replica that may begin a journal with an empty store; "": any
	Dir        string        // relative files of Journal are below it
	Path       string        // of the store
	Options    store.Options // of the store
	Accept     Accept
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Accept judges a store that a replica has followed to its end, by its metadata, before the replica leads. It is called about once a second, and
// does no I/O but what meta does. Its error, which wraps [ErrForeign], is final.
type Accept func(meta func(key string) (value []byte, ok bool, err error)) error

// ErrForeign means that the store which a replica follows is not that of its cluster.
var ErrForeign = errors.New("the journal is that of another cluster")

// Opener makes the Member that this process is.
type Opener func(Config) (Member, error)

// Member is this process among the replicas. Call Lead, then Run while the store is open, then
// Close after it. The other methods may be called from any goroutine.
type Member interface {
	// Lead follows until this replica leads, and returns the open store. Errors are final, or of ctx.
	Lead(ctx context.Context) (*store.Store, error)
	// Run keeps the journal, until ctx is done or the store fails.
	Run(ctx context.Context) error
	// Hold returns nil when a delivery may begin: no other replica leads, even if this process or its
	// machine was stopped for a while. With a ctx that is done it does not wait.
	Hold(ctx context.Context) error
	// Erase returns when nothing that the store deleted or overwrote before is left in the journal or in
	// replicas that answer.
	Erase(ctx context.Context) error
	State() State
	// Lag is how long ago the replica last had everything, by what it knows, negative if it never had; of
	// the leader, the age of its last append.
	Lag() time.Duration
	Close()
}

// State is what a replica knows.
type State struct {
	Replica string // HOST/ID; "" until the folder is open
	Leads   bool
	Leader  string // the replica whose entries are the newest; "" if none was read yet
	Term    uint64
	Last    uint64    // sequence of the last entry in the directory
	Heard   time.Time // when this replica last knew that it has all there is; zero: never
}
