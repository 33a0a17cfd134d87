package plugin_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/plugin"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// answering serves a socket whose connections get an answer to their first request, byte by byte as it is written.
func answering(t testing.TB, answer func(c net.Conn)) (url string) {
	t.Helper()
	return "unix://" + testkit.Answering(t, testservers.SocketDir(t), answer)
}

// TestHostileAnswers: no answer that is not understood in full is taken for an acceptance, holds a Write up, is read without
// a bound or shows a secret in an error.
func TestHostileAnswers(t *testing.T) {
	const events, accepted = 3, `{"status": "accepted"}`
	secret := canary + strings.Repeat("-and-more", 20) // longer than what an error quotes
	t.Setenv("PLUGIN_TEST_"+secret, "Bearer "+secret)
	ok := `{"results": [` + strings.Join([]string{accepted, accepted, accepted}, ",") + `]}`
	status := func(code int, headers, body string) string {
		return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n%s", code, len(body), headers, body)
	}
	raw := func(text string) func(net.Conn) {
		return func(c net.Conn) { _, _ = io.WriteString(c, text) }
	}
	document := func(body string) func(net.Conn) { return raw(status(200, "", body)) }
	// hold keeps the connection open until the client leaves it.
	hold := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = io.WriteString(c, text)
			_, _ = io.Copy(io.Discard, c)
		}
	}
	var sent atomic.Int64
	// flood sends a beginning and then a part until the client leaves.
	flood := func(begin, part string) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = io.WriteString(c, begin)
			for {
				n, err := io.WriteString(c, part)
				if sent.Add(int64(n)); err != nil {
					return
				}
			}
		}
	}
	for name, test := range map[string]struct {
		answer func(net.Conn)
		class  sinks.Class
	}{
		"nothing":                       {raw(""), sinks.ClassRetry},
		"no HTTP":                       {raw("garbage " + secret + "\r\n\r\n"), sinks.ClassRetry},
		"a long line that is no HTTP":   {raw(strings.Repeat("x", 1<<20) + "\r\n\r\n"), sinks.ClassRetry},
		"a header that does not end":    {flood("HTTP/1.1 200 OK\r\nX: ", strings.Repeat("x", 1<<10)), sinks.ClassRetry},
		"headers that do not end":       {flood("HTTP/1.1 200 OK\r\n", "X: y\r\n"), sinks.ClassRetry},
		"interim answers that don't":    {flood("", "HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n"), sinks.ClassRetry},
		"hangs before the answer":       {hold(""), sinks.ClassRetry},
		"hangs in the headers":          {hold("HTTP/1.1 200 OK\r\nContent-"), sinks.ClassRetry},
		"hangs in the document":         {hold("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + ok), sinks.ClassRetry},
		"another protocol":              {hold("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"), sinks.ClassPause},
		"a document that does not end":  {flood("HTTP/1.1 200 OK\r\n\r\n"+ok, strings.Repeat(" ", 1<<10)), sinks.ClassRetry},
		"a refusal that does not end":   {flood("HTTP/1.1 503 X\r\n\r\n", strings.Repeat("x", 1<<10)), sinks.ClassRetry},
		"a document that is too long":   {document(ok + strings.Repeat(" ", 1<<20)), sinks.ClassRetry},
		"a document that breaks off":    {raw("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + ok), sinks.ClassRetry},
		"chunks that break off":         {raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n", len(ok), ok)), sinks.ClassRetry},
		"no document":                   {raw("HTTP/1.1 204 No Content\r\n\r\n"), sinks.ClassRetry},
		"an empty document":             {document(""), sinks.ClassRetry},
		"no results":                    {document("{}"), sinks.ClassRetry},
		"null":                          {document(`{"results": null}`), sinks.ClassRetry},
		"text":                          {document("accepted " + secret), sinks.ClassRetry},
		"one result too few":            {document(`{"results": [` + accepted + "," + accepted + `]}`), sinks.ClassRetry},
		"one result too many":           {document(strings.Replace(ok, "[", "["+accepted+",", 1)), sinks.ClassRetry},
		"results by id":                 {document(strings.ReplaceAll(ok, `{"status"`, `{"id": "x", "status"`)), sinks.ClassRetry},
		"a result repeated":             {document(strings.Replace(ok, `"accepted"`, `"retry", "status": "accepted"`, 1)), sinks.ClassRetry},
		"results repeated":              {document(`{"results": [], ` + ok[1:]), sinks.ClassRetry},
		"a status that is not known":    {document(strings.Replace(ok, "accepted", "ok "+secret, 1)), sinks.ClassRetry},
		"a status in capitals":          {document(strings.Replace(ok, "accepted", "Accepted", 1)), sinks.ClassRetry},
		"no status":                     {document(strings.Replace(ok, accepted, "{}", 1)), sinks.ClassRetry},
		"a secret for a member":         {document(strings.Replace(ok, "results", secret, 1)), sinks.ClassRetry},
		"a secret for a result":         {document(strings.Replace(ok, accepted, `secret`, 1)), sinks.ClassRetry},
		"a negative delay":              {document(strings.Replace(ok, accepted, `{"status": "retry", "retryAfter": -1}`, 1)), sinks.ClassRetry},
		"a delay beyond every number":   {document(strings.Replace(ok, accepted, `{"status": "retry", "retryAfter": 1e999}`, 1)), sinks.ClassRetry},
		"something behind the document": {document(ok + ok), sinks.ClassRetry},
		"depth":                         {document(strings.Repeat("[", 3000)), sinks.ClassRetry},
		"compressed, unasked":           {raw(status(200, "Content-Encoding: gzip\r\n", "\x1f\x8b\x08")), sinks.ClassRetry},
		"a redirect":                    {raw(status(302, "Location: http://127.0.0.1:1/"+secret+"\r\n", secret)), sinks.ClassPause},
		"a refusal that quotes":         {raw(status(401, "", "no "+secret)), sinks.ClassPause},
		"busy until the end of time":    {raw(status(503, "Retry-After: 99999999999999999999\r\n", "")), sinks.ClassRetry},
	} {
		t.Run(name, func(t *testing.T) {
			sent.Store(0)
			c := plugin.NewConfig()
			c.URL, c.Timeout = answering(t, test.answer), sinks.Duration(time.Second)
			c.Headers = map[string]sinks.Header{"Authorization": {Secret: sinks.Secret{Env: "PLUGIN_TEST_" + secret}}}
			err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(events, events))
			if err == nil {
				t.Fatal("the events are accepted")
			}
			if _, ok := errors.AsType[*sinks.BatchError](err); ok {
				t.Error("some events are accepted")
			}
			if class, _ := sinks.Classify(err); class != test.class {
				t.Errorf("class %v, want %v: %.500v", class, test.class, err)
			}
			if strings.Contains(err.Error(), canary) {
				t.Errorf("a secret is in %v", err)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			if n := sent.Load(); n > 4<<20 {
				t.Errorf("%d bytes were read of an answer without an end", n)
			}
			t.Logf("%.300v", err)
		})
	}
}
