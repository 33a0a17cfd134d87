package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	past "github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// damageLedger flips a bit in the middle of the recorded states of pods on disk. The
// store must be closed.
func damageLedger(t *testing.T, dir string) {
	t.Helper()
	st, err := store.Open(dir, store.Options{}) // its log becomes tables
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	damageTables(t, dir, []byte("s\x00\x00\x00\x01ns/pod-"))
}

// damageTables flips a bit behind the middle one of the keys on disk that begin with a prefix.
// The store must be closed, and its log have become tables.
func damageTables(t *testing.T, dir string, prefix []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "db", "*.sst"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var places []int
		for at := 0; ; {
			i := bytes.Index(content[at:], prefix)
			if i < 0 {
				break
			}
			places = append(places, at+i)
			at += i + 1
		}
		if len(places) < 4 {
			continue
		}
		content[places[len(places)/2]+20] ^= 0x55
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no table has keys that begin with %q", prefix)
}

// TestDamagedLedger damages recorded states. Pods whose state cannot be read are
// delivered as sync events behind a gap; the others as ever; nothing ends.
func TestDamagedLedger(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprintf("compacted=%t", compacted), func(t *testing.T) {
			api, names := podServer(t, 300)
			dir := t.TempDir()
			l := runLive(t, dir, store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch()))
			l.synced()
			l.stop()
			damageLedger(t, dir)
			for i, n := range names {
				switch i % 3 {
				case 0:
					api.Put(podPath, "ns", n, phase("1"))
				case 1:
					api.Delete(podPath, "ns", n)
				}
			}
			if compacted {
				api.Compact()
			}
			l = runLive(t, dir, store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch()))
			l.caughtUp()
			l.synced()
			h := l.log()
			damaged, wrong := 0, 0
			for i, n := range names {
				want := []string{"sync updated", "sync deleted", "sync"}[i%3]
				got := h.types(n)
				if strings.Contains(got, "gap") {
					damaged++
					want = []string{"sync gap sync updated", "sync gap sync deleted", "sync gap sync"}[i%3]
					if compacted {
						want = "sync gap sync"
					}
				} else if compacted && i%3 == 1 && got == "sync" {
					damaged++ // nobody can know that it was there: the gap of the resource says so
					continue
				}
				if got != want {
					if wrong++; wrong < 4 {
						t.Logf("%s: %q, want %s", n, h[n], want)
					}
				}
			}
			if damaged == 0 || damaged > len(names)/2 || wrong > 0 {
				t.Errorf("%d pods have a wrong history; %d are damaged", wrong, damaged)
			}
			if gaps := fmt.Sprint(h[""]); !strings.Contains(gaps, "gap unreadable") {
				t.Errorf("gaps of the resource: %s", gaps)
			}
		})
	}
}

// TestEndsBesideDamage: an object that the ledger had, and that ended before the list which makes up for damage, is not taken for one that
// was never there: not at a time before the gap either.
func TestEndsBesideDamage(t *testing.T) {
	api, names := podServer(t, 300)
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch(func(w *plan.Watch) { w.Fingerprint, w.History = "without", false })))
	l.synced()
	l.apply(l.state(committest.PodWatch())) // the log has the pods no more than one that retention has trimmed
	l.caughtUp()
	at := time.Now()
	eventually(t, "the gap begins later", func() bool {
		api.Put(podPath, "ns", "busy", nil)
		c, _, err := l.m.ledger.Checkpoint(ledger.FeedID("pods", ""))
		return err == nil && !c.HistorySince.After(at) && c.Time.After(at)
	})
	l.stop()
	damageLedger(t, dir)
	for _, name := range names {
		api.Delete(podPath, "ns", name)
	}
	api.Compact()
	l = runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.caughtUp()
	repaired := false
	eventually(t, "the damage is removed, and what exists is recorded", func() bool {
		err := l.store.EraseObsolete(t.Context()) // it fails until a repair has removed the damage
		partitions, _ := l.store.LostStates()
		repaired = repaired || len(partitions) > 0
		return err == nil && repaired && len(partitions) == 0
	})
	h, about := l.m.Reader().History(), event.Resource{Resource: "pods"}
	list, err := h.ListAt(t.Context(), past.Objects{Resource: about}, at, "", 1000)
	if err != nil || list.As == past.Exact || len(list.Items) == 0 {
		t.Errorf("the list is %s, with %d objects: %v", list.As, len(list.Items), err)
	}
	for _, name := range names {
		if s, err := h.At(t.Context(), past.Object{Resource: about, Namespace: "ns", Name: name}, at); err != nil || s.As == past.Exact && !s.Exists {
			t.Fatalf("%s: %+v %v", name, s, err)
		}
	}
}

// A checkpoint that cannot be read is none: the watch starts with a list.
func TestDamagedCheckpoint(t *testing.T) {
	api, names := podServer(t, 10)
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	b := l.store.NewBatch()
	b.PutMeta(ledger.CheckpointMeta("pods#"), []byte("{"))
	if err := l.store.Commit(b); err != nil {
		t.Fatal(err)
	}
	l.stop()
	api.Delete(podPath, "ns", names[0])
	l = runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	h := l.log()
	h.check(t, names, "sync deleted")
	if gaps := fmt.Sprint(h[""]); gaps != "[gap unreadable]" {
		t.Errorf("gaps of the resource: %s", gaps)
	}
}

// TestDamagedCheckpointBesideALaggingServer starts without a readable position while one API server of
// several is behind for a moment: what is recorded shows how far the cluster had come, and its list is
// not taken for a rollback.
func TestDamagedCheckpointBesideALaggingServer(t *testing.T) {
	api, names := podServer(t, 10)
	then := api.Version()
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	for _, n := range names {
		api.Put(podPath, "ns", n, phase("1"))
	}
	l.caughtUp()
	if err := ledger.PutMeta(l.store, ledger.CheckpointMeta("pods#"), []byte("{")); err != nil {
		t.Fatal(err)
	}
	l.stop()
	var behind atomic.Bool
	behind.Store(true)
	api.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		q := r.URL.Query()
		if r.URL.Path != podPath || q.Has("watch") || !behind.Load() {
			return false
		}
		if q.Get("limit") == "1" {
			behind.Store(false)
		}
		q.Set("resourceVersion", then)
		q.Set("resourceVersionMatch", "Exact")
		r.URL.RawQuery = q.Encode()
		return false
	})
	l = runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	l.caughtUp()
	h := l.log()
	for _, n := range names {
		if h.types(n) != "sync updated" {
			t.Errorf("%s: %q", n, h[n])
		}
	}
	if gaps := fmt.Sprint(h[""]); gaps != "[gap unreadable]" {
		t.Errorf("gaps of the resource: %s", gaps)
	}
}

// TestKillAmidTheListOfADamagedCheckpoint ends the process in the middle of the list
// that takes the place of a position that cannot be read: the gap is not lost.
func TestKillAmidTheListOfADamagedCheckpoint(t *testing.T) {
	const n = 3 * maxGroup
	api, _ := podServer(t, n)
	fs := vfs.NewCrashableMem()
	l := runLive(t, "store", store.Options{FS: fs}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	if err := ledger.PutMeta(l.store, ledger.CheckpointMeta("pods#"), []byte("{")); err != nil {
		t.Fatal(err)
	}
	l.stop()
	for i := range n {
		api.Put(podPath, "ns", fmt.Sprintf("pod-%05d", i), phase("1"))
	}
	l = runLive(t, "store", store.Options{FS: fs}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	eventually(t, "a part of the list", func() bool { return l.committed() > n })
	fs = fs.CrashClone(vfs.CrashCloneCfg{})
	l.stop()
	l = runLive(t, "store", store.Options{FS: fs}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	if gaps := fmt.Sprint(l.log()[""]); gaps != "[gap unreadable]" {
		t.Errorf("the gaps are %s", gaps)
	}
}

// TestFarewellCutShort cuts the power at each write after a definition is gone of whose recorded objects one
// is damaged: the gap that stands for its deletion is reported once.
func TestFarewellCutShort(t *testing.T) {
	const never = 1 << 40
	for n, over := int64(0), false; !over; n++ {
		t.Run(fmt.Sprint("write ", n), func(t *testing.T) {
			api := apitest.New(t)
			api.ServeCustom(widgetPath, "example.com/v1", "Widget")
			api.Put(widgetPath, "ns", "a", nil)
			api.Put(widgetPath, "ns", "b", nil)
			disk, fault := vfs.NewCrashableMem(), &brittle{}
			fault.left.Store(never)
			resolver := serving(widgets)
			l := runLive(t, "store", store.Options{FS: errorfs.Wrap(disk, fault)}, api, resolver)
			l.apply(l.state(watchOf("w", nil, "widgets.example.com")))
			eventually(t, "sync", func() bool { return len(l.log()) == 2 })
			l.defined("widgets.example.com")
			b := l.store.NewBatch()
			b.PutState("widgets.example.com", ledger.Key("ns", "b"), []byte("damaged"))
			if err := l.store.Commit(b); err != nil {
				t.Fatal(err)
			}
			fault.left.Store(n)
			api.Unserve(widgetPath)
			resolver.set()
			eventually(t, "the end", func() bool { over = len(l.store.Partitions()) == 0; return over || fault.failed.Load() })
			over = over && !fault.failed.Load()
			fault.left.Store(never)
			if !over {
				if err := <-l.ended; !errors.Is(err, ledger.ErrStore) {
					t.Errorf("the pipeline ends with %v", err)
				}
				l.ended <- nil
			}
			l.stop()
			l = runLive(t, "store", store.Options{FS: disk.CrashClone(vfs.CrashCloneCfg{})}, api, serving())
			l.apply(l.state(watchOf("w", nil, "widgets.example.com")))
			eventually(t, "the farewell is over", func() bool { return len(l.store.Partitions()) == 0 })
			l.becomes(history{"a": {"sync 101", "deleted 101 unknown"}, "b": {"sync 102"}, "": {"gap definition", "gap unreadable"}})
		})
	}
}

// TestRepairOfTheLedger has a repair of the store remove recorded states while watcherd runs. Deletions of their objects are reported,
// behind gaps; of the others without. Then the resource is listed again, which records what exists, and nothing is out of the ordinary.
func TestRepairOfTheLedger(t *testing.T) {
	const n = 300
	api, names := podServer(t, n)
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	rewrite := func() error { return l.store.EraseObsolete(t.Context()) }
	if err := rewrite(); err != nil {
		t.Fatal(err)
	}
	var refused atomic.Bool
	refused.Store(true)
	api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if refused.Load() && r.URL.Path == podPath && r.URL.Query().Get("watch") == "" {
			apitest.Fail(w, http.StatusTooManyRequests, "TooManyRequests")
			return true
		}
		return false
	})
	damageTables(t, dir, []byte("s\x00\x00\x00\x01ns/pod-"))
	api.Put(podPath, "ns", names[0], phase("1"))
	l.caughtUp()
	held, hold := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	go func() { _ = l.m.committer.AtBarrier(func(commit.Barrier) { close(held); <-hold }) }()
	<-held
	for i := range n / 3 {
		api.Delete(podPath, "ns", names[3*i])
	}
	cached := l.m.informerList()[0].sub.Load().Informer().GetStore()
	eventually(t, "the watch has the deletions, and none is committed", func() bool { return len(cached.ListKeys()) == n-n/3+1 }) // 1: the marker
	eventually(t, "a repair", func() bool {
		err := rewrite() // it fails until the damage is removed
		partitions, _ := l.store.LostStates()
		return err == nil && len(partitions) > 0
	})
	release()
	refused.Store(false)
	eventually(t, "they are restored", func() bool {
		partitions, _ := l.store.LostStates()
		return len(partitions) == 0
	})
	api.Put(podPath, "ns", names[3], phase("2"))
	l.caughtUp()
	h := l.log()
	damaged := 0
	for i, name := range names {
		want := []string{"sync deleted", "sync", "sync"}[i%3]
		switch i {
		case 0:
			want = "sync updated deleted"
		case 3:
			want = "sync deleted added"
		}
		got := h.types(name)
		if strings.Contains(got, "gap") {
			damaged++
			want = strings.Replace(want, " deleted", " gap deleted", 1)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, h[name], want)
		}
		if _, ok, err := l.store.State("pods", ledger.Key("ns", name), nil); ok != (i%3 != 0 || i == 3) || err != nil {
			t.Errorf("%s is recorded: %t, %v", name, ok, err)
		}
	}
	if damaged == 0 || damaged > n/6 {
		t.Errorf("%d pods have gaps", damaged)
	}
	if gaps := fmt.Sprint(h[""]); gaps != "[gap unreadable]" {
		t.Errorf("gaps of the resource: %s", gaps)
	}
}
