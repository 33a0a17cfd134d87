package strict

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// maxShown bounds how much of a user's text goes into a message.
const maxShown = 80

// Shorten cuts a text that is too long to be shown.
func Shorten(s string) string {
	if len(s) > maxShown {
		return strings.ToValidUTF8(s[:maxShown], "") + "..."
	}
	return s
}

// Key appends a mapping key to a path: a.b, or a["b.c"] where the key is not plain.
func Key(path, key string) string {
	key = Shorten(key)
	switch {
	case !plainKey.MatchString(key):
		return path + "[" + strconv.Quote(key) + "]"
	case path == "":
		return key
	default:
		return path + "." + key
	}
}

// Index appends a list index to a path.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// nextStep cuts the first step off a path: a key, or an index when isIndex.
func nextStep(path string) (key string, index int, isIndex bool, rest string, ok bool) {
	path = strings.TrimPrefix(path, ".")
	if path == "" {
		return "", 0, false, "", false
	}
	if path[0] != '[' {
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			end = len(path)
		}
		return path[:end], 0, false, path[end:], end > 0
	}
	if quoted, err := strconv.QuotedPrefix(path[1:]); err == nil {
		key, _ = strconv.Unquote(quoted)
		rest, ok = strings.CutPrefix(path[1+len(quoted):], "]")
		return key, 0, false, rest, ok
	}
	inner, rest, ok := strings.Cut(path[1:], "]")
	index, err := strconv.Atoi(inner)
	return "", index, true, rest, ok && err == nil
}

// Position is where the value at path stands, or else the nearest value around
// it: a key that is missing is reported at the mapping it is missing from.
func (d *Document) Position(path string) (line, column int) {
	at, _ := d.find(path)
	return at.Line, at.Column
}

// find walks to path. It returns the node to point at, and whether that is the
// value at path.
func (d *Document) find(path string) (at *yaml.Node, found bool) {
	n := d.root
	at = n
	for path != "" {
		key, index, isIndex, rest, ok := nextStep(path)
		n = resolve(n)
		switch {
		case ok && isIndex && n.Kind == yaml.SequenceNode && index >= 0 && index < len(n.Content):
			n = n.Content[index]
			at = n
		case ok && !isIndex && n.Kind == yaml.MappingNode:
			k, v := lookup(n, key)
			if k == nil {
				return at, false
			}
			n, at = v, valueOrKey(k, v)
		default:
			return at, false
		}
		path = rest
	}
	return at, true
}

// PositionWithin is where line and column of the text at path stand, both from 1
// and columns in characters. Where the file spells the text in another way than
// it reads, with escapes or folded lines, it is where the text starts.
func (d *Document) PositionWithin(path string, line, column int) (fileLine, fileColumn int) {
	at, found := d.find(path)
	n := resolve(at)
	if !found || n.Kind != yaml.ScalarNode || line < 1 || column < 1 {
		return at.Line, at.Column
	}
	if n.Style&yaml.LiteralStyle != 0 {
		written := lineOf(d.text, n.Line+line)
		value := lineOf([]byte(n.Value), line)
		if indent, ok := bytes.CutSuffix(bytes.TrimRight(written, "\r"), value); ok && len(value) > 0 {
			return n.Line + line, len(indent) + column
		}
		return at.Line, at.Column
	}
	written, start := string(lineOf(d.text, n.Line)), n.Column
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
		start++
	}
	if runes := []rune(written); line == 1 && start <= len(runes) && strings.HasPrefix(string(runes[start-1:]), n.Value) {
		return n.Line, start + column - 1
	}
	return at.Line, at.Column
}

func lookup(mapping *yaml.Node, key string) (k, v *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i], mapping.Content[i+1]
		}
	}
	return nil, nil
}

// valueOrKey is the node to point at for a value; one that was left out has no
// place of its own.
func valueOrKey(k, v *yaml.Node) *yaml.Node {
	if v.Kind == yaml.ScalarNode && v.Value == "" && v.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 {
		return k
	}
	return v
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}
