package route

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
)

// evaluation is the look that expressions and `changed` paths take at one change.
// It is made for one change at a time, so that what one route has made it read the
// next finds ready, and used by one goroutine.
type evaluation struct {
	change    *Change
	object    document
	oldObject document

	metadata, event, resource view

	// targets is, for each of the router's sinks, the place among the targets that
	// it has got, counted from 1; 0 is none.
	targets []int
}

var _ cel.Activation = (*evaluation)(nil)

func newEvaluation(views *views) *evaluation {
	e := &evaluation{}
	e.metadata = view{of: views.metadata, eval: e}
	e.event = view{of: views.event, eval: e}
	e.resource = view{of: views.resource, eval: e}
	return e
}

func (e *evaluation) reset(c *Change, sinks int) {
	if len(e.targets) != sinks {
		e.targets = make([]int, sinks)
	}
	clear(e.targets)
	e.change = c
	e.object.reset(c.object())
	e.oldObject.reset(c.oldObject())
}

func (e *evaluation) release() {
	e.change = nil
	e.object.release()
	e.oldObject.release()
}

// ResolveName returns a variable.
func (e *evaluation) ResolveName(name string) (any, bool) {
	switch name {
	case "object":
		return e.object.variable(), true
	case "oldObject":
		return e.oldObject.variable(), true
	case "metadata":
		return &e.metadata, true
	case "event":
		return &e.event, true
	case "resource":
		return &e.resource, true
	}
	return nil, false
}

// Parent is none.
func (e *evaluation) Parent() cel.Activation { return nil }

// variable is the document as an expression sees it.
func (d *document) variable() any {
	if d.obj == nil {
		return types.NullValue
	}
	return &d.object
}
