package admin

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/status"
)

// TestHeldConnections holds more connections open than the listener has room for: silent
// ones, some that stop amid a request, and some that were used once. Whoever asks after
// that is answered, and so is a request that was being answered before.
func TestHeldConnections(t *testing.T) {
	f := newFixture(t)
	f.cfg.Probes = "127.0.0.1:0"
	f.serve()
	address := f.srv.Addresses()[1].String()
	dial := func() net.Conn {
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	ask := func(conn net.Conn) {
		t.Helper()
		if _, err := fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status, err)
		}
	}
	for i := range maxConnections + 50 {
		conn := dial()
		switch i % 3 {
		case 1:
			if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost:"); err != nil {
				t.Fatal(err)
			}
		case 2:
			ask(conn)
		}
	}
	for range 20 {
		ask(dial())
	}
}

// TestSlowScrapes asks for large metrics and does not read them. Others are answered.
func TestSlowScrapes(t *testing.T) {
	f := newFixture(t)
	f.cfg.Probes = "127.0.0.1:0"
	registry := prometheus.NewRegistry()
	large := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "large", Help: strings.Repeat("x", 16<<20)}, nil)
	large.WithLabelValues()
	registry.MustRegister(large)
	f.cfg.Gatherer = registry
	f.serve()
	address := f.srv.Addresses()[1].String()
	for range 5 {
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil { // it is being answered
			t.Fatal(err)
		}
	}
	if code, body := f.ask(http.MethodGet, "http://"+address+"/metrics", ""); code != http.StatusOK || len(body) < 16<<20 {
		t.Errorf("status %d, %d bytes", code, len(body))
	}
}

// TestBusyConnectionsStay: requests that are being answered are not given up for others,
// unless answers are brief.
func TestBusyConnectionsStay(t *testing.T) {
	t.Run("long answers", func(t *testing.T) { busyConnections(t, false) })
	t.Run("brief answers", func(t *testing.T) { busyConnections(t, true) })
}

func busyConnections(t *testing.T, brief bool) {
	const limit = 3
	begun, end := make(chan struct{}), make(chan struct{})
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: counted(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			begun <- struct{}{}
			<-end
		}
	}))}
	newConnections(limit, brief).attach(srv)
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	get := func(path string) error {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+path, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	slow := make(chan error, limit)
	for range limit {
		go func() { slow <- get("/slow") }()
		<-begun
	}
	if err := get("/"); (err == nil) != brief {
		t.Errorf("one more than the limit: %v", err)
	}
	close(end)
	failed := 0
	for range limit {
		if err := <-slow; err != nil {
			failed++
		}
	}
	if failed > 0 != brief || failed > 1 {
		t.Errorf("%d slow requests failed", failed)
	}
	if err := get("/"); err != nil {
		t.Error(err)
	}
	if err := srv.Shutdown(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// TestSlowReadersOfThePage ask for the files of the page, for which no token is needed, and do not
// read them, on as many connections as there may be. A client with a token is answered.
func TestSlowReadersOfThePage(t *testing.T) {
	f := newFixture(t)
	f.cfg.Access.ReadTokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(f.cfg.Access.ReadTokenFile, []byte("reader"), 0o600); err != nil {
		t.Fatal(err)
	}
	const limit = 8
	f.serve(func(s *Server) { s.listeners[0].connections.limit = limit })
	for range limit {
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", f.srv.Addresses()[0].String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if tcp, ok := conn.(*net.TCPConn); !ok || tcp.SetReadBuffer(4<<10) != nil {
			t.Fatal("no receive buffer")
		}
		if _, err := io.WriteString(conn, strings.Repeat("GET /ui/app.js HTTP/1.1\r\nHost: a\r\n\r\n", 500)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil { // it is being answered
			t.Fatal(err)
		}
	}
	for range 20 {
		if code, body := f.ask(http.MethodGet, f.base+"/api/v1/status", "", "Authorization", "Bearer reader"); code != http.StatusOK {
			t.Fatalf("status %d: %s", code, body)
		}
	}
}

// TestUnreadWithoutToken: a client without a token asks for the page, or for what it may not have, many times on one connection of
// HTTP/2 and reads nothing. Only a few of its requests and their answers are kept in memory.
func TestUnreadWithoutToken(t *testing.T) {
	for path, status := range map[string]string{"/ui/app.js": "200", "/api/v1/status": "401", "/ui/../api/v1/status": "401", "//ui": "401"} {
		f := newFixture(t)
		read, _ := f.askUnread(path, "wrong")
		got := map[string]int{}
		for answers := 0; answers < maxRequests; {
			switch frame := read().(type) {
			case *http2.MetaHeadersFrame:
				answers++
				got[frame.PseudoValue("status")]++
			case *http2.RSTStreamFrame:
				answers++
				got["aborted"]++
			}
		}
		if got[status] != maxOpen || got["aborted"] != maxRequests-maxOpen {
			t.Errorf("%s: answers by status: %v", path, got)
		}
	}
}

// TestUnreadAnswers: a client asks for large metrics, or a large status, many times on one connection of HTTP/2 and reads nothing. Of
// its answers only the newest stay in memory, and others are answered.
func TestUnreadAnswers(t *testing.T) {
	large := strings.Repeat("x", maxUnread/8)
	registry := prometheus.NewRegistry()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "large", Help: large})
	registry.MustRegister(gauge)
	for _, path := range []string{"/metrics", "/api/v1/status"} {
		t.Run(path, func(t *testing.T) {
			f := newFixture(t)
			f.cfg.Gatherer = registry
			f.state.Store(&status.Status{Pipeline: status.Pipeline{Routes: []status.Route{{Name: large}}}})
			read, client := f.askUnread(path, "reader")
			most := 0
			for answered := map[uint32]bool{}; len(answered) < maxRequests; {
				switch frame := read().(type) {
				case *http2.MetaHeadersFrame, *http2.RSTStreamFrame:
					answered[frame.Header().StreamID] = true
				}
				f.srv.unread.mu.Lock()
				most = max(most, f.srv.unread.size)
				f.srv.unread.mu.Unlock()
			}
			if most == 0 || most > maxUnread {
				t.Errorf("up to %d bytes of answers were in memory", most)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.base+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer reader")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || len(body) < len(large) {
				t.Errorf("%s, %d bytes, %v", resp.Status, len(body), err)
			}
		})
	}
}

// askUnread serves by TLS with a token for reading, asks for a path as often as a connection of HTTP/2 permits, and
// lets none of the bodies be sent. read returns the next frame of the answers; other is another client.
func (f *fixture) askUnread(path, token string) (read func() http2.Frame, other *http.Client) {
	f.t.Helper()
	dir := f.t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	ours := newAuthority(f.t)
	ours.write(in("server.crt"), in("server.key"), "one")
	if err := os.WriteFile(in("token"), []byte("reader"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.cfg.CertFile, f.cfg.KeyFile, f.cfg.Access.ReadTokenFile = in("server.crt"), in("server.key"), in("token")
	f.serve()
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: ours.Pool(), NextProtos: []string{"h2"}}}
	conn, err := dialer.DialContext(f.t.Context(), "tcp", f.srv.Addresses()[0].String())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		f.t.Fatal(err)
	}
	_, err = io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	err = errors.Join(err, framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := range uint32(maxRequests) {
		block.Reset()
		for _, h := range []hpack.HeaderField{
			{Name: ":method", Value: "GET"},
			{Name: ":path", Value: path},
			{Name: ":scheme", Value: "https"},
			{Name: ":authority", Value: "a"},
			{Name: "authorization", Value: "Bearer " + token},
		} {
			err = errors.Join(err, encoder.WriteField(h))
		}
		err = errors.Join(err, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}))
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return func() http2.Frame {
		f.t.Helper()
		frame, err := framer.ReadFrame()
		if err != nil {
			f.t.Fatal(err)
		}
		return frame
	}, ours.client("", "")
}

// TestEndWithSilentConnections: the end of a server waits for an answer, and for no connection on which nothing was asked.
func TestEndWithSilentConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const answer = closeTimeout / 2 // takes so long
		local := NewLocal()
		handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(answer) })
		s := &Server{log: slog.New(slog.DiscardHandler), listeners: []listener{{local, handler, newConnections(maxConnections, false)}}}
		ctx, cancel := context.WithCancel(t.Context())
		ended, answered := make(chan error, 1), make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		silent, err := local.dial(ctx, "", "")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			client := http.Client{Transport: local.Transport()}
			defer client.CloseIdleConnections()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", nil)
			if err == nil {
				var resp *http.Response
				if resp, err = client.Do(req); err == nil {
					err = resp.Body.Close()
				}
			}
			answered <- err
		}()
		synctest.Wait()
		began := time.Now()
		cancel()
		if err := errors.Join(<-ended, <-answered); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < answer || took >= closeTimeout {
			t.Errorf("the end took %v, the answer %v", took, answer)
		}
		if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the silent connection: %v", err)
		}
	})
}

// TestUnreadCommand: a client that does not read the answer to its command keeps the place for commands no longer than other answers take.
func TestUnreadCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := NewLocal()
		s := &Server{log: slog.New(slog.DiscardHandler), commands: make(chan struct{}, maxCommands)}
		long := strings.Repeat("a", 1<<20)
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = s.command(w, r, func(context.Context, func(int)) (Progress, error) {
				return Progress{Backtest: &retrace.Backtest{Routes: []retrace.RouteTest{{Route: long}}}}, nil
			})
		})
		s.listeners = []listener{{local, handler, newConnections(maxConnections, false)}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		for range maxCommands {
			client, err := local.dial(ctx, "", "")
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if _, err := io.WriteString(client, "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(s.commands) != maxCommands {
			t.Fatalf("%d commands run", len(s.commands))
		}
		time.Sleep(2 * requestTimeout)
		synctest.Wait()
		if len(s.commands) > 0 {
			t.Errorf("%d places are still taken", len(s.commands))
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
