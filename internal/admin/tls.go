package admin

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// certificates are the listener's TLS settings, read again when a file changed.
type certificates struct {
	certFile, keyFile, caFile string
	log                       *slog.Logger

	mu      sync.Mutex
	stamp   string      // guarded by mu; of the files that current was made of
	current *tls.Config // guarded by mu
}

// loadCertificates returns nil if none are configured.
func loadCertificates(cfg *Config) (*certificates, error) {
	if cfg.CertFile == "" {
		return nil, nil //nolint:nilnil // nil is the plain listener
	}
	c := &certificates{certFile: cfg.CertFile, keyFile: cfg.KeyFile, caFile: cfg.ClientCAFile, log: cfg.Logger}
	stamp, err := c.stat()
	if err != nil {
		return nil, fmt.Errorf("admin.tls: %w", err)
	}
	if c.current, err = c.read(); err != nil {
		return nil, fmt.Errorf("admin.tls: %w", err)
	}
	c.stamp = stamp
	return c, nil
}

// config is for the listener; each handshake takes the files as they are then.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.latest(), nil },
	}
}

// latest keeps the last good settings while the files are being replaced.
func (c *certificates) latest() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	stamp, err := c.stat()
	if err == nil && stamp == c.stamp {
		return c.current
	}
	if err == nil {
		var next *tls.Config
		if next, err = c.read(); err == nil {
			c.current, c.stamp = next, stamp
			c.log.Info("certificates of the admin listener reloaded")
			return next
		}
	}
	if c.stamp != "broken "+stamp {
		c.stamp = "broken " + stamp
		c.log.Error("certificates of the admin listener not reloaded; the previous ones stay in use", "error", err)
	}
	return c.current
}

func (c *certificates) stat() (string, error) {
	var stamp strings.Builder
	for _, name := range []string{c.certFile, c.keyFile, c.caFile} {
		if name == "" {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&stamp, "%s %d;", info.ModTime().Format(time.RFC3339Nano), info.Size())
	}
	return stamp.String(), nil
}

func (c *certificates) read() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"},
	}
	if c.caFile == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(c.caFile)
	if err != nil {
		return nil, err
	}
	cfg.ClientCAs = x509.NewCertPool()
	if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %w", c.caFile, errNoCertificates)
	}
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	return cfg, nil
}

var errNoCertificates = errors.New("no PEM certificate in the file")
