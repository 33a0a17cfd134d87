package watcherd_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/replica"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/jetstream"
)

// journaled gives daemons a journal in one stream, which one server has.
func journaled(t *testing.T, daemons ...*process) {
	t.Helper()
	node := natstest.Start(t, natstest.Spec{Name: "solo", Dir: t.TempDir()})
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("the key of the journal"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range daemons {
		p.rewrite("store: {", fmt.Sprintf("store: {journal: {nats: {urls: [%s]}, stream: S, takeOverAfter: 3s, encryptionKey: {file: %s}}, ", node.URL, key))
		p.options = func(o *watcherd.Options) {
			o.ReloadInterval = time.Millisecond
			o.Journal = func(c replica.Config) (replica.Member, error) {
				c.Journal.Replicas = 1
				return jetstream.Journal(c)
			}
		}
	}
}

// rewrite replaces a part of the configuration file.
func (p *process) rewrite(part, by string) {
	p.Helper()
	text, err := os.ReadFile(p.config())
	if err == nil {
		err = os.WriteFile(p.config(), []byte(strings.Replace(string(text), part, by, 1)), 0o600)
	}
	if err != nil {
		p.Fatal(err)
	}
}

func (p *process) untilLogged(text string) {
	p.Helper()
	p.until(text, func() bool { return strings.Contains(p.log.String(), text) })
}

// configured is what the status has of the configuration.
func (p *process) configured() status.Config {
	p.Helper()
	var s status.Status
	code, body := p.get("/api/v1/status")
	if err := json.Unmarshal([]byte(body), &s); code != http.StatusOK || err != nil {
		p.Fatalf("status %d, %v: %s", code, err, body)
	}
	return s.Config
}

// TestFollowerKeepsTheConfiguration: a follower that takes over while the configuration file is not valid continues with the last
// that was, as its leader has done, and not with that of its own start. Its status has both until then.
func TestFollowerKeepsTheConfiguration(t *testing.T) {
	t.Parallel()
	api, sink, later := newCluster(t), newReceiver(t), newReceiver(t)
	leader, follower := newProcess(t, api, sink, "resources: [pods]"), newProcess(t, api, sink, "resources: [pods]")
	journaled(t, leader, follower)
	leader.start()
	leader.untilLogged("watcherd is running")
	follower.start()
	follower.untilLogged("this replica follows")
	first := follower.configured()
	follower.rewrite("sinks: [", fmt.Sprintf("sinks: [{name: later, webhook: {url: %q}}, ", later.URL))
	follower.untilLogged("configuration applied")
	follower.rewrite("sinks: [", "bogus: 1\nsinks: [")
	follower.untilLogged("config file is not valid")
	if c := follower.configured(); c.Hash == first.Hash || !strings.Contains(c.LastError, "bogus") || c.LastSuccess.IsZero() {
		t.Errorf("a follower that has read a configuration, and then one that is not valid, shows %+v, before %+v", c, first)
	}
	if err := leader.end(); err != nil {
		t.Fatal(err)
	}
	follower.untilLogged("watcherd is running")
	api.Put(podPath, "ns", "new", nil)
	follower.until("the event", func() bool { return sink.has("new") && later.has("new") })
	if err := follower.end(); err != nil {
		t.Fatal(err)
	}
}

// TestJournalOfAnotherCluster: a replica in another cluster, which has the same journal by mistake, ends with what to do. It is
// no standby of the one, does not record the other, and would deliver the backlog of the one to its own sinks.
func TestJournalOfAnotherCluster(t *testing.T) {
	t.Parallel()
	api, sink, others, othersSink := newCluster(t), newReceiver(t), newCluster(t), newReceiver(t)
	others.SetUID("another")
	leader, other := newProcess(t, api, sink, "resources: [pods]"), newProcess(t, others, othersSink, "resources: [pods]")
	journaled(t, leader, other)
	sink.down.Store(true)
	api.Put(podPath, "ns", "stored", nil)
	leader.start()
	leader.untilLogged("the sink fails")
	other.start()
	other.until("it ends, or is ready to take over", func() bool {
		code, _ := other.get("/readyz")
		return code == http.StatusOK || len(other.ended) > 0
	})
	if err := leader.end(); err != nil {
		t.Fatal(err)
	}
	if err := <-other.ended; err == nil || !strings.Contains(err.Error(), "store.journal.stream") {
		t.Errorf("it ended with %v", err)
	}
	if othersSink.has("stored") {
		t.Error("the sink of the other cluster has the backlog")
	}
	sink.down.Store(false)
	leader.start()
	leader.until("the backlog is delivered", func() bool { return sink.has("stored") })
	if err := leader.end(); err != nil {
		t.Fatal(err)
	}
}
