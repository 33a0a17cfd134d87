package nats_test

import (
	"bufio"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/nats"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// What a server announces does not end the process, by whatever it is asked: the client makes room for it at once.
func TestHostileServer(t *testing.T) {
	authority := testca.New(t, "authority")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	testkit.Write(t, ca, authority.PEM)
	secure := authority.Server("127.0.0.1", nil, nil)
	for name, answer := range map[string]string{
		"a message":              "MSG x 1 9000000000000000000\r\nabc",
		"a message, in parts":    "M|SG x 1 900000|0000000000000|\r\nabc",
		"a message with headers": "HMSG x 1 12 9000000000000000000\r\nabc",
		"a second message":       "MSG x 1 8\r\nMSG\r\nPI\r\n|msg x 1 9000000000000000000\r\nabc",
		"a line":                 "-ERR '" + strings.Repeat("x", 4<<20) + "|'\r\n",
	} {
		for _, scheme := range []string{"nats", "tls", "ws", "wss"} {
			t.Run(name+" by "+scheme, func(t *testing.T) {
				s := hostile(t, scheme, secure, "", answer)
				c := configFor(s.url, false)
				if scheme == "tls" || scheme == "wss" {
					c.TLS = sinks.TLS{CAFile: ca}
				}
				sink := sinktest.Open(t, c)
				_ = sink.Write(t.Context(), sinktest.Events(1, 1)) // core NATS acknowledges nothing
				<-s.refused
			})
		}
	}
	t.Run("what precedes TLS", func(t *testing.T) {
		s := hostile(t, "tls", secure, "PONG\r\n", "")
		c := configFor(s.url, false)
		c.TLS = sinks.TLS{CAFile: ca}
		if err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)); err == nil {
			t.Error("it passes for what the verified server sends")
		}
	})
}

// A server that quotes the token has it neither in the error nor in the log.
func TestQuotedToken(t *testing.T) {
	t.Setenv("NATS_TEST_TOKEN", "canary-token")
	for name, c := range map[string]*nats.Config{
		"refuses":        configFor(hostile(t, "nats", nil, "-ERR 'no canary-token'\r\n", "").url, false),
		"reports, later": configFor(hostile(t, "nats", nil, "", "-ERR 'Permissions Violation for Publish to \"canary-token\"'\r\n").url, false),
	} {
		c.Token = &sinks.Secret{Env: "NATS_TEST_TOKEN"}
		var log sinktest.Log
		s := sinktest.Open(t, c, log.Option)
		err := s.Write(t.Context(), sinktest.Events(1, 1))
		for err == nil { // it is reported in the background
			err = s.Write(t.Context(), sinktest.Events(1, 1))
		}
		if all := err.Error() + log.String(); strings.Contains(all, "canary") || !strings.Contains(all, "***") {
			t.Errorf("it %s: %s", name, all)
		}
	}
}

// A server that quotes a token that was replaced, or that cannot be read any more, has it neither in the error nor in the log.
func TestQuotedTokenOfBefore(t *testing.T) {
	for name, change := range map[string]func(file string){
		"replaced": func(file string) { testkit.Write(t, file, []byte("another-token")) },
		"removed": func(file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		},
	} {
		file := filepath.Join(t.TempDir(), "token")
		testkit.Write(t, file, []byte("canary-token"))
		c := configFor(hostile(t, "nats", nil, "", "-ERR 'Permissions Violation for Publish to \"canary-token\"'\r\n").url, false)
		c.Token = &sinks.Secret{File: file}
		var log sinktest.Log
		s := sinktest.Open(t, c, log.Option)
		_ = s.Write(t.Context(), sinktest.Events(1, 1)) // core NATS acknowledges nothing
		change(file)
		err := error(nil)
		for err == nil || !strings.Contains(err.Error(), "Violation") { // it is reported in the background
			err = s.Write(t.Context(), sinktest.Events(1, 1))
		}
		if all := err.Error() + log.String(); strings.Contains(all, "canary") || !strings.Contains(all, "***") {
			t.Errorf("it is %s: %s", name, all)
		}
	}
}

// A server that quotes the token where it does not show the stream does not have it in the log.
func TestQuotedTokenForStream(t *testing.T) {
	t.Setenv("NATS_TEST_TOKEN", "canary-token")
	c := configFor(hostile(t, "nats", nil, "", "-ERR 'Permissions Violation for Publish to \"canary-token\"'\r\n").url, true)
	c.Token, c.Timeout = &sinks.Secret{Env: "NATS_TEST_TOKEN"}, sinks.Duration(time.Second)
	var log sinktest.Log
	s := sinktest.Open(t, c, log.Option)
	for !strings.Contains(log.String(), "cannot be looked at") {
		_ = s.Write(t.Context(), sinktest.Events(1, 1)) // it is not acknowledged
	}
	if strings.Contains(log.String(), "canary") {
		t.Error(log.String())
	}
}

// An acknowledgement of another stream than the configured one, as any subscriber of the subject may answer, is none.
func TestOtherAcknowledgement(t *testing.T) {
	srv, js := withServer(t, nil, func(c *jetstream.StreamConfig) { c.Subjects = []string{"other.>"} })
	nc, _ := connect(t, srv.ClientURL())
	defer nc.Close()
	if _, err := nc.Subscribe("k8s.>", func(m *client.Msg) { _ = m.Respond([]byte(`{"stream":"OTHER","seq":1}`)) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	wantClass(t, sinktest.Open(t, configFor(srv.ClientURL(), true)).Write(t.Context(), sinktest.Events(2, 2)), sinks.ClassPause, "stream K8S takes")
	if n := len(stored(t, js)); n != 0 {
		t.Errorf("%d messages", n)
	}
}

// A server that reports errors without end does not fill the log.
func TestManyReports(t *testing.T) {
	report := "-ERR 'Permissions Violation for Publish to \"x\"'\r\n"
	var log sinktest.Log
	s := sinktest.Open(t, configFor(hostile(t, "nats", nil, "", strings.Repeat(report, 20_000)).url, false), log.Option)
	for err := error(nil); err == nil; { // it is reported in the background
		err = s.Write(t.Context(), sinktest.Events(1, 1))
	}
	if err := s.Close(t.Context()); err != nil { // which comes behind the reports
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "reports an error"); n == 0 || n > 1000 {
		t.Errorf("%d lines", n)
	}
}

type hostileServer struct {
	url     string
	refused chan struct{} // a value for each connection that the client ended
}

// hostile serves a connection as a server does until it is asked for a sign of life, and sends the answer then, in its
// parts. early is what it sends behind the first line.
func hostile(t *testing.T, scheme string, secure *tls.Config, early, answer string) *hostileServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	s := &hostileServer{scheme + "://" + listener.Addr().String(), make(chan struct{}, 100)}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				speak(conn, scheme, secure, early, answer)
				select {
				case s.refused <- struct{}{}:
				default:
				}
			}()
		}
	}()
	return s
}

func speak(conn net.Conn, scheme string, secure *tls.Config, early, answer string) {
	if scheme == "wss" {
		conn = tls.Server(conn, secure)
	}
	send := func(text string) { _, _ = io.WriteString(conn, text) }
	if scheme == "ws" || scheme == "wss" {
		req, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n")
		send = func(text string) {
			_, _ = conn.Write(append(binary.BigEndian.AppendUint64([]byte{0x82, 127}, uint64(len(text))), text...))
		}
	}
	send(fmt.Sprintf(`INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"proto":1,"headers":true,"tls_required":%t}`+"\r\n%s", scheme == "tls", early))
	if scheme == "tls" {
		conn = tls.Server(conn, secure)
	}
	if scheme == "ws" || scheme == "wss" { // what the client sends is masked: it is asked for nothing
		send("PONG\r\n")
		for part := range strings.SplitSeq(answer, "|") {
			send(part)
		}
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if lines.Text() != "PING" {
			continue
		}
		send("PONG\r\n")
		for part := range strings.SplitSeq(answer, "|") {
			send(part)
		}
	}
}

// TestWebSocket delivers by it, with TLS and without.
func TestWebSocket(t *testing.T) {
	authority := testca.New(t, "authority")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	testkit.Write(t, ca, authority.PEM)
	for _, scheme := range []string{"ws", "wss"} {
		t.Run(scheme, func(t *testing.T) {
			s := startServer(t, func(o *server.Options) {
				o.Websocket.Host, o.Websocket.Port, o.Websocket.NoTLS = "127.0.0.1", -1, scheme == "ws"
				if scheme == "wss" {
					o.Websocket.TLSConfig = authority.Server("127.0.0.1", nil, nil)
				}
			})
			defer stopServer(s)
			nc, js := connect(t, s.ClientURL())
			defer nc.Close()
			makeStream(t, js, nil)
			c := configFor(s.WebsocketURL(), true)
			if scheme == "wss" {
				c.TLS = sinks.TLS{CAFile: ca}
			}
			if err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(3, 3)); err != nil {
				t.Fatal(err)
			}
			if n := len(stored(t, js)); n != 3 {
				t.Errorf("%d messages are stored", n)
			}
		})
	}
}
