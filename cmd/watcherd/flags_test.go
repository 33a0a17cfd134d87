package main

import (
	"bytes"
	"context"
	"fmt"
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

// TestEndedRequests: a stop that ends a request is no error of client-go in the log; others are.
func TestEndedRequests(t *testing.T) {
	var out bytes.Buffer
	flags, writer := log.Flags(), log.Writer()
	t.Cleanup(func() { klog.ClearLogger(); log.SetFlags(flags); log.SetOutput(writer) })
	if _, err := (&logFlags{level: "info", format: "text"}).logger(&out); err != nil {
		t.Fatal(err)
	}
	l := klog.Background().WithValues("resource", "pods")
	l.Error(fmt.Errorf("read: %w", context.Canceled), "Unexpected error when reading response body")
	if out.Len() > 0 {
		t.Errorf("the log has %s", &out)
	}
	if l.Error(io.ErrUnexpectedEOF, "cut short"); !strings.Contains(out.String(), "resource=pods") {
		t.Errorf("the log has %q", &out)
	}
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

// TestDaemonOfTheFolder: where run finds its file, the other commands find its daemon.
func TestDaemonOfTheFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	const head = "apiVersion: watcherd.dev/v1alpha1\nkind: WatcherConfig\nwatches: [{name: w, resources: [pods]}]\nsinks: [{name: s, stdout: {}}]\n"
	for _, c := range []struct {
		name, file string // "": no file
		flags      adminFlags
		want       string
	}{
		{name: "no file", want: defaultAdmin},
		{name: "its listener", file: head + "admin: {listen: \"127.0.0.1:28600\"}\n", want: "http://127.0.0.1:28600"},
		{name: "a flag names another", file: head + "admin: {listen: \"127.0.0.1:28600\"}\n", flags: adminFlags{url: "http://127.0.0.1:1"}, want: "http://127.0.0.1:1"},
		{name: "not valid", file: head + "nonsense: 1\n", want: defaultAdmin},
		{name: "not valid elsewhere", file: head + "admin: {listen: \"127.0.0.1:28600\"}\nnonsense: 1\n", want: "http://127.0.0.1:28600"},
		{name: "an unknown kind of sink", file: strings.Replace(head, "stdout", "opensearch", 1) + "admin: {listen: \"127.0.0.1:28600\"}\n", want: "http://127.0.0.1:28600"},
		{name: "named and not valid elsewhere", file: head + "admin: {listen: \"127.0.0.1:28600\"}\nnonsense: 1\n", flags: adminFlags{config: defaultConfig}, want: "http://127.0.0.1:28600"},
		{name: "not valid there", file: head + "admin: {listen: \"127.0.0.1:28600\", nonsense: 1}\n", want: defaultAdmin},
		{name: "an expression that is not one", file: head + "admin: {listen: \"127.0.0.1:28600\"}\nroutes: [{name: r, when: \"(\", sinks: [s]}]\n", want: "http://127.0.0.1:28600"},
		{name: "no listener", file: head + "admin: {listen: \"\"}\n", want: defaultAdmin},
	} {
		if err := os.RemoveAll(defaultConfig); err != nil {
			t.Fatal(err)
		}
		if c.file != "" {
			if err := os.WriteFile(defaultConfig, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		client, err := c.flags.client()
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got, err := client.Page(false); err != nil || got != c.want+"/ui/" {
			t.Errorf("%s: the page is at %s, not at %s: %v", c.name, got, c.want, err)
		}
	}
}
