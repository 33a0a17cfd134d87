package route

import (
	"bytes"
	"reflect"

	"sigs.k8s.io/json"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// changedPath is a path of `changed`: the plain keys it begins with, and the rest.
type changedPath struct {
	keys []string
	rest rawjson.Path
}

func parseChanged(s string) (changedPath, error) {
	p, err := rawjson.ParsePath(s)
	if err != nil {
		return changedPath{}, err
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

// differs is as the function of that name. It goes down the two objects together
// and stops where they are the same bytes, which is nearly always and at once. The
// members found on the way stay with the objects, for other paths to pass.
func (p changedPath) differs(a, b *rawObject) bool {
	for i, key := range p.keys {
		x, y := a.member(key), b.member(key)
		if bytes.Equal(x.json(), y.json()) {
			return false
		}
		if i == len(p.keys)-1 {
			return differsBelow(x.json(), y.json(), p.rest)
		}
		if a, b = x.object(), y.object(); a == nil && b == nil {
			return false
		}
	}
	return differs(a.json(), b.json(), p.rest)
}

// differs tells whether what a path names is not the same in two JSON objects: a
// value that is another, or that only one has. With wildcards, items are compared
// by index and members by key.
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

// differsBelow is differs for what remains of a path, which may be nothing.
func differsBelow(a, b []byte, rest rawjson.Path) bool {
	if _, _, more := rest.Cut(); more {
		return differs(a, b, rest)
	}
	return !sameJSON(a, b)
}

// memberDiffers compares the members of two objects; what is no object has none.
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

// itemDiffers compares the items of two arrays; what is no array has none.
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

// sameJSON tells whether two values mean the same, whatever their spelling and the
// order of their keys; nil is no value.
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
