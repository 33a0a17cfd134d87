package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
)

// Config is the `plugin` block.
type Config struct {
	// URL of the program: unix:///run/sink.sock, or http or https.
	URL string `json:"url"`

	// Headers to add: text, or a secret {env: NAME} or {file: PATH}.
	Headers map[string]sinks.Header `json:"headers,omitempty"`

	// Insecure allows credentials in plain text: in a header here, and on the way to an
	// http:// URL beyond loopback.
	Insecure bool `json:"insecure,omitempty"`

	// TLS names the files to trust and to present.
	TLS sinks.TLS `json:"tls,omitzero"`

	// Timeout of one request, from dialling to the end of the answer.
	Timeout sinks.Duration `json:"timeout,omitempty" jsonschema:"type=string"`
}

var _ sinks.Config = (*Config)(nil)

// NewConfig returns the block with its defaults.
func NewConfig() *Config { return &Config{Timeout: sinks.Duration(30 * time.Second)} }

const (
	socketScheme = "unix://" // begins the URL of a Unix socket
	maxSocket    = 107       // bytes of its path, on Linux
)

// address returns the URL of requests, and the path of the socket if there is one.
func (c *Config) address() (to *url.URL, socket string, err error) {
	socket, isSocket := strings.CutPrefix(c.URL, socketScheme)
	if !isSocket {
		to, err = post.Address("url", c.URL, "unix:///run/sink.sock")
		return to, "", err
	}
	if !path.IsAbs(socket) || strings.ContainsRune(socket, 0) {
		return nil, "", &sinks.FieldError{Path: "url", Msg: "must name a socket by its absolute path, for example unix:///run/sink.sock"}
	}
	if socket = path.Clean(socket); len(socket) > maxSocket {
		return nil, "", &sinks.FieldError{Path: "url", Msg: fmt.Sprintf("names a socket by a path of %d bytes; the operating system allows %d", len(socket), maxSocket)}
	}
	return &url.URL{Scheme: "http", Host: "localhost", Path: "/"}, socket, nil
}

// Validate checks the block.
func (c *Config) Validate() error {
	_, socket, err := c.address()
	errs := []error{err, c.TLS.Validate("tls"), post.ValidateHeaders("url", c.URL, c.Headers, c.Insecure)}
	if socket != "" && !c.TLS.IsZero() {
		errs = append(errs, &sinks.FieldError{Path: "tls", Msg: "a Unix socket has no TLS: remove it"})
	}
	if c.Timeout <= 0 {
		errs = append(errs, &sinks.FieldError{Path: "timeout", Msg: "must be above 0"})
	}
	return errors.Join(errs...)
}

// Defaults are the delivery settings for programs.
func (c *Config) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 100, MaxBytes: 1 << 20, Concurrency: 2}
}

// Open makes the sink. Secrets and files are first read by Write, so one that is missing pauses this sink and no other.
func (c *Config) Open(_ context.Context, o sinks.Options) (sinks.Sink, error) {
	if err := o.Format.RequireText(); err != nil {
		return nil, err
	}
	return c.open(o)
}

func (c *Config) open(o sinks.Options) (*sink, error) {
	to, socket, err := c.address()
	if err != nil {
		return nil, err
	}
	r := sinks.NewMetrics(o.Registerer, "plugin")
	s := &sink{url: to, format: o.Format, join: o.Join}
	s.client = post.New(post.Options{
		Key: "url", Host: to.Hostname(), Socket: socket, Headers: c.Headers, Dir: o.Dir, TLS: c.TLS, Timeout: c.Timeout.Std(),
		Responses: r.CounterVec("responses_total", "Requests by the status of the answer; error if there was none.", "code"),
	})
	return s, r.Err()
}
