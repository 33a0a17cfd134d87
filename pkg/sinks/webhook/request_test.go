package webhook_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

func TestForms(t *testing.T) {
	events := sinktest.Events(3, 3)
	odd := *events[0]
	odd.Name = "a b\"c%é\n"
	odd.Cluster = "prod eu"
	for _, test := range []struct {
		name        string
		format      sinks.Format
		batchMode   bool
		events      []*event.Event
		contentType string
		body        []byte
		header      map[string]string
	}{
		{"structured", sinks.CloudEvents, false, events[:1], "application/cloudevents+json", event.AppendCloudEvent(nil, events[0]), nil},
		{"default", "", false, events[:1], "application/cloudevents+json", event.AppendCloudEvent(nil, events[0]), nil},
		{"batch", sinks.CloudEvents, true, events, "application/cloudevents-batch+json", event.AppendBatch(nil, events), nil},
		{"batch of one", sinks.CloudEvents, true, events[:1], "application/cloudevents-batch+json", event.AppendBatch(nil, events[:1]), nil},
		{"json", sinks.JSON, false, events[:1], "application/json", event.AppendJSON(nil, events[0]), nil},
		{"binary", sinks.CloudEventsBinary, false, []*event.Event{&odd}, "application/json", event.AppendData(nil, &odd), map[string]string{
			"ce-specversion": "1.0",
			"ce-id":          odd.ID,
			"ce-type":        "dev.watcherd.resource.added",
			"ce-source":      "/clusters/prod%2520eu",
			"ce-subject":     "/apis/apps/v1/namespaces/prod/deployments/a%2520b%2522c%2525%25C3%25A9%250A",
			"ce-sequence":    "00000000000000000001",
			"ce-time":        "2026-03-01T12:00:00Z",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEndpoint(t)
			defer e.stop()
			c := e.config()
			c.Headers = map[string]sinks.Header{"X-Tenant": {Text: "blue"}}
			s := sinktest.Open(t, c, func(o *sinks.Options) { o.Format, o.BatchMode = test.format, test.batchMode })
			if err := s.Write(t.Context(), test.events); err != nil {
				t.Fatal(err)
			}
			got, n := e.last()
			if n != 1 || got.proto != 2 {
				t.Errorf("%d requests over HTTP/%d; 1 over HTTP/2 is wanted", n, got.proto)
			}
			if ct := got.header.Get("Content-Type"); ct != test.contentType {
				t.Errorf("content type %q, want %q", ct, test.contentType)
			}
			if !bytes.Equal(got.body, test.body) {
				t.Errorf("body\n%s\nwant\n%s", got.body, test.body)
			}
			if !test.batchMode && got.header.Get("Idempotency-Key") != test.events[0].ID {
				t.Errorf("idempotency key %q", got.header.Get("Idempotency-Key"))
			}
			if got.header.Get("X-Tenant") != "blue" {
				t.Error("the configured header is missing")
			}
			for name, want := range test.header {
				if v := got.header.Get(name); v != want {
					t.Errorf("%s: %q, want %q", name, v, want)
				}
			}
		})
	}
}

// TestLongAttributes: an object whose name makes headers that no server takes is refused alone, and does not pause the sink.
func TestLongAttributes(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header.Get("Ce-Subject")) > 8<<10 { // as servers do whose limit is lower than Go's
			w.WriteHeader(http.StatusRequestHeaderFieldsTooLarge)
		}
	}))
	t.Cleanup(server.Close)
	c := webhook.NewConfig()
	c.URL.Text = server.URL
	s := sinktest.Open(t, c, func(o *sinks.Options) { o.Format = sinks.CloudEventsBinary })
	e := *sinktest.Events(1, 1)[0]
	e.Name = strings.Repeat("ä", 253) // as long as other kinds' names, each byte escaped
	if err := s.Write(t.Context(), []*event.Event{&e}); err != nil {
		t.Error(err)
	}
	e.Name = strings.Repeat("a", 20<<10)
	sinktest.WantClass(t, s.Write(t.Context(), []*event.Event{&e}), sinks.ClassPoison, "use format cloudevents")
}

func TestBinaryBatchesAreRefused(t *testing.T) {
	c := webhook.NewConfig()
	c.URL.Text = "https://example.com"
	if _, err := c.Open(t.Context(), sinks.Options{Format: sinks.CloudEventsBinary, BatchMode: true}); err == nil || !has(err.Error(), "batch.maxEvents") {
		t.Errorf("error %v", err)
	}
}

// TestSigning verifies with the official library, during a change of keys.
func TestSigning(t *testing.T) {
	const (
		encoded = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
		raw     = "just some text, not base64!"
	)
	e := newEndpoint(t)
	defer e.stop()
	c := e.config()
	previous := secretFile(t, raw)
	c.Signing = &webhook.Signing{Secret: secretFile(t, encoded), PreviousSecret: &previous}
	s := sinktest.Open(t, c, func(o *sinks.Options) { o.BatchMode = true })
	events := sinktest.Events(2, 2)
	if err := s.Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	got, _ := e.last()
	first, err := standardwebhooks.NewWebhook(encoded)
	if err != nil {
		t.Fatal(err)
	}
	second, err := standardwebhooks.NewWebhookRaw([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := standardwebhooks.NewWebhookRaw([]byte("another key"))
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]*standardwebhooks.Webhook{"current": first, "previous": second} {
		if err := key.Verify(got.body, got.header); err != nil {
			t.Errorf("%s key: %v", name, err)
		}
		if err := key.Verify(append(got.body, ' '), got.header); err == nil {
			t.Errorf("%s key: a changed body was accepted", name)
		}
	}
	if err := stranger.Verify(got.body, got.header); err == nil {
		t.Error("a stranger's key was accepted")
	}
	id := got.header.Get("Webhook-Id")
	if id == "" || strings.Contains(id, ".") || id == events[0].ID {
		t.Errorf("id of a batch: %q", id)
	}
	if err := s.Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	if again, _ := e.last(); again.header.Get("Webhook-Id") != id {
		t.Error("the same batch got another id")
	}
	if err := s.Write(t.Context(), events[:1]); err != nil {
		t.Fatal(err)
	}
	if other, _ := e.last(); other.header.Get("Webhook-Id") == id {
		t.Error("another batch got the same id")
	}
}

func TestAuthorization(t *testing.T) {
	e := newEndpoint(t)
	defer e.stop()
	t.Setenv("WEBHOOK_TEST_TOKEN", "Token abc")
	token := secretFile(t, "s3cret")
	for _, test := range []struct {
		change func(c *webhook.Config)
		want   string
	}{
		{func(c *webhook.Config) {
			c.Headers = map[string]sinks.Header{"Authorization": {Secret: sinks.Secret{Env: "WEBHOOK_TEST_TOKEN"}}}
		}, "Token abc"},
		{func(c *webhook.Config) { c.BearerToken = &token }, "Bearer s3cret"},
		{func(c *webhook.Config) { c.BasicAuth = &sinks.BasicAuth{Username: "me", Password: token} }, "Basic bWU6czNjcmV0"},
	} {
		c := e.config()
		test.change(c)
		if err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)); err != nil {
			t.Fatal(err)
		}
		if got, _ := e.last(); got.header.Get("Authorization") != test.want {
			t.Errorf("got %q, want %q", got.header.Get("Authorization"), test.want)
		}
	}
}

// TestSecretRotation: a new value is used soon; while there is none, the old one.
func TestSecretRotation(t *testing.T) {
	e := newEndpoint(t)
	defer e.stop()
	c := e.config()
	token := secretFile(t, "first")
	c.BearerToken = &token
	s := sinktest.Open(t, c)
	used := func() string {
		if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
			t.Fatal(err)
		}
		got, _ := e.last()
		return got.header.Get("Authorization")
	}
	if got := used(); got != "Bearer first" {
		t.Fatalf("got %q", got)
	}
	replaceFile(t, token.File, "second\n")
	eventually(t, "the new token is used", func() bool { return used() == "Bearer second" })
	replaceFile(t, token.File, "")
	time.Sleep(1100 * time.Millisecond) // past the time for which a value is trusted unread
	if got := used(); got != "Bearer second" {
		t.Errorf("with an empty file: %q", got)
	}
}

func TestMissingSecretPauses(t *testing.T) {
	e := newEndpoint(t)
	defer e.stop()
	for name, change := range map[string]func(c *webhook.Config){
		"token": func(c *webhook.Config) { c.BearerToken = &sinks.Secret{File: "/no/such/file"} },
		"signing": func(c *webhook.Config) {
			c.Signing = &webhook.Signing{Secret: sinks.Secret{Env: "NO_SUCH_VARIABLE_4711"}}
		},
		"caFile": func(c *webhook.Config) { c.TLS.CAFile = "/no/such/file" },
		"line break": func(c *webhook.Config) {
			s := secretFile(t, "two\nlines")
			c.BearerToken = &s
		},
		"not base64": func(c *webhook.Config) { c.Signing = &webhook.Signing{Secret: secretFile(t, "whsec_***")} },
	} {
		c := e.config()
		change(c)
		err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
		if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassPause {
			t.Errorf("%s: error %v, class %s; pause is wanted", name, err, class)
		}
	}
	if _, n := e.last(); n != 0 {
		t.Errorf("%d requests were made", n)
	}
}

func TestValidate(t *testing.T) {
	for _, test := range []struct{ block, bad string }{
		{`{"url":"https://ops.example.com/k8s"}`, ""},
		{`{"url":"https://h/p?token=x","headers":{"X-A":"plain","Authorization":{"env":"TOKEN"}},"timeout":"3s","denyPrivate":true,"compress":"gzip"}`, ""},
		{`{}`, "url: required"},
		{`{"url":{"env":"HOOK"},"method":"PUT","accept":"status == 200 && body.ok"}`, ""},
		{`{"url":{"env":"A","file":"b"}}`, "url: name exactly one"},
		{`{"url":"https://h","method":"GET"}`, "method: must be POST, PUT or PATCH"},
		{`{"url":"https://h","accept":"body.ok","results":true}`, "accept: cannot be used with results"},
		{`{"url":"https://h","accept":"bdy.ok"}`, "accept: undeclared reference to 'bdy'"},
		{`{"url":"https://h","accept":"status"}`, "accept: the value must be a bool"},
		{`{"url":"https://h","accept":"body.matches(headers[\"x\"])"}`, "accept: matches() needs a literal pattern"},
		{`{"url":"https://h","oauth":{"tokenURL":"https://h/t","clientID":"me","clientSecret":{"env":"A"}}}`, ""},
		{`{"url":"https://h","oauth":{"tokenURL":"h","clientID":"me","clientSecret":{"env":"A"}}}`, "oauth.tokenURL: required"},
		{`{"url":"https://h","oauth":{"tokenURL":"http://h/t","clientID":"me","clientSecret":{"env":"A"}}}`, "oauth.tokenURL: takes clientSecret unencrypted"},
		{`{"url":"https://h","oauth":{"tokenURL":"http://h/t","clientID":"me","clientSecret":{"env":"A"},"insecure":true}}`, ""},
		{`{"url":"https://h","oauth":{"tokenURL":"http://127.0.0.1/t","clientID":"me","clientSecret":{"env":"A"}}}`, ""},
		{`{"url":"https://h","bearerToken":{"env":"A"},"oauth":{"tokenURL":"https://h/t","clientID":"me","clientSecret":{"env":"A"}}}`, "oauth: sets Authorization, as bearerToken does"},
		{`{"url":"ftp://h"}`, "url: must begin"},
		{`{"url":"https://"}`, "url: names no host"},
		{`{"url":"https://me:pass@h/"}`, "url: must not hold a user"},
		{`{"url":"https://h","timeout":"0s"}`, "timeout: "},
		{`{"url":"https://h","maxEventBytes":"256Ki","results":true}`, ""},
		{`{"url":"https://h","maxEventBytes":"1Ki"}`, "maxEventBytes: must be at least 4Ki"},
		{`{"url":"https://h","maxEventBytes":-1}`, "maxEventBytes: "},
		{`{"url":"https://h","headers":{"Authorization":"Bearer x"}}`, "headers.Authorization: is a secret"},
		{`{"url":"https://h","headers":{"X-Vault-Token":"x"}}`, "headers.X-Vault-Token: is a secret"},
		{`{"url":"https://h","headers":{"DD-API-KEY":"x"}}`, "headers.DD-API-KEY: is a secret"},
		{`{"url":"https://h","headers":{"Private-Token":"x"},"insecure":true}`, ""},
		{`{"url":"https://h","headers":{"X-Team":"x","X-Partition-Key":"x"}}`, ""},
		{`{"url":"http://h","bearerToken":{"env":"A"}}`, "bearerToken: goes out unencrypted"},
		{`{"url":"http://h","basicAuth":{"username":"a","password":{"env":"A"}}}`, "basicAuth: goes out unencrypted"},
		{`{"url":"http://127.0.0.1.example.com","headers":{"X-A":{"env":"A"}}}`, "headers.X-A: goes out unencrypted"},
		{`{"url":"http://h","bearerToken":{"env":"A"},"insecure":true}`, ""},
		{`{"url":"http://[::1]:80","bearerToken":{"env":"A"}}`, ""},
		{`{"url":"http://127.0.0.9","bearerToken":{"env":"A"}}`, ""},
		{`{"url":"http://localhost:8","bearerToken":{"env":"A"}}`, ""},
		{`{"url":"http://localhost:8","proxyURL":"http://p","bearerToken":{"env":"A"}}`, "bearerToken: goes out unencrypted, as url is http:// and by way of proxyURL"},
		{`{"url":"http://localhost:8","proxyURL":"http://p","bearerToken":{"env":"A"},"insecure":true}`, ""},
		{`{"url":"http://localhost:8","proxyURL":"http://localhost:9","bearerToken":{"env":"A"}}`, ""},
		{`{"url":"http://localhost:8","proxyURL":"https://p","bearerToken":{"env":"A"}}`, ""},
		{`{"url":"https://h","proxyURL":"http://p","bearerToken":{"env":"A"}}`, ""},
		{`{"url":"https://h","proxyURL":"http://p","oauth":{"tokenURL":"http://localhost/t","clientID":"me","clientSecret":{"env":"A"}}}`, "oauth.tokenURL: takes clientSecret unencrypted, as it is http:// and by way of proxyURL"},
		{`{"url":"https://h","headers":{"webhook-id":"x"}}`, "headers.webhook-id: is set by watcherd"},
		{`{"url":"https://h","headers":{"X Y":"x"}}`, "headers.X Y: is not the name"},
		{`{"url":"https://h","headers":{"X-Y":"a\nb"}}`, "headers.X-Y: holds a character"},
		{`{"url":"https://h","headers":{"authorization":{"env":"A"}},"bearerToken":{"env":"B"}}`, "bearerToken: sets Authorization"},
		{`{"url":"https://h","basicAuth":{"username":"a:b","password":{"env":"B"}}}`, "basicAuth.username: "},
		{`{"url":"https://h","basicAuth":{"username":"a","password":{}}}`, "basicAuth.password: name exactly one"},
		{`{"url":"https://h","signing":{"secret":{"env":"A","file":"b"}}}`, "signing.secret: name exactly one"},
		{`{"url":"https://h","signing":{"secret":{"env":"A"}},"compress":"gzip"}`, "compress: cannot be used with signing"},
		{`{"url":"https://h","tls":{"certFile":"a"}}`, "tls: certFile and keyFile"},
		{`{"url":"https://h","proxyURL":"http://p","denyPrivate":true}`, "denyPrivate: cannot be kept"},
		{`{"url":"https://h","proxyURL":"http://u:p@p"}`, "proxyURL: must not hold a user"},
	} {
		c := webhook.NewConfig()
		if err := json.Unmarshal([]byte(test.block), c); err != nil {
			t.Errorf("%s: %v", test.block, err)
			continue
		}
		err := c.Validate()
		switch {
		case test.bad == "" && err != nil:
			t.Errorf("%s: %v", test.block, err)
		case test.bad != "" && (err == nil || !strings.Contains(err.Error(), test.bad)):
			t.Errorf("%s: %v does not say %q", test.block, err, test.bad)
		case err != nil && strings.Contains(err.Error(), "pass"+"@"):
			t.Errorf("%s: the error repeats a password: %v", test.block, err)
		}
	}
	for _, block := range []string{`{"headers":{"A":{"envv":"B"}}}`, `{"headers":{"A":3}}`, `{"headers":{"A":{}}}`, `{"timeout":15}`} {
		if err := json.Unmarshal([]byte(block), webhook.NewConfig()); err == nil {
			t.Errorf("%s was decoded", block)
		}
	}
	if d := webhook.NewConfig().Defaults(); d.MaxEvents != 1 {
		t.Errorf("defaults %+v: batches must be asked for", d)
	}
}

// TestBodies: an event with a body is a request of its own, unless bodies are joined.
func TestBodies(t *testing.T) {
	events := sinktest.Events(3, 3)
	for _, ev := range events {
		ev.Body, ev.ContentType = []byte("body of "+ev.Name), "text/plain; charset=utf-8"
	}
	join := func(events []*event.Event) ([]byte, string, error) {
		if len(events) > 2 {
			return nil, "", errors.New("line 1, column 2: too much")
		}
		return fmt.Appendf(nil, "%d", len(events)), "application/x-count", nil
	}
	for _, test := range []struct {
		name   string
		join   sinks.Join
		events []*event.Event
		want   string // the last body and its type
		n      int    // requests
		err    string
	}{
		{"alone", nil, events, "body of web-2 text/plain; charset=utf-8", 3, ""},
		{"joined", join, events[:2], "2 application/x-count", 1, ""},
		{"one of those that are joined", join, events[:1], "body of web-0 text/plain; charset=utf-8", 1, ""},
		{"without a body", func([]*event.Event) ([]byte, string, error) { return nil, "", nil }, events, "", 0, "body: null for several events"},
		{"failed", join, events, "", 0, "body: line 1, column 2: too much"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEndpoint(t)
			defer e.stop()
			s := sinktest.Open(t, e.config(), func(o *sinks.Options) { o.BatchMode, o.Join = true, test.join })
			err := s.Write(t.Context(), test.events)
			if class, _ := sinks.Classify(err); test.err != "" && (err == nil || err.Error() != test.err || class != sinks.ClassPoison) || test.err == "" && err != nil {
				t.Errorf("error %v of class %s", err, class)
			}
			got, n := e.last()
			if text := string(got.body) + " " + got.header.Get("Content-Type"); n != test.n || n > 0 && text != test.want {
				t.Errorf("%d requests, the last %q; %d and %q are wanted", n, text, test.n, test.want)
			}
		})
	}
}
