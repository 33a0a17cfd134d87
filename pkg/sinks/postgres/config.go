package postgres

import (
	"context"
	"errors"
	"net"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

// Config is the `postgres` block.
type Config struct {
	// URL of the database, as libpq has it: postgres://USER:PASSWORD@HOST:PORT/DATABASE?KEY=VALUE. Of
	// several hosts, separated by commas, the first that takes writes is used.
	URL sinks.Secret `json:"url"`

	// Password to use instead of that of the URL, such as a token that is renewed. It is read at
	// each connection.
	Password *sinks.Secret `json:"password,omitempty"`

	// TLS names the files to trust and to present; the block, an empty one too, demands TLS and
	// verifies the server, independent of the URL's sslmode.
	TLS *sinks.TLS `json:"tls,omitempty"`

	// Schema that has the tables.
	Schema string `json:"schema,omitempty"`

	// Tables to write: history, every event; objects, the last state of each object.
	Tables []Table `json:"tables,omitempty" jsonschema:"enum=history,enum=objects"`

	// Create makes the schema and the tables that are missing. Without it, a missing table pauses the sink.
	Create bool `json:"create,omitempty"`

	// Timeout of a connection attempt, and of a transaction.
	Timeout sinks.Duration `json:"timeout,omitempty" jsonschema:"type=string"`
}

// Table is one of the tables.
type Table string

// The tables.
const (
	History Table = "history" // every event
	Objects Table = "objects" // the last state of each object
)

var _ sinks.Config = (*Config)(nil)

// NewConfig returns the block with its defaults.
func NewConfig() *Config {
	return &Config{Schema: "watcherd", Tables: []Table{History, Objects}, Timeout: sinks.Duration(10 * time.Second)}
}

// identifier is what a schema's name may look like: in SQL it is the same with quotes and without.
var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// Validate checks the block.
func (c *Config) Validate() error {
	errs := []error{c.URL.Validate("url")}
	bad := func(path, msg string) { errs = append(errs, &sinks.FieldError{Path: path, Msg: msg}) }
	if c.Password != nil {
		errs = append(errs, c.Password.Validate("password"))
	}
	if c.TLS != nil {
		errs = append(errs, c.TLS.Validate("tls"))
	}
	if !identifier.MatchString(c.Schema) {
		bad("schema", "must be lower-case letters, digits and underscores, at most 63")
	}
	if len(c.Tables) == 0 {
		bad("tables", "must be history, objects or both")
	}
	for i, table := range c.Tables {
		switch {
		case table != History && table != Objects:
			bad("tables["+strconv.Itoa(i)+"]", "must be history or objects")
		case slices.Contains(c.Tables[:i], table):
			bad("tables["+strconv.Itoa(i)+"]", "is repeated")
		}
	}
	if c.Timeout <= 0 {
		bad("timeout", "must be above 0")
	}
	return errors.Join(errs...)
}

// Defaults are the delivery settings for PostgreSQL.
func (c *Config) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 256, MaxBytes: 4 << 20, Concurrency: 1}
}

// Open makes the sink. It connects with the first Write.
func (c *Config) Open(_ context.Context, o sinks.Options) (sinks.Sink, error) {
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	s := &sink{
		name: o.Name, format: o.Format, log: o.Logger, warnings: wire.Warnings{Log: o.Logger}, metrics: m,
		url: c.URL.In(o.Dir), schema: c.Schema, create: c.Create, timeout: c.Timeout.Std(),
		history: slices.Contains(c.Tables, History), objects: slices.Contains(c.Tables, Objects),
		network: new(net.Dialer).DialContext, lines: map[*line]bool{},
	}
	if c.Password != nil {
		s.password = new(c.Password.In(o.Dir))
	}
	if c.TLS != nil {
		s.tls = new(c.TLS.In(o.Dir))
	}
	return s, nil
}
