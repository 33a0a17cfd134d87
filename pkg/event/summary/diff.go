package summary

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	// maxDepth bounds the recursion: a value that differs below is a change as a whole.
	maxDepth = 32
	// maxPasses bounds how often all bytes of two objects are read, and freeWork how many are
	// read of small ones. A value that differs is a change as a whole once that is used up.
	maxPasses = 12
	freeWork  = 1 << 20
)

// element is one step of a path: a member of an object, or an item of a list with
// its name or, without one, its index.
type element struct {
	kind  elementKind
	text  string // of a member its key, of a named item its name
	index int
}

type elementKind uint8

const (
	member elementKind = iota
	namedItem
	indexedItem
)

// entry is a member of an object or a named item of a list.
type entry struct{ key, value []byte }

// differ compares two states. Values alias the states; nil is a missing value.
type differ struct {
	*list
	path []element
	work int // bytes that may still be read
}

func (d *differ) diff(before, after []byte) {
	switch {
	case bytes.Equal(before, after):
	case d.bothAre('{', before, after):
		d.merge(member, members(before), members(after))
	case d.bothAre('[', before, after):
		d.lists(slices.Collect(rawjson.Items(before)), slices.Collect(rawjson.Items(after)))
	case isText(before) && isText(after) && rawjson.Unquote(before) == rawjson.Unquote(after):
	default:
		d.add(change{old: before, new: after})
	}
}

// bothAre reports whether both values are objects, or lists, that are to be compared
// inside. The missing value of a section is an empty one.
func (d *differ) bothAre(open byte, before, after []byte) bool {
	if len(d.path) >= maxDepth {
		return false
	}
	is := func(raw []byte) bool { return len(raw) > 0 && raw[0] == open }
	if open == '{' && d.inSection() && (before == nil || after == nil) {
		return (is(before) || is(after)) && d.affords(len(before)+len(after))
	}
	return is(before) && is(after) && d.affords(len(before)+len(after))
}

// affords reports whether as many bytes may be read, and counts them.
func (d *differ) affords(bytes int) bool {
	d.work -= bytes
	return d.work >= 0
}

// inSection reports whether the members of the object at the path are changes of their own, even
// if the whole object is added or removed.
func (d *differ) inSection() bool {
	if len(d.path) == 1 {
		return true
	}
	if len(d.path) == 0 {
		return false
	}
	last := d.path[len(d.path)-1]
	return last.kind == member && (last.text == "labels" || last.text == "annotations")
}

// merge compares two sets of entries by key.
func (d *differ) merge(kind elementKind, before, after []entry) {
	for len(before) > 0 || len(after) > 0 {
		var key, x, y []byte
		var order int
		switch {
		case len(before) == 0:
			order = 1
		case len(after) == 0:
			order = -1
		default:
			order = bytes.Compare(before[0].key, after[0].key)
		}
		if order <= 0 {
			key, x, before = before[0].key, before[0].value, before[1:]
		}
		if order >= 0 {
			key, y, after = after[0].key, after[0].value, after[1:]
		}
		if bytes.Equal(x, y) || kind == member && d.isBookkeeping(key) {
			continue
		}
		d.path = append(d.path, element{kind: kind, text: string(key)})
		if kind != namedItem || !d.condition(x, y) {
			d.diff(x, y)
		}
		d.path = d.path[:len(d.path)-1]
	}
}

// isBookkeeping reports whether the member of the object at the path changes with every write.
func (d *differ) isBookkeeping(key []byte) bool {
	if len(d.path) != 1 || d.path[0].text != "metadata" {
		return false
	}
	switch string(key) {
	case "resourceVersion", "generation", "managedFields":
		return true
	}
	return false
}

// condition adds the change of a condition's status, which its other members explain. It
// reports false for any other change.
func (d *differ) condition(before, after []byte) bool {
	if before == nil || after == nil || listOf(d.path, len(d.path)-1) != "conditions" {
		return false
	}
	x, y := field(before, "status"), field(after, "status")
	if x == nil || y == nil || bytes.Equal(x, y) {
		return false
	}
	d.add(change{old: x, new: y, note: field(after, "reason")})
	return true
}

// lists compares two lists by merge key, otherwise by index: those items that are between
// the equal ones at the start and at the end.
func (d *differ) lists(before, after [][]byte) {
	for _, key := range mergeKeys {
		x, ok := d.named(before, key)
		if !ok {
			continue
		}
		if y, ok := d.named(after, key); ok {
			d.merge(namedItem, x, y)
			return
		}
	}
	first := 0
	for len(before) > 0 && len(after) > 0 && bytes.Equal(before[0], after[0]) {
		before, after = before[1:], after[1:]
		first++
	}
	for len(before) > 0 && len(after) > 0 && bytes.Equal(before[len(before)-1], after[len(after)-1]) {
		before, after = before[:len(before)-1], after[:len(after)-1]
	}
	for i := range max(len(before), len(after)) {
		var x, y []byte
		if i < len(before) {
			x = before[i]
		}
		if i < len(after) {
			y = after[i]
		}
		d.path = append(d.path, element{kind: indexedItem, index: first + i})
		d.diff(x, y)
		d.path = d.path[:len(d.path)-1]
	}
}

// mergeKeys are the members that the lists of Kubernetes' kinds are keyed by, those that
// a reader knows an item by first.
var mergeKeys = [...]string{
	"name", "type", "key", "port", "containerPort", "mountPath", "devicePath", "topologyKey", "host", "path", "ip", "uid",
}

// named returns the items of a list as entries ordered by the value of their merge key. It is
// not ok if an item lacks the key or shares its value, or if they cannot all be read.
func (d *differ) named(items [][]byte, key string) (entries []entry, ok bool) {
	for _, item := range items {
		if !d.affords(len(item)) {
			return nil, false
		}
		name := field(item, key)
		switch {
		case len(name) == 0 || name[0] == '{' || name[0] == '[':
			return nil, false
		case isText(name):
			name = []byte(rawjson.Unquote(name))
		}
		if entries == nil { // most lists fail at the first item
			entries = make([]entry, 0, len(items))
		}
		entries = append(entries, entry{name, item})
	}
	sortEntries(entries)
	for i := range entries {
		if i > 0 && bytes.Equal(entries[i].key, entries[i-1].key) {
			return nil, false
		}
	}
	return entries, true
}

// members returns an object's members in the order of their keys. Of a key that
// occurs twice the last value counts.
func members(raw []byte) []entry {
	var entries []entry
	for key, value := range rawjson.Members(raw) {
		entries = append(entries, entry{key, value})
	}
	sortEntries(entries)
	kept := entries[:0]
	for i, e := range entries {
		if i+1 == len(entries) || !bytes.Equal(e.key, entries[i+1].key) {
			kept = append(kept, e)
		}
	}
	return kept
}

func sortEntries(entries []entry) {
	slices.SortStableFunc(entries, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
}

// field returns the value of an object's member, nil if there is none.
func field(raw []byte, key string) []byte {
	for k, value := range rawjson.Members(raw) {
		if string(k) == key {
			return value
		}
	}
	return nil
}

func isText(raw []byte) bool { return len(raw) > 0 && raw[0] == '"' }
func trim(raw []byte) []byte { return bytes.TrimSpace(raw) }

// add adds a change at the path, if it is one of the most important.
func (d *differ) add(c change) {
	d.total++
	if c.rank = rankOf(d.path); d.wants(c.rank) {
		c.path = slices.Clone(d.path)
		d.insert(c)
	}
}

// readPatch adds the changes that an RFC 6902 patch makes; the values before are not in
// it. It reports whether it is one.
func (l *list) readPatch(raw []byte) bool {
	var ops []struct {
		Op    string          `json:"op"`
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value"`
	}
	if json.Unmarshal(raw, &ops) != nil {
		return false
	}
	for _, op := range ops {
		if op.Op == "test" {
			continue
		}
		d := differ{list: l}
		elements := pointer(op.Path)
		if n := len(elements); n > 1 {
			d.path = elements[:1]
			if d.isBookkeeping([]byte(elements[1].text)) {
				continue
			}
		}
		d.path = elements
		switch value := trim(op.Value); op.Op {
		case "add":
			d.add(change{new: value})
		case "remove":
			d.add(change{old: json.RawMessage("{}")})
		case "replace":
			d.add(change{new: value, set: true})
		default:
			d.add(change{set: true})
		}
	}
	return true
}

func pointer(text string) []element {
	text, ok := strings.CutPrefix(text, "/")
	if !ok {
		return nil
	}
	var path []element
	for token := range strings.SplitSeq(text, "/") {
		if index, err := strconv.ParseUint(token, 10, 31); err == nil && len(path) > 0 {
			path = append(path, element{kind: indexedItem, index: int(index)})
			continue
		}
		if token == "-" && len(path) > 0 {
			continue // behind the last item of a list
		}
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		path = append(path, element{text: token})
	}
	return path
}

const (
	maxChanges = 4   // changes spelled out in one line
	maxLine    = 200 // bytes after which no further change begins
)

// Of returns the summary of an event, made from the states before and after an update, or from
// its patch if a state is missing. It is empty for a gap, and for an update of which neither is there.
// That of a Kubernetes Event is its reason and message, unless it is deleted.
func Of(e *event.Event) string {
	if line := words(e); line != "" && e.Type != event.Updated {
		return line
	}
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

// Changes returns what changed in an update, empty if nothing visible did; of a Kubernetes Event
// its reason and message. It is not ok if the event has neither two objects nor a patch.
func Changes(e *event.Event) (line string, ok bool) {
	if line = words(e); line != "" {
		return line, true
	}
	var l list
	before, after := trim(e.OldObject), trim(e.Object)
	switch {
	case len(before) > 0 && before[0] == '{' && len(after) > 0 && after[0] == '{':
		d := differ{list: &l, work: max(freeWork, maxPasses*(len(before)+len(after)))}
		d.diff(before, after)
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
