package rawwatch

import (
	"bufio"
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	// heldMemory and heldDisk bound what all held watches of a process keep. Beyond
	// heldMemory a watch goes on in a file; beyond heldDisk it is not read.
	heldMemory = 64 << 20
	heldDisk   = 4 << 30

	// heldChunk is how much of a held watch is read and kept at a time.
	heldChunk = 32 << 10
)

// errorLine is how a watch begins that the server refuses after its headers.
var errorLine = []byte(`{"type":"ERROR"`)

// Spool bounds what held watches keep, and says where. It is safe for concurrent use.
type Spool struct {
	dir          string // "" for the system's
	memory, disk atomic.Int64
}

// NewSpool makes a Spool whose files are in dir, the system's folder for temporary
// files if that is "". Files have no names, where the system allows that, and their
// contents are encrypted with a key that only the process knows: what comes here has
// not been redacted.
func NewSpool(dir string) *Spool { return &Spool{dir: dir} }

// take takes n bytes of a bounded number.
func take(used *atomic.Int64, n, limit int64) bool {
	if used.Add(n) <= limit {
		return true
	}
	used.Add(-n)
	return false
}

// held is a watch request that is sent while a list is read, from the list's version
// on. It keeps what the watch brings, so that the server's history need not last as
// long as the list does. The stream that takes it over reads what was kept, and then
// the rest as it comes.
type held struct {
	spool   *Spool
	version string
	began   time.Time
	timeout time.Duration
	cancel  context.CancelCauseFunc
	opened  chan struct{} // closed when the server has answered, or failure is set
	done    chan struct{} // closed when run has ended; body is the reader's then

	// Of run and, after it has ended, of the reader.
	body   io.Reader
	closer io.Closer // nil: no response

	mu      sync.Mutex // guards what is below
	more    sync.Cond  // of mu: something was kept, or ended is set
	failure error      // the server refused
	taken   bool
	ended   bool // nothing more is kept
	err     error
	chunks  [][]byte // kept in memory; before the file
	file    *spoolFile
	rest    []byte // what the file did not take
}

// hold sends a watch request from a version on, unless h is one that goes on. What
// it returns has to be closed or taken over. An error means that the list has to
// begin again.
func (s *Source) hold(ctx context.Context, h *held, version string) (*held, error) {
	if h != nil {
		err := h.refused()
		switch {
		case isExpired(err):
			return h, err
		case err == nil || permanent(err):
			return h, nil
		}
		h.close()
	}
	timeout := s.watchTimeout(quietTimeout)
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	h = &held{
		spool: s.cfg.Spool, version: version, began: time.Now(), timeout: timeout, cancel: cancel,
		opened: make(chan struct{}), done: make(chan struct{}),
	}
	h.more.L = &h.mu
	s.running.Go(func() {
		defer close(h.done)
		h.run(ctx, s, version)
	})
	return h, nil
}

// run keeps what the watch brings until somebody takes it over, the watch ends, or
// there is no room.
func (h *held) run(ctx context.Context, s *Source, version string) {
	body, err := s.getWatch(ctx, h.cancel, version, h.timeout)
	if err != nil {
		h.end(err, err)
		close(h.opened)
		return
	}
	r := bufio.NewReaderSize(body, 16) // the least; longer reads pass it by
	h.body, h.closer = r, body
	close(h.opened)
	if start, err := r.Peek(len(errorLine)); err == nil && bytes.Equal(start, errorLine) {
		err := readError(newLines(r))
		h.end(err, err)
		return
	}
	buf := make([]byte, heldChunk)
	for {
		n, err := r.Read(buf)
		switch {
		case !h.keep(buf[:n]):
			klog.FromContext(ctx).Info("Informer cannot keep more of a watch until its list is read; the server may end it",
				"resource", s.cfg.GVR.String(), "namespace", s.cfg.Namespace)
			h.end(nil, err)
			return
		case err != nil:
			h.end(nil, err)
			return
		case h.isTaken():
			h.end(nil, nil)
			return
		}
	}
}

// readError reads the error of an ERROR line.
func readError(l *lines) error {
	line, err := l.next()
	if err != nil {
		return err
	}
	_, raw, err := rawjson.SplitWatchLine(line)
	if err != nil {
		return &unreadable{err}
	}
	return statusError(raw)
}

// end notes that nothing more is kept, and why.
func (h *held) end(failure, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failure, h.err, h.ended = failure, err, true
	h.more.Broadcast()
}

// refused is why the server refused the watch; nil if it has not.
func (h *held) refused() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failure
}

func (h *held) isTaken() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.taken
}

// takeOver leaves it to the caller to read what comes. It waits for the server's
// answer, and returns an error if that is a refusal.
func (h *held) takeOver(ctx context.Context) error {
	select {
	case <-h.opened:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.taken = true
	return h.failure
}

// keep keeps p, and tells whether it could; what it could not is kept as the rest.
func (h *held) keep(p []byte) bool {
	for len(p) > 0 && h.file == nil {
		n := h.keepInMemory(p)
		if n == 0 {
			break
		}
		p = p[n:]
	}
	if len(p) == 0 {
		return true
	}
	n, err := h.keepInFile(p)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rest = bytes.Clone(p[n:])
	h.more.Broadcast()
	return err == nil
}

func (h *held) keepInMemory(p []byte) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := len(h.chunks) - 1
	if last < 0 || len(h.chunks[last]) == cap(h.chunks[last]) {
		if !take(&h.spool.memory, heldChunk, heldMemory) {
			return 0
		}
		h.chunks = append(h.chunks, make([]byte, 0, heldChunk))
		last++
	}
	chunk := h.chunks[last]
	n := copy(chunk[len(chunk):cap(chunk)], p)
	h.chunks[last] = chunk[:len(chunk)+n]
	h.more.Broadcast()
	return n
}

// keepInFile returns how much the file took.
func (h *held) keepInFile(p []byte) (int, error) {
	if h.file == nil {
		f, err := newSpoolFile(h.spool)
		if err != nil {
			return 0, err
		}
		h.mu.Lock()
		h.file = f
		h.mu.Unlock()
	}
	return h.file.write(p)
}

// Read reads what was kept, and then the watch itself.
func (h *held) Read(p []byte) (int, error) {
	h.mu.Lock()
	for len(h.chunks) == 0 && (h.file == nil || h.file.unread() == 0) && !h.ended {
		h.more.Wait()
	}
	switch {
	case len(h.chunks) > 0:
		defer h.mu.Unlock()
		n := copy(p, h.chunks[0])
		if h.chunks[0] = h.chunks[0][n:]; len(h.chunks[0]) == 0 {
			h.chunks = h.chunks[1:]
			h.spool.memory.Add(-heldChunk)
		}
		return n, nil
	case h.file != nil && h.file.unread() > 0:
		h.mu.Unlock() // what was written stays as it is
		return h.file.read(p)
	}
	defer h.mu.Unlock()
	if len(h.rest) > 0 {
		n := copy(p, h.rest)
		h.rest = h.rest[n:]
		return n, nil
	}
	if h.err != nil {
		return 0, h.err
	}
	h.mu.Unlock()
	defer h.mu.Lock()
	return h.body.Read(p)
}

// Close ends the request and gives back what was kept.
func (h *held) Close() error {
	h.close()
	return nil
}

func (h *held) close() {
	if h == nil {
		return
	}
	h.cancel(nil)
	<-h.done
	if h.closer != nil {
		_ = h.closer.Close()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spool.memory.Add(-int64(len(h.chunks)) * heldChunk)
	h.chunks = nil
	if h.file != nil {
		h.file.close()
		h.file = nil
	}
}

// spoolFile is a queue of bytes on disk, with one writer and one reader. The bytes
// are encrypted with a key that is kept nowhere.
type spoolFile struct {
	spool      *Spool
	file       *os.File
	wrote, got atomic.Int64
	in, out    cipher.Stream
	buf        []byte // the writer's
}

func newSpoolFile(s *Spool) (*spoolFile, error) {
	var secret [32 + aes.BlockSize]byte
	_, _ = rand.Read(secret[:]) // never fails
	key, iv := secret[:32], secret[32:]
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(s.dir, "watch-*")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(file.Name()) // where an open file keeps its name, close removes it
	return &spoolFile{spool: s, file: file, in: cipher.NewCTR(block, iv), out: cipher.NewCTR(block, iv)}, nil
}

// write returns how many bytes of p were written; after an error it must not be called again.
func (f *spoolFile) write(p []byte) (int, error) {
	if !take(&f.spool.disk, int64(len(p)), heldDisk) {
		return 0, fmt.Errorf("watches that wait for their lists hold more than %d bytes", int64(heldDisk))
	}
	f.buf = append(f.buf[:0], p...)
	f.in.XORKeyStream(f.buf, f.buf)
	n, err := f.file.WriteAt(f.buf, f.wrote.Load())
	f.spool.disk.Add(int64(n - len(p)))
	f.wrote.Add(int64(n))
	return n, err
}

// unread is how many bytes were written and not read.
func (f *spoolFile) unread() int64 { return f.wrote.Load() - f.got.Load() }

func (f *spoolFile) read(p []byte) (int, error) {
	p = p[:min(int64(len(p)), f.unread())]
	n, err := f.file.ReadAt(p, f.got.Load())
	f.out.XORKeyStream(p[:n], p[:n])
	f.got.Add(int64(n))
	return n, err
}

func (f *spoolFile) close() {
	_ = f.file.Close()
	_ = os.Remove(f.file.Name())
	f.spool.disk.Add(-f.wrote.Load())
}
