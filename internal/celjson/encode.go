package celjson

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Value returns valid JSON as a lazy CEL value, null if there is none.
func Value(raw []byte) ref.Val {
	if len(raw) == 0 {
		return types.NullValue
	}
	return wrap(raw)
}

// ErrTooLarge is the error of a value whose JSON exceeds the limit.
var ErrTooLarge = errors.New("the value is too large")

// Appender is the target of a struct that has a JSON form of its own. That of others has
// the fields that are set.
type Appender interface{ AppendJSON(dst []byte) []byte }

// AppendJSON appends a CEL value as JSON. The keys of maps that an expression makes are
// sorted, so that equal values have equal JSON. Parts of objects are appended as they are.
// The result is at most limit bytes longer than dst, otherwise the error is [ErrTooLarge].
func AppendJSON(dst []byte, v ref.Val, limit int) ([]byte, error) {
	e := encoder{limit: len(dst) + limit}
	return e.append(dst, v, 0)
}

// maxNesting bounds the depth of a value that an expression makes.
const maxNesting = 200

// Nests reports whether lists and maps of valid JSON nest deeper than that.
func Nests(raw []byte, deepest int) bool {
	depth := 0
	for i := 0; i < len(raw) && depth <= deepest; i++ {
		switch raw[i] {
		case '"':
			for i++; raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
	}
	return depth > deepest
}

type encoder struct{ limit int }

func (e *encoder) append(dst []byte, v ref.Val, depth int) (_ []byte, err error) {
	if depth > maxNesting {
		return dst, fmt.Errorf("the value is nested deeper than %d", maxNesting)
	}
	switch v := v.(type) {
	case types.String:
		if len(dst)+len(v) > e.limit {
			return dst, ErrTooLarge
		}
		dst = rawjson.AppendString(dst, string(v))
	case types.Bytes:
		if len(dst)+len(v) > e.limit {
			return dst, ErrTooLarge
		}
		dst = append(base64.StdEncoding.AppendEncode(append(dst, '"'), v), '"')
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return dst, fmt.Errorf("%v has no JSON form", float64(v))
		}
		number, err := json.Marshal(float64(v))
		if err != nil {
			return dst, err
		}
		dst = append(dst, number...)
	case types.Int:
		dst = strconv.AppendInt(dst, int64(v), 10)
	case types.Uint:
		dst = strconv.AppendUint(dst, uint64(v), 10)
	case types.Bool:
		dst = strconv.AppendBool(dst, bool(v))
	case types.Null:
		dst = append(dst, "null"...)
	case types.Timestamp:
		dst = append(v.UTC().AppendFormat(append(dst, '"'), time.RFC3339Nano), '"')
	case *types.Optional:
		if !v.HasValue() {
			return append(dst, "null"...), nil
		}
		return e.append(dst, v.GetValue(), depth+1)
	case *types.Err:
		return dst, v
	case *Struct:
		return e.structure(dst, v, depth)
	case traits.Mapper:
		if lazy, ok := v.(*lazyMap); ok {
			if raw := lazy.JSON(); raw != nil {
				return e.raw(dst, raw)
			}
		}
		return e.object(dst, v, depth)
	case traits.Lister:
		if lazy, ok := v.(*array); ok {
			return e.raw(dst, lazy.raw)
		}
		return e.list(dst, v, depth)
	default:
		// Durations, quantities and addresses have a text form.
		text, ok := v.ConvertToType(types.StringType).(types.String)
		if !ok {
			return dst, fmt.Errorf("a value of type %s has no JSON form", v.Type().TypeName())
		}
		dst = rawjson.AppendString(dst, string(text))
	}
	if len(dst) > e.limit {
		return dst, ErrTooLarge
	}
	return dst, nil
}

func (e *encoder) raw(dst, raw []byte) ([]byte, error) {
	if len(dst)+len(raw) > e.limit {
		return dst, ErrTooLarge
	}
	return append(dst, raw...), nil
}

func (e *encoder) list(dst []byte, list traits.Lister, depth int) (_ []byte, err error) {
	open := byte('[')
	for it := list.Iterator(); it.HasNext() == types.True; open = ',' {
		if dst, err = e.append(append(dst, open), it.Next(), depth+1); err != nil {
			return dst, err
		}
	}
	if open == '[' {
		dst = append(dst, open)
	}
	return e.raw(dst, []byte("]"))
}

type entry struct {
	key   string
	value ref.Val
}

func (e *encoder) object(dst []byte, m traits.Mapper, depth int) ([]byte, error) {
	var entries []entry
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		text, ok := key.ConvertToType(types.StringType).(types.String)
		if !ok {
			return dst, fmt.Errorf("a key of type %s has no JSON form", key.Type().TypeName())
		}
		entries = append(entries, entry{string(text), m.Get(key)})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	for i := 1; i < len(entries); i++ {
		if entries[i].key == entries[i-1].key {
			return dst, fmt.Errorf("a map has two keys %.40q in JSON", entries[i].key)
		}
	}
	return e.entries(dst, entries, depth)
}

func (e *encoder) structure(dst []byte, s *Struct, depth int) ([]byte, error) {
	if a, ok := s.target.(Appender); ok {
		return e.raw(dst, a.AppendJSON(nil))
	}
	var entries []entry
	for _, name := range slices.Sorted(maps.Keys(s.of.fields)) {
		if f := s.of.fields[name]; f.IsSet(s.target) {
			entries = append(entries, entry{name, s.Get(types.String(name))})
		}
	}
	return e.entries(dst, entries, depth)
}

func (e *encoder) entries(dst []byte, entries []entry, depth int) (_ []byte, err error) {
	dst = append(dst, '{')
	for i, m := range entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		if len(dst)+len(m.key) > e.limit {
			return dst, ErrTooLarge
		}
		dst = append(rawjson.AppendString(dst, m.key), ':')
		if dst, err = e.append(dst, m.value, depth+1); err != nil {
			return dst, err
		}
	}
	return e.raw(dst, []byte("}"))
}
