package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/nats/natsclient"
)

// session is a connection, which reconnects by itself, and its state.
type session struct {
	conn    *client.Conn
	line    natsclient.Line
	js      jetstream.JetStream // nil for core NATS
	alarm   *alarm              // rung by unsolicited messages of the server
	closed  chan struct{}       // closed when the connection's goroutines have to stop
	checked atomic.Bool         // the stream was looked at since the last failure
	payload atomic.Int64        // the server's limit

	limit    atomic.Pointer[limit]    // the stream's own; nil: none or not known
	subjects atomic.Pointer[[]string] // what the stream takes; nil: not known
}

// limit is that of a stream for the size of a message.
type limit struct {
	bytes  int64
	looked time.Time
}

// lookAgain is how long the limit of a stream is taken for granted: an operator may raise it.
const lookAgain = time.Minute

func (l *limit) old() bool { return l != nil && time.Since(l.looked) >= lookAgain }

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
	c := &session{alarm: newAlarm(), closed: make(chan struct{})}
	connection := s.config.connection()
	connection.Name, connection.Dir, connection.Log = "watcherd "+s.name, s.dir, s.log
	var err error
	c.conn, err = natsclient.Connect(&connection, &c.line, &s.sent, s.handlers(c)...)
	if errors.Is(err, natsclient.ErrFiles) {
		return nil, sinks.Pause(err)
	}
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

// handlers keep the session's state.
func (s *sink) handlers(c *session) []client.Option {
	return []client.Option{
		client.DisconnectErrHandler(func(_ *client.Conn, err error) {
			if err == nil { // closed by ourselves
				return
			}
			s.metrics.connected.Set(0)
			s.metrics.disconnects.Inc()
			s.log.Warn("connection to NATS lost", "error", s.sent.Error(err))
			c.alarm.ring(fmt.Errorf("connection lost: %w", err))
		}),
		client.ReconnectHandler(func(nc *client.Conn) {
			c.checked.Store(false)
			c.payload.Store(nc.MaxPayload())
			s.metrics.connected.Set(1)
			s.log.Info("connection to NATS restored", "server", nc.ConnectedAddr())
		}),
		client.ClosedHandler(func(*client.Conn) { close(c.closed) }),
		natsclient.OnError(s.log, &s.sent, func(err error) {
			if errors.Is(err, client.ErrPermissionViolation) {
				c.alarm.ring(classify(err))
			}
		}),
	}
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
