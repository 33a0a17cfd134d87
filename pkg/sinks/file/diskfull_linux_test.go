package file_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/file"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// mountSmall mounts a file system of that size below dir.
func mountSmall(t *testing.T, dir, size string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("mounting a small file system is not permitted here: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
}

func fillDisk(c *file.Config) { c.MinFree = 0 }

// TestMinFree: the sink leaves the disk's last part to others, says so, and goes on when
// there is room again.
func TestMinFree(t *testing.T) {
	f := newTree(t)
	mountSmall(t, f.path("small"), "4m")
	s := f.open("small/{namespace}.jsonl", func(c *file.Config) { c.MinFree = 2 << 20 })
	filler := f.path("small/filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var accepted []*event.Event
	var err error
	for n := 0; err == nil; n++ {
		batch := []*event.Event{sinktest.Large(n, n, 100<<10)}
		if err = s.Write(t.Context(), batch); err == nil {
			accepted = append(accepted, batch...)
		}
	}
	if class, _ := sinks.Classify(err); class != sinks.ClassRetry || !strings.Contains(err.Error(), "minFree leaves 2 MiB") {
		t.Errorf("class %s: %v", class, err)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(f.path("small"), &fs); err != nil {
		t.Fatal(err)
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < 2<<20 || len(accepted) < 5 {
		t.Errorf("%d bytes are left, 2 MiB are wanted; %d events were accepted", free, len(accepted))
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	more := sinktest.Large(50, 50, 100<<10)
	f.write(s, more)
	f.expect("small/prod.jsonl", append(accepted, more)...)
}

// TestCompressionLeavesRoom: a copy of a large rotated file does not fill the disk either. Where the small one of another has
// room, it is made, as it frees more than it takes.
func TestCompressionLeavesRoom(t *testing.T) {
	f := newTree(t)
	mountSmall(t, f.path("small"), "8m")
	const large, small = "small/prod@20200101T000000.002Z.jsonl", "small/prod@20200101T000000.001Z.jsonl"
	for name, content := range map[string][]byte{large: testkit.Noise(3 << 20), small: make([]byte, 1<<20), "small/filler": make([]byte, 1<<20)} {
		if err := os.WriteFile(f.path(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rotated := func(c *file.Config) {
		c.MinFree = 2 << 20
		c.Rotate.Compress = "gzip"
	}
	s := f.open("small/{namespace}.jsonl", rotated)
	f.write(s, sinktest.Event(0, 0))
	has := func(name string) bool { return slices.Contains(f.names(), name) }
	eventually(t, "the small one is compressed", func() bool { return has(small+".gz") && !has(small) })
	eventually(t, "the large one has no room", func() bool { return strings.Contains(f.logs.String(), "minFree") })
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !has(large) {
		t.Errorf("files %q, logs %s", f.names(), f.logs)
	}

	if err := os.Remove(f.path("small/filler")); err != nil {
		t.Fatal(err)
	}
	f.write(f.open("small/{namespace}.jsonl", rotated), sinktest.Event(1, 1))
	eventually(t, "with room the large one is, too", func() bool { return has(large+".gz") && !has(large) })
}

// TestDescriptors: a batch for many files needs no more descriptors than maxOpenFiles,
// and running out of them is retried.
func TestDescriptors(t *testing.T) {
	f := newTree(t)
	events := sinktest.Events(300, 300)
	few := f.open("few/{name}.jsonl", func(c *file.Config) { c.MaxOpenFiles = 4 })
	many := f.open("many/{name}.jsonl", func(c *file.Config) { c.MaxOpenFiles = 1000 })
	limit := limitDescriptors(t, 24)
	if err := few.Write(t.Context(), events); err != nil {
		t.Errorf("4 files at once: %v", err)
	}
	err := many.Write(t.Context(), events)
	if class, _ := sinks.Classify(firstOf(err)); class != sinks.ClassRetry || !errors.Is(firstOf(err), syscall.EMFILE) {
		t.Errorf("class %s for want of descriptors: %v", class, err)
	}
	limit()
	batch, ok := errors.AsType[*sinks.BatchError](err)
	if !ok {
		t.Fatalf("error %v", err)
	}
	var again []*event.Event
	for i, e := range events {
		if batch.Failed[i] != nil {
			again = append(again, e)
		}
	}
	f.write(many, again...)
	for i, e := range events {
		f.expect("few/web-"+itoa(i)+".jsonl", e)
		f.expect("many/web-"+itoa(i)+".jsonl", e)
	}
}

func firstOf(err error) error {
	if b, ok := errors.AsType[*sinks.BatchError](err); ok {
		return b.Failed[slices.Min(slices.Collect(maps.Keys(b.Failed)))]
	}
	return err
}

// limitDescriptors lets the process open that many more files, until release is called.
func limitDescriptors(t *testing.T, more uint64) (release func()) {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open("/dev/null") // the lowest free number
	if err != nil {
		t.Fatal(err)
	}
	lowest := uint64(open.Fd())
	open.Close()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: lowest + more, Max: before.Max}); err != nil {
		t.Skip("the number of open files cannot be limited here: ", err)
	}
	release = sync.OnceFunc(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release)
	return release
}

// TestDiskFull fills a disk: what does not fit leaves nothing behind, and goes
// through once there is room.
func TestDiskFull(t *testing.T) {
	f := newTree(t)
	mountSmall(t, f.path("small"), "256k")
	s := f.open("small/{namespace}.jsonl", fillDisk)
	var accepted []*event.Event
	batchOf := func(n int) (batch []*event.Event) {
		for i := range 20 {
			batch = append(batch, sinktest.Large(20*n+i, i, 1500))
		}
		return batch
	}
	full := -1
	for n := range 100 {
		err := s.Write(t.Context(), batchOf(n))
		if err == nil {
			accepted = append(accepted, batchOf(n)...)
			continue
		}
		if class, _ := sinks.Classify(err); class != sinks.ClassRetry || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("class %s, retry for want of space is wanted: %v", class, err)
		}
		full = n
		break
	}
	if full < 1 {
		t.Fatalf("the disk was full at batch %d", full)
	}
	f.expect("small/prod.jsonl", accepted...)

	// Half a batch may fit where a whole one does not.
	if err := s.Write(t.Context(), batchOf(full)[:1]); err == nil {
		accepted = append(accepted, batchOf(full)[:1]...)
	}
	f.expect("small/prod.jsonl", accepted...)

	// Somebody makes room: a rotated copy is taken away.
	if err := os.Rename(f.path("small/prod.jsonl"), f.path("small/prod.1")); err != nil {
		t.Fatal(err)
	}
	if got := f.ids("small/prod.1"); !slices.Equal(got, sinktest.IDs(accepted)) {
		t.Errorf("got %d lines, want %d", len(got), len(accepted))
	}
	if err := os.Remove(f.path("small/prod.1")); err != nil {
		t.Fatal(err)
	}
	f.write(s, batchOf(full)...)
	f.expect("small/prod.jsonl", batchOf(full)...)
}

// TestDiskFullTogether: of an object that goes to two files, nothing stays in the
// one that had room.
func TestDiskFullTogether(t *testing.T) {
	f := newTree(t)
	mountSmall(t, f.path("small"), "64k")
	s := f.open("small/{date}.jsonl", fillDisk)
	a, b := sinktest.Event(0, 0), sinktest.Large(1, 0, 200<<10)
	b.Time = b.Time.AddDate(0, 0, 1)
	if err := s.Write(t.Context(), []*event.Event{a, b}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("error %v", err)
	}
	for _, name := range f.names() {
		if got := f.read(name); len(got) != 0 {
			t.Errorf("%s holds %d bytes", name, len(got))
		}
	}
}

// TestReadOnlyAndBack remounts the disk read-only: that is retried, not given up.
func TestReadOnlyAndBack(t *testing.T) {
	f := newTree(t)
	dir := f.path("small")
	mountSmall(t, dir, "1m")
	events := sinktest.Events(2, 1)
	s := f.open("small/{name}.jsonl", fillDisk)
	f.write(s, events[0])
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skip("remounting is not permitted here: ", err)
	}
	s = f.open("small/{name}.jsonl", fillDisk)
	err := s.Write(t.Context(), events[1:])
	if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassRetry {
		t.Errorf("error %v, class %s; retry is wanted", err, class)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	f.write(s, events[1])
	f.expect(filepath.Join("small", "web-0.jsonl"), events...)
	if strings.Contains(f.logs.String(), "twice") {
		t.Error(f.logs)
	}
}
