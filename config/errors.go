package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Error is one problem of a configuration, and where it stands.
type Error struct {
	File         string // as it was given to Load or Parse; may be empty
	Line, Column int    // from 1; 0 when the place is not known
	Path         string // key path such as watches[0].resources[2], without what may be a secret in a key; empty for the file as a whole
	Msg          string // what is wrong and, where it is not plain, what to do
}

// Error is the problem on one line, the way compilers print theirs:
// file:line:column: key path: message.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		if e.File != "" {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%d:%d", e.Line, e.Column)
	}
	for _, part := range []string{e.Path, e.Msg} {
		if part != "" {
			if b.Len() > 0 {
				b.WriteString(": ")
			}
			b.WriteString(part)
		}
	}
	return b.String()
}

// Errors is every problem of one configuration, sorted by place. It has at least
// one.
type Errors struct {
	List []*Error

	partial *Config
}

// Partial is what could be read of the configuration, to look for more errors in; nil if
// its syntax is broken. It is not valid.
func (e *Errors) Partial() *Config { return e.partial }

// Join is the errors of several checks of one configuration, in the order of the checks, as
// one *[Errors]; nil if there are none. An error that may follow from one of an earlier check
// is left out: both name the same value, or one the value around the other. An error
// of another type is the result alone.
func Join(checks ...error) error {
	var all []*Error
	for _, err := range checks {
		if err == nil {
			continue
		}
		found, ok := errors.AsType[*Errors](err)
		if !ok {
			return err
		}
		earlier := all
		for _, e := range found.List {
			if !slices.ContainsFunc(earlier, func(o *Error) bool { return holds(o.Path, e.Path) || holds(e.Path, o.Path) }) {
				all = append(all, e)
			}
		}
	}
	return NewErrors(all...)
}

// holds reports whether the value at path is the one at inner or around it.
func holds(path, inner string) bool {
	rest, ok := strings.CutPrefix(inner, path)
	return ok && (rest == "" || path == "" || rest[0] == '.' || rest[0] == '[')
}

// NewErrors sorts the problems and drops repeated ones. It returns nil, an error
// that is nil, when there are none.
func NewErrors(list ...*Error) error {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return &Errors{List: slices.CompactFunc(list, func(a, b *Error) bool { return *a == *b })}
}

// Error is one line for each problem.
func (e *Errors) Error() string {
	lines := make([]string, len(e.List))
	for i, one := range e.List {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives each problem as an error.
func (e *Errors) Unwrap() []error {
	all := make([]error, len(e.List))
	for i, one := range e.List {
		all[i] = one
	}
	return all
}

// ErrorAt is a problem with the value at a key path, at its place in the file.
// Where the path leads nowhere the place is that of the nearest value around it.
func (c *Config) ErrorAt(path, format string, args ...any) *Error {
	e := &Error{File: c.source.file, Path: maskedPath(path), Msg: fmt.Sprintf(format, args...)}
	if c.source.doc != nil {
		e.Line, e.Column = c.source.doc.Position(path)
	}
	return e
}

// ErrorWithin is a problem inside the text at a key path, at line and column of
// that text, counted from 1 (columns in characters).
func (c *Config) ErrorWithin(path string, line, column int, format string, args ...any) *Error {
	e := &Error{File: c.source.file, Path: maskedPath(path), Msg: fmt.Sprintf(format, args...)}
	if c.source.doc != nil {
		e.Line, e.Column = c.source.doc.PositionWithin(path, line, column)
	}
	return e
}
