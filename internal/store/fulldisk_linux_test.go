package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/testkit"
)

// smallDisk mounts a filesystem of its own, and returns a function that fills it up
// to the last block, as other programs may, and one that frees that again.
func smallDisk(t *testing.T, size string) (dir string, fill, free func()) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	other := filepath.Join(dir, "other")
	fill = func() {
		f, err := os.OpenFile(other, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for chunk := 1 << 20; chunk >= 4096; {
			if _, err := f.Write(make([]byte, chunk)); err != nil {
				chunk /= 16
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir, fill, func() {
		if err := os.Remove(other); err != nil {
			t.Fatal(err)
		}
	}
}

func appendNoise(t *testing.T, s *Store, n int) {
	t.Helper()
	for range n {
		b := s.NewBatch()
		b.Append(Record{Time: time.Now(), Payload: noise(900)}, []Route{{Sink: "a"}})
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHollowReserve wants room behind the files of the reserve, also behind those that a
// kill has left empty, or a copy of the directory has.
func TestHollowReserve(t *testing.T) {
	dir, _, _ := smallDisk(t, "96m")
	dir = filepath.Join(dir, "store")
	open := func() (s *Store, room []int64) {
		t.Helper()
		s = openTest(t, dir, Options{MaxBytes: 64 << 20})
		files, err := filepath.Glob(filepath.Join(dir, "RESERVE-*"))
		if err != nil || len(files) != 8 {
			t.Fatalf("files of the reserve: %q (%v)", files, err)
		}
		for _, file := range files {
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			room = append(room, info.Sys().(*syscall.Stat_t).Blocks*512)
		}
		return s, room
	}
	s, whole := open()
	if part := int64(96<<20) / 16 / 8; slices.Min(whole) < part {
		t.Fatalf("room %v at first, part %d", whole, part)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		file := filepath.Join(dir, fmt.Sprintf("RESERVE-%d", i))
		if err := errors.Join(os.Remove(file), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if _, again := open(); !slices.Equal(again, whole) {
		t.Errorf("room %v, was %v", again, whole)
	}
}

// TestFollowerOfAFullDisk: what waits for room in a replica's directory ends with the caller's context.
func TestFollowerOfAFullDisk(t *testing.T) {
	dir, fill, _ := smallDisk(t, "96m")
	r, err := OpenReplica(filepath.Join(dir, "store"), Options{MaxBytes: 64 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	fill()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan error, 1)
	go func() {
		var err error
		for n := uint64(1); err == nil; n++ {
			b := r.s.db.NewBatch()
			if err = b.Set(layout.MetaKey(fmt.Sprint(n)), noise(900), nil); err == nil {
				err = r.Apply(ctx, Position{First: n, Last: n, Term: 1, Sum: n}, b.Repr())
			}
		}
		ended <- errors.Join(err, r.Close())
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, ErrFailed) || !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the replica waits for room, though its caller has ended")
	}
}

// TestEraseOnAFullDisk is that for what a scrub asks of a replica, whose memtables are full but for the last one.
func TestEraseOnAFullDisk(t *testing.T) {
	dir, fill, _ := smallDisk(t, "96m")
	r, err := OpenReplica(filepath.Join(dir, "store"), Options{MaxBytes: 64 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	fill()
	for n := uint64(1); r.s.db.Metrics().MemTable.Count < engine.MemTables; n++ {
		b := r.s.db.NewBatch()
		if err := b.Set(layout.MetaKey(fmt.Sprint(n)), noise(900), nil); err != nil {
			t.Fatal(err)
		}
		if err := r.Apply(t.Context(), Position{First: n, Last: n, Term: 1, Sum: n}, b.Repr()); err != nil {
			t.Fatal(err)
		}
	}
	logged := r.s.db.Metrics().WAL.BytesIn
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(r.Erase(ctx), r.Close()) }()
	eventually(t, "it writes into the log", func() bool { return r.s.db.Metrics().WAL.BytesIn > logged })
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, ErrFailed) || !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the replica waits for room, though its caller has ended")
	}
}

// TestEraseWaitsForRoom: a replica whose disk has no room to compact erases when it has.
func TestEraseWaitsForRoom(t *testing.T) {
	dir, fill, free := smallDisk(t, "96m")
	var logged testkit.Log
	r, err := OpenReplica(filepath.Join(dir, "store"), Options{MaxBytes: 64 << 20, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint64(30000) {
		b := r.s.db.NewBatch()
		err := b.Set(layout.MetaKey(fmt.Sprint(n%15000)), noise(900), nil)
		if err == nil {
			err = r.Apply(t.Context(), Position{First: n + 1, Last: n + 1, Term: 1, Sum: n + 1}, b.Repr())
		}
		if err == nil && n%15000 == 14999 {
			err = r.s.flush(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	fill()
	ended := make(chan error, 1)
	go func() { ended <- r.Erase(t.Context()) }()
	eventually(t, "a compaction finds no room", func() bool { return len(ended) > 0 || strings.Contains(logged.String(), "the disk is full") })
	free()
	if err := errors.Join(<-ended, r.Close()); err != nil {
		t.Error(err)
	}
}

// TestOthersFillTheDisk wants ingest to pause, acks to go on, and what they free to
// come back, while every free block is taken at once by another program.
func TestOthersFillTheDisk(t *testing.T) {
	dir, fill, _ := smallDisk(t, "96m")
	var logged testkit.Log
	s := openTest(t, filepath.Join(dir, "store"), Options{
		MaxBytes: 64 << 20, MinFree: 8 << 20, RetentionMaxBytes: 1, Logger: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	q := ensure(t, s, "a")
	for range 1000 {
		b := s.NewBatch()
		for range 20 {
			b.Append(Record{Time: time.Now(), Payload: noise(900)}, []Route{{Sink: "a"}})
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	fill()
	done := make(chan error, 1)
	ctx := t.Context()
	run, stop := context.WithCancel(ctx)
	go func() { done <- s.Run(run) }()
	eventually(t, "ingest pauses", func() bool { return s.Health().Paused || s.measure() != nil })
	after := uint64(0)
	for items := read(t, q, 0, 512); len(items) > 0; items = read(t, q, after, 512) {
		for _, item := range items {
			after = item.Position
			if err := q.Ack(after); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "the space of what was delivered comes back", func() bool {
		usage, err := s.opts.FS.GetDiskUsage(dir)
		return err == nil && usage.AvailBytes > 8<<20
	})
	eventually(t, "ingest resumes", func() bool { return !s.Health().Paused && !s.files.Short() })
	appendNoise(t, s, 10)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if lines := logged.Like(""); len(lines) > 30 {
		t.Errorf("%d lines of log: %q", len(lines), lines[:5])
	}
	for _, line := range logged.Like("") {
		if len(line) > 500 {
			t.Errorf("a line of %d bytes: %.300s", len(line), line)
		}
	}
}

// TestOpenOnAFullDisk opens a store with a backlog in its write-ahead log: out of its
// reserve, and without one not at all, but at once and with the reason.
func TestOpenOnAFullDisk(t *testing.T) {
	dir, fill, free := smallDisk(t, "48m")
	path := filepath.Join(dir, "store")
	s := openTest(t, path, Options{MaxBytes: 24 << 20})
	ensure(t, s, "a")
	appendNoise(t, s, 4000)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	crashed := filepath.Join(dir, "crashed")
	copyKilled(t, crashed)
	fill()

	s = openTest(t, path, Options{MaxBytes: 24 << 20})
	if h := s.Health(); h.Paused != s.files.Short() || h.Paused && h.Reason != ReasonDiskFree {
		t.Errorf("health %+v", h)
	}
	q := ensure(t, s, "a")
	if items := read(t, q, 0, 10); len(items) != 10 || q.Ack(items[0].Position) != nil {
		t.Errorf("read %d", len(items))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	for _, spare := range []int64{0, 64 << 10, 1 << 20} {
		fill()
		leave(t, filepath.Join(dir, "other"), spare)
		opened := make(chan error, 1)
		go func() {
			s, err := Open(crashed, Options{}) // has no reserve
			if err == nil {
				err = s.Close()
			}
			opened <- err
		}()
		select {
		case err := <-opened:
			if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "is full") {
				t.Errorf("with %d bytes free: %v", spare, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("Open hangs with %d bytes free", spare)
		}
	}
	free()
	s = openTest(t, crashed, Options{})
	if st := s.LogStats(); st.Records != 4000 {
		t.Errorf("log %+v", st)
	}
}

// copyKilled makes a store as a kill leaves it, with a backlog in the write-ahead log
// only.
func copyKilled(t *testing.T, to string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store")
	s := openTest(t, path, Options{})
	ensure(t, s, "a")
	appendNoise(t, s, 4000)
	copyDir(t, path, to)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// leave makes a file so many bytes smaller.
func leave(t *testing.T, path string, bytes int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err == nil {
		err = os.Truncate(path, info.Size()-bytes)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.Walk(from, func(path string, info os.FileInfo, err error) error {
		rel, rerr := filepath.Rel(from, path)
		if err = errors.Join(err, rerr); err != nil {
			return err
		}
		if strings.HasPrefix(info.Name(), "RESERVE") {
			return nil
		}
		target := filepath.Join(to, rel)
		if info.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.Create(target)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		return errors.Join(err, out.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
}
