package pki_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"os"
	"slices"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/watcherd/watcherd/playground/internal/pki"
)

// What one start signs, the next must still trust.
func TestAuthorityOutlivesARestart(t *testing.T) {
	dir := t.TempDir()
	first, err := pki.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := first.Kubeconfig("https://127.0.0.1:1", "eve", []string{"devs", "ops"})
	if err != nil {
		t.Fatal(err)
	}
	second, err := pki.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.CertPEM(), second.CertPEM()) {
		t.Fatal("the second start made another authority")
	}

	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, cfg.CertData)
	// DER sorts the members of a set, so the groups' order is nobody's.
	groups := slices.Sorted(slices.Values(cert.Subject.Organization))
	if cert.Subject.CommonName != "eve" || !slices.Equal(groups, []string{"devs", "ops"}) {
		t.Errorf("the certificate names %s", cert.Subject)
	}
	verify(t, second, cert, x509.ExtKeyUsageClientAuth)
	serverPEM, err := os.ReadFile(second.ServerCert)
	if err != nil {
		t.Fatal(err)
	}
	server := parse(t, serverPEM)
	verify(t, second, server, x509.ExtKeyUsageServerAuth)
	if err := server.VerifyHostname("127.0.0.1"); err != nil {
		t.Error(err)
	}
}

func TestKeysAreTheOwnersOnly(t *testing.T) {
	dir := t.TempDir()
	if _, err := pki.Open(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", e.Name(), info.Mode())
		}
	}
}

func parse(t *testing.T, certPEM []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certPEM)
	if block == nil {
		t.Fatal("no PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func verify(t *testing.T, a *pki.Authority, cert *x509.Certificate, use x509.ExtKeyUsage) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.CertPEM())
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
		t.Errorf("%s: %v", cert.Subject, err)
	}
}
