// Package committest has what the tests of the committer share with those of the pipeline around it.
package committest

import (
	"fmt"
	"testing"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Rig makes objects, and reads what was recorded of them. It is for one goroutine at a time.
type Rig struct {
	*testing.T
	Store *store.Store
	In    *record.Inflater
	Codec *compact.Codec
	Read  uint64 // sequence of the last event looked at

	codecs map[string]*compact.Codec // of edited objects, by partition
}

// New makes a rig of a store, whose records it reads by in.
func New(t *testing.T, st *store.Store, in *record.Inflater) *Rig {
	return &Rig{T: t, Store: st, In: in, Codec: compact.NewCodec(in.Dictionaries), codecs: map[string]*compact.Codec{}}
}

// Object makes an object of namespace ns, with a label tier.
func (r *Rig) Object(name, uid, version string, labels ...string) *compact.Object {
	r.Helper()
	label := ""
	if len(labels) > 0 {
		label = fmt.Sprintf(`,"labels":{"tier":%q}`, labels[0])
	}
	o, err := r.Codec.Encode(fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":%q,"uid":%q,"resourceVersion":%q%s}}`, name, uid, version, label), nil, 0)
	if err != nil {
		r.Fatal(err)
	}
	return o
}

// Edited is an object of a partition and resource as an informer with the edit would hold it.
func (r *Rig) Edited(partition, resource string, edit func(dst, raw []byte, by *rawjson.Change) ([]byte, error), raw string) *compact.Object {
	r.Helper()
	var by rawjson.Change
	out, err := edit(nil, []byte(raw), &by)
	if err != nil {
		r.Fatal(err)
	}
	meta, err := rawjson.Scan(out)
	if err != nil {
		r.Fatal(err)
	}
	meta.Change = &by
	codec := r.codecs[partition]
	if codec == nil {
		codec = compact.NewCodecFor(r.In.Dictionaries, resource)
		r.codecs[partition] = codec
	}
	o, err := codec.Encode(out, &meta, 0)
	if err != nil {
		r.Fatal(err)
	}
	return o
}

// Events are the events since the last call.
func (r *Rig) Events() []*event.Event {
	r.Helper()
	items, err := r.Store.ReadLog(r.Read, 10_000)
	if err != nil {
		r.Fatal(err)
	}
	var list []*event.Event
	for _, it := range items {
		r.Read = it.Sequence
		if rec, err := record.Decode(it.Payload); err == nil && rec.Rerecorded {
			continue
		}
		e, err := r.In.Event(it.Sequence, record.Object|record.OldObject, it.Payload, "")
		if err != nil {
			r.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// Expect compares the events since the last call with lines of
// "type name uid version", in order.
func (r *Rig) Expect(want ...string) []*event.Event {
	r.Helper()
	events := r.Events()
	var lines []string
	for _, e := range events {
		lines = append(lines, fmt.Sprintf("%s %s %s %s", e.Type, e.Name, e.UID, e.ResourceVersion))
	}
	if fmt.Sprint(lines) != fmt.Sprint(want) {
		r.Fatalf("events are\n%q, want\n%q", lines, want)
	}
	return events
}

// PodWatch is a watch of the pods, with the default edits.
func PodWatch(edit ...func(*plan.Watch)) plan.Watch {
	w := plan.Watch{Name: "w", Resources: []string{"pods"}, Snapshot: true, History: true, Edits: redact.DefaultEdits()}
	for _, f := range edit {
		f(&w)
	}
	return w
}

// ProdPods has a watch select the namespaces with env=prod.
func ProdPods(w *plan.Watch) {
	w.Selection.Namespaces = selector.Namespaces{Selector: "env=prod"}
	filter, err := w.Selection.Filter()
	if err != nil {
		panic(err)
	}
	w.Filter = filter
}
