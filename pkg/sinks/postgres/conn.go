package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	neturl "net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

// session is a connection whose tables are checked.
type session struct {
	*pgconn.PgConn
	insert map[Table]string // the statement that writes a table
}

// errClosed is the failure of a connection attempt behind Close.
var errClosed = errors.New("the sink is closed")

// session returns a connection that no other Write uses.
func (s *sink) session(ctx context.Context) (*session, error) {
	s.mu.Lock()
	if n := len(s.idle); n > 0 {
		c := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		return c, nil
	}
	s.mu.Unlock()
	config, err := s.config()
	if err != nil {
		return nil, sinks.Pause(err)
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, oneLine{err}
	}
	if secured, _ := conn.Conn().(*tls.Conn); secured == nil || len(secured.ConnectionState().VerifiedChains) == 0 {
		if remote, ok := conn.Conn().RemoteAddr().(*net.TCPAddr); ok && !remote.IP.IsLoopback() {
			s.warnings.Once("", "the server is not verified, so that others may read the password and the events: set tls")
		}
	}
	c := &session{PgConn: conn, insert: map[Table]string{}}
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, wire.ErrNoAnswer)
	defer cancel()
	if err := s.prepare(ctx, c); err != nil {
		s.end(ctx, c)
		return nil, err
	}
	return c, nil
}

// oneLine is an error of the client, which has a line for each server.
type oneLine struct{ error }

func (e oneLine) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }
func (e oneLine) Unwrap() error { return e.error }

// release takes a connection back. One that failed is ended: its server may be no longer the one that takes writes.
func (s *sink) release(ctx context.Context, c *session, failed bool) {
	if failed || c.IsClosed() {
		s.end(ctx, c)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, c)
}

// end closes a connection, in short time. One that failed is closed by the client, which cancels what
// the server does for it first; the server holds its locks for as long.
func (s *sink) end(ctx context.Context, c *session) {
	if c.IsClosed() {
		s.open.Go(func() {
			late := time.NewTimer(grace)
			defer late.Stop()
			select {
			case <-c.CleanupDone():
			case <-late.C:
				_ = c.Conn().Close() // nothing is lost with it
			}
		})
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_ = c.Close(ctx) // nothing is lost with it
}

// config is that of a connection. The secrets and files are read each time.
func (s *sink) config() (*pgconn.Config, error) {
	url, err := s.url.Value()
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	if readsSettings(url) {
		return nil, errors.New("url names a servicefile or a passfile: write what it has into url, and the password under password")
	}
	c, err := pgconn.ParseConfig(url)
	if err != nil {
		// The client's text may repeat parts of the URL.
		if file, ok := errors.AsType[*fs.PathError](err); ok {
			return nil, fmt.Errorf("a file that url names: %w", file)
		}
		return nil, errors.New("url is not like postgres://USER:PASSWORD@HOST:5432/DATABASE; write special characters as %XX")
	}
	if s.password != nil {
		if c.Password, err = s.password.Value(); err != nil {
			return nil, fmt.Errorf("password: %w", err)
		}
	}
	s.sent.Note(c.Password)
	if s.tls != nil {
		if err := s.secure(c); err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "watcherd-" + s.name
	}
	c.RuntimeParams["client_encoding"] = "UTF8"
	if c.ValidateConnect == nil {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	c.ValidateConnect = guarded(c.ValidateConnect)
	c.ConnectTimeout, c.MaxProtocolMessageBodyLen = s.timeout, maxAnswer
	c.DialFunc, c.OnNotice = s.dial, notice
	return c, nil
}

// readsSettings reports whether a URL, or a text of keywords, has the client read settings or a password of a file. What is no setting
// of the client goes to the server, so who may write a URL could send it a file that the configuration may not name.
func readsSettings(text string) bool {
	u, err := neturl.Parse(text)
	if err != nil || !strings.HasPrefix(text, "postgres://") && !strings.HasPrefix(text, "postgresql://") { // keywords, for the client
		return strings.Contains(text, "servicefile") || strings.Contains(text, "passfile")
	}
	return u.Query().Has("servicefile") || u.Query().Has("passfile")
}

// notice notes that a commit did not wait for the standbys, as it was cancelled: the server warns, and reports success.
func notice(c *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		c.CustomData()[alone] = true
	}
}

// alone is a key of a connection's data.
const alone = "committed alone"

// guarded makes an error of a panic of the client's check, which relies on a row with a column.
func guarded(check pgconn.ValidateConnectFunc) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, c *pgconn.PgConn) (err error) {
		defer func() {
			if recover() != nil {
				err = errRows
			}
		}()
		return check(ctx, c)
	}
}

// secure makes TLS with a verified server the only way to connect.
func (s *sink) secure(c *pgconn.Config) error {
	trust, err := s.tls.Load()
	if err != nil {
		return err
	}
	all := append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port}}, c.Fallbacks...)
	hosts := all[:0]
	for _, host := range all {
		if n := len(hosts); n > 0 && hosts[n-1].Host == host.Host && hosts[n-1].Port == host.Port {
			continue // the same without TLS, or with it
		}
		host.TLSConfig = trust.Clone()
		if trust.ServerName == "" {
			host.TLSConfig.ServerName = host.Host
		}
		hosts = append(hosts, host)
	}
	c.TLSConfig, c.Fallbacks = hosts[0].TLSConfig, hosts[1:]
	return nil
}

// dial makes a connection, which the sink knows until it is closed.
func (s *sink) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := s.network(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l := &line{Conn: conn, sink: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close() // there is nothing to say on it
		return nil, errClosed
	}
	s.lines[l] = true
	s.open.Add(1)
	s.metrics.connections.Inc()
	return l, nil
}

// maxAnswer bounds what a server sends in a row, in bytes: the client keeps it all. Answers have some kilobytes, and
// those of a batch that is refused its text.
const maxAnswer = 64 << 20

var errLong = fmt.Errorf("the server sent more than %d MiB in a row", maxAnswer>>20)

// line is a network connection of the sink. The client ends connections that failed in the background.
type line struct {
	net.Conn
	sink *sink
	once sync.Once
	got  atomic.Int64 // bytes since something was sent
}

func (l *line) Read(p []byte) (int, error) {
	if l.got.Load() > maxAnswer {
		return 0, errLong
	}
	n, err := l.Conn.Read(p)
	l.got.Add(int64(n))
	return n, err
}

func (l *line) Write(p []byte) (int, error) {
	l.got.Store(0)
	return l.Conn.Write(p)
}

func (l *line) Close() error {
	err := l.Conn.Close()
	l.once.Do(func() {
		l.sink.metrics.connections.Dec()
		l.sink.mu.Lock()
		delete(l.sink.lines, l)
		l.sink.mu.Unlock()
		l.sink.open.Done()
	})
	return err
}

// grace is how long a connection has for its end.
const grace = time.Second

// Close ends the connections: those in good order with a word to the server, the others after a moment for the
// client to cancel what they wait for.
func (s *sink) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	idle := s.idle
	s.idle = nil
	s.mu.Unlock()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, c := range idle {
			s.end(ctx, c)
		}
		s.open.Wait()
	}()
	late := time.NewTimer(grace)
	defer late.Stop()
	var err error
	select {
	case <-closed:
		return nil
	case <-late.C:
	case <-ctx.Done():
		err = fmt.Errorf("close PostgreSQL sink: %w", ctx.Err())
	}
	s.mu.Lock()
	for l := range s.lines {
		_ = l.Conn.Close() // the goroutine that uses it closes the line then
	}
	s.mu.Unlock()
	if err == nil {
		<-closed
	}
	return err
}

// errRows is the failure of a query whose answer is not that of the statement.
var errRows = errors.New("the server answers with other rows or columns than were selected")

// query returns the rows of a statement that selects so many columns.
func (c *session) query(ctx context.Context, sql, parameter string, columns int) ([][]string, error) {
	result := c.ExecParams(ctx, sql, [][]byte{[]byte(parameter)}, []uint32{textType}, nil, nil).Read()
	out := make([][]string, len(result.Rows))
	for i, row := range result.Rows {
		if len(row) != columns {
			return nil, errors.Join(result.Err, errRows)
		}
		for _, value := range row {
			out[i] = append(out[i], string(value))
		}
	}
	return out, result.Err
}

// exec runs statements in a transaction.
func (c *session) exec(ctx context.Context, sql string) error {
	_, err := c.Exec(ctx, sql).ReadAll()
	return err
}
