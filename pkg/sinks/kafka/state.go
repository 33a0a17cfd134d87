package kafka

import (
	"context"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

// index holds the last sequence of each object in a topic of mode state. Only a replayed
// event can be older than what the topic has, so the first of them builds it: from the topic, which is
// read to its end once, and from what is written since. Sixteen bytes an object.
type index struct {
	id   [16]byte // of the topic; zero where brokers have none
	seed maphash.Seed
	last map[uint64]uint64 // hash of the key → sequence
	rest map[int32]extent  // partitions that are not read to the end; nil: not known yet
}

// extent is what is left to read of a partition.
type extent struct{ next, end int64 }

// complete reports whether the topic was read to the end that it had.
func (x *index) complete() bool { return x.rest != nil && len(x.rest) == 0 }

func (x *index) add(key []byte, sequence uint64) {
	h := maphash.Bytes(x.seed, key)
	x.last[h] = max(x.last[h], sequence)
}

// superseded reports whether the topic has a later state of the record's object.
func (w *write) superseded(ctx context.Context, r *kgo.Record, sequence uint64) (bool, error) {
	x, err := w.index(ctx, r.Topic)
	if err != nil {
		return false, w.sink.classify(ctx, fmt.Errorf("read the state in topic %s: %w", r.Topic, err))
	}
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	return sequence < x.last[maphash.Bytes(x.seed, r.Key)], nil
}

// index returns the index of a topic, complete. It looks once a Write whether the topic is another one of that name.
func (w *write) index(ctx context.Context, topic string) (*index, error) {
	if x := w.indexes[topic]; x != nil {
		return x, nil
	}
	s := w.sink
	asking, cancel := context.WithTimeoutCause(ctx, s.config.Timeout.Std(), wire.ErrNoAnswer)
	defer cancel()
	meta, err := s.metadata(asking, w.client, topic)
	if err != nil {
		return nil, wire.Caused(asking, err)
	}
	s.mu.Lock()
	t := s.topicLocked(topic)
	if t.index == nil || t.index.id != meta.TopicID {
		t.index = &index{id: meta.TopicID, seed: maphash.MakeSeed(), last: map[uint64]uint64{}} // from here on it notes what is written
	}
	x := t.index
	complete := x.complete()
	s.mu.Unlock()
	if !complete {
		if err := s.reading.Do(ctx, func() error { return s.readTopic(ctx, topic, x) }); err != nil {
			return nil, err
		}
	}
	w.indexes[topic] = x
	return x, nil
}

// readTopic reads the rest of the topic into its index. When ctx ends first, the next
// call continues. One call at a time.
func (s *sink) readTopic(ctx context.Context, topic string, x *index) error {
	s.mu.Lock()
	known, complete := x.rest != nil, x.complete()
	s.mu.Unlock()
	if complete { // by another Write
		return nil
	}
	c, err := s.producer()
	if err != nil {
		return err
	}
	if !known {
		rest, err := s.extents(ctx, c, topic)
		if err != nil {
			return err
		}
		s.mu.Lock()
		x.rest = rest
		s.mu.Unlock()
	}
	answered := answers{brokers: map[int32]bool{}} // the client fetches from the beginning
	reader, err := kgo.NewClient(append(s.options(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: s.offsets(x)}),
		kgo.DisableFetchSessions(), kgo.KeepRetryableFetchErrors(), kgo.WithHooks(&answered),
		kgo.FetchMaxWait(s.config.Timeout.Std()/4), // an empty answer comes while it is waited for
		kgo.FetchMaxBytes(fetchBytes), kgo.FetchMaxPartitionBytes(fetchBytes/4), kgo.MaxConcurrentFetches(1),
	)...)
	if err != nil {
		return err
	}
	defer reader.Close()
	for {
		s.mu.Lock()
		complete := x.complete()
		s.mu.Unlock()
		if complete {
			return nil
		}
		answered.reset()
		quiet, err := s.poll(ctx, reader, x)
		if err != nil {
			return err
		}
		if !quiet {
			continue
		}
		// Compaction may have removed the records before the end, of which nothing shows then. The leaders
		// that answer a fetch without records have nothing more.
		meta, err := s.metadata(ctx, c, topic)
		if err != nil {
			return err
		}
		s.mu.Lock()
		for _, p := range meta.Partitions {
			if answered.by(p.Leader) {
				delete(x.rest, p.Partition)
			}
		}
		s.mu.Unlock()
	}
}

// answers are the brokers that have answered a fetch.
type answers struct {
	mu      sync.Mutex
	brokers map[int32]bool // guarded by mu
}

// OnBrokerE2E implements kgo.HookBrokerE2E.
func (a *answers) OnBrokerE2E(broker kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if key == int16(kmsg.Fetch) && e2e.Err() == nil {
		a.brokers[broker.NodeID] = true
	}
}

func (a *answers) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.brokers = map[int32]bool{}
}

func (a *answers) by(broker int32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.brokers[broker]
}

// fetchBytes is how much of a topic is in memory at once, about.
const fetchBytes = 4 << 20

func (s *sink) offsets(x *index) map[int32]kgo.Offset {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[int32]kgo.Offset, len(x.rest))
	for partition, e := range x.rest {
		out[partition] = kgo.NewOffset().At(e.next)
	}
	return out
}

// poll takes some records. It reports when there were none for the length of a timeout.
func (s *sink) poll(ctx context.Context, reader *kgo.Client, x *index) (quiet bool, err error) {
	wait, cancel := context.WithTimeout(ctx, s.config.Timeout.Std())
	defer cancel()
	fetches := reader.PollRecords(wait, 1000)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if wait.Err() != nil && fetches.NumRecords() == 0 {
		return true, nil
	}
	if err := fetches.Err(); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fetches.EachRecord(func(r *kgo.Record) {
		for _, h := range r.Headers {
			if h.Key != sequenceHeader {
				continue
			}
			if sequence, err := strconv.ParseUint(string(h.Value), 10, 64); err == nil {
				x.add(r.Key, sequence)
			}
		}
		if e, ok := x.rest[r.Partition]; ok {
			if e.next = r.Offset + 1; e.next < e.end {
				x.rest[r.Partition] = e
			} else {
				delete(x.rest, r.Partition)
			}
		}
	})
	return false, nil
}

// extents returns what there is to read of a topic's partitions.
func (s *sink) extents(ctx context.Context, c *kgo.Client, topic string) (map[int32]extent, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.config.Timeout.Std(), wire.ErrNoAnswer)
	defer cancel()
	meta, err := s.metadata(ctx, c, topic)
	if err != nil {
		return nil, err
	}
	rest := map[int32]extent{}
	for _, p := range meta.Partitions {
		rest[p.Partition] = extent{}
	}
	for _, at := range []int64{earliest, latest} {
		req := kmsg.NewPtrListOffsetsRequest()
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = topic
		for partition := range rest {
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Partition, p.Timestamp = partition, at
			t.Partitions = append(t.Partitions, p)
		}
		req.Topics = append(req.Topics, t)
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return nil, err
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, err
				}
				e := rest[p.Partition]
				if at == earliest {
					e.next = p.Offset
				} else {
					e.end = p.Offset
				}
				rest[p.Partition] = e
			}
		}
	}
	for partition, e := range rest {
		if e.next >= e.end {
			delete(rest, partition)
		}
	}
	return rest, nil
}

// Times of an offset that mean its ends.
const earliest, latest = -2, -1
