package retrace

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// BenchmarkWhen tests a record of an object of 4 kB with an expression that reads its status.
func BenchmarkWhen(b *testing.B) {
	dicts := compact.NewDictionaries(nil)
	codec := compact.NewCodec(dicts)
	var object *compact.Object
	for i := range 100 { // the codec makes a dictionary of the first ones
		var env strings.Builder
		for k := range 60 {
			fmt.Fprintf(&env, `{"name":"VARIABLE_%d","value":"the value %d of %d"},`, k, k*i, i)
		}
		var err error
		object, err = codec.Encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"pod-%d","uid":"u","resourceVersion":"%d"},"spec":{"containers":[{"name":"c","env":[%s{}]}]},"status":{"phase":"Running"}}`, i, i, env.String()), nil, 0)
		if err != nil {
			b.Fatal(err)
		}
	}
	r := New(nil, &record.Inflater{Dictionaries: dicts}, func() *redact.Table { return nil })
	test, err := r.When(`object.status.phase == "Failed"`)
	if err != nil {
		b.Fatal(err)
	}
	rec := &record.Record{Event: event.Event{Type: event.Updated, Time: time.Now(), Resource: event.Resource{Version: "v1", Resource: "pods"}}, Object: object.Body()}
	for b.Loop() {
		if ok, err := test.Accepts(rec); ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

// TestRejects: the verdict on a headline is that of its own texts, which are valid during the call
// only, however many came before.
func TestRejects(t *testing.T) {
	r := New(nil, &record.Inflater{}, func() *redact.Table { return nil })
	test, err := r.When(`metadata.name == "pod-7" && event.changedBy.manager != "kubelet"`)
	if err != nil {
		t.Fatal(err)
	}
	var buf []byte
	for i := range 3 * maxHeads {
		n, manager := i%(maxHeads+maxHeads/2), []string{"kubelet", "kubectl", ""}[i%3]
		buf = fmt.Appendf(buf[:0], "pod-%d", n)
		row := headline.Row{Type: event.Updated, Name: unsafe.String(&buf[0], len(buf)), Manager: manager}
		if got, want := test.Rejects(&row), n != 7 || manager == "kubelet"; got != want && manager != "" {
			t.Fatalf("%s by %q is rejected: %t", row.Name, manager, got)
		}
	}
}
