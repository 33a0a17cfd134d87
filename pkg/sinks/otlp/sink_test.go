package otlp_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	collogs "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/otlp"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "canary-token-4711"

// TestConformance runs the suite against the Collector's receiver, with TLS, that is killed, stopped and restarted.
func TestConformance(t *testing.T) {
	ca := testca.New(t, "otlp")
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		dir := t.TempDir()
		cert, key := ca.Pair("127.0.0.1", nil)
		c := testservers.StartCollector(t, testservers.CollectorSpec{Cert: string(cert), Key: string(key)})
		testkit.Write(t, filepath.Join(dir, "ca.pem"), ca.PEM)
		t.Setenv("OTLP_TEST_TOKEN", canary)
		var broken, frozen bool
		path := ""
		return sinktest.Destination{
			Config: func() sinks.Config {
				o := otlp.NewConfig()
				o.Endpoint, o.Timeout = "https://"+c.Addr+path, sinks.Duration(5*time.Second)
				o.TLS = sinks.TLS{CAFile: "ca.pem"}
				o.Headers = map[string]sinks.Header{"Authorization": {Secret: sinks.Secret{Env: "OTLP_TEST_TOKEN"}}}
				return o
			},
			Options: func(o *sinks.Options) { o.Dir = dir },
			Received: func(t *testing.T) (ids []string) {
				for _, r := range c.Accepted() {
					var body struct{ ID string }
					if err := json.Unmarshal([]byte(r.Body.(string)), &body); err != nil {
						t.Error(err)
					}
					ids = append(ids, body.ID)
				}
				return ids
			},
			Break:  func(*testing.T) { c.Kill(); broken = true },
			Hang:   func(*testing.T) { c.Freeze(); frozen = true },
			Reject: func(_ *testing.T, id string) { c.Refuse(id) },
			Repair: func(*testing.T) {
				if frozen {
					c.Thaw()
				}
				if broken {
					c.Start()
				}
				broken, frozen = false, false
				c.Refuse("")
			},
			Restart: func(*testing.T) { c.Restart() },
			Secrets: []string{canary},
			Stop:    c.Kill,
		}
	})
}

// TestRecord: a record has what the conventions ask for.
func TestRecord(t *testing.T) {
	c := testservers.StartCollector(t, testservers.CollectorSpec{})
	o := otlp.NewConfig()
	o.Endpoint = "http://" + c.Addr
	e := sinktest.Event(3, 1)
	e.Summary = "replicas 2 → 3"
	gap := &event.Event{ID: "gap", Type: event.Gap, Time: e.Time, Sequence: 9, Cluster: "test", Resource: e.Resource, Gap: &event.GapData{Cause: "expired"}}
	if err := sinktest.Open(t, o, func(o *sinks.Options) { o.Format = sinks.CloudEventsBinary }).Write(t.Context(), []*event.Event{e, gap}); err != nil {
		t.Fatal(err)
	}
	o.Timestamps, o.Structured, o.Compress = otlp.Observed, true, "none"
	before := time.Now().UnixNano()
	e.Object = json.RawMessage(`{"n":9007199254740993,"f":0.5,"huge":1e400,"list":[true,null,"\ud800"],"":{}}`)
	if err := sinktest.Open(t, o).Write(t.Context(), []*event.Event{e}); err != nil {
		t.Fatal(err)
	}
	got := c.Accepted()
	if len(got) != 3 {
		t.Fatalf("%d records", len(got))
	}
	want := map[string]any{
		"cloudevents.event_id": e.ID, "cloudevents.event_source": "/clusters/test", "cloudevents.event_spec_version": "1.0",
		"cloudevents.event_subject": "/apis/apps/v1/namespaces/prod/deployments/web-1", "cloudevents.event_type": "dev.watcherd.resource.updated",
		"k8s.namespace.name": "prod", "k8s.resource.name": "deployments", "k8s.resource.group": "apps",
		"k8s.deployment.name": "web-1", "k8s.deployment.uid": e.UID,
		"watcherd.name": "web-1", "watcherd.uid": e.UID, "watcherd.resource_version": e.ResourceVersion, "watcherd.summary": e.Summary, "watcherd.sequence": 4.0,
	}
	r := got[0]
	if fmt.Sprint(r.Attributes) != fmt.Sprint(want) || fmt.Sprint(r.Resource) != "map[k8s.cluster.name:test service.name:watcherd]" {
		t.Errorf("attributes\n%v, want\n%v; resource %v", r.Attributes, want, r.Resource)
	}
	if r.EventName != "dev.watcherd.resource.updated" || r.Severity != "INFO" || r.Time != e.Time.UnixNano() || r.Observed != r.Time {
		t.Errorf("record %+v", r)
	}
	if text := r.Body.(string); !strings.Contains(text, `"replicas":3`) || strings.Contains(text, "specversion") {
		t.Errorf("body %s", text)
	}
	if got[1].Severity != "WARN" || got[1].EventName != "dev.watcherd.gap" {
		t.Errorf("record of a gap %+v", got[1])
	}
	if r = got[2]; r.Time < before || r.Observed != r.Time {
		t.Errorf("time %d, sent behind %d", r.Time, before)
	}
	body, _ := json.Marshal(r.Body.(map[string]any)["data"].(map[string]any)["object"])
	if string(body) != `{"":{},"f":0.5,"huge":"1e400","list":[true,null,"�"],"n":9007199254740993}` && string(body) != `{"":{},"f":0.5,"huge":"1e400","list":[true,null,"�"],"n":9007199254740992}` {
		t.Errorf("body %s", body)
	}
}

// receiver answers as it is told, and notes the ids of the events that it was sent.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	answer func(w http.ResponseWriter, ids []string)
	seen   [][]string
	header http.Header
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body := io.Reader(req.Body)
		if req.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(req.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = z
		}
		b, err := io.ReadAll(body)
		var request collogs.ExportLogsServiceRequest
		if err == nil {
			err = proto.Unmarshal(b, &request)
		}
		if err != nil {
			t.Error(err)
			return
		}
		var ids []string
		for _, record := range request.ResourceLogs[0].ScopeLogs[0].LogRecords {
			ids = append(ids, record.Attributes[0].Value.GetStringValue())
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen, r.header = append(r.seen, ids), req.Header
		r.answer(w, ids)
	}))
	t.Cleanup(r.Close)
	return r
}

// partial is a success with so many rejected records.
func partial(t *testing.T, w http.ResponseWriter, rejected int, message string) {
	t.Helper()
	b, err := proto.Marshal(&collogs.ExportLogsServiceResponse{PartialSuccess: &collogs.ExportLogsPartialSuccess{RejectedLogRecords: int64(rejected), ErrorMessage: message}})
	if err != nil {
		t.Error(err)
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(b)
}

// TestPartialSuccess: the rejected record is found, and no other one is lost.
func TestPartialSuccess(t *testing.T) {
	r := newReceiver(t)
	events := sinktest.Events(16, 16)
	bad := events[11].ID
	taken := map[string]bool{}
	r.answer = func(w http.ResponseWriter, ids []string) {
		rejected := 0
		for _, id := range ids {
			if id == bad {
				rejected++
			} else {
				taken[id] = true
			}
		}
		partial(t, w, rejected, "too old")
	}
	o := otlp.NewConfig()
	o.Endpoint = r.URL + "/base/v1/logs"
	b, ok := errors.AsType[*sinks.BatchError](sinktest.Open(t, o).Write(t.Context(), events))
	if !ok || len(b.Failed) != 1 || b.Failed[11] == nil {
		t.Fatalf("%v", b)
	}
	if class, _ := sinks.Classify(b.Failed[11]); class != sinks.ClassPoison || !strings.Contains(b.Failed[11].Error(), "too old") {
		t.Errorf("%v", b.Failed[11])
	}
	if len(taken) != 15 || len(r.seen) != 9 {
		t.Errorf("%d events in %d requests", len(taken), len(r.seen))
	}
}

// TestPartialSuccessInOtherWords: a receiver that does not answer in the request's own media type rejects records nevertheless.
func TestPartialSuccessInOtherWords(t *testing.T) {
	r := newReceiver(t)
	binary, err := proto.Marshal(&collogs.ExportLogsServiceResponse{PartialSuccess: &collogs.ExportLogsPartialSuccess{RejectedLogRecords: 1, ErrorMessage: "too old"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ media, body string }{
		{"application/json", `{"partialSuccess":{"rejectedLogRecords":"1","errorMessage":"too old"}}`},
		{"application/json; charset=utf-8", `{"partial_success":{"rejected_log_records":1,"error_message":"too old"},"more":true}`},
		{"Application/X-Protobuf", string(binary)},
		{"application/protobuf", string(binary)},
	} {
		r.answer = func(w http.ResponseWriter, _ []string) {
			w.Header().Set("Content-Type", test.media)
			fmt.Fprint(w, test.body)
		}
		o := otlp.NewConfig()
		o.Endpoint = r.URL + "/v1/logs"
		b, ok := errors.AsType[*sinks.BatchError](sinktest.Open(t, o).Write(t.Context(), sinktest.Events(1, 1)))
		if !ok {
			t.Errorf("%s: the record counts as accepted", test.media)
			continue
		}
		sinktest.WantClass(t, b.Failed[0], sinks.ClassPoison, "too old")
	}
	for _, body := range []string{``, `{}`, `{"status":"ok"}`, `{"partialSuccess":{}}`} {
		r.answer = func(w http.ResponseWriter, _ []string) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, body)
		}
		o := otlp.NewConfig()
		o.Endpoint = r.URL + "/v1/logs"
		if err := sinktest.Open(t, o).Write(t.Context(), sinktest.Events(1, 1)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestClasses: what the receiver answers decides what happens next. No secret shows in an error.
func TestClasses(t *testing.T) {
	r := newReceiver(t)
	dir := t.TempDir()
	testkit.Write(t, filepath.Join(dir, "token"), []byte("Bearer "+canary+"\n"))
	o := otlp.NewConfig()
	o.Endpoint = r.URL
	o.Headers = map[string]sinks.Header{"Authorization": {Secret: sinks.Secret{File: "token"}}, "X-Scope-OrgID": {Text: "team"}}
	s := sinktest.Open(t, o, func(o *sinks.Options) { o.Dir = dir })
	for status, want := range map[int]sinks.Class{
		400: sinks.ClassPoison, 413: sinks.ClassPoison, 422: sinks.ClassPoison,
		401: sinks.ClassPause, 403: sinks.ClassPause, 404: sinks.ClassPause, 302: sinks.ClassPause,
		408: sinks.ClassRetry, 429: sinks.ClassRetry, 500: sinks.ClassRetry, 503: sinks.ClassRetry,
	} {
		r.answer = func(w http.ResponseWriter, _ []string) {
			w.Header().Set("Retry-After", "7")
			w.Header().Set("Location", "https://"+canary+".example.com/")
			w.WriteHeader(status)
			fmt.Fprintf(w, "no: %s", r.header.Get("Authorization"))
		}
		err := s.Write(t.Context(), sinktest.Events(1, 1))
		if b, ok := errors.AsType[*sinks.BatchError](err); ok {
			err = b.Failed[0]
		}
		class, after := sinks.Classify(err)
		if err == nil || class != want || class == sinks.ClassRetry && after != 7*time.Second || sinks.IsTooLarge(err) != (status == 413) {
			t.Errorf("status %d: class %s, want %s: %v", status, class, want, err)
		}
		if text := fmt.Sprintf("%v %+v", err, err); strings.Contains(text, canary) || !strings.Contains(text, fmt.Sprint(status)) {
			t.Errorf("status %d: %s", status, text)
		}
	}
	if got := r.header; got.Get("X-Scope-OrgID") != "team" || got.Get("Authorization") != "Bearer "+canary || got.Get("Content-Type") != "application/x-protobuf" {
		t.Errorf("headers %v", got)
	}
	r.answer = func(w http.ResponseWriter, _ []string) { partial(t, w, 0, "deprecated") }
	if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Error(err)
	}
	r.answer = func(w http.ResponseWriter, _ []string) {
		w.Header().Set("Content-Type", "application/x-protobuf")
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte{10})
	}
	if err := s.Write(t.Context(), sinktest.Events(1, 1)); err == nil {
		t.Error("an answer that broke off was a success")
	}
	// As a proxy does for maintenance, or a login.
	r.answer = func(w http.ResponseWriter, _ []string) { fmt.Fprint(w, "<!DOCTYPE html><title>back soon</title>") }
	sinktest.WantClass(t, s.Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassRetry, "page")
	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	err := s.Write(t.Context(), sinktest.Events(1, 1))
	if class, _ := sinks.Classify(err); class != sinks.ClassPause || !strings.Contains(err.Error(), "headers.Authorization") {
		t.Errorf("%v", err)
	}
}

// TestTLS: a server of another authority, or of another name, is not sent anything.
func TestTLS(t *testing.T) {
	ca, other := testca.New(t, "first"), testca.New(t, "other")
	cert, key := ca.Pair("127.0.0.1", nil)
	c := testservers.StartCollector(t, testservers.CollectorSpec{Cert: string(cert), Key: string(key)})
	dir := t.TempDir()
	o := otlp.NewConfig()
	o.Endpoint, o.TLS = "https://"+c.Addr, sinks.TLS{CAFile: "ca.pem"}
	s := sinktest.Open(t, o, func(o *sinks.Options) { o.Dir = dir })
	for _, step := range []struct {
		ca    *testca.Authority
		class sinks.Class
	}{{nil, sinks.ClassPause}, {other, sinks.ClassRetry}} {
		if step.ca != nil {
			testkit.Write(t, filepath.Join(dir, "ca.pem"), step.ca.PEM)
		}
		err := s.Write(t.Context(), sinktest.Events(1, 1))
		if class, _ := sinks.Classify(err); err == nil || class != step.class {
			t.Errorf("class %s, want %s: %v", class, step.class, err)
		}
	}
	testkit.Write(t, filepath.Join(dir, "ca.pem"), ca.PEM)
	if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Error(err)
	}
	o.TLS.ServerName = "elsewhere"
	if err := sinktest.Open(t, o, func(o *sinks.Options) { o.Dir = dir }).Write(t.Context(), sinktest.Events(1, 1)); err == nil {
		t.Error("a server of another name was taken")
	}
	if n := len(c.Accepted()); n != 1 {
		t.Errorf("%d records", n)
	}
}

// TestEchoedSecret: an answer that is none and quotes the request leaves no secret in the error.
func TestEchoedSecret(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(conn, "HTTP/1.1 "+r.Header.Get("Authorization")+"\r\n\r\n")
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	t.Setenv("TOKEN", "Bearer canary")
	c := otlp.NewConfig()
	c.Endpoint, c.Headers = "http://"+l.Addr().String(), map[string]sinks.Header{"Authorization": {Secret: sinks.Secret{Env: "TOKEN"}}}
	if err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)); err == nil || strings.Contains(err.Error(), "canary") {
		t.Error(err)
	}
}

// TestConfig: each problem names its key, and no message repeats a value that may hold a secret.
func TestConfig(t *testing.T) {
	for _, test := range []struct {
		path   string
		change func(c *otlp.Config)
	}{
		{"endpoint", func(c *otlp.Config) { c.Endpoint = "" }},
		{"endpoint", func(c *otlp.Config) { c.Endpoint = "collector:4318" }},
		{"endpoint", func(c *otlp.Config) { c.Endpoint = "https://me:canary@host/" }},
		{"endpoint", func(c *otlp.Config) { c.Endpoint = "https://host/?token=canary" }},
		{"headers.Authorization", func(c *otlp.Config) { c.Headers = map[string]sinks.Header{"Authorization": {Text: "Bearer canary"}} }},
		{"headers.Authorization", func(c *otlp.Config) {
			c.Headers = map[string]sinks.Header{"Authorization": {Secret: sinks.Secret{Env: "TOKEN"}}}
		}},
		{"headers.content-type", func(c *otlp.Config) { c.Headers = map[string]sinks.Header{"content-type": {Text: "x"}} }},
		{"headers.a b", func(c *otlp.Config) { c.Headers = map[string]sinks.Header{"a b": {Text: "x"}} }},
		{"timestamps", func(c *otlp.Config) { c.Timestamps = "now" }},
		{"compress", func(c *otlp.Config) { c.Compress = "zstd" }},
		{"tls", func(c *otlp.Config) { c.TLS.CertFile = "x" }},
		{"timeout", func(c *otlp.Config) { c.Timeout = 0 }},
	} {
		c := otlp.NewConfig()
		c.Endpoint = "http://collector:4318"
		test.change(c)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), test.path+": ") || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", test.path, err)
		}
	}
}
