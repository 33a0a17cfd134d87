package etcd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/watcherd/watcherd/playground/internal/etcd"
	"github.com/watcherd/watcherd/playground/internal/statedir"
)

func TestRestoreGoesBack(t *testing.T) {
	layout := layoutAt(t, t.TempDir())
	var before int64
	with(t, layout, func(c *clientv3.Client) { before = put(t, c, "a") })
	saved := filepath.Join(t.TempDir(), "new", "saved")
	if err := etcd.Save(layout, saved); err != nil {
		t.Fatal(err)
	}
	with(t, layout, func(c *clientv3.Client) { put(t, c, "b") })

	if err := etcd.Restore(layout, saved); err != nil {
		t.Fatal(err)
	}
	with(t, layout, func(c *clientv3.Client) {
		got, err := c.Get(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		if got.Count != 0 || got.Header.Revision != before {
			t.Errorf("%d keys at revision %d, want 0 at %d", got.Count, got.Header.Revision, before)
		}
	})
}

// A restore from what is no copy of etcd's data must not cost the data.
func TestRestoreFromNothingKeepsTheData(t *testing.T) {
	layout := layoutAt(t, t.TempDir())
	with(t, layout, func(c *clientv3.Client) { put(t, c, "a") })
	if err := etcd.Restore(layout, t.TempDir()); err == nil {
		t.Fatal("restored from an empty folder")
	}
	with(t, layout, func(c *clientv3.Client) {
		if got, err := c.Get(t.Context(), "a"); err != nil || got.Count != 1 {
			t.Errorf("%v, %v: want the key", got, err)
		}
	})
}

func TestCompactEndsHistory(t *testing.T) {
	layout := layoutAt(t, t.TempDir())
	if _, err := etcd.Compact(t.Context(), layout, 0); err == nil {
		t.Error("compacted where nothing runs")
	}
	with(t, layout, func(c *clientv3.Client) {
		old := put(t, c, "a")
		last := put(t, c, "a")
		at, err := etcd.Compact(t.Context(), layout, 0)
		if err != nil {
			t.Fatal(err)
		}
		if at != last {
			t.Errorf("compacted at %d, want %d", at, last)
		}
		if _, err := c.Get(t.Context(), "a", clientv3.WithRev(old)); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("got %v, want compacted", err)
		}
	})
}

// The path of a unix socket is short, those of directories need not be.
func TestLongPath(t *testing.T) {
	sockets := t.TempDir()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", sockets)
	layout := layoutAt(t, dir)
	with(t, layout, func(c *clientv3.Client) { put(t, c, "a") })
	left, err := os.ReadDir(sockets)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("%d files were left for the sockets", len(left))
	}
}

func layoutAt(t *testing.T, dir string) statedir.Layout {
	t.Helper()
	layout, err := statedir.At(dir)
	if err != nil {
		t.Fatal(err)
	}
	return layout
}

// with runs do while etcd runs.
func with(t *testing.T, layout statedir.Layout, do func(*clientv3.Client)) {
	t.Helper()
	s, err := etcd.Start(t.Context(), layout, etcd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Context: t.Context(), Endpoints: []string{s.URL()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	do(c)
	if err := errors.Join(c.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
}

// put writes the key and says at which revision.
func put(t *testing.T, c *clientv3.Client, key string) int64 {
	t.Helper()
	r, err := c.Put(t.Context(), key, "value")
	if err != nil {
		t.Fatal(err)
	}
	return r.Header.Revision
}
