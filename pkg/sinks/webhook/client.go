package webhook

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// clients holds the sink's client and makes a new one when a TLS file
// has changed. It is used from several goroutines.
type clients struct {
	dialer    *net.Dialer
	tls       sinks.TLS
	proxy     func(*http.Request) (*url.URL, error)
	transport func(*tls.Config) *http.Transport
	log       *slog.Logger
	metrics   *metrics

	mu      sync.Mutex // guards what follows; held over the read of local files
	current *client    // nil until the first use
	looked  time.Time  // when the files were last looked at
	seen    [sha256.Size]byte
}

// client is a transport for one state of the TLS files. There is no http.Client
// around it: all that one would add here is what is not wanted, cookies and
// redirects, and copies of headers and address for the sake of those.
type client struct {
	*http.Transport

	using   int         // requests under way; guarded by clients.mu
	retired bool        // replaced by another; guarded by clients.mu
	asked   atomic.Bool // an endpoint asked for a certificate and there is none
}

// lookEvery is how often the TLS files are looked at.
const lookEvery = time.Second

func newClients(c *Config, o sinks.Options, m *metrics) (*clients, error) {
	var proxy func(*http.Request) (*url.URL, error) // nil: none, the environment's neither
	if c.ProxyURL != "" {
		u, err := url.Parse(c.ProxyURL)
		if err != nil {
			return nil, &sinks.FieldError{Path: "proxyURL", Msg: "is not a URL"}
		}
		proxy = http.ProxyURL(u)
	}
	timeout := c.Timeout.Std()
	dialer := &net.Dialer{Timeout: min(timeout, 10*time.Second), KeepAlive: 30 * time.Second, Control: refuse(c.DenyPrivate)}
	return &clients{
		dialer: dialer, tls: c.TLS.In(o.Dir), proxy: proxy, log: o.Logger, metrics: m,
		transport: func(t *tls.Config) *http.Transport {
			return &http.Transport{
				Proxy:                  proxy,
				DialContext:            dialer.DialContext,
				TLSClientConfig:        t,
				TLSHandshakeTimeout:    min(timeout, 10*time.Second),
				ForceAttemptHTTP2:      true,
				HTTP2:                  &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
				MaxIdleConnsPerHost:    64,
				WriteBufferSize:        64 << 10, // batches are large
				IdleConnTimeout:        90 * time.Second,
				MaxResponseHeaderBytes: 64 << 10,
				DisableCompression:     true, // answers are read to 64 KiB; keep it the wire's 64 KiB
			}
		},
	}, nil
}

// plain returns a transport for another address than the endpoint's, by way of the same
// proxy and under the same rules.
func (c *clients) plain() *http.Transport {
	return &http.Transport{Proxy: c.proxy, DialContext: c.dialer.DialContext}
}

// acquire returns the client to use for one request; release must follow.
func (c *clients) acquire() (*client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil || !c.tls.IsZero() && time.Since(c.looked) >= lookEvery {
		if err := c.reloadLocked(); err != nil && c.current == nil {
			return nil, err
		}
	}
	c.current.using++
	return c.current, nil
}

// reloadLocked makes a new client if the files have changed. The old one stays
// when the new files cannot be used.
func (c *clients) reloadLocked() error {
	c.looked = time.Now()
	seen := c.fingerprint()
	if c.current != nil && seen == c.seen {
		return nil
	}
	// A new set of files that cannot be used is reported once, and tried again
	// when they change once more: writers replace them one after the other.
	c.seen = seen
	config, err := c.tls.Load()
	if err != nil {
		c.metrics.reload("failed")
		if c.current != nil {
			c.log.Warn("TLS files not reloaded; the previous ones stay in use", "error", err)
		}
		return err
	}
	old := c.current
	next := &client{}
	if len(config.Certificates) == 0 {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			next.asked.Store(true)
			return &tls.Certificate{}, nil
		}
	}
	next.Transport = c.transport(config)
	c.current = next
	if old != nil {
		c.metrics.reload("succeeded")
		c.log.Info("TLS files reloaded")
		old.retired = true
		if old.using == 0 {
			old.CloseIdleConnections()
		}
	}
	return nil
}

// release ends the use of a client. The connections of one that was replaced are
// closed when its last request is done.
func (c *clients) release(cl *client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl.using--
	if cl.retired && cl.using == 0 {
		cl.CloseIdleConnections()
	}
}

// close closes the connections.
func (c *clients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil {
		c.current.CloseIdleConnections()
	}
}

// fingerprint is of the contents: a mounted volume is swapped by a link, and the
// times of its files prove little.
func (c *clients) fingerprint() [sha256.Size]byte {
	h := sha256.New()
	for _, path := range [...]string{c.tls.CAFile, c.tls.CertFile, c.tls.KeyFile} {
		if path == "" {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			b = []byte(err.Error())
		}
		fmt.Fprintf(h, "%d:", len(b))
		h.Write(b)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
