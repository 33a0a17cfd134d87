package file_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
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

// TestDiskFull fills a disk: what does not fit leaves nothing behind, and goes
// through once there is room.
func TestDiskFull(t *testing.T) {
	f := newTree(t)
	mountSmall(t, f.path("small"), "256k")
	s := f.open("small/{namespace}.jsonl")
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
	s := f.open("small/{date}.jsonl")
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
	s := f.open("small/{name}.jsonl")
	f.write(s, events[0])
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skip("remounting is not permitted here: ", err)
	}
	s = f.open("small/{name}.jsonl")
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
