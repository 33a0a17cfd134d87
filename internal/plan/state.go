package plan

import (
	"encoding/json"
	"time"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/body"
	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// State is what a configuration asks for. It is immutable.
type State struct {
	Hash    string          // of the whole configuration; equal for files that say the same
	Masked  json.RawMessage // the file without secrets; see [config.Masked]
	Cluster string          // name of the cluster; empty: the kubeconfig's

	KubeAPI          KubeAPI
	Store            Store
	Admin            Admin
	ConsistencyCheck ConsistencyCheck

	Watches []Watch
	Sinks   []Sink
	Routes  []route.Spec // what Router was compiled from
	Router  *route.Router

	// Warnings are things that are allowed and yet look like mistakes.
	Warnings []*config.Error
}

// Watch is the watch of that name, or nil.
func (s *State) Watch(name string) *Watch {
	for i := range s.Watches {
		if s.Watches[i].Name == name {
			return &s.Watches[i]
		}
	}
	return nil
}

// Sink is the sink of that name, or nil.
func (s *State) Sink(name string) *Sink {
	for i := range s.Sinks {
		if s.Sinks[i].Name == name {
			return &s.Sinks[i]
		}
	}
	return nil
}

// KubeAPI bounds lists and discovery.
type KubeAPI struct {
	QPS   float32
	Burst int
}

// Store is the store's place and limits. Sizes are in bytes.
type Store struct {
	Path                                 string
	RedactionKey                         sinks.Secret // zero: the store's own
	MaxBytes, RetentionMaxBytes, MinFree int64
	RetentionMaxAge                      time.Duration
	DeadLetterMaxBytes                   int64
	DeadLetterMaxAge                     time.Duration
}

// Admin is the HTTP side. Empty strings mean none.
type Admin struct {
	Listen, Probes                  string
	ReadTokenFile, CommandTokenFile string
	ReadNames, CommandNames         []string // of client certificates
	CertFile, KeyFile, ClientCAFile string
}

// ConsistencyCheck is the periodic comparison with the cluster.
type ConsistencyCheck struct {
	Enabled  bool
	Interval time.Duration
}

// Watch is one watch, ready to run.
type Watch struct {
	Name      string
	Resources []string // patterns RESOURCE[.VERSION][.GROUP], for the resolver
	// ExcludeResources are patterns of resources that Resources does not mean.
	ExcludeResources []string

	// Namespaces are the namespaces to ask for, each by itself; nil is the whole
	// cluster.
	Namespaces []string
	// Selection is what watcherd selects itself, and Filter is made of it; nil lets
	// everything pass.
	Selection Selection
	Filter    *selector.Filter
	// ServerLabels and ServerFields are what the API server selects.
	ServerLabels, ServerFields string

	Snapshot      bool // objects found at the first start become Sync events
	History       bool // every change is recorded, whether a route takes it or not
	MetadataOnly  bool
	Edits         redact.Edits
	FailOnMissing bool // a resource that is not served makes the state unusable

	Fingerprint string
}

// Selection are the rules by which watcherd selects objects itself, as data.
type Selection struct {
	Namespaces selector.Namespaces `json:"namespaces,omitzero"`
	Labels     string              `json:"labels,omitempty"`
	Fields     string              `json:"fields,omitempty"`
}

// Filter compiles the rules; nil lets everything pass. The error joins a
// *field.Error for every fault.
func (s *Selection) Filter() (*selector.Filter, error) {
	if len(s.Namespaces.Include)+len(s.Namespaces.Exclude) == 0 && s.Namespaces.Selector+s.Labels+s.Fields == "" {
		return nil, nil
	}
	return selector.NewFilter(s.Namespaces, s.Labels, s.Fields)
}

// Sink is one sink, ready to open.
type Sink struct {
	Name, Kind string
	Config     sinks.Config // not to be changed
	Format     sinks.Format
	Body       *body.Body     // nil: events are sent in the format
	Delivery   sinks.Delivery // the block's settings over the kind's defaults
	BatchMode  bool           // several events may go out as one message
	Retry      delivery.Retry
	Rate       delivery.Rate
	OnOversize delivery.Oversize
	StartFrom  string // StartLatest, StartSnapshot or StartEarliest

	Fingerprint string
}

// The values of StartFrom.
const (
	StartLatest   = config.StartLatest
	StartSnapshot = config.StartSnapshot
	StartEarliest = config.StartEarliest
)
