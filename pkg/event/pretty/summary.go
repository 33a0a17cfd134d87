package pretty

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/watcherd/watcherd/pkg/event"
)

const (
	maxChanges = 3  // changes spelled out in one line
	maxValue   = 40 // characters of one value
)

// change is one difference between two states of an object.
type change struct {
	path     string
	old, new any
	hasOld   bool // old is known
}

// missing stands for a field that is not there.
type missing struct{}

// appendSummary appends how the object changed, as far as the payload shows it.
func (p Printer) appendSummary(dst []byte, e *event.Event) []byte {
	changes, known := diffObjects(e.OldObject, e.Object)
	if !known {
		changes, known = readPatch(e.Patch)
	}
	if !known {
		dst = append(dst, "  "...)
		return p.styled(dst, dim, "version "+string(appendClean(nil, e.ResourceVersion)))
	}
	for i, c := range changes {
		dst = append(dst, "  "...)
		if i == maxChanges {
			return p.styled(dst, dim, fmt.Sprintf("+%d more", len(changes)-i))
		}
		dst = appendClean(dst, c.path)
		dst = append(dst, '=')
		if c.hasOld {
			dst = appendValue(dst, c.old)
			dst = append(dst, "→"...)
		}
		dst = appendValue(dst, c.new)
	}
	return dst
}

func appendValue(dst []byte, v any) []byte {
	switch v := v.(type) {
	case missing:
		return append(dst, "∅"...)
	case nil:
		return append(dst, "null"...)
	case map[string]any:
		return append(dst, "{…}"...)
	case []any:
		return fmt.Appendf(dst, "[%d]", len(v))
	case string:
		if v == "" {
			return append(dst, `""`...)
		}
		return appendClean(dst, cut(v))
	default:
		return append(dst, cut(fmt.Sprint(v))...)
	}
}

// cut shortens a value to maxValue characters.
func cut(s string) string {
	if utf8.RuneCountInString(s) <= maxValue {
		return s
	}
	return string([]rune(s)[:maxValue-1]) + "…"
}

// diffObjects lists the leaves in which two objects differ, in the order of
// their paths. It is not known when one of them is not there.
func diffObjects(old, cur json.RawMessage) (changes []change, known bool) {
	a, okA := decode(old)
	b, okB := decode(cur)
	if !okA || !okB {
		return nil, false
	}
	diff(&changes, "", a, b)
	return changes, true
}

func decode(raw json.RawMessage) (any, bool) {
	if len(raw) == 0 {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	return v, d.Decode(&v) == nil
}

func diff(out *[]change, path string, old, cur any) {
	switch a := old.(type) {
	case map[string]any:
		if b, ok := cur.(map[string]any); ok {
			diffMaps(out, path, a, b)
			return
		}
	case []any:
		if b, ok := cur.([]any); ok && len(a) == len(b) {
			for i := range a {
				diff(out, path+"["+strconv.Itoa(i)+"]", a[i], b[i])
			}
			return
		}
	}
	if !reflect.DeepEqual(old, cur) && !bookkeeping(path) {
		*out = append(*out, change{path: path, old: old, new: cur, hasOld: true})
	}
}

func diffMaps(out *[]change, path string, a, b map[string]any) {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		x, inA := a[k]
		y, inB := b[k]
		if !inA {
			x = missing{}
		}
		if !inB {
			y = missing{}
		}
		if path == "" {
			diff(out, k, x, y)
		} else {
			diff(out, path+"."+k, x, y)
		}
	}
}

// bookkeeping are fields that change with every write and are of no interest to a reader.
func bookkeeping(path string) bool {
	return path == "metadata.resourceVersion" || path == "metadata.generation" ||
		strings.HasPrefix(path, "metadata.managedFields")
}

// readPatch lists what an RFC 6902 patch sets; the old values are not in it.
func readPatch(raw json.RawMessage) (changes []change, known bool) {
	var ops []struct {
		Op    string          `json:"op"`
		Path  string          `json:"path"`
		From  string          `json:"from"`
		Value json.RawMessage `json:"value"`
	}
	if len(raw) == 0 || json.Unmarshal(raw, &ops) != nil {
		return nil, false
	}
	for _, op := range ops {
		c := change{path: dotted(op.Path)}
		if bookkeeping(c.path) {
			continue
		}
		switch op.Op {
		case "remove":
			c.new = missing{}
		case "move", "copy":
			c.new = op.Op + " of " + dotted(op.From)
		case "test":
			continue
		default:
			c.new, _ = decode(op.Value)
		}
		changes = append(changes, c)
	}
	return changes, true
}

// dotted turns a JSON pointer into the spelling of the configuration's paths.
func dotted(pointer string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		if _, err := strconv.Atoi(part); err == nil && b.Len() > 0 {
			b.WriteString("[" + part + "]")
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(part)
	}
	return b.String()
}
