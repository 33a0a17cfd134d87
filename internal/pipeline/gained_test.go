package pipeline

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
)

// TestStopDuringSnapshot ends watcherd while a watch that came to a running source is
// given the recorded objects: it gets the rest after the next start, and none twice.
func TestStopDuringSnapshot(t *testing.T) {
	for name, killed := range map[string]bool{"stopped": false, "killed": true} {
		t.Run(name, func(t *testing.T) {
			api, names := podServer(t, 3000)
			fs := vfs.NewCrashableMem()
			l := runLive(t, "store", store.Options{FS: fs}, api, served{pods})
			q, err := l.store.EnsureSink("x", store.FromNow)
			if err != nil {
				t.Fatal(err)
			}
			second := committest.PodWatch(func(w *plan.Watch) { w.Name = "second" })
			l.apply(l.state(committest.PodWatch()))
			l.synced()
			l.apply(l.routed(second, committest.PodWatch()))
			eventually(t, "the first objects", func() bool { return q.Stats().Length > 0 })
			if killed {
				fs = fs.CrashClone(vfs.CrashCloneCfg{})
			}
			l.stop()
			l = runLive(t, "store", store.Options{FS: fs}, api, served{pods})
			if q, err = l.store.Queue("x"); err != nil {
				t.Fatal(err)
			}
			l.apply(l.routed(second, committest.PodWatch()))
			eventually(t, "all objects", func() bool { return q.Stats().Length >= int64(len(names)) })
			l.m.committer.Flush()
			h := l.queued()
			for _, n := range names {
				if h.types(n) != "sync" {
					t.Fatalf("%s: %q", n, h[n])
				}
			}
			left := 0
			if err := l.store.ScanMeta("snapshot/", func(string, []byte) error { left++; return nil }); err != nil || left > 0 {
				t.Errorf("%d finished snapshots are remembered, %v", left, err)
			}
		})
	}
}
