package main

import (
	"bytes"
	"io"
	"log" //nolint:depguard // it is under test
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestUnsolicitedAnswer: what a receiver sends unasked is not in the log, where net/http would quote it.
func TestUnsolicitedAnswer(t *testing.T) {
	t.Cleanup(func() {
		klog.ClearLogger()
		log.SetFlags(log.LstdFlags)
		log.SetOutput(os.Stderr)
	})
	var out lockedBuffer
	if _, err := (&logFlags{level: "info", format: "json"}).logger(&out); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\ncanary-token-4711")
		_, _ = io.Copy(io.Discard, c)
	}()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(out.String(), "Unsolicited"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no message: %s", out.String())
		}
	}
	if text := out.String(); strings.Contains(text, "canary") || !strings.HasPrefix(text, "{") {
		t.Errorf("logged %s", text)
	}
}
