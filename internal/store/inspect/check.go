package inspect

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// Report is the result of a Check.
type Report struct {
	// Layout is the version of the store's layout; 0 if it cannot be read.
	Layout uint32
	// Records and RecordBytes are the readable log records and their payloads,
	// between the sequences First and Last.
	Records     int64
	RecordBytes int64
	First, Last uint64
	// Partitions are the ledger's, Queues the sinks', sorted by name.
	Partitions []PartitionReport
	Queues     []QueueReport
	// Meta is the number of metadata values.
	Meta int64
	// Journal is what the store has of its journal; zero without one.
	Journal layout.Position
	// Files is the number of table files, Damaged those that fail a checksum.
	Files   int
	Damaged []FileDamage
	// Problems describe every inconsistency. A healthy store has none.
	Problems []string
}

// PartitionReport is one partition of the ledger.
type PartitionReport struct {
	Name    string
	Entries int64
	Bytes   int64
}

// QueueReport is the queue of one sink.
type QueueReport struct {
	Sink            string
	Length, Bytes   int64
	DeadLetters     int64
	DeadLetterBytes int64
}

// FileDamage names a file that cannot be read in full.
type FileDamage struct {
	File string
	Err  string
}

// OK reports whether there are no problems.
func (r *Report) OK() bool { return len(r.Problems) == 0 }

func (r *Report) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// Check reads the whole store in dir and compares its counters with its contents. It
// changes nothing. The daemon must be stopped ([engine.ErrLocked]). The error is about
// reading the directory; damage to the store is in the Report.
func Check(dir string) (Report, error) { return CheckFS(vfs.Default, dir) }

// CheckFS is [Check] of a store on another filesystem.
func CheckFS(fsys vfs.FS, dir string) (r Report, err error) {
	i, err := open(fsys, dir)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, i.close()) }()
	if err := checkFiles(i, &r); err != nil {
		return r, err
	}
	if i.db == nil {
		r.problem("cannot be opened: %v", i.openErr)
		return r, nil
	}
	c := checker{
		db: i.db, report: &r, names: make(map[byte]map[uint32]string), counters: make(map[string]layout.Counter),
		counted: make(map[string]layout.Counter),
	}
	c.run()
	return r, nil
}

func checkFiles(i *inspection, r *Report) error {
	names, err := i.tables()
	if err != nil {
		return err
	}
	if i.db != nil { // what a flush or a compaction had begun when the daemon was killed is no part of the store
		levels, err := i.db.SSTables()
		if err != nil {
			return err
		}
		live := map[string]bool{}
		for _, tables := range levels {
			for _, t := range tables {
				live[t.BackingSSTNum.String()+".sst"] = true
			}
		}
		names = slices.DeleteFunc(names, func(name string) bool { return !live[name] })
	}
	for _, name := range names {
		r.Files++
		if err := salvage.WithTable(i.fs, i.fs.PathJoin(i.dataPath(), name), (*sstable.Reader).ValidateBlockChecksums); err != nil {
			r.Damaged = append(r.Damaged, FileDamage{File: name, Err: err.Error()})
			r.problem("file %s: %v", name, err)
		}
	}
	return nil
}

// checker walks the keyspaces in an order in which each can be compared with
// those before it.
type checker struct {
	db       *pebble.DB
	report   *Report
	names    map[byte]map[uint32]string
	counters map[string]layout.Counter // as stored
	counted  map[string]layout.Counter // as found
	highest  uint64                    // position
}

func (c *checker) run() {
	c.format()
	c.scan(layout.PrefixCounter, func(key, value []byte) error {
		n, err := layout.ParseCounter(value)
		c.counters[string(key)] = n
		return err
	})
	for _, kind := range []byte{layout.KindSink, layout.KindPartition} {
		c.names[kind] = make(map[uint32]string)
	}
	c.scan(layout.PrefixName, func(key, value []byte) error {
		if len(key) < 3 || len(value) < 4 || c.names[key[1]] == nil {
			return layout.ErrMalformed
		}
		c.names[key[1]][binary.BigEndian.Uint32(value)] = string(key[2:])
		return nil
	})
	c.records()
	c.queues()
	c.deadLetters()
	c.states()
	c.scan(layout.PrefixMeta, func(_, _ []byte) error { c.report.Meta++; return nil })
	c.scan(layout.PrefixJournal, func(_, value []byte) (err error) {
		c.report.Journal, err = layout.ParsePosition(value)
		return err
	})
	c.scan(layout.PrefixTerm, func(key, value []byte) error {
		_, err := layout.ParseTerm(key, value)
		return err
	})
	c.compare()
}

// scan reads one keyspace; an unreadable or malformed value is a problem.
func (c *checker) scan(prefix byte, f func(key, value []byte) error) {
	lower, upper := layout.PrefixRange(prefix)
	err := salvage.Scan(c.db, lower, upper, func(key, value []byte) error {
		if err := f(key, value); err != nil {
			c.report.problem("%s: %v", layout.DescribeKey(key), err)
		}
		return nil
	}, func(lost salvage.LostSpan) error {
		c.report.problem("%s: %v", lost.Within(prefix), salvage.FirstLine(lost.Err))
		return nil
	})
	if err != nil {
		c.report.problem("%s: %v", layout.DescribeSpan(prefix, nil, nil), err)
	}
}

func (c *checker) format() {
	value, closer, err := c.db.Get(layout.FormatKey())
	if err != nil {
		c.report.problem("layout version: %v", err)
		return
	}
	if len(value) == 4 {
		c.report.Layout = binary.BigEndian.Uint32(value)
	}
	_ = closer.Close() // only frees memory
	if c.report.Layout != layout.Version {
		c.report.problem("layout version %d, this release reads %d", c.report.Layout, layout.Version)
	}
}

func (c *checker) count(kind byte, id uint32, bytes int64) {
	key := string(layout.CounterKey(kind, id))
	c.counted[key] = c.counted[key].Plus(layout.Counter{Count: 1, Bytes: bytes})
}

func (c *checker) records() {
	low := c.counters[string(layout.CounterKey(layout.KindLog, 0))].High
	c.scan(layout.PrefixLog, func(key, value []byte) error {
		sequence, ok := layout.PositionOfKey(key)
		v, err := layout.ParseLogRecord(value)
		if !ok || err != nil {
			return cmp.Or(err, layout.ErrMalformed)
		}
		r := c.report
		if r.Records == 0 || sequence < r.First {
			r.First = sequence
		}
		r.Last = max(r.Last, sequence)
		r.Records++
		r.RecordBytes += int64(v.Size)
		c.highest = max(c.highest, sequence)
		c.count(layout.KindLog, 0, int64(v.Size))
		if sequence < low {
			return fmt.Errorf("record below the log's beginning %d", low)
		}
		return nil
	})
}

func (c *checker) queues() {
	missing := make(map[uint32]int)
	c.scan(layout.PrefixQueue, func(key, value []byte) error {
		position, ok := layout.PositionOfKey(key)
		e, err := layout.ParseEntry(position, value)
		if !ok || err != nil {
			return cmp.Or(err, layout.ErrMalformed)
		}
		sink := binary.BigEndian.Uint32(key[1:])
		c.highest = max(c.highest, position)
		c.count(layout.KindQueue, sink, int64(e.Size))
		if e.Kind == layout.EntryInline {
			c.count(layout.KindDetached, sink, int64(e.Size))
		}
		if head := c.counters[string(layout.CounterKey(layout.KindQueue, sink))].High; position < head {
			return fmt.Errorf("entry before the queue's head %d", head)
		}
		if e.Kind != layout.EntryInline && !c.hasRecord(e.Sequence) {
			missing[sink]++
		}
		return nil
	})
	for sink, n := range missing {
		c.report.problem("queue of sink %s: %d entries without a readable record", c.sink(sink), n)
	}
}

func (c *checker) hasRecord(sequence uint64) bool {
	_, closer, err := c.db.Get(layout.AppendLogKey(nil, sequence))
	if err != nil {
		return false
	}
	_ = closer.Close() // only frees memory
	return true
}

func (c *checker) sink(id uint32) string {
	if name, ok := c.names[layout.KindSink][id]; ok {
		return name
	}
	return fmt.Sprintf("number %d, which has no name", id)
}

func (c *checker) deadLetters() {
	c.scan(layout.PrefixDeadLetter, func(key, value []byte) error {
		position, ok := layout.PositionOfKey(key)
		d, err := layout.ParseDeadLetter(value)
		if !ok || err != nil {
			return cmp.Or(err, layout.ErrMalformed)
		}
		c.highest = max(c.highest, position)
		c.count(layout.KindDeadLetter, binary.BigEndian.Uint32(key[1:]), int64(len(d.Payload)))
		return nil
	})
}

func (c *checker) states() {
	partitions := make(map[uint32]*PartitionReport)
	c.scan(layout.PrefixState, func(key, value []byte) error {
		if len(key) < 5 {
			return layout.ErrMalformed
		}
		id := binary.BigEndian.Uint32(key[1:])
		p := partitions[id]
		if p == nil {
			p = &PartitionReport{Name: c.names[layout.KindPartition][id]}
			partitions[id] = p
			if p.Name == "" {
				c.report.problem("ledger partition %d has no name", id)
			}
		}
		p.Entries++
		p.Bytes += int64(len(value))
		return nil
	})
	for _, p := range partitions {
		c.report.Partitions = append(c.report.Partitions, *p)
	}
	slices.SortFunc(c.report.Partitions, func(a, b PartitionReport) int { return strings.Compare(a.Name, b.Name) })
}

func (c *checker) compare() {
	if high := c.counters[string(layout.CounterKey(layout.KindPosition, 0))].High; high < c.highest {
		c.report.problem("position %d is in use, but the counter is %d", c.highest, high)
	}
	for key := range c.counted {
		if _, ok := c.counters[key]; !ok {
			c.counters[key] = layout.Counter{}
		}
	}
	for key, stored := range c.counters {
		found := c.counted[key]
		if key[1] != layout.KindPosition && (stored.Count != found.Count || stored.Bytes != found.Bytes) {
			c.report.problem("%s is at %d entries and %d bytes; the store has %d and %d",
				layout.DescribeKey([]byte(key)), stored.Count, stored.Bytes, found.Count, found.Bytes)
		}
	}
	for id, name := range c.names[layout.KindSink] {
		queue, dead := c.counted[string(layout.CounterKey(layout.KindQueue, id))], c.counted[string(layout.CounterKey(layout.KindDeadLetter, id))]
		c.report.Queues = append(c.report.Queues, QueueReport{
			Sink: name, Length: queue.Count, Bytes: queue.Bytes, DeadLetters: dead.Count, DeadLetterBytes: dead.Bytes,
		})
	}
	slices.SortFunc(c.report.Queues, func(a, b QueueReport) int { return strings.Compare(a.Sink, b.Sink) })
	slices.Sort(c.report.Problems)
}
