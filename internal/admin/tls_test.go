package admin

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/watcherd/watcherd/internal/testca"
)

// authority signs certificates for a test.
type authority struct {
	*testca.Authority

	t testing.TB
}

func newAuthority(t testing.TB) *authority { return &authority{testca.New(t, "authority"), t} }

// write makes a certificate and writes it with its key.
func (a *authority) write(certFile, keyFile, name string) {
	a.t.Helper()
	cert, key := a.Pair(name, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
	for file, content := range map[string][]byte{certFile: cert, keyFile: key} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

func (a *authority) client(certFile, keyFile string) *http.Client {
	a.t.Helper()
	cfg := &tls.Config{RootCAs: a.Pool()}
	if certFile != "" {
		cert, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			a.t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true, ForceAttemptHTTP2: true}}
}

// TestClientCertificates lets in who has a certificate of the authority, under any
// host name, and follows the server's certificate as it is rotated.
func TestClientCertificates(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	ours, other := newAuthority(t), newAuthority(t)
	ours.write(in("server.crt"), in("server.key"), "one")
	ours.write(in("client.crt"), in("client.key"), "client")
	other.write(in("other.crt"), in("other.key"), "stranger")
	if err := os.WriteFile(in("ca.crt"), ours.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t)
	f.cfg.CertFile, f.cfg.KeyFile, f.cfg.ClientCAFile = in("server.crt"), in("server.key"), in("ca.crt")
	f.serve()

	// ask returns the name in the server's certificate.
	ask := func(c *http.Client) (string, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.base+"/livez", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("status %d", resp.StatusCode)
		}
		return resp.TLS.PeerCertificates[0].Subject.CommonName, nil
	}
	if _, err := ask(ours.client("", "")); err == nil {
		t.Error("answered without a certificate")
	}
	if _, err := ask(ours.client(in("other.crt"), in("other.key"))); err == nil {
		t.Error("answered a certificate of another authority")
	}
	served := func() string {
		t.Helper()
		name, err := ask(ours.client(in("client.crt"), in("client.key")))
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	if name := served(); name != "one" {
		t.Errorf("certificate of %s", name)
	}
	ours.write(in("server.crt"), in("server.key"), "another one")
	if name := served(); name != "another one" {
		t.Errorf("after the rotation: certificate of %s", name)
	}
	if err := os.WriteFile(in("server.crt"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if name := served(); name != "another one" {
		t.Errorf("with a broken file: certificate of %s", name)
	}
}

// TestReplacedAuthorityBesideBrokenCertificate: clients of an authority that was replaced are refused although the certificate of the server
// cannot be used, and the previous one stays in use.
func TestReplacedAuthorityBesideBrokenCertificate(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	ours, next := newAuthority(t), newAuthority(t)
	ours.write(in("server.crt"), in("server.key"), "server")
	ours.write(in("old.crt"), in("old.key"), "ops")
	next.write(in("new.crt"), in("new.key"), "ops")
	write := func(name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(in(name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("ca.crt", ours.PEM)
	f := newFixture(t)
	f.cfg.CertFile, f.cfg.KeyFile, f.cfg.ClientCAFile = in("server.crt"), in("server.key"), in("ca.crt")
	f.serve()
	answered := func(name string) bool {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.base+"/livez", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := ours.client(in(name+".crt"), in(name+".key")).Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	if old, new := answered("old"), answered("new"); !old || new {
		t.Fatalf("answered are a client of the authority, %v, and one of another, %v", old, new)
	}
	write("server.crt", []byte("half"))
	write("ca.crt", next.PEM)
	if old, new := answered("old"), answered("new"); old || !new {
		t.Errorf("once the authority is replaced, answered are a client of the former, %v, and one of the new, %v", old, new)
	}
}

// TestReplacedAuthority: a client whose authority was replaced is refused by its next request, on a connection that was made
// before as well, and answered on the next one once it has a certificate of the new one.
func TestReplacedAuthority(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	ours, next := newAuthority(t), newAuthority(t)
	ours.write(in("server.crt"), in("server.key"), "server")
	ours.write(in("old.crt"), in("old.key"), "ops")
	next.write(in("new.crt"), in("new.key"), "ops")
	replace := func(pem []byte) {
		t.Helper()
		if err := os.WriteFile(in("ca.crt"), pem, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace(ours.PEM)
	f := newFixture(t)
	f.cfg.CertFile, f.cfg.KeyFile, f.cfg.ClientCAFile = in("server.crt"), in("server.key"), in("ca.crt")
	f.cfg.Access = Access{CommandNames: []string{"ops"}}
	f.serve()
	for _, http2 := range []bool{true, false} {
		replace(ours.PEM)
		name := "old"
		client := ours.client("", "")
		transport := client.Transport.(*http.Transport)
		transport.DisableKeepAlives, transport.ForceAttemptHTTP2 = false, http2
		transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(in(name+".crt"), in(name+".key"))
			return &pair, err
		}
		defer transport.CloseIdleConnections()
		ask := func() int {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.base+"/api/v1/status", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
			return resp.StatusCode
		}
		if status := ask(); status != http.StatusOK {
			t.Errorf("HTTP/2 %t: status %d before", http2, status)
		}
		replace(next.PEM)
		if status := ask(); status != http.StatusForbidden {
			t.Errorf("HTTP/2 %t: status %d behind the replacement, want 403", http2, status)
		}
		if name = "new"; ask() != http.StatusOK {
			t.Errorf("HTTP/2 %t: the client is refused although it has a new certificate", http2)
		}
	}
}
