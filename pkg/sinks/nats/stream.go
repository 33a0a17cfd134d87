package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

// check looks at the stream, makes it if that is asked for and it is missing, and
// warns about what it may lose. It asks once a connection, again after a
// failure, which it then explains better than a publish can, and every minute if the stream has a limit.
func (s *sink) check(ctx context.Context, c *session) error {
	if c.checked.Load() && !c.limit.Load().old() {
		return nil
	}
	hearing, cancel := c.alarm.hear(ctx)
	defer cancel()
	hearing, cancelTimeout := context.WithTimeoutCause(hearing, s.config.Timeout.Std(), wire.ErrNoAnswer)
	defer cancelTimeout()

	name := s.stream.Stream
	stream, err := c.js.Stream(hearing, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) && s.stream.Create {
		if stream, err = c.js.CreateStream(hearing, s.newStream()); err == nil {
			s.log.Info("stream created", "stream", name, "subjects", s.stream.Subjects)
		}
	}
	if hearing.Err() != nil && ctx.Err() == nil {
		err = context.Cause(hearing)
	}
	switch {
	case err == nil:
	case errors.Is(err, client.ErrPermissionViolation):
		// Publishing is all that is needed; a user with only that permission is right.
		s.warnings.Once("", "the stream cannot be looked at, so that what it may lose is not known", "stream", name, "error", s.sent.Error(err))
		c.limit.Store(nil)
		c.checked.Store(true)
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return sinks.Pause(fmt.Errorf("stream %s does not exist: make it, or set jetstream.create", name))
	case errors.Is(err, client.ErrNoResponders), errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		err = fmt.Errorf("JetStream does not answer for stream %s: is it enabled for the server and the account? %w", name, err)
		if s.seen.Load() { // it was there: a cluster that has no leader now
			return err
		}
		return sinks.Pause(err)
	default:
		return classify(fmt.Errorf("look at stream %s: %w", name, err))
	}
	s.seen.Store(true)
	return s.accept(c, stream.CachedInfo())
}

// explain returns the reason why no stream answered a publish: in a cluster that elects a leader
// one soon will; otherwise the stream is gone or does not take the subject. It asks
// about the stream once a batch.
func (p *publication) explain(ctx context.Context, subject string, err error) error {
	s, c := p.sink, p.session
	if !p.asked {
		p.asked = true
		c.checked.Store(false)
		p.streamErr = s.check(ctx, c)
	}
	if p.streamErr != nil {
		return p.streamErr
	}
	taken := c.subjects.Load()
	if taken == nil || slices.ContainsFunc(*taken, func(pattern string) bool { return matches(pattern, subject) }) {
		return err
	}
	return sinks.Pause(fmt.Errorf("stream %s takes %q and not subject %s", s.stream.Stream, *taken, subject))
}

func (s *sink) accept(c *session, info *jetstream.StreamInfo) error {
	cfg := &info.Config
	switch {
	case cfg.NoAck:
		return sinks.Pause(fmt.Errorf("stream %s acknowledges nothing (no_ack): take another, or leave jetstream out", cfg.Name))
	case cfg.Sealed:
		return sinks.Pause(fmt.Errorf("stream %s is sealed", cfg.Name))
	case cfg.Mirror != nil:
		return sinks.Pause(fmt.Errorf("stream %s is a mirror: publish to its origin", cfg.Name))
	}
	if cfg.Storage == jetstream.MemoryStorage {
		s.warnings.Once("", "the stream is kept in memory: what it acknowledges is lost when its servers stop", "stream", cfg.Name)
	}
	if cfg.PersistMode == jetstream.AsyncPersistMode {
		s.warnings.Once("", "the stream acknowledges events before it writes them (persist_mode: async): the last ones are lost when its server is killed", "stream", cfg.Name)
	}
	if cfg.Retention == jetstream.InterestPolicy {
		s.warnings.Once("", "the stream drops what no consumer wants (retention: interest): what it acknowledges is lost while it has no consumer", "stream", cfg.Name)
	}
	if info.Cluster != nil && info.Cluster.Name != "" && cfg.Replicas <= 1 {
		s.warnings.Once("", "the stream has one replica in a cluster: what it acknowledges may be lost with a server", "stream", cfg.Name)
	}
	if cfg.Duplicates < 2*time.Minute {
		s.warnings.Once("", "duplicate window of the stream is short: an event that is sent again later than that is stored twice", "stream", cfg.Name, "duplicateWindow", cfg.Duplicates)
	}
	var own *limit
	if cfg.MaxMsgSize > 0 {
		own = &limit{int64(cfg.MaxMsgSize), time.Now()}
	}
	c.limit.Store(own)
	c.subjects.Store(&cfg.Subjects)
	c.checked.Store(true)
	return nil
}

func (s *sink) newStream() jetstream.StreamConfig {
	storage := jetstream.FileStorage
	if s.stream.Storage == "memory" {
		storage = jetstream.MemoryStorage
	}
	cfg := jetstream.StreamConfig{
		Name: s.stream.Stream, Subjects: s.stream.Subjects, Storage: storage, Replicas: max(s.stream.Replicas, 1),
		MaxAge: s.stream.MaxAge.Std(), MaxBytes: int64(s.stream.MaxBytes), Duplicates: s.stream.DuplicateWindow.Std(),
	}
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, -1)
	if cfg.Duplicates == 0 {
		cfg.Duplicates = 2 * time.Minute
		if cfg.MaxAge > 0 { // the server wants the window within the age
			cfg.Duplicates = min(cfg.Duplicates, cfg.MaxAge)
		}
	}
	return cfg
}

// Codes of the JetStream API that the client has no name for.
const (
	codeStreamNotMatch jetstream.ErrorCode = 10060 // the subject belongs to another stream
	codeSealed         jetstream.ErrorCode = 10109
	codeLongHeader     jetstream.ErrorCode = 10097 // in format cloudevents-binary, of an object with a name that is as long
	codeStoreFailed    jetstream.ErrorCode = 10077 // among others: the stream is full and discards new messages
)

func classify(err error) error {
	for _, target := range [...]error{
		client.ErrAuthorization, client.ErrAuthExpired, client.ErrAuthRevoked, client.ErrAccountAuthExpired,
		client.ErrPermissionViolation, client.ErrSecureConnRequired, client.ErrSecureConnWanted,
		client.ErrHeadersNotSupported, client.ErrNkeysNotSupported,
	} {
		if errors.Is(err, target) {
			return sinks.Pause(err)
		}
	}
	switch {
	case errors.Is(err, client.ErrMaxPayload):
		return sinks.TooLarge(err)
	case errors.Is(err, client.ErrBadSubject):
		return sinks.Poison(err)
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return err
	}
	switch api.ErrorCode {
	case jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return sinks.TooLarge(err)
	case codeLongHeader:
		return sinks.Poison(err)
	case codeStreamNotMatch, codeSealed, jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return sinks.Pause(err)
	case codeStoreFailed:
		return fmt.Errorf("the stream could not store the event; it may be full: %w", err)
	}
	return err
}
