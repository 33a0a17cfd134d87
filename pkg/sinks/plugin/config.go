package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
)

// Config is the `plugin` block.
type Config struct {
	// URL of the program: unix:///run/sink.sock, or http or https.
	URL string `json:"url,omitempty" jsonschema:"oneof_required=url"`

	// Command starts the program, with its arguments, instead of url: it listens on the Unix socket that the
	// variable WATCHERD_SOCKET names, as {socket} does in an argument, and ends when its standard input does.
	// It is started with the first event, and again when it has ended.
	Command []string `json:"command,omitempty" jsonschema:"oneof_required=command"`

	// Env has variables of the program in addition to PATH, HOME, LANG, TZ and TMPDIR: text, or a secret {env: NAME} or {file: PATH}.
	Env map[string]sinks.Header `json:"env,omitempty"`

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

// variable is what the name of a variable may look like.
var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

const (
	socketScheme = "unix://" // begins the URL of a Unix socket
	maxSocket    = 107       // bytes of its path, on Linux
)

// address returns the URL of requests, and the path of the socket if there is one.
func (c *Config) address() (to *url.URL, socket string, err error) {
	if len(c.Command) > 0 {
		return &url.URL{Scheme: "http", Host: "localhost", Path: "/"}, "", nil
	}
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
	bad := func(path, msg string) { errs = append(errs, &sinks.FieldError{Path: path, Msg: msg}) }
	if (socket != "" || len(c.Command) > 0) && !c.TLS.IsZero() {
		bad("tls", "a Unix socket has no TLS: remove it")
	}
	switch {
	case len(c.Command) == 0 && len(c.Env) > 0:
		bad("env", "needs command: a program that watcherd does not start has its own variables")
	case len(c.Command) > 0 && c.URL != "":
		bad("command", "command and url exclude each other")
	case len(c.Command) > 0 && c.Command[0] == "":
		bad("command[0]", "must name a program")
	}
	for i, arg := range c.Command {
		if strings.ContainsRune(arg, 0) {
			bad(fmt.Sprintf("command[%d]", i), "must not have a NUL")
		}
	}
	for name, value := range c.Env {
		switch {
		case !variable.MatchString(name):
			bad("env."+name, "must be the name of a variable")
		case strings.ContainsRune(value.Text, 0):
			bad("env."+name, "must not have a NUL")
		case !value.Secret.IsZero():
			errs = append(errs, value.Secret.Validate("env."+name))
		}
	}
	if c.Timeout <= 0 {
		bad("timeout", "must be above 0")
	}
	return errors.Join(errs...)
}

// Starts returns the key of the program that the sink starts, "" if there is none.
func (c *Config) Starts() string {
	if len(c.Command) == 0 {
		return ""
	}
	return "command"
}

// Defaults are the delivery settings for programs.
func (c *Config) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 100, MaxBytes: 1 << 20, Concurrency: 2}
}

// Open makes the sink. The program is started by the first Write. Secrets and files are first read by Write, so one that is missing pauses this sink and no other.
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
	if len(c.Command) > 0 {
		s.program = &program{
			command: slices.Clone(c.Command), env: maps.Clone(c.Env), dir: o.Dir, log: o.Logger, timeout: c.Timeout.Std(), turn: make(chan struct{}, 1),
		}
		if s.program.folder, err = os.MkdirTemp("", "watcherd-plugin-"); err != nil {
			return nil, fmt.Errorf("folder of the program's socket: %w", err)
		}
		socket = s.program.socket()
	}
	options := post.Options{
		Key: "url", Host: to.Hostname(), Socket: socket, Headers: c.Headers, Dir: o.Dir, MaySend: o.MaySend, TLS: c.TLS, Timeout: c.Timeout.Std(),
		Responses: r.CounterVec("responses_total", "Requests by the status of the answer; error if there was none.", "code"),
	}
	if s.program != nil {
		options.Sign = func(*http.Request, []byte) (hidden []string, err error) { return s.program.sent.Note(), nil }
	}
	s.client = post.New(options)
	return s, r.Err()
}
