package journal

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/wait"
)

// Snapshot is a copy of the store's contents in a second stream. A replica that lacks entries which the journal has no longer
// is seeded with it, and continues behind its position.
//
// The parts of a snapshot are messages on a subject of their own. The message that completes it has its position; it
// replaces the one before only if that is the one that the writer has seen, and not of a later position of this journal. So a
// leader that was replaced cannot take away what the entries are trimmed up to.
type Snapshot struct {
	store.Position
	Made time.Time
	Size uint64 // in bytes, as that of whole parts
	// Old reports that it is encrypted with an old key.
	Old bool

	id    string
	first uint64 // sequence of its first part
	parts int
}

// Errors of snapshots; their methods may also return the other errors of the package.
var (
	// ErrSnapshot: the snapshot cannot be used.
	ErrSnapshot = errors.New("the snapshot of the journal is damaged")
	// ErrInterrupted: reading the snapshot failed for a reason that may pass; another may have replaced it, or removed its parts.
	ErrInterrupted = errors.New("reading the snapshot was interrupted")
)

// piece describes a message of a snapshot; as JSON it is its header, which is authenticated.
type piece struct {
	release
	ID   string `json:"id"`
	Part int    `json:"part"` // from 1; 0: the one that completes it
	Key  string `json:"key"`

	// Of the one that completes it.
	First    uint64         `json:"first,omitempty"`
	Parts    int            `json:"parts,omitempty"`
	Position store.Position `json:"position,omitzero"`
	Made     time.Time      `json:"made,omitzero"`
}

// pieceHeader is the name of the header with the piece.
const pieceHeader = "Watcherd-Snapshot"

// SnapshotStream is the name of the stream with the snapshot.
func (j *Client) SnapshotStream() string { return j.Stream + "-SNAPSHOT" }

func (j *Client) snapshotSubject(end string) string {
	return "watcherd.snapshot." + j.Stream + "." + end
}

// complete ends the subject of messages that complete a snapshot. Those of parts end in an ID.
const complete = "complete"

// snapshots is the stream with the snapshot; nil if it is missing and not to be made.
func (j *Client) snapshots(ctx context.Context, create bool) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*attempt)
	defer cancel()
	name, subject := j.SnapshotStream(), j.snapshotSubject(">")
	stream, err := j.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if !create {
			return nil, nil //nolint:nilnil // as documented
		}
		stream, err = j.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{subject}, Description: "snapshot of the store of watcherd whose journal is " + j.Stream,
			Storage: jetstream.FileStorage, Replicas: j.Replicas, Discard: jetstream.DiscardNew, DenyDelete: true,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("look at the stream %s of the snapshot: %w", name, err)
	}
	return stream, j.verify(stream.CachedInfo().Config, subject)
}

// Snapshot returns what there is; nil for none. [ErrSnapshot] and the errors of entries are final.
func (j *Client) Snapshot(ctx context.Context) (_ *Snapshot, err error) {
	defer func() { j.reached(err) }()
	ctx, cancel := context.WithTimeout(ctx, 2*attempt)
	defer cancel()
	stream, err := j.snapshots(ctx, false)
	if stream == nil || err != nil {
		return nil, err
	}
	s, _, err := j.latest(ctx)
	return s, err
}

// latest returns the snapshot and the sequence of the message that completes it, 0 for none; that of one that cannot be
// used, too.
func (j *Client) latest(ctx context.Context) (*Snapshot, uint64, error) {
	m, err := j.stored(ctx, j.SnapshotStream(), j.snapshotSubject(complete), 0)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the snapshot: %w", err)
	}
	p, _, err := j.piece(m.Header.Get(pieceHeader), m.Data)
	if err == nil && (p.Part != 0 || p.Parts < 1 || p.Position.Last == 0) {
		err = ErrSnapshot
	}
	if err != nil {
		return nil, m.Sequence, fmt.Errorf("sequence %d of the stream %s: %w", m.Sequence, j.SnapshotStream(), err)
	}
	s := &Snapshot{
		Position: p.Position, Made: p.Made, Size: uint64(p.Parts) * uint64(max(j.room(), 0)), Old: p.Key != j.Keys.list[0].id,
		id: p.ID, first: p.First, parts: p.Parts,
	}
	return s, m.Sequence, nil
}

// piece reads the header and the body of a message.
func (j *Client) piece(header string, body []byte) (p piece, part []byte, err error) {
	if err := readHeader(header, &p); err != nil {
		if errors.Is(err, ErrDiverged) {
			err = fmt.Errorf("%w: a message is no part of one", ErrSnapshot)
		}
		return p, nil, err
	}
	part, err = j.Keys.open(p.Key, body, []byte(header))
	if errors.Is(err, ErrTampered) {
		err = fmt.Errorf("%w or forged", ErrSnapshot)
	}
	return p, part, err
}

// Whole reports whether the stream has all of a snapshot. Another leader may have taken it for what was left of one.
func (j *Client) Whole(ctx context.Context, s *Snapshot) (bool, error) {
	counts, err := j.partsOf(ctx, s.id)
	return counts[s.id] >= uint64(s.parts), err
}

// partsOf returns the number of messages by ID, of all for ">".
func (j *Client) partsOf(ctx context.Context, id string) (map[string]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*attempt)
	defer cancel()
	stream, err := j.snapshots(ctx, false)
	if stream == nil || err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(j.snapshotSubject(id)))
	if err != nil {
		return nil, fmt.Errorf("read the snapshot: %w", err)
	}
	counts := make(map[string]uint64)
	for subject, n := range info.State.Subjects {
		if end := strings.TrimPrefix(subject, j.snapshotSubject("")); end != complete {
			counts[end] = n
		}
	}
	return counts, nil
}

// Save makes a snapshot of what dump writes, and removes the one before. An error leaves that; [ErrNewer] and
// [store.ErrStolen] mean that another leader makes them now.
func (j *Client) Save(ctx context.Context, dump func(io.Writer) (store.Position, error)) (_ *Snapshot, err error) {
	stream, err := j.snapshots(ctx, true)
	if err != nil {
		return nil, err
	}
	before, revision, err := j.latest(ctx)
	if err != nil && (revision == 0 || errors.Is(err, ErrNewer)) {
		return nil, err
	}
	if revision, err = j.sweep(ctx, stream, before, revision); err != nil {
		return nil, err
	}
	room := j.room()
	if room <= 0 {
		return nil, errPayload(int(j.conn.MaxPayload()))
	}
	u := &upload{j: j, ctx: ctx, id: rand.Text(), room: room}
	completed := false
	defer func() {
		if !completed { // or each attempt would leave one
			err = errors.Join(err, j.discard(context.WithoutCancel(ctx), stream, u.id))
		}
	}()
	cut := bufio.NewWriterSize(u, u.room)
	z := s2.NewWriter(cut, s2.WriterConcurrency(1))
	position, err := dump(z)
	if err := errors.Join(err, z.Close()); err != nil {
		return nil, err
	}
	if err := cut.Flush(); err != nil {
		return nil, err
	}
	if before != nil && (before.Last > position.Last || before.Term > position.Term) && !j.foreign(ctx, before) {
		return nil, fmt.Errorf("%w: another replica has made a snapshot at sequence %d; this one is at %d", store.ErrStolen, before.Last, position.Last)
	}
	counts, err := j.partsOf(ctx, u.id)
	if err == nil && counts[u.id] < uint64(u.part) { // a leader that was replaced took them for what is left of one
		err = fmt.Errorf("%w: another replica has removed parts of the snapshot", store.ErrStolen)
	}
	if err != nil {
		return nil, err
	}
	made := time.Now().UTC().Truncate(time.Second)
	end := piece{ID: u.id, First: u.first, Parts: u.part, Position: position, Made: made}
	if err := j.completeSnapshot(ctx, end, revision); err != nil {
		return nil, err
	}
	completed = true
	if err := purge(ctx, stream, jetstream.WithPurgeSequence(u.first)); err != nil {
		return nil, fmt.Errorf("remove the snapshot before: %w", err)
	}
	return &Snapshot{Position: position, Made: made, Size: uint64(u.part) * uint64(room), id: u.id, first: u.first, parts: u.part}, nil
}

// foreign reports whether the journal is known not to continue a snapshot, as one that was restored from an older backup.
func (j *Client) foreign(ctx context.Context, s *Snapshot) bool {
	_, err := j.Has(ctx, s.Position)
	return errors.Is(err, ErrDiverged)
}

// room is what a part has at most, in bytes.
func (j *Client) room() int { return min(int(j.conn.MaxPayload())-maxHeader, maxPart) }

// maxPart bounds a part where the server takes more.
const maxPart = 4 << 20

// Sweep removes what is not of the snapshot that there is: earlier ones whose removal failed, and uploads that were interrupted. No
// Save of this client may run.
func (j *Client) Sweep(ctx context.Context) error {
	stream, err := j.snapshots(ctx, false)
	if stream == nil || err != nil {
		return err
	}
	s, revision, err := j.latest(ctx)
	if err == nil {
		_, err = j.sweep(ctx, stream, s, revision)
	}
	return err
}

// sweep removes the parts of all snapshots but one, whose completing message has the sequence revision, and returns that as it is then: it
// is written again before, since another leader may be about to replace it by what is removed here.
func (j *Client) sweep(ctx context.Context, stream jetstream.Stream, but *Snapshot, revision uint64) (uint64, error) {
	counts, err := j.partsOf(ctx, ">")
	if but != nil {
		delete(counts, but.id)
	}
	if err == nil && len(counts) > 0 && revision > 0 {
		renewed, rerr := j.renew(ctx, revision)
		switch {
		case rerr == nil:
			revision = renewed
		case !full(rerr): // else there is room after this, and a snapshot is needed again at worst
			err = rerr
		}
	}
	for id := range counts {
		if err == nil {
			err = j.discard(ctx, stream, id)
		}
	}
	return revision, err
}

// renew writes the message that completes a snapshot again, and returns its sequence.
func (j *Client) renew(ctx context.Context, revision uint64) (uint64, error) {
	m, err := j.stored(ctx, j.SnapshotStream(), "", revision)
	if err != nil {
		return 0, fmt.Errorf("read the snapshot: %w", err)
	}
	ack, err := j.replaceComplete(ctx, &nats.Msg{
		Subject: j.snapshotSubject(complete), Header: nats.Header{pieceHeader: {m.Header.Get(pieceHeader)}}, Data: m.Data,
	}, revision)
	if err != nil {
		return 0, fmt.Errorf("renew the snapshot: %w", err)
	}
	return ack.Sequence, nil
}

// replaceComplete makes one attempt to write the message that completes a snapshot, if the one before has that sequence.
func (j *Client) replaceComplete(ctx context.Context, m *nats.Msg, revision uint64) (*jetstream.PubAck, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	return j.js.PublishMsg(ctx, m, jetstream.WithExpectStream(j.SnapshotStream()),
		jetstream.WithExpectLastSequencePerSubject(revision), jetstream.WithRetryAttempts(0))
}

func (j *Client) discard(ctx context.Context, stream jetstream.Stream, id string) error {
	if err := purge(ctx, stream, jetstream.WithPurgeSubject(j.snapshotSubject(id))); err != nil {
		return fmt.Errorf("remove what is left of a snapshot: %w", err)
	}
	return nil
}

func purge(ctx context.Context, stream jetstream.Stream, what jetstream.StreamPurgeOpt) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	return stream.Purge(ctx, what)
}

// upload is the writer of a snapshot's parts.
type upload struct {
	j     *Client
	ctx   context.Context //nolint:containedctx // of Save
	id    string
	room  int
	first uint64
	part  int
}

func (u *upload) Write(body []byte) (n int, err error) {
	for n < len(body) && err == nil {
		size := min(u.room, len(body)-n)
		if err = u.write(body[n : n+size]); err == nil {
			n += size
		}
	}
	return n, err
}

func (u *upload) write(body []byte) error {
	began := time.Now()
	u.part++
	m, err := u.j.message(piece{ID: u.id, Part: u.part}, u.id, body)
	if err != nil {
		return err
	}
	for attempts := 1; ; attempts++ {
		ack, err := u.publish(m)
		if err == nil {
			if u.part == 1 {
				u.first = ack.Sequence
			}
			break
		}
		if attempts == uploadAttempts || u.ctx.Err() != nil {
			return fmt.Errorf("write the snapshot: %w", err)
		}
		if err := wait.For(u.ctx, attempt); err != nil { // an election, perhaps
			return err
		}
	}
	// The servers have the leader's entries to take, too.
	return wait.For(u.ctx, time.Since(began))
}

// uploadAttempts are those of a message of a snapshot: elections take some seconds.
const uploadAttempts = 8

func (u *upload) publish(m *nats.Msg) (*jetstream.PubAck, error) {
	ctx, cancel := context.WithTimeout(u.ctx, attempt)
	defer cancel()
	return u.j.js.PublishMsg(ctx, m, jetstream.WithExpectStream(u.j.SnapshotStream()), jetstream.WithRetryAttempts(0))
}

func (j *Client) message(p piece, subject string, body []byte) (*nats.Msg, error) {
	p.release, p.Key = release{format, layout.Version}, j.Keys.list[0].id
	header, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return &nats.Msg{Subject: j.snapshotSubject(subject), Header: nats.Header{pieceHeader: {string(header)}}, Data: j.Keys.seal(body, header)}, nil
}

// completeSnapshot replaces the message that completed the snapshot before, whose sequence is revision.
func (j *Client) completeSnapshot(ctx context.Context, end piece, revision uint64) error {
	m, err := j.message(end, complete, nil)
	if err != nil {
		return err
	}
	for attempts := 1; ; attempts++ {
		err := func() error {
			_, err := j.replaceComplete(ctx, m, revision)
			if err == nil {
				return nil
			}
			now, at, lerr := j.latest(ctx)
			switch {
			case lerr == nil && now != nil && now.id == end.ID:
				return nil // it was written
			case at != revision && at > 0:
				return fmt.Errorf("%w: another replica has made a snapshot meanwhile", store.ErrStolen)
			}
			return errors.Join(err, lerr)
		}()
		if err == nil || errors.Is(err, store.ErrStolen) {
			return err
		}
		if attempts == uploadAttempts || ctx.Err() != nil {
			return fmt.Errorf("complete the snapshot: %w", err)
		}
		if err := wait.For(ctx, attempt); err != nil {
			return err
		}
	}
}

// Load has read read what dump wrote. After [ErrInterrupted], ask for the snapshot again; other errors are final.
func (j *Client) Load(ctx context.Context, s *Snapshot, read func(io.Reader) error) error {
	d := &download{j: j, ctx: ctx, s: s}
	defer d.close()
	err := read(s2.NewReader(d))
	if err == nil || ctx.Err() != nil {
		return err
	}
	if now, nerr := j.Snapshot(ctx); nerr == nil && (now == nil || now.id != s.id) {
		return fmt.Errorf("%w: another has replaced it", ErrInterrupted)
	}
	if d.err != nil {
		return d.err // the other follows from it
	}
	if errors.Is(err, s2.ErrCorrupt) || errors.Is(err, s2.ErrCRC) || errors.Is(err, store.ErrSeed) {
		return fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	return err
}

// download reads the parts of a snapshot.
type download struct {
	j        *Client
	ctx      context.Context //nolint:containedctx // of Load
	s        *Snapshot
	consumer jetstream.Consumer // of messages
	messages jetstream.MessagesContext
	part     int
	rest     bytes.Reader
	err      error // other than io.EOF
}

func (d *download) Read(p []byte) (int, error) {
	for d.rest.Len() == 0 {
		if d.part == d.s.parts {
			return 0, io.EOF
		}
		if err := d.next(); err != nil {
			d.err = err
			return 0, err
		}
	}
	return d.rest.Read(p)
}

// next reads the next part. One may be there twice: its writer did not know that it was taken.
func (d *download) next() error {
	if d.messages == nil {
		if err := d.subscribe(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(d.ctx, downloadSilence)
	defer cancel()
	m, err := d.messages.Next(jetstream.NextContext(ctx))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInterrupted, err)
	}
	p, body, err := d.j.piece(m.Headers().Get(pieceHeader), m.Data())
	switch {
	case err != nil:
		return fmt.Errorf("part %d of the stream %s: %w", d.part+1, d.j.SnapshotStream(), err)
	case p.ID != d.s.id || p.Part > d.part+1 || p.Part < 1:
		return fmt.Errorf("%w: part %d of %s follows part %d of %s", ErrSnapshot, p.Part, p.ID, d.part, d.s.id)
	case p.Part == d.part+1:
		d.part++
		d.rest.Reset(body)
	}
	return nil
}

// downloadSilence is how long no part may come.
const downloadSilence = 5 * time.Second

func (d *download) subscribe() error {
	ctx, cancel := context.WithTimeout(d.ctx, attempt)
	defer cancel()
	consumer, err := d.j.js.OrderedConsumer(ctx, d.j.SnapshotStream(), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{d.j.snapshotSubject(d.s.id)}, DeliverPolicy: jetstream.DeliverAllPolicy,
		MaxResetAttempts: 3, // for a NATS server that ends; without a bound they outlast ctx
	})
	if err == nil {
		d.consumer = consumer
		d.messages, err = consumer.Messages(jetstream.PullExpiry(2*time.Second), jetstream.PullHeartbeat(500*time.Millisecond),
			jetstream.PullMaxMessages(prefetch))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInterrupted, err)
	}
	return nil
}

// prefetch bounds how many parts are in memory.
const prefetch = 8

func (d *download) close() {
	if d.messages != nil {
		d.messages.Stop()
		d.j.leave(d.consumer)
	}
}

// Has reports whether the journal has the last entry of a position: one that continues it. It fails with [ErrDiverged]
// if it has another there.
func (j *Client) Has(ctx context.Context, p store.Position) (bool, error) {
	x, err := j.extent(ctx, p.Last)
	switch {
	case err != nil:
		return false, err
	case x.Last < p.Last:
		return false, fmt.Errorf("%w: the stream %s ends at %d, before %d", ErrDiverged, j.Stream, x.Last, p.Last)
	case x.First > p.First:
		return false, nil
	}
	f, ok, err := j.frameAt(ctx, p.Last)
	if ok && (f.Term != p.Term || uint64(f.Sum) != p.Sum) {
		return false, fmt.Errorf("%w: at sequence %d of the stream %s is another entry", ErrDiverged, p.Last, j.Stream)
	}
	return ok, err
}

// frameAt reads the frame of a message; it may be trimmed.
func (j *Client) frameAt(ctx context.Context, sequence uint64) (f frame, ok bool, err error) {
	m, err := j.stored(ctx, j.Stream, "", sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return f, false, nil
	}
	if err != nil {
		return f, false, fmt.Errorf("ask the journal: %w", err)
	}
	if f, _, err = j.Keys.parse(m.Header.Get(header), m.Data); err != nil {
		return f, false, fmt.Errorf("entry at sequence %d of the stream %s: %w", sequence, j.Stream, err)
	}
	return f, true, nil
}

// continues fails with [ErrDiverged] if the journal has another entry at the end of a position than that. It cannot know
// where the entry is trimmed.
func (j *Client) continues(ctx context.Context, p store.Position) error {
	if p.Last == 0 {
		return nil
	}
	_, err := j.Has(ctx, p)
	return err
}

// dropSnapshot removes the snapshot of a journal that another follows in the same stream.
func (j *Client) dropSnapshot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*attempt)
	defer cancel()
	stream, err := j.snapshots(ctx, false)
	if stream == nil || err != nil {
		return err
	}
	return stream.Purge(ctx)
}
