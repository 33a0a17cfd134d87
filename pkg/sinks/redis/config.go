package redis

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
	"github.com/watcherd/watcherd/pkg/sinks/internal/template"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

// Config is the `redis` block.
type Config struct {
	// URL of the server: redis://HOST:PORT/DATABASE, or rediss:// for TLS. With `cluster` it has hosts of
	// the cluster, separated by commas, with `sentinel` the sentinels.
	URL string `json:"url"`

	// Username of the ACL, if it is not the default one.
	Username string `json:"username,omitempty"`

	// Password of the user. It is read at each connection.
	Password *sinks.Secret `json:"password,omitempty"`

	// Insecure allows the password in plain text, on the way to a server beyond loopback: that of a redis:// URL,
	// or one that a sentinel or a node of the cluster names.
	Insecure bool `json:"insecure,omitempty"`

	// TLS names the files to trust and to present, for rediss://.
	TLS sinks.TLS `json:"tls,omitzero"`

	// Cluster has the streams on its nodes, which are found through any of them.
	Cluster bool `json:"cluster,omitempty"`

	// Sentinel finds the server that takes writes.
	Sentinel *Sentinel `json:"sentinel,omitempty"`

	// Stream to append to. Tokens: {cluster} {group} {resource} {namespace}.
	Stream string `json:"stream,omitempty"`

	// MaxLen is about how many entries a stream keeps; the oldest are dropped. 0: all.
	MaxLen int `json:"maxLen,omitempty"`

	// Dedupe is how long an event that is written again is recognized. 0: not at all.
	Dedupe sinks.Duration `json:"dedupe,omitempty" jsonschema:"type=string"`

	// State keeps the last state of each object in a hash beside the stream, {STREAM}:objects.
	State bool `json:"state,omitempty"`

	// Tombstones is how long the sequence of a deleted object stays, by which older events are
	// recognized. 0: without limit.
	Tombstones sinks.Duration `json:"tombstones,omitempty" jsonschema:"type=string"`

	// Replicas that must have acknowledged an event before it counts as accepted.
	Replicas int `json:"replicas,omitempty"`

	// Timeout of a connection, and of an answer.
	Timeout sinks.Duration `json:"timeout,omitempty" jsonschema:"type=string"`
}

// Sentinel is the `sentinel` block.
type Sentinel struct {
	Master   string        `json:"master"`             // Name that the sentinels have for the server.
	Username string        `json:"username,omitempty"` // User at the sentinels.
	Password *sinks.Secret `json:"password,omitempty"` // Password at the sentinels.
}

var _ sinks.Config = (*Config)(nil)

// NewConfig returns the block with its defaults.
func NewConfig() *Config {
	return &Config{
		Stream: "watcherd", MaxLen: 1_000_000, Dedupe: sinks.Duration(10 * time.Minute),
		Tombstones: sinks.Duration(7 * 24 * time.Hour), Timeout: sinks.Duration(10 * time.Second),
	}
}

// server is what a URL names.
type server struct {
	hosts    []string // with ports
	secured  bool
	database int
}

func (c *Config) server() (s server, err error) {
	bad := func(msg string) (server, error) { return s, &sinks.FieldError{Path: "url", Msg: msg} }
	scheme, rest, _ := strings.Cut(c.URL, "://")
	if s.secured = scheme == "rediss"; !s.secured && scheme != "redis" || rest == "" {
		return bad("must be an address such as redis://redis:6379 or rediss://redis:6379/1")
	}
	hosts, database, _ := strings.Cut(rest, "/")
	if strings.Contains(hosts, "@") {
		return bad("must be without user and password: use username and password")
	}
	if database != "" {
		if s.database, err = strconv.Atoi(database); err != nil || s.database < 0 {
			return bad("must end with the number of a database, such as /0")
		}
	}
	port := "6379"
	if c.Sentinel != nil {
		port = "26379"
	}
	for host := range strings.SplitSeq(hosts, ",") {
		u, err := url.Parse(scheme + "://" + host)
		if err != nil || u.Hostname() == "" || u.Host != host {
			return bad("must name hosts as HOST:PORT, separated by commas")
		}
		if u.Port() != "" {
			port = u.Port()
		}
		s.hosts = append(s.hosts, net.JoinHostPort(u.Hostname(), port))
	}
	return s, nil
}

// passwords reports whether a server gets a password.
func (c *Config) passwords() bool {
	return c.Password != nil || c.Sentinel != nil && c.Sentinel.Password != nil
}

// exposed reports whether a password would leave the machine unencrypted.
func (s *server) exposed() bool {
	for _, host := range s.hosts {
		if !s.secured && sinks.PlainText("http://"+host) {
			return true
		}
	}
	return false
}

func (c *Config) stream() (template.Template, error) {
	t, err := template.Parse(c.Stream, template.Cluster, template.Group, template.Resource, template.Namespace)
	if err == nil && len(t) == 0 {
		err = errors.New("must not be empty")
	}
	if err != nil {
		return nil, &sinks.FieldError{Path: "stream", Msg: err.Error()}
	}
	return t, nil
}

// Validate checks the block.
func (c *Config) Validate() error {
	at, err := c.server()
	_, named := c.stream()
	errs := []error{err, named, c.TLS.Validate("tls")}
	bad := func(path, msg string) { errs = append(errs, &sinks.FieldError{Path: path, Msg: msg}) }
	if c.Password != nil {
		errs = append(errs, c.Password.Validate("password"))
	} else if c.Username != "" {
		bad("username", "needs a password")
	}
	if s := c.Sentinel; s != nil {
		if s.Master == "" {
			bad("sentinel.master", "must name the server, as the sentinels do")
		}
		if s.Password != nil {
			errs = append(errs, s.Password.Validate("sentinel.password"))
		} else if s.Username != "" {
			bad("sentinel.username", "needs a password")
		}
		if c.Cluster {
			bad("cluster", "cluster and sentinel exclude each other")
		}
	} else if len(at.hosts) > 1 && !c.Cluster {
		bad("url", "names several hosts, which needs cluster or sentinel")
	}
	if c.Cluster && at.database != 0 {
		bad("url", "names a database, of which a cluster has none but 0")
	}
	if !c.TLS.IsZero() && err == nil && !at.secured {
		bad("tls", "needs a rediss:// URL")
	}
	if c.passwords() && !c.Insecure && at.exposed() {
		bad("url", "sends the password unencrypted, as it is redis:// and beyond loopback: use rediss://, or set insecure: true")
	}
	for path, n := range map[string]int64{"maxLen": int64(c.MaxLen), "dedupe": int64(c.Dedupe), "tombstones": int64(c.Tombstones), "replicas": int64(c.Replicas)} {
		if n < 0 {
			bad(path, "must not be negative")
		}
	}
	if c.Timeout <= 0 {
		bad("timeout", "must be above 0")
	}
	return errors.Join(errs...)
}

// Defaults are the delivery settings for Redis.
func (c *Config) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 256, MaxBytes: 1 << 20, Concurrency: 1}
}

// Open makes the sink. It connects with the first Write.
func (c *Config) Open(_ context.Context, o sinks.Options) (sinks.Sink, error) {
	if err := o.Format.RequireText(); err != nil {
		return nil, err
	}
	at, err := c.server()
	if err != nil {
		return nil, err
	}
	stream, err := c.stream()
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	s := &sink{
		config: *c, name: o.Name, server: at, stream: stream, format: o.Format, metrics: m,
		warnings: wire.Warnings{Log: o.Logger}, connecting: solo.New(),
	}
	s.config.TLS = c.TLS.In(o.Dir)
	if c.Password != nil {
		s.config.Password = new(c.Password.In(o.Dir))
	}
	if c.Sentinel != nil {
		at := *c.Sentinel
		if at.Password != nil {
			at.Password = new(at.Password.In(o.Dir))
		}
		s.config.Sentinel = &at
	}
	return s, nil
}

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct{ repeated, superseded prometheus.Counter }

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	r := sinks.NewMetrics(reg, "redis")
	m := &metrics{
		repeated:   r.Counter("repeated_total", "Events that were not appended, since the stream had them already."),
		superseded: r.Counter("superseded_total", "States that the hash did not take, since it had the same or a later one of the object."),
	}
	return m, r.Err()
}
