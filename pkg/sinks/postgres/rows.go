package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
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

var typeNames = map[int]string{textColumn: "text", numberColumn: "bigint", timeColumn: "timestamptz", jsonColumn: "jsonb"}

// columnsOf are the columns of a table, and the names of those that are its key.
func columnsOf(table Table) (specs []columnSpec, key string) {
	specs = historyColumns
	if table == Objects {
		specs = objectColumns
	}
	var names []string
	for _, c := range specs {
		if c.key {
			names = append(names, c.name)
		}
	}
	return specs, strings.Join(names, ", ")
}

func definition(schema string, table Table) string {
	specs, key := columnsOf(table)
	name := qualified(schema, table)
	var b strings.Builder
	fmt.Fprintf(&b, "create table if not exists %s (\n", name)
	for _, c := range specs {
		fmt.Fprintf(&b, "  %s %s", c.name, typeNames[c.kind])
		if !c.null {
			b.WriteString(" not null")
		}
		b.WriteString(",\n")
	}
	fmt.Fprintf(&b, "  primary key (%s)\n)", key)
	if table == Objects {
		return b.String() + " with (fillfactor = 85);\n"
	}
	_, object := columnsOf(Objects)
	fmt.Fprintf(&b, ";\ncreate index if not exists history_object on %s (%s, sequence);\n", name, object)
	fmt.Fprintf(&b, "create index if not exists history_time on %s using brin (time);\n", name)
	return b.String()
}

func qualified(schema string, table Table) string { return `"` + schema + `".` + string(table) }

// insertion is the statement that writes rows of a table, whose last column is JSON of the
// type that the table has. Of history it has the key: a row that another key refuses is not there, which is an error.
func insertion(schema string, table Table, jsonType, historyKey string) string {
	specs, key := columnsOf(table)
	var names, values, arrays, updates []string
	for i, c := range specs {
		names = append(names, c.name)
		value, array := "r."+c.name, typeNames[c.kind]
		if c.kind == jsonColumn {
			value, array = value+"::"+jsonType, "text"
		}
		values = append(values, value)
		arrays = append(arrays, fmt.Sprintf("$%d::%s[]", i+1, array))
		if !c.key {
			updates = append(updates, c.name+" = excluded."+c.name)
		}
	}
	sql := fmt.Sprintf("insert into %s as t (%s) select %s from unnest(%s) as r(%s)", qualified(schema, table),
		strings.Join(names, ", "), strings.Join(values, ", "), strings.Join(arrays, ", "), strings.Join(names, ", "))
	if table == History {
		return sql + " on conflict " + historyKey + " do nothing"
	}
	return fmt.Sprintf("%s on conflict (%s) do update set %s where t.sequence < excluded.sequence", sql, key, strings.Join(updates, ", "))
}

// found is what a look at the database shows.
type found struct {
	schema bool
	key    string           // of history that has the id, in parentheses; "": none, such as of a view
	json   map[Table]string // table → type of its JSON column; "" where it has none
}

// lookSQL selects settings, whether there is the schema, and the key of history that has the id. It has more columns where the
// table has partitions.
const lookSQL = `select current_setting('synchronous_commit'), current_setting('fsync'), exists (select from pg_namespace where nspname = $1),
coalesce((select '(' || key.names || ')'
from pg_namespace n join pg_class c on c.relnamespace = n.oid join pg_index i on i.indrelid = c.oid,
lateral (select string_agg(quote_ident(attname), ', ') as names, bool_or(attname = 'id') as has_id from pg_attribute
	where attrelid = c.oid and attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])) as key
where n.nspname = $1 and c.relname = 'history' and key.has_id
and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and i.indexprs is null
order by i.indisprimary desc limit 1), '')`

func (s *sink) look(ctx context.Context, c *session) (found, error) {
	f := found{json: map[Table]string{}}
	settings, err := c.query(ctx, lookSQL, s.schema, 4)
	if err == nil && len(settings) != 1 {
		err = errRows
	}
	if err != nil {
		return f, fmt.Errorf("read the server's settings: %w", err)
	}
	f.schema, f.key = settings[0][2] == "t", settings[0][3]
	if settings[0][0] == "off" {
		s.warnings.Once("", "synchronous_commit is off: the server loses what it committed last when it crashes; set it to on for this role")
	}
	if settings[0][1] == "off" {
		s.warnings.Once("", "fsync is off: the database is lost when the machine crashes")
	}
	columns, err := c.query(ctx, `select c.relname, a.attname, format_type(a.atttypid, null)
from pg_namespace n join pg_class c on c.relnamespace = n.oid join pg_attribute a on a.attrelid = c.oid
where n.nspname = $1 and c.relname in ('history', 'objects') and c.relkind in ('r', 'p', 'v', 'f') and a.attnum > 0 and not a.attisdropped`, s.schema, 3)
	if err != nil {
		return f, fmt.Errorf("read the tables' columns: %w", err)
	}
	for _, column := range columns {
		table := Table(column[0])
		if json := map[Table]string{History: "event", Objects: "object"}[table]; column[1] == json {
			f.json[table] = column[2]
		} else if _, known := f.json[table]; !known {
			f.json[table] = ""
		}
	}
	return f, nil
}

// prepare checks the tables, makes those that are missing where that is asked for, and makes the
// statements of the session.
func (s *sink) prepare(ctx context.Context, c *session) error {
	f, err := s.look(ctx, c)
	if err != nil {
		return err
	}
	if missing := s.missing(f); missing != "" {
		if !s.create {
			s.warnings.Once("", "tables are missing: run this SQL, or set create: true", "sql", missing)
			return sinks.Pause(fmt.Errorf("schema %s has not all tables: set create: true, or run the SQL that is in the log", s.schema))
		}
		// Daemons that start together make the tables once.
		if err := c.exec(ctx, "select pg_advisory_xact_lock(hashtext('watcherd'));\n"+missing); err != nil {
			return fmt.Errorf("create the tables: %w", err)
		}
		s.log.Info("tables created", "schema", s.schema)
		if f, err = s.look(ctx, c); err != nil {
			return err
		}
	}
	for _, table := range []Table{History, Objects} {
		if !s.writes(table) {
			continue
		}
		switch f.json[table] {
		case "json", "jsonb", "text":
			c.insert[table] = insertion(s.schema, table, f.json[table], f.key)
		default:
			return sinks.Pause(errors.New("table " + qualified(s.schema, table) + " has no column event or object of type jsonb or json: compare it with the documentation"))
		}
	}
	return nil
}

func (s *sink) missing(f found) string {
	sql := ""
	for _, table := range []Table{History, Objects} {
		if _, ok := f.json[table]; !ok && s.writes(table) {
			sql += definition(s.schema, table)
		}
	}
	if sql != "" && !f.schema {
		sql = "create schema if not exists \"" + s.schema + "\";\n" + sql
	}
	return sql
}

func (s *sink) writes(table Table) bool {
	return table == History && s.history || table == Objects && s.objects
}
