package selector

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// fieldRule is one requirement of a field selector. A missing field is the empty
// string, as in the API server.
type fieldRule struct {
	meta  func(o *compact.Object) string // reads the field without inflating; nil: Lookup of path
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

// maxBuffer is the size of the largest buffer kept for the next object.
const maxBuffer = 1 << 20

// matchFields reports whether the object meets all rules. The body is inflated only if
// the rules on metadata are met. An unreadable body matches: a later reader reports the
// error.
func (f *Filter) matchFields(o *compact.Object) bool {
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
	if cap(raw) <= maxBuffer {
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

// fieldText returns the text of a JSON value that a field selector compares.
func fieldText(raw []byte) string {
	if len(raw) > 0 && raw[0] == '"' {
		return rawjson.Unquote(raw)
	}
	if string(raw) == "null" {
		return ""
	}
	return string(raw)
}

// ParseLabels parses a label selector. The error shows the syntax.
func ParseLabels(selector string) (labels.Selector, error) {
	s, err := labels.Parse(selector)
	if err != nil {
		return nil, fmt.Errorf("%q is not a label selector; use the syntax of kubectl get -l, such as app=web,tier in (a, b): %w", selector, err)
	}
	return s, nil
}

// ParseFields parses a field selector. The error shows the syntax.
func ParseFields(selector string) (fields.Selector, error) {
	s, err := fields.ParseSelector(selector)
	if err != nil {
		var char rune
		if _, no := fmt.Sscanf(err.Error(), "invalid field selector: unescaped character in value: %d", &char); no == nil {
			err = fmt.Errorf("unexpected %q", string(char))
		} else if strings.Contains(err.Error(), "can't understand") {
			err = errors.New("a term needs =, == or !=")
		}
		return nil, fmt.Errorf("%q is not a field selector; use the syntax of kubectl get --field-selector, such as spec.nodeName=node-1: %w", selector, err)
	}
	return s, nil
}
