package strict

import (
	"encoding/json"
	"math"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	nullTag      = "!!null"
	stringTag    = "!!str"
	boolTag      = "!!bool"
	intTag       = "!!int"
	floatTag     = "!!float"
	timestampTag = "!!timestamp"
	binaryTag    = "!!binary"
	mergeTag     = "!!merge"
	mapTag       = "!!map"
	listTag      = "!!seq"
)

// Node is a value of the document and where it stands.
type Node struct {
	Path string
	yaml *yaml.Node // aliases resolved
	at   *yaml.Node // what to point at
}

// IsNull reports whether the value is null or left out.
func (n Node) IsNull() bool { return n.yaml.ShortTag() == nullTag }

// IsMapping reports whether the value is a mapping.
func (n Node) IsMapping() bool { return n.yaml.Kind == yaml.MappingNode }

// Text is the value of a string, and whether the value is one.
func (n Node) Text() (string, bool) {
	return n.yaml.Value, n.yaml.Kind == yaml.ScalarNode && n.yaml.ShortTag() == stringTag
}

// Scalar is the text of any plain value as it is written, and whether the value
// is one: neither list, mapping nor null.
func (n Node) Scalar() (string, bool) {
	return n.yaml.Value, n.yaml.Kind == yaml.ScalarNode && !n.IsNull()
}

// JSON is the value as JSON with sorted keys: equal for values that differ only
// in comments, order of keys, quoting and layout.
func (n Node) JSON() []byte {
	b, err := json.Marshal(plain(n.yaml))
	if err != nil {
		// plain makes nothing that cannot be marshalled.
		panic("strict: " + err.Error())
	}
	return b
}

// plain turns a node into what encoding/json makes of JSON.
func plain(n *yaml.Node) any {
	n = resolve(n)
	switch n.Kind {
	case yaml.MappingNode:
		m := make(map[string]any, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			m[resolve(n.Content[i]).Value] = plain(n.Content[i+1])
		}
		return m
	case yaml.SequenceNode:
		l := make([]any, len(n.Content))
		for i, c := range n.Content {
			l[i] = plain(c)
		}
		return l
	}
	switch n.ShortTag() {
	case nullTag:
		return nil
	case boolTag, intTag, floatTag:
		var v any
		if err := n.Decode(&v); err == nil {
			switch f, isFloat := v.(float64); {
			case !isFloat:
				return v
			case !math.IsNaN(f) && !math.IsInf(f, 0):
				return f
			}
		}
	}
	return n.Value
}

// describe names the type of a value for a message.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch tag := n.ShortTag(); tag {
	case nullTag:
		return "null"
	case stringTag:
		return "a string"
	case boolTag:
		return "a boolean"
	case intTag, floatTag:
		return "the number " + Shorten(n.Value)
	case timestampTag:
		return "a date"
	case binaryTag:
		return "binary data"
	default:
		return "tagged " + Shorten(strings.TrimPrefix(tag, "!"))
	}
}

// Has reports whether a mapping holds a value that is not null under the keys,
// each looked up in the one before.
func (n Node) Has(keys ...string) bool {
	v := n.yaml
	for _, key := range keys {
		if v.Kind != yaml.MappingNode {
			return false
		}
		_, below := lookup(v, key)
		if below == nil {
			return false
		}
		v = resolve(below)
	}
	return v.ShortTag() != nullTag
}
