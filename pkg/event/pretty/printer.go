package pretty

import (
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/summary"
)

// Printer formats events. The zero Printer prints without colour. It may be used
// from several goroutines.
type Printer struct {
	Color bool // use ANSI colours
}

// style is the parameter of an ANSI SGR sequence.
type style string

const (
	dim     style = "2"
	green   style = "32"
	yellow  style = "33"
	red     style = "31"
	cyan    style = "36"
	magenta style = "1;35"
)

// verbs are the words of kubectl and the watch protocol, padded to one width.
var verbs = map[event.Type]struct {
	text  string
	style style
}{
	event.Added:   {"ADDED  ", green},
	event.Updated: {"UPDATED", yellow},
	event.Deleted: {"DELETED", red},
	event.Sync:    {"SYNC   ", cyan},
	event.Gap:     {"GAP    ", magenta},
}

// clock is the layout of a time within a day.
const clock = "15:04:05.000"

// Append appends e as one line that ends in a newline.
func (p Printer) Append(dst []byte, e *event.Event) []byte {
	if e.Gap != nil {
		return p.appendGap(dst, e, 0)
	}
	dst = p.appendVerb(dst, e)
	dst = appendPadded(dst, e.Resource.Kind, 12)
	dst = append(dst, ' ')
	if e.Namespace != "" {
		dst = appendClean(dst, e.Namespace)
		dst = append(dst, '/')
	}
	dst = appendClean(dst, e.Name)
	if e.ChangedBy != nil {
		dst = appendClean(append(dst, "  by "...), e.ChangedBy.Manager)
	}
	for _, note := range notes(e) {
		dst = append(dst, "  "...)
		dst = p.styled(dst, dim, note)
	}
	if e.Type == event.Updated || e.Resource.SelfDescribing(e.Type) {
		dst = p.appendChanges(dst, e)
	}
	return append(dst, '\n')
}

// AppendGaps appends the gaps of one cause that resources have in common as one line that ends in a newline.
func (p Printer) AppendGaps(dst []byte, gaps []*event.Event) []byte {
	if len(gaps) == 1 {
		return p.Append(dst, gaps[0])
	}
	e, data := *gaps[0], event.GapData{Cause: gaps[0].Gap.Cause, From: gaps[0].Gap.From, To: gaps[0].Gap.To}
	resources := map[event.Resource]struct{}{}
	for _, g := range gaps {
		resources[g.Gap.Resource] = struct{}{}
		if g.Gap.From.Before(data.From) {
			data.From = g.Gap.From
		}
		if g.Gap.To.After(data.To) {
			data.To = g.Gap.To
		}
	}
	data.Resource = gaps[0].Gap.Resource
	e.Gap = &data
	return p.appendGap(dst, &e, len(resources)-1)
}

// appendChanges appends how the object changed, as far as the payload shows it.
func (p Printer) appendChanges(dst []byte, e *event.Event) []byte {
	changes, known := summary.Changes(e)
	switch {
	case !known && e.Summary == "" && e.Type != event.Updated:
		return dst
	case !known && e.Summary == "":
		return p.styled(append(dst, "  "...), dim, "version "+string(appendClean(nil, e.ResourceVersion)))
	case !known:
		changes = e.Summary
	case changes == "":
		return dst
	}
	return appendClean(append(dst, "  "...), changes)
}

// appendVerb appends the time and the verb.
func (p Printer) appendVerb(dst []byte, e *event.Event) []byte {
	dst = p.styled(dst, dim, local(e.Time).Format(clock))
	dst = append(dst, ' ')
	verb, known := verbs[e.Type]
	if !known {
		verb.text = strings.ToUpper(string(e.Type))
	}
	dst = p.styled(dst, verb.style, verb.text)
	return append(dst, ' ')
}

// appendGap appends of what a gap is, what is known about it, and from when to when. More is how many resources have it
// beside the one that it names.
func (p Printer) appendGap(dst []byte, e *event.Event, more int) []byte {
	g := e.Gap
	dst = p.appendVerb(dst, e)
	dst = appendClean(dst, g.Resource.String())
	switch {
	case more > 0:
		dst = append(dst, " and "...)
		dst = append(strconv.AppendInt(dst, int64(more), 10), " more"...)
	case g.Name != "":
		dst = appendClean(append(dst, ' '), strings.TrimPrefix(g.Namespace+"/"+g.Name, "/"))
	case g.Namespace != "":
		dst = appendClean(append(dst, " in "...), g.Namespace)
	}
	if g.Cause == "quiet" { // the lists before and after are equal
		dst = append(dst, "  no change was missed, except of objects that came and went,"...)
	} else {
		dst = append(dst, "  nothing is known"...)
	}
	if !g.From.IsZero() {
		dst = append(dst, " from "...)
		dst = appendClock(dst, g.From, e.Time)
		dst = append(dst, " to "...)
		dst = appendClock(dst, g.To, e.Time)
	}
	dst = append(dst, " ("...)
	dst = appendClean(dst, g.Cause)
	if g.FromResourceVersion != "" && g.ToResourceVersion != "" {
		dst = append(dst, ", version "...)
		dst = appendClean(dst, g.FromResourceVersion)
		dst = append(dst, " to "...)
		dst = appendClean(dst, g.ToResourceVersion)
	}
	return append(dst, ")\n"...)
}

// appendClock appends a time as that of an event, with its date if that is another one.
func appendClock(dst []byte, t, of time.Time) []byte {
	t, of = local(t), local(of)
	if t.YearDay() != of.YearDay() || t.Year() != of.Year() {
		dst = t.AppendFormat(dst, "2006-01-02 ")
	}
	return t.AppendFormat(dst, clock)
}

// local is a time to print, whose milliseconds are those rounded up: the state at the time of a change has the change.
func local(t time.Time) time.Time { return t.Add(time.Millisecond - 1).Local() }

// notes are the marks of an event that a reader should not miss.
func notes(e *event.Event) []string {
	var out []string
	switch e.Selection {
	case event.Entered:
		out = append(out, "entered selection")
	case event.Left:
		out = append(out, "left selection")
	case event.Unknown:
		out = append(out, "or a change of selection")
	}
	if e.Coalesced > 0 {
		out = append(out, "replaces "+strconv.Itoa(e.Coalesced))
	}
	if e.For != nil {
		out = append(out, "matches since "+e.For.Since.Local().Format(time.DateTime))
	}
	if e.FinalStateUnknown {
		out = append(out, "final state unknown")
	}
	if e.Replay {
		out = append(out, "replay")
	}
	if e.Repair {
		out = append(out, "repair")
	}
	return out
}

// styled appends text, which holds nothing of an object's, in a style.
func (p Printer) styled(dst []byte, s style, text string) []byte {
	if !p.Color || s == "" {
		return append(dst, text...)
	}
	dst = append(dst, "\x1b["...)
	dst = append(dst, s...)
	dst = append(dst, 'm')
	dst = append(dst, text...)
	return append(dst, "\x1b[0m"...)
}

func appendPadded(dst []byte, s string, width int) []byte {
	start := len(dst)
	dst = appendClean(dst, s)
	for n := utf8.RuneCount(dst[start:]); n < width; n++ {
		dst = append(dst, ' ')
	}
	return dst
}

// appendClean appends s with everything that is not printable escaped, so that
// no text of an object moves the cursor or changes colours.
func appendClean(dst []byte, s string) []byte {
	for _, r := range s {
		if r == ' ' || unicode.IsPrint(r) {
			dst = utf8.AppendRune(dst, r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		dst = append(dst, quoted[1:len(quoted)-1]...)
	}
	return dst
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// WantsColor reports whether w is a terminal whose user has not declined colours
// (https://no-color.org).
func WantsColor(w io.Writer) bool {
	return IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
