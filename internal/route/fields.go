package route

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/selection"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// fieldRule is one requirement of a field selector. A field that the object lacks
// is the empty string, as it is to the API server.
type fieldRule struct {
	meta  func(o *compact.Object) string // reads the field without inflating; nil: at path
	path  rawjson.Path
	value string
	equal bool
}

func parseFields(selector string) ([]fieldRule, error) {
	parsed, err := ParseFields(selector)
	if err != nil {
		return nil, err
	}
	var rules []fieldRule
	for _, r := range parsed.Requirements() {
		p, err := rawjson.ParsePath(r.Field)
		if err != nil {
			return nil, err
		}
		if p.Wildcard() {
			return nil, fmt.Errorf("path %q names more than one field", r.Field)
		}
		rule := fieldRule{path: p, value: r.Value, equal: r.Operator != selection.NotEquals}
		switch p.String() {
		case "metadata.name":
			rule.meta = (*compact.Object).GetName
		case "metadata.namespace":
			rule.meta = (*compact.Object).GetNamespace
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// matchFields tells whether the object meets all the rules. The body is inflated
// only if the rules on metadata are met. A body that cannot be read matches: the
// fault is for those to report who must read it to go on.
func (f *WatchFilter) matchFields(o *compact.Object) bool {
	rules := f.fields
	inflate := false
	for i := range rules {
		if rules[i].meta == nil {
			inflate = true
		} else if (rules[i].meta(o) == rules[i].value) != rules[i].equal {
			return false
		}
	}
	if !inflate {
		return true
	}
	buf, ok := f.buffers.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	defer f.buffers.Put(buf)
	raw, err := o.AppendJSON((*buf)[:0])
	if err != nil {
		return true
	}
	if cap(raw) <= maxKept {
		*buf = raw
	}
	for i := range rules {
		if rules[i].meta != nil {
			continue
		}
		value, _ := rawjson.Lookup(raw, rules[i].path)
		if (fieldText(value) == rules[i].value) != rules[i].equal {
			return false
		}
	}
	return true
}

// fieldText is a JSON value as a field selector sees it.
func fieldText(raw []byte) string {
	if len(raw) > 0 && raw[0] == '"' {
		return unquote(raw)
	}
	if string(raw) == "null" {
		return ""
	}
	return string(raw)
}

// unquote is the text of a JSON string, valid by what read it before.
func unquote(raw []byte) string {
	for i := 1; i < len(raw)-1; i++ {
		if c := raw[i]; c == '\\' || c >= 0x80 {
			var s string
			if json.Unmarshal(raw, &s) != nil {
				return ""
			}
			return s
		}
	}
	return string(raw[1 : len(raw)-1])
}
