// Package headline is the short form of the records of the event log: what a list, a
// filter or a histogram of changes needs of each. The records of one commit share a block,
// so that a million of them are read in a fraction of a second.
package headline

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/watcherd/watcherd/pkg/event"
)

// Row is the headline of one record.
type Row struct {
	Sequence  uint64
	At        int64 // Unix nanoseconds
	Type      event.Type
	Flags     Flags
	Resource  event.Resource
	Namespace string
	Name      string
	Manager   string // field manager of the change, empty if unknown
}

// Time is when it was.
func (r *Row) Time() time.Time { return time.Unix(0, r.At).UTC() }

// Flags say more of a record. They are stored: a bit's meaning never changes.
type Flags uint32

// The flags of a row.
const (
	State      Flags = 1 << iota // the record is a state in its object's history
	Rerecorded                   // an unchanged state in the form that other edits give it
	Unknown                      // a deletion whose final state is unknown
	Repair                       // found by the consistency check
	Left                         // the object left the selection of a watch, or entered it
	Entered
)

// ErrMalformed is wrapped by the errors of Read.
var ErrMalformed = errors.New("malformed headlines")

// A block is
//
//	byte        version
//	uint32      length of what follows, big endian
//	uint64      sequence before the first row's, and nanoseconds since 1970 of the
//	uint64      first row, big endian
//	rows, each  uvarint sequence and varint nanoseconds since the row before, byte type,
//	            uvarint flags, resource, namespace, name, manager
//
// A resource and a text are a reference: 0 and the text itself if it is new, or how
// many new ones came before it in the block, plus one. Blocks can be joined.
const (
	version   = 2
	headerLen = 1 + 4 + 8 + 8
)

var types = [...]event.Type{"", event.Added, event.Updated, event.Deleted, event.Sync, event.Gap}

// Block collects the rows of one commit. The zero value is empty. It is for one
// goroutine at a time.
type Block struct {
	buf       []byte
	resources []event.Resource
	texts     map[string]uint64
	last      uint64
	at        int64
}

// Reset empties the block.
func (b *Block) Reset() {
	b.buf = b.buf[:0]
	b.resources = b.resources[:0]
	clear(b.texts)
}

// Add appends a row. Sequences rise from row to row.
func (b *Block) Add(r *Row) {
	at := r.At
	if len(b.buf) == 0 {
		if b.texts == nil {
			b.texts = map[string]uint64{}
		}
		b.last, b.at = r.Sequence-1, at
		b.buf = append(b.buf, version, 0, 0, 0, 0)
		b.buf = binary.BigEndian.AppendUint64(b.buf, b.last)
		b.buf = binary.BigEndian.AppendUint64(b.buf, uint64(at))
	}
	b.buf = binary.AppendUvarint(b.buf, r.Sequence-b.last)
	b.buf = binary.AppendVarint(b.buf, at-b.at)
	b.last, b.at = r.Sequence, at
	b.buf = append(b.buf, typeOf(r.Type))
	b.buf = binary.AppendUvarint(b.buf, uint64(r.Flags))
	b.resource(r.Resource)
	b.text(r.Namespace)
	b.text(r.Name)
	b.text(r.Manager)
}

func typeOf(t event.Type) byte {
	for i, known := range types {
		if t == known {
			return byte(i)
		}
	}
	return 0
}

func (b *Block) resource(r event.Resource) {
	for i, known := range b.resources {
		if known == r {
			b.buf = binary.AppendUvarint(b.buf, uint64(i+1))
			return
		}
	}
	b.resources = append(b.resources, r)
	b.buf = append(b.buf, 0)
	for _, s := range [...]string{r.Group, r.Version, r.Resource, r.Kind} {
		b.buf = append(binary.AppendUvarint(b.buf, uint64(len(s))), s...)
	}
}

func (b *Block) text(s string) {
	if n, ok := b.texts[s]; ok {
		b.buf = binary.AppendUvarint(b.buf, n)
		return
	}
	b.texts[s] = uint64(len(b.texts) + 1)
	b.buf = append(b.buf, 0)
	b.buf = append(binary.AppendUvarint(b.buf, uint64(len(s))), s...)
}

// Bytes returns the block, nil if it is empty. It is valid until the next Reset or Add.
func (b *Block) Bytes() []byte {
	if len(b.buf) == 0 {
		return nil
	}
	binary.BigEndian.PutUint32(b.buf[1:], uint32(len(b.buf)-5))
	return b.buf
}

// Read calls f for each row of joined blocks. The row is valid during the call only, and its
// namespace, name and manager as long as the blocks: clone what is kept. Blocks without the
// text are skipped: the rows of an object are in those that have its name. An error of f
// ends the reading and is returned, any other wraps ErrMalformed.
func Read(blocks []byte, text string, f func(*Row) error) error {
	needle := []byte(text)
	var in input
	for len(blocks) > 0 {
		if len(blocks) < headerLen || blocks[0] != version {
			return fmt.Errorf("%w: unknown version", ErrMalformed)
		}
		n := binary.BigEndian.Uint32(blocks[1:])
		if uint64(n) > uint64(len(blocks)-5) || n < headerLen-5 {
			return fmt.Errorf("%w: wrong length", ErrMalformed)
		}
		if block := blocks[5 : 5+n]; bytes.Contains(block[16:], needle) {
			if err := in.read(block, f); err != nil {
				return err
			}
		}
		blocks = blocks[5+n:]
	}
	return nil
}

func (in *input) read(b []byte, f func(*Row) error) error {
	row := Row{Sequence: binary.BigEndian.Uint64(b)}
	at := int64(binary.BigEndian.Uint64(b[8:]))
	// Not a copy: it would be most of the work of a scan.
	in.buf, in.next, in.resources, in.texts = unsafe.String(unsafe.SliceData(b[16:]), len(b)-16), 0, in.resources[:0], slices.Grow(in.texts[:0], len(b)/32) //nolint:gosec // of that length
	resource, namespace, name, manager := -1, -1, -1, -1
	for in.next < len(in.buf) {
		row.Sequence += in.uvarint()
		u := in.uvarint()
		at += int64(u>>1) ^ -int64(u&1)
		t := in.byte()
		row.Flags = Flags(in.uvarint())
		if n := in.resource(); n != resource { // most rows are like the one before
			row.Resource, resource = in.resources[n], n
		}
		if n := in.text(); n != namespace {
			row.Namespace, namespace = in.at(n), n
		}
		if n := in.text(); n != name {
			row.Name, name = in.at(n), n
		}
		if n := in.text(); n != manager {
			row.Manager, manager = in.at(n), n
		}
		if in.short || int(t) >= len(types) {
			return fmt.Errorf("%w: wrong row", ErrMalformed)
		}
		row.At, row.Type = at, types[t]
		if err := f(&row); err != nil {
			return err
		}
	}
	return nil
}

// input takes values off a block; short is set once it ran out, and every later value
// is then empty.
type input struct {
	buf       string
	next      int // in buf: a shorter buf would be a pointer to write for every value
	short     bool
	resources []event.Resource
	known     []event.Resource // of all blocks, and copies
	texts     []extent
}

// extent is a text of the buffer: without a pointer that the collector follows.
type extent struct{ from, to uint32 }

func (in *input) at(text int) string {
	e := in.texts[text]
	return in.buf[e.from:e.to]
}

func (in *input) end() {
	in.next, in.short = len(in.buf), true
}

func (in *input) uvarint() uint64 {
	if in.next < len(in.buf) && in.buf[in.next] < 0x80 { // most are
		in.next++
		return uint64(in.buf[in.next-1])
	}
	return in.longUvarint()
}

func (in *input) longUvarint() (v uint64) {
	for i := 0; in.next+i < len(in.buf) && i < binary.MaxVarintLen64; i++ {
		c := in.buf[in.next+i]
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			in.next += i + 1
			return v
		}
	}
	in.end()
	return 0
}

func (in *input) byte() byte {
	if in.next == len(in.buf) {
		in.end()
		return 0
	}
	in.next++
	return in.buf[in.next-1]
}

// plain takes a text without a reference.
func (in *input) plain() string {
	n := in.uvarint()
	if n > uint64(len(in.buf)-in.next) {
		in.end()
		return ""
	}
	in.next += int(n)
	return in.buf[in.next-int(n) : in.next]
}

// text takes a text and returns where it is among the texts.
func (in *input) text() int {
	n := in.uvarint()
	switch {
	case n == 0:
		size := len(in.plain())
		in.texts = append(in.texts, extent{uint32(in.next - size), uint32(in.next)})
		return len(in.texts) - 1
	case n > uint64(len(in.texts)):
		in.end()
		n = 1
		in.texts = append(in.texts, extent{})
	}
	return int(n - 1)
}

// resource takes a resource and returns where it is among the resources.
func (in *input) resource() int {
	n := in.uvarint()
	switch {
	case n == 0:
		r := event.Resource{Group: in.plain(), Version: in.plain(), Resource: in.plain(), Kind: in.plain()}
		i := slices.Index(in.known, r)
		if i < 0 {
			i, in.known = len(in.known), append(in.known, event.Resource{
				Group: strings.Clone(r.Group), Version: strings.Clone(r.Version), Resource: strings.Clone(r.Resource), Kind: strings.Clone(r.Kind),
			})
		}
		in.resources = append(in.resources, in.known[i])
		return len(in.resources) - 1
	case n > uint64(len(in.resources)):
		in.end()
		n = 1
		in.resources = append(in.resources, event.Resource{})
	}
	return int(n - 1)
}
