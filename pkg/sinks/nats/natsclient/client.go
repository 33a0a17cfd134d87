// Package natsclient is the connection to NATS of the sink and of the journal, which ends although a server does not read.
package natsclient

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/nats/natsclient/natsconfig"
)

// Connect makes one attempt at all servers; an error is [ErrFiles] for a secret or a file that
// cannot be read. The connection reconnects by itself, and buffers nothing meanwhile. To close it,
// see Line.
func Connect(c *natsconfig.Config, line *Line, more ...nats.Option) (*nats.Conn, error) {
	auth, err := authOf(c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFiles, err)
	}
	line.dialer = net.Dialer{Timeout: c.Timeout}
	options := []nats.Option{
		nats.Name(c.Name),
		nats.Timeout(c.Timeout),
		nats.FlusherTimeout(c.Timeout),
		nats.SetCustomDialer(line),
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
	if files := c.TLS.In(c.Dir); !files.IsZero() {
		if _, err := files.Load(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFiles, err)
		}
		options = append(options, nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12, ServerName: files.ServerName}))
		var pair nats.TLSCertHandler
		if files.CertFile != "" {
			pair = files.Certificate
		}
		// Asked again at each connection.
		options = append(options, nats.ClientTLSConfig(pair, files.Roots))
	}
	return nats.Connect(cmp.Or(c.URL, strings.Join(c.URLs, ",")), append(options, more...)...)
}

// ErrFiles marks errors of what the configuration names: secrets, certificates and keys.
var ErrFiles = errors.New("cannot read the credentials")

// auth returns the option for the way to authenticate, nil for none. Everything
// is read again at each connection.
func authOf(c *natsconfig.Config) (nats.Option, error) {
	switch {
	case c.CredentialsFile != "":
		path := sinks.InDir(c.Dir, c.CredentialsFile)
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("credentialsFile: %w", err)
		}
		return nats.UserCredentials(path), nil
	case c.NkeySeedFile != "":
		option, err := nats.NkeyOptionFromSeed(sinks.InDir(c.Dir, c.NkeySeedFile))
		if err != nil {
			return nil, fmt.Errorf("nkeySeedFile: %w", err)
		}
		return option, nil
	case !c.Password.IsZero():
		read, err := rereader(c, "password", c.Password.In(c.Dir))
		return nats.UserInfoHandler(func() (string, string) { return c.User, read() }), err
	case !c.Token.IsZero():
		read, err := rereader(c, "token", c.Token.In(c.Dir))
		return nats.TokenHandler(nats.AuthTokenHandler(read)), err
	default:
		return nil, nil //nolint:nilnil // no authentication is a way, too
	}
}

// rereader reads the secret now, and returns a function that reads it again and
// keeps to the last value while that fails.
func rereader(c *natsconfig.Config, what string, secret sinks.Secret) (func() string, error) {
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
		return last
	}, nil
}

// Line is the network connection beneath the client's, which holds its lock while it
// writes: when the server stops reading, cutting the line is the only way out. Its methods may
// be called from any goroutine.
type Line struct {
	dialer net.Dialer

	mu   sync.Mutex // guards what follows
	conn net.Conn
}

// Dial is the client's.
func (l *Line) Dial(network, address string) (net.Conn, error) {
	conn, err := l.dialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	return &guarded{Conn: conn}, nil
}

// CutWhen cuts the line when ctx ends before stop is called.
func (l *Line) CutWhen(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.conn != nil {
			_ = l.conn.Close() // the client reports the loss
		}
	})
}
