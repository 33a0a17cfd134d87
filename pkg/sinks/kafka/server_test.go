package kafka_test

import (
	"context"
	"crypto/tls"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/kafka"
)

const (
	patience = time.Minute
	topic    = "k8s.deployments" // of the events of sinktest, by default
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// configFor is a block for a server, with a timeout that fits a test.
func configFor(addr string) *kafka.Config {
	c := kafka.NewConfig()
	c.Brokers, c.Timeout = []string{addr}, sinks.Duration(5*time.Second)
	return c
}

// observer is a client beside the sink's.
type observer struct {
	t       *testing.T
	options []kgo.Opt
}

func observe(t *testing.T, addr string, options ...kgo.Opt) *observer {
	return &observer{t: t, options: append([]kgo.Opt{kgo.SeedBrokers(addr)}, options...)}
}

// secured are the options for a server with TLS and SCRAM-SHA-512.
func secured(ca *testca.Authority, user, password string) []kgo.Opt {
	return []kgo.Opt{
		kgo.DialTLSConfig(&tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12}),
		kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()),
	}
}

// do runs f with a client, again until the server answers.
func (o *observer) do(f func(ctx context.Context, c *kgo.Client) error) {
	o.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := o.once(f)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			o.t.Fatal(err)
		}
	}
}

func (o *observer) once(f func(ctx context.Context, c *kgo.Client) error) error {
	ctx, cancel := context.WithTimeout(o.t.Context(), 5*time.Second)
	defer cancel()
	c, err := kgo.NewClient(o.options...)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(ctx, c)
}

// makeTopic makes a topic with settings in pairs.
func (o *observer) makeTopic(name string, partitions int32, settings ...string) {
	o.t.Helper()
	o.do(func(ctx context.Context, c *kgo.Client) error {
		req := kmsg.NewPtrCreateTopicsRequest()
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
		for i := 0; i < len(settings); i += 2 {
			s := kmsg.NewCreateTopicsRequestTopicConfig()
			s.Name, s.Value = settings[i], &settings[i+1]
			topic.Configs = append(topic.Configs, s)
		}
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); !errors.Is(err, kerr.TopicAlreadyExists) {
			return err
		}
		return nil
	})
}

// mayWrite grants or revokes the right to write to topics.
func (o *observer) mayWrite(principal string, yes bool) {
	o.t.Helper()
	o.do(func(ctx context.Context, c *kgo.Client) error {
		if yes {
			req := kmsg.NewPtrCreateACLsRequest()
			a := kmsg.NewCreateACLsRequestCreation()
			a.ResourceType, a.ResourceName, a.ResourcePatternType = kmsg.ACLResourceTypeTopic, "*", kmsg.ACLResourcePatternTypeLiteral
			a.Principal, a.Host, a.Operation, a.PermissionType = principal, "*", kmsg.ACLOperationWrite, kmsg.ACLPermissionTypeAllow
			req.Creations = append(req.Creations, a)
			resp, err := req.RequestWith(ctx, c)
			if err != nil {
				return err
			}
			return kerr.ErrorForCode(resp.Results[0].ErrorCode)
		}
		req := kmsg.NewPtrDeleteACLsRequest()
		f := kmsg.NewDeleteACLsRequestFilter()
		f.ResourceType, f.ResourcePatternType, f.Principal = kmsg.ACLResourceTypeTopic, kmsg.ACLResourcePatternTypeAny, new(principal)
		f.Operation, f.PermissionType = kmsg.ACLOperationWrite, kmsg.ACLPermissionTypeAllow
		req.Filters = append(req.Filters, f)
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.Results[0].ErrorCode)
	})
}

func (o *observer) deleteTopic(name string) {
	o.t.Helper()
	o.do(func(ctx context.Context, c *kgo.Client) error {
		req := kmsg.NewPtrDeleteTopicsRequest()
		topic := kmsg.NewDeleteTopicsRequestTopic()
		topic.Topic = &name
		req.TopicNames, req.Topics = []string{name}, append(req.Topics, topic)
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	})
}

// stored returns the records of a topic, in order per partition.
func (o *observer) stored(name string) (records []*kgo.Record) {
	o.t.Helper()
	o.do(func(ctx context.Context, c *kgo.Client) error {
		records = nil
		ends, err := endsOf(ctx, c, name)
		if err != nil {
			return err
		}
		c.AddConsumePartitions(ends.from)
		for left := len(ends.last); left > 0; {
			fetches := c.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				return err
			}
			fetches.EachRecord(func(r *kgo.Record) {
				records = append(records, r)
				if r.Offset == ends.last[r.Partition] {
					left--
				}
			})
		}
		return nil
	})
	return records
}

type ends struct {
	from map[string]map[int32]kgo.Offset
	last map[int32]int64
}

// endsOf are the offsets of a topic's last records.
func endsOf(ctx context.Context, c *kgo.Client, name string) (ends, error) {
	out := ends{from: map[string]map[int32]kgo.Offset{name: {}}, last: map[int32]int64{}}
	meta := kmsg.NewPtrMetadataRequest()
	mt := kmsg.NewMetadataRequestTopic()
	mt.Topic = &name
	meta.Topics = append(meta.Topics, mt)
	m, err := meta.RequestWith(ctx, c)
	if err == nil {
		err = kerr.ErrorForCode(m.Topics[0].ErrorCode)
	}
	if err != nil {
		return out, err
	}
	req := kmsg.NewPtrListOffsetsRequest()
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = name
	for _, p := range m.Topics[0].Partitions {
		lp := kmsg.NewListOffsetsRequestTopicPartition()
		lp.Partition, lp.Timestamp = p.Partition, -1
		t.Partitions = append(t.Partitions, lp)
	}
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		return out, err
	}
	for _, p := range resp.Topics[0].Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			return out, err
		}
		if p.Offset > 0 {
			out.from[name][p.Partition], out.last[p.Partition] = kgo.NewOffset().AtStart(), p.Offset-1
		}
	}
	return out, nil
}

// header returns a header of a record, "" if there is none.
func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// deliver writes until every event is accepted.
func deliver(t *testing.T, s sinks.Sink, events []*event.Event) (failures int) {
	t.Helper()
	for deadline := time.Now().Add(patience); len(events) > 0; {
		err := s.Write(t.Context(), events)
		if err == nil {
			return failures
		}
		if failures++; time.Now().After(deadline) {
			t.Fatal(err)
		}
		if b, ok := errors.AsType[*sinks.BatchError](err); ok {
			var rest []*event.Event
			for i, e := range events {
				if b.Failed[i] != nil {
					rest = append(rest, e)
				}
			}
			events = rest
		}
	}
	return failures
}

// start starts a plain server with the topic.
func start(t *testing.T, spec testservers.KafkaSpec, settings ...string) (*testservers.Kafka, *observer) {
	t.Helper()
	k := testservers.StartKafka(t, spec)
	o := observe(t, k.Addr)
	o.makeTopic(topic, 1, settings...)
	return k, o
}

// startState is start with a compacted topic, and a block of mode state.
func startState(t *testing.T) (*testservers.Kafka, *observer, *kafka.Config) {
	t.Helper()
	k, o := start(t, testservers.KafkaSpec{}, "cleanup.policy", "compact")
	c := configFor(k.Addr)
	c.Mode = kafka.State
	return k, o, c
}

// certificates writes files for the tls block into a folder, and returns what a server presents.
func certificates(t *testing.T, dir string, ca *testca.Authority) (cert, key string) {
	t.Helper()
	testkit.Write(t, filepath.Join(dir, "ca.pem"), ca.PEM)
	own, private := ca.Pair("watcherd", nil)
	testkit.Write(t, filepath.Join(dir, "cert.pem"), own)
	testkit.Write(t, filepath.Join(dir, "key.pem"), private)
	c, k := ca.Pair("127.0.0.1", nil)
	return string(c), string(k)
}
