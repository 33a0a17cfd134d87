package body

import (
	"errors"
	"fmt"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/internal/celjson"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/event"
)

// maxBytes is the size of the largest body.
const maxBytes = 4 << 20

// evaluationLimits allow about half a second.
func evaluationLimits() celexpr.Limits { return celexpr.Limits{Cost: 5_000_000, Memory: 16 << 20} }

// contentTypeText is the default of bodies that are text.
const contentTypeText = "text/plain; charset=utf-8"

// Body is a compiled expression. It is safe for concurrent use.
type Body struct {
	ast         *cel.Ast
	program     cel.Program
	list        bool // it reads the list `events`
	reads       record.Flags
	text        string
	contentType string // of every body; empty: by the type of the value
}

// Compile compiles an expression or returns all its faults.
func Compile(text, contentType string) (*Body, []celexpr.Fault) {
	return compileWithin(evaluationLimits(), text, contentType)
}

func compileWithin(limits celexpr.Limits, text, contentType string) (*Body, []celexpr.Fault) {
	d, err := ordinary()
	if err != nil {
		return nil, []celexpr.Fault{{Line: 1, Column: 1, Msg: err.Error()}}
	}
	b := &Body{text: text, contentType: contentType, list: readsList(d.single, text)}
	env := d.single
	if b.list {
		env = d.list
	}
	ast, faults := celexpr.Compile(env, text)
	if faults != nil {
		return nil, faults
	}
	if fault := sendable(ast); fault != nil {
		return nil, []celexpr.Fault{*fault}
	}
	b.ast, b.reads = ast, reads(ast)
	opts := append(limits.Options(ast), d.guards)
	if b.program, err = env.Program(ast, opts...); err != nil {
		return nil, []celexpr.Fault{{Line: 1, Column: 1, Msg: err.Error()}}
	}
	return b, nil
}

// Reads are the parts of an event that the expression reads.
func (b *Body) Reads() record.Flags { return b.reads }

// Source returns what the body was compiled from.
func (b *Body) Source() (text, contentType string) { return b.text, b.contentType }

// ReadsList reports whether the expression makes one body of several events.
func (b *Body) ReadsList() bool { return b.list }

// Render sets the event's body and content type. The event is not shared yet. Not send:
// the expression leaves the event out.
func (b *Body) Render(e *event.Event) (send bool, err error) {
	e.Body, e.ContentType, err = b.Join([]*event.Event{e})
	return e.Body != nil, err
}

var activations = sync.Pool{New: func() any { return &activation{} }}

// Join makes the body of a message with these events, of one unless ReadsList. Nil without
// an error: there is nothing to send.
func (b *Body) Join(events []*event.Event) (body []byte, contentType string, err error) {
	a, _ := activations.Get().(*activation)
	defer func() {
		*a = activation{}
		activations.Put(a)
	}()
	a.set(events)
	v, err := celexpr.Eval(b.program, a)
	if err != nil {
		return nil, "", celexpr.Failure(b.ast, err)
	}
	return b.encode(v)
}

func (b *Body) encode(v ref.Val) (body []byte, contentType string, err error) {
	if o, ok := v.(*types.Optional); ok {
		if v = types.NullValue; o.HasValue() {
			v = o.GetValue()
		}
	}
	if v == types.NullValue {
		return nil, "", nil
	}
	if text, ok := v.(types.String); ok {
		contentType = contentTypeText
		body = []byte(text)
		if len(body) > maxBytes {
			err = celjson.ErrTooLarge
		}
	} else {
		contentType = event.ContentTypeJSON
		body, err = celjson.AppendJSON(make([]byte, 0, 512), v, maxBytes)
	}
	if errors.Is(err, celjson.ErrTooLarge) {
		err = fmt.Errorf("the body is larger than %d bytes", maxBytes)
	}
	if err != nil {
		return nil, "", celexpr.Failure(b.ast, err)
	}
	if b.contentType != "" {
		contentType = b.contentType
	}
	if body == nil {
		body = []byte{} // an empty text is a body, too
	}
	return body, contentType, nil
}
