package nats_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/testservers/natstest"
	"github.com/watcherd/watcherd/internal/waittest"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// clusterStream makes the stream as soon as the cluster has a leader, and returns
// the stream's.
func clusterStream(t *testing.T, js jetstream.JetStream, c jetstream.StreamConfig) (leader string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		stream, err := js.CreateStream(ctx, c)
		cancel()
		if err == nil {
			return stream.CachedInfo().Cluster.Leader
		}
		if time.Now().After(deadline) {
			t.Fatalf("the cluster makes no stream: %v", err)
		}
	}
}

// TestLeaderIsKilled kills the server that leads the stream, to which the sink is
// connected, while events flow. Every event arrives, once, in order per object.
func TestLeaderIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("a cluster takes its time to elect leaders")
	}
	nodes := natstest.StartCluster(t)
	var urls []string
	for _, n := range nodes {
		urls = append(urls, n.URL)
	}
	nc, js := connect(t, strings.Join(urls, ","), client.MaxReconnects(-1), client.ReconnectWait(50*time.Millisecond))
	defer nc.Close()
	checkOneReplica(t, js, nodes[0].URL)
	leader := clusterStream(t, js, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, Replicas: 3})
	victim := nodes[slices.IndexFunc(nodes, func(n *natstest.Node) bool { return n.Name == leader })]

	c := configFor(victim.URL, true) // the others are learnt from it
	c.Timeout = sinks.Duration(2 * time.Second)
	s := sinktest.Open(t, c)
	const objects = 20
	events := sinktest.Events(30*objects, objects)
	dead := make(chan struct{})
	failures := 0
	for rest := events; len(rest) > 0; {
		if len(rest) == 20*objects && failures == 0 {
			go func() {
				defer close(dead)
				victim.Kill()
			}()
		}
		if len(rest) <= 2*objects { // whatever the timing, some come after its death
			<-dead
		}
		batch := rest[:min(2*objects, len(rest))]
		err := s.Write(t.Context(), batch)
		rest = append(failedOf(batch, err), rest[len(batch):]...)
		if err == nil {
			continue
		}
		if failures++; failures > 500 {
			t.Fatalf("the cluster does not recover: %v", err)
		}
		if class, _ := sinks.Classify(firstOf(err)); class != sinks.ClassRetry {
			t.Fatalf("class %s: %v", class, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("%d writes failed and were tried again", failures)
	if failures == 0 {
		t.Error("nobody noticed the death of the server")
	}

	eventually(t, "the stream answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := js.Stream(ctx, "K8S")
		return err == nil
	})
	got := stored(t, js)
	if len(got) != len(events) {
		t.Errorf("%d messages are stored, %d were sent", len(got), len(events))
	}
	perObject := map[string][]string{}
	for i, id := range idsOf(got) {
		perObject[got[i].Subject] = append(perObject[got[i].Subject], id)
	}
	for object := range objects {
		var want []string
		for i := object; i < len(events); i += objects {
			want = append(want, events[i].ID)
		}
		if ids := perObject[fmt.Sprintf("k8s.test.apps.deployments.prod.web-%d", object)]; !slices.Equal(ids, want) {
			t.Errorf("object %d:\n got %v\nwant %v", object, ids, want)
		}
	}
}

var eventually = waittest.Until

func failedOf(batch []*event.Event, err error) (out []*event.Event) {
	if err == nil {
		return nil
	}
	b, ok := err.(*sinks.BatchError) //nolint:errorlint // the sink returns it bare
	for i, e := range batch {
		if !ok || b.Failed[i] != nil {
			out = append(out, e)
		}
	}
	return out
}

func firstOf(err error) error {
	if b, ok := err.(*sinks.BatchError); ok { //nolint:errorlint // the sink returns it bare
		return b.Failed[slices.Min(keys(b.Failed))]
	}
	return err
}

// checkOneReplica: a stream that has one replica in a cluster is warned about.
func checkOneReplica(t *testing.T, js jetstream.JetStream, url string) {
	t.Helper()
	clusterStream(t, js, jetstream.StreamConfig{Name: "SOLO", Subjects: []string{"solo.>"}})
	var log bytes.Buffer
	c := configFor(url, true)
	c.Subject, c.JetStream.Stream = "solo.{name}", "SOLO"
	s := sinktest.Open(t, c, func(o *sinks.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "one replica in a cluster") {
		t.Errorf("nothing was said:\n%s", &log)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
