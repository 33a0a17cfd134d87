package config

import (
	_ "embed"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/watcherd/watcherd/config/internal/strict"
)

// The type metadata of a configuration file.
const (
	APIVersion = "watcherd.dev/v1alpha1"
	Kind       = "WatcherConfig"
)

// Config is the whole configuration.
type Config struct {
	// Version of this file's format.
	APIVersion string `json:"apiVersion" jsonschema:"required,enum=watcherd.dev/v1alpha1"`
	// Kind of this file.
	Kind string `json:"kind" jsonschema:"required,enum=WatcherConfig"`
	// The cluster that is watched.
	Cluster Cluster `json:"cluster"`
	// The part of the cluster that this process watches, where several processes share its resources.
	Feed Feed `json:"feed"`
	// Rate limit of requests to the API server. Takes effect at a restart.
	KubeAPI KubeAPI `json:"kubeAPI"`
	// The store on disk: recorded states, the event log, and the pending events of each sink.
	Store Store `json:"store"`
	// The HTTP listeners. Changes take effect at a restart; the contents of the files named here are read again.
	Admin Admin `json:"admin"`
	// The periodic comparison of the recorded states with the cluster.
	ConsistencyCheck ConsistencyCheck `json:"consistencyCheck"`
	// What to watch; at least one watch.
	Watches []Watch `json:"watches" jsonschema:"required,minItems=1"`
	// Which change goes to which sink. Without routes every watch goes to every sink.
	Routes []Route `json:"routes"`
	// Destinations of the changes. Without sinks they are only kept in the event log, for tail and replay.
	Sinks []Sink `json:"sinks"`

	source source
}

// Cluster names the cluster.
type Cluster struct {
	// Name of the cluster, part of every event's source. Default: the cluster's name in the kubeconfig; in a pod, which has none, "in-cluster". Takes effect at a restart.
	Name string `json:"name"`
}

// Feed names one of several processes that share the resources of a cluster. Each has watches, a
// store and replicas of its own, and sequences of its own.
type Feed struct {
	// Name of the feed: lower-case letters, digits and dashes, unique in the cluster. It is part of every event's source, a label of every metric, and on the page. Default: none. Takes effect at a restart.
	Name string `json:"name"`
}

// KubeAPI bounds the requests to the API server.
type KubeAPI struct {
	// Requests a second for lists and discovery. Watches are never throttled.
	QPS float32 `json:"qps" jsonschema:"exclusiveMinimum=0"`
	// Requests that may be made at once before qps holds.
	Burst int `json:"burst" jsonschema:"minimum=1"`
}

// Store is the store on disk.
type Store struct {
	// Folder of the store, created with mode 0700; an existing one loses the rights of others. Takes effect at a restart.
	Path string `json:"path"`
	// Hard budget in bytes. The watches pause at half of it or 256Mi below it, whichever is more, until sinks have caught up; nothing is dropped.
	MaxBytes resource.Quantity `json:"maxBytes"`
	// Key of the hashes that replace redacted values, at least 16 bytes, read at the start. Default: a random one, made and kept in the store. Another key records the objects again, without events. Takes effect at a restart.
	RedactionKey *Secret `json:"redactionKey,omitempty"`
	// How long the history is kept: every recorded change, for replay and for questions about the past.
	Retention Retention `json:"retention"`
	// Limits of the dead letters: events that sinks rejected for good.
	DeadLetters DeadLetters `json:"deadLetters"`
	// Free disk space below which the watches pause.
	MinFree resource.Quantity `json:"minFree"`
	// Journal in NATS JetStream from which further replicas follow the store. The replica that leads does all the work. Takes effect at a restart.
	Journal *Journal `json:"journal,omitempty"`
}

// Journal replicates the store: what a quorum of the stream's servers has is recorded, and survives the loss of a replica with its disk.
type Journal struct {
	// Connection to the servers.
	NATS JournalNATS `json:"nats" jsonschema:"required"`
	// Stream of this store alone, made if it is missing. It takes the subject watcherd.journal.STREAM.
	Stream string `json:"stream" jsonschema:"required"`
	// Servers that have the stream: 3 or 5. Default: 3.
	Replicas int `json:"replicas,omitempty"`
	// Bytes of the stream that is made, at least 256Mi. The oldest entries go at half of it; a replica that is further behind is seeded with a snapshot, which a second stream has. Default: 8Gi.
	MaxBytes resource.Quantity `json:"maxBytes,omitzero"`
	// How long the leader may be silent before another replica takes over, at least 3s. Where replicas differ, a longer time of the leader counts. Default: 5s.
	TakeOverAfter time.Duration `json:"takeOverAfter,omitempty"`
	// Key of the encryption of what is in the stream, at least 16 bytes, the same for all replicas.
	EncryptionKey Secret `json:"encryptionKey" jsonschema:"required"`
	// Earlier keys, with which entries can be read still.
	OldEncryptionKeys []Secret `json:"oldEncryptionKeys,omitempty"`
}

// JournalNATS is the connection to the servers of a journal.
type JournalNATS struct {
	// URLs of servers: nats://, tls://, ws:// or wss://, without user and password.
	URLs []string `json:"urls" jsonschema:"required,minItems=1"`
	// User authenticates together with Password. One way to authenticate at most.
	User string `json:"user,omitempty"`
	// Password of User.
	Password *Secret `json:"password,omitempty"`
	// Token authenticates.
	Token *Secret `json:"token,omitempty"`
	// File with a user's JWT and key, as nsc writes them.
	CredentialsFile string `json:"credentialsFile,omitempty"`
	// File with the seed of an nkey.
	NkeySeedFile string `json:"nkeySeedFile,omitempty"`
	// Files to trust and to present; any of them demands TLS.
	TLS JournalTLS `json:"tls,omitzero"`
	// Bound of an attempt to connect, and of a round trip. Default: 5s.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// JournalTLS names the files of TLS with the servers of a journal.
type JournalTLS struct {
	// PEM certificates to trust instead of the system's.
	CAFile string `json:"caFile,omitempty"`
	// PEM client certificate and its chain.
	CertFile string `json:"certFile,omitempty"`
	// PEM key of certFile.
	KeyFile string `json:"keyFile,omitempty"`
	// Name to verify instead of the host's.
	ServerName string `json:"serverName,omitempty"`
}

// Secret names where a secret value is to be found: one of both.
type Secret struct {
	// Env is the name of an environment variable.
	Env string `json:"env,omitempty"`
	// File is the path of a file; one trailing newline is not part of the value.
	File string `json:"file,omitempty"`
}

// Retention limits the recorded changes that are kept, by age and by size. Pending events are
// kept for longer.
type Retention struct {
	// Age up to which the history is complete. Changes stay in it for a third longer, so that the state before each of them is known.
	MaxAge time.Duration `json:"maxAge"`
	// Bytes of recorded changes to keep, of which a quarter explains the others. Default: 4Gi, but no more than half of store.maxBytes.
	MaxBytes resource.Quantity `json:"maxBytes"`
}

// DeadLetters bounds what sinks refused for good.
type DeadLetters struct {
	// Time after its last attempt at which a dead letter is deleted; 0s keeps it until it is retried or dropped.
	MaxAge time.Duration `json:"maxAge"`
	// Bytes of dead letters of all sinks, half of them in equal parts that no other sink takes. When they are reached, a sink that refuses another event pauses. Default: 1Gi, but no more than a tenth of store.maxBytes.
	MaxBytes resource.Quantity `json:"maxBytes"`
}

// Admin is the HTTP side of watcherd.
type Admin struct {
	// Address of the listener with metrics, health, status, objects, events and commands; empty for none. Beyond loopback it needs tls.clientCAFile, or a token of auth with tls.
	Listen string `json:"listen"`
	// Address of a second listener with /livez, /readyz and /metrics only, for kubelet and Prometheus; empty for none.
	Probes string `json:"probes"`
	// Who may use the listener. Without it every client that the listener accepts may read and run commands.
	Auth *AdminAuth `json:"auth,omitempty"`
	// TLS of the listener.
	TLS *AdminTLS `json:"tls,omitempty"`
	// Accept tokens over plain HTTP beyond loopback, for example where a mesh encrypts the traffic.
	Insecure bool `json:"insecure"`
}

// AdminAuth is the admin listener's authentication. A client needs a token if a token
// file is set, and one of the names if names are set.
type AdminAuth struct {
	// File with the token of clients that read. They send it as "Authorization: Bearer TOKEN".
	ReadTokenFile string `json:"readTokenFile"`
	// File with the token of clients that also run commands: everything that is not a read, such as reload, replay, backup, backtest, and those on dead letters and sinks.
	CommandTokenFile string `json:"commandTokenFile"`
	// Names of client certificates whose owners read: a DNS name, e-mail address or URI of the certificate, or its common name as CN=NAME. Needs tls.clientCAFile.
	ReadNames []string `json:"readNames"`
	// Names of client certificates whose owners also run commands.
	CommandNames []string `json:"commandNames"`
}

// AdminTLS is the admin listener's TLS.
type AdminTLS struct {
	// The server's certificate chain, PEM.
	CertFile string `json:"certFile" jsonschema:"required"`
	// The certificate's private key, PEM.
	KeyFile string `json:"keyFile" jsonschema:"required"`
	// Authorities, PEM. When set, a client must show a certificate signed by one of them.
	ClientCAFile string `json:"clientCAFile"`
}

// ConsistencyCheck is a periodic comparison of the recorded states with a fresh list.
// Each difference is delivered as an event with "repair": true.
type ConsistencyCheck struct {
	// Whether to run the check.
	Enabled bool `json:"enabled"`
	// Time between two checks of a watch, with some jitter.
	Interval time.Duration `json:"interval"`
}

// source knows where the parts of a Config stand in its file. The zero source
// belongs to a Config made by a program.
type source struct {
	file  string
	doc   *strict.Document
	kinds []string // of sinks, sorted

	lost map[string]bool // key paths whose values could not be decoded, or that are misspelt
}

//go:generate go run ../hack/genschema

//go:embed watcherd.schema.json
var schema string

// Schema is the JSON Schema (draft 2020-12) of the configuration with the built-in
// kinds of sinks. It is generated from the types of this package and of the kinds.
func Schema() []byte { return []byte(schema) }

// Default is a Config with every default and nothing to watch.
func Default() Config {
	return Config{
		APIVersion: APIVersion,
		Kind:       Kind,
		KubeAPI:    KubeAPI{QPS: 50, Burst: 100},
		Store: Store{
			Path:        "./watcherd-data",
			MaxBytes:    resource.MustParse("10Gi"),
			Retention:   Retention{MaxAge: 7 * 24 * time.Hour, MaxBytes: resource.MustParse("4Gi")},
			DeadLetters: DeadLetters{MaxAge: 7 * 24 * time.Hour, MaxBytes: resource.MustParse("1Gi")},
			MinFree:     resource.MustParse("512Mi"),
		},
		Admin:            Admin{Listen: "127.0.0.1:8080"},
		ConsistencyCheck: ConsistencyCheck{Enabled: true, Interval: time.Hour},
	}
}

// DefaultDrop are the key paths that a watch drops unless it keeps them.
func DefaultDrop() []string { return []string{"metadata.managedFields"} }

// AppliedManifest is the key path of the annotation in which kubectl stores what it applied. A watch
// redacts it unless it keeps it.
const AppliedManifest = `metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]`

// DefaultWatch is what a watch is where the file is silent.
func DefaultWatch() Watch {
	return Watch{
		SelectorSide: SideClient,
		Snapshot:     SnapshotInitial,
		History:      true,
		OnMissing:    MissingWait,
	}
}

// DefaultRoute is what a route is where the file is silent.
func DefaultRoute() Route {
	return Route{Payload: []string{PayloadObject}, OnError: ErrorDrop}
}

// DefaultRouteMetric is what a metric is where the file is silent.
func DefaultRouteMetric() RouteMetric { return RouteMetric{MaxSeries: 1000} }

// DefaultSink is what a sink is where the file is silent. Batches and lanes are
// up to the kind.
func DefaultSink() Sink {
	return Sink{
		Format:     FormatCloudEvents,
		Retry:      Retry{Initial: 500 * time.Millisecond, Max: 5 * time.Minute, PoisonAttempts: 3},
		OnOversize: OversizeDeadLetter,
		StartFrom:  StartLatest,
	}
}

// SetDefaults makes w a [DefaultWatch].
func (w *Watch) SetDefaults() { *w = DefaultWatch() }

// SetDefaults makes r a [DefaultRoute].
func (r *Route) SetDefaults() { *r = DefaultRoute() }

// SetDefaults makes m a [DefaultRouteMetric].
func (m *RouteMetric) SetDefaults() { *m = DefaultRouteMetric() }

// SetDefaults makes s a [DefaultSink].
func (s *Sink) SetDefaults() { *s = DefaultSink() }

// fitRetention lowers a retention that the file does not name to what the
// store's budget has room for.
func (s *Store) fitRetention() {
	if half := s.MaxBytes.Value() / 2; s.Retention.MaxBytes.Value() > half {
		s.Retention.MaxBytes = *resource.NewQuantity(half, resource.BinarySI)
	}
}

// fitDeadLetters lowers a bound of dead letters that the file does not name to what
// the store has room for.
func (s *Store) fitDeadLetters() {
	if tenth := s.MaxBytes.Value() / 10; s.DeadLetters.MaxBytes.Value() > tenth {
		s.DeadLetters.MaxBytes = *resource.NewQuantity(tenth, resource.BinarySI)
	}
}

// Sink is a destination of events. In addition to the keys below it has exactly one key
// that names its kind.
type Sink struct {
	// Name of the sink: lower-case letters, digits and dashes, unique among sinks. A sink's queue belongs to its name.
	Name string `json:"name" jsonschema:"required"`
	// Encoding of events.
	Format string `json:"format" jsonschema:"enum=cloudevents,enum=cloudevents-binary,enum=json"`
	// CEL expression that makes what is sent of an event, in place of an encoding: a text as it is, any other value as JSON. It sees event, object, oldObject, patch, metadata and resource, or the list events alone, of which it makes one body for all events of a message.
	Body string `json:"body,omitempty"`
	// Media type of the body. Default: application/json, or text/plain if the value is a text.
	ContentType string `json:"contentType,omitempty"`
	// Limits of a batch of events. Default: the kind's own.
	Batch Batch `json:"batch"`
	// Retry policy.
	Retry Retry `json:"retry"`
	// Most events a time, failed attempts included. What is more stays in the queue. Default: no limit.
	RateLimit *RateLimit `json:"rateLimit,omitempty"`
	// Time between two heartbeats: events of type dev.watcherd.heartbeat with the position of the sink, at least 1s. For the kinds nats, webhook, and kafka with mode history, without body. Default: none.
	Heartbeat time.Duration `json:"heartbeat,omitempty"`
	// Number of parallel lanes. Each object belongs to one lane, so its order holds. 1 for the kind object. Default: the kind's own.
	Concurrency *int `json:"concurrency,omitempty" jsonschema:"minimum=1,maximum=256"`
	// Handling of an event that exceeds the destination's size limit. deadLetter: it becomes a dead letter. truncate: it is cut, to the identity of its object if necessary, and marked as truncated.
	OnOversize string `json:"onOversize" jsonschema:"enum=deadLetter,enum=truncate"`
	// Position at which a new sink starts. latest: the next change. snapshot: the current state of all objects routed to it, as sync events, then changes. earliest: the oldest change in the history that the routes to this sink take now. At the first start with an empty store all three are the same: the initial sync of the watches reaches every sink.
	StartFrom string `json:"startFrom" jsonschema:"enum=latest,enum=snapshot,enum=earliest"`

	// Kind is the sink's kind: the key of its settings.
	Kind string `json:"-"`
	// Settings is the decoded block of the kind, made by the kind's constructor.
	Settings any `json:"-"`
	// Raw is the block as canonical JSON, before defaults: equal for blocks that say the same. Nil in a Config made by a program.
	Raw []byte `json:"-"`
}

// Batch bounds the events of one request. Nil is the kind's default.
type Batch struct {
	// Most events in one request. More than 1 lets a kind put several events into one message.
	MaxEvents *int `json:"maxEvents,omitempty" jsonschema:"minimum=1,maximum=10000"`
	// Approximate bytes in one request.
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty"`
	// Time that an incomplete batch waits for more events, at most 5m.
	MaxWait *time.Duration `json:"maxWait,omitempty"`
}

// RateLimit is a token bucket: it holds the tokens of that many events, and is filled
// again in that time.
type RateLimit struct {
	// Events that may be sent at once, and in each period.
	Events int `json:"events" jsonschema:"required,minimum=1,maximum=1000000"`
	// Length of a period, as in 1s, at most 24h.
	Per time.Duration `json:"per" jsonschema:"required"`
}

// Retry is the retry policy. No event is given up because of its age.
type Retry struct {
	// Delay after the first failure. It doubles with each further failure, with jitter.
	Initial time.Duration `json:"initial"`
	// Longest delay between two attempts.
	Max time.Duration `json:"max"`
	// Attempts for an event that the destination rejects as invalid, before it becomes a dead letter.
	PoisonAttempts int `json:"poisonAttempts" jsonschema:"minimum=1"`
}

// Values of a sink's keys.
const (
	FormatCloudEvents       = "cloudevents"
	FormatCloudEventsBinary = "cloudevents-binary"
	FormatJSON              = "json"

	OversizeDeadLetter = "deadLetter"
	OversizeTruncate   = "truncate"

	StartLatest   = "latest"
	StartSnapshot = "snapshot"
	StartEarliest = "earliest"
)
