package pipeline

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/outbox"
)

// TestFirstStartUnderChurn changes and deletes pods while the first list of them is
// being committed.
func TestFirstStartUnderChurn(t *testing.T) {
	api, names := podServer(t, 1500)
	l := runLive(t, t.TempDir(), outbox.Options{}, api, served{pods})
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
	l.apply(l.state(podWatch()))
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

// TestColdStartFindsDeletions starts a watch without a version to resume from, over
// the states of an earlier life: what is gone is deleted once, in groups that let
// other changes through, and a stop in between neither repeats nor loses anything.
func TestColdStartFindsDeletions(t *testing.T) {
	api, names := podServer(t, 3000)
	dir := t.TempDir()
	l := runLive(t, dir, outbox.Options{}, api, served{pods})
	l.apply(l.state(podWatch()))
	l.synced()
	l.stop()
	forgetCheckpoint(t, dir, "pods#")

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
		l = runLive(t, dir, outbox.Options{}, api, served{pods})
		l.apply(l.state(podWatch()))
		eventually(t, fmt.Sprintf("%d deletions", stopAt), func() bool { return deleted(l) >= stopAt })
		l.stop()
	}
	l = runLive(t, dir, outbox.Options{}, api, served{pods})
	l.apply(l.state(podWatch()))
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
}

func forgetCheckpoint(t *testing.T, dir, id string) {
	t.Helper()
	store, err := outbox.Open(dir, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := store.NewBatch()
	b.DeleteMeta(ledger.CheckpointMeta(id))
	if err := store.Commit(b); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}
