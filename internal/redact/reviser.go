package redact

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/jsonpatch"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Reviser rewrites stored records and states with the table's edits and without retired
// dictionaries. It is for one goroutine at a time.
type Reviser struct {
	table  *Table
	dicts  *compact.Dictionaries
	codecs map[schema.GroupResource]*compact.Codec
}

// NewReviser returns a Reviser that compresses with dicts and adds new dictionaries to it.
func NewReviser(t *Table, dicts *compact.Dictionaries) *Reviser {
	return &Reviser{table: t, dicts: dicts, codecs: map[schema.GroupResource]*compact.Codec{}}
}

// Record returns the revised form of a stored record and whether it differs.
func (v *Reviser) Record(payload []byte) (revised []byte, changed bool, err error) {
	r, err := record.Decode(payload)
	if err != nil {
		return nil, false, err
	}
	var edit record.Edit
	if pending := v.table.pending(r); pending != nil {
		edit, r.Edits = pending.of(&r.Event), pending.fingerprint
	}
	enriched, err := v.enrichment(r, edit)
	if err != nil {
		return nil, false, fmt.Errorf("enrichment: %w", err)
	}
	if edit == nil && !enriched && !v.dicts.Retired(r.Object.Dict) && !v.dicts.Retired(r.OldObject.Dict) {
		return payload, false, nil
	}
	gr := schema.GroupResource{Group: r.Event.Resource.Group, Resource: r.Event.Resource.Resource}
	var after, before []byte
	if r.Object, after, err = v.body(gr, r.Object, edit); err != nil {
		return nil, false, fmt.Errorf("object: %w", err)
	}
	if r.OldObject, before, err = v.body(gr, r.OldObject, edit); err != nil {
		return nil, false, fmt.Errorf("old object: %w", err)
	}
	if edit != nil && len(r.Patch) > 0 {
		patch, ok := edit.Patch(r.Patch, before, after)
		if !ok {
			patch = nil
		}
		r.Patch, r.PatchOmitted = patch, !ok
	}
	revised, err = record.Append(nil, r)
	return revised, err == nil, err
}

// enrichment edits what the record has of other objects. edit is that of its own.
func (v *Reviser) enrichment(r *record.Record, edit record.Edit) (changed bool, err error) {
	if r.Enrichment == nil {
		return false, nil
	}
	if owner := r.Enrichment.Owner; edit != nil && owner != nil {
		if r.Enrichment.Owner, err = edit.Part(nil, owner); err != nil {
			return false, err
		}
	}
	about := r.About()
	pending := v.table.pending(about)
	if pending == nil {
		return false, nil
	}
	involved := r.Enrichment.Involved
	involved.Object, err = pending.of(&about.Event).Part(nil, involved.Object)
	involved.Edits = pending.fingerprint
	return true, err
}

// body edits one body and compresses it again; raw is its JSON.
func (v *Reviser) body(gr schema.GroupResource, b compact.Body, edit record.Edit) (edited compact.Body, raw []byte, err error) {
	if len(b.Data) == 0 {
		return b, nil, nil
	}
	if raw, err = v.dicts.Inflate(nil, b); err != nil {
		return b, nil, err
	}
	if edit != nil {
		if raw, err = edit.Object(nil, raw); err != nil {
			return b, nil, err
		}
	}
	o, err := v.codec(gr).Encode(raw, nil, 0)
	if err != nil {
		return b, nil, err
	}
	return o.Body(), raw, nil
}

// State is Record for the ledger's state of an object of the resource.
func (v *Reviser) State(gr schema.GroupResource, value []byte) (revised []byte, changed bool, err error) {
	codec := v.codec(gr)
	o, err := codec.Decode(value)
	if err != nil {
		return nil, false, err
	}
	raw, err := o.AppendJSON(nil)
	if err != nil {
		return nil, false, err
	}
	edited, err := v.Object(gr, o.GetNamespace(), raw)
	if err != nil {
		return nil, false, err
	}
	if !v.dicts.Retired(o.Body().Dict) && bytes.Equal(raw, edited) {
		return value, false, nil
	}
	fresh, err := codec.Encode(edited, nil, 0)
	if err != nil {
		return nil, false, err
	}
	fresh.RecordedAs(o.Sequence())
	return fresh.AppendBinary(nil), true, nil
}

// Object returns the JSON of an object of the resource with the table's edits.
func (v *Reviser) Object(gr schema.GroupResource, namespace string, raw []byte) ([]byte, error) {
	if v.table == nil {
		return raw, nil
	}
	rules := v.table.of(gr.Group, gr.Resource, namespace)
	if rules == nil {
		return raw, nil
	}
	return rules.Append(nil, raw)
}

func (v *Reviser) codec(gr schema.GroupResource) *compact.Codec {
	c := v.codecs[gr]
	if c == nil {
		c = compact.NewCodecFor(v.dicts, gr.String())
		v.codecs[gr] = c
	}
	return c
}

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

func (e editor) Part(dst, raw []byte) ([]byte, error) {
	dst, _, err := e.AppendAt(dst, e.namespace, e.name, nil, raw)
	return dst, err
}

func (e editor) Patch(patch, before, after []byte) ([]byte, bool) {
	if before != nil && after != nil {
		patch, err := jsonpatch.Diff(before, after)
		return patch, err == nil
	}
	return e.editPatch(patch)
}

// chain applies edits in sequence.
type chain []record.Edit

func (c chain) Object(dst, raw []byte) ([]byte, error) { return c.append(dst, raw, record.Edit.Object) }

func (c chain) Part(dst, raw []byte) ([]byte, error) { return c.append(dst, raw, record.Edit.Part) }

func (c chain) append(dst, raw []byte, edit func(e record.Edit, dst, raw []byte) ([]byte, error)) ([]byte, error) {
	for _, e := range c {
		edited, err := edit(e, nil, raw)
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
