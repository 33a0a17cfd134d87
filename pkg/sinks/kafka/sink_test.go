package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/kafka"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// TestRecords compares what arrives with the CloudEvents binding.
func TestRecords(t *testing.T) {
	e := sinktest.Event(7, 7)
	e.Cluster, e.Name = "prod eu", "ä \"quoted\""
	attributes := map[string]string{
		"ce_specversion": "1.0", "ce_id": e.ID, "ce_type": "dev.watcherd.resource.added", "ce_source": "/clusters/prod%20eu",
		"ce_subject": e.Subject(), "ce_time": "2026-03-01T12:00:00.007Z", "ce_sequence": event.SequenceText(8),
		"ce_partitionkey": "deployments.apps/prod/ä \"quoted\"", "ce_dataschema": event.DataSchema,
	}
	for _, test := range []struct {
		format  sinks.Format
		value   []byte
		content string
		headers map[string]string
	}{
		{sinks.CloudEvents, event.AppendCloudEvent(nil, e), "application/cloudevents+json; charset=UTF-8", nil},
		{sinks.CloudEventsBinary, event.AppendData(nil, e), "application/json", attributes},
		{sinks.JSON, event.AppendJSON(nil, e), "application/json", nil},
	} {
		t.Run(string(test.format), func(t *testing.T) {
			const name = "k8s.prod_20eu.apps.deployments"
			k := testservers.StartKafka(t, testservers.KafkaSpec{})
			o := observe(t, k.Addr)
			o.makeTopic(name, 1)
			c := configFor(k.Addr)
			c.Topic = "k8s.{cluster}.{group}.{resource}"
			if err := sinktest.Open(t, c, func(o *sinks.Options) { o.Format = test.format }).Write(t.Context(), []*event.Event{e}); err != nil {
				t.Fatal(err)
			}
			r := o.stored(name)[0]
			if string(r.Key) != "deployments.apps/prod/ä \"quoted\"" {
				t.Errorf("key %s", r.Key)
			}
			if !bytes.Equal(r.Value, test.value) {
				t.Errorf("value %s, want %s", r.Value, test.value)
			}
			if got := header(r, "content-type"); got != test.content {
				t.Errorf("content-type %s, want %s", got, test.content)
			}
			for name, want := range test.headers {
				if got := header(r, name); got != want {
					t.Errorf("header %s: %q, want %q", name, got, want)
				}
			}
			if len(r.Headers) != 1+len(test.headers) {
				t.Errorf("%d headers: %v", len(r.Headers), r.Headers)
			}
		})
	}
}

// murmur2 is the hash of Java's producer, written down once more from its definition.
func murmur2(data []byte) int32 {
	const m = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k ^= k >> 24
		h = h*m ^ k*m
	}
	for i, c := range slices.Backward(data) {
		h ^= uint32(c) << (8 * i)
	}
	if len(data) > 0 {
		h *= m
	}
	h ^= h >> 13
	h *= m
	return int32(h ^ h>>15)
}

// TestPartitioner compares the partitions with those of Java's producer.
func TestPartitioner(t *testing.T) {
	for key, want := range map[string]int32{ // from the tests of org.apache.kafka.common.utils.Utils
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		if got := murmur2([]byte(key)); got != want {
			t.Errorf("hash of %s: %d, want %d", key, got, want)
		}
	}
	const partitions = 7
	k := testservers.StartKafka(t, testservers.KafkaSpec{})
	o := observe(t, k.Addr)
	o.makeTopic(topic, partitions)
	if err := sinktest.Open(t, configFor(k.Addr)).Write(t.Context(), sinktest.Events(100, 50)); err != nil {
		t.Fatal(err)
	}
	for _, r := range o.stored(topic) {
		if want := (murmur2(r.Key) & 0x7fffffff) % partitions; r.Partition != want {
			t.Errorf("%s is in partition %d, want %d", r.Key, r.Partition, want)
		}
	}
}

// TestAnotherLibrary has a consumer of another library read what the sink wrote, compressed: it sees the same
// records, where its own version of Java's partitioner looks for them, and those of a key in their order.
func TestAnotherLibrary(t *testing.T) {
	const partitions = 7
	k := testservers.StartKafka(t, testservers.KafkaSpec{})
	observe(t, k.Addr).makeTopic(topic, partitions)
	batch := sinktest.Events(100, 50)
	want := map[string][]byte{}
	for _, e := range batch {
		want[e.ID] = event.AppendData(nil, e)
	}
	s := sinktest.Open(t, configFor(k.Addr), func(o *sinks.Options) { o.Format = sinks.CloudEventsBinary })
	if err := s.Write(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	last := map[string]string{}
	for _, r := range k.Consume(topic, len(batch)) {
		id, sequence := r.Headers["ce_id"], r.Headers["ce_sequence"]
		if !bytes.Equal(r.Value, want[id]) {
			t.Errorf("event %q is %s, want %s", id, r.Value, want[id])
		}
		if r.Partition != r.Balanced {
			t.Errorf("%s is in partition %d, want %d", r.Key, r.Partition, r.Balanced)
		}
		if last[r.Key] >= sequence {
			t.Errorf("%s: %s comes after %s", r.Key, sequence, last[r.Key])
		}
		last[r.Key] = sequence
		delete(want, id)
	}
	if len(want) > 0 {
		t.Errorf("%d events were not read", len(want))
	}
}

// state is the last value of each key, without those whose last record is a tombstone.
func state(records []*kgo.Record) map[string]string {
	out := map[string]string{}
	for _, r := range records {
		if out[string(r.Key)] = header(r, "ce_sequence"); r.Value == nil {
			delete(out, string(r.Key))
		}
	}
	return out
}

// TestState follows objects through mode state: deletions and objects that leave the selection become
// tombstones, gaps are not written, and a replay changes nothing, in a new process too.
func TestState(t *testing.T) {
	k, o, c := startState(t)
	reg := prometheus.NewRegistry()
	s := sinktest.Open(t, c, func(o *sinks.Options) { o.Registerer = reg })
	events := sinktest.Events(40, 10)
	events[33].Type = event.Deleted
	events[34].Selection = event.Left
	gap := &event.Event{ID: "gap", Type: event.Gap, Sequence: 41, Resource: events[0].Resource, Gap: &event.GapData{Watch: "w"}}
	if err := s.Write(t.Context(), append(slices.Clone(events), gap)); err != nil {
		t.Fatal(err)
	}
	records := o.stored(topic)
	want := state(records)
	if len(records) != 40 || len(want) != 8 {
		t.Fatalf("%d records, %d objects: %v", len(records), len(want), want)
	}
	for _, r := range records {
		if id := header(r, "ce_id"); (r.Value == nil) != (id == events[33].ID || id == events[34].ID) {
			t.Errorf("event %s: value %s", id, r.Value)
		}
	}
	replay := func(s sinks.Sink, events []*event.Event) {
		t.Helper()
		again := make([]*event.Event, len(events))
		for i, e := range events {
			own := *e
			own.Replay = true
			again[i] = &own
		}
		if err := s.Write(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		if got := state(o.stored(topic)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("behind a replay the state is %v, want %v", got, want)
		}
	}
	replay(s, events[:30])
	replay(s, events) // the last event of each object is written again
	if got := testutil.CollectAndCount(reg, "watcherd_kafka_sink_superseded_total"); got != 1 {
		t.Errorf("%d series", got)
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP watcherd_kafka_sink_gaps_skipped_total Gap records, which mode state does not write.
# TYPE watcherd_kafka_sink_gaps_skipped_total counter
watcherd_kafka_sink_gaps_skipped_total 1
# HELP watcherd_kafka_sink_superseded_total Events that mode state did not write, since the topic has a later state of their object.
# TYPE watcherd_kafka_sink_superseded_total counter
watcherd_kafka_sink_superseded_total 60
`), "watcherd_kafka_sink_gaps_skipped_total", "watcherd_kafka_sink_superseded_total"); err != nil {
		t.Error(err)
	}
	replay(sinktest.Open(t, c), events[10:20]) // knows only what the topic holds
	k.Compact()
	replay(sinktest.Open(t, c), events[:30])
	// What is written behind the first replay counts too.
	later := sinktest.Event(50, 1)
	later.Sequence = 51
	if err := s.Write(t.Context(), []*event.Event{later}); err != nil {
		t.Fatal(err)
	}
	want = state(o.stored(topic))
	replay(s, events)
}

// TestReplayIntoEmptyTopic: an object that the topic does not have is written.
func TestReplayIntoEmptyTopic(t *testing.T) {
	_, o, c := startState(t)
	e := sinktest.Event(0, 0)
	e.Replay = true
	if err := sinktest.Open(t, c).Write(t.Context(), []*event.Event{e}); err != nil {
		t.Fatal(err)
	}
	if n := len(o.stored(topic)); n != 1 {
		t.Errorf("%d records", n)
	}
}

// TestReplayIntoTopicMadeAgain: what a topic had that was deleted is not in the one that took its name.
func TestReplayIntoTopicMadeAgain(t *testing.T) {
	_, o, c := startState(t)
	s := sinktest.Open(t, c)
	events := sinktest.Events(3, 1)
	for _, e := range events {
		e.Replay = true
	}
	deliver(t, s, events)
	o.deleteTopic(topic)
	o.makeTopic(topic, 1, "cleanup.policy", "compact")
	deliver(t, s, events[:2])
	want := map[string]string{events[1].PartitionKey(): event.SequenceText(events[1].Sequence)}
	if got := state(o.stored(topic)); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the state is %v, want %v", got, want)
	}
}

// TestReplayBesideALaterState: an event that is replayed behind a later one of its object, in one batch with it,
// is not written.
func TestReplayBesideALaterState(t *testing.T) {
	_, o, c := startState(t)
	events := sinktest.Events(3, 1)
	events[0].Replay = true
	if err := sinktest.Open(t, c).Write(t.Context(), []*event.Event{events[1], events[2], events[0]}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{events[0].PartitionKey(): event.SequenceText(events[2].Sequence)}
	if got := state(o.stored(topic)); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the state is %v, want %v", got, want)
	}
}

// TestReplayWhileTheTopicIsNotRead: a broker that does not answer fetches, and all else, has not shown the end of the topic.
func TestReplayWhileTheTopicIsNotRead(t *testing.T) {
	k, o, c := startState(t)
	events := sinktest.Events(3, 1)
	if err := sinktest.Open(t, c).Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	k.Stall()
	c.Timeout = sinks.Duration(time.Second)
	s := sinktest.Open(t, c)
	again := *events[0]
	again.Replay = true
	if err := s.Write(t.Context(), []*event.Event{&again}); err == nil {
		t.Error("accepted before the topic was read")
	}
	k.Heal()
	deliver(t, s, []*event.Event{&again})
	want := map[string]string{again.PartitionKey(): event.SequenceText(events[2].Sequence)}
	if got := state(o.stored(topic)); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the state is %v, want %v", got, want)
	}
}

// TestReplayBehindAMarker: a topic may end with what no consumer is shown, such as the marker of another program's transaction.
func TestReplayBehindAMarker(t *testing.T) {
	_, o, c := startState(t)
	events := sinktest.Events(3, 1)
	if err := sinktest.Open(t, c).Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	o.options = append(o.options, kgo.TransactionalID("another"))
	o.do(func(ctx context.Context, c *kgo.Client) error {
		return errors.Join(c.BeginTransaction(), c.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("{}")}).FirstErr(), c.EndTransaction(ctx, kgo.TryCommit))
	})
	again := *events[0]
	again.Replay = true
	reg := prometheus.NewRegistry()
	if err := sinktest.Open(t, c, func(o *sinks.Options) { o.Registerer = reg }).Write(t.Context(), []*event.Event{&again}); err != nil {
		t.Fatal(err)
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP watcherd_kafka_sink_superseded_total Events that mode state did not write, since the topic has a later state of their object.
# TYPE watcherd_kafka_sink_superseded_total counter
watcherd_kafka_sink_superseded_total 1
`), "watcherd_kafka_sink_superseded_total"); err != nil {
		t.Error(err)
	}
}

// TestConnectionsThatDrop delivers over connections that end again and again: everything arrives, once, in
// order per object.
func TestConnectionsThatDrop(t *testing.T) {
	k := testservers.StartKafka(t, testservers.KafkaSpec{CutAfterBytes: 150 << 10})
	o := observe(t, k.Addr)
	o.makeTopic(topic, 3)
	reg := prometheus.NewRegistry()
	c := configFor(k.Addr)
	c.Compression = "none"
	s := sinktest.Open(t, c, func(o *sinks.Options) { o.Registerer = reg })
	events := sinktest.Events(2000, 20)
	failures := 0
	for batch := range slices.Chunk(events, 50) {
		failures += deliver(t, s, batch)
	}
	t.Logf("%d writes failed", failures)
	got := map[string][]string{}
	for _, r := range o.stored(topic) {
		id := idsOf(t, []*kgo.Record{r})[0]
		got[string(r.Key)] = append(got[string(r.Key)], id)
	}
	want := map[string][]string{}
	for _, e := range events {
		want[e.PartitionKey()] = append(want[e.PartitionKey()], e.ID)
	}
	for key, ids := range want {
		if failures == 0 && !slices.Equal(got[key], ids) || !slices.Equal(firsts(got[key]), ids) {
			t.Errorf("object %s: got %v, want %v", key, got[key], ids)
		}
	}
	metrics, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range metrics {
		if m.GetName() == "watcherd_kafka_sink_disconnects_total" && m.GetMetric()[0].GetCounter().GetValue() < 10 {
			t.Errorf("disconnects: %v", m)
		}
	}
}

// firsts are ids without repeats.
func firsts(ids []string) (out []string) {
	for _, id := range ids {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// TestRefusedBatch: a batch that the broker refuses for one of its records is taken apart. The record of the
// object that is refused holds up that object alone.
func TestRefusedBatch(t *testing.T) {
	k, o := start(t, testservers.KafkaSpec{})
	s := sinktest.Open(t, configFor(k.Addr))
	if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Fatal(err)
	}
	events := sinktest.Events(9, 3)[1:]
	k.Fail(topic, kerr.InvalidRecord.Code, 2) // the batch, and its first record alone
	err := s.Write(t.Context(), events)
	b, ok := errors.AsType[*sinks.BatchError](err)
	if !ok {
		t.Fatal(err)
	}
	var poison, held int
	for i, why := range b.Failed {
		class, _ := sinks.Classify(why)
		switch {
		case class == sinks.ClassPoison:
			poison++
		case class == sinks.ClassRetry && events[i].Name == events[0].Name:
			held++
		default:
			t.Errorf("event %d: class %s: %v", i, class, why)
		}
	}
	if poison != 1 || held != 2 {
		t.Errorf("%d are refused and %d held, want 1 and 2: %v", poison, held, err)
	}
	deliver(t, s, []*event.Event{events[3], events[6]})
	if n := len(firsts(idsOf(t, o.stored(topic)))); n != 8 {
		t.Errorf("%d events arrived, want 8", n)
	}
}

// TestClasses: what a broker answers decides what happens next.
func TestClasses(t *testing.T) {
	k, _ := start(t, testservers.KafkaSpec{})
	c := configFor(k.Addr)
	c.Timeout = sinks.Duration(time.Second)
	for _, test := range []struct {
		code  *kerr.Error
		class sinks.Class
	}{
		{kerr.TopicAuthorizationFailed, sinks.ClassPause},
		{kerr.ClusterAuthorizationFailed, sinks.ClassPause},
		{kerr.NotEnoughReplicas, sinks.ClassRetry},
		{kerr.InvalidRecord, sinks.ClassPoison},
		{kerr.MessageTooLarge, sinks.ClassPoison},
	} {
		t.Run(test.code.Message, func(t *testing.T) {
			k.Fail(topic, test.code.Code, -1)
			defer k.Heal()
			err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
			sinktest.WantClass(t, err, test.class)
			if b, _ := errors.AsType[*sinks.BatchError](err); b == nil || sinks.IsTooLarge(b.Failed[0]) != (test.code == kerr.MessageTooLarge) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestOneTopicMissing: it holds up its own events alone.
func TestOneTopicMissing(t *testing.T) {
	k, o := start(t, testservers.KafkaSpec{})
	events := sinktest.Events(4, 4)
	events[1].Resource.Resource, events[3].Resource.Resource = "statefulsets", "statefulsets"
	err := sinktest.Open(t, configFor(k.Addr)).Write(t.Context(), events)
	sinktest.WantClass(t, err, sinks.ClassPause, "topic k8s.statefulsets does not exist", "create")
	if b, _ := errors.AsType[*sinks.BatchError](err); b == nil || len(b.Failed) != 2 || b.Failed[1] == nil || b.Failed[3] == nil {
		t.Errorf("%v", err)
	}
	if n := len(o.stored(topic)); n != 2 {
		t.Errorf("%d records", n)
	}
}

// askedContext looks for its end when it is asked for it, as that of a replica which may lead no more.
type askedContext struct {
	context.Context
	look func()
}

func (c askedContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

func (c askedContext) Err() error {
	c.look()
	return c.Context.Err()
}

// TestEndBetweenChunks: a replica that was stopped while it wrote, and leads no more, writes nothing that it has not begun.
func TestEndBetweenChunks(t *testing.T) {
	k := testservers.StartKafka(t, testservers.KafkaSpec{})
	o := observe(t, k.Addr)
	o.makeTopic(topic, 1, "max.message.bytes", "20000")
	s := sinktest.Open(t, configFor(k.Addr))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := sinktest.Events(30, 30)
	err := s.Write(askedContext{ctx, func() {
		if len(o.stored(topic)) > 0 {
			cancel()
		}
	}}, events)
	left, _ := errors.AsType[*sinks.BatchError](err)
	if n := len(o.stored(topic)); left == nil || n+len(left.Failed) != len(events) {
		t.Errorf("%d records, error %v", n, err)
	}
}

// TestCreate makes the missing topic, compacted in mode state.
func TestCreate(t *testing.T) {
	k := testservers.StartKafka(t, testservers.KafkaSpec{})
	c := configFor(k.Addr)
	c.Topic, c.Mode, c.Create = topic, kafka.State, &kafka.Create{Partitions: 3, Replicas: 1, Config: map[string]string{"max.message.bytes": "20000"}}
	var log sinktest.Log
	s := sinktest.Open(t, c, log.Option)
	deliver(t, s, sinktest.Events(30, 30))
	partitions := map[int32]bool{}
	for _, r := range observe(t, k.Addr).stored(topic) {
		partitions[r.Partition] = true
	}
	if len(partitions) != 3 || strings.Contains(log.String(), "not compacted") || !strings.Contains(log.String(), "topic created") {
		t.Errorf("partitions %v, log\n%s", partitions, &log)
	}
	if n := s.(sinks.Limited).Limits().MaxEventBytes; n >= 20000 || n < 10000 {
		t.Errorf("limit %d", n)
	}
}

// TestLimitOfAnotherTopic: an event that its topic takes is not too large for the limit of another one.
func TestLimitOfAnotherTopic(t *testing.T) {
	k, o := start(t, testservers.KafkaSpec{}, "max.message.bytes", "20000")
	o.makeTopic("k8s.statefulsets", 1)
	s := sinktest.Open(t, configFor(k.Addr))
	deliver(t, s, sinktest.Events(1, 1))
	large := sinktest.Large(2, 2, 100<<10)
	err := s.Write(t.Context(), []*event.Event{large})
	if b, _ := errors.AsType[*sinks.BatchError](err); b == nil || !sinks.IsTooLarge(b.Failed[0]) {
		t.Errorf("%v", err)
	}
	if n := s.(sinks.Limited).Limits().MaxEventBytes; n < 200<<10 {
		t.Errorf("limit %d", n)
	}
	large.Resource.Resource = "statefulsets"
	deliver(t, s, []*event.Event{large})
}

// TestWarnings: what may lose acknowledged events is warned about, once.
func TestWarnings(t *testing.T) {
	k, _ := start(t, testservers.KafkaSpec{})
	for _, test := range []struct {
		change func(c *kafka.Config)
		says   string
	}{
		{func(*kafka.Config) {}, "the topic has one replica"},
		{func(c *kafka.Config) { c.Mode = kafka.State }, "the topic is not compacted"},
		{func(c *kafka.Config) { c.Acks, c.Idempotent = "leader", false }, "acks: leader loses events"},
	} {
		c := configFor(k.Addr)
		test.change(c)
		var log sinktest.Log
		s := sinktest.Open(t, c, log.Option)
		for range 2 {
			if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if n := strings.Count(log.String(), test.says); n != 1 {
			t.Errorf("%q is said %d times:\n%s", test.says, n, &log)
		}
	}
}
