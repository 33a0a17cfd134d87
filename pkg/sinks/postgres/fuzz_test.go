package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/samples"
)

// frames makes messages of the protocol: the kind of each is its first byte.
func frames(texts ...string) (out []byte) {
	for _, text := range texts {
		out = append(binary.BigEndian.AppendUint32(append(out, text[0]), uint32(4+len(text)-1)), text[1:]...)
	}
	return out
}

// row is the description of a row of texts and the row.
func row(values ...string) []string {
	description, data := binary.BigEndian.AppendUint16([]byte{'T'}, uint16(len(values))), binary.BigEndian.AppendUint16([]byte{'D'}, uint16(len(values)))
	for _, v := range values {
		description = append(description, "c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x19\xff\xff\xff\xff\xff\xff\x00\x00"...)
		data = append(binary.BigEndian.AppendUint32(data, uint32(len(v))), v...)
	}
	return []string{string(description), string(data)}
}

// Answers of a server.
var (
	ready    = "Z" + "I"
	greeting = answer("R\x00\x00\x00\x00", "Sserver_version\x0018\x00", "K\x00\x00\x00\x01\x00\x00\x00\x02")
	writable = answer(slices.Concat(row("off"), []string{"CSHOW\x00"})...)
	tables   = query(row("history", "event", "jsonb"), row("objects", "object", "json"))
	settings = query(row("on", "on", "t", "(id)"))
	written  = string(frames("1", "2", "n", "CINSERT 0 2\x00"))
)

func answer(messages ...string) string { return string(frames(append(messages, ready)...)) }

func query(rows ...[]string) string {
	messages := []string{"1", "2", rows[0][0]}
	for _, r := range rows {
		messages = append(messages, r[1])
	}
	return answer(append(messages, "CSELECT 1\x00")...)
}

// TestQuotedPasswordOfBefore: a server may quote a password that another has replaced since.
func TestQuotedPasswordOfBefore(t *testing.T) {
	t.Setenv("POSTGRES_TEST_URL", "postgres://me:canary-4711@127.0.0.1:1/db?sslmode=disable")
	c := NewConfig()
	c.URL = sinks.Secret{Env: "POSTGRES_TEST_URL"}
	opened, err := c.Open(t.Context(), sinks.Options{Name: "test", Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	s := opened.(*sink)
	var parts [][]byte
	for _, part := range []string{greeting, writable, settings, tables, written + written + string(frames(ready)), string(frames("ESERROR\x00C40001\x00Mno canary-4711\x00\x00", ready))} {
		parts = append(parts, []byte(part))
	}
	client, ended := testkit.Script(2*time.Second, parts...)
	s.network = func(context.Context, string, string) (net.Conn, error) { return client, nil }
	if err := s.Write(t.Context(), samples.Events(2, 2)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("POSTGRES_TEST_URL", "postgres://me:another-4711@127.0.0.1:1/db?sslmode=disable")
	if err := s.Write(t.Context(), samples.Events(2, 2)); err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "no ***") {
		t.Errorf("the error is %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	_ = client.Close() // the sink may not have come to it
	<-ended
}

// FuzzServer: whatever bytes a server sends, a part after each request, end neither the process nor the sink, take bounded memory, and
// the error is without the password.
func FuzzServer(f *testing.F) {
	const canary, part = "canary-4711", "\xfe"
	f.Setenv("POSTGRES_FUZZ_URL", "postgres://me:"+canary+"@127.0.0.1:1/db?sslmode=disable")
	events := samples.Events(2, 2)
	for _, seed := range [][]string{
		{greeting, writable, settings, tables, written + written + string(frames(ready))},
		{greeting, writable, settings, tables, written + written + written + string(frames(ready))},
		{greeting, writable, query(row("on"), row("on")), tables},
		{greeting, writable, answer("1", "2", row("")[0], "CSELECT 0\x00")},
		{greeting, writable, settings, query(row("history"), row("objects"))},
		{greeting, writable, settings, tables, string(frames("ESERROR\x00C22P05\x00Mcanary-4711\x00\x00", ready))},
		{string(frames("R\x00\x00\x00\x0aSCRAM-SHA-256\x00\x00")), string(frames("R\x00\x00\x00\x0br=x,s=eA==,i=2"))},
		{string(frames("R\x00\x00\x00\x05salt")), string(frames("EC28P01\x00Mno\x00\x00"))},
		{greeting, string(frames("Nnotice\x00\x00", "A\x00\x00\x00\x01x\x00y\x00", "G\x00\x00\x00", "W\x00\x00\x00", "d"))},
	} {
		f.Add([]byte(strings.Join(seed, part)))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		c := NewConfig()
		c.URL, c.Timeout = sinks.Secret{Env: "POSTGRES_FUZZ_URL"}, sinks.Duration(10*time.Second)
		opened, err := c.Open(t.Context(), sinks.Options{Name: "test", Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		s := opened.(*sink)
		client, ended := testkit.Script(5*time.Millisecond, bytes.Split(sent, []byte(part))...)
		once := make(chan net.Conn, 1)
		once <- client
		s.network = func(context.Context, string, string) (net.Conn, error) {
			select {
			case conn := <-once:
				return conn, nil
			default:
				return nil, errors.New("no server listens")
			}
		}
		testkit.Allocates(t, maxAnswer+16<<20+64*len(sent), func() {
			if err := s.Write(t.Context(), events); err != nil && strings.Contains(err.Error(), canary) {
				t.Errorf("the error is %q", err)
			}
		})
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		_ = client.Close() // the sink may not have come to it
		<-ended
	})
}

// TestOpenTransaction: a server, or what stands between, that ends its answer within a transaction has not committed.
func TestOpenTransaction(t *testing.T) {
	t.Setenv("POSTGRES_TEST_URL", "postgres://me@127.0.0.1:1/db?sslmode=disable")
	for end, want := range map[string]string{ready: "", "ZT": "has not ended the transaction"} {
		c := NewConfig()
		c.URL = sinks.Secret{Env: "POSTGRES_TEST_URL"}
		opened, err := c.Open(t.Context(), sinks.Options{Name: "test", Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		s := opened.(*sink)
		var parts [][]byte
		for _, part := range []string{greeting, writable, settings, tables, written + written + string(frames(end))} {
			parts = append(parts, []byte(part))
		}
		client, ended := testkit.Script(2*time.Second, parts...)
		s.network = func(context.Context, string, string) (net.Conn, error) { return client, nil }
		err = s.Write(t.Context(), samples.Events(2, 2))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q", end, err, want)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		_ = client.Close() // the sink may not have come to it
		<-ended
	}
}
