package rawjson

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Rule drops or replaces every value at a path.
type Rule struct {
	Path string

	// Replace appends the JSON that replaces the value to dst and returns the
	// extended slice. nil drops the value with its key, or as an item of its array.
	// Replace must not retain its arguments and must be safe for concurrent use.
	// Its result is checked to be one JSON value.
	Replace func(dst, value []byte, at *Place) []byte
}

// Place is the place of a value that a rule replaces.
type Place struct {
	// Object is the object before the edit, nil if it is not known: see
	// Editor.AppendAt. It may be invalid JSON; the edit then fails.
	Object []byte
	// Memo is for what rules derive from Object: nil at the first value that is
	// replaced, and what they left in it after that.
	Memo any

	namespace, name []byte
	scanned         bool     // namespace and name are known
	path            [][]byte // keys; nil for an item of an array
	long            []level  // of the last path that was long
}

// level is a key of a long path, and the form of the path up to it.
type level struct{ key, form []byte }

// maxForm is the length of keys beyond which a path's form is a hash, which is made once for
// all values below it: a hostile object has thousands of values below a key of its own size.
const maxForm = 1 << 10

// Of returns the namespace and the name of the object.
func (p *Place) Of() (namespace, name []byte) {
	if !p.scanned {
		p.scanned = true
		if m, err := ScanHead(p.Object); err == nil {
			p.namespace, p.name = m.Namespace, m.Name
		}
	}
	return p.namespace, p.name
}

// Key returns the key of the value, nil for an item of an array.
func (p *Place) Key() []byte { return p.path[len(p.path)-1] }

// AppendPath appends an unambiguous form of the value's path. Items of one array have
// the same form, because items move, and so have keys that look like an index.
func (p *Place) AppendPath(dst []byte) []byte {
	length := 0
	for _, key := range p.path {
		if length += len(`[]`); !isIndex(key) {
			length += len(key)
		}
	}
	if length > maxForm {
		return append(dst, p.longForm()...)
	}
	for _, key := range p.path {
		dst = appendStep(dst, key)
	}
	return dst
}

func appendStep(dst, key []byte) []byte {
	if key == nil || isIndex(key) {
		return append(dst, "[]"...)
	}
	return AppendString(dst, string(key))
}

func (p *Place) longForm() []byte {
	n := 0
	for n < min(len(p.long), len(p.path)) && (p.path[n] == nil) == (p.long[n].key == nil) && bytes.Equal(p.long[n].key, p.path[n]) {
		n++
	}
	p.long = p.long[:n]
	for _, key := range p.path[n:] {
		var form []byte
		if n = len(p.long); n > 0 {
			form = bytes.Clone(p.long[n-1].form)
		}
		if form = appendStep(form, key); len(form) > maxForm {
			sum := sha256.Sum256(form)
			form = append([]byte{1}, sum[:]...) // no other form has this byte
		}
		p.long = append(p.long, level{key, form})
	}
	return p.long[len(p.long)-1].form
}

// Editor applies rules to JSON objects in one pass and copies everything else byte
// for byte. It is safe for concurrent use.
//
// A rule on a value takes precedence over rules inside it. On one value, a drop
// takes precedence over Replace, and the first Replace over later ones.
//
// The paths are a tree, in which wildcards are edges like keys. An edit follows
// all edges that a value matches, so that a value costs at most as much as there are
// steps in the paths, and an Editor is no larger than its paths.
type Editor struct {
	root  *node
	hits  []atomic.Uint64 // by rule
	edits sync.Pool       // of *edit
}

// node is a place in the tree of the paths.
type node struct {
	action *action
	fields bool // the place of the managed fields
	keys   []keyEdge
	items  []itemEdge
	any    *node // members and items in addition to their own edges
	deep   *node // this place and all below it, of a **
	stays  bool  // the node is the deep of another
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
	replace func(dst, value []byte, at *Place) []byte
}

// NewEditor compiles rules. An Editor without rules validates and copies.
func NewEditor(rules ...Rule) (*Editor, error) {
	e := &Editor{root: &node{}, hits: make([]atomic.Uint64, len(rules)), edits: sync.Pool{New: func() any { return &edit{} }}}
	e.root.child(step{kind: stepKey, key: "metadata"}).child(step{kind: stepKey, key: "managedFields"}).fields = true
	for i, r := range rules {
		p, err := ParsePath(r.Path)
		if err != nil {
			return nil, fmt.Errorf("rawjson: %w", err)
		}
		n := e.root
		for _, st := range p.steps {
			n = n.child(st)
		}
		n.action = stronger(n.action, &action{rule: i, replace: r.Replace})
	}
	return e, nil
}

// Hits returns the number of values that a rule has dropped or replaced, by its index in
// the rules of NewEditor. Where several rules name one value, it counts for the one that
// takes precedence.
func (e *Editor) Hits(rule int) uint64 { return e.hits[rule].Load() }

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
	case stepDeep:
		if n.deep == nil {
			n.deep = &node{stays: true}
		}
		return n.deep
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
	ed := e.start(raw, dst)
	defer e.finish(ed)
	ed.from, ed.by, ed.Object = start, by, raw
	ed.enter(e.root, 0)
	end, err := ed.container(0, start, 0)
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
	Place
	editor                 *Editor
	raw, dst               []byte
	from                   int
	by                     *Change // if it is asked for
	hasAPIVersion, hasKind bool

	nodes []*node  // of the open containers and the present value, from the outside in
	keys  [][]byte // of the values around the present one
}

// maxKept bounds the room for nodes and keys that is kept for the next edit.
const maxKept = 1 << 10

func (e *Editor) start(raw, dst []byte) *edit {
	ed := e.edits.Get().(*edit)
	ed.editor, ed.raw, ed.dst = e, raw, dst
	return ed
}

func (e *Editor) finish(ed *edit) {
	if cap(ed.nodes) > maxKept || cap(ed.keys) > maxKept {
		return
	}
	clear(ed.keys[:cap(ed.keys)])
	*ed = edit{nodes: ed.nodes[:0], keys: ed.keys[:0]}
	e.edits.Put(ed)
}

var errReplacement = errors.New("rawjson: a rule's replacement is not one JSON value")

// enter adds a node, and the one of a ** that begins there, to those of the present
// value, which are the nodes from first on.
func (ed *edit) enter(n *node, first int) {
	ed.nodes = append(ed.nodes, n)
	if n.deep != nil && !slices.Contains(ed.nodes[first:], n.deep) {
		ed.nodes = append(ed.nodes, n.deep)
	}
}

// follow adds the nodes of a member, by key, or of an item, by index, of the container
// whose nodes are those of [first:end].
func (ed *edit) follow(first, end int, object bool, key []byte, index int) {
	for i := first; i < end; i++ {
		n := ed.nodes[i]
		if object {
			for k := range n.keys {
				if n.keys[k].key == string(key) {
					ed.enter(n.keys[k].to, end)
					break
				}
			}
		} else {
			for k := range n.items {
				if n.items[k].index == index {
					ed.enter(n.items[k].to, end)
					break
				}
			}
		}
		if n.any != nil {
			ed.enter(n.any, end)
		}
		if n.stays && !slices.Contains(ed.nodes[end:], n) {
			ed.nodes = append(ed.nodes, n)
		}
	}
}

// container edits the object or array that starts at i and returns the index after
// it. Its nodes are those from first on. depth is the number of open containers around
// it.
func (ed *edit) container(first, i, depth int) (int, error) {
	raw := ed.raw
	if depth >= maxDepth {
		return 0, syntaxError(^i)
	}
	object, last := raw[i] == '{', raw[i]+2
	i = skipSpace(raw, i+1)
	if i < len(raw) && raw[i] == last {
		return i + 1, nil
	}
	inner := len(ed.nodes)
	for index, kept := 0, false; ; index++ {
		start, at := i, i
		var key []byte
		if object {
			if key, at = readKey(raw, i); at < 0 {
				return 0, syntaxError(at)
			}
		}
		ed.follow(first, inner, object, key, index)
		var end int
		dropped := false
		if len(ed.nodes) > inner {
			var err error
			ed.keys = append(ed.keys[:depth], key)
			if end, dropped, err = ed.value(inner, at, depth+1); err != nil {
				return 0, err
			}
			ed.nodes = ed.nodes[:inner]
		} else if end = skipValue(raw, at, depth+1); end < 0 {
			return 0, syntaxError(end)
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
		if dropped {
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

// value edits the value at i, whose nodes are those from first on, and returns the index
// after it and whether it is dropped. The caller removes dropped values.
func (ed *edit) value(first, i, depth int) (end int, dropped bool, err error) {
	var do *action
	inside := false
	for _, n := range ed.nodes[first:] {
		do = stronger(do, n.action)
		inside = inside || n.stays || n.any != nil || len(n.keys) > 0 || len(n.items) > 0
		if n.fields && ed.by != nil {
			if end, err = ed.by.scan(ed.raw, i, depth); err != nil {
				return 0, false, err
			}
		}
	}
	if do == nil && inside && i < len(ed.raw) && (ed.raw[i] == '{' || ed.raw[i] == '[') {
		end, err = ed.container(first, i, depth)
		return end, false, err
	}
	if end == 0 {
		if end = skipValue(ed.raw, i, depth); end < 0 {
			return 0, false, syntaxError(end)
		}
	}
	if do == nil {
		return end, false, nil
	}
	ed.editor.hits[do.rule].Add(1)
	if do.replace == nil {
		return end, true, nil
	}
	ed.dst = append(ed.dst, ed.raw[ed.from:i]...)
	before := len(ed.dst)
	ed.path = ed.keys[:depth]
	ed.dst = do.replace(ed.dst, ed.raw[i:end], &ed.Place)
	if len(ed.dst) < before || skipValue(ed.dst, before, depth) != len(ed.dst) {
		return 0, false, errReplacement
	}
	ed.from = end
	return end, false, nil
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

// AppendAt appends value, the JSON at a JSON Pointer in the object of that namespace and
// name, with the rules applied. The fate of an item is Unknown if rules name items of its
// array by index, because a patch moves items. If value is nil, AppendAt returns only the
// fate. It appends nothing unless the fate is Kept. Rules do not see the object.
func (e *Editor) AppendAt(dst []byte, namespace, name string, tokens []string, value []byte) ([]byte, Fate, error) {
	ed := e.start(value, dst)
	defer e.finish(ed)
	ed.namespace, ed.name, ed.scanned = []byte(namespace), []byte(name), true
	ed.enter(e.root, 0)
	first := 0
	for _, token := range tokens {
		end := len(ed.nodes)
		for _, n := range ed.nodes[first:] {
			if n.action != nil && n.action.replace == nil {
				return dst, Dropped, nil
			}
		}
		for _, n := range ed.nodes[first:] {
			if n.action != nil || len(n.items) > 0 && isIndex(token) {
				return dst, Unknown, nil
			}
		}
		ed.keys = append(ed.keys, []byte(token))
		ed.follow(first, end, true, []byte(token), 0)
		first = end
	}
	if value == nil {
		if slices.ContainsFunc(ed.nodes[first:], func(n *node) bool { return n.action != nil && n.action.replace == nil }) {
			return dst, Dropped, nil
		}
		return dst, Kept, nil
	}
	end, dropped, err := ed.value(first, skipSpace(value, 0), len(tokens))
	if err != nil || dropped {
		if dropped {
			return dst, Dropped, nil
		}
		return dst, Kept, err
	}
	if bad := endOfInput(value, end); bad < 0 {
		return dst, Kept, syntaxError(bad)
	}
	return append(ed.dst, value[ed.from:end]...), Kept, nil
}

// isIndex reports whether a token of a JSON Pointer can name an item of an array.
func isIndex[T ~string | ~[]byte](token T) bool {
	for i := range len(token) {
		if token[i] < '0' || token[i] > '9' {
			return len(token) == 1 && token[0] == '-'
		}
	}
	return len(token) > 0
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
