package redact

import (
	"errors"

	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/compact"
)

// editor is a compiled set of edits.
type editor struct{ *compact.Editor }

var (
	_ record.Edit = editor{}
	_ record.Edit = chain{}
)

var errNoEditor = errors.New("the edits of the routes do not go together")

// Object implements record.Edit.
func (e editor) Object(dst, raw []byte) ([]byte, error) {
	if e.Editor == nil {
		return dst, errNoEditor
	}
	return e.Append(dst, raw)
}

// Patch implements record.Edit.
func (e editor) Patch(patch, before, after []byte) ([]byte, bool) {
	if before != nil && after != nil {
		patch, err := route.Patch(before, after)
		return patch, err == nil
	}
	if e.Editor == nil {
		return nil, false
	}
	return route.EditPatch(e.Editor, patch)
}

// chain is one set of edits after another.
type chain [2]editor

// Object implements record.Edit.
func (c chain) Object(dst, raw []byte) ([]byte, error) {
	first, err := c[0].Object(nil, raw)
	if err != nil {
		return dst, err
	}
	return c[1].Object(dst, first)
}

// Patch implements record.Edit.
func (c chain) Patch(patch, before, after []byte) ([]byte, bool) {
	patch, ok := c[0].Patch(patch, before, after)
	if !ok || before != nil && after != nil {
		return patch, ok
	}
	return c[1].Patch(patch, before, after)
}
