package rawjson

import (
	"errors"
	"fmt"
	"slices"
)

// Rule says what to do with every value at a path.
type Rule struct {
	Path string

	// Replace appends to dst the JSON that takes the value's place and returns the extended slice; nil drops the value,
	// with its key or as an item of its array. It gets the value as sent, may keep neither slice, and is called from
	// every goroutine that edits. What it appends is checked to be one JSON value.
	Replace func(dst, value []byte) []byte
}

// Editor applies rules to JSON objects in one pass, copying what stays byte for byte. It is immutable and safe for
// concurrent use.
//
// Where rules meet: a rule on a value ends the matter for everything inside it; on one value drop wins over Replace, and
// of two Replace the one given first.
type Editor struct {
	root *node
}

// node is what the rules say about one place of the object.
type node struct {
	action *action
	keys   []keyEdge
	items  []itemEdge
	any    *node // every member or item that no edge names; the edges' nodes include its rules
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
	rule    int // position among the rules given
	replace func(dst, value []byte) []byte
}

// NewEditor compiles rules. Without any, the Editor only checks and copies.
func NewEditor(rules ...Rule) (*Editor, error) {
	root := &node{}
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
		return nil, fmt.Errorf("rawjson: the paths have too many wildcards beside named keys: together they name more than %d places", maxNodes)
	}
	return e, nil
}

// maxNodes bounds an Editor. Each wildcard can double what there is below its siblings.
const maxNodes = 1 << 16

// child returns the node a step leads to, making it if need be.
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

// stronger returns the action that wins on one value.
func stronger(a, b *action) *action {
	if a == nil || b != nil && b.replace == nil && a.replace != nil {
		return b
	}
	if b == nil || a.replace == nil || b.replace != nil && a.rule < b.rule {
		return a
	}
	return b
}

// spread returns the tree with the rules of each wildcard added to its named siblings, so that one node holds all
// there is to say about a value. It takes a place of room for every node that it makes,
// and stops short when there is none left.
func spread(n *node, room *int) *node {
	out := &node{action: n.action}
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

// union returns a tree of the rules of both.
func union(a, b *node, room *int) *node {
	if b == nil {
		return a
	}
	if a == nil {
		return b
	}
	out := &node{action: stronger(a.action, b.action)}
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

// at returns what the rules say about a member or an item, nil for nothing. An object's member comes with its key, an
// array's item with its index.
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

// Append appends raw, one JSON object, with the rules applied. The result is valid JSON whenever err is nil; raw that is
// not exactly one JSON object is a *SyntaxError, with dst returned as it was. White space around the object goes.
func (e *Editor) Append(dst, raw []byte) ([]byte, error) {
	return e.append(dst, raw, "", "")
}

// AppendTyped is Append for objects that may lack their type, as the items of a list of a built-in kind do: apiVersion
// and kind are put in front, in the API server's order, if the object has none of its own.
func (e *Editor) AppendTyped(dst, raw []byte, apiVersion, kind string) ([]byte, error) {
	return e.append(dst, raw, apiVersion, kind)
}

func (e *Editor) append(dst, raw []byte, apiVersion, kind string) ([]byte, error) {
	start := skipSpace(raw, 0)
	if start >= len(raw) || raw[start] != '{' {
		return dst, syntaxError(^start)
	}
	ed := edit{raw: raw, dst: dst, from: start}
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

// edit is one run of an Editor: raw[from:] is not copied to dst yet.
type edit struct {
	raw, dst               []byte
	from                   int
	hasAPIVersion, hasKind bool
}

var errReplacement = errors.New("rawjson: a rule's replacement is not one JSON value")

// container edits the object or array that starts at i and returns the index after it. depth is how many containers
// are open around it.
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

func (n *node) drops() bool {
	return n != nil && n.action != nil && n.action.replace == nil
}

// value edits the value at i and returns the index after it; what is to be dropped is only passed over.
func (ed *edit) value(n *node, i, depth int) (int, error) {
	if n != nil && n.action == nil && i < len(ed.raw) && (ed.raw[i] == '{' || ed.raw[i] == '[') {
		return ed.container(n, i, depth)
	}
	end := skipValue(ed.raw, i, depth)
	if end < 0 {
		return 0, syntaxError(end)
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

// cut leaves out raw[start:end], a member or item with the comma after it. If none follows but some were kept, the
// comma before it is the one too many.
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

// note remembers which parts of its type the object has.
func (ed *edit) note(key []byte) {
	switch string(key) {
	case "kind":
		ed.hasKind = true
	case "apiVersion":
		ed.hasAPIVersion = true
	}
}

// Fate is what rules make of one value.
type Fate uint8

// The fates.
const (
	Kept    Fate = iota // it stays, edited
	Dropped             // it goes
	Unknown             // it is part of a value that a rule replaces, or its place cannot be told
)

// AppendAt appends value, the JSON at the place that the tokens of a JSON Pointer name, with the rules applied. Of an
// index in an array that rules name by number the place cannot be told: a patch moves items. Without a value it tells
// the fate only. Nothing is appended unless the fate is Kept.
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
	if token == "-" {
		return true
	}
	for _, c := range []byte(token) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return token != ""
}

// insertType puts kind and apiVersion, as far as they are not empty, in front of the members of the object at dst[at:].
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
