package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v2"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// Blame is an object's last state and who set which part of it.
type Blame struct {
	Deleted   bool            `json:"deleted,omitempty"` // the state is the last one before
	Fields    []Field         `json:"fields"`            // in the order of the YAML
	Gaps      []event.GapData `json:"gaps"`              // in which more may have changed
	Truncated bool            `json:"truncated,omitempty"`
	Unread    []Unread        `json:"unread,omitempty"` // the state is that before it
	// Unmanaged is the reason that the managed fields were not read, where the history has no
	// answer for some fields.
	Unmanaged string `json:"unmanaged,omitempty"`

	uid   string
	root  *node
	since time.Time // of the oldest state that is known
	spent int       // bytes of paths and texts of the fields, those of their parents included
}

// Field is a value of an object that is no map and no list, unless that is empty.
type Field struct {
	Path  string          `json:"path"` // items of lists by what names them, by value, or by number
	Value json.RawMessage `json:"value"`
	Head  string          `json:"head,omitempty"` // lines of YAML that the field begins: of maps and lists that it is the first in
	Text  string          `json:"text"`           // lines of YAML

	// As is exact for a recorded change, which Time is of. Gap: that is the last recorded change,
	// and others may have been missed. UnknownBefore: it was set before Before; the manager, if
	// there is one, is from the managed fields of now, and Time is that of its last write, if
	// that was not later.
	As          As        `json:"as"`
	Manager     string    `json:"manager,omitempty"`
	Operation   string    `json:"operation,omitempty"`
	Subresource string    `json:"subresource,omitempty"`
	Time        time.Time `json:"time,omitzero"`
	Before      time.Time `json:"before,omitzero"`
	Sequence    uint64    `json:"sequence,omitempty"` // of the change
}

// Blame returns who set the fields of an object's last state. Those that were set before the
// history are for [Blame.Manage].
func (r *Reader) Blame(ctx context.Context, o Object) (*Blame, error) {
	b := &Blame{Fields: []Field{}, Gaps: []event.GapData{}}
	s, err := r.At(ctx, o, r.now())
	if err != nil {
		return b, err
	}
	b.Unread = s.Unread
	if err := b.state(s.Object); err != nil {
		return b, err
	}
	gaps, err := r.allGaps()
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return b, err
	}
	keys, err := r.ledger.RedactKeys()
	if err != nil {
		return b, err
	}
	w := walker{Blame: b, reader: r, keys: keys, began: time.Now(), newest: s.before, blind: s.As == Gap, gone: s.As == Exact && !s.Exists, gaps: slices.DeleteFunc(slices.Clone(gaps), func(g gap) bool { return g.quiet() || !g.concerns(&o.Resource, o.Namespace, o.Name) })}
	if err := ledger.IgnoreUnreadable(r.newest(ctx, &o, time.Time{}, 0, w.take)); err != nil { // states that are no neighbours show it
		return b, err
	}
	if w.last != nil {
		w.old(w.last)
	}
	for i := range w.gaps {
		if g := &w.gaps[i]; !g.end().Before(b.since) {
			b.Gaps = append(b.Gaps, g.data)
		}
	}
	for i := range b.Fields {
		if f := &b.Fields[i]; f.As == "" {
			f.As, f.Before = UnknownBefore, b.since
		}
	}
	return b, nil
}

// walker goes back through the states of an object.
type walker struct {
	*Blame
	reader *Reader
	keys   ledger.RedactKeys
	gaps   []gap
	began  time.Time
	newest uint64  // the sequence of the state of now, 0: it has none
	gone   bool    // it certainly has none
	last   *stored // the record before, in the order of the walk; nil: there was none
	blind  bool    // changes may be missing after the records that follow
	states int
	err    error
}

// take is called with the records of the object, the newest first.
func (w *walker) take(rec *stored) (more bool, err error) {
	if w.states++; w.states > maxCompared || w.root != nil && time.Since(w.began) > patience {
		w.Truncated = true
		return false, nil
	}
	raw := w.reader.show(rec.Record, rec.Object)
	if raw == nil {
		return true, nil // a damaged record: the states around it are not neighbours
	}
	if w.root != nil && rec.Event.UID != w.uid {
		return false, nil // of an earlier object of the name: its end, or the beginning of this one, is not recorded or cannot be read
	}
	switch {
	case w.root == nil: // it is deleted, or its state of now is not known
		last := rec.Event.Type == event.Deleted
		w.Deleted, w.blind = w.gone || last, !last
		if err := w.state(raw); err != nil {
			return false, err
		}
	case w.last == nil && rec.sequence == w.newest:
	case w.last == nil: // the state of now is not recorded
		w.blind = true
		w.set(raw, Field{As: Gap, Before: w.reader.now()})
	case w.last.Prev != rec.sequence:
		w.old(w.last)
		w.blind = true
		w.set(raw, Field{As: Gap, Before: w.last.Event.Time})
	case w.last.Rerecorded:
		w.rebase(raw)
	default:
		w.blind = w.blind || w.last.Blind || slices.ContainsFunc(w.gaps, func(g gap) bool {
			return g.hides(pastBefore(w.last.sequence, w.last.Event.Time), rec.sequence, w.last.sequence)
		})
		if w.keys.Changed(rec.sequence, w.last.sequence) {
			w.rekey(raw)
		}
		w.set(raw, w.change(w.last))
	}
	w.last, w.since = rec, rec.Event.Time
	if rec.Event.Type == event.Added {
		w.blind = w.blind || rec.Blind
		w.set(nil, w.change(rec))
	}
	return w.root != nil && w.root.open > 0, w.err
}

// change is the attribution to a record.
func (w *walker) change(rec *stored) Field {
	f := Field{As: Exact, Time: rec.Event.Time, Sequence: rec.sequence}
	if w.blind {
		f.As = Gap
	}
	if by := rec.Event.ChangedBy; by != nil {
		f.Manager, f.Operation, f.Subresource = by.Manager, by.Operation, by.Subresource
	}
	return f
}

// old attributes what a record changed of the state before it that it has itself.
func (w *walker) old(rec *stored) {
	if rec.Event.Type != event.Updated || rec.Rerecorded {
		return
	}
	if raw := w.reader.show(rec.Record, rec.OldObject); raw != nil {
		w.set(raw, w.change(rec))
	}
}

// set attributes the fields that differ from an older state.
func (w *walker) set(raw []byte, as Field) {
	older, err := decoded(raw)
	w.err = cmp.Or(w.err, err)
	w.root.differ(older, func(n *node, _ any, _ bool) { w.Fields[n.field].attribute(as) })
}

// rebase takes over the values of the same state in the form of other edits.
func (w *walker) rebase(raw []byte) {
	older, err := decoded(raw)
	w.err = cmp.Or(w.err, err)
	w.root.differ(older, func(n *node, value any, ok bool) {
		if !ok {
			w.Fields[n.field].attribute(Field{As: UnknownBefore, Before: w.since})
			return
		}
		n.value, n.open = value, 1
	})
}

// rekey attributes the values whose hashes are of another key in an older state: it is not known
// whether they differ.
func (w *walker) rekey(raw []byte) {
	older, err := decoded(raw)
	w.err = cmp.Or(w.err, err)
	w.root.differ(older, func(n *node, value any, _ bool) {
		is, _ := n.value.(string)
		was, _ := value.(string)
		if hashed.MatchString(is) && hashed.ReplaceAllString(is, "") == hashed.ReplaceAllString(was, "") {
			w.Fields[n.field].attribute(Field{As: Gap, Before: w.last.Event.Time})
			return
		}
		n.open = 1 // it differs
	})
}

func (f *Field) attribute(as Field) {
	as.Path, as.Value, as.Head, as.Text = f.Path, f.Value, f.Head, f.Text
	*f = as
}

// node is a part of a state.
type node struct {
	value any
	keys  []string // of a map, in the order of below
	by    string   // the key that names the items of a list; "=": their value; "": their number
	below []*node
	field int // of a leaf
	open  int // the leaves below, or this one, that nothing is known about yet
}

// state makes the fields of a state.
func (b *Blame) state(raw []byte) error {
	v, err := decoded(raw)
	if v == nil || err != nil {
		return err
	}
	if metadata, ok := v.(map[string]any)["metadata"].(map[string]any); ok {
		b.uid, _ = metadata["uid"].(string)
	}
	var head []string
	b.root, err = b.add(v, "", &head, "", "")
	return err
}

// add makes the node of a value, and its fields. Lines of YAML begin with first, which counts
// for one line, and rest.
func (b *Blame) add(v any, path string, head *[]string, first, rest string) (*node, error) {
	if err := b.spend(len(path) + len(first)); err != nil {
		return nil, err
	}
	n := &node{value: v}
	below := func(v any, path, first, rest string) error {
		child, err := b.add(v, path, head, first, rest)
		if err == nil {
			n.below, n.open = append(n.below, child), n.open+child.open
		}
		return err
	}
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			n.keys = append(n.keys, key)
		}
		slices.Sort(n.keys)
		for _, key := range n.keys {
			text, err := text(key, "")
			if err != nil {
				return nil, err
			}
			line, deeper := first+text+":", rest
			first = rest
			switch value := v[key].(type) {
			case map[string]any:
				if len(value) > 0 {
					deeper += "  "
					*head, line = append(*head, line), deeper
				}
			case []any:
				if len(value) > 0 {
					*head, line = append(*head, line), deeper
				}
			}
			if err := below(v[key], path+member(key, path), line, deeper); err != nil {
				return nil, err
			}
		}
	case []any:
		n.by = nameOf(v)
		for i, item := range v {
			at := fmt.Sprintf("%s[%d]", path, i)
			switch o, _ := item.(map[string]any); n.by {
			case "":
			case "=":
				at = fmt.Sprintf("%s[=%v]", path, item)
			default:
				at = fmt.Sprintf("%s[%s=%v]", path, n.by, o[n.by])
			}
			if err := below(item, at, first+"- ", rest+"  "); err != nil {
				return nil, err
			}
			first = rest
		}
	}
	if len(n.below) > 0 {
		return n, nil
	}
	value, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if text, ok := v.(string); ok { // each line of which is indented
		err = b.spend(len(text) + strings.Count(text, "\n")*len(rest))
	}
	if err != nil {
		return nil, err
	}
	line, err := text(v, rest)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(first, ":") {
		first += " "
	}
	n.field, n.open = len(b.Fields), 1
	b.Fields = append(b.Fields, Field{Path: path, Value: value, Head: strings.Join(*head, "\n"), Text: first + line})
	*head = nil
	return n, nil
}

// spend fails when the fields become many times as long as the object: the names of items
// are part of the path of every value below them.
func (b *Blame) spend(bytes int) error {
	if b.spent += bytes; b.spent > maxPaths {
		return errSpread
	}
	return nil
}

// text is a value that is no list and no map with members, as YAML.
func text(v any, indent string) (string, error) {
	raw, err := yaml.Marshal(v)
	return strings.ReplaceAll(strings.TrimSuffix(string(raw), "\n"), "\n", "\n"+indent), err
}

var keyEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// member is a key in a path, as rawjson.ParsePath takes it.
func member(key, path string) string {
	switch {
	case key == "" || strings.ContainsAny(key, `.[]*'"\ `):
		return `["` + keyEscapes.Replace(key) + `"]`
	case path == "":
		return key
	default:
		return "." + key
	}
}

// nameOf returns what names the items of a list: see node.by.
func nameOf(list []any) string {
	seen := map[any]bool{}
	for _, item := range list {
		switch item.(type) {
		case map[string]any, []any:
		default:
			seen[item] = true
		}
	}
	if len(list) > 0 && len(seen) == len(list) {
		return "="
	}
	for _, key := range itemKeys {
		if _, ok := named(list, key); ok {
			return key
		}
	}
	return ""
}

// differ calls f with the open leaves that an older value does not have, or has another value
// of, and with that. They are not open then, unless f opens them.
func (n *node) differ(older any, f func(n *node, value any, ok bool)) {
	n.compare(older, older != nil, f)
}

func (n *node) compare(older any, ok bool, f func(n *node, value any, ok bool)) {
	switch {
	case n.open == 0:
		return
	case len(n.below) == 0:
		if !ok || !reflect.DeepEqual(n.value, older) {
			n.open = 0
			f(n, older, ok)
		}
		return
	}
	at := n.among(older)
	n.open = 0
	for i, child := range n.below {
		value, ok := at(i)
		child.compare(value, ok, f)
		n.open += child.open
	}
}

// among returns a function that finds the parts of a node in an older value.
func (n *node) among(older any) func(i int) (any, bool) {
	if o, _ := older.(map[string]any); n.keys != nil {
		return func(i int) (any, bool) {
			v, ok := o[n.keys[i]]
			return v, ok
		}
	}
	list, _ := older.([]any)
	if n.by == "" {
		return func(i int) (any, bool) {
			if i >= len(list) {
				return nil, false
			}
			return list[i], true
		}
	}
	index := make(map[string]any, len(list))
	for _, item := range list {
		index[n.name(item)] = item
	}
	return func(i int) (any, bool) {
		v, ok := index[n.name(n.below[i].value)]
		return v, ok
	}
}

// name distinguishes an item of a list from others.
func (n *node) name(item any) string {
	if o, ok := item.(map[string]any); ok && n.by != "=" {
		item = o[n.by]
	}
	return fmt.Sprintf("%T %v", item, item)
}

// Open reports whether there are fields that the history has no answer for, of an object that
// exists.
func (b *Blame) Open() bool { return !b.Deleted && b.root != nil && b.root.open > 0 }

// Manage attributes the open fields by the managed fields that the object of a uid has now.
func (b *Blame) Manage(uid string, managedFields []byte) {
	type entry struct {
		Manager     string         `json:"manager"`
		Operation   string         `json:"operation"`
		Subresource string         `json:"subresource"`
		Time        time.Time      `json:"time"`
		FieldsV1    map[string]any `json:"fieldsV1"`
	}
	var all []entry
	d := json.NewDecoder(bytes.NewReader(managedFields))
	d.UseNumber()
	switch err := d.Decode(&all); {
	case uid != b.uid:
		b.Unmanaged = "the object was deleted or created again"
		return
	case len(managedFields) == 0:
		b.Unmanaged = "the object has no managed fields"
		return
	case err != nil:
		b.Unmanaged = fmt.Sprintf("the managed fields are not understood: %v", err)
		return
	}
	slices.SortStableFunc(all, func(x, y entry) int { return x.Time.Compare(y.Time) })
	for _, m := range all { // the newest last
		as := Field{As: UnknownBefore, Manager: m.Manager, Operation: m.Operation, Subresource: m.Subresource, Time: m.Time, Before: b.since}
		if !b.since.IsZero() && m.Time.After(b.since) {
			as.Time = time.Time{} // it wrote something else then
		}
		b.root.owned(m.FieldsV1, func(n *node) { b.Fields[n.field].attribute(as) })
	}
}

// owned calls f with the open leaves in a set of fields.
func (n *node) owned(set map[string]any, f func(*node)) {
	if n.open == 0 {
		return
	}
	if len(n.below) == 0 {
		f(n)
		return
	}
	at := n.inSet(set)
	for i, child := range n.below {
		if below, ok := at(i); ok || len(set) == 0 { // an empty set is all of it
			fields, _ := below.(map[string]any)
			child.owned(fields, f)
		}
	}
}

// inSet returns a function that finds the parts of a node in a set of fields.
func (n *node) inSet(set map[string]any) func(i int) (any, bool) {
	find := func(key string) (any, bool) {
		v, ok := set[key]
		return v, ok
	}
	if n.keys != nil {
		return func(i int) (any, bool) { return find("f:" + n.keys[i]) }
	}
	items, keys := map[string]any{}, []string(nil) // by the values of the keys
	for element, below := range set {
		var of map[string]any
		d := json.NewDecoder(strings.NewReader(strings.TrimPrefix(element, "k:")))
		d.UseNumber()
		if !strings.HasPrefix(element, "k:") || d.Decode(&of) != nil {
			continue
		}
		if keys == nil {
			for key := range of {
				keys = append(keys, key)
			}
		}
		items[values(of, keys)] = below
	}
	return func(i int) (any, bool) {
		item := n.below[i].value
		if o, ok := item.(map[string]any); ok && keys != nil {
			v, ok := items[values(o, keys)]
			return v, ok
		}
		switch item.(type) {
		case map[string]any, []any:
		default:
			raw, err := json.Marshal(item)
			if v, ok := find("v:" + string(raw)); ok && err == nil {
				return v, ok
			}
		}
		return find(fmt.Sprintf("i:%d", i))
	}
}

// values are those of some keys.
func values(of map[string]any, keys []string) string {
	var b strings.Builder
	for _, key := range keys {
		fmt.Fprintf(&b, "%T %v\n", of[key], of[key])
	}
	return b.String()
}
