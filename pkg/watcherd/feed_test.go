package watcherd_test

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/pkg/watcherd"
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

// TestResourceMovesToAFeed: what a running feed is given to watch has later sequences than another feed could have given before, so
// that a sink which keeps the newest state of each object takes it.
func TestResourceMovesToAFeed(t *testing.T) {
	api, sink := newCluster(t), newReceiver(t)
	p := newProcess(t, api, sink, "resources: [pods], namespaces: {include: [own]}")
	reload := make(chan struct{}, 1)
	p.options = func(o *watcherd.Options) { o.Reload, o.ReloadInterval = reload, time.Millisecond }
	api.Put(podPath, "own", "first", nil)
	p.start()
	p.until("a delivery", func() bool { return sink.has("first") })
	config, err := os.ReadFile(p.config())
	if err != nil {
		t.Fatal(err)
	}
	api.Put(podPath, "other", "moved", nil)
	moved := uint64(time.Now().UnixMicro())
	if err := os.WriteFile(p.config(), bytes.Replace(config, []byte("[own]"), []byte("[own, other]"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	reload <- struct{}{}
	p.until("a delivery", func() bool { return sink.has("moved") })
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	found := regexp.MustCompile(`"subject":"[^"]*/moved"[^{]*"sequence":"([0-9]+)"`).FindStringSubmatch(sink.body.String())
	if found == nil {
		t.Fatalf("no event of it in %s", &sink.body)
	}
	if sequence, err := strconv.ParseUint(found[1], 10, 64); err != nil || sequence < moved {
		t.Errorf("the sequence is %d, another feed may have given %d: %v", sequence, moved, err)
	}
}
