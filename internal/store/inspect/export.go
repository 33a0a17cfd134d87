package inspect

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// Line is one line of an Export. Type is one of record, entry, deadletter,
// state, meta, note, sink, partition, damage, and of files that were read one by one
// deleted-range, whose Name has the bounds of the deleted keys.
type Line struct {
	Type string `json:"type"`

	Sink      string `json:"sink,omitempty"`
	Partition string `json:"partition,omitempty"`
	Name      string `json:"name,omitempty"`
	ID        uint32 `json:"id,omitempty"`
	Key       string `json:"key,omitempty"`

	Position uint64     `json:"position,omitempty"`
	Sequence uint64     `json:"sequence,omitempty"`
	Time     *time.Time `json:"time,omitempty"`
	Lane     uint64     `json:"lane,omitempty"`
	Flags    uint32     `json:"flags,omitempty"`
	Reason   string     `json:"reason,omitempty"`
	Attempts uint32     `json:"attempts,omitempty"`

	Payload []byte `json:"payload,omitempty"` // base64

	// Set when the files were read one by one: the same key may then appear
	// more than once, and the line with the highest version counts.
	File    string `json:"file,omitempty"`
	Version uint64 `json:"version,omitempty"`
	Deleted bool   `json:"deleted,omitempty"`

	Withheld bool   `json:"withheld,omitempty"` // there is a payload, which is not shown
	Error    string `json:"error,omitempty"`
}

// Export writes everything that can be read from the store in dir to w, as JSON
// lines: log records, queue entries, dead letters, ledger entries, metadata and
// notes, payloads and values as base64. It changes nothing. The daemon must be
// stopped ([engine.ErrLocked]). Damage becomes lines of the type damage; the error is
// about reading the directory or writing to w.
//
// A store that cannot be opened is read file by file, and so is a table without its
// index. Lines then carry the file and a version: the highest version of a key counts,
// and deleted means that it was removed.
//
// veil, unless it is nil, decides which payloads are shown.
func Export(dir string, w io.Writer, veil Veil) error {
	return ExportFS(vfs.Default, dir, w, veil)
}

// A Veil decides which payloads an [Export] shows. It is called by one goroutine.
type Veil interface {
	// Learn is called with each metadata value first, in no order, and again with a
	// newer one; the value is valid during the call. What is damaged is missing.
	Learn(key string, value []byte)
	// Show returns what is shown of a payload, and metadata that has to be there to
	// read it. It is withheld if that is not ok.
	Show(Shown) (payload []byte, before []Shown, ok bool)
}

// Shown is a payload that an export is to show.
type Shown struct {
	Kind      ShownKind
	Key       string // of metadata
	Partition string // of a state
	Payload   []byte
}

// ShownKind is the kind of a payload.
type ShownKind uint8

// The kinds.
const (
	ShownRecord ShownKind = iota // also: an entry of a queue, a dead letter
	ShownState
	ShownMeta
)

// ExportFS is [Export] of a store on another filesystem.
func ExportFS(fsys vfs.FS, dir string, w io.Writer, veil Veil) (err error) {
	i, err := open(fsys, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.close()) }()
	buffered := bufio.NewWriterSize(w, 64<<10)
	e := exporter{
		out:   json.NewEncoder(buffered),
		names: map[byte]map[uint32]string{layout.KindSink: {}, layout.KindPartition: {}},
		veil:  veil,
	}
	if i.db != nil {
		err = e.database(i)
	} else {
		err = e.files(i)
	}
	return errors.Join(err, buffered.Flush())
}

type exporter struct {
	out   *json.Encoder
	names map[byte]map[uint32]string
	veil  Veil // nil: everything is shown

	learning bool              // only metadata is looked at, for the veil
	learnt   map[string]uint64 // the versions that the veil was given
}

// learn gives the veil a metadata value unless it has had a newer version: files are
// read in any order.
func (e *exporter) learn(key string, value []byte, version uint64) {
	if known, ok := e.learnt[key]; ok && known >= version {
		return
	}
	if e.learnt == nil {
		e.learnt = map[string]uint64{}
	}
	e.learnt[key] = version
	e.veil.Learn(key, value)
}

func (e *exporter) damage(where string, err error) error {
	return e.out.Encode(Line{Type: "damage", Name: where, Error: salvage.FirstLine(err)})
}

func (e *exporter) database(i *inspection) error {
	if e.veil != nil {
		lower, upper := layout.PrefixRange(layout.PrefixMeta)
		err := salvage.Scan(i.db, lower, upper, func(key, value []byte) error {
			e.veil.Learn(string(key[1:]), value)
			return nil
		}, func(salvage.LostSpan) error { return nil }) // reported when it is exported
		if err != nil {
			return err
		}
	}
	damaged := false
	for _, prefix := range []byte{
		layout.PrefixName, layout.PrefixMeta, layout.PrefixNote, layout.PrefixState, layout.PrefixLog, layout.PrefixQueue, layout.PrefixDeadLetter,
	} {
		lower, upper := layout.PrefixRange(prefix)
		err := salvage.Scan(i.db, lower, upper, func(key, value []byte) error {
			return e.line(key, value, Line{})
		}, func(lost salvage.LostSpan) error {
			damaged = true
			return e.damage(lost.Within(prefix), lost.Err)
		})
		if err != nil {
			return err
		}
	}
	if !damaged {
		return nil
	}
	return e.unindexed(i)
}

// line writes one key with its value; l carries what is known from elsewhere.
// Bookkeeping (counters, marks, pins) is left out.
func (e *exporter) line(key, value []byte, l Line) error {
	if !e.parse(key, value, &l) {
		l = Line{Type: "damage", Name: layout.DescribeKey(key), Error: layout.ErrMalformed.Error(), File: l.File, Version: l.Version}
	}
	if l.Type == "" {
		return nil
	}
	if e.veil != nil && l.Payload != nil {
		if err := e.show(&l); err != nil {
			return err
		}
	}
	return e.out.Encode(l)
}

// show has the veil decide on a line's payload.
func (e *exporter) show(l *Line) error {
	it := Shown{Kind: ShownRecord, Key: l.Key, Partition: l.Partition, Payload: l.Payload}
	switch l.Type {
	case "meta":
		it.Kind = ShownMeta
	case "state":
		it.Kind = ShownState
	case "note":
		return nil
	}
	payload, before, ok := e.veil.Show(it)
	for _, m := range before {
		if err := e.out.Encode(Line{Type: "meta", Key: m.Key, Payload: m.Payload}); err != nil {
			return err
		}
	}
	if !ok || !bytes.Equal(payload, l.Payload) {
		l.Reason = layout.ReasonClass(l.Reason) // its text may quote what is not shown
	}
	l.Payload, l.Withheld = payload, !ok
	if !ok {
		l.Payload = nil
	}
	return nil
}

// parse fills l from a key and its value; false if they make no sense. A
// deletion has no value.
func (e *exporter) parse(key, value []byte, l *Line) bool {
	switch key[0] {
	case layout.PrefixCounter, layout.PrefixFormat, layout.PrefixHeadline, layout.PrefixJournal, layout.PrefixMark, layout.PrefixPin, layout.PrefixRepair, layout.PrefixTerm:
		return true
	case layout.PrefixName:
		return e.parseName(key, value, l)
	case layout.PrefixMeta:
		l.Type, l.Key, l.Payload = "meta", string(key[1:]), value
		return true
	case layout.PrefixLog:
		return parseExportedRecord(key, value, l)
	}
	if len(key) < 5 {
		return false
	}
	id := binary.BigEndian.Uint32(key[1:])
	switch key[0] {
	case layout.PrefixState:
		l.Type, l.Partition, l.Key, l.Payload = "state", e.name(layout.KindPartition, id), string(key[5:]), value
		return true
	case layout.PrefixNote:
		l.Type, l.Sink, l.Payload = "note", e.name(layout.KindSink, id), value
		return true
	case layout.PrefixQueue:
		l.Type, l.Sink = "entry", e.name(layout.KindSink, id)
		return parseExportedEntry(key, value, l)
	case layout.PrefixDeadLetter:
		l.Type, l.Sink = "deadletter", e.name(layout.KindSink, id)
		return parseExportedLetter(key, value, l)
	}
	return false
}

func (e *exporter) parseName(key, value []byte, l *Line) bool {
	if len(key) < 3 || e.names[key[1]] == nil {
		return false
	}
	l.Type, l.Name = "sink", string(key[2:])
	if key[1] == layout.KindPartition {
		l.Type = "partition"
	}
	if l.Deleted {
		return true
	}
	if len(value) < 4 {
		return false
	}
	l.ID = binary.BigEndian.Uint32(value)
	e.names[key[1]][l.ID] = l.Name
	return true
}

// name of a sink or partition; its number in brackets if the name is lost.
func (e *exporter) name(kind byte, id uint32) string {
	if name, ok := e.names[kind][id]; ok {
		return name
	}
	return fmt.Sprintf("[%d]", id)
}

func parseExportedRecord(key, value []byte, l *Line) bool {
	sequence, ok := layout.PositionOfKey(key)
	l.Type, l.Sequence = "record", sequence
	if l.Deleted || !ok {
		return ok
	}
	v, err := layout.ParseLogRecord(value)
	l.Time, l.Lane, l.Payload = &v.Time, v.Lane, v.Payload
	return err == nil
}

func parseExportedEntry(key, value []byte, l *Line) bool {
	position, ok := layout.PositionOfKey(key)
	l.Position = position
	if l.Deleted || !ok {
		return ok
	}
	v, err := layout.ParseEntry(position, value)
	l.Sequence, l.Time, l.Flags, l.Lane, l.Payload = v.Sequence, &v.Time, v.Flags, v.Lane, v.Payload
	return err == nil
}

func parseExportedLetter(key, value []byte, l *Line) bool {
	position, ok := layout.PositionOfKey(key)
	l.Position = position
	if l.Deleted || !ok {
		return ok
	}
	v, err := layout.ParseDeadLetter(value)
	l.Sequence, l.Time, l.Flags, l.Lane, l.Payload = v.Sequence, &v.Time, v.Flags, v.Lane, v.Payload
	l.Reason, l.Attempts = v.Reason, v.Attempts
	return err == nil
}
