package retrace

import (
	"fmt"
	"strings"
	"testing"
	"time"

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
