// Package jsonpatch computes JSON Patches (RFC 6902) between two states of an object.
package jsonpatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/wI2L/jsondiff"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Diff returns the RFC 6902 JSON Patch from one Kubernetes object to another, `[]` if they
// are equal. The patch has add, remove and replace operations only. Numbers are
// compared and written digit by digit, arrays are compared by index. The patch leaves out
// metadata.resourceVersion and metadata.managedFields, which every write changes. Where the
// paths of what may differ are very long, it replaces members of the object as a whole.
func Diff(before, after []byte) ([]byte, error) {
	if bytes.Equal(before, after) {
		return []byte("[]"), nil
	}
	a, b := reduce(nil, nil, before, after, root, 0)
	if len(a)+len(b) > alwaysFine && rawjson.Spread(a)+rawjson.Spread(b) > maxPaths {
		return coarse(before, after)
	}
	patch, err := jsondiff.CompareJSON(a, b, jsondiff.UnmarshalFunc(unmarshalNumbers))
	if err != nil {
		return nil, fmt.Errorf("jsonpatch: patch: %w", err)
	}
	return appendPatch(nil, patch)
}

const (
	maxPaths   = 32 << 20 // bytes of the paths of all values of two objects
	alwaysFine = 8 << 10  // bytes of objects whose paths cannot be longer than that
	maxDepth   = 32       // to which objects are reduced: each level is read again for those around it
)

// token writes a key as RFC 6901 has it in a path.
var token = strings.NewReplacer("~", "~0", "/", "~1")

// coarse is the patch that replaces members of the object, and of its metadata.
func coarse(before, after []byte) ([]byte, error) {
	type operation struct {
		Op    string          `json:"op"`
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value,omitempty"`
	}
	patch := []operation{}
	var differ func(a, b []byte, p place, path string)
	differ = func(a, b []byte, p place, path string) {
		old, now := maps.Collect(texts(a)), maps.Collect(texts(b))
		for _, key := range slices.Sorted(maps.Keys(old)) {
			value, kept := now[key]
			at := path + "/" + token.Replace(key)
			switch {
			case p.omits(key) || kept && bytes.Equal(value, old[key]):
			case !kept:
				patch = append(patch, operation{Op: "remove", Path: at})
			case p.in(key) == metadata && value[0] == '{' && old[key][0] == '{':
				differ(old[key], value, metadata, at)
			default:
				patch = append(patch, operation{"replace", at, value})
			}
		}
		for _, key := range slices.Sorted(maps.Keys(now)) {
			if _, had := old[key]; !had && !p.omits(key) {
				patch = append(patch, operation{"add", path + "/" + token.Replace(key), now[key]})
			}
		}
	}
	differ(before, after, root, "")
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(patch); err != nil {
		return nil, fmt.Errorf("jsonpatch: patch: %w", err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// appendPatch writes the members of an operation in the order of the RFC's examples:
// op, path, value.
func appendPatch(dst []byte, patch jsondiff.Patch) ([]byte, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	appendValue := func(v any) error {
		text.Reset()
		if err := enc.Encode(v); err != nil {
			return fmt.Errorf("jsonpatch: patch: %w", err)
		}
		dst = append(dst, bytes.TrimSuffix(text.Bytes(), []byte("\n"))...)
		return nil
	}
	dst = append(dst, '[')
	for i, op := range patch {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"op":"`...)
		dst = append(dst, op.Type...)
		dst = append(dst, `","path":`...)
		if err := appendValue(op.Path); err != nil {
			return nil, err
		}
		if op.Type != jsondiff.OperationRemove {
			dst = append(dst, `,"value":`...)
			if err := appendValue(op.Value); err != nil {
				return nil, err
			}
		}
		dst = append(dst, '}')
	}
	return append(dst, ']'), nil
}

// unmarshalNumbers keeps numbers as sent: a float64 would lose the last digits of a
// large integer.
func unmarshalNumbers(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(v)
}

// place is where in a Kubernetes object a JSON object is.
type place int

const (
	root place = iota
	metadata
	elsewhere
)

// omits reports whether a patch leaves out a member of the object at p.
func (p place) omits(key string) bool {
	return p == metadata && (key == "resourceVersion" || key == "managedFields")
}

func (p place) in(key string) place {
	if p == root && key == "metadata" {
		return metadata
	}
	return elsewhere
}

// reduce appends two JSON objects at p without the members that a patch leaves out and
// those whose bytes are equal in both, at any depth of objects. Equal members are not part
// of a patch, so the patch between the reduced objects is the patch between the originals.
// An update changes a small part of an object, and decoding the rest is most of the work.
func reduce(dstA, dstB, a, b []byte, p place, depth int) (reducedA, reducedB []byte) {
	before, after := maps.Collect(texts(a)), maps.Collect(texts(b))
	dstA, dstB = append(dstA, '{'), append(dstB, '{')
	startA, startB := len(dstA), len(dstB)
	for key, value := range before {
		other, kept := after[key]
		delete(after, key)
		if kept && bytes.Equal(value, other) || p.omits(key) {
			continue
		}
		dstA = appendKey(dstA, startA, key)
		if kept {
			dstB = appendKey(dstB, startB, key)
		}
		if kept && value[0] == '{' && other[0] == '{' && depth < maxDepth {
			dstA, dstB = reduce(dstA, dstB, value, other, p.in(key), depth+1)
			continue
		}
		dstA, dstB = append(dstA, value...), append(dstB, other...)
	}
	for key, value := range after {
		if p.omits(key) {
			continue
		}
		dstB = append(appendKey(dstB, startB, key), value...)
	}
	return append(dstA, '}'), append(dstB, '}')
}

// texts yields an object's members with copied keys.
func texts(raw []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for key, value := range rawjson.Members(raw) {
			if !yield(string(key), value) {
				return
			}
		}
	}
}

// appendKey appends a member's key, after a comma unless it is the first at start.
func appendKey(dst []byte, start int, key string) []byte {
	if len(dst) > start {
		dst = append(dst, ',')
	}
	return append(rawjson.AppendString(dst, key), ':')
}
