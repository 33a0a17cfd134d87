package redis

import (
	"context"
	"crypto/sha1" //nolint:gosec // the server names scripts by it
	"crypto/tls"
	_ "embed" // the script
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

// script appends the events of one stream; its comment has what it takes and returns.
//
//go:embed script.lua
var script string

// scriptSHA is the server's name for the script.
var scriptSHA = func() string {
	sum := sha1.Sum([]byte(script)) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}()

// Results of the script, beside 0.
const (
	repeated   = 1
	superseded = 2
)

// connection is a client, or one connection of it.
type connection interface {
	B() valkey.Builder
	Do(ctx context.Context, cmd valkey.Completed) valkey.ValkeyResult
}

// run runs the script. A server that does not have it gets it.
func run(ctx context.Context, c connection, keys, args []string) ([]int64, error) {
	results, err := c.Do(ctx, c.B().Evalsha().Sha1(scriptSHA).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).AsIntSlice()
	if answer, ok := valkey.IsValkeyErr(err); ok && answer.IsNoScript() {
		results, err = c.Do(ctx, c.B().Eval().Script(script).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).AsIntSlice()
	}
	return results, err
}

// errClosed is the failure of a Write behind Close.
var errClosed = errors.New("the sink is closed")

// connection returns the client, which the first call makes that reaches the server.
func (s *sink) connection(ctx context.Context) (valkey.Client, error) {
	s.mu.Lock()
	client, closed := s.client, s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case client != nil:
		return client, nil
	}
	made := make(chan valkey.Client, 1) // the function may outlive the call
	err := s.connecting.Do(ctx, func() error {
		client, err := s.connect(ctx)
		made <- client
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-made, nil
}

// connect makes the client, unless there is one by now. The end of ctx does not end it.
func (s *sink) connect(ctx context.Context) (valkey.Client, error) {
	s.mu.Lock()
	if s.client != nil || s.closed {
		defer s.mu.Unlock()
		if s.closed {
			return nil, errClosed
		}
		return s.client, nil
	}
	s.making.Add(1)
	s.mu.Unlock()
	defer s.making.Done()
	option, err := s.options()
	if err != nil {
		return nil, sinks.Pause(err)
	}
	client, err := valkey.NewClient(option)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.Timeout.Std())
	defer cancel()
	s.judge(ctx, client)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		client.Close()
		return nil, errClosed
	}
	s.client = client
	return client, nil
}

func (s *sink) options() (valkey.ClientOption, error) {
	timeout := s.config.Timeout.Std()
	option := valkey.ClientOption{
		InitAddress: s.server.hosts, SelectDB: s.server.database, ForceSingleClient: !s.config.Cluster && s.config.Sentinel == nil,
		ClientName: "watcherd-" + s.name, DialCtxFn: s.dial, ConnWriteTimeout: timeout,
		DisableRetry: true, DisableCache: true, PipelineMultiplex: -1, // one connection to a server
		RingScaleEachConn: 8, ReadBufferEachConn: 16 << 10, WriteBufferEachConn: 64 << 10,
	}
	switch {
	case s.config.Password == nil:
	case s.config.Sentinel != nil: // the function below would be asked for the sentinels, too
		password, err := s.read(s.config.Password)
		if err != nil {
			return option, fmt.Errorf("password: %w", err)
		}
		option.Username, option.Password = s.config.Username, password
	default:
		option.AuthCredentialsFn = func(valkey.AuthCredentialsContext) (valkey.AuthCredentials, error) {
			password, err := s.read(s.config.Password)
			if err != nil {
				return valkey.AuthCredentials{}, sinks.Pause(fmt.Errorf("password: %w", err))
			}
			return valkey.AuthCredentials{Username: s.config.Username, Password: password}, nil
		}
	}
	if at := s.config.Sentinel; at != nil {
		option.Sentinel = valkey.SentinelOption{MasterSet: at.Master, Username: at.Username, TopologyRefreshInterval: refresh}
		if at.Password != nil {
			password, err := s.read(at.Password)
			if err != nil {
				return option, fmt.Errorf("sentinel.password: %w", err)
			}
			option.Sentinel.Password = password
		}
	}
	return option, nil
}

// read reads a password that a server gets.
func (s *sink) read(secret *sinks.Secret) (string, error) {
	password, err := secret.Value()
	s.sent.Note(password)
	return password, err
}

// refresh is how often sentinels are asked for the server that takes writes, beside their word of a change.
const refresh = 5 * time.Second

// dial makes a connection. The files of TLS are read each time.
func (s *sink) dial(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.config.Timeout.Std(), wire.ErrNoAnswer)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if !s.server.secured {
		if s.config.passwords() && !s.config.Insecure && !wire.Loopback(conn.RemoteAddr()) {
			_ = conn.Close() // nothing was sent
			return nil, sinks.Pause(fmt.Errorf("%s, which another server names, would get the password unencrypted, as it is beyond loopback: use rediss://, or set insecure: true", address))
		}
		return newGuarded(conn), nil
	}
	trust, err := s.config.TLS.Load()
	if err != nil {
		_ = conn.Close() // the other error is the one to report
		return nil, sinks.Pause(fmt.Errorf("tls: %w", err))
	}
	host, _, _ := net.SplitHostPort(address) // it was dialled
	if conn, err = wire.Secure(ctx, conn, trust, host); err != nil {
		return nil, err
	}
	return newGuarded(conn), nil
}

// discard ends a client that is refused: the next one reads the secrets again.
func (s *sink) discard(client valkey.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == client && !s.closed {
		s.client = nil
		s.making.Go(client.Close)
	}
}

// judge warns of a server that may lose what it has accepted.
func (s *sink) judge(ctx context.Context, c valkey.Client) {
	settings, err := c.Do(ctx, c.B().ConfigGet().Parameter("append*").Build()).AsStrMap()
	switch {
	case err != nil:
		s.warnings.Once("", "whether the server keeps what it accepts cannot be seen: CONFIG is not permitted")
	case settings["appendonly"] != "yes":
		s.warnings.Once("", "the server loses what it accepted since its last snapshot when it ends: set appendonly yes and appendfsync always")
	case settings["appendfsync"] != "always":
		s.warnings.Once("", "the server loses what it accepted in the last second when its machine ends: set appendfsync always", "appendfsync", settings["appendfsync"])
	}
	memory, _ := c.Do(ctx, c.B().ConfigGet().Parameter("maxmemory*").Build()).AsStrMap() // nothing is said without them
	if policy := memory["maxmemory-policy"]; memory["maxmemory"] != "0" && policy != "noeviction" && policy != "" {
		s.warnings.Once("", "the server removes what it accepted, or the keys by which it recognizes repeats, when its memory is full: set maxmemory-policy noeviction", "maxmemoryPolicy", policy)
	}
	if s.config.Replicas > 0 {
		return
	}
	info, _ := c.Do(ctx, c.B().Info().Section("replication").Build()).ToString() // nothing is said without it
	if s.config.Sentinel != nil || strings.Contains(info, "\nconnected_slaves:") && !strings.Contains(info, "\nconnected_slaves:0") {
		s.warnings.Once("", "a replica that takes over lacks what it had not received: set replicas")
	}
}

// Close ends the connections.
func (s *sink) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	client := s.client
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if client != nil {
			client.Close()
		}
		s.making.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close Redis sink: %w", ctx.Err())
	}
}
