package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// TestRaisedLimit: a limit that an operator raises does not hold for the life of the sink, where it would make dead letters of
// what the topic takes.
func TestRaisedLimit(t *testing.T) {
	k := testservers.StartKafka(t, testservers.KafkaSpec{})
	c := NewConfig()
	c.Brokers, c.Topic = []string{k.Addr}, "events"
	c.Create = &Create{Config: map[string]string{maxMessage: "20000"}}
	s := sinktest.Open(t, c).(*sink)
	if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Fatal(err)
	}
	if n := s.Limits().MaxEventBytes; n >= 20000 {
		t.Fatalf("limit %d", n)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, "events"
	setting := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	setting.Name, setting.Value = maxMessage, new("1000000")
	r.Configs = append(r.Configs, setting)
	req.Resources = append(req.Resources, r)
	if resp, err := req.RequestWith(t.Context(), client); err != nil || resp.Resources[0].ErrorCode != 0 {
		t.Fatalf("%+v, error %v", resp, err)
	}
	s.mu.Lock()
	for _, topic := range s.topics { // a while ago
		topic.looked = topic.looked.Add(-lookAgain)
	}
	s.mu.Unlock()
	large := sinktest.Large(2, 2, 100<<10)
	if n := s.Limits().MaxEventBytes; n <= large.Size() {
		t.Errorf("the worker is told that the topic takes %d bytes", n)
	}
	if err := s.Write(t.Context(), []*event.Event{large}); err != nil {
		t.Errorf("%v, too large: %v", err, sinks.IsTooLarge(err))
	}
}
