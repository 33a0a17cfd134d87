package testkit

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Answering serves a Unix socket, whose path must be short, in a folder until the test ends: answer has each connection once it has
// read a request over HTTP, and then the connection ends.
func Answering(t testing.TB, dir string, answer func(c net.Conn)) (path string) {
	t.Helper()
	path = filepath.Join(dir, "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				if _, err := io.Copy(io.Discard, r.Body); err == nil {
					answer(c)
				}
			})
		}
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		running.Wait()
	})
	return path
}

// Script returns a connection to a server that sends the next part each time the client has written, and ends the
// connection when it has sent them all, or when the client has not written for the time of patience. ended is closed then.
func Script(patience time.Duration, parts ...[]byte) (client net.Conn, ended <-chan struct{}) {
	client, server := net.Pipe()
	asked, done := make(chan struct{}, len(parts)+1), make(chan struct{})
	go func() {
		defer close(done)
		var reading sync.WaitGroup
		defer reading.Wait()
		defer server.Close()
		reading.Go(func() {
			for buf := make([]byte, 64<<10); ; {
				if _, err := server.Read(buf); err != nil {
					return
				}
				select {
				case asked <- struct{}{}:
				default:
				}
			}
		})
		late := time.NewTimer(patience)
		defer late.Stop()
		for _, part := range parts {
			late.Reset(patience)
			select {
			case <-asked:
			case <-late.C:
				return
			}
			if _, err := server.Write(part); err != nil {
				return
			}
		}
		<-late.C
	}()
	return client, done
}
