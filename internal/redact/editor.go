package redact

import (
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// editor is a compiled set of edits.
type editor struct{ *rawjson.Editor }

var (
	_ record.Edit = editor{}
	_ record.Edit = chain{}
)

// Object implements record.Edit.
func (e editor) Object(dst, raw []byte) ([]byte, error) { return e.Append(dst, raw) }

// Patch implements record.Edit.
func (e editor) Patch(patch, before, after []byte) ([]byte, bool) {
	if before != nil && after != nil {
		patch, err := route.Patch(before, after)
		return patch, err == nil
	}
	return route.EditPatch(e.Editor, patch)
}

// chain is one set of edits after another.
type chain []record.Edit

// Object implements record.Edit.
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

// Patch implements record.Edit.
func (c chain) Patch(patch, before, after []byte) (left []byte, ok bool) {
	for _, e := range c {
		if patch, ok = e.Patch(patch, before, after); !ok {
			return nil, false
		}
	}
	return patch, true
}
