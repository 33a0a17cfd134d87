package spool

import (
	"bytes"
	"io"
	"os"
	"testing"
)

// A file does not show its contents on the disk, and returns them unchanged.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	s := NewPool(dir)
	f, err := newFile(s)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
		t.Errorf("the folder shows %v, %v", names, err)
	}
	var want, got []byte
	for i := range 100 {
		piece := bytes.Repeat([]byte("a secret value "), i)
		if n, err := f.write(piece); err != nil || n != len(piece) {
			t.Fatalf("%d of %d bytes are written: %v", n, len(piece), err)
		}
		want = append(want, piece...)
		for i%3 == 0 && f.unread() > 500 {
			buf := make([]byte, 499)
			n, err := f.read(buf)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, buf[:n]...)
		}
	}
	raw, err := io.ReadAll(io.NewSectionReader(f.file, 0, 1<<30))
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) != len(want) || bytes.Contains(raw, []byte("secret")) || bytes.Count(raw, raw[:16]) > 1 {
		t.Errorf("the file shows what it holds, or holds %d bytes of %d", len(raw), len(want))
	}
	for f.unread() > 0 {
		buf := make([]byte, 1000)
		n, err := f.read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, buf[:n]...)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes come back, not the %d that were written", len(got), len(want))
	}
	s.disk.Store(maxDisk - 10)
	if n, err := f.write(make([]byte, 11)); err == nil || n != 0 {
		t.Errorf("%d bytes are written beyond the bound: %v", n, err)
	}
}
