package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"
)

// table prints rows under a header, as kubectl does.
type table struct {
	w      *tabwriter.Writer
	prefix string
}

func newTable(w io.Writer, header ...string) *table {
	t := &table{w: tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)}
	t.row(header...)
	return t
}

func (t *table) row(cells ...string) {
	for i := range cells {
		if cells[i] = clean(cells[i]); cells[i] == "" && i < len(cells)-1 {
			cells[i] = "-"
		}
	}
	// A write error shows at flush.
	_, _ = fmt.Fprintln(t.w, t.prefix+strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

func (t *table) flush() error { return t.w.Flush() }

// clean keeps what others chose off the terminal's controls and out of the columns.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return -1
		}
		return r
	}, s)
}

func printStructured(w io.Writer, format string, v any) error {
	b, err := json.MarshalIndent(v, "", "    ")
	if err != nil {
		return err
	}
	if format == "yaml" {
		if b, err = yaml.JSONToYAML(b); err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// checkOutput is a usage error unless format is one of the allowed.
func checkOutput(format string, allowed ...string) error {
	if slices.Contains(allowed, format) {
		return nil
	}
	return &usageError{fmt.Errorf("-o %q: use %s", format, strings.Join(allowed, ", "))}
}

// age is how long ago t was, short.
func age(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return duration.HumanDuration(max(now.Sub(t), 0))
}

// ago is age for sentences and columns of the past.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return age(t, now) + " ago"
}

// size is an amount of bytes, short.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for ; v >= 1024 && i < len(units)-1; i++ {
		v /= 1024
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}

// plural is "1 event", "2 events", "2 watches".
func plural(n int, one string) string {
	switch {
	case n == 1:
		return "1 " + one
	case strings.HasSuffix(one, "ch"):
		one += "e"
	}
	return fmt.Sprintf("%d %ss", n, one)
}
