// Package wire has the common parts of kinds with connections of their own.
package wire

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
)

// ErrNoAnswer is the cause of a context that ended by a sink's own timeout.
var ErrNoAnswer = errors.New("no answer in time")

// Caused adds the cause of ctx's end to an error, if ctx ended and the error does not have it.
func Caused(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// Dial makes a connection, as of [net.Dialer.DialContext].
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Held makes connections each write to which asks first whether it may: see [sinks.Options.MaySend], nil: any may.
func Held(dial Dial, may func() error) Dial {
	if may == nil {
		return dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &held{conn, may}, nil
	}
}

type held struct {
	net.Conn
	may func() error
}

// Write implements net.Conn.
func (c *held) Write(p []byte) (int, error) {
	if err := c.may(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// Secure makes the TLS handshake over a new connection with a host, and closes it on failure.
func Secure(ctx context.Context, conn net.Conn, trust *tls.Config, host string) (net.Conn, error) {
	trust.ServerName = cmp.Or(trust.ServerName, host)
	secured := tls.Client(conn, trust)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // the other error is the one to report
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return secured, nil
}

// Loopback reports whether an address is one of this machine that no other can reach.
func Loopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// Untrusted reports whether one side does not accept the certificate of the other.
func Untrusted(err error) bool {
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, host := errors.AsType[x509.HostnameError](err)
	_, alert := errors.AsType[tls.AlertError](err)
	return certificate || host || alert
}

// Warnings logs each message once. It is safe for concurrent use.
type Warnings struct {
	Log  *slog.Logger
	said sync.Map
}

// Once logs a message, which is constant, unless it was logged for the subject before. The
// subject may be empty.
func (w *Warnings) Once(subject, msg string, args ...any) {
	if _, said := w.said.LoadOrStore(subject+" "+msg, true); !said {
		w.Log.Warn(msg, args...) //nolint:sloglint // the callers' are constants
	}
}
