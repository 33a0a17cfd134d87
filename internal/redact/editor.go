package redact

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/watcherd/watcherd/internal/jsonpatch"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// editor is a compiled set of edits, for one object.
type editor struct {
	*rawjson.Editor
	namespace, name string
}

var (
	_ record.Edit = editor{}
	_ record.Edit = chain{}
)

func (e editor) Object(dst, raw []byte) ([]byte, error) { return e.Append(dst, raw) }

func (e editor) Patch(patch, before, after []byte) ([]byte, bool) {
	if before != nil && after != nil {
		patch, err := jsonpatch.Diff(before, after)
		return patch, err == nil
	}
	return e.editPatch(patch)
}

// chain applies edits in sequence.
type chain []record.Edit

func (c chain) Object(dst, raw []byte) ([]byte, error) {
	for _, e := range c {
		edited, err := e.Object(nil, raw)
		if err != nil {
			return dst, err
		}
		raw = edited
	}
	return append(dst, raw...), nil
}

func (c chain) Patch(patch, before, after []byte) (left []byte, ok bool) {
	for _, e := range c {
		if patch, ok = e.Patch(patch, before, after); !ok {
			return nil, false
		}
	}
	return patch, true
}

// editPatch applies the editor's rules to a JSON Patch whose two objects are not known.
// Operations on dropped values are removed, values are edited. ok is false if the
// result is unknown, for example for an operation inside a value that is replaced as a
// whole. Then the patch must not be shown.
func (e editor) editPatch(patch []byte) (edited []byte, ok bool) {
	var ops []struct {
		Op    string          `json:"op"`
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value"`
	}
	d := json.NewDecoder(bytes.NewReader(patch))
	d.DisallowUnknownFields() // of other operations
	if d.Decode(&ops) != nil {
		return nil, false
	}
	out := []byte{'['}
	for _, op := range ops {
		switch op.Op {
		case "add", "replace":
			if op.Value == nil {
				return nil, false
			}
		case "remove":
			op.Value = nil
		default:
			return nil, false
		}
		value, fate, err := e.AppendAt(nil, e.namespace, e.name, pointerTokens(op.Path), op.Value)
		if err != nil || fate == rawjson.Unknown {
			return nil, false
		}
		if fate == rawjson.Dropped {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, `{"op":"`+op.Op+`","path":`...)
		out = rawjson.AppendString(out, op.Path)
		if op.Value != nil {
			out = append(append(out, `,"value":`...), value...)
		}
		out = append(out, '}')
	}
	return append(out, ']'), true
}

// pointerTokens returns the tokens of a JSON Pointer, none for the whole document.
func pointerTokens(pointer string) []string {
	if pointer == "" {
		return nil
	}
	tokens := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, t := range tokens {
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(t, "~1", "/"), "~0", "~")
	}
	return tokens
}
