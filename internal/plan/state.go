package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/body"
	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/nats/natsclient/natsconfig"
)

// State is what a configuration asks for. It is immutable.
type State struct {
	Hash    string          // of the whole configuration; equal for files that say the same
	Masked  json.RawMessage // the file without secrets; see [config.Masked]
	Cluster string          // name of the cluster; empty: the kubeconfig's
	Feed    string          // name of the feed; empty: one process has the whole cluster

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
	// Unavailable are secrets, keys and certificates that the process could not read when
	// it loaded the file. Compile reads none: the loader fills this in.
	Unavailable []*config.Error
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
	Journal                              *Journal // nil: none
}

// Journal is where the store's journal is.
type Journal struct {
	NATS              natsconfig.Config // without name, folder and log
	Stream            string
	Replicas          int
	MaxBytes          int64
	TakeOverAfter     time.Duration
	EncryptionKey     sinks.Secret
	OldEncryptionKeys []sinks.Secret
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
	Heartbeat  time.Duration // 0: none
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

// Plan is the difference between two states.
type Plan struct {
	Watches, Routes, Sinks Change

	RoutesMoved             bool // routes are in another order
	StoreChanged            bool // limits of the store
	ConsistencyCheckChanged bool

	// NeedsRestart are key paths that changed and take effect at a restart only.
	NeedsRestart []string
}

// Change is what happens to named blocks. The lists are sorted.
type Change struct {
	Add, Remove, Replace, Keep []string
}

// Empty reports whether everything stays.
func (c Change) Empty() bool { return len(c.Add)+len(c.Remove)+len(c.Replace) == 0 }

// Empty reports whether there is nothing to do.
func (p Plan) Empty() bool {
	return p.Watches.Empty() && p.Routes.Empty() && p.Sinks.Empty() && !p.RoutesMoved && !p.StoreChanged && !p.ConsistencyCheckChanged
}

// Diff returns the plan from old to new. A nil old is the empty state.
func Diff(old, new *State) Plan {
	if old == nil {
		old = &State{Cluster: new.Cluster, Feed: new.Feed, KubeAPI: new.KubeAPI, Store: new.Store, Admin: new.Admin, ConsistencyCheck: new.ConsistencyCheck}
	}
	p := Plan{
		Watches: diffNamed(
			index(old.Watches, func(w Watch) (string, string) { return w.Name, w.Fingerprint }),
			index(new.Watches, func(w Watch) (string, string) { return w.Name, w.Fingerprint }),
		),
		Sinks: diffNamed(
			index(old.Sinks, func(s Sink) (string, string) { return s.Name, s.Fingerprint }),
			index(new.Sinks, func(s Sink) (string, string) { return s.Name, s.Fingerprint }),
		),
		Routes: diffNamed(
			index(old.Routes, func(r route.Spec) (string, string) { return r.Name, string(mustJSON(r)) }),
			index(new.Routes, func(r route.Spec) (string, string) { return r.Name, string(mustJSON(r)) }),
		),
		ConsistencyCheckChanged: old.ConsistencyCheck != new.ConsistencyCheck,
	}
	p.RoutesMoved = p.Routes.Empty() && !bytes.Equal(mustJSON(old.Routes), mustJSON(new.Routes))
	limits := new.Store
	limits.Path, limits.RedactionKey, limits.Journal = old.Store.Path, old.Store.RedactionKey, old.Store.Journal
	p.StoreChanged = old.Store != limits
	p.NeedsRestart = diffFixed(old, new)
	return p
}

// diffFixed lists the key paths, sorted, whose values hold for the life of a process
// and differ.
func diffFixed(old, new *State) (keys []string) {
	a, b := &old.Admin, &new.Admin
	for _, fixed := range []struct {
		key     string
		changed bool
	}{
		{"admin.auth", a.ReadTokenFile != b.ReadTokenFile || a.CommandTokenFile != b.CommandTokenFile ||
			!slices.Equal(a.ReadNames, b.ReadNames) || !slices.Equal(a.CommandNames, b.CommandNames)},
		{"admin.listen", a.Listen != b.Listen},
		{"admin.probes", a.Probes != b.Probes},
		{"admin.tls", a.CertFile != b.CertFile || a.KeyFile != b.KeyFile || a.ClientCAFile != b.ClientCAFile},
		{"cluster.name", old.Cluster != new.Cluster},
		{"feed.name", old.Feed != new.Feed},
		{"kubeAPI", old.KubeAPI != new.KubeAPI},
		{"store.journal", !reflect.DeepEqual(old.Store.Journal, new.Store.Journal)},
		{"store.path", old.Store.Path != new.Store.Path},
		{"store.redactionKey", old.Store.RedactionKey != new.Store.RedactionKey},
	} {
		if fixed.changed {
			keys = append(keys, fixed.key)
		}
	}
	return keys
}

func index[T any](list []T, key func(T) (name, fingerprint string)) map[string]string {
	m := make(map[string]string, len(list))
	for _, v := range list {
		name, fp := key(v)
		m[name] = fp
	}
	return m
}

func diffNamed(old, new map[string]string) Change {
	var c Change
	for name, fp := range new {
		switch before, ok := old[name]; {
		case !ok:
			c.Add = append(c.Add, name)
		case before != fp:
			c.Replace = append(c.Replace, name)
		default:
			c.Keep = append(c.Keep, name)
		}
	}
	for name := range old {
		if _, ok := new[name]; !ok {
			c.Remove = append(c.Remove, name)
		}
	}
	for _, list := range [][]string{c.Add, c.Remove, c.Replace, c.Keep} {
		slices.Sort(list)
	}
	return c
}

// String lists the plan for people, a line for each block that does not stay:
// + added, - removed, ~ replaced.
func (p Plan) String() string {
	var b strings.Builder
	p.Watches.write(&b, "watches")
	p.Routes.write(&b, "routes")
	p.Sinks.write(&b, "sinks")
	for _, part := range []struct {
		changed bool
		name    string
	}{{p.RoutesMoved, "order of the routes"}, {p.StoreChanged, "store limits"}, {p.ConsistencyCheckChanged, "consistency check"}} {
		if part.changed {
			fmt.Fprintf(&b, "%s changed\n", part.name)
		}
	}
	if len(p.NeedsRestart) > 0 {
		fmt.Fprintf(&b, "takes effect at a restart: %s\n", strings.Join(p.NeedsRestart, ", "))
	}
	if b.Len() == 0 {
		return "nothing changed\n"
	}
	return b.String()
}

// Line is the plan on one line, for the log. What takes effect at a restart is left out: it
// is relative to the state before, not to the one that the process was started with.
func (p Plan) Line() string {
	p.NeedsRestart = nil
	return strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(p.String()), "\n  ", " "), "\n", "; ")
}

func (c Change) write(b *strings.Builder, what string) {
	if c.Empty() {
		return
	}
	fmt.Fprintf(b, "%s: %d added, %d removed, %d replaced, %d unchanged\n", what, len(c.Add), len(c.Remove), len(c.Replace), len(c.Keep))
	for _, group := range []struct {
		mark  string
		names []string
	}{{"+", c.Add}, {"-", c.Remove}, {"~", c.Replace}} {
		for _, name := range group.names {
			fmt.Fprintf(b, "  %s %s\n", group.mark, name)
		}
	}
}

// fingerprint identifies a block by its raw form. A block made by a program has
// none; then it is that of the values.
func fingerprint(raw []byte, values ...any) string {
	if raw == nil {
		raw = mustJSON(values)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

// hashOf is the fingerprint of everything a state was made of.
func hashOf(s *State) string {
	parts := []any{s.Cluster, s.Feed, s.KubeAPI, s.Store, s.Admin, s.ConsistencyCheck, s.Routes}
	for _, w := range s.Watches {
		parts = append(parts, "watch", w.Fingerprint)
	}
	for _, k := range s.Sinks {
		parts = append(parts, "sink", k.Fingerprint)
	}
	return fingerprint(mustJSON(parts))
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		// Only a kind whose settings hold channels or functions gets here.
		panic(fmt.Sprintf("plan: fingerprint: %v", err))
	}
	return b
}
