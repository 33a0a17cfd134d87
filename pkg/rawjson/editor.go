package rawjson

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Rule drops or replaces every value at a path.
type Rule struct {
	Path string

	// Replace appends the JSON that replaces the value to dst and returns the
	// extended slice. nil drops the value with its key, or as an item of its array.
	// Replace must not retain its arguments and must be safe for concurrent use.
	// Its result is checked to be one JSON value.
	Replace func(dst, value []byte) []byte
}

// Editor applies rules to JSON objects in one pass and copies everything else byte
// for byte. It is immutable and safe for concurrent use.
//
// A rule on a value takes precedence over rules inside it. On one value, a drop
// takes precedence over Replace, and the first Replace over later ones.
type Editor struct {
	root *node
}

// node holds the rules for one place of the object.
type node struct {
	action *action
	fields bool // the place of the managed fields
	keys   []keyEdge
	items  []itemEdge
	any    *node // members and items without an edge; the nodes of edges include its rules
}

type keyEdge struct {
	key string
	to  *node
}

type itemEdge struct {
	index int
	to    *node
}

type action struct {
	rule    int // index in the rules of NewEditor
	replace func(dst, value []byte) []byte
}

// NewEditor compiles rules. An Editor without rules validates and copies.
func NewEditor(rules ...Rule) (*Editor, error) {
	root := &node{}
	root.child(step{kind: stepKey, key: "metadata"}).child(step{kind: stepKey, key: "managedFields"}).fields = true
	for i, r := range rules {
		p, err := ParsePath(r.Path)
		if err != nil {
			return nil, fmt.Errorf("rawjson: %w", err)
		}
		n := root
		for _, st := range p.steps {
			n = n.child(st)
		}
		n.action = stronger(n.action, &action{rule: i, replace: r.Replace})
	}
	room := maxNodes
	e := &Editor{root: spread(root, &room)}
	if room < 0 {
		return nil, fmt.Errorf("rawjson: too many wildcards beside named keys: the paths expand to more than %d places", maxNodes)
	}
	return e, nil
}

// maxNodes bounds an Editor. Each wildcard can double the number of nodes below its
// siblings.
const maxNodes = 1 << 16

// child returns the node of a step and creates it if it is missing.
func (n *node) child(st step) *node {
	switch st.kind {
	case stepKey:
		for _, e := range n.keys {
			if e.key == st.key {
				return e.to
			}
		}
		n.keys = append(n.keys, keyEdge{st.key, &node{}})
		return n.keys[len(n.keys)-1].to
	case stepIndex:
		for _, e := range n.items {
			if e.index == st.index {
				return e.to
			}
		}
		n.items = append(n.items, itemEdge{st.index, &node{}})
		return n.items[len(n.items)-1].to
	}
	if n.any == nil {
		n.any = &node{}
	}
	return n.any
}

// stronger returns the action that takes precedence on one value.
func stronger(a, b *action) *action {
	if a == nil || b != nil && b.replace == nil && a.replace != nil {
		return b
	}
	if b == nil || a.replace == nil || b.replace != nil && a.rule < b.rule {
		return a
	}
	return b
}

// spread returns the tree with the rules of each wildcard added to its named
// siblings, so that one node holds all rules for a value. Every new node decrements
// room. spread stops when room is used up.
func spread(n *node, room *int) *node {
	out := &node{action: n.action, fields: n.fields}
	if *room--; *room < 0 {
		return out
	}
	for _, e := range n.keys {
		out.keys = append(out.keys, keyEdge{e.key, spread(union(e.to, n.any, room), room)})
	}
	for _, e := range n.items {
		out.items = append(out.items, itemEdge{e.index, spread(union(e.to, n.any, room), room)})
	}
	if n.any != nil {
		out.any = spread(n.any, room)
	}
	return out
}

// union returns a tree with the rules of a and b.
func union(a, b *node, room *int) *node {
	if b == nil {
		return a
	}
	if a == nil {
		return b
	}
	out := &node{action: stronger(a.action, b.action), fields: a.fields || b.fields}
	if *room--; *room < 0 {
		return out
	}
	out.any = union(a.any, b.any, room)
	for _, from := range []*node{a, b} {
		for _, e := range from.keys {
			c := out.child(step{kind: stepKey, key: e.key})
			*c = *union(c, e.to, room)
		}
		for _, e := range from.items {
			c := out.child(step{kind: stepIndex, index: e.index})
			*c = *union(c, e.to, room)
		}
	}
	return out
}

// at returns the node of an object's member, by key, or of an array's item, by
// index. It returns nil if no rule applies.
func (n *node) at(object bool, key []byte, index int) *node {
	if object {
		for i := range n.keys {
			if n.keys[i].key == string(key) {
				return n.keys[i].to
			}
		}
		return n.any
	}
	for i := range n.items {
		if n.items[i].index == index {
			return n.items[i].to
		}
	}
	return n.any
}

// Append appends raw, one JSON object, with the rules applied and without
// surrounding white space. If err is nil the result is valid JSON. If raw is not
// exactly one JSON object, Append returns a *SyntaxError and dst unchanged.
func (e *Editor) Append(dst, raw []byte) ([]byte, error) {
	return e.AppendTyped(dst, raw, "", "")
}

// AppendTyped is Append for objects that may lack their type, such as the items of
// a list of a built-in kind. It inserts missing apiVersion and kind first, in the
// API server's order.
func (e *Editor) AppendTyped(dst, raw []byte, apiVersion, kind string) ([]byte, error) {
	return e.append(dst, raw, apiVersion, kind, nil)
}

// AppendChange is Append, and reads the managed fields of raw into by, dropped or not.
func (e *Editor) AppendChange(dst, raw []byte, by *Change) ([]byte, error) {
	*by = Change{Managers: by.Managers[:0]}
	return e.append(dst, raw, "", "", by)
}

func (e *Editor) append(dst, raw []byte, apiVersion, kind string, by *Change) ([]byte, error) {
	start := skipSpace(raw, 0)
	if start >= len(raw) || raw[start] != '{' {
		return dst, syntaxError(^start)
	}
	ed := edit{raw: raw, dst: dst, from: start, by: by}
	end, err := ed.container(e.root, start, 0)
	if err != nil {
		return dst, err
	}
	if bad := endOfInput(raw, end); bad < 0 {
		return dst, syntaxError(bad)
	}
	out := append(ed.dst, raw[ed.from:end]...)
	if ed.hasKind {
		kind = ""
	}
	if ed.hasAPIVersion {
		apiVersion = ""
	}
	return insertType(out, len(dst), apiVersion, kind), nil
}

// edit is one run of an Editor. raw[from:] is not copied to dst yet.
type edit struct {
	raw, dst               []byte
	from                   int
	by                     *Change // if it is asked for
	hasAPIVersion, hasKind bool
}

var errReplacement = errors.New("rawjson: a rule's replacement is not one JSON value")

// container edits the object or array that starts at i and returns the index after
// it. depth is the number of open containers around it.
func (ed *edit) container(n *node, i, depth int) (int, error) {
	raw := ed.raw
	if depth >= maxDepth {
		return 0, syntaxError(^i)
	}
	object, last := raw[i] == '{', raw[i]+2
	i = skipSpace(raw, i+1)
	if i < len(raw) && raw[i] == last {
		return i + 1, nil
	}
	for index, kept := 0, false; ; index++ {
		start, at := i, i
		var key []byte
		if object {
			if key, at = readKey(raw, i); at < 0 {
				return 0, syntaxError(at)
			}
		}
		rules := n.at(object, key, index)
		end, err := ed.value(rules, at, depth+1)
		if err != nil {
			return 0, err
		}
		next := skipSpace(raw, end)
		if next >= len(raw) || raw[next] != ',' && raw[next] != last {
			return 0, syntaxError(^next)
		}
		more := raw[next] == ','
		i = next
		if more {
			i = skipSpace(raw, next+1)
		}
		if rules.drops() {
			ed.cut(start, i, !more && kept)
		} else {
			kept = true
			if depth == 0 {
				ed.note(key)
			}
		}
		if !more {
			return next + 1, nil
		}
	}
}

// enters reports whether there are rules inside the value.
func (n *node) enters() bool {
	return n != nil && n.action == nil && (n.any != nil || len(n.keys) > 0 || len(n.items) > 0)
}

func (n *node) drops() bool {
	return n != nil && n.action != nil && n.action.replace == nil
}

// value edits the value at i and returns the index after it. The caller removes
// dropped values.
func (ed *edit) value(n *node, i, depth int) (int, error) {
	var end int
	if n != nil && n.fields && ed.by != nil {
		var err error
		if end, err = ed.by.scan(ed.raw, i, depth); err != nil {
			return 0, err
		}
	}
	if n.enters() && i < len(ed.raw) && (ed.raw[i] == '{' || ed.raw[i] == '[') {
		return ed.container(n, i, depth)
	}
	if end == 0 {
		if end = skipValue(ed.raw, i, depth); end < 0 {
			return 0, syntaxError(end)
		}
	}
	if n == nil || n.action == nil || n.action.replace == nil {
		return end, nil
	}
	ed.dst = append(ed.dst, ed.raw[ed.from:i]...)
	before := len(ed.dst)
	ed.dst = n.action.replace(ed.dst, ed.raw[i:end])
	if len(ed.dst) < before || skipValue(ed.dst, before, depth) != len(ed.dst) {
		return 0, errReplacement
	}
	ed.from = end
	return end, nil
}

// cut removes raw[start:end], a member or item with the comma after it. The last
// member or item has no comma after it; then cut removes the comma before it, if
// anything was kept.
func (ed *edit) cut(start, end int, commaBefore bool) {
	ed.dst = append(ed.dst, ed.raw[ed.from:start]...)
	ed.from = end
	if !commaBefore {
		return
	}
	i := len(ed.dst) - 1
	for ed.dst[i] != ',' {
		i--
	}
	ed.dst = ed.dst[:i]
}

// note records which type fields the object has.
func (ed *edit) note(key []byte) {
	switch string(key) {
	case "kind":
		ed.hasKind = true
	case "apiVersion":
		ed.hasAPIVersion = true
	}
}

// Fate is the effect of the rules on one value.
type Fate uint8

// The fates.
const (
	Kept    Fate = iota // kept, edited
	Dropped             // removed
	Unknown             // part of a value that a rule replaces, or at an unknown index
)

// AppendAt appends value, the JSON at a JSON Pointer, with the rules applied. The
// fate of an item is Unknown if rules name items of its array by index, because a
// patch moves items. If value is nil, AppendAt returns only the fate. It appends
// nothing unless the fate is Kept.
func (e *Editor) AppendAt(dst []byte, tokens []string, value []byte) ([]byte, Fate, error) {
	n := e.root
	for _, token := range tokens {
		switch {
		case n == nil:
			return append(dst, value...), Kept, nil
		case n.action != nil && n.action.replace == nil:
			return dst, Dropped, nil
		case n.action != nil:
			return dst, Unknown, nil
		case len(n.items) > 0 && isIndex(token):
			return dst, Unknown, nil
		}
		n = n.at(true, []byte(token), 0)
	}
	if n.drops() {
		return dst, Dropped, nil
	}
	if value == nil {
		return dst, Kept, nil
	}
	ed := edit{raw: value, dst: dst}
	start := skipSpace(value, 0)
	end, err := ed.value(n, start, len(tokens))
	if err != nil {
		return dst, Kept, err
	}
	if bad := endOfInput(value, end); bad < 0 {
		return dst, Kept, syntaxError(bad)
	}
	return append(ed.dst, value[ed.from:end]...), Kept, nil
}

// isIndex reports whether a token of a JSON Pointer can name an item of an array.
func isIndex(token string) bool {
	return token == "-" || token != "" && strings.Trim(token, "0123456789") == ""
}

// insertType inserts kind and apiVersion, unless empty, before the members of the
// object at dst[at:].
func insertType(dst []byte, at int, apiVersion, kind string) []byte {
	if apiVersion == "" && kind == "" {
		return dst
	}
	var space [128]byte
	head := space[:0]
	if kind != "" {
		head = AppendString(append(head, `"kind":`...), kind)
		head = append(head, ',')
	}
	if apiVersion != "" {
		head = AppendString(append(head, `"apiVersion":`...), apiVersion)
		head = append(head, ',')
	}
	if first := skipSpace(dst, at+1); dst[first] == '}' {
		head = head[:len(head)-1]
	}
	return slices.Insert(dst, at+1, head...)
}
