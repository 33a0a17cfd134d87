package history_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
)

// BenchmarkMillionWhen searches a store of a million records with expressions, a page after the
// other, until the first hit: of those without one, or with an old one, until the end or ten seconds.
func BenchmarkMillionWhen(b *testing.B) {
	st, err := store.Open(b.TempDir(), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	list := strings.TrimSuffix(strings.Repeat("1,", 100), ",")
	dicts := compact.NewDictionaries(nil)
	history.Fill(b, st, dicts, 5000, 1_000_000, fmt.Sprintf(`,"list":[%s],"text":%q`, list, strings.Repeat("a", 2000)))
	history.AwaitQuiet(b)
	in := &record.Inflater{Dictionaries: dicts}
	r := history.New(st, ledger.New(st, dicts), in)
	compiler := retrace.New(st, in, func() *redact.Table { return nil })
	for _, tc := range []struct{ name, when string }{
		{"newest", `object.spec.a >= 0`},
		{"one of a thousand", `object.spec.a % 1000 == 0`},
		{"none", `object.spec.a < 0`},
		{"none, by its kind", `object.status.phase == "Failed"`},
		{"none, by its name", `metadata.name == "x" && object.spec.a >= 0`},
		{"none, of both states", `object.spec.a <= oldObject.spec.a`},
		{"the oldest", `object.spec.a == 0`},
		{"a pattern", `object.spec.text.matches("^(a|b)*c$")`},
		{"a hostile pattern", `object.spec.text.matches("(?:a?){500}a{500}b$")`},
		{"a loop", `object.spec.list.exists(x, x < 0)`},
		{"loops in loops", `object.spec.list.exists(x, object.spec.list.exists(y, x + y < 0))`},
		{"loops above the limit", `object.spec.list.exists(x, object.spec.list.exists(y, object.spec.list.exists(z, x + y + z < 0)))`},
		{"a large value", `object.spec.list.map(x, object.spec.text + string(x)).size() < 0`},
	} {
		b.Run(tc.name, func(b *testing.B) {
			test, err := compiler.When(tc.when)
			if err != nil {
				b.Fatal(err)
			}
			var pages, scanned, failed int
			var longest time.Duration
			began, n := history.CPU(b), 0
			for ; b.Loop(); n++ {
				q := history.Query{Limit: 100, Test: test}
				for searching := time.Now(); ; {
					at := time.Now()
					p, err := r.Query(b.Context(), q)
					if err != nil {
						b.Fatal(err)
					}
					longest = max(longest, time.Since(at))
					pages, scanned, failed = pages+1, scanned+p.Scanned, failed+p.Failed
					if q.Continue = p.Continue; q.Continue == "" || len(p.Items) > 0 || time.Since(searching) > 10*time.Second {
						break
					}
				}
			}
			each := func(v float64, unit string) { b.ReportMetric(v/float64(n), unit) }
			each(float64((history.CPU(b) - began).Milliseconds()), "cpu-ms/op")
			each(float64(pages), "pages/op")
			each(float64(scanned), "records/op")
			each(float64(failed), "failed/op")
			b.ReportMetric(float64(longest.Milliseconds()), "longest-page-ms")
		})
	}
}
