package webhook

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
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
				DialContext:            wire.Held(dialer.DialContext, o.MaySend),
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

// privateError means that a connection was prevented.
type privateError struct {
	addr     netip.Addr
	metadata bool
}

func (e *privateError) Error() string {
	if e.metadata {
		return fmt.Sprintf("the host resolves to %s, where cloud platforms serve the credentials of a machine", e.addr)
	}
	return fmt.Sprintf("the host resolves to %s, which is not a public address (denyPrivate)", e.addr)
}

// metadata are the ranges where platforms serve credentials to any client on the
// machine. No receiver of events is there.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::/32"),      // AWS, that of pods included
	netip.MustParsePrefix("fd20:ce::/64"),       // Google Cloud
	netip.MustParsePrefix("fd00:c1::/32"),       // Oracle Cloud
	netip.MustParsePrefix("fd00:42::/32"),       // Scaleway
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba Cloud
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
}

// carriers are the ranges of IPv6 whose addresses lead to an IPv4 address, and at which
// bytes they hold it.
var carriers = map[netip.Prefix][][4]int{
	netip.MustParsePrefix("::/96"):        {{12, 13, 14, 15}},
	netip.MustParsePrefix("64:ff9b::/96"): {{12, 13, 14, 15}}, // NAT64
	// NAT64, local, with a prefix of 48, 56, 64 or 96 bits (RFC 6052, section 2.2)
	netip.MustParsePrefix("64:ff9b:1::/48"): {{6, 7, 9, 10}, {7, 9, 10, 11}, {9, 10, 11, 12}, {12, 13, 14, 15}},
	netip.MustParsePrefix("2002::/16"):      {{2, 3, 4, 5}}, // 6to4
}

// carried are the IPv4 addresses that addr may lead to.
func carried(addr netip.Addr) (list []netip.Addr) {
	for prefix, forms := range carriers {
		if prefix.Contains(addr) {
			b := addr.As16()
			for _, at := range forms {
				list = append(list, netip.AddrFrom4([4]byte{b[at[0]], b[at[1]], b[at[2]], b[at[3]]}))
			}
		}
	}
	return list
}

// global are the addresses of IPv6 that are given out for the public internet. Addresses that hold one of IPv4 for NAT64 or SIIT,
// segments of SRv6 and sites are beyond them.
var global = netip.MustParsePrefix("2000::/3")

// special are ranges that are not public and that netip has no method for, those of IPv6 within global.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),       // "this network"
	netip.MustParsePrefix("100.64.0.0/10"),   // carrier-grade NAT
	netip.MustParsePrefix("192.0.0.0/24"),    // protocol assignments
	netip.MustParsePrefix("192.0.2.0/24"),    // documentation
	netip.MustParsePrefix("192.88.99.0/24"),  // relays of 6to4, deprecated
	netip.MustParsePrefix("198.18.0.0/15"),   // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"), // documentation
	netip.MustParsePrefix("203.0.113.0/24"),  // documentation
	netip.MustParsePrefix("240.0.0.0/4"),     // reserved, broadcast
	netip.MustParsePrefix("2001::/23"),       // protocol assignments: Teredo, which holds an IPv4 address, benchmarks, hashes
	netip.MustParsePrefix("2001:db8::/32"),   // documentation
	netip.MustParsePrefix("2002::/16"),       // 6to4: holds an IPv4 address
	netip.MustParsePrefix("3fff::/20"),       // documentation
}

// refuse returns a net.Dialer's Control: it sees the address that is dialled,
// after DNS, so that no name and no second answer gets around it. The platform's
// metadata is always refused.
func refuse(private bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("address to connect to: %w", err)
		}
		addr := ap.Addr().WithZone("").Unmap()
		if private && !public(addr) {
			return &privateError{addr: addr}
		}
		if within(addr, metadata) || slices.ContainsFunc(carried(addr), func(a netip.Addr) bool { return within(a, metadata) }) {
			return &privateError{addr: addr, metadata: true}
		}
		return nil
	}
}

func public(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && (a.Is4() || global.Contains(a)) && !within(a, special)
}

func within(a netip.Addr, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}
