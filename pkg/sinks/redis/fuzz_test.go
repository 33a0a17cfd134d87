package redis

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valkey-io/valkey-go"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/samples"
)

// Ways in which the client reads.
const (
	inTurn     = iota // an answer behind each request
	ahead             // in the background
	ofCluster         //
	ofSentinel        // which subscribes
	ways
)

// attempt makes a client that gets the parts on its first connection, the next one behind each request, and writes with it.
func attempt(t testing.TB, way uint8, parts ...[]byte) error {
	c := NewConfig()
	c.URL, c.Timeout, c.Password = "redis://127.0.0.1:1", sinks.Duration(10*time.Second), &sinks.Secret{Env: "REDIS_FUZZ_PASSWORD"}
	c.Cluster = way == ofCluster
	if way == ofSentinel {
		c.Sentinel = &Sentinel{Master: "m"}
	}
	opened, err := c.Open(t.Context(), sinks.Options{Name: "test", Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	s := opened.(*sink)
	option, err := s.options()
	if err != nil {
		t.Fatal(err)
	}
	option.AlwaysPipelining = way == ahead
	conn, ended := testkit.Script(5*time.Millisecond, parts...)
	first := make(chan net.Conn, 1)
	first <- conn
	option.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
		select {
		case c := <-first:
			return newGuarded(c), nil
		default:
			return nil, errors.New("no server listens")
		}
	}
	client, err := valkey.NewClient(option)
	if err == nil {
		events := samples.Events(2, 2)
		s.judge(t.Context(), client)
		err = s.append(t.Context(), client, "stream", events, []int{0, 1})
		client.Close()
	}
	_ = conn.Close() // the client may not have come to it
	<-ended
	return s.sent.Error(err)
}

const hello = "%2\r\n$7\r\nversion\r\n$5\r\n8.0.0\r\n$5\r\nproto\r\n:3\r\n+OK\r\n+OK\r\n"

// TestHostileServer: what a server sends does not end the process, and what it announces takes no memory.
func TestHostileServer(t *testing.T) {
	t.Setenv("REDIS_FUZZ_PASSWORD", "canary-4711")
	for name, answer := range map[string]string{
		"a text that is too long":            "$9000000000000000000\r\nabc",
		"a length beyond all numbers":        "$99999999999999999999\r\nabc",
		"a negative length":                  "*-7\r\n",
		"a map of a negative length":         "%-1\r\n",
		"a large text":                       "$100000000\r\nabc",
		"many elements":                      "*100000000\r\n:1\r\n",
		"arrays within arrays":               strings.Repeat("*1\r\n", 4<<20),
		"a line without an end":              "+" + strings.Repeat("x", 32<<20),
		"answers that nobody asked for":      strings.Repeat("+OK\r\n", 50),
		"a subscription nobody asked for":    ">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n",
		"a text in parts":                    "$?\r\n;100000000\r\nabc",
		"more about an answer than it holds": "|100000000\r\n+a\r\n",
	} {
		for way := range uint8(ways) {
			for _, parts := range [][][]byte{{[]byte(answer)}, {[]byte(hello), []byte(answer)}, {[]byte(hello + answer)}} {
				testkit.Allocates(t, 64<<20, func() {
					if err := attempt(t, way, append(parts, []byte("*2\r\n:0\r\n:0\r\n"))...); err == nil {
						t.Errorf("%s, in way %d: the events are accepted", name, way)
					}
				})
			}
		}
	}
}

// TestQuotedPasswordOfBefore: a server may quote a password that another has replaced since.
func TestQuotedPasswordOfBefore(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for request := make([]byte, 64<<10); ; {
			n, err := conn.Read(request)
			if err != nil {
				return
			}
			answer := "-ERR no canary-4711\r\n"
			if bytes.Contains(request[:n], []byte("HELLO")) {
				answer = hello
			}
			_, _ = conn.Write([]byte(answer))
		}
	}()
	t.Setenv("REDIS_TEST_PASSWORD", "canary-4711")
	c := NewConfig()
	c.URL, c.Password = "redis://"+listener.Addr().String(), &sinks.Secret{Env: "REDIS_TEST_PASSWORD"}
	s, err := c.Open(t.Context(), sinks.Options{Name: "test", Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Write(t.Context(), samples.Events(1, 1)); err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "no ***") {
			t.Errorf("the error is %v", err)
		}
		t.Setenv("REDIS_TEST_PASSWORD", "another-4711")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// FuzzServer: whatever bytes a server sends, a part after each request, end neither the process nor the client, take bounded
// memory, and the error is without the password.
func FuzzServer(f *testing.F) {
	const canary, part = "canary-4711", "\xfe"
	f.Setenv("REDIS_FUZZ_PASSWORD", canary)
	settings := "%2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n$11\r\nappendfsync\r\n$6\r\nalways\r\n"
	info := "$40\r\n# Replication\r\nrole:master\r\nconnected_sl\r\n"
	slots := "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:1\r\n$1\r\nx\r\n"
	shards := "*1\r\n%2\r\n$5\r\nslots\r\n*2\r\n:0\r\n:16383\r\n$5\r\nnodes\r\n*1\r\n%4\r\n$8\r\nendpoint\r\n$9\r\n127.0.0.1\r\n$4\r\nport\r\n:1\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$6\r\nhealth\r\n$6\r\nonline\r\n"
	var confirmed strings.Builder
	for i, channel := range []string{"+sentinel", "+slave", "-sdown", "+sdown", "+switch-master", "+reboot"} {
		fmt.Fprintf(&confirmed, ">3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:%d\r\n", len(channel), channel, i+1)
	}
	moved := ">3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$23\r\nm 10.0.0.1 1 10.0.0.2 2\r\n"
	for way, seeds := range map[uint8][][]string{
		inTurn: {
			{hello, settings, info, "*2\r\n:0\r\n:1\r\n"},
			{hello, settings, info, "-NOSCRIPT no\r\n", "*2\r\n:0\r\n:2\r\n"},
			{"-ERR unknown command 'HELLO'\r\n+OK\r\n+OK\r\n", "+OK\r\n*2\r\n$5\r\nproto\r\n:2\r\n+OK\r\n+OK\r\n", "*0\r\n", "-NOPERM no\r\n", "*-1\r\n"},
			{"-WRONGPASS canary-4711\r\n+OK\r\n+OK\r\n"},
		},
		ahead:      {{hello, settings, info, "*2\r\n:0\r\n:1\r\n"}, {hello, ">2\r\n+invalidate\r\n*1\r\n+x\r\n" + settings}},
		ofCluster:  {{hello, slots, settings}, {hello, shards, settings}},
		ofSentinel: {{hello, "+PONG\r\n" + confirmed.String() + "*0\r\n*2\r\n+127.0.0.1\r\n+1\r\n" + moved}, {hello, "-ERR no\r\n+PONG\r\n" + confirmed.String() + "*0\r\n*0\r\n"}},
	} {
		for _, seed := range seeds {
			f.Add(way, []byte(strings.Join(seed, part)))
		}
	}
	f.Fuzz(func(t *testing.T, way uint8, sent []byte) {
		testkit.Allocates(t, 64<<20+64*len(sent), func() {
			err := attempt(t, way%ways, bytes.Split(sent, []byte(part))...)
			if err != nil && strings.Contains(err.Error(), canary) {
				t.Errorf("the error is %q", err)
			}
		})
	})
}
