package examples

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testservers"
)

// toMQTT restarts Bento and the broker amid changes: every change of an object is published, first in its order.
func toMQTT(t *testing.T) {
	if os.Getenv("WATCHERD_SOAK") == "" {
		t.Skip("it builds Bento: make soak runs it")
	}
	config, err := os.ReadFile("bento/mqtt.yaml")
	if err != nil {
		t.Fatal(err)
	}
	broker := testservers.StartMQTT(t)
	text := strings.Replace(string(config), "mqtt.example.com:1883", broker.Addr, 1)
	if text == string(config) {
		t.Fatal("Bento's configuration does not name the broker")
	}
	bento := testservers.StartBento(t, text, "127.0.0.1:4195")
	r := newRun(t, "mqtt.yaml", map[string]string{"127.0.0.1:4195": bento.Addr})
	r.apply(deployment)
	r.start("deployments.v1.apps")

	const steps = 60
	want := make([]string, 0, steps)
	for step := range steps {
		switch step {
		case 15:
			bento.Restart()
		case 30:
			broker.Restart()
		case 45:
			broker.Kill()
		case 50:
			broker.Start()
		}
		want = append(want, fmt.Sprint(step))
		r.patch("deployments.v1.apps", "web", fmt.Sprintf(`{"metadata":{"annotations":{"step":"%d"}}}`, step))
	}
	r.eventually(func() (bool, string) {
		var got []string
		seen := map[string]bool{}
		messages := broker.Accepted()
		for _, m := range messages {
			if m.Topic != "k8s/deployments.apps/"+r.namespace+"/web" || m.QoS != 1 {
				continue
			}
			e := parse(t, m.Payload)
			if step, ok := at(e.Object, "metadata", "annotations", "step").(string); ok && !seen[e.ID] {
				got = append(got, step)
			}
			seen[e.ID] = true
		}
		return slices.Equal(got, want), fmt.Sprintf("the broker has steps %v, of %d messages", got, len(messages))
	})
	t.Logf("%d messages for %d changes", len(broker.Accepted()), steps)
}
