package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetimeYears outlives any abandoned state directory.
const lifetimeYears = 10

// Authority signs certificates. Its methods may be called concurrently.
type Authority struct {
	Files

	certPEM []byte
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
}

// Files are the paths the API server is given.
type Files struct {
	CACert, ServerCert, ServerKey, ServiceAccountKey string
}

// Open reads the authority kept in dir, making it if there is none.
func Open(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	a := &Authority{Files: Files{
		CACert:            filepath.Join(dir, "ca.crt"),
		ServerCert:        filepath.Join(dir, "server.crt"),
		ServerKey:         filepath.Join(dir, "server.key"),
		ServiceAccountKey: filepath.Join(dir, "sa.key"),
	}}
	keyFile := filepath.Join(dir, "ca.key")
	_, err := os.Stat(a.ServiceAccountKey)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return a, a.create(keyFile)
	case err != nil:
		return nil, err
	}
	return a, a.load(keyFile)
}

// CertPEM is the authority's certificate, for those who shall trust it.
func (a *Authority) CertPEM() []byte { return a.certPEM }

func (a *Authority) load(keyFile string) error {
	certPEM, err := os.ReadFile(a.CACert)
	if err != nil {
		return err
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return err
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return fmt.Errorf("%s, %s: not a PEM certificate and key", a.CACert, keyFile)
	}
	if a.cert, err = x509.ParseCertificate(certBlock.Bytes); err != nil {
		return fmt.Errorf("%s: %w", a.CACert, err)
	}
	if a.key, err = x509.ParseECPrivateKey(keyBlock.Bytes); err != nil {
		return fmt.Errorf("%s: %w", keyFile, err)
	}
	a.certPEM = certPEM
	return nil
}

// create makes the authority, the server's certificate and the key that signs
// service account tokens. That key is written last: Open takes its presence to
// mean that everything is there.
func (a *Authority) create(keyFile string) error {
	key, keyPEM, err := newKey()
	if err != nil {
		return err
	}
	t := template("playground-ca", nil)
	t.IsCA, t.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	a.key = key
	a.certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})

	t = template("playground-server", nil)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	t.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	t.DNSNames = []string{"localhost"}
	serverCert, serverKey, err := a.sign(t)
	if err != nil {
		return err
	}
	_, serviceAccountKey, err := newKey()
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{keyFile, keyPEM},
		{a.CACert, a.certPEM},
		{a.ServerCert, serverCert},
		{a.ServerKey, serverKey},
		{a.ServiceAccountKey, serviceAccountKey},
	} {
		if err := os.WriteFile(f.name, f.data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func template(commonName string, organizations []string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: commonName, Organization: organizations},
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.AddDate(lifetimeYears, 0, 0),
		KeyUsage:  x509.KeyUsageDigitalSignature,
		// That a certificate is no authority is only said with this set, too.
		BasicConstraintsValid: true,
		SerialNumber:          new(big.Int).SetBytes([]byte(rand.Text())),
	}
}

func (a *Authority) sign(t *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM, nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
