package commit

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
)

// BenchmarkUpdate commits updates of 1,000 pods in groups, without a disk.
func BenchmarkUpdate(b *testing.B) {
	when := `object.status.phase == "Pending"`
	for name, spec := range map[string]route.Spec{
		"free":              {},
		"free with patch":   {Payload: []string{"object", "patch"}},
		"throttle":          {Throttle: time.Hour},
		"throttle to patch": {Throttle: time.Hour, Payload: []string{"object", "patch"}},
		"when":              {When: when},
		"for":               {When: when, For: time.Hour},
	} {
		b.Run(name, func(b *testing.B) { benchmarkUpdate(b, spec) })
	}
}

func benchmarkUpdate(b *testing.B, spec route.Spec) {
	st, err := store.Open("store", store.Options{FS: vfs.NewMem()})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	dicts, err := ledger.LoadDictionaries(st)
	if err != nil {
		b.Fatal(err)
	}
	c, err := New(Config{
		Cluster: "test", Store: st, Ledger: ledger.New(st, dicts), Dictionaries: dicts,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Now: time.Now, Running: func() []*Feed { return nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := st.EnsureSink("sink", store.FromNow); err != nil {
		b.Fatal(err)
	}
	spec.Name, spec.Sinks = "r", []string{"sink"}
	router, err := route.Compile([]route.Spec{spec})
	if err != nil {
		b.Fatal(err)
	}
	c.adopt(router)
	w := plan.Watch{Name: "w", Resources: []string{"pods"}, History: true}
	id, err := IdentityOf(&w, pods, "", "", redactKey)
	if err != nil {
		b.Fatal(err)
	}
	s, codec := c.NewFeed(id, NewWatchRef(&w)), compact.NewCodecFor(dicts, "pods")
	const objects, size = 1000, 50
	var states [2][objects]*compact.Object
	for i := range objects {
		for j := range states {
			states[j][i], err = codec.Encode(fmt.Appendf(nil,
				`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"pod-%d","uid":"u-%d","resourceVersion":"%d","annotations":{"a":%q}},"status":{"phase":"Pending"}}`,
				i, i, j, strings.Repeat("five kilobytes ", 330)), nil, 0)
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	g := newGroup(c)
	for i := range objects {
		g.add(&objectSeen{sighting: sighting{feed: s, obj: states[0][i], at: time.Now()}, initial: true})
	}
	if err := g.commit(false); err != nil {
		b.Fatal(err)
	}
	n := objects
	for b.Loop() {
		old, obj := states[(n/objects+1)%2][n%objects], states[n/objects%2][n%objects]
		g.add(&objectSeen{sighting: sighting{feed: s, obj: obj, at: time.Now(), rewound: true}, old: old})
		if n++; n%size == 0 {
			if err := g.commit(false); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.StopTimer()
	if err := g.commit(false); err != nil {
		b.Fatal(err)
	}
}
