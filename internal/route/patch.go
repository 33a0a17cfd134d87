package route

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"maps"

	"github.com/wI2L/jsondiff"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Patch is the RFC 6902 JSON Patch that leads from one JSON object to another: add,
// remove and replace only, `[]` if they are the same. Numbers are compared and
// written digit by digit. Arrays are compared index by index.
func Patch(before, after []byte) ([]byte, error) {
	if bytes.Equal(before, after) {
		return []byte("[]"), nil
	}
	before, after = reduce(nil, nil, before, after)
	patch, err := jsondiff.CompareJSON(before, after, jsondiff.UnmarshalFunc(unmarshalNumbers))
	if err != nil {
		return nil, fmt.Errorf("route: patch: %w", err)
	}
	return appendPatch(nil, patch)
}

// appendPatch writes the operations in the order of the standard's examples: op,
// path, value.
func appendPatch(dst []byte, patch jsondiff.Patch) ([]byte, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	appendValue := func(v any) error {
		text.Reset()
		if err := enc.Encode(v); err != nil {
			return fmt.Errorf("route: patch: %w", err)
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

// unmarshalNumbers decodes with numbers as they are written: as a float64 a
// resource's large integer would lose its last digits.
func unmarshalNumbers(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(v)
}

// reduce appends two JSON objects without the members that are the same bytes in
// both, at any depth of objects. The patch between what is left is the patch between
// the whole: equal members take no part in it, and leaving them out moves no other.
// An update changes little of an object, and decoding the rest is most of the work.
func reduce(dstA, dstB, a, b []byte) (reducedA, reducedB []byte) {
	before, after := maps.Collect(texts(a)), maps.Collect(texts(b))
	dstA, dstB = append(dstA, '{'), append(dstB, '{')
	startA, startB := len(dstA), len(dstB)
	for key, value := range before {
		other, kept := after[key]
		delete(after, key)
		if kept && bytes.Equal(value, other) {
			continue
		}
		dstA = appendKey(dstA, startA, key)
		if kept {
			dstB = appendKey(dstB, startB, key)
		}
		if kept && value[0] == '{' && other[0] == '{' {
			dstA, dstB = reduce(dstA, dstB, value, other)
			continue
		}
		dstA, dstB = append(dstA, value...), append(dstB, other...)
	}
	for key, value := range after {
		dstB = append(appendKey(dstB, startB, key), value...)
	}
	return append(dstA, '}'), append(dstB, '}')
}

// texts yields an object's members with keys of their own memory.
func texts(raw []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for key, value := range rawjson.Members(raw) {
			if !yield(string(key), value) {
				return
			}
		}
	}
}

// appendKey appends a member's key, and a comma unless it is the first at start.
func appendKey(dst []byte, start int, key string) []byte {
	if len(dst) > start {
		dst = append(dst, ',')
	}
	return append(append(dst, quote(key)...), ':')
}

func quote(s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil { // a string always marshals
		panic(fmt.Sprintf("route: marshal string: %v", err))
	}
	return quoted
}
