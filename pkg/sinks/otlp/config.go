package otlp

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
)

// Config is the `otlp` block.
type Config struct {
	// Endpoint of the receiver, http or https: its base, to which /v1/logs is added, or an address that ends so.
	Endpoint string `json:"endpoint"`

	// Headers to add: text, or a secret {env: NAME} or {file: PATH}.
	Headers map[string]sinks.Header `json:"headers,omitempty"`

	// Timestamps of the records: event, when the change was observed, or observed, when the record is sent, for
	// receivers that refuse old ones.
	Timestamps Timestamps `json:"timestamps,omitempty" jsonschema:"enum=event,enum=observed"`

	// Structured makes the body of a record a map, from the event's JSON. Left out, it is that JSON as text.
	Structured bool `json:"structured,omitempty"`

	// Compress is gzip or none.
	Compress string `json:"compress,omitempty" jsonschema:"enum=none,enum=gzip"`

	// TLS names the files to trust and to present.
	TLS sinks.TLS `json:"tls,omitzero"`

	// Insecure allows credentials in plain text: in a header here, and on the way to an
	// http:// endpoint beyond loopback.
	Insecure bool `json:"insecure,omitempty"`

	// Timeout of one request, from dialling to the end of the answer.
	Timeout sinks.Duration `json:"timeout,omitempty" jsonschema:"type=string"`
}

// Timestamps is what the time of a record means.
type Timestamps string

// The timestamps.
const (
	OfEvent  Timestamps = "event"    // when the change was observed
	Observed Timestamps = "observed" // when the record is sent
)

var _ sinks.Config = (*Config)(nil)

// NewConfig returns the block with its defaults.
func NewConfig() *Config {
	return &Config{Timestamps: OfEvent, Compress: post.Gzip, Timeout: sinks.Duration(15 * time.Second)}
}

// logsPath is where a receiver takes logs.
const logsPath = "/v1/logs"

// address is the URL to post to.
func (c *Config) address() (*url.URL, error) {
	u, err := post.Address("endpoint", c.Endpoint, "http://collector:4318")
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(u.Path, logsPath) {
		u = u.JoinPath(logsPath)
	}
	return u, nil
}

// Validate checks the block.
func (c *Config) Validate() error {
	_, err := c.address()
	errs := []error{err, c.TLS.Validate("tls"), post.ValidateHeaders("endpoint", c.Endpoint, c.Headers, c.Insecure)}
	bad := func(path, msg string) { errs = append(errs, &sinks.FieldError{Path: path, Msg: msg}) }
	if c.Timestamps != OfEvent && c.Timestamps != Observed {
		bad("timestamps", "must be event or observed")
	}
	return errors.Join(append(errs, post.ValidateTransfer(c.Compress, c.Timeout))...)
}

// Defaults are the delivery settings for OTLP. One lane, so that records arrive in their order.
func (c *Config) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 256, MaxBytes: 1 << 20, Concurrency: 1}
}

// Open makes the sink. Secrets and files are first read by Write, so one that is missing pauses this sink and no other.
func (c *Config) Open(_ context.Context, o sinks.Options) (sinks.Sink, error) {
	u, err := c.address()
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	return &sink{
		url: u, log: o.Logger, metrics: m,
		records: records{format: o.Format, cluster: o.Cluster, now: c.Timestamps == Observed, structured: c.Structured},
		client: post.New(post.Options{
			Key: "endpoint", Host: u.Hostname(), Headers: c.Headers, Dir: o.Dir, MaySend: o.MaySend, TLS: c.TLS, Timeout: c.Timeout.Std(),
			Gzip: c.Compress == post.Gzip, MaxAnswer: 64 << 10, Responses: m.responses,
		}),
	}, nil
}
