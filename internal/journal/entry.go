package journal

import (
	"bytes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/s2"
	"golang.org/x/crypto/chacha20poly1305"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/store/layout"
)

// Kind is what an entry is for.
type Kind string

// The kinds of entries.
const (
	Batch  Kind = "batch"
	Term   Kind = "term"   // the first of a writer; its batch notes the term
	Resign Kind = "resign" // the last of a writer that ends; its batch is empty
	// Erase has an empty batch. A follower erases what is obsolete in its directory before it applies it.
	Erase Kind = "erase"
)

// kinds are all of them: an entry of another is not understood.
var kinds = []Kind{Batch, Term, Resign, Erase}

// Entry is what a journal has of one append.
type Entry struct {
	store.Position
	Kind    Kind
	Replica string // of the writer
	Batch   []byte // the caller's to keep
}

// The errors that a replica decides by. Others pass.
var (
	// ErrDiverged: the directory and the stream have different pasts.
	ErrDiverged = errors.New("the store and its journal have different pasts")
	// ErrBegins is an ErrDiverged whose cause is a journal that begins behind the one that the directory is of.
	ErrBegins = fmt.Errorf("%w: another journal begins in the stream", ErrDiverged)
	// ErrTrimmed: the stream does not have what follows the directory any more.
	ErrTrimmed = errors.New("the journal does not reach back to this store")
	// ErrKey: the entries are encrypted with a key that is not configured.
	ErrKey = errors.New("the journal is encrypted with another key")
	// ErrNewer: a newer release writes the journal.
	ErrNewer = errors.New("the journal is written by a newer release")
	// ErrOlder: an older release writes the journal, whose store has another layout.
	ErrOlder = errors.New("the journal is written by an older release, whose store has another layout")
)

// format is the version of frames.
const format = 1

// release is a part of the header of every message, in every release.
type release struct {
	Format int `json:"format"`
	Layout int `json:"layout"` // of the store's keys and values
}

// readHeader reads nothing else of a header that a newer release has written.
func readHeader(header string, into any) error {
	var r release
	err := json.Unmarshal([]byte(header), &r)
	switch {
	case err != nil:
	case r.Format > format || r.Layout > layout.Version:
		return fmt.Errorf("%w: it has format %d, layout %d; this one reads up to %d, %d", ErrNewer, r.Format, r.Layout, format, layout.Version)
	case r.Layout < layout.Version:
		return fmt.Errorf("%w: layout %d, this one reads %d", ErrOlder, r.Layout, layout.Version)
	default:
		err = json.Unmarshal([]byte(header), into)
	}
	if err != nil {
		return fmt.Errorf("%w: a message is no entry: %w", ErrDiverged, err)
	}
	return nil
}

// frame describes one part of an entry; as JSON it is the header of the message.
type frame struct {
	release
	Kind    Kind   `json:"kind"`
	Term    uint64 `json:"term"`
	Replica string `json:"replica"`
	Writer  string `json:"writer"` // random for each term
	Part    int    `json:"part"`   // from 1
	Parts   int    `json:"parts"`
	Prev    sum    `json:"prev"` // of the entry before
	Sum     sum    `json:"sum"`  // of this entry
	Key     string `json:"key"`
	// Silence is that of the writer, in milliseconds; 0 from a release without it.
	Silence int64 `json:"silence,omitempty"`
}

func (f frame) silence() time.Duration { return time.Duration(f.Silence) * time.Millisecond }

// sum is a checksum; JSON numbers do not have 64 bits everywhere.
type sum uint64

func (s sum) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(s)), nil }

func (s *sum) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != 8 {
		return errors.New("a checksum has 16 hexadecimal digits")
	}
	*s = sum(binary.BigEndian.Uint64(b))
	return nil
}

// after is the checksum of an entry that follows one with the checksum prev. No two writers make the same.
func after(prev, term uint64, kind Kind, writer string, batch []byte) uint64 {
	d := xxhash.New()
	_, _ = d.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, prev), term))
	_, _ = d.WriteString(string(kind) + " " + writer + " ")
	_, _ = d.Write(batch)
	return d.Sum64()
}

// Keys encrypt and decrypt. The zero value has none.
type Keys struct {
	list []key
}

type key struct {
	id   string
	aead cipher.AEAD
}

// MinKey is the least length of a key in bytes.
const MinKey = 16

// NewKeys derives keys from secrets. The first encrypts, all decrypt.
func NewKeys(secrets ...[]byte) (Keys, error) {
	var k Keys
	for _, s := range secrets {
		if len(s) < MinKey {
			return Keys{}, fmt.Errorf("it has %d bytes, the minimum is %d", len(s), MinKey)
		}
		derived := sha256.Sum256(append([]byte("watcherd journal "), s...))
		aead, err := chacha20poly1305.NewX(derived[:])
		if err != nil {
			return Keys{}, err
		}
		id := sha256.Sum256(append([]byte("watcherd journal id "), s...))
		k.list = append(k.list, key{hex.EncodeToString(id[:4]), aead})
	}
	return k, nil
}

// seal encrypts a body, which is authenticated together with the label.
func (k Keys) seal(body, label []byte) []byte {
	aead := k.list[0].aead
	out := make([]byte, aead.NonceSize(), aead.NonceSize()+len(body)+aead.Overhead())
	rand.Read(out)
	return aead.Seal(out, out, body, label)
}

func (k Keys) open(id string, body, label []byte) ([]byte, error) {
	for _, key := range k.list {
		if key.id != id {
			continue
		}
		n := key.aead.NonceSize()
		if len(body) < n {
			return nil, ErrTampered
		}
		out, err := key.aead.Open(nil, body[:n], body[n:], label)
		if err != nil {
			return nil, ErrTampered
		}
		return out, nil
	}
	return nil, ErrKey
}

// ErrTampered is an ErrDiverged that is damage, or the work of a client without the key.
var ErrTampered = fmt.Errorf("%w: an entry is damaged or forged", ErrDiverged)

// maxBatch bounds what the parts of one entry decompress to.
const maxBatch = 1 << 30

// parts returns the messages of an entry, as headers and bodies of at most size bytes together.
func (k Keys) parts(f frame, batch []byte, size int) (headers, bodies [][]byte, err error) {
	f.release, f.Key = release{format, layout.Version}, k.list[0].id
	rest := s2.Encode(nil, batch)
	room := size - maxHeader
	if room <= 0 {
		return nil, nil, errPayload(size)
	}
	f.Parts = max(1, (len(rest)+room-1)/room)
	for f.Part = 1; f.Part <= f.Parts; f.Part++ {
		header, err := json.Marshal(f)
		if err != nil {
			return nil, nil, err
		}
		n := min(room, len(rest))
		headers, bodies = append(headers, header), append(bodies, k.seal(rest[:n], header))
		rest = rest[n:]
	}
	return headers, bodies, nil
}

func errPayload(size int) error {
	return fmt.Errorf("max_payload of the server is %d bytes; the journal needs more than %d", size, maxHeader)
}

// maxHeader is the size of a header with its name, and of what encryption adds.
const maxHeader = 1 << 10

// parse reads the header and the body of a message.
func (k Keys) parse(header string, body []byte) (f frame, part []byte, err error) {
	if err := readHeader(header, &f); err != nil {
		return f, nil, err
	}
	if !slices.Contains(kinds, f.Kind) {
		return f, nil, fmt.Errorf("%w: it has entries of the kind %q", ErrNewer, f.Kind)
	}
	if f.Part < 1 || f.Part > f.Parts {
		return f, nil, fmt.Errorf("%w: part %d of %d", ErrDiverged, f.Part, f.Parts)
	}
	part, err = k.open(f.Key, body, []byte(header))
	return f, part, err
}

// assembly collects the parts of one entry.
type assembly struct {
	frame frame
	first uint64
	body  bytes.Buffer
}

// add takes the next message; the entry is nil while parts are missing. Parts of an entry that was not completed
// are dropped.
func (a *assembly) add(seq uint64, f frame, part []byte, prev store.Position) (*Entry, error) {
	if f.Part == 1 {
		a.frame, a.first = f, seq
		a.body.Reset()
	} else if f.Writer != a.frame.Writer || f.Sum != a.frame.Sum || f.Part != a.frame.Part+1 || seq != a.first+uint64(f.Part)-1 {
		return nil, fmt.Errorf("%w: part %d at sequence %d belongs to nothing", ErrDiverged, f.Part, seq)
	}
	a.frame.Part = f.Part
	a.body.Write(part)
	if f.Part < f.Parts {
		return nil, nil //nolint:nilnil // incomplete
	}
	n, err := s2.DecodedLen(a.body.Bytes())
	if err != nil || n > maxBatch {
		return nil, ErrTampered
	}
	batch, err := s2.Decode(nil, a.body.Bytes())
	if err != nil {
		return nil, ErrTampered
	}
	e := &Entry{
		Position: store.Position{First: a.first, Last: seq, Term: f.Term, Sum: uint64(f.Sum)},
		Kind:     f.Kind, Replica: f.Replica, Batch: batch,
	}
	switch {
	case prev.Last == 0 && f.Prev != 0:
		return nil, fmt.Errorf("%w: it began with a store that had records already", ErrTrimmed)
	case uint64(f.Prev) != prev.Sum && f.Kind == Term && f.Term == a.first: // see Client.Begin
		return nil, fmt.Errorf("%w: at sequence %d", ErrBegins, a.first)
	case uint64(f.Prev) != prev.Sum:
		return nil, fmt.Errorf("%w: the entry at sequence %d does not follow the one at %d", ErrDiverged, a.first, prev.First)
	case f.Kind == Term && f.Term <= prev.Term, f.Kind != Term && f.Term != prev.Term:
		return nil, fmt.Errorf("%w: term %d follows term %d at sequence %d", ErrDiverged, f.Term, prev.Term, seq)
	case after(prev.Sum, f.Term, f.Kind, f.Writer, batch) != e.Sum:
		return nil, fmt.Errorf("%w: the checksum of the entry at sequence %d is wrong", ErrDiverged, a.first)
	}
	return e, nil
}
