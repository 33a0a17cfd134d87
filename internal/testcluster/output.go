package testcluster

import (
	"bytes"
	"sync"
)

// Output collects what a process writes, for readers at any time.
type Output struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// String is the output so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Reset discards the output so far.
func (o *Output) Reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Reset()
}

// Tail is the end of the output, enough to see what went wrong.
func (o *Output) Tail() string {
	s := o.String()
	return s[max(0, len(s)-100_000):]
}
