package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"syscall"

	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
	"github.com/cockroachdb/pebble/v2/wal"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// VerifyLogs fails on a MANIFEST or a write-ahead log that is damaged before its
// end. Pebble takes the first unreadable record for the torn end of an interrupted
// write, in a MANIFEST always, in a write-ahead log if the damage is in its last
// block, and one with the number of the next log for the end. It then continues with an old list
// of tables and removes the others, or without the commits that follow. Logs whose commits are in
// tables, which Pebble keeps to write over, are not read.
//
// Neither does Pebble miss the marker that names the MANIFEST: it begins a new store, and removes the files of this one. Nor does
// it miss a log before others, or the end of one.
func VerifyLogs(fsys vfs.FS, dir string) error {
	name, err := atomicfs.ReadMarker(fsys, dir, "manifest")
	if err != nil {
		return err
	}
	if name == "" {
		return fmt.Errorf("%w: no marker in %s names the MANIFEST", layout.ErrMalformed, dir)
	}
	first, commits, err := verifyManifest(fsys, fsys.PathJoin(dir, name))
	if err != nil {
		return err
	}
	logs, err := wal.Scan(wal.Dir{FS: fsys, Dirname: dir})
	if err != nil {
		return err
	}
	for _, l := range logs {
		if l.Num < first {
			continue
		}
		for i := range l.NumSegments() {
			_, path := l.SegmentLocation(i)
			synced := func(content []byte, end int64) bool { return syncedChunk(content, end, uint32(l.Num)) }
			if err := verifyLog(fsys, path, l.Num, commits.read, synced); err != nil {
				return err
			}
			if commits.missing != nil {
				return fmt.Errorf("%w: before or in %s: %w", layout.ErrMalformed, path, commits.missing)
			}
		}
	}
	return nil
}

// commits are those of the write-ahead logs, whose keys are numbered without a gap.
type commits struct {
	next    uint64 // the number of the next key; of the first one, the highest that it can have
	begun   bool
	missing error
}

func (c *commits) read(batch io.Reader) error {
	var head [batchrepr.HeaderLen]byte
	if _, err := io.ReadFull(batch, head[:]); err != nil {
		return err
	}
	h, _ := batchrepr.ReadHeader(head[:])
	number := uint64(h.SeqNum)
	if c.missing == nil && (number > c.next || c.begun && number < c.next) {
		c.missing = fmt.Errorf("commits are missing: key %d follows where %d is next", number, c.next)
	}
	c.next, c.begun = number+uint64(h.Count), true
	return discard(batch)
}

// verifyManifest returns the number of the first write-ahead log that is not in tables, and what is known of the commits of those.
func verifyManifest(fsys vfs.FS, path string) (first wal.NumWAL, c commits, err error) {
	records := 0
	next := func(record io.Reader) error {
		head, err := io.ReadAll(io.LimitReader(record, maxEditHead))
		if err == nil {
			err = discard(record)
		}
		if err != nil {
			return err
		}
		log, last := editHead(head)
		if log > 0 {
			first = wal.NumWAL(log)
		}
		c.next = max(last, last+1, firstKey) // last may be the highest that there is
		records++
		return nil
	}
	err = verifyLog(fsys, path, 0, next, func(content []byte, end int64) bool {
		// A MANIFEST becomes the current one once its first two records, the tables of before and
		// what changed, are synced.
		return records < 2 || validChunk(content, end)
	})
	return first, c, err
}

// A record of a MANIFEST is a list of fields, each behind its tag. It begins with these, if it has them.
const (
	comparerTag = 1 // length, name
	firstLogTag = 2 // the number of the first write-ahead log that is not in tables
	nextFileTag = 3
	lastKeyTag  = 4 // the highest number of a key at that time

	maxEditHead = 128 // of the bytes of these
	firstKey    = 10  // the number of the first key of a new store
)

// editHead returns the values of firstLogTag, 0 if a record of a MANIFEST does not begin with it, and of lastKeyTag, which is
// unbounded then.
func editHead(record []byte) (firstLog, lastKey uint64) {
	field := func() uint64 {
		v, n := binary.Uvarint(record)
		record = record[max(n, 0):]
		return v
	}
	for {
		switch field() {
		case comparerTag:
			name := field()
			record = record[min(name, uint64(len(record))):]
		case firstLogTag:
			firstLog = field()
		case nextFileTag:
			field()
		case lastKeyTag:
			return firstLog, field()
		default:
			return firstLog, math.MaxUint64
		}
	}
}

func discard(record io.Reader) error {
	_, err := io.Copy(io.Discard, record)
	return err
}

// verifyLog calls next for the records of a file. If they end before the file does, proof
// decides whether the rest of the file proves that there were more records.
func verifyLog(fsys vfs.FS, path string, num wal.NumWAL, next func(record io.Reader) error, proof func(content []byte, end int64) bool) error {
	end, cause, err := validEnd(fsys, path, num, next)
	if err != nil {
		return err
	}
	content, err := ReadFile(fsys, path)
	if err != nil {
		return err
	}
	if end < int64(len(content)) && proof(content, end) {
		return fmt.Errorf("%w: %s at byte %d: %w", layout.ErrMalformed, path, end, cause)
	}
	return nil
}

// errEnded is what ends the records of a file that were all read.
var errEnded = errors.New("the records end")

// validEnd reads the records of a file with next. It returns the end of the valid ones, and what
// ends them.
func validEnd(fsys vfs.FS, path string, num wal.NumWAL, next func(record io.Reader) error) (end int64, cause, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r := withNum(record.NewReader, f, num)
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return end, errEnded, nil
		}
		if err == nil {
			err = next(rec)
		}
		if _, ok := errors.AsType[syscall.Errno](err); ok {
			return end, nil, err
		}
		if err != nil {
			return end, err, nil
		}
		end = r.Offset()
	}
}

// The record format: checksum (4 bytes), length (2), type (1), and in
// write-ahead logs the log's number (4) and how much of it was synced when the
// chunk was written (8); then the payload. No chunk crosses a block.
const (
	chunkHeader     = 7
	syncChunkHeader = chunkHeader + 4 + 8
	recordBlock     = 32 << 10

	fullChunk   = 1 // a record in one piece
	firstChunk  = 2 // of one that crosses a block
	middleChunk = 3
	lastChunk   = 4
	syncKinds   = 8 // is added to these in write-ahead logs
)

// validChunk reports whether a record begins after the one that is torn at end:
// each record of a MANIFEST is synced before the next. The later chunks of the torn
// one prove nothing, as a power cut may keep a later block and lose an earlier one.
func validChunk(content []byte, end int64) bool {
	if left := recordBlock - end%recordBlock; left < chunkHeader {
		end += left // padding
	}
	for i := int(end) + 1; i+chunkHeader < len(content); i++ {
		if kind := content[i+6]; (kind == fullChunk || kind == firstChunk) && chunkAt(content[i:], chunkHeader) {
			return true
		}
	}
	return false
}

// syncedChunk reports whether there is a chunk after end that was written when
// more than that was already synced.
func syncedChunk(content []byte, end int64, num uint32) bool {
	if left := recordBlock - end%recordBlock; left < syncChunkHeader {
		end += left // padding
	}
	for i := int(end) + 1; i+syncChunkHeader < len(content); i++ {
		if binary.LittleEndian.Uint64(content[i+11:]) > uint64(end) && isSyncChunk(content[i:], num) {
			return true
		}
	}
	return false
}

// isSyncChunk reports whether b begins with a valid chunk of a write-ahead log.
func isSyncChunk(b []byte, num uint32) bool {
	kind := b[6]
	return kind > syncKinds && kind <= syncKinds+lastChunk &&
		binary.LittleEndian.Uint32(b[7:]) == num && chunkAt(b, syncChunkHeader)
}

// chunkAt reports whether b begins with a chunk whose checksum is right.
func chunkAt(b []byte, header int) bool {
	length := int(binary.LittleEndian.Uint16(b[4:]))
	if length == 0 || header+length > len(b) {
		return false
	}
	c := crc32.Checksum(b[6:header+length], crc32.MakeTable(crc32.Castagnoli))
	return binary.LittleEndian.Uint32(b) == MaskedChecksum(c)
}

// MaskedChecksum is the form in which checksums are stored.
func MaskedChecksum(c uint32) uint32 { return (c>>15 | c<<17) + 0xa282ead8 }

// withNum calls f with the number in the type it wants, which has no name
// outside of Pebble.
func withNum[N ~uint64](f func(io.Reader, N) *record.Reader, r io.Reader, num wal.NumWAL) *record.Reader {
	return f(r, N(num))
}

// WALReader reads the records of a write-ahead log, and continues after damage.
type WALReader struct {
	Content []byte // of the file
	Num     uint32 // the log's number
	At      int    // the position in Content
}

// Next returns the next whole record, nil if there is none, and whether something
// before it is damaged.
func (r *WALReader) Next() (record []byte, damaged bool) {
	begun := false
	for {
		kind, payload, skipped := r.chunk()
		damaged = damaged || begun && (skipped || kind == firstChunk || kind == fullChunk) || skipped && kind != 0
		if skipped {
			begun = false
		}
		switch kind {
		case 0:
			return nil, damaged
		case fullChunk:
			return payload, damaged
		case firstChunk:
			record, begun = bytes.Clone(payload), true
		case middleChunk, lastChunk:
			if !begun {
				damaged = true
				continue
			}
			if record = append(record, payload...); kind == lastChunk {
				return record, damaged
			}
		}
	}
}

// chunk returns the kind and the payload of the next valid chunk, 0 at the end, and
// whether it skipped invalid bytes.
func (r *WALReader) chunk() (kind byte, payload []byte, skipped bool) {
	for r.At+syncChunkHeader < len(r.Content) {
		if left := recordBlock - r.At%recordBlock; left < syncChunkHeader {
			r.At += left // padding
			continue
		}
		if b := r.Content[r.At:]; isSyncChunk(b, r.Num) {
			n := syncChunkHeader + int(binary.LittleEndian.Uint16(b[4:]))
			r.At += n
			return b[6] - syncKinds, b[syncChunkHeader:n], skipped
		}
		r.At++
		skipped = true
	}
	return 0, nil, skipped
}
