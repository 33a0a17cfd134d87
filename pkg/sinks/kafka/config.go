package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/aws"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

// Config is the `kafka` block.
type Config struct {
	// Brokers to begin with, each HOST:PORT. They name the others.
	Brokers []string `json:"brokers"`

	// Topic to write to. Tokens: {cluster} {group} {version} {resource} {namespace}.
	// What a topic's name cannot hold becomes _XX, its bytes in hexadecimal.
	Topic string `json:"topic,omitempty"`

	// Mode is history, which writes every event, or state: a compacted topic with the last
	// event of each object, and a tombstone for an object that is deleted or leaves the selection.
	Mode Mode `json:"mode,omitempty" jsonschema:"enum=history,enum=state"`

	// Acks is all, for every replica that is in sync, or leader, which loses what it
	// acknowledged when the leader fails.
	Acks string `json:"acks,omitempty" jsonschema:"enum=all,enum=leader"`

	// Idempotent lets brokers drop what a lost connection makes the client send twice. It
	// needs acks: all.
	Idempotent bool `json:"idempotent,omitempty"`

	// Compression of record batches: none, gzip, snappy, lz4 or zstd.
	Compression string `json:"compression,omitempty" jsonschema:"enum=none,enum=gzip,enum=snappy,enum=lz4,enum=zstd"`

	// MaxMessageBytes is the largest record, uncompressed. A topic with a lower
	// max.message.bytes lowers it.
	MaxMessageBytes sinks.Bytes `json:"maxMessageBytes,omitempty" jsonschema:"oneof_type=string;integer"`

	// Create makes a topic that is missing; left out, a missing topic pauses the sink.
	Create *Create `json:"create,omitempty"`

	// SASL authenticates the sink. Left out, it can only do so by a certificate of `tls`.
	SASL *SASL `json:"sasl,omitempty"`

	// TLS names the files to trust and to present; the block, an empty one too, demands TLS.
	TLS *sinks.TLS `json:"tls,omitempty"`

	// Timeout of a connection attempt, of a request, and of the delivery of a record.
	Timeout sinks.Duration `json:"timeout,omitempty" jsonschema:"type=string"`
}

// Mode is what a topic holds.
type Mode string

// The modes.
const (
	History Mode = "history" // every event
	State   Mode = "state"   // the last event of each object
)

// Create is the `create` block: how a missing topic is made. In mode state it is
// compacted.
type Create struct {
	// Partitions of the new topic; 0 is the broker's default.
	Partitions int `json:"partitions,omitempty"`

	// Replicas of each partition; 0 is the broker's default.
	Replicas int `json:"replicas,omitempty"`

	// Config has settings of the new topic, as Kafka spells them.
	Config map[string]string `json:"config,omitempty"`
}

// SASL is the `sasl` block.
type SASL struct {
	// Mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM.
	Mechanism string `json:"mechanism" jsonschema:"enum=PLAIN,enum=SCRAM-SHA-256,enum=SCRAM-SHA-512,enum=OAUTHBEARER,enum=AWS_MSK_IAM"`

	// User of PLAIN and SCRAM.
	User string `json:"user,omitempty"`

	// Password of User.
	Password *sinks.Secret `json:"password,omitempty"`

	// Token of OAUTHBEARER, read at each connection.
	Token *sinks.Secret `json:"token,omitempty"`

	// OAuth fetches the token of OAUTHBEARER at each connection, instead of Token.
	OAuth *sinks.OAuth `json:"oauth,omitempty"`

	// AccessKey of AWS_MSK_IAM. Left out, the environment gives the credentials: the variables
	// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a role for the service account, or EKS Pod Identity.
	AccessKey string `json:"accessKey,omitempty"`

	// SecretKey of AccessKey.
	SecretKey *sinks.Secret `json:"secretKey,omitempty"`

	// SessionToken of AccessKey, if it is a temporary one.
	SessionToken *sinks.Secret `json:"sessionToken,omitempty"`
}

var _ sinks.Config = (*Config)(nil)

// The mechanisms.
const (
	mechanismPlain    = "PLAIN"
	mechanismScram256 = "SCRAM-SHA-256"
	mechanismScram512 = "SCRAM-SHA-512"
	mechanismOAuth    = "OAUTHBEARER"
	mechanismMSK      = "AWS_MSK_IAM"
)

// The values of acks.
const (
	acksAll    = "all"
	acksLeader = "leader"
)

// Bounds of maxMessageBytes: room for the attributes, and what a broker can take.
const (
	minMessageBytes = 16 << 10
	maxMessageBytes = 64 << 20
)

// NewConfig returns the block with its defaults.
func NewConfig() *Config {
	return &Config{
		Topic:           "k8s.{resource}",
		Mode:            History,
		Acks:            acksAll,
		Idempotent:      true,
		Compression:     "snappy",
		MaxMessageBytes: 1e6, // below the brokers' default
		Timeout:         sinks.Duration(10 * time.Second),
	}
}

// problems collects what is wrong with a block.
type problems []error

func (p *problems) bad(path, msg string) { *p = append(*p, &sinks.FieldError{Path: path, Msg: msg}) }

func (p *problems) secret(path string, s *sinks.Secret) {
	if s != nil {
		*p = append(*p, s.Validate(path))
	}
}

// Validate checks the block.
func (c *Config) Validate() error {
	var p problems
	if len(c.Brokers) == 0 {
		p.bad("brokers", "required, for example [kafka-1.example.com:9092]")
	}
	for i, b := range c.Brokers {
		if !isBroker(b) {
			p.bad("brokers["+strconv.Itoa(i)+"]", "is not HOST:PORT, for example kafka-1.example.com:9092")
		}
	}
	if _, err := parseTopic(c.Topic, c.Mode); err != nil {
		p.bad("topic", err.Error())
	}
	if c.Mode != History && c.Mode != State {
		p.bad("mode", "must be history or state")
	}
	switch {
	case c.Acks != acksAll && c.Acks != acksLeader:
		p.bad("acks", "must be all or leader")
	case c.Acks == acksLeader && c.Idempotent:
		p.bad("idempotent", "needs acks: all; with acks: leader set idempotent: false")
	}
	if _, ok := codecs[c.Compression]; !ok {
		p.bad("compression", "must be none, gzip, snappy, lz4 or zstd")
	}
	if c.MaxMessageBytes < minMessageBytes || c.MaxMessageBytes > maxMessageBytes {
		p.bad("maxMessageBytes", "must be from 16Ki to 64Mi")
	}
	if c.Timeout <= 0 {
		p.bad("timeout", "must be above 0")
	}
	if c.Create != nil {
		c.Create.validate(&p, c.Mode)
	}
	if c.SASL != nil {
		c.SASL.validate(&p)
	}
	if c.TLS != nil {
		p = append(p, c.TLS.Validate("tls"))
	}
	return errors.Join(p...)
}

// isBroker reports whether text is HOST:PORT. A host that holds an @ or a / may be a URL with a password.
func isBroker(text string) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" || strings.ContainsAny(host, "@/ ") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

func (c *Create) validate(p *problems, mode Mode) {
	if c.Partitions < 0 || c.Partitions > 10_000 {
		p.bad("create.partitions", "must be from 1 to 10000, or left out for the broker's default")
	}
	if c.Replicas < 0 || c.Replicas > 100 {
		p.bad("create.replicas", "must be from 1 to 100, or left out for the broker's default")
	}
	if policy, ok := c.Config[cleanupPolicy]; ok && mode == State && policy != "compact" {
		p.bad("create.config", cleanupPolicy+" of mode state is compact")
	}
}

func (s *SASL) validate(p *problems) {
	password := s.User != "" || s.Password != nil
	bearer := s.Token != nil || s.OAuth != nil
	ofAWS := s.AccessKey != "" || s.SecretKey != nil || s.SessionToken != nil
	switch s.Mechanism {
	case mechanismPlain, mechanismScram256, mechanismScram512:
		if s.User == "" || s.Password == nil {
			p.bad("sasl.user", "mechanism "+s.Mechanism+" needs user and password")
		}
		password = false
	case mechanismOAuth:
		if (s.Token == nil) == (s.OAuth == nil) {
			p.bad("sasl.token", "mechanism "+s.Mechanism+" needs one of token and oauth")
		}
		bearer = false
	case mechanismMSK:
		*p = append(*p, s.aws().Validate())
		ofAWS = false
	default:
		p.bad("sasl.mechanism", "must be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM")
		return
	}
	if password || bearer || ofAWS {
		p.bad("sasl.mechanism", s.Mechanism+" has no use for the credentials of another mechanism: remove them")
	}
	p.secret("sasl.password", s.Password)
	p.secret("sasl.token", s.Token)
	if s.OAuth != nil {
		*p = append(*p, s.OAuth.Validate("sasl.oauth"))
	}
}

// aws is where AWS_MSK_IAM has its credentials from.
func (s *SASL) aws() *aws.Source {
	return &aws.Source{AccessKey: s.AccessKey, SecretKey: s.SecretKey, SessionToken: s.SessionToken, Path: "sasl."}
}

// Defaults are the delivery settings for Kafka. One lane: those of a sink take turns.
func (c *Config) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 500, MaxBytes: 4 << 20, Concurrency: 1}
}

// TakesHeartbeats implements sinks.HeartbeatTaker.
func (c *Config) TakesHeartbeats() bool { return c.Mode == History }

// Open makes the sink. It connects with the first Write.
func (c *Config) Open(_ context.Context, o sinks.Options) (sinks.Sink, error) {
	topic, err := parseTopic(c.Topic, c.Mode)
	if err != nil {
		return nil, &sinks.FieldError{Path: "topic", Msg: err.Error()}
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	s := &sink{
		config: c.clone(), name: o.Name, dir: o.Dir, format: o.Format, topic: topic,
		log: o.Logger, warnings: wire.Warnings{Log: o.Logger}, metrics: m, closing: solo.New(), reading: solo.New(), turn: make(chan struct{}, 1),
		topics: map[string]*topicState{},
	}
	if s.config.Acks == acksLeader {
		s.log.Warn("acks: leader loses events that were acknowledged when the leader of a partition fails: set acks: all")
	}
	if sasl := s.config.SASL; sasl != nil && s.config.TLS == nil && (sasl.Mechanism == mechanismPlain || sasl.Mechanism == mechanismOAuth) {
		s.log.Warn("the credentials of this mechanism cross the network in clear text: set tls", "mechanism", sasl.Mechanism)
	}
	return s, nil
}

// clone copies everything that the caller may change.
func (c *Config) clone() Config {
	own := *c
	own.Brokers = slices.Clone(c.Brokers)
	own.Create, own.SASL, own.TLS = clone(c.Create), clone(c.SASL), clone(c.TLS)
	if own.Create != nil {
		own.Create.Config = maps.Clone(own.Create.Config)
	}
	if s := own.SASL; s != nil {
		s.Password, s.Token, s.SecretKey, s.SessionToken = clone(s.Password), clone(s.Token), clone(s.SecretKey), clone(s.SessionToken)
		if s.OAuth = clone(s.OAuth); s.OAuth != nil {
			s.OAuth.ClientSecret, s.OAuth.Scopes = clone(s.OAuth.ClientSecret), slices.Clone(s.OAuth.Scopes)
		}
	}
	return own
}

func clone[T any](v *T) *T {
	if v == nil {
		return nil
	}
	own := *v
	return &own
}

// read returns the value of a secret; what names its key.
func read(what string, secret *sinks.Secret, dir string) (string, error) {
	v, err := secret.In(dir).Value()
	if err != nil {
		return "", sinks.Pause(fmt.Errorf("%s: %w", what, err))
	}
	return v, nil
}
