package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testservers"
)

// toElasticsearch is the feed of [feedConfig] into indices with its history and its state.
func toElasticsearch(namespace, url string) string {
	return feedTo(namespace, "history, objects", fmt.Sprintf(`
- name: history
  elasticsearch: {url: %[1]q, create: true, timeout: 2s}
  retry: {initial: 20ms, max: 500ms}
- name: objects
  elasticsearch: {url: %[1]q, mode: state, create: true, timeout: 2s}
  retry: {initial: 20ms, max: 500ms}
`, url))
}

// tapIndex shows the events of a data stream in the order of their sequences, as a query would.
func tapIndex(t testing.TB, es *testservers.Elasticsearch) *tap {
	seen := map[string]bool{}
	return newTap("elasticsearch", func() (bodies [][]byte, err error) {
		type document struct {
			ID       string
			Sequence uint64
			Event    json.RawMessage
		}
		var documents []document
		for _, op := range es.Accepted() {
			var d document
			if op.Op != "create" || seen[op.ID] {
				continue
			}
			if err := json.Unmarshal(op.Source, &d); err != nil {
				t.Fatal(err)
			}
			seen[op.ID] = true
			documents = append(documents, d)
		}
		slices.SortFunc(documents, func(x, y document) int { return cmp.Compare(x.Sequence, y.Sequence) })
		for _, d := range documents {
			bodies = append(bodies, d.Event)
		}
		return bodies, nil
	})
}

// TestKillLoopElasticsearch kills the daemon and the server in turn in a sustained stream of writes. The data stream
// has every write once, and the index of objects is the cluster in the end.
func TestKillLoopElasticsearch(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	es := testservers.StartElasticsearch(t, testservers.ElasticsearchSpec{})
	d := newDaemon(t, c.Kubeconfig, toElasticsearch(ns, "http://"+es.Addr))
	w := newClient(t, c, ns)
	history := tapIndex(t, es)
	d.start()
	awaitAll(t, []*tap{history}, w.mark()) // from here on nothing is part of the first list

	kills := killInTurn(d, w, 9, es.Restart)
	awaitAll(t, []*tap{history}, w.history.finals())
	got := history.all(t)
	t.Logf("%d kills, %d writes, %d events", kills, w.history.count(), len(got))
	checkExact(t, w.history, got)

	difference := func() string {
		left := w.history.existing()
		for id, source := range es.Documents("watcherd-objects") {
			var d struct {
				UID     string
				Version string `json:"resource_version"`
				Deleted string `json:"deleted_at"`
			}
			if err := json.Unmarshal(source, &d); err != nil {
				t.Fatal(err)
			}
			if s := (state{d.UID, d.Version}); d.Deleted == "" && !left[s] {
				return fmt.Sprintf("%s is at %v, where the cluster is not", id, s)
			} else if d.Deleted == "" {
				delete(left, s)
			}
		}
		if len(left) > 0 {
			return fmt.Sprintf("%d objects are missing", len(left))
		}
		return ""
	}
	eventually(t, func() bool { return difference() == "" }, difference)
	d.stop()
	if text := difference(); text != "" {
		t.Error(text)
	}
}
