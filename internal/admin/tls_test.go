package admin

import (
	"crypto/tls"
	"crypto/x509"
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
