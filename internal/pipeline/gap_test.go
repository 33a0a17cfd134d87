package pipeline

import (
	"fmt"
	"slices"
	"testing"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestHistoryExpiresQuietly has the server forget its history while the connection is
// lost. Where nothing happened meanwhile no sink gets a gap, and the history has one; where something did, the
// gap comes before it.
func TestHistoryExpiresQuietly(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(l *live)
		want   map[string]string
		gaps   int
	}{
		{"nothing", func(*live) {}, nil, 0},
		{"an update", func(l *live) { l.api.Put(podPath, "ns", "pod-00001", phase("x")) }, map[string]string{"pod-00001": "sync updated"}, 1},
		{"a deletion", func(l *live) { l.api.Delete(podPath, "ns", "pod-00001") }, map[string]string{"pod-00001": "sync deleted"}, 1},
		{"all deletions", func(l *live) { l.api.Delete(podPath, "ns", "pod-00000", "pod-00001", "pod-00002") }, map[string]string{"pod-00000": "sync deleted"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			api, _ := podServer(t, 3)
			l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch()))
			l.synced()
			s := l.m.informerList()[0]
			eventually(t, "a watch", func() bool { return api.Watches(podPath) == 1 })
			api.Mute(true)
			api.Advance(5)
			tc.change(l)
			api.Advance(5)
			api.Compact()
			api.Mute(false)
			api.Cut()
			eventually(t, "a list", func() bool { return s.sub.Load().Status().Relists == 1 })
			l.caughtUp()
			h := l.log()
			for name, want := range tc.want {
				if got := h.types(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if got, want := fmt.Sprint(h[""]), []string{"[gap quiet]", "[gap expired]"}[tc.gaps]; got != want {
				t.Errorf("gaps: %s, want %s", got, want)
			}
			if got := l.metric("watcherd_quiet_gaps_total"); int(got) != 1-tc.gaps {
				t.Errorf("%v quiet gaps", got)
			}
		})
	}
}

// repairs are the names of the objects whose events are marked as repairs.
func (l *live) repairs() []string {
	l.Helper()
	var names []string
	for after := uint64(0); ; {
		items, err := l.store.ReadLog(after, 1000)
		if err != nil {
			l.Fatal(err)
		}
		if len(items) == 0 {
			slices.Sort(names)
			return slices.Compact(names)
		}
		for _, it := range items {
			after = it.Sequence
			e, err := l.m.reader.LogEvent(it, func(*event.Event, []string) bool { return true })
			if err != nil {
				l.Fatal(err)
			}
			if e != nil && e.Repair && e.Type != event.Gap {
				names = append(names, e.Name)
			}
		}
	}
}
