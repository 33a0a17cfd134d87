package route

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// EditPatch is what the editor's rules leave of an RFC 6902 patch between two objects
// that are not at hand: operations on what is dropped are left out, values are edited.
// It is not ok if that cannot be told, as of an operation within a value that is
// replaced as a whole; then nothing of the patch may be shown.
func EditPatch(e *rawjson.Editor, patch []byte) (edited []byte, ok bool) {
	var ops []struct {
		Op    string          `json:"op"`
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value"`
	}
	d := json.NewDecoder(bytes.NewReader(patch))
	d.DisallowUnknownFields() // the members of other operations
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
		value, fate, err := e.AppendAt(nil, pointerTokens(op.Path), op.Value)
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
		out = append(out, quote(op.Path)...)
		if op.Value != nil {
			out = append(append(out, `,"value":`...), value...)
		}
		out = append(out, '}')
	}
	return append(out, ']'), true
}

// pointerTokens are the tokens of a JSON Pointer; none for the whole document.
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
