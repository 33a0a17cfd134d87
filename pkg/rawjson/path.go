package rawjson

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// Path names values in an object. It has the syntax of the configuration's `drop`,
// `redact` and `changed`:
//
//	metadata.managedFields                     keys, separated by dots
//	metadata.annotations["example.com/a.b"]    a key with dots or brackets; \" and \\ stand for " and \
//	spec.containers[*].env[*].value            every item of an array
//	data[*]  or  data.*                        every value of an object
//	spec.containers[0].image                   one item of an array, counted from 0
//	spec.**.env[*].value                       at any depth below spec, spec itself included
//
// A step that does not fit the value, such as a key in an array, matches nothing. The
// zero Path names nothing.
type Path struct {
	steps []step
}

type step struct {
	kind  stepKind
	key   string
	index int
}

type stepKind uint8

const (
	stepKey stepKind = iota
	stepIndex
	stepAny
	stepDeep // any number of steps, none included
)

// MustParsePath is ParsePath of a constant. It panics if that is no path.
func MustParsePath(s string) Path {
	p, err := ParsePath(s)
	if err != nil {
		panic(err)
	}
	return p
}

// ParsePath parses a path.
func ParsePath(s string) (Path, error) {
	var p Path
	rest := s
	for first := true; first || rest != ""; first = false {
		st, after, err := parseStep(rest, first)
		if err != nil {
			return Path{}, fmt.Errorf("path %q at byte %d: %w", s, len(s)-len(rest), err)
		}
		if st.kind == stepDeep && (after == "" || len(p.steps) > 0 && p.steps[len(p.steps)-1].kind == stepDeep) {
			return Path{}, fmt.Errorf("path %q at byte %d: after ** comes the name of a value, such as **.value", s, len(s)-len(after))
		}
		p.steps = append(p.steps, st)
		rest = after
	}
	return p, nil
}

func parseStep(s string, first bool) (step, string, error) {
	if strings.HasPrefix(s, "[") {
		return parseBracket(s[1:])
	}
	if !first {
		if s[0] != '.' {
			return step{}, "", fmt.Errorf("expected . or [, not %q", s[0])
		}
		s = s[1:]
	}
	switch {
	case first && strings.HasPrefix(s, "{"), first && strings.HasPrefix(s, "$."):
		return step{}, "", errors.New("a path begins with a key, such as spec.replicas; it is not a JSONPath expression")
	case first && strings.HasPrefix(s, "."):
		return step{}, "", errors.New("a path begins with a key, such as spec.replicas, without a dot")
	}
	end := strings.IndexAny(s, `.[]" `)
	if end < 0 {
		end = len(s)
	}
	key, rest := s[:end], s[end:]
	switch {
	case key == "":
		return step{}, "", errors.New("a key is missing (write keys with dots as [\"key\"])")
	case rest != "" && rest[0] != '.' && rest[0] != '[':
		return step{}, "", fmt.Errorf("a key with %q must be written as [\"key\"]", rest[0])
	case key == "*":
		return step{kind: stepAny}, rest, nil
	case key == "**":
		return step{kind: stepDeep}, rest, nil
	}
	return step{kind: stepKey, key: key}, rest, nil
}

func parseBracket(s string) (step, string, error) {
	if strings.HasPrefix(s, `"`) {
		return parseQuoted(s[1:])
	}
	inside, rest, ok := strings.Cut(s, "]")
	if !ok {
		return step{}, "", errors.New("a closing ] is missing")
	}
	if inside == "*" {
		return step{kind: stepAny}, rest, nil
	}
	index, err := strconv.ParseUint(inside, 10, 31)
	if err != nil {
		return step{}, "", fmt.Errorf(`[%s] is neither [*], a number nor ["key"]`, inside)
	}
	return step{kind: stepIndex, index: int(index)}, rest, nil
}

func parseQuoted(s string) (step, string, error) {
	var key strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			if !strings.HasPrefix(s[i+1:], "]") {
				return step{}, "", errors.New("a closing ] is missing")
			}
			return step{kind: stepKey, key: key.String()}, s[i+2:], nil
		case '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return step{}, "", errors.New(`a backslash must be followed by " or \`)
			}
			key.WriteByte(s[i])
		default:
			key.WriteByte(c)
		}
	}
	return step{}, "", errors.New(`a closing " is missing`)
}

var keyEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// String returns the canonical spelling of the path.
func (p Path) String() string {
	var b strings.Builder
	for i, st := range p.steps {
		switch st.kind {
		case stepAny:
			b.WriteString("[*]")
		case stepIndex:
			fmt.Fprintf(&b, "[%d]", st.index)
		case stepDeep:
			if i > 0 {
				b.WriteByte('.')
			}
			b.WriteString("**")
		case stepKey:
			if st.key == "" || st.key == "*" || st.key == "**" || st.key == "$" || strings.HasPrefix(st.key, "{") || strings.ContainsAny(st.key, `.[]"\ `) {
				b.WriteString(`["` + keyEscapes.Replace(st.key) + `"]`)
				continue
			}
			if i > 0 {
				b.WriteByte('.')
			}
			b.WriteString(st.key)
		}
	}
	return b.String()
}

// Covers reports whether p names a value that q, a path without **, names, or one that
// contains it.
func (p Path) Covers(q Path) bool {
	// reached[i]: the steps of p so far name what the first i steps of q name.
	reached := make([]bool, len(q.steps)+1)
	reached[0] = len(p.steps) > 0
	for _, st := range p.steps {
		next := make([]bool, len(reached))
		for i := range next {
			switch {
			case st.kind == stepDeep:
				next[i] = reached[i] || i > 0 && next[i-1]
			case i > 0:
				next[i] = reached[i-1] && (st.kind == stepAny || q.steps[i-1].kind == stepAny || st == q.steps[i-1])
			}
		}
		reached = next
	}
	return slices.Contains(reached, true)
}

// Indexed reports whether p names an array item by index.
func (p Path) Indexed() bool {
	return slices.ContainsFunc(p.steps, func(st step) bool { return st.kind == stepIndex })
}

// Wildcard reports whether the path can name more than one value.
func (p Path) Wildcard() bool {
	return p.Deep() || slices.ContainsFunc(p.steps, func(st step) bool { return st.kind == stepAny })
}

// Deep reports whether the path contains **. Only an [Editor] follows such a path.
func (p Path) Deep() bool {
	return slices.ContainsFunc(p.steps, func(st step) bool { return st.kind == stepDeep })
}

// Cut splits off the path's first step. ok is false if the path is empty.
func (p Path) Cut() (first, rest Path, ok bool) {
	if len(p.steps) == 0 {
		return Path{}, Path{}, false
	}
	return Path{p.steps[:1]}, Path{p.steps[1:]}, true
}

// Key returns the key of the path's first step. ok is false if the path is empty or
// starts with an index or a wildcard.
func (p Path) Key() (key string, ok bool) {
	if len(p.steps) == 0 || p.steps[0].kind != stepKey {
		return "", false
	}
	return p.steps[0].key, true
}

// Lookup returns the first value at a path. The value aliases raw. Lookup stops at
// the value and validates only the JSON before it, so raw should be valid. If a key
// occurs twice in one object, Lookup takes the first.
func Lookup(raw []byte, p Path) (value []byte, ok bool) {
	for v := range Values(raw, p) {
		return v, true
	}
	return nil, false
}

// Values yields every value at a path in the order sent, as Lookup does. It stops
// at invalid JSON.
func Values(raw []byte, p Path) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if len(p.steps) > 0 && !p.Deep() {
			walk(raw, skipSpace(raw, 0), p.steps, yield)
		}
	}
}

// walk yields the values at steps below the value at i and returns the index after
// it. A negative index stops the walk.
func walk(b []byte, i int, steps []step, yield func([]byte) bool) int {
	if len(steps) == 0 {
		end := skipValue(b, i, 0)
		if end >= 0 && !yield(b[i:end]) {
			return -1
		}
		return end
	}
	if i >= len(b) || !steps[0].enters(b[i]) {
		return skipValue(b, i, 0)
	}
	object := b[i] == '{'
	i = skipSpace(b, i+1)
	if i < len(b) && (b[i] == '}' || b[i] == ']') {
		return i + 1
	}
	for n := 0; ; n++ {
		var key []byte
		if object {
			if key, i = readKey(b, i); i < 0 {
				return i
			}
		}
		if steps[0].matches(key, n) {
			i = walk(b, i, steps[1:], yield)
		} else {
			i = skipValue(b, i, 0)
		}
		if i < 0 {
			return i
		}
		if i = skipSpace(b, i); i >= len(b) || b[i] != ',' {
			return i + 1
		}
		i = skipSpace(b, i+1)
	}
}

// enters reports whether a value that starts with c can contain the step.
func (s step) enters(c byte) bool {
	switch s.kind {
	case stepKey:
		return c == '{'
	case stepIndex:
		return c == '['
	}
	return c == '{' || c == '['
}

func (s step) matches(key []byte, index int) bool {
	switch s.kind {
	case stepKey:
		return string(key) == s.key
	case stepIndex:
		return index == s.index
	}
	return true
}

// Members yields every member of a JSON object in the order sent: its unescaped key
// and its value, which aliases raw. Other values have no members. Members stops at
// invalid JSON. A key that occurs twice is yielded twice; the last value is the
// valid one.
func Members(raw []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		i := skipSpace(raw, 0)
		if i >= len(raw) || raw[i] != '{' {
			return
		}
		for more := true; more; {
			key, at := readKey(raw, skipSpace(raw, i+1))
			if at < 0 {
				return
			}
			end := skipValue(raw, at, 0)
			if end < 0 || !yield(key, raw[at:end]) {
				return
			}
			i = skipSpace(raw, end)
			more = i < len(raw) && raw[i] == ','
		}
	}
}

// Items yields every item of a JSON array in order, as Members does for objects.
func Items(raw []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		i := skipSpace(raw, 0)
		if i >= len(raw) || raw[i] != '[' {
			return
		}
		if i = skipSpace(raw, i+1); i < len(raw) && raw[i] == ']' {
			return
		}
		for {
			end := skipValue(raw, i, 0)
			if end < 0 || !yield(raw[i:end]) {
				return
			}
			if i = skipSpace(raw, end); i >= len(raw) || raw[i] != ',' {
				return
			}
			i = skipSpace(raw, i+1)
		}
	}
}

// Spread returns about how long the paths of all values in raw are together. Of a small
// object that nests deep, or has long keys, they can be thousands of times as long as it is.
func Spread(raw []byte) (total int) {
	const index = 7 // longer than the number of an item, or the indent of a level
	var outer []int
	at, text := 0, 0 // the lengths of the path and of the last string
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			start := i
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
			text = i - start
		case '{', '[':
			outer = append(outer, at)
			at += index
			total += at
		case '}', ']':
			if len(outer) == 0 {
				return total
			}
			at, outer = outer[len(outer)-1], outer[:len(outer)-1]
		case ':', ',':
			if at = index; len(outer) > 0 {
				at += outer[len(outer)-1]
			}
			if raw[i] == ':' {
				at += text
			}
			total += at
		}
	}
	return total
}
