package summary

import (
	"encoding/json"
	"strconv"
	"strings"
)

// readPatch adds the changes that an RFC 6902 patch makes; the values before are not in
// it. It reports whether it is one.
func (l *list) readPatch(raw []byte) bool {
	var ops []struct {
		Op    string          `json:"op"`
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value"`
	}
	if json.Unmarshal(raw, &ops) != nil {
		return false
	}
	for _, op := range ops {
		if op.Op == "test" {
			continue
		}
		d := differ{list: l}
		elements := pointer(op.Path)
		if n := len(elements); n > 1 {
			d.path = elements[:1]
			if d.isBookkeeping([]byte(elements[1].text)) {
				continue
			}
		}
		d.path = elements
		switch value := trim(op.Value); op.Op {
		case "add":
			d.add(change{new: value})
		case "remove":
			d.add(change{old: json.RawMessage("{}")})
		case "replace":
			d.add(change{new: value, set: true})
		default:
			d.add(change{set: true})
		}
	}
	return true
}

// pointer returns the elements of a JSON Pointer.
func pointer(text string) []element {
	text, ok := strings.CutPrefix(text, "/")
	if !ok {
		return nil
	}
	var path []element
	for token := range strings.SplitSeq(text, "/") {
		if index, err := strconv.ParseUint(token, 10, 31); err == nil && len(path) > 0 {
			path = append(path, element{kind: indexedItem, index: int(index)})
			continue
		}
		if token == "-" && len(path) > 0 {
			continue // behind the last item of a list
		}
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		path = append(path, element{text: token})
	}
	return path
}
