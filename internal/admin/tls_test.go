package admin

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.cert, a.key = a.sign("authority", true)
	return a
}

func (a *authority) sign(name string, ca bool) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: ca, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	parent, parentKey := template, key
	if a.cert != nil {
		parent, parentKey = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// write makes a certificate and writes it with its key.
func (a *authority) write(certFile, keyFile, name string) {
	a.t.Helper()
	cert, key := a.sign(name, false)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert.Raw}, keyFile: {Type: "EC PRIVATE KEY", Bytes: der},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

func (a *authority) client(certFile, keyFile string) *http.Client {
	a.t.Helper()
	cfg := &tls.Config{RootCAs: x509.NewCertPool()}
	cfg.RootCAs.AddCert(a.cert)
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
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ours.cert.Raw})
	if err := os.WriteFile(in("ca.crt"), ca, 0o600); err != nil {
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
	ours.write(in("server.crt"), in("server.key"), "another one") // of another size, however coarse the clock
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
