package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v2"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// contextLines surround what differs.
const contextLines = 3

// unified returns the unified diff of two objects as YAML, empty if they are equal. An empty
// object stands for none. Items of lists are matched by name, so their order is no difference.
func unified(before, after []byte, from, to string) (string, error) {
	a, err := decoded(before)
	if err != nil {
		return "", err
	}
	b, err := decoded(after)
	if err != nil {
		return "", err
	}
	x, err := lines(inOrderOf(a, b))
	if err != nil {
		return "", err
	}
	y, err := lines(b)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, h := range hunks(edits(x, y)) {
		if out.Len() == 0 {
			fmt.Fprintf(&out, "--- %s\n+++ %s\n", from, to)
		}
		fmt.Fprintf(&out, "@@ -%s +%s @@\n", span(h.a, h.old), span(h.b, h.new))
		for _, e := range h.edits {
			fmt.Fprintf(&out, "%c%s\n", e.op, e.line)
		}
	}
	return out.String(), nil
}

func span(first, n int) string {
	if n > 0 {
		first++
	}
	return fmt.Sprintf("%d,%d", first, n)
}

// maxPaths bounds the paths, and the indents, of all values of an object.
const maxPaths = 16 << 20

var errSpread = errors.New("state: it nests too deep, or its keys or names are too long, for a comparison of its fields")

// decoded is an object without what changes with every write.
func decoded(raw []byte) (any, error) {
	if len(raw) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	if rawjson.Spread(raw) > maxPaths {
		return nil, errSpread
	}
	var o map[string]any
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if err := d.Decode(&o); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if metadata, ok := o["metadata"].(map[string]any); ok {
		for _, key := range []string{"resourceVersion", "generation", "managedFields"} {
			delete(metadata, key)
		}
	}
	return o, nil
}

func lines(v any) ([]string, error) {
	if v == nil {
		return nil, nil
	}
	var text limited
	e := yaml.NewEncoder(&text)
	if err := errors.Join(e.Encode(v), e.Close()); err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n"), nil
}

// limited is a text of at most maxPaths bytes: the lines of a string are indented as deep as it
// is in the object.
type limited struct{ strings.Builder }

func (l *limited) Write(b []byte) (int, error) {
	if l.Len()+len(b) > maxPaths {
		return 0, errSpread
	}
	return l.Builder.Write(b)
}

// itemKeys are the keys that distinguish the items of a list, in the order of preference.
var itemKeys = []string{"name", "type", "key", "port", "containerPort", "mountPath", "devicePath", "topologyKey", "host", "path", "ip", "uid"}

// inOrderOf returns v with the items of its lists in the order of those of the same name in
// another value. Items that are only in v stay behind the item before them.
func inOrderOf(v, other any) any {
	switch v := v.(type) {
	case map[string]any:
		o, _ := other.(map[string]any)
		for key := range v {
			v[key] = inOrderOf(v[key], o[key])
		}
	case []any:
		o, _ := other.([]any)
		for _, key := range itemKeys {
			mine, ok := named(v, key)
			theirs, ok2 := named(o, key)
			if ok && ok2 {
				return ordered(v, o, key, mine, theirs)
			}
		}
		for i := range min(len(v), len(o)) {
			v[i] = inOrderOf(v[i], o[i])
		}
	}
	return v
}

func ordered(v, other []any, key string, mine, theirs map[string]int) []any {
	name := func(item any) string { return fmt.Sprint(item.(map[string]any)[key]) } //nolint:forcetypeassert // named has seen it
	list := make([]any, 0, len(v))
	alone := func(i int) { // and those behind it
		for ; i < len(v); i++ {
			if _, ok := theirs[name(v[i])]; ok {
				return
			}
			list = append(list, v[i])
		}
	}
	alone(0)
	for _, item := range other {
		if i, ok := mine[name(item)]; ok {
			list = append(list, inOrderOf(v[i], item))
			alone(i + 1)
		}
	}
	return list
}

// named returns the indexes of a list's items by the value of a key, and false if an item lacks
// the key, shares its value, or has a list or a map as value.
func named(items []any, key string) (map[string]int, bool) {
	index := make(map[string]int, len(items))
	for i, item := range items {
		o, _ := item.(map[string]any)
		value, ok := o[key]
		if !ok {
			return nil, false
		}
		switch value.(type) {
		case map[string]any, []any:
			return nil, false
		}
		name := fmt.Sprint(value)
		if _, twice := index[name]; twice {
			return nil, false
		}
		index[name] = i
	}
	return index, true
}

// edit is a line that is kept (' '), removed ('-') or added ('+').
type edit struct {
	op   byte
	line string
}

// maxDistance bounds the work for two texts that differ in most lines. The objects may be
// hostile, and the libraries that compare texts have no such bound.
const maxDistance = 1000

// edits returns the shortest way from one text to another (Myers), or if that is long, all
// of the one and all of the other between their equal ends.
func edits(a, b []string) []edit {
	var head, tail []edit
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		head = append(head, edit{' ', a[0]})
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		tail = append(tail, edit{' ', a[len(a)-1]})
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	all := append(head, middle(a, b)...)
	for _, e := range slices.Backward(tail) {
		all = append(all, e)
	}
	return all
}

func middle(a, b []string) []edit {
	most := min(len(a)+len(b), maxDistance)
	reach := make([]int, 2*most+3) // by diagonal: how far in a
	at := func(k int) *int { return &reach[k+most+1] }
	var steps [][]int
	for d := 0; d <= most; d++ {
		for k := -d; k <= d; k += 2 {
			x := *at(k - 1) + 1
			if k == -d || k != d && *at(k - 1) < *at(k + 1) {
				x = *at(k + 1)
			}
			if d == 0 {
				x = 0
			}
			for x < len(a) && x-k < len(b) && x-k >= 0 && a[x] == b[x-k] {
				x++
			}
			*at(k) = x
			if x >= len(a) && x-k >= len(b) {
				return backtrack(a, b, steps, k)
			}
		}
		steps = append(steps, append([]int(nil), reach[most+1-d:most+2+d]...)) // the diagonals from -d to d
	}
	var all []edit
	for _, line := range a {
		all = append(all, edit{'-', line})
	}
	for _, line := range b {
		all = append(all, edit{'+', line})
	}
	return all
}

// backtrack follows the steps back from the end, which is on diagonal k.
func backtrack(a, b []string, steps [][]int, k int) []edit {
	x := len(a)
	var back []edit
	for d := len(steps); d > 0; d-- {
		before := func(k int) int { // how far the step before came
			if k < -(d-1) || k > d-1 {
				return -1
			}
			return steps[d-1][k+d-1]
		}
		from, down := before(k-1)+1, false
		if k == -d || k != d && before(k-1) < before(k+1) {
			from, down = before(k+1), true
		}
		for x > from {
			x--
			back = append(back, edit{' ', a[x]})
		}
		if down {
			back = append(back, edit{'+', b[x-k-1]})
			k++
		} else {
			x--
			back = append(back, edit{'-', a[x]})
			k--
		}
	}
	for x > 0 {
		x--
		back = append(back, edit{' ', a[x]})
	}
	slices.Reverse(back)
	return back
}

// hunk is a part of a diff: where it begins in both texts, and of how many lines of each it is.
type hunk struct {
	a, b, old, new int
	edits          []edit
}

func hunks(all []edit) (list []hunk) {
	a, b, quiet := 0, 0, contextLines+1
	var open *hunk
	for i, e := range all {
		if e.op != ' ' {
			if open == nil {
				n := min(i, contextLines)
				list = append(list, hunk{a: a - n, b: b - n})
				open = &list[len(list)-1]
				for _, c := range all[i-n : i] {
					open.add(c)
				}
			}
			quiet = 0
		} else if quiet++; open != nil && quiet > contextLines && !soon(all[i:]) {
			open = nil
		}
		if open != nil {
			open.add(e)
		}
		if e.op != '+' {
			a++
		}
		if e.op != '-' {
			b++
		}
	}
	return list
}

// soon reports whether the lines before the next difference are its context.
func soon(rest []edit) bool {
	for i := range min(len(rest), contextLines+1) {
		if rest[i].op != ' ' {
			return true
		}
	}
	return false
}

func (h *hunk) add(e edit) {
	h.edits = append(h.edits, e)
	if e.op != '+' {
		h.old++
	}
	if e.op != '-' {
		h.new++
	}
}
