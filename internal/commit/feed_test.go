package commit

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/unseen"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// TestPathThatNoObjectHas: a path of drop or redact that none of many objects had is logged once. One
// that an object had is not, nor one that is dropped by default.
func TestPathThatNoObjectHas(t *testing.T) {
	w := committest.PodWatch()
	w.Edits.Drop = append(w.Edits.Drop, "spec.x")
	w.Edits.Redact = []string{"spec.typo"}
	r := newRig(t, disk(), w)
	var out bytes.Buffer
	r.c.log = slog.New(slog.NewTextHandler(&out, nil))
	s := r.feed(pods)
	for n := range 3 * unseen.Enough {
		if n == unseen.Enough && out.Len() > 0 {
			t.Fatalf("before that many objects: %s", &out)
		}
		if _, err := s.Edit(nil, []byte(`{"metadata":{"name":"a"},"spec":{"x":1}}`), new(rawjson.Change)); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), "key=redact field=spec.typo objects=100") {
		t.Errorf("logged: %s", &out)
	}
	if n := s.Edited(); n != 3*unseen.Enough {
		t.Errorf("%d objects are edited", n)
	}
}

// TestPathThatRecordedStatesLack: recorded states of another form, which may have left the path out, say nothing about it.
func TestPathThatRecordedStatesLack(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(func(w *plan.Watch) { w.Edits.Redact = []string{"spec.a"} }))
	var out bytes.Buffer
	r.c.log = slog.New(slog.NewTextHandler(&out, nil))
	s := r.feed(pods)
	s.recordedForm = "v1"
	for range 2 * unseen.Enough {
		if _, err := r.c.formed(s, &s.codec, r.Object("a", "u", "1")); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Edited(); n != 0 || out.Len() > 0 {
		t.Errorf("%d objects are edited; logged: %s", n, &out)
	}
}
