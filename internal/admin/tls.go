package admin

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// certificates are the listener's TLS settings, read again when a file changed.
type certificates struct {
	log *slog.Logger

	mu      sync.Mutex
	files   sinks.TLSFiles // guarded by mu
	current *tls.Config    // guarded by mu
}

// loadCertificates returns nil if none are configured.
func loadCertificates(cfg *Config) (*certificates, error) {
	if cfg.CertFile == "" {
		return nil, nil //nolint:nilnil // nil is the plain listener
	}
	c := &certificates{
		log:   cfg.Logger,
		files: sinks.TLSFiles{TLS: sinks.TLS{CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, CAFile: cfg.ClientCAFile}},
	}
	files, _, err := c.files.Load()
	if err != nil {
		return nil, fmt.Errorf("admin.tls: %w", err)
	}
	c.current = serverConfig(files)
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
	switch files, changed, err := c.files.Load(); {
	case err != nil:
		c.log.Error("certificates of the admin listener not reloaded; the previous ones stay in use", "error", err)
	case changed:
		c.current = serverConfig(files)
		c.log.Info("certificates of the admin listener reloaded")
	}
	return c.current
}

// serverConfig turns the settings of a client into those of a server: the authority, if
// there is one, is that of the clients' certificates, which are required then.
func serverConfig(files *tls.Config) *tls.Config {
	c := &tls.Config{
		MinVersion: files.MinVersion, Certificates: files.Certificates, NextProtos: []string{"h2", "http/1.1"}, ClientCAs: files.RootCAs,
	}
	if c.ClientCAs != nil {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c
}
