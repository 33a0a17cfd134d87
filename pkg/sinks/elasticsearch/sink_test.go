package elasticsearch_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/elasticsearch"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "canary-key-4711"

// TestConformance runs the suite against a server with TLS and API keys that is killed, stopped and restarted.
func TestConformance(t *testing.T) {
	ca := testca.New(t, "elasticsearch")
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		dir := t.TempDir()
		cert, key := ca.Pair("127.0.0.1", nil)
		es := testservers.StartElasticsearch(t, testservers.ElasticsearchSpec{Cert: string(cert), Key: string(key), APIKey: canary})
		testkit.Write(t, filepath.Join(dir, "ca.pem"), ca.PEM)
		t.Setenv("ELASTICSEARCH_TEST_KEY", canary)
		frozen := false
		restart := func(key string) {
			es.SetAPIKey(key)
			es.Restart()
		}
		return sinktest.Destination{
			Config: func() sinks.Config {
				c := elasticsearch.NewConfig()
				c.URL, c.Create, c.TLS = "https://"+es.Addr, true, sinks.TLS{CAFile: "ca.pem"}
				c.APIKey, c.Timeout = &sinks.Secret{Env: "ELASTICSEARCH_TEST_KEY"}, sinks.Duration(5*time.Second)
				return c
			},
			Options: func(o *sinks.Options) { o.Dir = dir },
			Received: func(t *testing.T) (ids []string) {
				for _, op := range es.Accepted() {
					if op.Op != "create" {
						continue
					}
					var document struct{ ID string }
					if err := json.Unmarshal(op.Source, &document); err != nil {
						t.Error(err)
					}
					ids = append(ids, document.ID)
				}
				return ids
			},
			Break:  func(*testing.T) { es.Kill() },
			Hang:   func(*testing.T) { es.Freeze(); frozen = true },
			Reject: func(_ *testing.T, id string) { es.Refuse(id) },
			Refuse: func(*testing.T) { restart("another") },
			Repair: func(*testing.T) {
				if frozen {
					es.Thaw()
				}
				frozen = false
				es.Refuse("")
				restart(canary)
			},
			Restart:    func(*testing.T) { es.Restart() },
			Idempotent: true,
			Secrets:    []string{canary},
			Stop:       es.Kill,
		}
	})
}

// of is an event of an object named name.
func of(sequence uint64, name string, kind event.Type, object string) *event.Event {
	e := sinktest.Event(int(sequence), 1)
	e.Sequence, e.Name, e.Type, e.Object = sequence, name, kind, json.RawMessage(object)
	return e
}

// TestState: the document of an object is its last state, whatever comes late or again.
func TestState(t *testing.T) {
	es := testservers.StartElasticsearch(t, testservers.ElasticsearchSpec{})
	c := elasticsearch.NewConfig()
	c.URL, c.Mode, c.Create, c.Index = "http://"+es.Addr, elasticsearch.State, true, "objects-{resource}"
	c.Tombstones = 0
	s := sinktest.Open(t, c)
	left := of(12, "left", event.Updated, `{"n":12}`)
	left.Selection = event.Left
	gap := &event.Event{ID: "gap", Type: event.Gap, Time: left.Time, Sequence: 13, Cluster: "test", Resource: left.Resource, Gap: &event.GapData{Cause: "expired"}}
	for _, batch := range [][]*event.Event{
		{of(10, "web", event.Added, `{"n":10}`), of(11, "web", event.Updated, `{"n":11}`), left, gap},
		{of(14, "gone", event.Deleted, `{"n":14}`)},
		{of(9, "web", event.Updated, `{"n":9}`), of(5, "gone", event.Updated, `{"n":5}`)}, // a replay
		{gap},
	} {
		if err := s.Write(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	type state struct {
		Sequence uint64
		Deleted  string `json:"deleted_at"`
		Object   struct{ N int }
	}
	got := map[string]state{}
	for id, source := range es.Documents("objects-deployments") {
		var d state
		if err := json.Unmarshal(source, &d); err != nil {
			t.Fatal(err)
		}
		if d.Deleted != "" {
			d.Deleted = "yes"
		}
		got[id] = d
	}
	const prefix = "test/deployments.apps/prod/"
	want := map[string]state{
		prefix + "web":  {Sequence: 11, Object: struct{ N int }{11}},
		prefix + "left": {Sequence: 12, Deleted: "yes", Object: struct{ N int }{12}},
		prefix + "gone": {Sequence: 14, Deleted: "yes", Object: struct{ N int }{14}},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("documents\n%v, want\n%v", got, want)
	}
}

// TestTombstones: the documents of objects that were deleted long ago go, and no others.
func TestTombstones(t *testing.T) {
	es := testservers.StartElasticsearch(t, testservers.ElasticsearchSpec{})
	c := elasticsearch.NewConfig()
	c.URL, c.Mode, c.Tombstones = "http://"+es.Addr, elasticsearch.State, sinks.Duration(time.Hour)
	old, recent, other := of(1, "old", event.Deleted, `{}`), of(2, "recent", event.Deleted, `{}`), of(3, "other", event.Deleted, `{}`)
	old.Time, other.Time, recent.Time = time.Now().Add(-2*time.Hour), time.Now().Add(-2*time.Hour), time.Now()
	other.Cluster = "another"
	if err := sinktest.Open(t, c).Write(t.Context(), []*event.Event{old, recent, other, of(4, "live", event.Added, `{}`)}); err != nil {
		t.Fatal(err)
	}
	got := es.Documents("watcherd-objects")
	if len(got) != 3 || got["test/deployments.apps/prod/old"] != nil {
		t.Errorf("documents %v", got)
	}
}

// TestTemplate: the template is made once, of the server's own types, and one that is there stays.
func TestTemplate(t *testing.T) {
	for _, openSearch := range []bool{false, true} {
		es := testservers.StartElasticsearch(t, testservers.ElasticsearchSpec{OpenSearch: openSearch})
		c := elasticsearch.NewConfig()
		c.URL, c.Create, c.Index = "http://"+es.Addr, true, "events-{cluster}-{date}"
		deep := of(2, "deep", event.Added, strings.Repeat(`{"a":`, 40)+`1`+strings.Repeat(`}`, 40))
		for range 2 {
			s := sinktest.Open(t, c, func(o *sinks.Options) { o.Cluster = "Prod/EU" })
			if err := s.Write(t.Context(), []*event.Event{of(1, "web", event.Added, `{"v":1}`), deep}); err != nil {
				t.Fatal(err)
			}
		}
		var names []string
		for _, op := range es.Accepted() {
			if op.Op == "template" {
				names = append(names, op.ID)
			}
		}
		if fmt.Sprint(names) != "[events-any-any]" {
			t.Errorf("templates %v", names)
		}
		if n := len(es.Documents("events-test-" + deep.Time.UTC().Format("2006-01-02"))); n != 2 {
			t.Errorf("%d documents", n)
		}
	}
}

// TestBody: what `body` made of an event is the document, with a time of its own or the event's.
func TestBody(t *testing.T) {
	es := testservers.StartElasticsearch(t, testservers.ElasticsearchSpec{})
	c := elasticsearch.NewConfig()
	c.URL, c.Create = "http://"+es.Addr, true
	var batch []*event.Event
	for i, body := range []string{" {\"a\": 1,\n \"b\": 2}", `{}`, `{"@timestamp": "2026-01-01T00:00:00Z"}`, `"text"`} {
		e := of(uint64(i+1), fmt.Sprint("o", i), event.Added, `{}`)
		e.Body, e.ContentType = []byte(body), event.ContentTypeJSON
		batch = append(batch, e)
	}
	err := sinktest.Open(t, c).Write(t.Context(), batch)
	b, ok := errors.AsType[*sinks.BatchError](err)
	if !ok || len(b.Failed) != 1 || b.Failed[3] == nil || !strings.Contains(b.Failed[3].Error(), "not a JSON object") {
		t.Fatalf("%v", err)
	}
	for i, want := range []string{`{"@timestamp":"AT","a":1,"b":2}`, `{"@timestamp":"AT"}`, `{"@timestamp":"2026-01-01T00:00:00Z"}`} {
		want = strings.Replace(want, "AT", batch[i].Time.UTC().Format(time.RFC3339Nano), 1)
		if got := string(es.Documents("watcherd-history")[batch[i].ID]); got != want {
			t.Errorf("document %s, want %s", got, want)
		}
	}
}

// TestTooLarge: a request beyond the server's limit is cut, and the one event that is beyond it is named.
func TestTooLarge(t *testing.T) {
	es := testservers.StartElasticsearch(t, testservers.ElasticsearchSpec{MaxBytes: 8 << 10})
	c := elasticsearch.NewConfig()
	c.URL, c.Compress = "http://"+es.Addr, "none"
	events := sinktest.Events(20, 20)
	events = append(events, sinktest.Large(20, 20, 16<<10))
	err := sinktest.Open(t, c).Write(t.Context(), events)
	b, ok := errors.AsType[*sinks.BatchError](err)
	if !ok || len(b.Failed) != 1 || !sinks.IsTooLarge(b.Failed[20]) {
		t.Fatalf("%v", err)
	}
	if n := len(es.Documents("watcherd-history")); n != 20 {
		t.Errorf("%d documents", n)
	}
}

// TestItems: each item's result decides about its event, and no secret shows in an error.
func TestItems(t *testing.T) {
	var result, status atomic.Value
	status.Store(200)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(status.Load().(int))
		answer := strings.ReplaceAll(result.Load().(string), "AUTH", r.Header.Get("Authorization"))
		if !strings.Contains(r.URL.Query().Get("filter_path"), "items.*.failure_store") { // not asked for
			answer = strings.ReplaceAll(answer, `,"failure_store":"used"`, "")
		}
		if !strings.Contains(r.URL.Query().Get("filter_path"), "items.*.result") {
			answer = strings.ReplaceAll(answer, `,"result":"noop"`, "")
		}
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(server.Close)
	t.Setenv("ELASTICSEARCH_TEST_PASSWORD", canary)
	c := elasticsearch.NewConfig()
	c.URL, c.BasicAuth = server.URL, &sinks.BasicAuth{Username: "watcherd", Password: sinks.Secret{Env: "ELASTICSEARCH_TEST_PASSWORD"}}
	s := sinktest.Open(t, c)
	item := func(status int, kind string) string {
		return fmt.Sprintf(`{"items":[{"create":{"status":%d,"error":{"type":%q,"reason":"no, AUTH"}}}]}`, status, kind)
	}
	for _, test := range []struct {
		answer string
		status int
		class  string
	}{
		{`{"items":[{"create":{"status":201}}]}`, 200, ""},
		{`{"items":[{"create":{"status":201,"failure_store":"used"}}]}`, 200, "poison 0s"}, // refused, and kept beside the data stream
		{`{"items":[{"create":{"status":201,"result":"created"}}]}`, 200, ""},
		{`{"items":[{"create":{"status":200,"result":"noop"}}]}`, 200, "poison 0s"}, // an ingest pipeline drops it
		{item(409, "version_conflict_engine_exception"), 200, ""},
		{item(429, "es_rejected_execution_exception"), 200, "retry 7s"},
		{item(503, "unavailable_shards_exception"), 200, "retry 7s"},
		{item(403, "cluster_block_exception"), 200, "retry 7s"},
		{item(400, "document_parsing_exception"), 200, "poison 0s"},
		{item(400, "index_closed_exception"), 200, "pause 0s"},
		{item(404, "index_not_found_exception"), 200, "pause 0s"},
		{item(403, "security_exception"), 200, "pause 0s"},
		{item(409, "something_else"), 200, "pause 0s"},
		{`{"items":[]}`, 200, "retry 0s"},
		{`{"items":[{}]}`, 200, "retry 0s"},
		{`<html>AUTH</html>`, 200, "retry 0s"},
		{`AUTH`, 401, "pause 0s"},
		{`AUTH`, 404, "pause 0s"},
		{`AUTH`, 302, "pause 0s"},
		{`AUTH`, 400, "poison 0s"},
		{`AUTH`, 503, "retry 7s"},
	} {
		result.Store(test.answer)
		status.Store(test.status)
		err := s.Write(t.Context(), sinktest.Events(1, 1))
		got := ""
		if err != nil {
			if b, ok := errors.AsType[*sinks.BatchError](err); ok {
				err = b.Failed[0]
			}
			class, after := sinks.Classify(err)
			got = fmt.Sprint(class, " ", after)
			if text := fmt.Sprintf("%v %+v", err, err); strings.Contains(text, canary) || strings.Contains(text, "d2F0Y2hlcmQ6") {
				t.Errorf("%s: %s", test.answer, text)
			}
		}
		if got != test.class {
			t.Errorf("%d %s: %s, want %s: %v", test.status, test.answer, got, test.class, err)
		}
	}
}

// TestHostileAnswer: what an answer takes in memory is bounded by its length, and what an error quotes of it is short.
func TestHostileAnswer(t *testing.T) {
	const length = 16 << 20
	var answer atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, answer.Load())
	}))
	t.Cleanup(server.Close)
	c := elasticsearch.NewConfig()
	c.URL = server.URL
	s := sinktest.Open(t, c)
	for name, part := range map[string]string{"items": `{"a":{}}`, "one action": `{"create":{"status":201}}`, "a number": `{"create":{"status":` + strings.Repeat("1", 1<<20) + `}}`} {
		document := `{"items":[` + strings.Repeat(part+",", (length-100)/(len(part)+1)) + part + `]}`
		answer.Store(document)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := s.Write(t.Context(), sinktest.Events(1, 1))
		runtime.ReadMemStats(&after)
		sinktest.WantClass(t, err, sinks.ClassRetry)
		if got := len(err.Error()); got > 8<<10 {
			t.Errorf("%s: an error of %d bytes", name, got)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 10*length {
			t.Errorf("%s: %d MiB were allocated for an answer of %d MiB: %v", name, got>>20, length>>20, err)
		}
	}
}

// TestBlankKey: a file of blanks, as one that is being written may be, has no key: nothing is sent, and the event is not to blame.
func TestBlankKey(t *testing.T) {
	c := elasticsearch.NewConfig()
	c.URL, c.APIKey = "http://127.0.0.1:9", &sinks.Secret{File: filepath.Join(t.TempDir(), "key")}
	if err := os.WriteFile(c.APIKey.File, []byte(" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
	if sinktest.WantClass(t, err, sinks.ClassPause); !strings.Contains(err.Error(), "is empty") {
		t.Error(err)
	}
}

// TestConfig: each problem names its key, and no message repeats a value that may hold a secret.
func TestConfig(t *testing.T) {
	for _, test := range []struct {
		path   string
		change func(c *elasticsearch.Config)
	}{
		{"url", func(c *elasticsearch.Config) { c.URL = "" }},
		{"url", func(c *elasticsearch.Config) { c.URL = "https://me:canary@host/" }},
		{"url", func(c *elasticsearch.Config) {
			c.URL = "http://elasticsearch:9200"
			c.APIKey = &sinks.Secret{Env: "KEY"}
		}},
		{"index", func(c *elasticsearch.Config) { c.Index = "Events" }},
		{"index", func(c *elasticsearch.Config) { c.Index = "-events" }},
		{"index", func(c *elasticsearch.Config) { c.Index = "a,b" }},
		{"index", func(c *elasticsearch.Config) { c.Index = "{namespace}" }},
		{"index", func(c *elasticsearch.Config) { c.Index = "events-{name}" }},
		{"index", func(c *elasticsearch.Config) { c.Mode, c.Index = elasticsearch.State, "objects-{date}" }},
		{"index", func(c *elasticsearch.Config) { c.Index = strings.Repeat("x", 200) }},
		{"mode", func(c *elasticsearch.Config) { c.Mode = "both" }},
		{"apiKey", func(c *elasticsearch.Config) { c.APIKey = &sinks.Secret{} }},
		{"basicAuth", func(c *elasticsearch.Config) {
			c.APIKey, c.BasicAuth = &sinks.Secret{Env: "A"}, &sinks.BasicAuth{Username: "a", Password: sinks.Secret{Env: "B"}}
		}},
		{"basicAuth.username", func(c *elasticsearch.Config) {
			c.BasicAuth = &sinks.BasicAuth{Password: sinks.Secret{Env: "B"}}
		}},
		{"headers.Authorization", func(c *elasticsearch.Config) { c.Headers = map[string]sinks.Header{"Authorization": {Text: "canary"}} }},
		{"tombstones", func(c *elasticsearch.Config) { c.Tombstones = -1 }},
		{"compress", func(c *elasticsearch.Config) { c.Compress = "zstd" }},
		{"tls", func(c *elasticsearch.Config) { c.TLS.CertFile = "x" }},
		{"timeout", func(c *elasticsearch.Config) { c.Timeout = 0 }},
	} {
		c := elasticsearch.NewConfig()
		c.URL = "https://elasticsearch:9200"
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		test.change(c)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), test.path+": ") || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", test.path, err)
		}
	}
}
