package route

import (
	"bytes"
	"fmt"
	"reflect"

	"sigs.k8s.io/json"

	"github.com/watcherd/watcherd/internal/celjson"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// changedPath is a path of `changed`, split into its leading plain keys and the rest.
type changedPath struct {
	keys []string
	rest rawjson.Path
}

func parseChanged(s string) (changedPath, error) {
	p, err := rawjson.ParsePath(s)
	if err != nil {
		return changedPath{}, err
	}
	if p.Deep() {
		return changedPath{}, fmt.Errorf("path %q: ** is for drop and redact", s)
	}
	c := changedPath{rest: p}
	for {
		key, ok := c.rest.Key()
		if !ok {
			return c, nil
		}
		c.keys = append(c.keys, key)
		_, c.rest, _ = c.rest.Cut()
	}
}

// differs reports whether the values at the path differ. It descends both objects
// together and stops at equal bytes, usually at the first key. The objects keep the
// members found on the way for other paths.
func (p changedPath) differs(a, b *celjson.Object) bool {
	for i, key := range p.keys {
		x, y := a.Member(key), b.Member(key)
		if bytes.Equal(x.JSON(), y.JSON()) {
			return false
		}
		if i == len(p.keys)-1 {
			return differsBelow(x.JSON(), y.JSON(), p.rest)
		}
		if a, b = x.Object(), y.Object(); a == nil && b == nil {
			return false
		}
	}
	return differs(a.JSON(), b.JSON(), p.rest)
}

// differs reports whether the values at a path differ between two JSON objects, or only
// one has a value. Under a wildcard, items are compared by index and members by key.
func differs(a, b []byte, p rawjson.Path) bool {
	if bytes.Equal(a, b) {
		return false
	}
	if !p.Wildcard() {
		x, _ := rawjson.Lookup(a, p)
		y, _ := rawjson.Lookup(b, p)
		return !sameJSON(x, y)
	}
	first, rest, _ := p.Cut()
	if !first.Wildcard() {
		x, _ := rawjson.Lookup(a, first)
		y, _ := rawjson.Lookup(b, first)
		return differsBelow(x, y, rest)
	}
	return memberDiffers(a, b, rest) || itemDiffers(a, b, rest)
}

// differsBelow is differs for the rest of a path, which may be empty.
func differsBelow(a, b []byte, rest rawjson.Path) bool {
	if _, _, more := rest.Cut(); more {
		return differs(a, b, rest)
	}
	return !sameJSON(a, b)
}

// memberDiffers compares the members of two objects. Other values have none.
func memberDiffers(a, b []byte, rest rawjson.Path) bool {
	others := make(map[string][]byte)
	for key, value := range rawjson.Members(b) {
		others[string(key)] = value
	}
	for key, value := range rawjson.Members(a) {
		if differsBelow(value, others[string(key)], rest) {
			return true
		}
		delete(others, string(key))
	}
	for _, value := range others {
		if differsBelow(nil, value, rest) {
			return true
		}
	}
	return false
}

// itemDiffers compares the items of two arrays. Other values have none.
func itemDiffers(a, b []byte, rest rawjson.Path) bool {
	var others [][]byte
	for item := range rawjson.Items(b) {
		others = append(others, item)
	}
	n := 0
	for item := range rawjson.Items(a) {
		var other []byte
		if n < len(others) {
			other = others[n]
		}
		if differsBelow(item, other, rest) {
			return true
		}
		n++
	}
	for ; n < len(others); n++ {
		if differsBelow(nil, others[n], rest) {
			return true
		}
	}
	return false
}

// sameJSON reports whether two JSON values are equal, regardless of escapes and key
// order. nil is a missing value.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if len(a) == 0 || len(b) == 0 || a[0] != b[0] && !(isNumber(a[0]) && isNumber(b[0])) {
		return false
	}
	var x, y any
	if json.UnmarshalCaseSensitivePreserveInts(a, &x) != nil || json.UnmarshalCaseSensitivePreserveInts(b, &y) != nil {
		return false
	}
	return reflect.DeepEqual(x, y)
}

func isNumber(c byte) bool { return c == '-' || '0' <= c && c <= '9' }
