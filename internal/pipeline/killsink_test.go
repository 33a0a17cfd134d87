package pipeline

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
)

// TestKilledWhileASinkComesAndGoes ends the machine at every sync while a sink leaves, returns and is purged.
func TestKilledWhileASinkComesAndGoes(t *testing.T) {
	both, one := []route.Spec{leadTo("all", "", "a", "b")}, []route.Spec{leadTo("all", "", "b")}
	slowBoth, slowOne := throttled("slow", "a", "b"), throttled("slow", "b")
	from := func(start string) func(*plan.Sink) { return func(s *plan.Sink) { s.StartFrom = start } }
	for _, tc := range []struct {
		name   string
		with   []route.Spec
		absent []route.Spec
		start  string
		purge  bool
	}{
		{"latest", both, one, plan.StartLatest, false},
		{"earliest", both, one, plan.StartEarliest, false},
		{"throttled", slowBoth, slowOne, plan.StartLatest, false},
		{"throttled, earliest", slowBoth, slowOne, plan.StartEarliest, false},
		{"purged", both, one, plan.StartLatest, true},
		{"purged, earliest", both, one, plan.StartEarliest, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			var mu sync.Mutex
			counting := false
			stage := ""
			type crash struct {
				stage string
				fs    *vfs.MemFS
			}
			var crashes []crash
			rng := rand.New(rand.NewPCG(1, 2))
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileSyncData {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				if counting {
					for _, percent := range []int{0, 100} {
						crashes = append(crashes, crash{stage, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})})
					}
				}
				return nil
			}))
			at := func(s string) {
				mu.Lock()
				defer mu.Unlock()
				stage, counting = s, true
			}
			check := func(l *life, when string) {
				l.Helper()
				var log []uint64
				items, err := l.Store.ReadLog(0, 1000)
				if err != nil {
					l.Fatal(err)
				}
				for _, it := range items {
					if r, err := record.Decode(it.Payload); err != nil {
						l.Fatal(err)
					} else if r.Event.Gap == nil && !r.Rerecorded {
						log = append(log, it.Sequence)
					}
				}
				for _, sink := range []string{"a", "b"} {
					q, err := l.Store.Queue(sink)
					if err != nil {
						l.Fatal(err)
					}
					if q.Filling() {
						l.Errorf("%s: %s is filling", when, sink)
					}
					queued, err := q.Read(0, 1000, 1<<20)
					if err != nil {
						l.Fatal(err)
					}
					var got []uint64
					for _, it := range queued {
						if record.Flags(it.Flags)&record.Replay == 0 {
							got = append(got, it.Sequence)
						}
					}
					want := log
					if tc.purge && sink == "a" && len(got) <= len(log) {
						want = log[len(log)-len(got):]
					}
					if tc.with[0].Throttle > 0 && sink == "b" {
						continue
					}
					if !slices.Equal(got, want) {
						l.Errorf("%s: sink %s has %d, want %d; %q", when, sink, got, want, l.queued(sink))
					}
				}
			}
			t.Run("run", func(t *testing.T) {
				l := lifeOn(t, "store", store.Options{FS: fs}, allServed)
				l.apply(tc.with)
				l.put("v", "1")
				l.put("v", "2")
				at("leaves")
				l.apply(tc.absent)
				at("away")
				l.put("w", "3")
				l.put("w", "4")
				if tc.purge {
					at("purged")
					if err := l.m.PurgeSink(l.Context(), "a"); err != nil {
						t.Fatal(err)
					}
				}
				at("returns")
				l.apply(tc.with, from(tc.start))
				at("back")
				check(l, "no crash")
				l.put("x", "5")
				at("leaves again")
				l.apply(tc.absent)
				at("end")
				mu.Lock()
				counting = false
				mu.Unlock()
			})
			t.Logf("%d crash points", len(crashes))
			for i, c := range crashes {
				for j, configs := range [][][]route.Spec{{tc.with}, {tc.absent, tc.with}} {
					t.Run(fmt.Sprintf("%d %s %d", i, c.stage, j), func(t *testing.T) {
						clone := c.fs
						if j == 0 {
							clone = c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
						}
						l := lifeOn(t, "store", store.Options{FS: clone}, allServed)
						for k, routes := range configs {
							l.apply(routes, from(tc.start))
							if k < len(configs)-1 {
								l.put("y", "6")
							}
						}
						if tc.with[0].Throttle > 0 { // what came while it was configured is held
							l.apply(tc.absent)
							l.apply(tc.with, from(tc.start))
						}
						check(l, c.stage)
					})
				}
			}
		})
	}
}
