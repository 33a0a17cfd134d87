package pipeline

import (
	"errors"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestCommandsByName: commands to what is not configured name it, and a configured sink is not purged. A snapshot
// counts what it delivers.
func TestCommandsByName(t *testing.T) {
	api, names := podServer(t, 3)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods}).withX()
	st := l.routed(committest.PodWatch())
	st.Sinks = []plan.Sink{{Name: "x", Config: closedSink{}, StartFrom: plan.StartLatest, Fingerprint: "x"}}
	l.apply(st)
	l.synced()

	snapshot := func(sink, watch string) error {
		_, err := l.m.Snapshot(t.Context(), sink, watch, nil)
		return err
	}
	for _, tc := range []struct {
		err  error
		want UnknownError
	}{
		{snapshot("other", ""), UnknownError{"sink", "other", []string{"x"}}},
		{snapshot("x", "other"), UnknownError{"watch", "other", []string{"w"}}},
		{l.m.ResumeSink(t.Context(), "other"), UnknownError{"sink", "other", []string{"x"}}},
		{func() error { _, err := l.m.Replay(t.Context(), "other", store.ReplayRange{}, nil); return err }(), UnknownError{"sink", "other", []string{"x"}}},
	} {
		got, ok := errors.AsType[*UnknownError](tc.err)
		if !ok {
			t.Errorf("%v, want %v", tc.err, &tc.want)
		} else if diff := cmp.Diff(tc.want, *got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if err := l.m.PurgeSink(t.Context(), "x"); !errors.Is(err, ErrConfigured) {
		t.Errorf("the purge of a configured sink: %v", err)
	}

	progress := 0
	if n, err := l.m.Snapshot(t.Context(), "x", "w", func(n int) { progress = n }); err != nil || n != len(names) || progress != n {
		t.Errorf("a snapshot of %d objects, with progress %d: %v", n, progress, err)
	}
	h := l.queued()
	for _, name := range names {
		if h.types(name) != string(event.Sync)+" "+string(event.Sync) { // the first list, and the snapshot
			t.Errorf("%s: %q", name, h[name])
		}
	}
}

// TestNamespacesNoLongerNeeded ends the informer of namespaces with the last watch that selects by their labels, and
// begins it again.
func TestNamespacesNoLongerNeeded(t *testing.T) {
	api, _ := podServer(t, 1)
	api.Serve(namespacePath, "v1", "Namespace")
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	for _, needed := range []bool{true, false, true} {
		watch := committest.PodWatch()
		if needed {
			watch = committest.PodWatch(committest.ProdPods)
		}
		l.apply(l.state(watch))
		l.synced()
		if needed {
			eventually(t, "the labels are known", l.m.committer.NamespacesReady)
		}
		if running := l.m.namespaces.sub.Load() != nil; running != needed || l.m.committer.NamespacesReady() != needed {
			t.Errorf("needed: %t, running: %t, known: %t", needed, running, l.m.committer.NamespacesReady())
		}
	}
}

// TestExplainWithUnknownLabels: an event is not explained while the labels of namespaces are unknown by which a watch selects.
func TestExplainWithUnknownLabels(t *testing.T) {
	api, _ := podServer(t, 1)
	api.Put(namespacePath, "", "ns", map[string]any{"metadata": map[string]any{"name": "ns", "uid": "uid-ns", "labels": map[string]any{"env": "prod"}}})
	open := closed(t, api, namespacePath)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	byLabels := committest.PodWatch(committest.ProdPods)
	byLabels.Name = "prod"
	l.apply(l.state(committest.PodWatch(), byLabels))
	eventually(t, "a pod is recorded", func() bool { return l.store.LogStats().Records > 0 })
	explain := func() (*retrace.Explanation, error) {
		return l.m.Explain(t.Context(), strconv.FormatUint(l.store.LogStats().First, 10))
	}
	if x, err := explain(); !errors.Is(err, ErrNamespacesUnknown) {
		t.Errorf("%v, with %+v", err, x)
	}
	open()
	eventually(t, "the labels are known", l.m.committer.NamespacesReady)
	x, err := explain()
	if err != nil {
		t.Fatal(err)
	}
	if w := x.Watches[1]; w.Verdict != retrace.Covered {
		t.Errorf("%+v", w)
	}
}
