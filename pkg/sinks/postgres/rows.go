package postgres

import (
	"encoding/binary"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// Types of the server, by their numbers in pg_type: of an element and of an array of it.
const (
	int8Type, int8Array               = 20, 1016
	textType, textArray               = 25, 1009
	timestamptzType, timestamptzArray = 1184, 1185
)

// column is a parameter in the making: an array in the server's binary form. JSON goes as text, from
// which the statement makes the type that the table has.
type column struct {
	array uint32
	buf   []byte
	rows  int
}

// arrayHeader is the length of what stands before the elements: dimensions, whether there are nulls,
// the type, the number of elements and the lowest index.
const arrayHeader = 5 * 4

func newColumn(array, element uint32, size int) column {
	buf := make([]byte, arrayHeader, arrayHeader+size)
	binary.BigEndian.PutUint32(buf[0:], 1)
	binary.BigEndian.PutUint32(buf[4:], 1)
	binary.BigEndian.PutUint32(buf[8:], element)
	binary.BigEndian.PutUint32(buf[16:], 1)
	return column{array: array, buf: buf}
}

func (c *column) value() []byte {
	binary.BigEndian.PutUint32(c.buf[12:], uint32(c.rows))
	return c.buf
}

// add appends an element; a nil put is a null.
func (c *column) add(put func(dst []byte) []byte) {
	c.rows++
	at := len(c.buf)
	c.buf = append(c.buf, 0xff, 0xff, 0xff, 0xff)
	if put != nil {
		c.buf = put(c.buf)
		binary.BigEndian.PutUint32(c.buf[at:], uint32(len(c.buf)-at-4))
	}
}

func (c *column) text(s string) {
	c.add(func(dst []byte) []byte { return append(dst, s...) })
}

func (c *column) number(n int64) {
	c.add(func(dst []byte) []byte { return binary.BigEndian.AppendUint64(dst, uint64(n)) })
}

// epoch is the server's, the year 2000, in Unix microseconds.
const epoch = 946_684_800_000_000

func (c *column) time(t time.Time) { c.number(t.UnixMicro() - epoch) }

// rows are the parameters of an insertion.
type rows []column

// Kinds of columns.
const (
	textColumn = iota
	numberColumn
	timeColumn
	jsonColumn
)

// columnSpec is a column of a table.
type columnSpec struct {
	name string
	kind int
	key  bool // of the primary key
	null bool
}

// historyColumns and objectColumns are the tables' columns, in the order in which the rows below fill them.
var (
	historyColumns = []columnSpec{
		{name: "id", key: true},
		{name: "sequence", kind: numberColumn},
		{name: "time", kind: timeColumn},
		{name: "type"},
		{name: "selection"},
		{name: "cluster"},
		{name: "api_group"},
		{name: "version"},
		{name: "resource"},
		{name: "kind"},
		{name: "namespace"},
		{name: "name"},
		{name: "uid"},
		{name: "resource_version"},
		{name: "event", kind: jsonColumn},
	}
	objectColumns = []columnSpec{
		{name: "cluster", key: true},
		{name: "api_group", key: true},
		{name: "resource", key: true},
		{name: "namespace", key: true},
		{name: "name", key: true},
		{name: "version"},
		{name: "kind"},
		{name: "uid"},
		{name: "resource_version"},
		{name: "sequence", kind: numberColumn},
		{name: "time", kind: timeColumn},
		{name: "deleted_at", kind: timeColumn, null: true},
		{name: "object", kind: jsonColumn, null: true},
	}
)

// newRows makes parameters for the columns, with room for so many events of so many bytes.
func newRows(specs []columnSpec, events, size int) rows {
	const name = 32 // about the length of a text
	out := make(rows, len(specs))
	for i, spec := range specs {
		switch spec.kind {
		case numberColumn:
			out[i] = newColumn(int8Array, int8Type, events*12)
		case timeColumn:
			out[i] = newColumn(timestamptzArray, timestamptzType, events*12)
		case jsonColumn:
			out[i] = newColumn(textArray, textType, size)
		default:
			out[i] = newColumn(textArray, textType, events*name)
		}
	}
	return out
}

// historyRows are the rows of events in table history.
func historyRows(events []*event.Event, format sinks.Format) rows {
	size := 0
	for _, e := range events {
		size += e.Size()
	}
	r := newRows(historyColumns, len(events), size)
	for _, e := range events {
		r[0].text(e.ID)
		r[1].number(int64(e.Sequence))
		r[2].time(e.Time)
		for i, text := range [...]string{
			string(e.Type), string(e.Selection), e.Cluster, e.Resource.Group, e.Resource.Version, e.Resource.Resource, e.Resource.Kind,
			e.Namespace, e.Name, e.UID, e.ResourceVersion,
		} {
			r[3+i].text(text)
		}
		r[14].add(func(dst []byte) []byte { return format.Append(dst, e) })
	}
	return r
}

// objectRows are the rows of the last states among events in table objects, nil if there is none: one
// insertion cannot change a row twice.
func objectRows(events []*event.Event) rows {
	last := make(map[string]int, len(events))
	size := 0
	var key []byte
	for i, e := range events {
		if e.Type == event.Gap {
			continue
		}
		size += 8 + len(e.Object)
		key = append(append(e.AppendPartitionKey(key[:0]), 0), e.Cluster...)
		if before, ok := last[string(key)]; !ok || events[before].Sequence < e.Sequence {
			last[string(key)] = i
		}
	}
	if len(last) == 0 {
		return nil
	}
	r := newRows(objectColumns, len(last), size)
	for i, e := range events {
		if e.Type == event.Gap {
			continue
		}
		key = append(append(e.AppendPartitionKey(key[:0]), 0), e.Cluster...)
		if last[string(key)] != i {
			continue
		}
		for i, text := range [...]string{
			e.Cluster, e.Resource.Group, e.Resource.Resource, e.Namespace, e.Name, e.Resource.Version, e.Resource.Kind, e.UID, e.ResourceVersion,
		} {
			r[i].text(text)
		}
		r[9].number(int64(e.Sequence))
		r[10].time(e.Time)
		if e.Type == event.Deleted || e.Selection == event.Left {
			r[11].time(e.Time)
		} else {
			r[11].add(nil)
		}
		if len(e.Object) > 0 {
			r[12].add(func(dst []byte) []byte { return append(dst, e.Object...) })
		} else {
			r[12].add(nil)
		}
	}
	return r
}

// values and types are what a query is sent with.
func (r rows) values() (values [][]byte, types []uint32, formats []int16) {
	for i := range r {
		values = append(values, r[i].value())
		types = append(types, r[i].array)
	}
	return values, types, []int16{1} // all binary
}
