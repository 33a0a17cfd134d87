package feed

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/pkg/event"
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

// TestColdStartFindsDeletions starts a watch with a list over the states of an earlier
// life, as there is no version to resume from or another list was cut short: what is gone
// is deleted once, and stops in between neither repeat nor lose anything.
func TestColdStartFindsDeletions(t *testing.T) {
	for name, spoil := range map[string]func(b *outbox.Batch, version string){
		"no checkpoint": func(b *outbox.Batch, _ string) { b.DeleteMeta(checkpointMeta("pods#")) },
		"a list that was cut short": func(b *outbox.Batch, version string) {
			w := podWatch()
			b.PutMeta(checkpointMeta("pods#"), encodeCheckpoint(checkpoint{
				ResourceVersion: version, Synced: true, Form: formOf(&w, pods.GVR), Listing: &listing{ResourceVersion: version},
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			api, names := podServer(t, 3000)
			dir := t.TempDir()
			l := runLive(t, dir, outbox.Options{}, api, served{pods})
			l.apply(l.state(podWatch()))
			l.synced()
			l.stop()
			between(t, dir, func(b *outbox.Batch) { spoil(b, api.Version()) })

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
		})
	}
}

// TestSweep compares a large ledger with a list: in bounded groups, with other changes
// between, everything is deleted that the list does not show and that is not newer.
func TestSweep(t *testing.T) {
	const n = 3 * maxGroup
	r := newRig(t, t.TempDir(), podWatch())
	former := r.source(pods)
	var states []change
	for i := range n {
		states = append(states, change{src: former, kind: objectAdded, obj: r.object(fmt.Sprintf("pod-%05d", i), "u", "2")})
	}
	states = append(states,
		change{src: former, kind: objectAdded, obj: r.object("a-listed", "u", "3")},
		change{src: former, kind: objectAdded, obj: r.object("a-newer", "u", "7")}, // than the list: another source recorded it
	)
	r.commit(states...)
	r.read = r.store.LogStats().Last

	s := r.source(pods)
	s.listed, s.first = map[uint64]struct{}{}, "5"
	r.group.add(change{src: s, kind: objectAdded, obj: r.object("a-listed", "u", "3"), initial: true})
	r.group.add(change{src: s, kind: sourceSynced})
	deleted := 0
	for i := 0; i == 0 || len(r.group.jobs) > 0; i++ {
		if i == 1 {
			r.group.add(change{src: s, kind: objectAdded, obj: r.object("z-new", "u", "8")})
		}
		if deleted < n && s.listed == nil {
			t.Errorf("the source counts as swept after %d deletions", deleted)
		}
		r.step()
		events := r.events()
		if len(events) > maxGroup+1 {
			t.Errorf("a group of %d events", len(events))
		}
		for _, e := range events {
			switch {
			case e.Type == event.Deleted && e.UID == "u" && e.ResourceVersion == "2":
				deleted++
			case e.Type != event.Added && e.Type != event.Sync || e.Name != "z-new":
				t.Errorf("%s %s %s", e.Type, e.Name, e.ResourceVersion)
			}
		}
	}
	if deleted != n {
		t.Errorf("%d objects are deleted, want %d", deleted, n)
	}
	if !s.synced || s.listed != nil {
		t.Error("the source is not synced")
	}
}

func forgetCheckpoint(t *testing.T, dir, id string) {
	t.Helper()
	between(t, dir, func(b *outbox.Batch) { b.DeleteMeta(checkpointMeta(id)) })
}

// between changes what is in the store between two lives.
func between(t *testing.T, dir string, change func(*outbox.Batch)) {
	t.Helper()
	store, err := outbox.Open(dir, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := store.NewBatch()
	change(b)
	if err := store.Commit(b); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}
