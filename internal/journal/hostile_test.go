package journal_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
	"github.com/watcherd/watcherd/pkg/sinks"
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

// TestPermissions: replicas do all that they do with the permissions that docs/standby.md has for them, also on streams that
// others made, which may allow direct reads.
func TestPermissions(t *testing.T) {
	t.Parallel()
	for name, given := range map[string]bool{"own streams": false, "given streams": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testPermissions(t, given)
		})
	}
}

func testPermissions(t *testing.T, given bool) {
	page, err := os.ReadFile("../../docs/standby.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(page), "permissions = {\n")
	list, _, _ = strings.Cut(list, "}")
	replica := natstest.User{Name: "replica", Password: "password", Publish: []string{}, Subscribe: []string{}}
	for _, subject := range regexp.MustCompile(`"[^"]+"`).FindAllString(list[:strings.Index(list, "subscribe")], -1) {
		replica.Publish = append(replica.Publish, strings.Trim(subject, `"`))
	}
	for _, subject := range regexp.MustCompile(`"[^"]+"`).FindAllString(list[strings.Index(list, "subscribe"):], -1) {
		replica.Subscribe = append(replica.Subscribe, strings.Trim(subject, `"`))
	}
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte(replica.Password), 0o600); err != nil {
		t.Fatal(err)
	}
	node := natstest.Start(t, natstest.Spec{Name: "solo", Dir: t.TempDir(), Users: []natstest.User{replica, {Name: "admin", Password: "admin"}}})
	c := configOf(t, "WATCHERD", node)
	if given {
		nc, err := nats.Connect(node.URL, nats.UserInfo("admin", "admin"))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		for stream, subject := range map[string]string{"WATCHERD": "watcherd.journal.WATCHERD", "WATCHERD-SNAPSHOT": "watcherd.snapshot.WATCHERD.>"} {
			if err == nil {
				_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
					Name: stream, Subjects: []string{subject}, Discard: jetstream.DiscardNew, DenyDelete: true, AllowDirect: true,
				})
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c.NATS.User, c.NATS.Password = replica.Name, sinks.Secret{File: password}
	var log bytes.Buffer
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	a, b := open(t, c), open(t, c)

	w, _ := contend(t, a, store.Position{})
	var at store.Position
	for _, batch := range [][]byte{text(1, 100), text(2, 3<<20)} {
		if at, err = w.Append(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	save(t, a, at, text(3, 3<<20))
	wantSnapshot(t, b, text(3, 3<<20))
	save(t, a, at, text(4, 3<<20))
	if ok, err := b.Has(t.Context(), at); err != nil || !ok {
		t.Errorf("the journal has its last entry: %v, %v", ok, err)
	}
	if err := b.Answer(func() journal.Present { return journal.Present{Replica: "b", Last: at.Last} }); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; {
		if all, err := a.Ask(t.Context(), time.Second); err == nil && len(all) == 1 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%v answer: %v", all, err)
		}
	}
	if _, err := w.Erase(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Resign(t.Context()), a.Sweep(t.Context()), a.Trim(t.Context(), at.First)); err != nil {
		t.Fatal(err)
	}
	contend(t, b, at)
	a.Close()
	b.Close()
	if strings.Contains(log.String(), "ermissions") {
		t.Error(log.String())
	}
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

// TestQuotedToken: a server that quotes the token has it in no error.
func TestQuotedToken(t *testing.T) {
	t.Setenv("JOURNAL_TEST_TOKEN", "canary-token")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-served
	})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, `INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"proto":1,"headers":true}`+"\r\n-ERR 'no canary-token'\r\n")
		_, _ = io.Copy(io.Discard, conn)
	}()
	c := configOf(t, "J")
	c.NATS.URLs, c.NATS.Token = []string{"nats://" + l.Addr().String()}, sinks.Secret{Env: "JOURNAL_TEST_TOKEN"}
	if _, err := journal.Open(t.Context(), c); err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "***") {
		t.Errorf("the error is %v", err)
	}
}
