package compact

import "iter"

// Members yields every member of a JSON object in the order sent: its key, unescaped, and its value, as sent and aliasing
// raw. Anything but an object has none. JSON that is not valid ends it early; give it what Scan or an Editor has accepted.
// A key that occurs twice is yielded twice: the last one counts.
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

// Cut splits off the path's first step; ok is false if there is none.
func (p Path) Cut() (first, rest Path, ok bool) {
	if len(p.steps) == 0 {
		return Path{}, Path{}, false
	}
	return Path{p.steps[:1]}, Path{p.steps[1:]}, true
}

// Key returns the key that the path's first step names; ok is false if there is no step, or if it names an item or a
// wildcard.
func (p Path) Key() (key string, ok bool) {
	if len(p.steps) == 0 || p.steps[0].kind != stepKey {
		return "", false
	}
	return p.steps[0].key, true
}
