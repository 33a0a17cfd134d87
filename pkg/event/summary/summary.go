package summary

import (
	"strconv"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
)

const (
	maxChanges = 4   // changes spelled out in one line
	maxLine    = 200 // bytes after which no further change begins
)

// Of returns the summary of an event, made from the states before and after an update, or from
// its patch if a state is missing. It is empty for a gap, and for an update of which neither is there.
func Of(e *event.Event) string {
	switch e.Type {
	case event.Added:
		return "added"
	case event.Deleted:
		return "deleted"
	case event.Sync:
		return "exists"
	case event.Updated:
		return ofUpdate(e)
	default:
		return ""
	}
}

func ofUpdate(e *event.Event) string {
	selection := ""
	switch {
	case e.Selection == event.Entered:
		selection = "entered the selection"
	case e.Selection == event.Left:
		selection = "left the selection"
	case e.For != nil:
		selection = "matches for " + e.Time.Sub(e.For.Since).Round(time.Second).String()
	}
	changes, ok := Changes(e)
	switch {
	case selection == "" && ok && changes == "":
		return "no visible change"
	case selection == "" || changes == "":
		return selection + changes
	default:
		return selection + ", " + changes
	}
}

// Changes returns what changed in an update, empty if nothing visible did. It is not ok
// if the event has neither both states nor a patch.
func Changes(e *event.Event) (line string, ok bool) {
	var l list
	switch {
	case len(e.OldObject) > 0 && len(e.Object) > 0:
		d := differ{list: &l}
		d.diff(trim(e.OldObject), trim(e.Object))
	case len(e.Patch) > 0:
		if !l.readPatch(e.Patch) {
			return "", false
		}
	default:
		return "", false
	}
	return l.String(), true
}

// list holds the most important changes and counts the others.
type list struct {
	top   []change // ordered by rank, equal ranks in the order found
	total int
}

// wants reports whether a change of the rank is among the most important so far.
func (l *list) wants(r rank) bool {
	return len(l.top) < maxChanges || r < l.top[len(l.top)-1].rank
}

// insert adds a change that the list wants.
func (l *list) insert(c change) {
	at := len(l.top)
	for at > 0 && c.rank < l.top[at-1].rank {
		at--
	}
	if len(l.top) < maxChanges {
		l.top = append(l.top, change{})
	}
	copy(l.top[at+1:], l.top[at:])
	l.top[at] = c
}

// String is the line.
func (l *list) String() string {
	var dst []byte
	shown := 0
	for i := range l.top {
		if len(dst) > maxLine {
			break
		}
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = l.top[i].append(dst)
		shown++
	}
	if more := l.total - shown; more > 0 {
		dst = append(dst, ", +"...)
		dst = strconv.AppendInt(dst, int64(more), 10)
		dst = append(dst, " more"...)
	}
	return string(dst)
}
