package nats

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
	"sync/atomic"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// session is a connection, which reconnects by itself, and its state.
type session struct {
	conn    *client.Conn
	line    *line
	js      jetstream.JetStream // nil for core NATS
	alarm   *alarm              // rung by unsolicited messages of the server
	closed  chan struct{}       // closed when the connection's goroutines have to stop
	checked atomic.Bool         // the stream was looked at since the last failure
	maxMsg  atomic.Int64        // the stream's own limit; 0: none or not known
	payload atomic.Int64        // the server's limit

	subjects atomic.Pointer[[]string] // what the stream takes; nil: not known
}

// session returns the connection, making it if there is none.
func (s *sink) session(ctx context.Context) (*session, error) {
	if c := s.current.Load(); c != nil && !c.conn.IsClosed() {
		return c, c.usable()
	}
	err := s.connecting.Do(ctx, func() error {
		old := s.current.Load()
		if old != nil && !old.conn.IsClosed() {
			return nil // another Write has made it
		}
		c, err := s.connect()
		if err != nil {
			return err
		}
		s.current.Store(c)
		return nil
	})
	if err != nil {
		return nil, err
	}
	c := s.current.Load()
	return c, c.usable()
}

// usable fails at once while the connection is down: what is published then
// would wait in a buffer that is lost with the process.
func (c *session) usable() error {
	if c.conn.IsConnected() {
		return nil
	}
	err := cmp.Or(c.conn.LastError(), client.ErrConnectionReconnecting)
	return classify(fmt.Errorf("not connected: %w", err))
}

// connect makes one attempt at all servers.
func (s *sink) connect() (*session, error) {
	timeout := s.config.Timeout.Std()
	c := &session{alarm: newAlarm(), closed: make(chan struct{}), line: &line{dialer: net.Dialer{Timeout: timeout}}}
	options, err := s.options(c)
	if err != nil {
		// A secret or file that is not there or cannot be read.
		return nil, sinks.Pause(err)
	}
	servers := cmp.Or(s.config.URL, strings.Join(s.config.URLs, ","))
	c.conn, err = client.Connect(servers, options...)
	if err != nil {
		return nil, classify(fmt.Errorf("connect: %w", err))
	}
	c.payload.Store(c.conn.MaxPayload())
	s.metrics.connected.Set(1)
	if s.stream == nil {
		return c, nil
	}
	c.js, err = jetstream.New(c.conn,
		jetstream.WithPublishAsyncTimeout(timeout),
		jetstream.WithPublishAsyncMaxPending(maxPending))
	if err != nil {
		c.conn.Close()
		return nil, fmt.Errorf("prepare for JetStream: %w", err)
	}
	return c, nil
}

// maxPending bounds the publishes that wait for their acknowledgement, over all
// lanes of the sink.
const maxPending = 4096

func (s *sink) options(c *session) ([]client.Option, error) {
	auth, err := s.auth()
	if err != nil {
		return nil, err
	}
	options := []client.Option{
		client.Name("watcherd " + s.name),
		client.Timeout(s.config.Timeout.Std()),
		client.FlusherTimeout(s.config.Timeout.Std()),
		client.SetCustomDialer(c.line),
		client.MaxReconnects(-1),
		client.ReconnectWait(500 * time.Millisecond),
		client.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		client.ReconnectBufSize(-1), // never publish into the void
		client.IgnoreAuthErrorAbort(),
		client.PingInterval(20 * time.Second),
		client.DisconnectErrHandler(func(_ *client.Conn, err error) {
			if err == nil { // closed by ourselves
				return
			}
			s.metrics.connected.Set(0)
			s.metrics.disconnects.Inc()
			s.log.Warn("connection to NATS lost", "error", err)
			c.alarm.ring(fmt.Errorf("connection lost: %w", err))
		}),
		client.ReconnectHandler(func(nc *client.Conn) {
			c.checked.Store(false)
			c.payload.Store(nc.MaxPayload())
			s.metrics.connected.Set(1)
			s.log.Info("connection to NATS restored", "server", nc.ConnectedAddr())
		}),
		client.ClosedHandler(func(*client.Conn) { close(c.closed) }),
		client.ErrorHandler(func(_ *client.Conn, _ *client.Subscription, err error) {
			s.log.Warn("NATS server reports an error", "error", err)
			if errors.Is(err, client.ErrPermissionViolation) {
				c.alarm.ring(classify(err))
			}
		}),
	}
	if auth != nil {
		options = append(options, auth)
	}
	if files := s.config.TLS.In(s.dir); !files.IsZero() {
		if _, err := files.Load(); err != nil {
			return nil, err
		}
		options = append(options, client.Secure(&tls.Config{MinVersion: tls.VersionTLS12, ServerName: files.ServerName}))
		var pair client.TLSCertHandler
		if files.CertFile != "" {
			pair = files.Certificate
		}
		// Asked again at each connection.
		options = append(options, client.ClientTLSConfig(pair, files.Roots))
	}
	return options, nil
}

// auth returns the option for the way to authenticate, nil for none. Everything
// is read again at each connection.
func (s *sink) auth() (client.Option, error) {
	c := &s.config
	switch {
	case c.CredentialsFile != "":
		path := sinks.InDir(s.dir, c.CredentialsFile)
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("credentialsFile: %w", err)
		}
		return client.UserCredentials(path), nil
	case c.NkeySeedFile != "":
		option, err := client.NkeyOptionFromSeed(sinks.InDir(s.dir, c.NkeySeedFile))
		if err != nil {
			return nil, fmt.Errorf("nkeySeedFile: %w", err)
		}
		return option, nil
	case c.Password != nil:
		read, err := s.rereader("password", c.Password.In(s.dir))
		return client.UserInfoHandler(func() (string, string) { return c.User, read() }), err
	case c.Token != nil:
		read, err := s.rereader("token", c.Token.In(s.dir))
		return client.TokenHandler(client.AuthTokenHandler(read)), err
	default:
		return nil, nil //nolint:nilnil // no authentication is a way, too
	}
}

// rereader reads the secret now, and returns a function that reads it again and
// keeps to the last value while that fails.
func (s *sink) rereader(what string, secret sinks.Secret) (func() string, error) {
	last, err := secret.Value()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return func() string { // called by the connection, one call at a time
		if v, err := secret.Value(); err == nil {
			last = v
		} else {
			s.log.Warn("secret could not be read; its last value stays in use", "secret", what, "error", err)
		}
		return last
	}, nil
}

// line is the network connection beneath the client's, which holds its lock while it
// writes: when the server stops reading, cutting the line is the only way out.
type line struct {
	dialer net.Dialer

	mu   sync.Mutex // guards what follows
	conn net.Conn
}

func (l *line) Dial(network, address string) (net.Conn, error) {
	conn, err := l.dialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	return &guarded{Conn: conn}, nil
}

// cutWhen cuts the line when ctx ends before stop is called.
func (l *line) cutWhen(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.conn != nil {
			_ = l.conn.Close() // the client reports the loss
		}
	})
}

// alarm wakes everybody who waits for the server, with a reason.
type alarm struct {
	mu   sync.Mutex // guards what follows
	bell context.Context
	ding context.CancelCauseFunc
}

func newAlarm() *alarm {
	a := &alarm{}
	a.bell, a.ding = context.WithCancelCause(context.Background())
	return a
}

// ring ends the contexts that hear makes until now.
func (a *alarm) ring(why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ding(why)
	a.bell, a.ding = context.WithCancelCause(context.Background())
}

// hear returns ctx, ended with the reason when the alarm rings.
func (a *alarm) hear(ctx context.Context) (context.Context, context.CancelFunc) {
	a.mu.Lock()
	bell := a.bell
	a.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(bell, func() { cancel(context.Cause(bell)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
