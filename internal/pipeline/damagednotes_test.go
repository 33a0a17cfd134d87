package pipeline

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
)

// damageMeta makes the block with the metadata that begin with a prefix unreadable, and no other metadata. The store must be closed.
func damageMeta(t *testing.T, dir, prefix string) {
	t.Helper()
	st, err := store.Open(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fill := make([]byte, 8<<10) // a block of its own; the search for the flipped bit takes a second of a larger one
	_, _ = rand.Read(fill)
	last := len(prefix) - 1
	b := st.NewBatch()
	b.PutMeta(prefix[:last], fill)
	err = st.ScanMeta(prefix, func(key string, value []byte) error { // in the table with those
		b.PutMeta(key, bytes.Clone(value))
		return nil
	})
	b.PutMeta(prefix[:last]+string(prefix[last]+1), fill)
	if err := errors.Join(err, st.Commit(b), st.EraseObsolete(t.Context()), st.Close()); err != nil { // else earlier values are below them
		t.Fatal(err)
	}
	if st, err = store.Open(dir, store.Options{}); err != nil { // its log becomes tables
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "db", "*.sst"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if at := bytes.Index(content, []byte("m"+prefix)); at >= 0 && bytes.Contains(content, fill[:100]) {
			content[at+len(prefix)+20] ^= 0x55
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no table has metadata that begin with %q", prefix)
}

// TestUnreadableCheckpoints makes the block with the checkpoints unreadable: the watches start with lists behind gaps, and follow the
// configuration.
func TestUnreadableCheckpoints(t *testing.T) {
	inNS := committest.PodWatch(func(w *plan.Watch) { w.Namespaces = []string{"ns"} })
	for name, tc := range map[string]struct{ before, after, then plan.Watch }{
		"of all namespaces": {committest.PodWatch(), committest.PodWatch(), inNS},
		"of one, then all":  {inNS, committest.PodWatch(), inNS},
	} {
		t.Run(name, func(t *testing.T) {
			recordedAll := func(l *live) bool {
				s := l.m.informerList()
				cp, _, err := l.m.ledger.Checkpoint(s[0].ID)
				return cp.Synced && err == nil
			}
			api, names := podServer(t, 10)
			dir := t.TempDir()
			l := runLive(t, dir, store.Options{}, api, served{pods})
			l.apply(l.state(tc.before))
			eventually(t, "the end of the list", func() bool { return recordedAll(l) })
			l.stop()
			damageMeta(t, dir, ledger.CheckpointMeta(""))
			api.Delete(podPath, "ns", names[0])
			l = runLive(t, dir, store.Options{}, api, served{pods})
			l.apply(l.state(tc.after))
			eventually(t, "the gap", func() bool { return len(l.log()[""]) > 0 })
			l.apply(l.state(tc.then))
			api.Put(podPath, "ns", names[1], phase("1"))
			eventually(t, "the update", func() bool { return strings.Contains(l.log().types(names[1]), "updated") })
			h := l.log()
			h.check(t, names, "sync deleted", "sync updated")
			if gaps := fmt.Sprint(h[""]); !strings.HasPrefix(gaps, "[gap unreadable") { // the feed after it may have one, too
				t.Errorf("gaps of the resource: %s", gaps)
			}
		})
	}
}

// TestRepairOfCheckpoints has a repair of the store remove the block with the checkpoints, and the process end before another one is written: the
// watch starts with a list behind a gap, as with one that cannot be read.
func TestRepairOfCheckpoints(t *testing.T) {
	api, names := podServer(t, 10)
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	l.stop()
	damageMeta(t, dir, ledger.CheckpointMeta(""))
	st, err := store.Open(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- st.Run(ctx) }()
	eventually(t, "a repair", func() bool { return st.EraseObsolete(ctx) == nil }) // it fails until the damage is removed
	end()
	if err := errors.Join(<-ended, st.Close()); err != nil {
		t.Fatal(err)
	}
	api.Delete(podPath, "ns", names[0])
	api.Put(podPath, "ns", names[1], phase("1"))
	l = runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	h := l.log()
	h.check(t, names, "sync deleted", "sync updated")
	if gaps := fmt.Sprint(h[""]); gaps != "[gap unreadable]" {
		t.Errorf("gaps of the resource: %s", gaps)
	}
}

// TestUnreadableCheckpointOfAPart widens a watch of a namespace, whose checkpoint cannot be read, before its list has
// begun: the gap is that of the wider one.
func TestUnreadableCheckpointOfAPart(t *testing.T) {
	inNS := committest.PodWatch(func(w *plan.Watch) { w.Namespaces = []string{"ns"} })
	inBubble(t, func(t *testing.T) {
		api, names := podServer(t, 3)
		dir := t.TempDir()
		l := runLive(t, dir, store.Options{}, api, served{pods})
		l.apply(l.state(inNS))
		eventually(t, "sync", func() bool { return len(l.log()) == len(names) })
		if err := ledger.PutMeta(l.store, ledger.CheckpointMeta("pods#ns"), []byte("{")); err != nil {
			t.Fatal(err)
		}
		l.stop()
		var refused atomic.Bool
		refused.Store(true)
		api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !refused.Load() || !strings.HasSuffix(r.URL.Path, "/pods") {
				return false
			}
			apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
			return true
		})
		api.Delete(podPath, "ns", names[0])
		l = runLive(t, dir, store.Options{}, api, served{pods})
		l.apply(l.state(inNS))
		time.Sleep(20 * time.Second) // checkpoints are written
		l.apply(l.state(committest.PodWatch()))
		refused.Store(false)
		time.Sleep(time.Minute)
		h := l.log()
		if got, want := fmt.Sprint(h[""], h.types(names[0]), ", ", h.types(names[1])), "[gap unreadable]sync deleted, sync"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}
