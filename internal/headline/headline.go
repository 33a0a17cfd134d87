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

	// Class is the same for rows of one [Reader] if and only if their resource, type and flags are. A block does not have it.
	Class uint64
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
	Status // an update of the object's status alone
)

// By reports whether a field manager made the change, alone or with others of the same second: the text then
// has them all, separated by commas.
func (r *Row) By(manager string) bool {
	if r.Manager == manager || !strings.Contains(r.Manager, ",") {
		return r.Manager == manager
	}
	for one := range strings.SplitSeq(r.Manager, ",") {
		if one == manager {
			return true
		}
	}
	return false
}

// Noise reports whether most readers would rather not see the change: of status alone, or of an
// object that changes all the time, unless its resource was chosen.
func (r *Row) Noise(chosen bool) bool {
	return r.Flags&Status != 0 || !chosen && r.Type != event.Gap && restless(&r.Resource)
}

func restless(r *event.Resource) bool {
	switch r.Resource {
	case "events":
		return r.Group == "" || r.Group == "events.k8s.io"
	case "endpoints":
		return r.Group == ""
	case "endpointslices":
		return r.Group == "discovery.k8s.io"
	case "leases":
		return r.Group == "coordination.k8s.io"
	}
	return false
}

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

// Reader reads blocks. What it keeps is reused, so that one for many blocks is cheaper than one
// for each. The zero value is ready. It is for one goroutine at a time.
type Reader struct {
	// Bare leaves the namespaces, names and managers of rows out, which are most of the work.
	Bare bool

	resources []int            // of a block: where they are among the known
	known     []event.Resource // of all blocks, and copies
	count     int              // of a block's texts
	texts     []extent         // of a block, if they are not left out
}

// extent is a text of the block: without a pointer that the collector follows.
type extent struct{ from, to uint32 }

// Read calls f for each row of joined blocks. The row is valid during the call only, and its
// namespace, name and manager as long as the blocks: clone what is kept. Blocks without the
// text are skipped: the rows of an object are in those that have its name. An error of f
// ends the reading and is returned, any other wraps ErrMalformed.
func (in *Reader) Read(blocks []byte, text string, f func(*Row) error) error {
	needle := []byte(text)
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

func (in *Reader) read(b []byte, f func(*Row) error) error {
	row := Row{Sequence: binary.BigEndian.Uint64(b)}
	at := int64(binary.BigEndian.Uint64(b[8:]))
	// Not a copy: it would be most of the work of a scan.
	buf := unsafe.String(unsafe.SliceData(b[16:]), len(b)-16) //nolint:gosec // of that length
	in.resources, in.texts, in.count = in.resources[:0], in.texts[:0], 0
	resource, namespace, name, manager := -1, -1, -1, -1
	for i := 0; i < len(buf); {
		var sequence, since, t, flags uint64
		sequence, i = uvarint(buf, i)
		since, i = uvarint(buf, i)
		t, i = octet(buf, i)
		flags, i = uvarint(buf, i)
		var ofResource, ofNamespace, ofName, ofManager int
		ofResource, i = in.resource(buf, i)
		ofNamespace, i = in.text(buf, i)
		ofName, i = in.text(buf, i)
		ofManager, i = in.text(buf, i)
		if i > len(buf) || t >= uint64(len(types)) {
			return fmt.Errorf("%w: wrong row", ErrMalformed)
		}
		if ofResource != resource { // most rows are like the one before
			row.Resource, resource = in.known[in.resources[ofResource]], ofResource
		}
		if !in.Bare {
			if ofNamespace != namespace {
				row.Namespace, namespace = in.at(buf, ofNamespace), ofNamespace
			}
			if ofName != name {
				row.Name, name = in.at(buf, ofName), ofName
			}
			if ofManager != manager {
				row.Manager, manager = in.at(buf, ofManager), ofManager
			}
		}
		at += int64(since>>1) ^ -int64(since&1)
		row.Sequence += sequence
		row.At, row.Type, row.Flags = at, types[t], Flags(flags)
		row.Class = uint64(in.resources[resource])<<40 | t<<32 | uint64(row.Flags)
		if err := f(&row); err != nil {
			return err
		}
	}
	return nil
}

func (in *Reader) at(buf string, text int) string {
	e := in.texts[text]
	return buf[e.from:e.to]
}

// What takes a value off a block at an offset returns the offset behind it, or one behind the
// block's end if the block ends before the value does or the value cannot be.

// octet takes a byte.
func octet(buf string, i int) (v uint64, next int) {
	if i >= len(buf) {
		return 0, len(buf) + 1
	}
	return uint64(buf[i]), i + 1
}

// uvarint takes a number.
func uvarint(buf string, i int) (v uint64, next int) {
	if i < len(buf) && buf[i] < 0x80 { // most are
		return uint64(buf[i]), i + 1
	}
	for k := 0; i+k < len(buf) && k < binary.MaxVarintLen64; k++ {
		c := buf[i+k]
		v |= uint64(c&0x7f) << (7 * k)
		if c < 0x80 {
			return v, i + k + 1
		}
	}
	return 0, len(buf) + 1
}

// plain takes a text without a reference.
func plain(buf string, i int) (string, int) {
	n, i := uvarint(buf, i)
	if i > len(buf) || n > uint64(len(buf)-i) {
		return "", len(buf) + 1
	}
	return buf[i : i+int(n)], i + int(n)
}

// text takes a text and returns where it is among the texts.
func (in *Reader) text(buf string, i int) (text, next int) {
	n, i := uvarint(buf, i)
	if n-1 < uint64(in.count) {
		return int(n - 1), i
	}
	s := ""
	if n == 0 {
		s, i = plain(buf, i)
	} else {
		i = len(buf) + 1
	}
	if in.count++; !in.Bare {
		end := min(i, len(buf))
		in.texts = append(in.texts, extent{uint32(end - len(s)), uint32(end)})
	}
	return in.count - 1, i
}

// resource takes a resource and returns where it is among the resources.
func (in *Reader) resource(buf string, i int) (resource, next int) {
	n, i := uvarint(buf, i)
	if n-1 < uint64(len(in.resources)) {
		return int(n - 1), i
	}
	var r event.Resource
	if n == 0 {
		r.Group, i = plain(buf, i)
		r.Version, i = plain(buf, i)
		r.Resource, i = plain(buf, i)
		r.Kind, i = plain(buf, i)
	} else {
		i = len(buf) + 1
	}
	k := slices.Index(in.known, r)
	if k < 0 {
		k, in.known = len(in.known), append(in.known, event.Resource{
			Group: strings.Clone(r.Group), Version: strings.Clone(r.Version), Resource: strings.Clone(r.Resource), Kind: strings.Clone(r.Kind),
		})
	}
	in.resources = append(in.resources, k)
	return len(in.resources) - 1, i
}
