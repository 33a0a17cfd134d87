// Package testkit has the small helpers that the tests of several packages share.
package testkit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
)

// Log collects what a logger writes. It is safe for concurrent use.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// String returns all lines so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Reset discards the lines so far.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Reset()
}

// Like returns the lines so far that contain the text.
func (l *Log) Like(text string) (lines []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// Write writes a file that only its user may read, in place of one of its name at once: no reader
// sees a part of it.
func Write(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// FilesWith returns the names of the files below dir that contain the text. One that is deleted meanwhile contains nothing.
func FilesWith(t testing.TB, dir, text string) (files []string) {
	t.Helper()
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if bytes.Contains(content, []byte(text)) {
			files = append(files, filepath.Base(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Noise is n bytes that do not compress.
func Noise(n int) []byte {
	p := make([]byte, 0, n+8)
	rng := rand.New(rand.NewPCG(1, 2))
	for len(p) < n {
		p = binary.LittleEndian.AppendUint64(p, rng.Uint64())
	}
	return p[:n]
}

// Allocates fails the test if f allocates more than so many bytes, all goroutines counted.
func Allocates(t testing.TB, most int, f func()) {
	t.Helper()
	allocated := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := allocated()
	f()
	if n := allocated() - before; n > uint64(most) {
		t.Errorf("%d bytes were allocated, want %d at most", n, most)
	}
}
