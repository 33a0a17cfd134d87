package admin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/watcherd/watcherd/pkg/sinks"
)

const (
	maxConnections = 256
	maxProbes      = 64 // connections of admin.probes
	maxRequests    = 64 // of one HTTP/2 connection at a time
	maxHeader      = 16 << 10
	maxBody        = 1 << 20
	headerTimeout  = 5 * time.Second
	requestTimeout = 30 * time.Second // to read a request, and to write an answer
	idleTimeout    = 2 * time.Minute
	closeTimeout   = 3 * time.Second // for answers in flight at the end
)

// Server is the admin listener and the probes listener.
type Server struct {
	cfg       Config
	log       *slog.Logger
	metrics   *metrics
	certs     *certificates // nil: plain HTTP
	listeners []listener
	streams   chan struct{} // a place for each stream
	commands  chan struct{} // and for each command
	reads     chan struct{} // and for each answer with objects
	asks      chan struct{} // and for each answer of the history
	lists     chan struct{} // and for each answer of the API of a time
	patterns  []string      // that are handled
	unread    unread

	mu         sync.Mutex
	unreadable map[string]string // guarded by mu; token → why its file is not readable, as logged
}

type listener struct {
	net.Listener
	handler     http.Handler
	connections *connections
}

// Listen opens the configured ports, so that a port in use is an error of the start,
// and serves nothing yet. [Server.Run] or [Server.Close] releases them.
func Listen(ctx context.Context, cfg Config) (*Server, error) {
	s := &Server{
		cfg: cfg, log: cfg.Logger,
		streams: make(chan struct{}, maxStreams), commands: make(chan struct{}, maxCommands), reads: make(chan struct{}, maxReads),
		asks: make(chan struct{}, maxAsks), lists: make(chan struct{}, maxAsks), unreadable: map[string]string{},
	}
	if cfg.Listen == "" && cfg.Probes == "" && cfg.Local == nil {
		return s, nil
	}
	var err error
	if s.certs, err = loadCertificates(&cfg); err != nil {
		return nil, err
	}
	if err := cfg.Access.check(); err != nil {
		return nil, err
	}
	if s.metrics, err = newMetrics(cfg.Registerer); err != nil {
		return nil, err
	}
	if cfg.Listen != "" {
		err = s.listen(ctx, adminListen, cfg.Listen, s.certs, s.adminHandler, newConnections(maxConnections, false))
	}
	if err == nil && cfg.Probes != "" {
		err = s.listen(ctx, "admin.probes", cfg.Probes, nil, s.probesHandler, newConnections(maxProbes, true))
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	if cfg.Local != nil {
		s.listeners = append(s.listeners, listener{cfg.Local, s.adminHandler(cfg.Local.Addr()), newConnections(maxConnections, false)})
	}
	return s, nil
}

// adminListen is the key of the admin listener.
const adminListen = "admin.listen"

func (s *Server) listen(ctx context.Context, key, address string, certs *certificates, handler func(net.Addr) http.Handler, connections *connections) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%s: %s is in use by another program; stop that, or choose another address", key, address)
		}
		return fmt.Errorf("%s: %w", key, err)
	}
	bound := l.Addr()
	if key == adminListen && s.open() && !isLoopback(bound) {
		_ = l.Close() // it accepted nothing
		return fmt.Errorf("%s: %s is %s on this machine, which others can reach; protect it with a token of admin.auth or with admin.tls.clientCAFile, or listen on 127.0.0.1", key, address, bound)
	}
	if certs != nil {
		l = tls.NewListener(l, certs.config())
	}
	s.listeners = append(s.listeners, listener{l, handler(bound), connections})
	s.log.Info("listening", "for", key, "address", bound.String(), "tls", certs != nil)
	return nil
}

// Close releases the ports of a Server that is not run.
func (s *Server) Close() {
	for _, l := range s.listeners {
		_ = l.Close() // it never accepted anything
	}
	s.metrics.unregister()
}

// Addresses are those of the open listeners, the admin listener's first.
func (s *Server) Addresses() []net.Addr {
	var list []net.Addr
	for _, l := range s.listeners {
		list = append(list, l.Addr())
	}
	return list
}

// Run serves until ctx is done, then gives answers in flight a moment, and returns
// when the listeners are closed. Handlers see the end of their request's context.
// Call it once.
func (s *Server) Run(ctx context.Context) error {
	defer s.metrics.unregister()
	// Handlers outlive ctx by that moment.
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	group, gctx := errgroup.WithContext(ctx)
	for _, l := range s.listeners {
		srv := &http.Server{
			Handler:           l.handler,
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       requestTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeader,
			BaseContext:       func(net.Listener) context.Context { return base },
			ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
			HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxRequests, WriteByteTimeout: requestTimeout},
		}
		l.connections.attach(srv)
		group.Go(func() error {
			if err := srv.Serve(l.Listener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("admin listener %s: %w", l.Addr(), err)
			}
			return nil
		})
		group.Go(func() error {
			<-gctx.Done()
			l.connections.end()
			end, cancelEnd := context.WithTimeout(base, closeTimeout)
			defer cancelEnd()
			if err := srv.Shutdown(end); err != nil {
				return srv.Close()
			}
			return nil
		})
	}
	if len(s.listeners) == 0 {
		<-ctx.Done()
	}
	return group.Wait()
}

// Local connects a client in this process with a server, without a port. Every client that has
// it may read and run commands.
type Local struct {
	connections chan net.Conn
	closed      chan struct{}
	close       sync.Once
}

var _ net.Listener = (*Local)(nil)

// NewLocal returns a Local for the Config of one server.
func NewLocal() *Local {
	return &Local{connections: make(chan net.Conn), closed: make(chan struct{})}
}

// Transport returns a client's side. URLs begin with http://localhost. Requests fail once the
// server is closed.
func (l *Local) Transport() *http.Transport {
	return &http.Transport{DialContext: l.dial}
}

func (l *Local) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.connections <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *Local) Accept() (net.Conn, error) {
	select {
	case c := <-l.connections:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Local) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *Local) Addr() net.Addr { return &net.UnixAddr{Name: "local", Net: "pipe"} }

// certificates are the listener's TLS settings, read again when a file changed. The lock is held
// while the files are read: each handshake is given what they have then, so it has to wait for
// that anyway, and the previous ones, of an authority that was replaced perhaps, are no substitute.
type certificates struct {
	log *slog.Logger

	mu sync.Mutex
	// A certificate of the server that cannot be used must not keep an authority that was replaced.
	own       sinks.TLSFiles // guarded by mu; the server's certificate
	authority sinks.TLSFiles // guarded by mu; that of clients
	current   *tls.Config    // guarded by mu
}

// loadCertificates returns nil if none are configured.
func loadCertificates(cfg *Config) (*certificates, error) {
	if cfg.CertFile == "" {
		return nil, nil //nolint:nilnil // nil is the plain listener
	}
	c := &certificates{
		log:       cfg.Logger,
		own:       sinks.TLSFiles{TLS: sinks.TLS{CertFile: cfg.CertFile, KeyFile: cfg.KeyFile}},
		authority: sinks.TLSFiles{TLS: sinks.TLS{CAFile: cfg.ClientCAFile}},
	}
	own, _, err := c.own.Load()
	authority, _, errAuthority := c.authority.Load()
	if err = errors.Join(err, errAuthority); err != nil {
		return nil, fmt.Errorf("admin.tls: %w", err)
	}
	c.current = serverConfig(own, authority)
	return c, nil
}

// config is for the listener; each handshake takes the files as they are then.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.latest(), nil },
	}
}

// latest keeps the last good settings of files while these are being replaced.
func (c *certificates) latest() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	own, changed, err := c.own.Load()
	authority, other, errAuthority := c.authority.Load()
	if err = errors.Join(err, errAuthority); err != nil {
		c.log.Error("certificates of the admin listener not reloaded; the previous ones stay in use", "error", err)
	}
	if changed || other {
		c.current = serverConfig(own, authority)
		c.log.Info("certificates of the admin listener reloaded")
	}
	return c.current
}

// verify checks a client's certificates, of which the handshake has proved the first one's key, as a handshake would now.
func (c *certificates) verify(chain []*x509.Certificate) error {
	options := x509.VerifyOptions{Roots: c.latest().ClientCAs, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, next := range chain[1:] {
		options.Intermediates.AddCert(next)
	}
	_, err := chain[0].Verify(options)
	return err
}

// serverConfig makes the settings of a server of those of clients: one with its certificate, and one with the authority of
// clients' certificates, which are required if there is one.
func serverConfig(own, authority *tls.Config) *tls.Config {
	c := &tls.Config{
		MinVersion: own.MinVersion, Certificates: own.Certificates, NextProtos: []string{"h2", "http/1.1"}, ClientCAs: authority.RootCAs,
	}
	if c.ClientCAs != nil {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c
}
