package pipeline

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/store"
)

// TestFirstStartUnderChurn changes and deletes pods while the first list of them is
// being committed.
func TestFirstStartUnderChurn(t *testing.T) {
	api, names := podServer(t, 1500)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	busy := names[:300]
	var once sync.Once
	changed := make(chan struct{})
	api.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == podPath && r.URL.Query().Get("watch") == "true" {
			once.Do(func() { // the first list is over
				for _, n := range busy {
					api.Put(podPath, "ns", n, phase("Succeeded"))
					api.Delete(podPath, "ns", n)
				}
				close(changed)
			})
		}
		return false
	})
	l.apply(l.state(committest.PodWatch()))
	<-changed
	l.caughtUp()
	l.synced()
	h := l.log()
	wrong := 0
	for _, n := range busy {
		if h.types(n) != "sync updated deleted" {
			if wrong++; wrong < 4 {
				t.Logf("%s: %q", n, h[n])
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d pods have a wrong history", wrong, len(busy))
	}
}

// TestColdStartFindsDeletions starts a watch with a list over the states of an earlier
// life, as there is no version to resume from or another list was cut short: what is gone
// is deleted once, and stops in between neither repeat nor lose anything.
func TestColdStartFindsDeletions(t *testing.T) {
	for name, spoil := range map[string]func(b *store.Batch, version string){
		"no checkpoint": func(b *store.Batch, _ string) { b.DeleteMeta(ledger.CheckpointMeta("pods#")) },
		"a list that was cut short": func(b *store.Batch, version string) {
			w := committest.PodWatch()
			b.PutMeta(ledger.CheckpointMeta("pods#"), ledger.Encode(ledger.Checkpoint{
				ResourceVersion: version, Synced: true, Form: formOf(t, &w, pods), Listing: &ledger.Listing{ResourceVersion: version},
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			api, names := podServer(t, 3000)
			dir := t.TempDir()
			l := runLive(t, dir, store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch()))
			l.synced()
			l.stop()
			between(t, dir, func(b *store.Batch) { spoil(b, api.Version()) })

			gone, left := names[:2500], names[2500:]
			api.Delete(podPath, "ns", gone...)
			api.Compact()
			deleted := func(l *live) (n int) {
				for _, lines := range l.log() {
					if len(lines) > 1 {
						n++
					}
				}
				return n
			}
			for _, stopAt := range []int{1, 1200, 2500} {
				l = runLive(t, dir, store.Options{}, api, served{pods})
				l.apply(l.state(committest.PodWatch()))
				eventually(t, fmt.Sprintf("%d deletions", stopAt), func() bool { return deleted(l) >= stopAt })
				l.stop()
			}
			l = runLive(t, dir, store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch()))
			l.caughtUp()
			h := l.log()
			for _, n := range gone {
				if h.types(n) != "sync deleted" {
					t.Fatalf("%s: %q", n, h[n])
				}
			}
			for _, n := range left {
				if h.types(n) != "sync" {
					t.Fatalf("%s: %q", n, h[n])
				}
			}
		})
	}
}

func forgetCheckpoint(t *testing.T, dir, id string) {
	t.Helper()
	between(t, dir, func(b *store.Batch) { b.DeleteMeta(ledger.CheckpointMeta(id)) })
}

// between changes what is in the store between two lives.
func between(t *testing.T, dir string, change func(*store.Batch)) {
	t.Helper()
	st, err := store.Open(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := st.NewBatch()
	change(b)
	if err := st.Commit(b); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}
