package watcherd_test

import (
	"os"
	"strings"
	"testing"
)

// TestFeedIsNamed: the source of a feed's events, its metrics and its status have its name, and events the uid of
// the cluster, after a restart too.
func TestFeedIsNamed(t *testing.T) {
	api, sink := newCluster(t), newReceiver(t)
	api.SetUID("uid-of-the-cluster")
	p := newProcess(t, api, sink, "resources: [pods]")
	config, err := os.ReadFile(p.config())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.config(), append(config, "feed: {name: pods}\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		api.Put(podPath, "ns", name, nil)
		p.start()
		p.until("a delivery", func() bool { return sink.has(name) })
		_, metrics := p.get("/metrics")
		for line := range strings.Lines(metrics) {
			if own := strings.HasPrefix(line, "watcherd_") && !strings.HasPrefix(line, "watcherd_build_info"); own && !strings.Contains(line, `feed="pods"`) {
				t.Errorf("a metric without the feed: %s", line)
			}
		}
		if _, status := p.get("/api/v1/status"); !strings.Contains(status, `"feed":"pods"`) {
			t.Errorf("the status is %s", status)
		}
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	events := strings.Count(sink.body.String(), `"specversion"`)
	for _, attribute := range []string{`"source":"/clusters/test/feeds/pods"`, `"clusteruid":"uid-of-the-cluster"`} {
		if n := strings.Count(sink.body.String(), attribute); events < 2 || n != events {
			t.Errorf("%d of %d events have %s", n, events, attribute)
		}
	}
}
