package config

import (
	"errors"
	"mime"
	"strings"
	"time"

	"github.com/watcherd/watcherd/config/internal/strict"
)

// Bounds of delivery. They keep a slip of the finger from taking all memory.
const (
	maxBatchEvents = 10_000
	maxConcurrency = 256
	maxBatchWait   = 5 * time.Minute
	maxRateEvents  = 1_000_000
	maxRatePeriod  = 24 * time.Hour
)

func (k *checker) sinks() {
	c := k.config
	k.names("sinks", len(c.Sinks), func(i int) string { return c.Sinks[i].Name })
	for i := range c.Sinks {
		s, path := &c.Sinks[i], strict.Index("sinks", i)
		k.oneOf(path+".format", s.Format, FormatCloudEvents, FormatCloudEventsBinary, FormatJSON)
		k.oneOf(path+".onOversize", s.OnOversize, OversizeDeadLetter, OversizeTruncate)
		k.oneOf(path+".startFrom", s.StartFrom, StartLatest, StartSnapshot, StartEarliest)
		k.body(path, s)
		k.delivery(path, s)
		k.settings(path, s)
	}
}

// body checks the content type. The expression is compiled by others.
func (k *checker) body(path string, s *Sink) {
	if s.ContentType == "" {
		return
	}
	k.require(s.Body != "", path+".contentType", "is for body; the encodings of format have their own")
	_, _, err := mime.ParseMediaType(s.ContentType)
	k.require(err == nil, path+".contentType", "%s is not a media type such as application/json", quoted(s.ContentType))
}

func (k *checker) delivery(path string, s *Sink) {
	if n := s.Batch.MaxEvents; n != nil {
		k.require(*n >= 1 && *n <= maxBatchEvents, path+".batch.maxEvents", "must be from 1 to %d", maxBatchEvents)
	}
	if q := s.Batch.MaxBytes; q != nil {
		k.require(q.Value() > 0, path+".batch.maxBytes", "must be above 0")
	}
	if d := s.Batch.MaxWait; d != nil {
		k.require(*d >= 0 && *d <= maxBatchWait, path+".batch.maxWait", "must be from 0s to %s", maxBatchWait)
	}
	if n := s.Concurrency; n != nil {
		k.require(*n >= 1 && *n <= maxConcurrency, path+".concurrency", "must be from 1 to %d", maxConcurrency)
	}
	if r := s.RateLimit; r != nil {
		k.require(r.Events >= 1 && r.Events <= maxRateEvents, path+".rateLimit.events", "must be from 1 to %d", maxRateEvents)
		k.require(r.Per > 0 && r.Per <= maxRatePeriod, path+".rateLimit.per", "must be above 0s, and at most %s", maxRatePeriod)
	}
	k.require(s.Heartbeat == 0 || s.Heartbeat >= time.Second, path+".heartbeat", "must be at least 1s")
	k.require(s.Heartbeat == 0 || s.Body == "", path+".heartbeat", "cannot be combined with body: heartbeats are sent in the sink's format")
	k.require(s.Retry.Initial > 0, path+".retry.initial", "must be above 0")
	k.require(s.Retry.Max >= s.Retry.Initial, path+".retry.max", "must not be below retry.initial (%s)", s.Retry.Initial)
	k.require(s.Retry.PoisonAttempts >= 1, path+".retry.poisonAttempts", "must be at least 1")
}

// settings lets the kind check its own block.
func (k *checker) settings(path string, s *Sink) {
	if s.Kind == "" {
		k.report(path, "the sink has no kind; beside its other keys it needs one of %s", strings.Join(k.config.source.kinds, ", "))
		return
	}
	v, ok := s.Settings.(interface{ Validate() error })
	if !ok {
		return
	}
	for _, err := range flatten(v.Validate()) {
		below, msg := fieldOf(err)
		at := path + "." + s.Kind
		switch {
		case strings.HasPrefix(below, "["):
			at += below
		case below != "":
			at += "." + below
		}
		within, ok := errors.AsType[interface {
			error
			Within() (line, column int)
		}](err)
		if !ok {
			k.report(at, "%s", msg)
			continue
		}
		if line, column := within.Within(); line > 0 && !k.full() {
			k.list = append(k.list, k.config.ErrorWithin(at, line, column, "%s", msg))
			continue
		}
		k.report(at, "%s", msg)
	}
}

func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	return all
}
