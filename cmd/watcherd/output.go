package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v2"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/pkg/event/pretty"
)

// table prints rows under a header, as kubectl does.
type table struct {
	w      *tabwriter.Writer
	prefix string
	widths []int // of the columns so far: rows after a flush are below those before it
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
		if i == len(t.widths) {
			t.widths = append(t.widths, 0)
		}
		width := utf8.RuneCountInString(cells[i])
		t.widths[i] = max(t.widths[i], width)
		if i < len(cells)-1 {
			cells[i] += strings.Repeat(" ", t.widths[i]-width)
		}
	}
	// A write error shows at flush.
	_, _ = fmt.Fprintln(t.w, t.prefix+strings.TrimRight(strings.Join(cells, "\t"), "\t "))
}

func (t *table) flush() error { return t.w.Flush() }

// clean keeps what others chose off the terminal's controls and out of the columns.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case controls(r):
			return -1
		}
		return r
	}, s)
}

// controls reports whether a character changes how a terminal shows others: controls, those
// that change the direction of text, and those that no reader sees.
func controls(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) }

// escaped is JSON whose texts have no characters that control a terminal. JSON itself escapes
// those of ASCII only.
func escaped(raw []byte) []byte {
	rest := bytes.IndexFunc(raw, func(r rune) bool { return r >= 0x7f && controls(r) })
	if rest < 0 {
		return raw
	}
	out := slices.Clone(raw[:rest])
	for _, r := range string(raw[rest:]) {
		switch {
		case r < 0x7f || !controls(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

func printStructured(w io.Writer, format string, v any) error {
	b, err := json.MarshalIndent(v, "", "    ")
	if err != nil {
		return err
	}
	b = escaped(b)
	if format == "yaml" {
		// Texts and keys can have what a parser of YAML refuses, so JSON is decoded as JSON.
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		var plain any
		if err = d.Decode(&plain); err != nil {
			return err
		}
		if b, err = yaml.Marshal(plain); err != nil {
			return err
		}
		if pretty.IsTerminal(w) { // YAML leaves the direction of text as it is
			b = []byte(cleanLines(string(b)))
		}
		_, err = w.Write(b)
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// addOutputFlag adds the flag --output. The first of the formats is its default.
func addOutputFlag(cmd *cobra.Command, to *string, usage string, formats ...string) {
	cmd.Flags().StringVarP(to, "output", "o", formats[0], usage)
	mustMark(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if slices.Contains(formats, *to) {
			return nil
		}
		return &usageError{fmt.Errorf("-o %q: use %s", *to, strings.Join(formats, ", "))}
	}
}

// timeFlag is the time that a flag gives, zero if it is empty. What is given as how long ago counts back from now.
func timeFlag(flag, text string, now func() (time.Time, error)) (at time.Time, err error) {
	if text == "" {
		return at, nil
	}
	if ago, ok := admin.ParseAgo(text); ok {
		at, err = now()
		return at.Add(-ago), err
	}
	if at, err = admin.ParseSince(text, at); err != nil {
		err = &usageError{fmt.Errorf("%s: %w", flag, err)}
	}
	return at, err
}

// setGiven adds the values that are not empty to a query.
func setGiven(q url.Values, values map[string]string) {
	for key, value := range values {
		if value != "" {
			q.Set(key, value)
		}
	}
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
