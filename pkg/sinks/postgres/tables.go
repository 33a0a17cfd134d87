package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// Types of the columns, as SQL names them.
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

// definition is the SQL that makes a table.
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
// type that the table has. A key of history that has more columns than the id, as a table with partitions
// needs it, does as well.
func insertion(schema string, table Table, jsonType string) string {
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
		return sql + " on conflict do nothing"
	}
	return fmt.Sprintf("%s on conflict (%s) do update set %s where t.sequence < excluded.sequence", sql, key, strings.Join(updates, ", "))
}

// found is what a look at the database shows.
type found struct {
	schema bool
	json   map[Table]string // table → type of its JSON column; "" where it has none
}

// look reads the server's settings and the tables' columns.
func (s *sink) look(ctx context.Context, c *session) (found, error) {
	f := found{json: map[Table]string{}}
	settings, err := c.query(ctx, "select current_setting('synchronous_commit'), current_setting('fsync'), exists (select from pg_namespace where nspname = $1)", s.schema)
	if err != nil {
		return f, fmt.Errorf("read the server's settings: %w", err)
	}
	f.schema = settings[0][2] == "t"
	if settings[0][0] == "off" {
		s.warnOnce("synchronous_commit is off: the server loses what it committed last when it crashes; set it to on for this role")
	}
	if settings[0][1] == "off" {
		s.warnOnce("fsync is off: the database is lost when the machine crashes")
	}
	columns, err := c.query(ctx, `select c.relname, a.attname, format_type(a.atttypid, null)
from pg_namespace n join pg_class c on c.relnamespace = n.oid join pg_attribute a on a.attrelid = c.oid
where n.nspname = $1 and c.relname in ('history', 'objects') and c.relkind in ('r', 'p', 'v', 'f') and a.attnum > 0 and not a.attisdropped`, s.schema)
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
			s.warnOnce("tables are missing: run this SQL, or set create: true", "sql", missing)
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
			c.insert[table] = insertion(s.schema, table, f.json[table])
		default:
			return sinks.Pause(errors.New("table " + qualified(s.schema, table) + " has no column event or object of type jsonb or json: compare it with the documentation"))
		}
	}
	return nil
}

// missing is the SQL that makes what is missing.
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
