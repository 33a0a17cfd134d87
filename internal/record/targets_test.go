package record

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
)

func sample() *Record {
	return &Record{
		Event: event.Event{
			ID: "00ff", Type: event.Updated, Time: time.Unix(1_800_000_000, 5).UTC(),
			Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Namespace: "a", Name: "p", UID: "u", ResourceVersion: "7",
		},
		Patch: []byte(`[]`),
		Targets: []Target{
			{Sink: "archive", Flags: Object | Patch, Routes: "all,blue"},
			{Sink: "ops", Flags: Flags(0).WithSelection(event.Entered)},
		},
	}
}

func TestTargetsAreStored(t *testing.T) {
	want := sample()
	payload, err := Append(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(payload)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Targets, want.Targets) {
		t.Errorf("got %+v\nwant %+v", got.Targets, want.Targets)
	}
	if s := got.Targets[1].Flags.Selection(); s != event.Entered {
		t.Errorf("selection %q", s)
	}
}

// TestRecordsWithoutTargets are those that no route takes.
func TestRecordsWithoutTargets(t *testing.T) {
	r := sample()
	r.Targets = nil
	payload, err := Append(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Decode(payload); err != nil || got.Targets != nil {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestDamagedRecords cuts a record at every place, and turns every byte over: it
// decodes to an error or to something else, and never panics or takes much memory.
func TestDamagedRecords(t *testing.T) {
	payload, err := Append(nil, sample())
	if err != nil {
		t.Fatal(err)
	}
	for n := range payload {
		if _, err := Decode(payload[:n]); !errors.Is(err, ErrMalformed) {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
		damaged := append([]byte(nil), payload...)
		damaged[n] ^= 0xff
		if _, err := Decode(damaged); err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("byte %d turned over: %v", n, err)
		}
	}
}
