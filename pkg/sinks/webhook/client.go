package webhook

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// clients holds the sink's client and makes a new one when a TLS file
// has changed. It is used from several goroutines.
type clients struct {
	dialer    *net.Dialer
	proxy     func(*http.Request) (*url.URL, error)
	transport func(*tls.Config) *http.Transport
	log       *slog.Logger
	metrics   *metrics

	mu      sync.Mutex // guards what follows; held over the read of local files
	files   sinks.TLSFiles
	current *client   // nil until the first use
	looked  time.Time // when the files were last looked at
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
		files: sinks.TLSFiles{TLS: c.TLS.In(o.Dir)}, dialer: dialer, proxy: proxy, log: o.Logger, metrics: m,
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
	if c.current == nil || !c.files.TLS.IsZero() && time.Since(c.looked) >= lookEvery {
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
	config, changed, err := c.files.Load()
	if err != nil {
		c.metrics.reload("failed")
		if c.current != nil {
			c.log.Warn("TLS files not reloaded; the previous ones stay in use", "error", err)
		}
		return err
	}
	if !changed {
		return nil
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

func (c *clients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil {
		c.current.CloseIdleConnections()
	}
}

const (
	// missingGrace is how long an endpoint that answers 404 is retried: an ingress or
	// a gateway does so for a while when its routes or backends are replaced.
	missingGrace = time.Minute

	// missingQuiet is how long there must have been no 404 for the next one to be a
	// new incident. It is longer than the pause between two probes of a paused sink.
	missingQuiet = 10 * time.Minute
)

// missing distinguishes a temporary 404 from a permanent one.
type missing struct {
	mu          sync.Mutex // guards what follows
	began, last time.Time  // of the present incident
}

// class is what a 404 at that time means.
func (m *missing) class(now time.Time) sinks.Class {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last.IsZero() || now.Sub(m.last) > missingQuiet {
		m.began = now
	}
	m.last = now
	if now.Sub(m.began) < missingGrace {
		return sinks.ClassRetry
	}
	return sinks.ClassPause
}
