package query

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// Pipeline is what is looked at.
type Pipeline interface {
	// Running is called from any goroutine.
	Running() Running
}

// Running is what a pipeline runs at one moment.
type Running struct {
	State    *plan.State // nil: none was applied
	Feeds    []Source
	Missing  []Missing
	Warnings map[string][]string         // by watch: ambiguous names
	Workers  map[string]*delivery.Worker // by sink
	Scrub    *status.Scrub               // the last one; nil: there never was one
}

// Source is a feed and its informer.
type Source struct {
	*commit.Feed
	Informer *dynamicfactory.Subscription // nil: it is not subscribed yet
}

// Missing is why a watch's pattern has no informer.
type Missing struct {
	Watch, Pattern string
	Err            error
}

// Reason is the cause in words for users.
func (x *Missing) Reason() string { return strings.TrimPrefix(x.Err.Error(), factoryPrefix) }

// factoryPrefix begins the errors of names that cannot be resolved. It tells users
// nothing.
const factoryPrefix = "dynamicfactory: "

// Resolver finds the resources that a name means.
type Resolver interface {
	Resolve(name string) ([]dynamicfactory.Resource, error)
}

// Config is what a Reader works with.
type Config struct {
	Pipeline   Pipeline
	Committer  *commit.Committer
	Store      *outbox.Store
	Resolver   Resolver
	Inflater   *record.Inflater
	Edits      func() *redact.Table // in force
	Registerer prometheus.Registerer
}

// Reader answers what runs, and what was recorded. Any goroutine may use it.
type Reader struct {
	cfg       Config
	committer *commit.Committer
	store     *outbox.Store
	inflater  *record.Inflater
}

// New makes a Reader and registers what it exports.
func New(cfg Config) (*Reader, error) {
	r := &Reader{cfg, cfg.Committer, cfg.Store, cfg.Inflater}
	return r, cfg.Registerer.Register(collector{r})
}
