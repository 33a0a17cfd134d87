package journal_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/store"
)

// stranger is a client of the servers that has the replicas' permissions and not their key.
func stranger(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// TestAnswerIsNoSeal: what a replica answers to a question of a client without the key passes for nothing else. A forged end
// of a snapshot would have the leader trim entries that no snapshot has.
func TestAnswerIsNoSeal(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	c := configOf(t, "J", node)
	j, js := open(t, c), node.Connect()
	save(t, j, store.Position{First: 1, Last: 1, Term: 1, Sum: 7}, text(9, 100))
	if err := j.Answer(func() journal.Present { return journal.Present{Replica: "r", Last: 1} }); err != nil {
		t.Fatal(err)
	}
	all := messages(t, js, j.SnapshotStream())
	end := all[len(all)-1]
	header := strings.Replace(end.Header.Get("Watcherd-Snapshot"), `"Last":1`, `"Last":9`, 1)
	if header == end.Header.Get("Watcherd-Snapshot") {
		t.Fatalf("no position in %s", header)
	}
	var answer *nats.Msg
	for until := time.Now().Add(patience); answer == nil; {
		var err error
		if answer, err = stranger(t, node.URL).Request("watcherd.replicas.J", []byte(header), 2*time.Second); err != nil && time.Now().After(until) {
			t.Fatal(err)
		}
	}
	forged := &nats.Msg{Subject: end.Subject, Header: nats.Header{"Watcherd-Snapshot": {header}}, Data: answer.Data}
	if _, err := js.PublishMsg(t.Context(), forged); err != nil {
		t.Fatal(err)
	}
	if s, err := j.Snapshot(t.Context()); !errors.Is(err, journal.ErrSnapshot) {
		t.Errorf("a forged end of a snapshot is taken: %+v, %v", s, err)
	}
}

// TestAskIsNotCutOff: a client without the key cannot end the roll call before the replicas answer. A scrub would
// not wait for them.
func TestAskIsNotCutOff(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	c := configOf(t, "J", node)
	nc, cut := stranger(t, node.URL), make(chan struct{}, 100)
	_, err := nc.Subscribe("watcherd.replicas.J", func(m *nats.Msg) {
		err := nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{"Status": {"503"}}})
		if err := errors.Join(err, nc.Flush()); err != nil {
			t.Error(err)
		}
		cut <- struct{}{}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	err = open(t, c).Answer(func() journal.Present {
		<-cut
		return journal.Present{Replica: "r", Last: 1}
	})
	if err != nil {
		t.Fatal(err)
	}
	j := open(t, c)
	for end := time.Now().Add(patience / 2); ; {
		all, err := j.Ask(t.Context(), time.Second)
		if err == nil && len(all) == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the replica is not counted: %+v, %v", all, err)
		}
	}
}
