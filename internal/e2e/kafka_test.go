package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testservers"
)

// toKafka is the feed of [feedConfig] into topics with its history and its state.
func toKafka(namespace, broker string) string {
	return feedTo(namespace, "history, state", fmt.Sprintf(`
- name: history
  kafka: {brokers: [%[1]q], topic: "history.{resource}", create: {partitions: 3}, timeout: 2s}
  retry: {initial: 20ms, max: 500ms}
- name: state
  kafka: {brokers: [%[1]q], topic: "state.{resource}", mode: state, create: {partitions: 3}, timeout: 2s}
  retry: {initial: 20ms, max: 500ms}
`, broker))
}

// topics consumes topics by pattern from their beginning, over restarts of the broker.
func topics(t testing.TB, broker, pattern string) func() []*kgo.Record {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumeRegex(), kgo.ConsumeTopics(pattern),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(100*time.Millisecond), kgo.MetadataMaxAge(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return func() []*kgo.Record {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 100*time.Millisecond)
		defer cancel()
		return c.PollFetches(ctx).Records()
	}
}

// tapTopics shows the records of topics.
func tapTopics(t testing.TB, broker, pattern string) *tap {
	poll := topics(t, broker, pattern)
	return newTap("kafka", func() (bodies [][]byte, err error) {
		for _, r := range poll() {
			bodies = append(bodies, r.Value)
		}
		return bodies, nil
	})
}

// TestKillLoopKafka kills the daemon and the broker in turn in a sustained stream of writes. The history has
// every write in order, and the state topics are the cluster in the end.
func TestKillLoopKafka(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	broker := testservers.StartKafka(t, testservers.KafkaSpec{Dir: testservers.DataDir(t)})
	d := newDaemon(t, c.Kubeconfig, toKafka(ns, broker.Addr))
	w := newClient(t, c, ns)
	history := tapTopics(t, broker.Addr, `^history\..*`)
	d.start()
	awaitAll(t, []*tap{history}, w.mark()) // from here on nothing is part of the first list

	kills := killInTurn(d, w, 7, broker.Restart)
	awaitAll(t, []*tap{history}, w.history.finals())
	history = tapTopics(t, broker.Addr, `^history\..*`) // the broker's word counts, not that of a consumer that saw it die
	awaitAll(t, []*tap{history}, w.history.finals())
	once := distinct(history.all(t))
	t.Logf("%d kills, %d writes, %d events, %d of them again", kills, w.history.count(), len(once), len(history.seen)-len(once))
	checkExact(t, w.history, once)

	want := w.history.existing()
	more := topics(t, broker.Addr, `^state\..*`)
	values := map[string]got{}
	difference := func() string {
		for _, r := range more() {
			var g got
			if r.Value == nil {
				delete(values, string(r.Key))
			} else if err := json.Unmarshal(r.Value, &g); err != nil {
				t.Fatal(err)
			} else {
				values[string(r.Key)] = g
			}
		}
		left := map[state]bool{}
		for s := range want {
			left[s] = true
		}
		for key, g := range values {
			s := state{g.Data.UID, g.Data.ResourceVersion}
			if !left[s] {
				return fmt.Sprintf("%s is at %v, where the cluster is not", key, s)
			}
			delete(left, s)
		}
		if len(left) > 0 {
			return fmt.Sprintf("%d of %d objects are missing", len(left), len(want))
		}
		return ""
	}
	eventually(t, func() bool { return difference() == "" }, difference)
	d.stop()
	if text := difference(); text != "" {
		t.Error(text)
	}
}
