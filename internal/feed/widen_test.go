package feed

import (
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
)

// TestWidenedWatchListsFewObjects widens a watch of two namespaces, one of which is
// ahead of the other, to all. The list of the older version shows one object or none:
// what was made after it is neither deleted nor told again.
func TestWidenedWatchListsFewObjects(t *testing.T) {
	for name, existing := range map[string][]string{"none": nil, "one": {"old"}, "two": {"old", "older"}} {
		t.Run(name, func(t *testing.T) {
			api := apitest.New(t)
			api.Serve(podPath, "v1", "Pod")
			for _, n := range existing {
				api.Put(podPath, "a", n, nil)
			}
			l := runLive(t, t.TempDir(), outbox.Options{}, api, served{pods})
			l.apply(l.state(podWatch(only("a", "b"))))
			for _, id := range []string{"pods#a", "pods#b"} {
				eventually(t, id, func() bool {
					cp, ok, err := l.m.loadCheckpoint(id)
					return err == nil && ok && cp.Synced
				})
			}
			api.Put(podPath, "b", "new", nil)
			api.Put(podPath, "b", "new", phase("1"))
			eventually(t, "the new pod", func() bool { return l.log().types("new") == "added updated" })
			l.apply(l.state(podWatch()))
			l.synced()
			l.caughtUp()
			h := l.log()
			if got := h.types("new"); got != "added updated" {
				t.Errorf("new: %s", got)
			}
			for _, n := range existing {
				if got := h.types(n); got != "sync" {
					t.Errorf("%s: %s", n, got)
				}
			}
			api.Delete(podPath, "b", "new")
			l.caughtUp()
			if got := l.log().types("new"); got != "added updated deleted" {
				t.Errorf("new in the end: %s", got)
			}
		})
	}
}

// TestGatheredTimeIsOfTheOldest widens a watch while one of the namespaces was left for
// a time: history is known up to then.
func TestGatheredTimeIsOfTheOldest(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	now := r.m.cfg.Now()
	for id, cp := range map[string]checkpoint{
		"pods#a": {ResourceVersion: "100", Synced: true, Time: now.Add(-time.Hour)},
		"pods#b": {ResourceVersion: "200", Synced: true, Time: now},
	} {
		if err := putMeta(r.store, checkpointMeta(id), encodeCheckpoint(cp)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := r.m.desire(&plan.State{Watches: []plan.Watch{podWatch()}})
	if err != nil {
		t.Fatal(err)
	}
	s := r.source(pods)
	if err := r.m.handOverCheckpoints([]*source{s}, d); err != nil {
		t.Fatal(err)
	}
	cp, _, err := r.m.loadCheckpoint("pods#")
	if err != nil || cp.ResourceVersion != "100" || !cp.Time.Equal(now.Add(-time.Hour)) {
		t.Errorf("the checkpoint is %+v, %v", cp, err)
	}
}

// TestCheckpointBeforeTheFirstContact has the committer look at a source that has not
// reached the API server yet: what is recorded beyond its version stays known.
func TestCheckpointBeforeTheFirstContact(t *testing.T) {
	api := apitest.New(t)
	dir := t.TempDir()
	l := runLive(t, dir, outbox.Options{}, api, served{pods})
	saved := checkpoint{ResourceVersion: "10", Recorded: "20", Synced: true, Form: formOf(&plan.Watch{Edits: podWatch().Edits}, pods.GVR)}
	if err := putMeta(l.store, checkpointMeta("pods#"), encodeCheckpoint(saved)); err != nil {
		t.Fatal(err)
	}
	l.apply(l.state(podWatch())) // nothing serves pods
	if err := l.m.between(func(g *group) { g.touchAll(l.m.sourceList()) }); err != nil {
		t.Fatal(err)
	}
	l.m.flush()
	cp, _, err := l.m.loadCheckpoint("pods#")
	if err != nil || cp.Recorded != "20" {
		t.Errorf("the checkpoint is %+v, %v", cp, err)
	}
}

// TestGatheredLists widens a watch while one namespace is amid a list that is ahead of
// another: the list of the whole leaves out history of the other, which is a gap.
func TestGatheredLists(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	now := r.m.cfg.Now()
	for id, cp := range map[string]checkpoint{
		"pods#a": {ResourceVersion: "100", Synced: true, Time: now.Add(-time.Hour)},
		"pods#b": {ResourceVersion: "150", Synced: true, Time: now, Listing: &listing{ResourceVersion: "200"}},
	} {
		if err := putMeta(r.store, checkpointMeta(id), encodeCheckpoint(cp)); err != nil {
			t.Fatal(err)
		}
	}
	s := r.source(pods)
	if err := r.m.handOverCheckpoints([]*source{s}, desired{}); err != nil {
		t.Fatal(err)
	}
	if err := r.m.prepareSource(s); err != nil {
		t.Fatal(err)
	}
	if s.resume.listVersion() != "200" || s.open == nil || s.open.From != "100" || !s.open.FromTime.Equal(now.Add(-time.Hour)) {
		t.Errorf("the source begins at %s with the gap %+v", s.resume.listVersion(), s.open)
	}
}
