package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	msk "github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

// errClosed is the failure of a Write behind Close.
var errClosed = errors.New("the sink is closed")

// producer returns the client that writes, made with the first call. It lives as long as
// the sink: behind a Write that was cancelled it raises the epoch of its producer id, by which brokers
// refuse what may still arrive of that Write. A new client would have an id of its own.
func (s *sink) producer() (*kgo.Client, error) {
	s.clientMu.Lock()
	defer s.clientMu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if s.client != nil {
		return s.client, nil
	}
	timeout := s.config.Timeout.Std()
	options := append(s.options(),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), // murmur2 of the key, as Java's producer
		kgo.ProducerBatchCompression(codecs[s.config.Compression]),
		kgo.ProducerBatchMaxBytes(int32(s.config.MaxMessageBytes)+batchOverhead), // chunks are within the topic's limit, which may change
		kgo.ManualFlushing(),
		kgo.ProduceRequestTimeout(timeout),
		kgo.RecordDeliveryTimeout(timeout),
		kgo.UnknownTopicRetries(0),
		kgo.MaxBufferedRecords(maxBuffered),
	)
	if s.config.Acks == acksLeader {
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()))
	}
	if s.config.Idempotent {
		options = append(options, kgo.AllowIdempotentProduceCancellation())
	} else {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, sinks.Pause(fmt.Errorf("make a client: %w", err))
	}
	s.client = client
	return client, nil
}

// barren reports whether the client was refused a producer id, such as for a right that it lacked. It keeps that answer for good,
// and has written nothing that may arrive late.
func barren(ctx context.Context, c *kgo.Client) bool {
	ctx, cancel := context.WithTimeout(ctx, grace) // it asks for one that it does not have
	defer cancel()
	_, _, err := c.ProducerID(ctx)
	refused, ok := errors.AsType[*kerr.Error](err)
	return ok && !refused.Retriable
}

// drop ends a client that cannot write any more. The next Write makes another.
func (s *sink) drop(c *kgo.Client) {
	s.clientMu.Lock()
	defer s.clientMu.Unlock()
	if s.client == c {
		s.client = nil
		s.leaving.Go(c.Close)
	}
}

// maxBuffered bounds the records in the client, over all lanes of the sink.
const maxBuffered = 1 << 20

func (s *sink) options() []kgo.Opt {
	timeout := s.config.Timeout.Std()
	options := []kgo.Opt{
		kgo.SeedBrokers(s.config.Brokers...),
		kgo.ClientID("watcherd-" + s.name),
		kgo.SoftwareNameAndVersion("watcherd", "1"),
		kgo.DisableClientMetrics(),
		kgo.Dialer(s.dial),
		kgo.ConnIdleTimeout(idle),
		kgo.RequestTimeoutOverhead(timeout),
		kgo.RequestRetries(requestRetries),
		kgo.RetryTimeout(timeout),
		kgo.MetadataMinAge(metadataAge),
		kgo.RetryBackoffFn(func(tries int) time.Duration {
			d := min(50*time.Millisecond<<min(tries, 5), time.Second)
			return d/2 + rand.N(d/2)
		}),
	}
	if s.config.SASL != nil {
		options = append(options, kgo.SASL(s.mechanism()))
	}
	return options
}

// dial makes a connection. The files of the tls block are read each time.
func (s *sink) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.config.Timeout.Std(), wire.ErrNoAnswer)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if s.config.TLS != nil {
		if conn, err = s.secure(ctx, conn, address); err != nil {
			return nil, err
		}
	}
	s.metrics.connections.Inc()
	return &line{Conn: conn, sink: s, address: address}, nil
}

func (s *sink) secure(ctx context.Context, conn net.Conn, address string) (net.Conn, error) {
	trust, err := s.config.TLS.In(s.dir).Load()
	if err != nil {
		_ = conn.Close() // the other error is the one to report
		return nil, sinks.Pause(fmt.Errorf("tls: %w", err))
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return wire.Secure(ctx, conn, trust, host)
}

// line is a connection to a broker that is counted.
type line struct {
	net.Conn
	sink    *sink
	address string
	ended   atomic.Bool
	lost    atomic.Bool
}

// Read counts a connection that the broker ended.
func (l *line) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if err == nil || l.ended.Load() {
		return n, err
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return n, err
	}
	if !l.lost.Swap(true) {
		l.sink.metrics.disconnects.Inc()
		l.sink.log.Warn("connection to Kafka lost", "broker", l.address, "error", err)
	}
	return n, err
}

func (l *line) Close() error {
	if !l.ended.Swap(true) {
		l.sink.metrics.connections.Dec()
	}
	return l.Conn.Close()
}

// mechanism returns how a connection authenticates. Every secret is read again at each
// connection, and when a broker asks for it during one.
func (s *sink) mechanism() sasl.Mechanism {
	c := s.config.SASL
	switch c.Mechanism {
	case mechanismPlain:
		return plain.Plain(func(context.Context) (a plain.Auth, err error) {
			a.User = c.User
			a.Pass, err = read("sasl.password", c.Password, s.dir)
			s.sent.Note(a.Pass)
			return a, err
		})
	case mechanismOAuth:
		return oauth.Oauth(func(ctx context.Context) (a oauth.Auth, err error) {
			a.Token, err = s.bearer(ctx)
			return a, err
		})
	case mechanismMSK:
		return msk.ManagedStreamingIAM(func(ctx context.Context) (msk.Auth, error) {
			from := c.aws()
			from.Dir, from.Timeout = s.dir, s.config.Timeout.Std()
			k, err := from.Get(ctx)
			s.sent.Note(k.Secret, k.Session)
			return msk.Auth{AccessKey: k.ID, SecretKey: k.Secret, SessionToken: k.Session, UserAgent: "watcherd"}, err
		})
	default:
		auth := func(context.Context) (a scram.Auth, err error) {
			a.User = c.User
			a.Pass, err = read("sasl.password", c.Password, s.dir)
			return a, err
		}
		if c.Mechanism == mechanismScram256 {
			return bounded{scram.Sha256(auth)}
		}
		return bounded{scram.Sha512(auth)}
	}
}

// maxIterations bounds what a broker may demand of SCRAM. Kafka's default is 4096, and its maximum 16384; the
// time of a processor that it takes cannot be interrupted.
const maxIterations = 1 << 20

// bounded is SCRAM with a bound of the iterations.
type bounded struct{ sasl.Mechanism }

func (b bounded) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	session, first, err := b.Mechanism.Authenticate(ctx, host)
	return boundedSession{session}, first, err
}

type boundedSession struct{ sasl.Session }

func (s boundedSession) Challenge(message []byte) (bool, []byte, error) {
	for part := range bytes.SplitSeq(message, []byte(",")) {
		count, found := bytes.CutPrefix(part, []byte("i="))
		if !found {
			continue
		}
		if n, err := strconv.Atoi(string(count)); err != nil || n > maxIterations {
			return false, nil, fmt.Errorf("the broker demands more than %d iterations of SCRAM", maxIterations)
		}
	}
	return s.Session.Challenge(message)
}

// readable reports the first secret or file that cannot be read, as an error that pauses.
func (s *sink) readable() error {
	if s.config.TLS != nil {
		if _, err := s.config.TLS.In(s.dir).Load(); err != nil {
			return sinks.Pause(fmt.Errorf("tls: %w", err))
		}
	}
	c := s.config.SASL
	if c == nil {
		return nil
	}
	for _, secret := range []struct {
		what  string
		value *sinks.Secret
	}{{"sasl.password", c.Password}, {"sasl.token", c.Token}, {"sasl.secretKey", c.SecretKey}, {"sasl.sessionToken", c.SessionToken}} {
		if secret.value == nil {
			continue
		}
		if _, err := read(secret.what, secret.value, s.dir); err != nil {
			return err
		}
	}
	return nil
}

func (s *sink) bearer(ctx context.Context) (string, error) {
	c := s.config.SASL
	if c.OAuth == nil {
		token, err := read("sasl.token", c.Token, s.dir)
		s.sent.Note(token)
		return token, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout.Std())
	defer cancel()
	token, _, err := c.OAuth.Fetch(ctx, s.dir, &http.Transport{Proxy: http.ProxyFromEnvironment})
	if err != nil {
		return "", fmt.Errorf("sasl: %w", err)
	}
	s.sent.Note(token)
	return token, nil
}

// maxReason is how many characters of an error are kept, which may be those of a broker.
const maxReason = 1 << 10

// hide takes out the secrets, which a broker may quote, and what is too long.
func (s *sink) hide(err error) error {
	if err == nil {
		return nil
	}
	mask := post.NewMask(s.sent.Note())
	return post.Reword(err, func(text string) string {
		if text = mask.Hide(text); len(text) > maxReason {
			text = post.Clean(text, maxReason)
		}
		return text
	})
}
