package webhook_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

// tlsServer is a server that asks for a client certificate and keeps the names.
type tlsServer struct {
	*httptest.Server
	mu      sync.Mutex
	clients []string
}

func newTLSServer(t *testing.T, server, clients *testca.Authority, name string, change func(*x509.Certificate)) *tlsServer {
	t.Helper()
	s := &tlsServer{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range r.TLS.PeerCertificates {
			s.clients = append(s.clients, c.Subject.CommonName)
		}
	}))
	s.TLS = server.Server(name, clients, change)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *tlsServer) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.clients) == 0 {
		return ""
	}
	return s.clients[len(s.clients)-1]
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTLSFailures: whatever is wrong with a certificate is retried, and said.
func TestTLSFailures(t *testing.T) {
	ours, theirs := testca.New(t, "ours"), testca.New(t, "theirs")
	for _, test := range []struct {
		name   string
		server func() *tlsServer
		change func(c *webhook.Config)
		says   string // empty: it works
	}{
		{"fine", func() *tlsServer { return newTLSServer(t, ours, nil, "127.0.0.1", nil) }, nil, ""},
		{"unknown authority", func() *tlsServer { return newTLSServer(t, theirs, nil, "127.0.0.1", nil) }, nil, "unknown authority"},
		{"expired", func() *tlsServer {
			return newTLSServer(t, ours, nil, "127.0.0.1", func(c *x509.Certificate) {
				c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
			})
		}, nil, "expired"},
		{"wrong host", func() *tlsServer { return newTLSServer(t, ours, nil, "ops.example.com", nil) }, nil, "127.0.0.1"},
		{"server name", func() *tlsServer { return newTLSServer(t, ours, nil, "ops.example.com", nil) }, func(c *webhook.Config) { c.TLS.ServerName = "ops.example.com" }, ""},
		{"client certificate asked for", func() *tlsServer { return newTLSServer(t, ours, ours, "127.0.0.1", nil) }, nil, "asked for a client certificate"},
		{"old TLS", func() *tlsServer {
			s := newTLSServer(t, ours, nil, "127.0.0.1", nil)
			s.TLS.MinVersion, s.TLS.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
			return s
		}, nil, "protocol version"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := test.server()
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, "ca.pem"), ours.PEM)
			c := webhook.NewConfig()
			c.URL.Text, c.TLS.CAFile = s.URL, "ca.pem" // relative to Options.Dir
			if test.change != nil {
				test.change(c)
			}
			err := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = dir }).Write(t.Context(), sinktest.Events(1, 1))
			if test.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassRetry || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v, class %s; a retry that says %q is wanted", err, class, test.says)
			}
		})
	}
}

// TestRotation replaces the client's certificate half by half, and the authority
// of the server: what fits together is used soon, what does not is not used.
func TestRotation(t *testing.T) {
	ours := testca.New(t, "ours")
	s := newTLSServer(t, ours, ours, "127.0.0.1", nil)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	firstCert, firstKey := ours.Pair("first", nil)
	secondCert, secondKey := ours.Pair("second", nil)
	writeFile(t, path("ca.pem"), ours.PEM)
	writeFile(t, path("cert.pem"), firstCert)
	writeFile(t, path("key.pem"), firstKey)

	var log bytes.Buffer
	c := webhook.NewConfig()
	c.URL.Text = s.URL
	c.TLS = sinks.TLS{CAFile: "ca.pem", CertFile: "cert.pem", KeyFile: "key.pem"}
	sink := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir, o.Logger = dir, slog.New(slog.NewTextHandler(&log, nil)) })
	write := func() {
		t.Helper()
		if err := sink.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
			t.Fatal(err)
		}
	}
	write()
	if got := s.last(); got != "first" {
		t.Fatalf("client %q", got)
	}
	replaceFile(t, path("cert.pem"), string(secondCert)) // half of it
	eventually(t, "the half-rotated pair is seen", func() bool {
		write()
		return strings.Contains(log.String(), "not reloaded")
	})
	if got := s.last(); got != "first" {
		t.Errorf("with a pair that does not match: client %q", got)
	}
	replaceFile(t, path("key.pem"), string(secondKey))
	eventually(t, "the new pair is used", func() bool {
		write()
		return s.last() == "second"
	})
	// The server's authority changes: a file of rubbish is not used, a good one is.
	replaceFile(t, path("ca.pem"), "rubbish")
	eventually(t, "the rubbish is seen", func() bool {
		write()
		return strings.Contains(log.String(), "no PEM certificate")
	})
	write()
	replaceFile(t, path("ca.pem"), string(testca.New(t, "theirs").PEM))
	eventually(t, "the new authority is used", func() bool {
		return sink.Write(t.Context(), sinktest.Events(1, 1)) != nil
	})
}

func TestDenyPrivate(t *testing.T) {
	e := newEndpoint(t)
	defer e.stop()
	_, port, err := net.SplitHostPort(e.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254", "10.0.0.1", "192.168.1.1", "100.64.0.1", "[fe80::1]", "[fd00::1]", "224.0.0.1", "[64:ff9b::7f00:1]"} {
		c := e.config()
		c.URL.Text = "https://" + net.JoinHostPort(strings.Trim(host, "[]"), port)
		c.DenyPrivate = true
		c.Timeout = sinks.Duration(2 * time.Second)
		err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
		if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassPause || !strings.Contains(err.Error(), "denyPrivate") {
			t.Errorf("%s: error %v, class %s; pause is wanted", host, err, class)
		}
	}
	if _, n := e.last(); n != 0 {
		t.Errorf("%d requests got through", n)
	}
}

// TestDenyPrivateTokens has the address of OAuth tokens under the same rule as the endpoint's.
func TestDenyPrivateTokens(t *testing.T) {
	asked := false
	tokens := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer tokens.Close()
	t.Setenv("CLIENT", "secret")
	e := newEndpoint(t)
	defer e.stop()
	c := e.config()
	c.OAuth = &sinks.OAuth{TokenURL: tokens.URL, ClientID: "me", ClientSecret: &sinks.Secret{Env: "CLIENT"}}
	c.DenyPrivate, c.Insecure = true, true
	if err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)); err == nil || asked {
		t.Errorf("the token was fetched from a private address: %v", err)
	}
}

// TestProxy: the environment's is ignored, the configured one used.
func TestProxy(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.URL.Host)
	}))
	defer proxy.Close()
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	c := webhook.NewConfig()
	c.URL.Text = "http://ops.invalid/hook"
	if err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)); err == nil {
		t.Error("the environment's proxy was used")
	}
	c.ProxyURL = proxy.URL
	if err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 1 || asked[0] != "ops.invalid" {
		t.Errorf("the proxy was asked for %q", asked)
	}
}
