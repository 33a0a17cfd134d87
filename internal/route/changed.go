package route

import (
	"bytes"
	"fmt"
	"reflect"
	"time"

	"sigs.k8s.io/json"

	"github.com/watcherd/watcherd/internal/celjson"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// changedPath is a path of `changed`, split into its leading plain keys and the rest.
type changedPath struct {
	text string
	keys []string
	rest rawjson.Path
}

func parseChanged(s string) (changedPath, error) {
	p, err := rawjson.ParsePath(s)
	if err != nil {
		return changedPath{}, err
	}
	if p.Deep() {
		return changedPath{}, fmt.Errorf("path %q: ** is for drop and redact", s)
	}
	c := changedPath{text: s, rest: p}
	for {
		key, ok := c.rest.Key()
		if !ok {
			return c, nil
		}
		c.keys = append(c.keys, key)
		_, c.rest, _ = c.rest.Cut()
	}
}

// differs reports whether the values at the path differ. It descends both objects
// together and stops at equal bytes, usually at the first key. The objects keep the
// members found on the way for other paths.
func (p changedPath) differs(a, b *celjson.Object) bool {
	for i, key := range p.keys {
		x, y := a.Member(key), b.Member(key)
		if bytes.Equal(x.JSON(), y.JSON()) {
			return false
		}
		if i == len(p.keys)-1 {
			return differsBelow(x.JSON(), y.JSON(), p.rest)
		}
		if a, b = x.Object(), y.Object(); a == nil && b == nil {
			return false
		}
	}
	return differs(a.JSON(), b.JSON(), p.rest)
}

// in reports whether an object has a value at the path.
func (p changedPath) in(o *celjson.Object) bool {
	for i, key := range p.keys {
		m := o.Member(key)
		if i == len(p.keys)-1 {
			return differsBelow(m.JSON(), nil, p.rest)
		}
		if o = m.Object(); o == nil {
			return false
		}
	}
	return differs(o.JSON(), nil, p.rest)
}

// differs reports whether the values at a path differ between two JSON objects, or only
// one has a value. Under a wildcard, items are compared by index and members by key.
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

// differsBelow is differs for the rest of a path, which may be empty.
func differsBelow(a, b []byte, rest rawjson.Path) bool {
	if _, _, more := rest.Cut(); more {
		return differs(a, b, rest)
	}
	return !sameJSON(a, b)
}

// memberDiffers compares the members of two objects. Other values have none.
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

// itemDiffers compares the items of two arrays. Other values have none.
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

// sameJSON reports whether two JSON values are equal, regardless of escapes and key
// order. nil is a missing value.
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

// Change is an observed change, the input of a Router.
type Change struct {
	ID       string // of the event
	Type     event.Type
	Resource event.Resource
	Cluster  string
	Time     time.Time // of the observation

	New *compact.Object // state after; nil on Deleted
	Old *compact.Object // recorded state before; nil on Added and Sync, the last known state on Deleted

	// Changed means that a change of the object led to the event, and New has its author,
	// unless it is ChangedBy.
	Changed   bool
	ChangedBy *event.ChangedBy

	// Uncounted means that a metric does not count the change: it is delivered to some
	// sinks, not to all that routes lead to.
	Uncounted bool

	// Lasted are the routes with For whose match the event reports, which no other route takes;
	// nil: it is a change.
	Lasted []string

	Watches []Hit // watches that cover the object before or after

	// Matches has, after a call of Route, those of the routes with For that take the change.
	Matches []MatchState
}

// MatchState is whether an object matches a route with For.
type MatchState struct {
	Route string
	Match bool
}

// Hit is a watch of a change and the object's relation to its selection.
type Hit struct {
	Watch     string
	Selection event.Selection
}

// object returns the state that the event carries as `object`.
func (c *Change) object() *compact.Object {
	if c.New == nil {
		return c.Old
	}
	return c.New
}

// oldObject returns the state that the event carries as `oldObject`.
func (c *Change) oldObject() *compact.Object {
	if c.Type == event.Updated {
		return c.Old
	}
	return nil
}

// mergeSelections combines an object's relations to the selections of several watches
// of one receiver. An object that one watch covers before and after is Inside for the
// receiver. So is an object that enters one watch and leaves another.
func mergeSelections(a, b event.Selection) event.Selection {
	switch {
	case a == b:
		return a
	case a == event.Unknown && b != event.Inside, b == event.Unknown && a != event.Inside:
		return event.Unknown
	default:
		return event.Inside
	}
}
