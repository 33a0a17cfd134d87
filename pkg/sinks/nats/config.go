package nats

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
	"github.com/watcherd/watcherd/pkg/sinks/nats/natsclient/natsconfig"
)

// Config is the `nats` block.
type Config struct {
	// URL of a server: nats://, tls://, ws:// or wss://, without user and password.
	URL string `json:"url,omitempty"`

	// URLs of several servers of a cluster, instead of `url`.
	URLs []string `json:"urls,omitempty"`

	// Subject to publish to. Tokens: {cluster} {group} {version} {resource}
	// {namespace} {name} {type}. Values are escaped: each is one subject token.
	Subject string `json:"subject,omitempty" jsonschema:"default=k8s.{cluster}.{group}.{resource}.{namespace}.{name}"`

	// JetStream names the stream; left out, events go to core NATS, which
	// acknowledges nothing.
	JetStream *JetStream `json:"jetstream,omitempty"`

	// User authenticates together with Password. One way to authenticate at most.
	User string `json:"user,omitempty"`

	// Password of User.
	Password *sinks.Secret `json:"password,omitempty"`

	// Token authenticates.
	Token *sinks.Secret `json:"token,omitempty"`

	// CredentialsFile authenticates with a user's JWT and key, as nsc writes them.
	CredentialsFile string `json:"credentialsFile,omitempty"`

	// NkeySeedFile authenticates with an nkey.
	NkeySeedFile string `json:"nkeySeedFile,omitempty"`

	// TLS names the files to trust and to present; any of them demands TLS.
	TLS sinks.TLS `json:"tls,omitzero"`

	// Timeout of a connection attempt, and of an acknowledgement.
	Timeout sinks.Duration `json:"timeout,omitempty" jsonschema:"type=string,default=10s"`
}

// JetStream is the `jetstream` block.
type JetStream struct {
	// Stream that must take the events.
	Stream string `json:"stream"`

	// Create makes the stream when it is missing; the keys below are for that alone.
	Create bool `json:"create,omitempty"`

	// Subjects of the new stream. Default: all that `subject` can be.
	Subjects []string `json:"subjects,omitempty"`

	// Replicas of the new stream.
	Replicas int `json:"replicas,omitempty" jsonschema:"default=1"`

	// Storage of the new stream: file or memory.
	Storage string `json:"storage,omitempty" jsonschema:"enum=file,enum=memory,default=file"`

	// MaxAge of an event in the new stream; 0 is no bound.
	MaxAge sinks.Duration `json:"maxAge,omitempty" jsonschema:"type=string"`

	// MaxBytes of the new stream; 0 is no bound.
	MaxBytes sinks.Bytes `json:"maxBytes,omitempty" jsonschema:"oneof_type=string;integer"`

	// DuplicateWindow is how long the new stream remembers ids.
	DuplicateWindow sinks.Duration `json:"duplicateWindow,omitempty" jsonschema:"type=string,default=2m"`
}

var _ sinks.Config = (*Config)(nil)

// NewConfig returns the block with its defaults.
func NewConfig() *Config {
	return &Config{
		Subject: "k8s.{cluster}.{group}.{resource}.{namespace}.{name}",
		Timeout: sinks.Duration(10 * time.Second),
	}
}

// Validate checks the block.
func (c *Config) Validate() error {
	var errs []error
	bad := func(path, msg string) { errs = append(errs, &sinks.FieldError{Path: path, Msg: msg}) }
	if _, err := parseSubject(c.Subject); err != nil {
		bad("subject", err.Error())
	}
	for path, secret := range map[string]*sinks.Secret{"password": c.Password, "token": c.Token} {
		if secret != nil {
			errs = append(errs, secret.Validate(path))
		}
	}
	connection := c.connection()
	errs = append(errs, connection.Validate())
	if c.JetStream != nil {
		errs = append(errs, c.JetStream.validate())
	}
	return errors.Join(errs...)
}

// connection is how to connect, without the sink's name, folder and log.
func (c *Config) connection() natsconfig.Config {
	out := natsconfig.Config{
		URL: c.URL, URLs: c.URLs, User: c.User, CredentialsFile: c.CredentialsFile, NkeySeedFile: c.NkeySeedFile, TLS: c.TLS, Timeout: c.Timeout.Std(),
	}
	if c.Password != nil {
		out.Password = *c.Password
	}
	if c.Token != nil {
		out.Token = *c.Token
	}
	return out
}

// streamName is what the server takes and a file name can hold.
var streamName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,255}$`)

func (j *JetStream) validate() error {
	var errs []error
	bad := func(path, msg string) {
		errs = append(errs, &sinks.FieldError{Path: "jetstream." + path, Msg: msg})
	}
	if !streamName.MatchString(j.Stream) {
		bad("stream", "required: letters, digits, - and _")
	}
	if !j.Create && (len(j.Subjects) > 0 || j.Replicas != 0 || j.Storage != "" || j.MaxAge != 0 || j.MaxBytes != 0 || j.DuplicateWindow != 0) {
		bad("create", "must be true for the settings of a new stream to have a meaning; an existing one is never changed")
	}
	if j.Replicas < 0 || j.Replicas > 5 {
		bad("replicas", "must be from 1 to 5")
	}
	switch j.Storage {
	case "", "file", "memory":
	default:
		bad("storage", "file or memory is wanted")
	}
	if j.MaxAge < 0 || j.MaxBytes < 0 || j.DuplicateWindow < 0 {
		bad("maxAge", "maxAge, maxBytes and duplicateWindow must not be negative")
	}
	return errors.Join(errs...)
}

// Defaults are the delivery settings for NATS: batches whose publishes are under
// way together, on one connection.
func (c *Config) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 256, MaxBytes: 4 << 20, Concurrency: 1}
}

// TakesHeartbeats implements sinks.HeartbeatTaker.
func (*Config) TakesHeartbeats() bool { return true }

// Open makes the sink. It connects with the first Write.
func (c *Config) Open(_ context.Context, o sinks.Options) (sinks.Sink, error) {
	subject, err := parseSubject(c.Subject)
	if err != nil {
		return nil, &sinks.FieldError{Path: "subject", Msg: err.Error()}
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	own := *c
	own.URLs, own.Password, own.Token = slices.Clone(c.URLs), clone(c.Password), clone(c.Token)
	s := &sink{
		config: own,
		name:   o.Name, dir: o.Dir, format: o.Format,
		subject: subject, log: o.Logger, warnings: wire.Warnings{Log: o.Logger}, metrics: m, connecting: solo.New(),
	}
	s.unclear.Store(time.Now().UnixNano())
	if c.JetStream != nil {
		stream := *c.JetStream
		s.stream = &stream
		stream.Subjects = slices.Clone(stream.Subjects)
		if len(stream.Subjects) == 0 {
			stream.Subjects = []string{subject.wildcard()}
		}
	}
	return s, nil
}

func clone(s *sinks.Secret) *sinks.Secret {
	if s == nil {
		return nil
	}
	own := *s
	return &own
}
