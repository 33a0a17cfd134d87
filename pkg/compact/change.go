package compact

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// LastChange is who changed an object last, as rawjson.Change has it. The zero value
// means that it is unknown.
type LastChange struct {
	Manager     string // several are separated by commas
	Operation   string // Apply or Update; "" if several differ
	Subresource string // "" for the object itself, or if several differ
	Time        time.Time
}

// LastChange returns who changed the object last, if its managed fields said so when it
// was encoded. An object from Decode does not have it.
func (o *Object) LastChange() LastChange {
	r := packedReader{s: o.packed[o.ends[3]:o.bodyAt], ok: true}
	if r.head().flags&hasChange == 0 {
		return LastChange{}
	}
	var key string
	if n := r.byte(); n == literalKey {
		key = r.text()
	} else {
		key = o.kind.changes.all()[n]
	}
	c := LastChange{Time: time.Unix(r.varint(), 0).UTC()}
	c.Operation, key, _ = strings.Cut(key, "\n")
	c.Subresource, c.Manager, _ = strings.Cut(key, "\n")
	return c
}

// appendChange packs all but the time as the number of a text, as few managers change
// the objects of a type, and the time in seconds.
func (t *typeMeta) appendChange(dst []byte, c *rawjson.Change, at int64) []byte {
	var space [256]byte
	key := append(append(space[:0], c.Operation...), '\n')
	key = append(append(key, c.Subresource...), '\n')
	for i, m := range c.Managers {
		if i > 0 {
			key = append(key, ',')
		}
		key = append(key, m...)
	}
	return binary.AppendVarint(t.changes.appendNumber(dst, key), at)
}

func (t *typeMeta) skipChange(r *packedReader) {
	if r.byte() == literalKey {
		r.text()
	}
	r.varint()
}
