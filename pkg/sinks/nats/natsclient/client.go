// Package natsclient is the connection to NATS of the sink and of the journal, which ends although a server does not read.
package natsclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
	"github.com/watcherd/watcherd/pkg/sinks/nats/natsclient/natsconfig"
)

// Sent are the passwords and tokens that servers got, which they may quote.
type Sent = post.Sent

// Connect makes one attempt at all servers; an error is [ErrFiles] for a secret or a file that
// cannot be read. The connection reconnects by itself, and buffers nothing meanwhile. To close it,
// see Line.
func Connect(c *natsconfig.Config, line *Line, sent *Sent, more ...nats.Option) (*nats.Conn, error) {
	auth, err := authOf(c, sent)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFiles, err)
	}
	servers := c.URLs
	if c.URL != "" {
		servers = []string{c.URL}
	}
	files := c.TLS.In(c.Dir)
	if _, err := files.Load(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFiles, err)
	}
	line.dialer, line.files = net.Dialer{Timeout: c.Timeout}, files
	servers, err = line.serve(servers)
	if err != nil {
		return nil, err
	}
	options := []nats.Option{
		nats.Name(c.Name),
		nats.Timeout(c.Timeout),
		nats.FlusherTimeout(c.Timeout),
		nats.SetCustomDialer(line),
		nats.SkipHostLookup(), // the line has to know the names
		nats.MaxReconnects(-1),
		nats.ReconnectWait(500 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		nats.ReconnectBufSize(-1), // never publish into the void
		nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(20 * time.Second),
	}
	if auth != nil {
		options = append(options, auth)
	}
	if !files.IsZero() && !line.webSocket {
		options = append(options, nats.Secure())
	}
	conn, err := nats.Connect(strings.Join(servers, ","), append(options, more...)...)
	if err == nil && line.exposes() && !(c.Password.IsZero() && c.Token.IsZero()) {
		c.Log.Warn("the password or token crosses the network in clear text: set tls", "server", conn.ConnectedAddr())
	}
	return conn, err
}

// Bounds of what is logged of the errors that servers report, of which they may send any number: bytes of one, and how
// many in a period.
const (
	maxReport  = 1 << 10
	maxReports = 100
	period     = time.Minute
)

// OnError is the option for what servers report. Each is logged within bounds, without what is hidden, and then given to handle.
func OnError(log *slog.Logger, sent *Sent, handle func(error)) nats.Option {
	var begin time.Time
	n := 0
	return nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { // one call at a time
		if time.Since(begin) > period {
			begin, n = time.Now(), 0
		}
		switch n++; {
		case n <= maxReports:
			log.Warn("NATS server reports an error", "error", post.Clean(sent.Error(err).Error(), maxReport))
		case n == maxReports+1:
			log.Warn("NATS server reports more errors than are logged in a minute", "errors", maxReports)
		}
		handle(err)
	})
}

// ErrFiles marks errors of what the configuration names: secrets, certificates and keys.
var ErrFiles = errors.New("cannot read the credentials")

// authOf returns the option for the way to authenticate, nil for none. Everything
// is read again at each connection.
func authOf(c *natsconfig.Config, sent *Sent) (nats.Option, error) {
	switch {
	case c.CredentialsFile != "":
		read := fileReader(c, c.CredentialsFile)
		if _, err := read(); err != nil {
			return nil, fmt.Errorf("credentialsFile: %w", err)
		}
		return nats.UserJWT(func() (string, error) {
			text, err := read()
			if err != nil {
				return "", err
			}
			return nkeys.ParseDecoratedJWT(text)
		}, signer(read)), nil
	case c.NkeySeedFile != "":
		read := fileReader(c, c.NkeySeedFile)
		public, err := publicKey(read)
		if err != nil {
			return nil, fmt.Errorf("nkeySeedFile: %w", err)
		}
		return nats.Nkey(public, signer(read)), nil
	case !c.Password.IsZero():
		read, err := rereader(c, sent, "password", c.Password.In(c.Dir))
		return nats.UserInfoHandler(func() (string, string) { return c.User, read() }), err
	case !c.Token.IsZero():
		read, err := rereader(c, sent, "token", c.Token.In(c.Dir))
		return nats.TokenHandler(nats.AuthTokenHandler(read)), err
	default:
		return nil, nil //nolint:nilnil // no authentication is a way, too
	}
}

// fileReader returns a function that reads a file of credentials: by the rules for those of secrets, which the client does not have.
func fileReader(c *natsconfig.Config, file string) func() ([]byte, error) {
	secret := sinks.Secret{File: sinks.InDir(c.Dir, file)}
	return func() ([]byte, error) {
		text, err := secret.Value()
		return []byte(text), err
	}
}

// publicKey is that of the key in a file.
func publicKey(read func() ([]byte, error)) (string, error) {
	text, err := read()
	if err != nil {
		return "", err
	}
	key, err := nkeys.ParseDecoratedNKey(text)
	if err != nil {
		return "", err
	}
	defer key.Wipe()
	return key.PublicKey()
}

// signer signs with the key in a file.
func signer(read func() ([]byte, error)) nats.SignatureHandler {
	return func(nonce []byte) ([]byte, error) {
		text, err := read()
		if err != nil {
			return nil, err
		}
		key, err := nkeys.ParseDecoratedNKey(text)
		if err != nil {
			return nil, err
		}
		defer key.Wipe()
		return key.Sign(nonce)
	}
}

// rereader reads the secret now, and returns a function that reads it again and
// keeps to the last value while that fails.
func rereader(c *natsconfig.Config, sent *Sent, what string, secret sinks.Secret) (func() string, error) {
	last, err := secret.Value()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return func() string { // called by the connection, one call at a time
		if v, err := secret.Value(); err == nil {
			last = v
		} else {
			c.Log.Warn("secret could not be read; its last value stays in use", "secret", what, "error", err)
		}
		sent.Note(last)
		return last
	}, nil
}

// Line is the network connection beneath the client's, which holds its lock while it
// writes: when the server stops reading, cutting the line is the only way out. TLS is the line's, so that
// what the server sends is checked before the client reads it. Its methods may
// be called from any goroutine.
type Line struct {
	dialer    net.Dialer
	files     sinks.TLS       // read at each handshake
	webSocket bool            // the servers are asked by it
	secure    bool            // by WebSocket over TLS
	known     map[string]bool // hosts that the configuration names

	mu   sync.Mutex // guards what follows
	conn net.Conn
	last *guarded // conn, as the client has it
	open bool     // conn leads to another machine, and has no TLS
	name string   // the last one dialed of those that the configuration names, which is no address; empty: none
}

var _ nats.CustomDialer = (*Line)(nil)

// serve takes in the URLs of the servers, and returns those for the client: WebSocket is without TLS for it.
func (l *Line) serve(urls []string) ([]string, error) {
	l.known, l.webSocket, l.secure = map[string]bool{}, false, false
	var out []string
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		l.known[u.Hostname()] = true
		switch u.Scheme {
		case "wss":
			if u.Scheme = "ws"; u.Port() == "" {
				u.Host = net.JoinHostPort(u.Hostname(), "443")
			}
			l.webSocket, l.secure = true, true
		case "ws":
			l.webSocket, l.secure = true, l.secure || !l.files.IsZero()
		}
		out = append(out, u.String())
	}
	return out, nil
}

// Dial is the client's.
func (l *Line) Dial(network, address string) (net.Conn, error) {
	conn, err := l.dialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	g := &guarded{Conn: conn, handshake: l.handshake(l.serverName(address))}
	if l.webSocket {
		g.frames = &frames{}
	}
	l.mu.Lock()
	if l.conn != nil {
		_ = l.conn.Close() // the client has lost it, and does not close all that it loses
	}
	l.conn, l.last, l.open = conn, g, !wire.Loopback(conn.RemoteAddr())
	l.mu.Unlock()
	if l.secure {
		if err := g.begin(); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// SkipTLSHandshake is the client's, which asks where it would begin TLS. The line does so before the client writes
// the next time.
func (l *Line) SkipTLSHandshake() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last.upgrade = true
	return true
}

// serverName is whom the server at an address is verified as. One that others have named by its address alone is as the
// last one that the configuration names by a name.
func (l *Line) serverName(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	byName := net.ParseIP(host) == nil
	switch {
	case l.known[host] && byName:
		l.name = host
	case !l.known[host] && !byName && l.name != "":
		return l.name
	}
	return host
}

// handshake returns the function that begins TLS with a server.
func (l *Line) handshake(host string) func(net.Conn) (net.Conn, error) {
	return func(conn net.Conn) (net.Conn, error) {
		config, err := l.files.Load()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFiles, err)
		}
		if config.ServerName == "" {
			config.ServerName = host
		}
		ctx, cancel := context.WithTimeout(context.Background(), l.dialer.Timeout)
		defer cancel()
		secured := tls.Client(conn, config)
		err = secured.HandshakeContext(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open = l.open && err != nil
		return secured, err
	}
}

// exposes reports whether others may read what is sent.
func (l *Line) exposes() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// CutWhen cuts the line when ctx ends before stop is called.
func (l *Line) CutWhen(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, l.Cut)
}

// Cut cuts the line. The client connects to another server, if there is one.
func (l *Line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.Close() // the client reports the loss
	}
}
