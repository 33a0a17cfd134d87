package config

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

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
	// Number of parallel lanes. Each object belongs to one lane, so its order holds. Default: the kind's own.
	Concurrency *int `json:"concurrency,omitempty" jsonschema:"minimum=1,maximum=256"`
	// Handling of an event that exceeds the destination's size limit. deadLetter: it becomes a dead letter. truncate: it is cut, to the metadata of its object if necessary, and marked as truncated.
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
	// Time that an incomplete batch waits for more events.
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
