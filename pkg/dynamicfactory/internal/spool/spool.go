// Package spool buffers streams that cannot be forwarded yet, in memory and beyond that in
// files.
//
// A [Pool] bounds its buffers: 64 MiB in memory and 4 GiB on disk. Files are encrypted
// with a key that is never stored, because the streams are not redacted. They have no
// names where the system allows that.
package spool

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

const (
	maxMemory = 64 << 20
	maxDisk   = 4 << 30

	// Chunk is the unit of memory.
	Chunk = 32 << 10
)

// Pool bounds the memory and the files of its buffers. It is safe for concurrent use.
type Pool struct {
	dir          string // "": the system's
	memory, disk atomic.Int64
}

// NewPool returns a Pool with its files in dir; "": the system's folder for temporary
// files.
func NewPool(dir string) *Pool { return &Pool{dir: dir} }

// take takes n of a bounded number of bytes.
func take(used *atomic.Int64, n, limit int64) bool {
	if used.Add(n) <= limit {
		return true
	}
	used.Add(-n)
	return false
}

// Buffer is a queue of bytes with one writer and one reader. It does not block the writer.
type Buffer struct {
	pool *Pool

	mu     sync.Mutex // guards the fields below
	more   sync.Cond  // of mu: there are more bytes, or ended is set
	ended  bool
	err    error    // of End
	chunks [][]byte // before the file
	file   *file
	rest   []byte // after the file, which did not take them
}

// NewBuffer returns an empty buffer. The caller closes it.
func (p *Pool) NewBuffer() *Buffer {
	b := &Buffer{pool: p}
	b.more.L = &b.mu
	return b
}

// Write adds p. It reports whether p is within the bounds. If it is not, p is buffered all
// the same, and the writer must not add more.
func (b *Buffer) Write(p []byte) bool {
	for len(p) > 0 && b.file == nil {
		n := b.toMemory(p)
		if n == 0 {
			break
		}
		p = p[n:]
	}
	if len(p) == 0 {
		return true
	}
	n, err := b.toFile(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rest = bytes.Clone(p[n:])
	b.more.Broadcast()
	return err == nil
}

func (b *Buffer) toMemory(p []byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := len(b.chunks) - 1
	if last < 0 || len(b.chunks[last]) == cap(b.chunks[last]) {
		if !take(&b.pool.memory, Chunk, maxMemory) {
			return 0
		}
		b.chunks = append(b.chunks, make([]byte, 0, Chunk))
		last++
	}
	chunk := b.chunks[last]
	n := copy(chunk[len(chunk):cap(chunk)], p)
	b.chunks[last] = chunk[:len(chunk)+n]
	b.more.Broadcast()
	return n
}

// toFile returns the number of bytes that the file took.
func (b *Buffer) toFile(p []byte) (int, error) {
	if b.file == nil {
		f, err := newFile(b.pool)
		if err != nil {
			return 0, err
		}
		b.mu.Lock()
		b.file = f
		b.mu.Unlock()
	}
	return b.file.write(p)
}

// End notes that the writer adds no more. err may be nil.
func (b *Buffer) End(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended, b.err = true, err
	b.more.Broadcast()
}

// Read reads the next bytes, and waits for them. Behind the last byte it returns 0 bytes
// and the error of End.
func (b *Buffer) Read(p []byte) (int, error) {
	b.mu.Lock()
	for len(b.chunks) == 0 && (b.file == nil || b.file.unread() == 0) && !b.ended {
		b.more.Wait()
	}
	if len(b.chunks) == 0 && b.file != nil && b.file.unread() > 0 {
		b.mu.Unlock() // the written part of a file does not change
		return b.file.read(p)
	}
	defer b.mu.Unlock()
	switch {
	case len(b.chunks) > 0:
		n := copy(p, b.chunks[0])
		if b.chunks[0] = b.chunks[0][n:]; len(b.chunks[0]) == 0 {
			b.chunks = b.chunks[1:]
			b.pool.memory.Add(-Chunk)
		}
		return n, nil
	case len(b.rest) > 0:
		n := copy(p, b.rest)
		b.rest = b.rest[n:]
		return n, nil
	}
	return 0, b.err
}

// Close returns the memory and the file. The writer must have ended.
func (b *Buffer) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pool.memory.Add(-int64(len(b.chunks)) * Chunk)
	b.chunks = nil
	if b.file != nil {
		b.file.close()
		b.file = nil
	}
}

// file is a queue of bytes on disk with one writer and one reader.
type file struct {
	pool       *Pool
	file       *os.File
	wrote, got atomic.Int64
	in, out    cipher.Stream
	buf        []byte // the writer's
}

func newFile(p *Pool) (*file, error) {
	var secret [32 + aes.BlockSize]byte
	_, _ = rand.Read(secret[:]) // never fails
	key, iv := secret[:32], secret[32:]
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(p.dir, "watch-*")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name()) // where an open file keeps its name, close removes it
	return &file{pool: p, file: f, in: cipher.NewCTR(block, iv), out: cipher.NewCTR(block, iv)}, nil
}

// write returns the number of bytes of p that were written. After an error it must not be
// called again.
func (f *file) write(p []byte) (int, error) {
	if !take(&f.pool.disk, int64(len(p)), maxDisk) {
		return 0, fmt.Errorf("spool: more than %d bytes on disk", int64(maxDisk))
	}
	f.buf = append(f.buf[:0], p...)
	f.in.XORKeyStream(f.buf, f.buf)
	n, err := f.file.WriteAt(f.buf, f.wrote.Load())
	f.pool.disk.Add(int64(n - len(p)))
	f.wrote.Add(int64(n))
	return n, err
}

func (f *file) unread() int64 { return f.wrote.Load() - f.got.Load() }

func (f *file) read(p []byte) (int, error) {
	p = p[:min(int64(len(p)), f.unread())]
	n, err := f.file.ReadAt(p, f.got.Load())
	f.out.XORKeyStream(p[:n], p[:n])
	f.got.Add(int64(n))
	return n, err
}

func (f *file) close() {
	_ = f.file.Close()
	_ = os.Remove(f.file.Name())
	f.pool.disk.Add(-f.wrote.Load())
}
