package rawjson

import "iter"

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
