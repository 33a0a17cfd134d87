package file

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// synced is a sync: of a file with its size, or of a folder with its names.
type synced struct {
	name  string
	size  int64
	names []string
}

func (s synced) has(ending string) bool {
	return slices.ContainsFunc(s.names, func(name string) bool { return strings.HasSuffix(name, ending) })
}

// rotated reports whether there is a rotated file that is not compressed.
func (s synced) rotated() bool {
	return slices.ContainsFunc(s.names, func(name string) bool { return strings.Contains(name, mark) && strings.HasSuffix(name, ".log") })
}

// observeSyncs returns the syncs so far of this test.
func observeSyncs(t *testing.T, fail func(name string) error) func() []synced {
	t.Helper()
	var mu sync.Mutex
	var list []synced
	original := fsync
	t.Cleanup(func() { fsync = original })
	fsync = func(f *os.File) error {
		s := synced{name: filepath.Base(f.Name())}
		if info, err := f.Stat(); err != nil {
			return err
		} else if s.size = info.Size(); info.IsDir() {
			entries, err := os.ReadDir(f.Name())
			if err != nil {
				return err
			}
			s.size = 0
			for _, e := range entries {
				s.names = append(s.names, e.Name())
			}
		}
		if err := fail(s.name); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		list = append(list, s)
		return original(f)
	}
	return func() []synced {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

func openSynced(t *testing.T, dir, path string, change func(*Config)) sinks.Sink {
	t.Helper()
	c := NewConfig()
	c.Path = path
	change(c)
	s, err := c.Open(t.Context(), sinks.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(t.Context()) })
	return s
}

func podEvent(namespace, name string) *event.Event {
	return &event.Event{
		ID: namespace + name, Type: event.Updated, Time: time.Unix(1, 0).UTC(), UID: "uid",
		Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Namespace: namespace, Name: name,
	}
}

// TestStepsAreSynced makes folders and files, rotates, compresses and deletes. Each step is
// durable before the one that relies on it.
func TestStepsAreSynced(t *testing.T) {
	syncs := observeSyncs(t, func(string) error { return nil })
	dir := t.TempDir()
	s := openSynced(t, dir, "top/{namespace}/pods.log", func(c *Config) {
		c.Rotate.MaxBytes, c.Rotate.Compress, c.Rotate.Keep = 1, "gzip", 5
	})
	write := func() {
		t.Helper()
		if err := s.Write(t.Context(), []*event.Event{podEvent("a", "pod")}); err != nil {
			t.Fatal(err)
		}
	}
	write()
	size := syncs()[len(syncs())-1].size
	write()
	for _, step := range []struct {
		what string
		is   func(synced) bool
	}{
		{"the folder that the configuration names", func(s synced) bool { return s.name == filepath.Base(dir) && s.has("top") }},
		{"the folder of a namespace", func(s synced) bool { return s.name == "." && s.has("a") }},
		{"the name of a file", func(s synced) bool { return s.name == "a" && s.has("pods.log") && len(s.names) == 1 }},
		{"what was written", func(s synced) bool { return s.name == "pods.log" && s.size == size && size > 0 }},
		{"the name of a rotated file", func(s synced) bool { return s.name == "a" && len(s.names) > 0 && !s.has("pods.log") }},
		{"the contents of a compressed file", func(s synced) bool { return strings.HasSuffix(s.name, gz+partial) && s.size > 0 }},
		{"its name, while the original is there", func(s synced) bool { return s.has(gz) && s.rotated() }},
		{"the removal of the original", func(s synced) bool { return s.has(gz) && !s.rotated() }},
	} {
		for deadline := time.Now().Add(20 * time.Second); !slices.ContainsFunc(syncs(), step.is); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not synced: %s; synced are %+v", step.what, syncs())
			}
		}
	}
}

// TestNamesAreSyncedAfterAFailure has the sync of a folder fail once: nothing is accepted before another one has made the
// new name in it durable.
func TestNamesAreSyncedAfterAFailure(t *testing.T) {
	dir := t.TempDir()
	for what, folder := range map[string]struct{ name, has string }{
		"the folder that the configuration names": {filepath.Base(dir), "top"},
		"the folder of a namespace":               {".", "a"},
		"a file":                                  {"a", "pods.log"},
	} {
		t.Run(what, func(t *testing.T) {
			if err := os.RemoveAll(filepath.Join(dir, "top")); err != nil {
				t.Fatal(err)
			}
			failed := false
			syncs := observeSyncs(t, func(name string) error {
				if name != folder.name || failed {
					return nil
				}
				failed = true
				return syscall.EIO
			})
			s := openSynced(t, dir, "top/{namespace}/pods.log", func(*Config) {})
			batch := []*event.Event{podEvent("a", "pod")}
			if err := s.Write(t.Context(), batch); !errors.Is(err, syscall.EIO) {
				t.Fatalf("the error is %v", err)
			}
			if err := s.Write(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(syncs(), func(s synced) bool { return s.name == folder.name && s.has(folder.has) }) {
				t.Errorf("accepted, and not synced: %+v", syncs())
			}
		})
	}
}

// TestCutsAreSynced cuts off the torn last line of a file when it is opened, and what was
// written of a batch of which an earlier event failed.
func TestCutsAreSynced(t *testing.T) {
	syncs := observeSyncs(t, func(name string) error {
		if name == "1970-01-01.log" {
			return os.ErrDeadlineExceeded
		}
		return nil
	})
	dir := t.TempDir()
	const day = 24 * time.Hour
	early, late, other := podEvent("a", "pod"), podEvent("a", "pod"), podEvent("b", "other")
	late.Time, other.Time = late.Time.Add(day), other.Time.Add(day)
	whole := sinks.CloudEvents.AppendLine(nil, other)
	torn := slices.Concat(whole, whole[:len(whole)/2])
	if err := os.WriteFile(filepath.Join(dir, "1970-01-02.log"), torn, 0o600); err != nil {
		t.Fatal(err)
	}
	s := openSynced(t, dir, "{date}.log", func(*Config) {})
	if err := s.Write(t.Context(), []*event.Event{other, early, late}); err == nil {
		t.Fatal("a sync failed without an error")
	}
	var sizes []int64
	for _, s := range syncs() {
		if s.name == "1970-01-02.log" {
			sizes = append(sizes, s.size)
		}
	}
	if n := int64(len(whole)); len(sizes) != 3 || sizes[0] != n || sizes[1] <= n || sizes[2] != n {
		t.Errorf("synced at sizes %v; a line has %d bytes", sizes, n)
	}
}

// TestCompressionIsTakenUp compresses a rotated file of which an earlier attempt has left
// something, and leaves nothing of an attempt that fails.
func TestCompressionIsTakenUp(t *testing.T) {
	const name = "all@20200101T000000.001Z.log"
	for what, tc := range map[string]struct {
		left, want []string // endings
		fails      bool
	}{
		"from the beginning":        {left: []string{""}, want: []string{gz}},
		"amid the copy":             {left: []string{"", gz + partial}, want: []string{gz}},
		"with the copy":             {left: []string{"", gz}, want: []string{gz}},
		"when another has finished": {left: []string{gz}, want: []string{gz}},
		"of a file that is removed": {left: []string{gz + partial}},
		"with a copy that fails":    {left: []string{""}, want: []string{""}, fails: true},
	} {
		t.Run(what, func(t *testing.T) {
			observeSyncs(t, func(name string) error {
				if tc.fails && strings.HasSuffix(name, partial) {
					return os.ErrDeadlineExceeded
				}
				return nil
			})
			root, err := os.OpenRoot(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = root.Close() }()
			for _, ending := range tc.left {
				if err := root.WriteFile(name+ending, []byte("line\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r, err := findRotated(root, "all.log", "20200101T000000.001Z")
			if err != nil {
				t.Fatal(err)
			}
			a := &archivist{stop: t.Context()}
			if err := a.compress(root, r); (err != nil) != tc.fails {
				t.Errorf("the error is %v", err)
			}
			if r, err = findRotated(root, "all.log", "20200101T000000.001Z"); err != nil || !slices.Equal(r.endings, tc.want) {
				t.Errorf("there are %q, %v, want %q", r.endings, err, tc.want)
			}
		})
	}
}

// TestKnownPathsAreBounded: a path per object, without end, does not grow the memory
// without end.
func TestKnownPathsAreBounded(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	a := &archivist{listed: map[string]bool{}, known: map[string]*history{}}
	for i := range 2 * maxStamps {
		name := strconv.Itoa(i) + ".log"
		if _, err := a.newest(root, name); err != nil {
			t.Fatal(err)
		}
		a.rotated(name, "20200101T000000.001Z")
	}
	if n := len(a.known); n > maxStamps+1 {
		t.Errorf("%d paths are remembered, at most %d are wanted", n, maxStamps)
	}
}
