package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/pkg/sinks/nats/natsclient"
	"github.com/watcherd/watcherd/pkg/sinks/nats/natsclient/natsconfig"
)

// Config is where the journal is.
type Config struct {
	NATS   natsconfig.Config
	Stream string
	// Replicas and MaxBytes are those of the stream, if Open makes it. A stream without a bound is used as if it had that.
	Replicas int
	MaxBytes int64
	// Silence is how long this replica may write nothing, as the writer, until another takes over. Its entries have that, since
	// the others may be configured differently.
	Silence time.Duration
	Keys    Keys
	Log     *slog.Logger
}

// Client is a connection to the journal, which reconnects by itself.
type Client struct {
	Config
	line   natsclient.Line
	sent   natsclient.Sent
	conn   *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
	closed chan struct{} // by the connection, at its end

	mu    sync.Mutex
	known uint64    // guarded by mu; the highest sequence that the stream has had, by what this client has seen
	lacks uint64    // guarded by mu; a sequence that the stream has had and does not have, by the answers of servers
	since time.Time // guarded by mu; that they answer so; zero: they do not
	ends  uint64    // guarded by mu; the highest sequence that a server has been seen to have since then
	heard time.Time // guarded by mu; when a request was answered, or the connection cut, last
	unfit string    // guarded by mu; why the stream would be refused, "" if it would not
}

// attempt bounds a request. An election in the stream's cluster takes longer: requests are repeated.
const attempt = 2 * time.Second

// repeatAfter is the pause before a request is repeated.
const repeatAfter = 100 * time.Millisecond

// Open connects, and makes the stream if it is missing. One attempt; [ErrStream] is an error that another does not help
// against.
func Open(ctx context.Context, c Config) (*Client, error) {
	j := &Client{Config: c, closed: make(chan struct{}), heard: time.Now()}
	conn, err := natsclient.Connect(&c.NATS, &j.line, &j.sent,
		nats.ClosedHandler(func(*nats.Conn) { close(j.closed) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				c.Log.Warn("connection to the journal lost", "error", j.sent.Error(err))
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			c.Log.Info("connection to the journal restored", "server", nc.ConnectedAddr())
		}),
		natsclient.OnError(c.Log, &j.sent, func(error) {}))
	if err != nil {
		return nil, fmt.Errorf("connect to the journal: %w", j.sent.Error(err))
	}
	j.conn = conn
	if j.js, err = jetstream.New(conn, jetstream.WithDefaultTimeout(attempt)); err == nil {
		err = j.look(ctx)
	}
	if err != nil {
		j.Close() //nolint:contextcheck // it is closed after ctx, too
		return nil, j.sent.Error(err)
	}
	return j, nil
}

// Close ends the connection, and what waits for it.
func (j *Client) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), attempt)
	defer cancel()
	stop := j.line.CutWhen(ctx)
	defer stop()
	j.conn.Close()
	<-j.closed
}

// ErrStream means that the stream is not one that keeps a journal.
var ErrStream = errors.New("the stream cannot be the journal")

func (j *Client) subject() string { return "watcherd.journal." + j.Stream }

// look finds or makes the stream.
func (j *Client) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*attempt)
	defer cancel()
	stream, err := j.js.Stream(ctx, j.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = j.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: j.Stream, Subjects: []string{j.subject()}, Description: "journal of a store of watcherd",
			Storage: jetstream.FileStorage, Replicas: j.Replicas, Discard: jetstream.DiscardNew, MaxBytes: j.MaxBytes, DenyDelete: true,
		})
		if err == nil {
			j.Log.Info("stream created", "stream", j.Stream, "replicas", j.Replicas, "maxBytes", j.MaxBytes)
		}
	}
	if err != nil {
		return fmt.Errorf("look at the stream %s of the journal: %w", j.Stream, err)
	}
	j.stream = stream
	return j.fits(stream.CachedInfo().Config)
}

// fits refuses a stream that cannot be the journal.
func (j *Client) fits(c jetstream.StreamConfig) error {
	if least := min(j.MaxBytes, minRoom); c.MaxBytes > 0 && c.MaxBytes < least {
		return fmt.Errorf("%w: stream %s has room for %d bytes; it must have %d at least", ErrStream, c.Name, c.MaxBytes, least)
	}
	return j.verify(c, j.subject())
}

// minRoom has the largest entry several times.
const minRoom = 256 << 20

// verify refuses a stream that would lose entries.
func (j *Client) verify(c jetstream.StreamConfig, subject string) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: stream %s %s", ErrStream, c.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case len(c.Subjects) != 1 || c.Subjects[0] != subject:
		return bad("takes %q; it must take %s alone", c.Subjects, subject)
	case c.Storage != jetstream.FileStorage:
		return bad("is kept in memory; file is wanted")
	case c.Replicas < j.Replicas:
		return bad("has %d replicas; store.journal.replicas is %d", c.Replicas, j.Replicas)
	case c.Discard != jetstream.DiscardNew:
		return bad("discards old messages when it is full; discard new is wanted")
	case c.Retention != jetstream.LimitsPolicy, c.MaxAge > 0, c.MaxMsgs > 0, c.MaxMsgsPerSubject > 0, c.AllowMsgTTL:
		return bad("removes messages by itself; no limit but max bytes is wanted")
	case c.MaxMsgSize > 0:
		return bad("takes messages of %d bytes at most; the server's max_payload is the only limit wanted", c.MaxMsgSize)
	case c.DenyPurge, c.Sealed, c.NoAck, c.Mirror != nil, len(c.Sources) > 0, c.SubjectTransform != nil:
		return bad("must be an ordinary one: it denies purges, is sealed or a mirror, has sources or a transform, or acknowledges nothing")
	}
	return nil
}

// stillFits logs that the stream was given other settings with which no replica would start, once for each.
func (j *Client) stillFits(c jetstream.StreamConfig) {
	text := ""
	if err := j.fits(c); err != nil {
		text = err.Error()
	}
	j.mu.Lock()
	changed := text != j.unfit
	j.unfit = text
	j.mu.Unlock()
	if changed && text != "" {
		j.Log.Error("the settings of the journal's stream were changed; no replica starts with these", "error", text)
	}
}

// Extent is what the stream has: messages from First to Last.
type Extent struct {
	First, Last uint64
	Bytes       uint64
	Room        uint64 // for bytes
	Holes       bool   // some between these are missing
}

// errBehind: a server answers for the stream that lacks what the stream has had. It passes, or the stream has lost entries.
var errBehind = errors.New("the server that answers for the journal is behind, or the journal has lost entries")

// lostAfter is how long servers answer that the stream ends before what it has had, until that is believed. A server that led the
// stream, and was parted from the others since or stopped, answers with what it had, until it learns of its successor: within
// twenty seconds.
const lostAfter = 30 * time.Second

// knows notes that the stream has had a sequence, by what a directory has.
func (j *Client) knows(sequence uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.known = max(j.known, sequence)
}

// had is the highest sequence that the stream has had, by what this client has seen.
func (j *Client) had() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.known
}

// saw notes that a server has a sequence.
func (j *Client) saw(sequence uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sawLocked(sequence)
}

func (j *Client) sawLocked(sequence uint64) {
	j.known, j.ends = max(j.known, sequence), max(j.ends, sequence)
	if sequence >= j.lacks {
		j.since = time.Time{}
	}
}

// believe returns errBehind for a stream that ends at last and had more when it was asked, unless that has been so for lostAfter.
func (j *Client) believe(last, had uint64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sawLocked(last)
	if last >= had {
		return nil
	}
	j.lacks = had
	if j.since.IsZero() || had <= j.ends { // what they lacked until now was more
		j.since, j.ends = time.Now(), last
	}
	if time.Since(j.since) > lostAfter {
		return nil
	}
	return fmt.Errorf("%w: the stream %s ends at %d and had %d", errBehind, j.Stream, last, had)
}

// elsewhereAfter is how long requests fail until the connection is cut, and made to another server: longer than elections.
const elsewhereAfter = 12 * time.Second

// reached takes in the outcome of a request. A server that is parted from the others keeps its clients, and has no answers.
func (j *Client) reached(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	const unavailable = 503
	var answer *jetstream.APIError
	switch {
	case err == nil, errors.As(err, &answer) && answer.Code != unavailable:
		j.heard = time.Now()
	case time.Since(j.heard) > elsewhereAfter:
		j.heard = time.Now()
		j.line.Cut()
	}
}

// Extent asks the stream's leader, so it fails while there is none, and while a server that does not lead any more answers in its place:
// an end before an entry that this client knows of is returned only when servers have insisted on it.
func (j *Client) Extent(ctx context.Context) (Extent, error) { return j.extent(ctx, 0) }

// extent is Extent of a stream that is known to have had a sequence.
func (j *Client) extent(ctx context.Context, had uint64) (_ Extent, err error) {
	defer func() { j.reached(err) }()
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	had = max(had, j.had()) // what is appended while it answers may be missing
	info, err := j.stream.Info(ctx)
	if err != nil {
		return Extent{}, fmt.Errorf("ask the journal: %w", err)
	}
	if info.Cluster != nil && info.Cluster.Leader == "" {
		return Extent{}, errors.New("the journal's stream has no leader")
	}
	j.stillFits(info.Config)
	x := Extent{info.State.FirstSeq, info.State.LastSeq, info.State.Bytes, uint64(j.MaxBytes), info.State.NumDeleted > 0}
	if info.Config.MaxBytes > 0 {
		x.Room = uint64(info.Config.MaxBytes)
	}
	if err := j.believe(x.Last, had); err != nil {
		return Extent{}, err
	}
	return x, nil
}

// stored returns one message of a stream, as the server that leads that has it: with allow_direct, a [jetstream.Stream] asks any
// server, which may be behind. It is the last one of a subject, or that at a sequence. It fails with [jetstream.ErrMsgNotFound].
func (j *Client) stored(ctx context.Context, stream, subject string, sequence uint64) (*jetstream.RawStreamMsg, error) {
	request, err := json.Marshal(struct {
		Seq     uint64 `json:"seq,omitempty"`
		Subject string `json:"last_by_subj,omitempty"`
	}{sequence, subject})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	m, err := j.conn.RequestWithContext(ctx, jetstream.DefaultAPIPrefix+"STREAM.MSG.GET."+stream, request)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Seq    uint64 `json:"seq"`
			Header []byte `json:"hdrs"`
			Data   []byte `json:"data"`
		} `json:"message"`
	}
	switch err := json.Unmarshal(m.Data, &answer); {
	case err != nil:
		return nil, err
	case answer.Error != nil:
		return nil, answer.Error
	}
	found := &jetstream.RawStreamMsg{Sequence: answer.Message.Seq, Data: answer.Message.Data}
	if len(answer.Message.Header) > 0 {
		found.Header, err = nats.DecodeHeadersMsg(answer.Message.Header)
	}
	return found, err
}

// Trim removes the messages before a sequence.
func (j *Client) Trim(ctx context.Context, before uint64) error {
	return purge(ctx, j.stream, jetstream.WithPurgeSequence(before))
}

// header is the name of the header with the frame.
const header = "Watcherd-Entry"
