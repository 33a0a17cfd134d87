package elasticsearch

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
	"github.com/watcherd/watcherd/pkg/sinks/internal/template"
)

// Config is the `elasticsearch` block.
type Config struct {
	// URL of a node or of what balances between nodes, http or https.
	URL string `json:"url"`

	// Index, or data stream, to write to. Tokens: {cluster} {group} {resource} {namespace}, and {date} in mode
	// history. Upper case becomes lower case, and what an index's name cannot hold becomes _.
	Index string `json:"index,omitempty"`

	// Mode is history, which creates a document for every event, or state, which keeps the last state of each object.
	Mode Mode `json:"mode,omitempty" jsonschema:"enum=history,enum=state"`

	// Create makes the index template, unless one of its name exists. Left out, the indices are as the cluster's
	// own templates want them.
	Create bool `json:"create,omitempty"`

	// Tombstones is how long mode state keeps the document of a deleted object. 0: without limit.
	Tombstones sinks.Duration `json:"tombstones,omitempty" jsonschema:"type=string"`

	// APIKey is sent as `Authorization: ApiKey`: what the API calls encoded.
	APIKey *sinks.Secret `json:"apiKey,omitempty"`

	// BasicAuth is a user and a password.
	BasicAuth *sinks.BasicAuth `json:"basicAuth,omitempty"`

	// Insecure allows credentials in plain text: in a header here, and on the way to an
	// http:// URL beyond loopback.
	Insecure bool `json:"insecure,omitempty"`

	// Headers to add: text, or a secret {env: NAME} or {file: PATH}.
	Headers map[string]sinks.Header `json:"headers,omitempty"`

	// Compress is gzip or none.
	Compress string `json:"compress,omitempty" jsonschema:"enum=none,enum=gzip"`

	// TLS names the files to trust and to present.
	TLS sinks.TLS `json:"tls,omitzero"`

	// Timeout of one request, from dialling to the end of the answer.
	Timeout sinks.Duration `json:"timeout,omitempty" jsonschema:"type=string"`
}

// Mode is what an index holds.
type Mode string

// The modes.
const (
	History Mode = "history" // every event
	State   Mode = "state"   // the last state of each object
)

var _ sinks.Config = (*Config)(nil)

// NewConfig returns the block with its defaults.
func NewConfig() *Config {
	return &Config{
		Mode: History, Tombstones: sinks.Duration(7 * 24 * time.Hour), Compress: post.Gzip, Timeout: sinks.Duration(30 * time.Second),
	}
}

func (c *Config) index() string {
	switch {
	case c.Index != "":
		return c.Index
	case c.Mode == State:
		return "watcherd-objects"
	default:
		return "watcherd-history"
	}
}

// maxIndex is the longest name of an index in bytes.
const maxIndex = 255

func (c *Config) names() (template.Template, error) {
	tokens := []string{template.Cluster, template.Group, template.Resource, template.Namespace}
	if c.Mode != State {
		tokens = append(tokens, template.Date)
	}
	t, err := template.Parse(c.index(), tokens...)
	if err != nil {
		return nil, &sinks.FieldError{Path: "index", Msg: err.Error()}
	}
	sample := t.Sample("x")
	switch {
	case t[0].Token != "":
		err = errors.New("must begin with text, which distinguishes this sink's indices from others")
	case strings.ContainsAny(sample[:1], "-_+."):
		err = errors.New("must not begin with - _ + or a dot")
	case sample != string(appendName(nil, sample)):
		err = errors.New("must be lower case, without a space and without \\ / * ? \" < > | , : and #")
	case len(sample) > maxIndex/2:
		err = errors.New("is too long: an index's name has 255 bytes at most")
	}
	if err != nil {
		return nil, &sinks.FieldError{Path: "index", Msg: err.Error()}
	}
	return t, nil
}

// appendName appends a value as a part of an index's name.
func appendName(dst []byte, value string) []byte {
	for _, c := range []byte(strings.ToLower(value)) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`\/*?"<>|,#:`, c) >= 0 {
			c = '_'
		}
		dst = append(dst, c)
	}
	return dst
}

// Validate checks the block.
func (c *Config) Validate() error {
	_, err := post.Address("url", c.URL, "https://elasticsearch:9200")
	_, named := c.names()
	errs := []error{err, named, c.TLS.Validate("tls"), post.ValidateHeaders("url", c.URL, c.Headers, c.Insecure)}
	bad := func(path, msg string) { errs = append(errs, &sinks.FieldError{Path: path, Msg: msg}) }
	if c.Mode != History && c.Mode != State {
		bad("mode", "must be history or state")
	}
	if c.APIKey != nil {
		errs = append(errs, c.APIKey.Validate("apiKey"))
		if c.BasicAuth != nil {
			bad("basicAuth", "apiKey and basicAuth exclude each other")
		}
	}
	if b := c.BasicAuth; b != nil {
		errs = append(errs, b.Validate("basicAuth"))
	}
	if (c.APIKey != nil || c.BasicAuth != nil) && !c.Insecure && sinks.PlainText(c.URL) {
		bad("url", "sends apiKey or basicAuth unencrypted, as it is http:// and beyond loopback: use https://, or set insecure: true")
	}
	if c.Tombstones < 0 {
		bad("tombstones", "must not be negative")
	}
	return errors.Join(append(errs, post.ValidateTransfer(c.Compress, c.Timeout))...)
}

// Defaults are the delivery settings for the bulk API.
func (c *Config) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 512, MaxBytes: 4 << 20, Concurrency: 2}
}

// Open makes the sink. Secrets and files are first read by Write, so one that is missing pauses this sink and no other.
func (c *Config) Open(_ context.Context, o sinks.Options) (sinks.Sink, error) {
	u, err := post.Address("url", c.URL, "")
	if err != nil {
		return nil, err
	}
	names, err := c.names()
	if err != nil {
		return nil, err
	}
	r := sinks.NewMetrics(o.Registerer, "elasticsearch")
	s := &sink{
		url: u, names: names, state: c.Mode == State, create: c.Create, tombstones: c.Tombstones.Std(), cluster: o.Cluster, format: o.Format, log: o.Logger,
		preparing: solo.New(), opened: time.Now(),
		metrics: metrics{
			duplicates: r.Counter("duplicates_total", "Events that mode history did not write, since the index had them already."),
			superseded: r.Counter("superseded_total", "Events that mode state did not write, since the index has a later state of their object."),
			expired:    r.CounterVec("expiries_total", "Requests that delete the documents of objects that were deleted long ago, by result.", "result"),
		},
	}
	responses := r.CounterVec("responses_total", "Requests by the status of the answer; error if there was none.", "code")
	s.client = post.New(post.Options{
		Key: "url", Host: u.Hostname(), Headers: c.Headers, APIKey: c.APIKey, BasicAuth: c.BasicAuth, Dir: o.Dir, MaySend: o.MaySend, TLS: c.TLS,
		Timeout: c.Timeout.Std(), Gzip: c.Compress == post.Gzip, MaxAnswer: maxAnswer, Responses: responses,
	})
	return s, r.Err()
}

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct {
	duplicates, superseded prometheus.Counter
	expired                *prometheus.CounterVec
}

// indexOf appends the index for an event.
func (s *sink) indexOf(dst []byte, e *event.Event) []byte {
	start := len(dst)
	dst = s.names.Append(dst, e, appendName)
	if len(dst) > start+maxIndex {
		dst = dst[:start+maxIndex]
	}
	return dst
}
