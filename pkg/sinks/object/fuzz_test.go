package object

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
	"github.com/watcherd/watcherd/pkg/sinks/internal/samples"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// overSocket opens a sink whose storage is behind a Unix socket.
func overSocket(t testing.TB, path string) *sink {
	t.Helper()
	c := NewConfig()
	c.S3 = S3{Bucket: "lake", Endpoint: "http://localhost", AccessKey: "watcherd", SecretKey: &sinks.Secret{Env: "OBJECT_FUZZ_SECRET"}}
	s := sinktest.Open(t, c).(*sink)
	o := s.storage.client.Options
	o.Socket, o.Timeout = path, 10*time.Second
	s.storage.client = post.New(o)
	t.Cleanup(s.storage.client.Close)
	return s
}

// FuzzAnswer: whatever bytes a storage answers to each request take bounded memory, what is read of them is within its limits, and an
// error is a line without the secret.
func FuzzAnswer(f *testing.F) {
	const canary = "canary-token-4711"
	f.Setenv("OBJECT_FUZZ_SECRET", canary)
	var answer []byte
	path := testkit.Answering(f, testservers.SocketDir(f), func(c net.Conn) { _, _ = c.Write(answer) })
	s := overSocket(f, path)
	var object bytes.Buffer
	z, err := zstd.NewWriter(&object)
	if err != nil {
		f.Fatal(err)
	}
	for i := range 3 {
		fmt.Fprintf(z, `{"specversion":"1.0","id":"event-%d","data":{"id":1}}`+"\n", i)
	}
	if err := z.Close(); err != nil {
		f.Fatal(err)
	}
	http200 := func(body string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	for _, seed := range []string{
		http200(`<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a/00000000000000000005.jsonl.zst</Key></Contents><Contents><Key>b</Key></Contents></ListBucketResult>`),
		http200(object.String()),
		"HTTP/1.1 200 OK\r\nX-Amz-Meta-Watcherd-Last: 7\r\nX-Amz-Meta-Watcherd-Count: -1\r\n\r\n",
		"HTTP/1.1 403 X\r\nConnection: close\r\n\r\n<Error><Code>AccessDenied</Code><Message>canary-token-4711 &amp; &#10;</Message></Error>",
		"HTTP/1.1 301 X\r\nX-Amz-Bucket-Region: eu-1\r\n\r\n",
		"HTTP/1.1 400 X\r\n\r\n<!DOCTYPE x [<!ENTITY a \"b\">]><Error><Code>ExpiredToken</Code></Error>",
		"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		answer = sent
		testkit.Allocates(t, 4*maxLine+256*len(sent), func() {
			keys, more, listed := s.storage.list(t.Context(), "a/", "a/")
			if more && len(keys) == 0 {
				t.Error("a list without an end")
			}
			for i, key := range keys {
				if len(key) > maxKey || i > 0 && key <= keys[i-1] {
					t.Errorf("%q is listed", key)
				}
			}
			_, headed := s.storage.head(t.Context(), "a/b")
			ids, read := s.read(t.Context(), "a/b")
			if len(ids) > maxIDs {
				t.Errorf("%d ids are kept", len(ids))
			}
			for _, err := range []error{listed, headed, read, s.storage.put(t.Context(), "a/b", meta{}, []byte("x"), false)} {
				if err == nil {
					continue
				}
				if text := err.Error(); strings.Contains(text, canary) || len(text) > 8<<10 || strings.ContainsAny(text, "\r\n\x1b") {
					t.Errorf("the error is %q", text)
				}
			}
		})
	})
}

// TestEndlessList: a storage that lists without an end has no say in how many names are kept, nor how long they are.
func TestEndlessList(t *testing.T) {
	t.Setenv("OBJECT_FUZZ_SECRET", "secret")
	for name, key := range map[string]func(i int) string{
		"many": func(i int) string { return fmt.Sprintf("%020d_%08d%s", 5, i, suffix) },
		"long": func(i int) string { return fmt.Sprintf("%020d_%08d%s%s", 5, i, strings.Repeat("x", 2000), suffix) },
	} {
		pages := 0
		path := testkit.Answering(t, testservers.SocketDir(t), func(c net.Conn) {
			var list strings.Builder
			fmt.Fprintf(&list, "<ListBucketResult><IsTruncated>%t</IsTruncated>", pages < 40)
			for i := range 1000 {
				list.WriteString("<Contents><Key>a/" + key(pages*1000+i) + "</Key></Contents>")
			}
			list.WriteString("</ListBucketResult>")
			pages++
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", list.Len(), list.String())
		})
		s := overSocket(t, path)
		keys, _, _, err := s.around(t.Context(), "a/", 1, 10)
		if len(keys) > maxObjects || pages > maxObjects/1000+2 {
			t.Errorf("%s: %d names are kept of %d pages: %v", name, len(keys), pages, err)
		}
	}
}

// TestPathOfAnObject: no namespace leads out of its folder.
func TestPathOfAnObject(t *testing.T) {
	c := NewConfig()
	c.Path = "all/{namespace}/{date}/"
	path, err := c.folders()
	if err != nil {
		t.Fatal(err)
	}
	e := samples.Event(0, 0)
	for namespace, want := range map[string]string{"..": "%2E.", ".": "%2E", ".a": "%2Ea", "a.b": "a.b", "a/../b": "a%2F..%2Fb", "\x00": "%00"} {
		e.Namespace = namespace
		if got := string(path.Append(nil, e, appendValue)); got != "all/"+want+"/2026-03-01/" {
			t.Errorf("%q: %s", namespace, got)
		}
	}
}
