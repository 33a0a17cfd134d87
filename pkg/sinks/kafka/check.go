package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

// topicState is what the sink knows about a topic. The sink's lock guards it.
type topicState struct {
	looked time.Time // when it was looked at; zero: not since the last failure
	limit  int       // largest record in bytes, then
	index  *index    // of mode state; nil until a replayed event needs it
}

// lookAgain is how long a limit of a topic is taken for granted: an operator may raise it.
const lookAgain = time.Minute

// checkedLocked reports whether the topic was looked at since the last failure and, if it has a limit of its own, not long ago.
// The caller holds the sink's lock.
func (s *sink) checkedLocked(topic string) bool {
	t := s.topics[topic]
	return t != nil && !t.looked.IsZero() && (t.limit == int(s.config.MaxMessageBytes) || time.Since(t.looked) < lookAgain)
}

// The topic settings that the sink reads.
const (
	cleanupPolicy  = "cleanup.policy"
	minInsync      = "min.insync.replicas"
	maxMessage     = "max.message.bytes"
	uncleanLeaders = "unclean.leader.election.enable"
)

// topicLocked returns the state of a topic.
func (s *sink) topicLocked(topic string) *topicState {
	t := s.topics[topic]
	if t == nil {
		t = &topicState{limit: int(s.config.MaxMessageBytes)}
		s.topics[topic] = t
	}
	return t
}

// check looks at a topic, makes it if that is asked for and it is missing, and warns
// about what it may lose. The reason why a topic cannot be written to shows better here than in
// the failure of a record. See checkedLocked.
func (s *sink) check(ctx context.Context, c *kgo.Client, topic string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.config.Timeout.Std(), wire.ErrNoAnswer)
	defer cancel()
	replicas, err := s.look(ctx, c, topic)
	if errors.Is(err, kerr.UnknownTopicOrPartition) && s.config.Create != nil {
		if err = s.create(ctx, c, topic); err == nil {
			replicas, err = s.look(ctx, c, topic)
		}
		if errors.Is(err, kerr.UnknownTopicOrPartition) { // not every broker knows the new topic yet
			return fmt.Errorf("topic %s was created and is not known everywhere: %w", topic, err)
		}
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return sinks.Pause(fmt.Errorf("topic %s does not exist: make it, or set create", topic))
	}
	if err != nil {
		return s.classify(ctx, fmt.Errorf("look at topic %s: %w", topic, err))
	}
	settings, err := s.describe(ctx, c, topic)
	switch {
	case ctx.Err() != nil:
		return s.classify(ctx, err)
	case err != nil:
		s.warnOnce(topic, "the settings of the topic cannot be read, so that what it may lose is not known", "error", s.hide(err))
	}
	s.judge(topic, replicas, settings)
	limit := int(s.config.MaxMessageBytes)
	if own, err := strconv.Atoi(settings[maxMessage]); err == nil && own-batchOverhead < limit {
		limit = max(own-batchOverhead, 1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topicLocked(topic)
	t.looked, t.limit = time.Now(), limit
	return nil
}

// batchOverhead is what a record batch adds to its first record.
const batchOverhead = 128

func (s *sink) look(ctx context.Context, c *kgo.Client, topic string) (replicas int, err error) {
	meta, err := s.metadata(ctx, c, topic)
	if err != nil {
		return 0, err
	}
	for i, p := range meta.Partitions {
		if n := len(p.Replicas); i == 0 || n < replicas {
			replicas = n
		}
	}
	return replicas, nil
}

func (s *sink) metadata(ctx context.Context, c *kgo.Client, topic string) (*kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = new(topic)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, fmt.Errorf("%d topics in the answer for one", len(resp.Topics))
	}
	return &resp.Topics[0], kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

func (s *sink) describe(ctx context.Context, c *kgo.Client, topic string) (map[string]string, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	r.ConfigNames = []string{cleanupPolicy, minInsync, maxMessage, uncleanLeaders}
	req.Resources = append(req.Resources, r)
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return nil, err
		}
		for _, c := range r.Configs {
			if c.Value != nil {
				settings[c.Name] = *c.Value
			}
		}
	}
	return settings, nil
}

// judge warns once about each way in which the topic may lose what it acknowledged.
func (s *sink) judge(topic string, replicas int, settings map[string]string) {
	if replicas == 1 {
		s.warnOnce(topic, "the topic has one replica: what it acknowledges is lost with its broker")
	} else if n, err := strconv.Atoi(settings[minInsync]); err == nil && n < 2 && s.config.Acks == acksAll {
		s.warnOnce(topic, "min.insync.replicas of the topic is below 2: the leader alone may acknowledge an event and lose it", "minInsyncReplicas", n)
	}
	if settings[uncleanLeaders] == "true" {
		s.warnOnce(topic, "unclean.leader.election.enable of the topic is true: a replica that lags may become the leader and drop acknowledged events")
	}
	policy, known := settings[cleanupPolicy]
	if !known || s.config.Mode != State {
		return
	}
	policies := strings.Split(strings.ReplaceAll(policy, " ", ""), ",")
	switch {
	case !slices.Contains(policies, "compact"):
		s.warnOnce(topic, "the topic is not compacted: the state of an object is lost with its retention; set cleanup.policy=compact", "cleanupPolicy", policy)
	case slices.Contains(policies, "delete"):
		s.warnOnce(topic, "the topic deletes by age too: the state of an object that does not change is lost; set cleanup.policy=compact", "cleanupPolicy", policy)
	}
}

func (s *sink) create(ctx context.Context, c *kgo.Client, topic string) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = int32(s.config.Timeout.Std().Milliseconds())
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = topic, -1, -1
	if n := s.config.Create.Partitions; n > 0 {
		t.NumPartitions = int32(n)
	}
	if n := s.config.Create.Replicas; n > 0 {
		t.ReplicationFactor = int16(n)
	}
	set := func(name, value string) {
		setting := kmsg.NewCreateTopicsRequestTopicConfig()
		setting.Name, setting.Value = name, new(value)
		t.Configs = append(t.Configs, setting)
	}
	for name, value := range s.config.Create.Config {
		set(name, value)
	}
	if s.config.Mode == State && s.config.Create.Config[cleanupPolicy] == "" {
		set(cleanupPolicy, "compact")
	}
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		return fmt.Errorf("create it: %w", err)
	}
	for _, t := range resp.Topics {
		err := kerr.ErrorForCode(t.ErrorCode)
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			if t.ErrorMessage != nil {
				err = fmt.Errorf("%w: %q", err, *t.ErrorMessage)
			}
			return fmt.Errorf("create it: %w", err)
		}
	}
	s.log.Info("topic created", "topic", topic)
	return nil
}

// warnOnce logs a message about a topic the first time in the sink's life.
func (s *sink) warnOnce(topic, msg string, args ...any) {
	s.warnings.Once(topic, msg, append([]any{"topic", topic}, args...)...)
}

// refusals are the answers of brokers that only an operator changes.
var refusals = []error{
	kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.GroupAuthorizationFailed,
	kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState, kerr.SecurityDisabled,
	kerr.UnknownTopicOrPartition, kerr.InvalidTopicException, kerr.PolicyViolation, kerr.InvalidConfig,
	kerr.InvalidPartitions, kerr.InvalidReplicationFactor, kerr.UnsupportedVersion, kerr.UnsupportedForMessageFormat,
	kerr.UnsupportedCompressionType,
}

// classify returns the class of an error of the client or a broker. An error of a context that
// ended becomes its cause.
func (s *sink) classify(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return err
	}
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		// Without the broker's text, which may repeat the credentials.
		return sinks.Pause(fmt.Errorf("the broker refuses the credentials of sasl: %w", kerr.SaslAuthenticationFailed))
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return sinks.TooLarge(err)
	case errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.InvalidTimestamp):
		return sinks.Poison(err)
	}
	for _, refusal := range refusals {
		if errors.Is(err, refusal) {
			return sinks.Pause(err)
		}
	}
	if wire.Untrusted(err) {
		return sinks.Pause(err)
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the broker ended the connection; it may want TLS, or no TLS, or other SASL credentials", err)
	}
	return err
}
