package record

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

var resource = event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}

// samples are one record of each shape.
func samples() map[string]*Record {
	at := time.Unix(1_800_000_000, 123).UTC()
	id := event.ID("test", event.Updated, resource, "", "uid", "7")
	body := func(s string) compact.Body { return compact.Body{Dict: 1 << 31, RawLen: 900, Data: []byte(s)} }
	return map[string]*Record{
		"update": {
			Event: event.Event{
				ID: id, Type: event.Updated, Time: at, Resource: resource,
				Namespace: "prod", Name: "web", UID: "uid", ResourceVersion: "7", Repair: true,
				ChangedBy: &event.ChangedBy{Manager: "kubectl-edit", Operation: "Update", Subresource: "status", Time: at.Truncate(time.Second)},
			},
			Object: body("after"), OldObject: body("before"), Patch: []byte(`[{"op":"add"}]`),
			Enrichment: &Enrichment{
				Owner: []byte(`{"metadata":{}}`), Incomplete: true,
				Involved: &Involved{Resource: resource, Namespace: "prod", Name: "web", Edits: 1 << 63, Object: []byte(`{"metadata":{"uid":"u"}}`)},
			},
			Targets: []Target{{Sink: "a", Flags: Object | Patch, Routes: "one,two"}, {Sink: "b"}},
		},
		"lasting": {
			Event: event.Event{
				ID: id, Type: event.Updated, Time: at, Resource: resource, Name: "web", UID: "uid", ResourceVersion: "7",
				Coalesced: 300, For: &event.For{Since: at.Add(-time.Hour)},
			},
			Object: body("now"), Status: true, Blind: true,
		},
		"deletion": {
			Event:  event.Event{ID: id, Type: event.Deleted, Time: at, Resource: resource, Name: "web", UID: "uid", ResourceVersion: "8", FinalStateUnknown: true},
			Object: body("last"),
		},
		"gap": {
			Event: event.Event{
				ID: id, Type: event.Gap, Time: at, Resource: resource,
				Gap: &event.GapData{Watch: "w", Resource: resource, FromResourceVersion: "1", ToResourceVersion: "9", Cause: "expired", From: at, To: at},
			},
		},
	}
}

func TestRecordsSurvive(t *testing.T) {
	for name, want := range samples() {
		payload, err := Append([]byte("before"), want)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := Decode(bytes.TrimPrefix(payload, []byte("before")))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// Empty and absent are one.
		if diff := cmp.Diff(want, got, cmp.Transformer("bytes", func(b []byte) string { return string(b) })); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

// A record that is cut anywhere is an error, not a shorter event.
func TestCutRecordsAreRefused(t *testing.T) {
	for name, r := range samples() {
		payload, err := Append(nil, r)
		if err != nil {
			t.Fatal(err)
		}
		for n := range payload {
			if _, err := Decode(payload[:n:n]); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%s: %d of %d bytes decode, error %v", name, n, len(payload), err)
			}
		}
		if _, err := Decode(append(payload, 0)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: a byte too many decodes, error %v", name, err)
		}
	}
}

func TestUnknownVersion(t *testing.T) {
	if _, err := Decode([]byte{99, 0, 0}); !errors.Is(err, ErrMalformed) {
		t.Errorf("error is %v", err)
	}
}

func TestIDMustBeHexadecimal(t *testing.T) {
	if _, err := Append(nil, &Record{Event: event.Event{ID: "no"}}); err == nil {
		t.Error("an id that is not hexadecimal is taken")
	}
}

func TestFlagsCarryTheSelection(t *testing.T) {
	for _, s := range []event.Selection{event.Inside, event.Entered, event.Left, event.Unknown} {
		f := (Object | Replay).WithSelection(event.Left).WithSelection(s)
		if f.Selection() != s || f&Object == 0 || f&Replay == 0 || f&Patch != 0 {
			t.Errorf("%q: flags %b", s, f)
		}
	}
}

// A sink gets the parts that it asked for.
func TestInflater(t *testing.T) {
	dicts := compact.NewDictionaries(nil)
	codec := compact.NewCodec(dicts)
	object := func(version string) *compact.Object {
		o, err := codec.Encode([]byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","uid":"u","resourceVersion":"`+version+`"}}`), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	r := samples()["update"]
	r.Object, r.OldObject = object("7").Body(), object("6").Body()
	payload, err := Append(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	in := &Inflater{Cluster: "test", Dictionaries: dicts}
	e, err := in.Event(42, Object.WithSelection(event.Entered)|Replay, payload, "")
	if err != nil {
		t.Fatal(err)
	}
	if e.Sequence != 42 || e.Cluster != "test" || e.Selection != event.Entered || !e.Replay {
		t.Errorf("event is %+v", e)
	}
	if !bytes.Contains(e.Object, []byte(`"resourceVersion":"7"`)) || e.OldObject != nil || e.Patch != nil {
		t.Errorf("parts are %s, %s, %s; only the object was asked for", e.Object, e.OldObject, e.Patch)
	}
	if e, err = in.Event(42, OldObject|Patch, payload, ""); err != nil {
		t.Fatal(err)
	}
	if e.Object != nil || !bytes.Contains(e.OldObject, []byte(`"resourceVersion":"6"`)) || string(e.Patch) != `[{"op":"add"}]` {
		t.Errorf("parts are %s, %s, %s; the object was not asked for", e.Object, e.OldObject, e.Patch)
	}
}

// The summary is made from what the sink may see of the record, whatever else the
// sink asks for.
func TestSummary(t *testing.T) {
	dicts := compact.NewDictionaries(nil)
	codec := compact.NewCodec(dicts)
	object := func(spec string) compact.Body {
		o, err := codec.Encode([]byte(`{"apiVersion":"v1","kind":"Widget","metadata":{"name":"web","uid":"u","resourceVersion":"1"},"spec":`+spec+`}`), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		return o.Body()
	}
	const patch = `[{"op":"replace","path":"/spec/a","value":2},{"op":"replace","path":"/spec/b","value":"canary"}]`
	for _, tc := range []struct {
		name   string
		change func(r *Record)
		edit   Edit
		want   string
	}{
		{"both states", func(*Record) {}, nil, "a 1 -> 2, b x -> canary"},
		{"edited states", func(*Record) {}, hidden{}, "a 1 -> 2"},
		{"the patch alone", func(r *Record) { r.OldObject = compact.Body{} }, nil, "a set to 2, b set to canary"},
		{"an edited patch", func(r *Record) { r.OldObject = compact.Body{} }, hidden{}, "no visible change"},
		{"nothing", func(r *Record) { r.OldObject, r.Patch = compact.Body{}, nil }, nil, ""},
		{"an addition", func(r *Record) { r.Event.Type = event.Added }, nil, "added"},
		{"a gap", func(r *Record) { r.Event.Type, r.Event.Gap = event.Gap, &event.GapData{} }, nil, ""},
	} {
		r := samples()["update"]
		r.Object, r.OldObject, r.Patch = object(`{"a":2,"b":"canary"}`), object(`{"a":1,"b":"x"}`), []byte(patch)
		tc.change(r)
		payload, err := Append(nil, r)
		if err != nil {
			t.Fatal(err)
		}
		in := &Inflater{Dictionaries: dicts, Edit: func(*Record, string) Edit { return tc.edit }}
		for _, others := range []Flags{0, Object, OldObject | Patch, Object | OldObject | Patch} {
			e, err := in.Event(1, Summary|others, payload, "sink")
			if err != nil {
				t.Fatal(err)
			}
			if e.Summary != tc.want {
				t.Errorf("%s: with the parts %b the summary is %q, want %q", tc.name, others, e.Summary, tc.want)
			}
			plain, err := in.Event(1, others, payload, "sink")
			if err != nil {
				t.Fatal(err)
			}
			if e.Summary = ""; !reflect.DeepEqual(e, plain) {
				t.Errorf("%s: with a summary the event is %+v, without it %+v", tc.name, e, plain)
			}
		}
	}
}

// hidden hides the value of spec.b.
type hidden struct{}

func (hidden) Object(dst, raw []byte) ([]byte, error) {
	return append(dst, strings.NewReplacer(`"b":"canary"`, `"b":"-"`, `"b":"x"`, `"b":"-"`).Replace(string(raw))...), nil
}

func (h hidden) Part(dst, raw []byte) ([]byte, error) { return h.Object(dst, raw) }

func (hidden) Patch(_, _, _ []byte) ([]byte, bool) { return []byte("[]"), true }

func FuzzDecode(f *testing.F) {
	for _, r := range samples() {
		payload, err := Append(nil, r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		r, err := Decode(payload)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("error %v is not ErrMalformed", err)
			}
			return
		}
		if r.Event.Gap == nil {
			if _, err := Append(nil, r); err != nil {
				t.Errorf("what decodes doesn't encode: %v", err)
			}
		}
	})
}
