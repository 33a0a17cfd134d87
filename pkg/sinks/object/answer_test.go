package object_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/object"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// storage answers what a test has it answer.
type storage struct {
	*httptest.Server

	mu       sync.Mutex
	answer   func(w http.ResponseWriter, r *http.Request)
	requests []string
}

func newStorage(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) *storage {
	t.Helper()
	s := &storage{answer: answer}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body) // the client's matter
		s.requests = append(s.requests, r.Method+" "+r.URL.EscapedPath())
		if r.Method == http.MethodGet && r.URL.Query().Has("list-type") && s.answer == nil {
			fmt.Fprint(w, emptyList)
			return
		}
		if r.Method == http.MethodPut {
			w.Header().Set("ETag", `"d41d8cd98f00b204e9800998ecf8427e"`)
		}
		s.answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

const emptyList = `<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>`

func (s *storage) config() *object.Config {
	c := object.NewConfig()
	c.S3 = object.S3{Bucket: "lake", Endpoint: s.URL, AccessKey: "watcherd", SecretKey: &sinks.Secret{Env: "OBJECT_TEST_SECRET"}}
	return c
}

// TestAnswers: the class of each answer, of any request, and no secret in an error.
func TestAnswers(t *testing.T) {
	t.Setenv("OBJECT_TEST_SECRET", canary)
	for _, test := range []struct {
		status int
		code   string
		class  string
	}{
		{301, "PermanentRedirect", "pause 0s"},
		{400, "AuthorizationHeaderMalformed", "pause 0s"},
		{400, "BadDigest", "retry 0s"},
		{400, "ExpiredToken", "retry 0s"},
		{400, "RequestTimeout", "retry 0s"},
		{401, "", "pause 0s"},
		{403, "AccessDenied", "pause 0s"},
		{403, "SignatureDoesNotMatch", "pause 0s"},
		{404, "NoSuchBucket", "pause 0s"},
		{409, "ConditionalRequestConflict", "retry 0s"},
		{413, "EntityTooLarge", "pause 0s"},
		{429, "", "retry 7s"},
		{500, "InternalError", "retry 7s"},
		{501, "NotImplemented", "pause 0s"},
		{503, "SlowDown", "retry 7s"},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPut} {
			s := newStorage(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != method {
					fmt.Fprint(w, emptyList)
					return
				}
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(test.status)
				fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>no: %s %s</Message></Error>`, test.code, canary, r.Header.Get("Authorization"))
			})
			err := sinktest.Open(t, s.config()).Write(t.Context(), sinktest.Events(2, 2))
			class, after := sinks.Classify(err)
			if got := fmt.Sprint(class, " ", after); err == nil || got != test.class {
				t.Errorf("%s %d %s: %s, want %s: %v", method, test.status, test.code, got, test.class, err)
				continue
			}
			if text := err.Error(); strings.Contains(text, canary) || strings.Contains(text, "Signature=") && !strings.Contains(text, "Signature=*") {
				t.Errorf("%s %d: a secret is in %s", method, test.status, text)
			}
		}
	}
}

// TestFarApart: between two events of a batch, such as one that is redelivered, are more objects than are kept at a time.
func TestFarApart(t *testing.T) {
	t.Setenv("OBJECT_TEST_SECRET", canary)
	const objects = 4_200
	heads := 0
	s := newStorage(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodHead:
			heads++
			w.WriteHeader(http.StatusNotFound)
		case http.MethodGet:
			folder := r.URL.Query().Get("prefix")
			fmt.Fprint(w, "<ListBucketResult><IsTruncated>false</IsTruncated>")
			for i := range objects {
				fmt.Fprintf(w, "<Contents><Key>%s%020d.jsonl.zst</Key></Contents>", folder, i+2)
			}
			fmt.Fprint(w, "</ListBucketResult>")
		}
	})
	batch := sinktest.Events(2, 1)
	batch[0].Sequence, batch[1].Sequence = 1, objects+100
	if err := sinktest.Open(t, s.config()).Write(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if heads <= 1<<12 {
		t.Errorf("%d objects are looked at", heads)
	}
}

// TestLists: a list that is not one, and one without an end.
func TestLists(t *testing.T) {
	t.Setenv("OBJECT_TEST_SECRET", canary)
	for _, answer := range []string{
		`<Error>`,
		`<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>`,
		`<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a</Key></Contents></ListBucketResult>`,
		`<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>~</Key></Contents></ListBucketResult>`,
	} {
		s := newStorage(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) })
		sinktest.WantClass(t, sinktest.Open(t, s.config()).Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassRetry, "the answer ")
	}
}

// TestIgnoredCondition: storage that creates over what exists pauses the sink, unless it is configured to do without.
func TestIgnoredCondition(t *testing.T) {
	t.Setenv("OBJECT_TEST_SECRET", canary)
	ignoring := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, emptyList)
		}
	}
	s := newStorage(t, ignoring)
	sink := sinktest.Open(t, s.config())
	if err := sink.Write(t.Context(), sinktest.Events(2, 2)); err != nil {
		t.Fatal(err)
	}
	sinktest.WantClass(t, sink.Write(t.Context(), sinktest.Events(4, 2)[2:]), sinks.ClassPause, "conditionalWrites: false")

	s = newStorage(t, ignoring)
	c := s.config()
	c.ConditionalWrites = false
	sink = sinktest.Open(t, c)
	for range 2 {
		if err := sink.Write(t.Context(), sinktest.Events(2, 2)); err != nil {
			t.Fatal(err)
		}
	}
	if err := sink.Write(t.Context(), sinktest.Events(3, 2)); err != nil {
		t.Fatal(err)
	}
	if r := s.requests; len(r) != 3 || r[0] != r[1] || r[1] == r[2] || !strings.HasPrefix(r[0], "PUT /lake/watcherd/test/deployments/dt%3D2026-03-01/00000000000000000001_") {
		t.Errorf("requests %q", r)
	}
}

// TestCredentials: those of the environment are used, kept while they last, and fetched again when they expire.
func TestCredentials(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_REGION", "eu-central-1")
	token := filepath.Join(t.TempDir(), "token")
	testkit.Write(t, token, []byte("open sesame"))
	fetched, life := 0, time.Hour
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetched++
		expires := time.Now().Add(life).UTC().Format(time.RFC3339)
		if r.Method == http.MethodGet {
			fmt.Fprintf(w, `{"AccessKeyId":"AKIAPOD","SecretAccessKey":%q,"Token":"session-%d","Expiration":%q}`, canary, fetched, expires)
			return
		}
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><SessionToken>session-%d</SessionToken>
			<SecretAccessKey>%s</SecretAccessKey><AccessKeyId>AKIAROLE</AccessKeyId><Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, fetched, canary, expires)
	}))
	t.Cleanup(sts.Close)
	for _, test := range []struct {
		key string
		set func()
	}{
		{"AKIAPOD", func() {
			t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", sts.URL)
			t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token)
		}},
		{"AKIAROLE", func() {
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token)
			t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/watcherd")
			t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
		}},
	} {
		test.set()
		fetched, life = 0, time.Hour
		var sessions []string
		expired := false
		s := newStorage(t, func(w http.ResponseWriter, r *http.Request) {
			sessions = append(sessions, r.Header.Get("X-Amz-Security-Token"))
			credential := test.key + "/" + time.Now().UTC().Format("20060102") + "/eu-central-1/s3/aws4_request"
			switch {
			case !strings.Contains(r.Header.Get("Authorization"), credential):
				t.Errorf("authorization %s, want %s", r.Header.Get("Authorization"), credential)
			case expired:
				expired = false
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprint(w, `<Error><Code>ExpiredToken</Code></Error>`)
			case r.Method == http.MethodGet:
				fmt.Fprint(w, emptyList)
			case len(sessions) == 3: // the second of a first PUT
				w.WriteHeader(http.StatusPreconditionFailed)
			}
		})
		c := s.config()
		c.S3.AccessKey, c.S3.SecretKey = "", nil
		sink := sinktest.Open(t, c)
		events := sinktest.Events(4, 1)
		write := func(i int) error { return sink.Write(t.Context(), events[i:i+1]) }
		if err := write(0); err != nil {
			t.Fatal(err)
		}
		expired = true
		sinktest.WantClass(t, write(1), sinks.ClassRetry, "ExpiredToken")
		life = time.Minute // too short to keep
		for i := 1; i < 3; i++ {
			if err := write(i); err != nil {
				t.Fatal(err)
			}
		}
		want := "[session-1 session-1 session-1 session-1 session-2 session-3]"
		if got := fmt.Sprint(sessions); got != want {
			t.Errorf("%s: sessions %s, want %s", test.key, got, want)
		}
	}
}

// TestSecretMissing: what cannot be read pauses the sink with the key's name, and is read again.
func TestSecretMissing(t *testing.T) {
	o := start(t)
	dir := t.TempDir()
	c := configFor(t, o)
	c.S3.SecretKey = &sinks.Secret{File: "secret"}
	s := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = dir })
	sinktest.WantClass(t, s.Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassPause, "s3.secretKey")
	testkit.Write(t, filepath.Join(dir, "secret"), []byte(canary))
	if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Fatal(err)
	}
}

// TestTakenName: under a name that other events have, the object gets a longer one, and nothing is lost.
func TestTakenName(t *testing.T) {
	o := start(t)
	c := configFor(t, o)
	c.Path = "{resource}/dt={date}/"
	var log sinktest.Log
	reg := prometheus.NewRegistry()
	mine, others := sinktest.Events(3, 3), sinktest.Events(3, 3)
	for i, e := range others {
		e.ID = fmt.Sprintf("other-%d", i)
	}
	for _, events := range [][]*event.Event{others, mine, mine} {
		s := sinktest.Open(t, c, log.Option, func(o *sinks.Options) { o.Registerer = reg })
		if err := s.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(ids(t, o)); got != fmt.Sprint(append(sinktest.IDs(others), sinktest.IDs(mine)...)) {
		t.Errorf("ids %s", got)
	}
	if n := len(log.Like("an object's name is taken by other events")); n != 1 {
		t.Errorf("%d warnings", n)
	}
}

// TestPaths: what values become in a key, and that the server takes the result.
func TestPaths(t *testing.T) {
	o := start(t)
	c := configFor(t, o)
	c.Path = "a b/{cluster}/{group}/{version}/{resource}/{namespace}/dt={date}/"
	e := sinktest.Events(1, 1)[0]
	e.Cluster, e.Namespace, e.Resource.Group = "prod/eu+1 ü", "", ""
	if err := sinktest.Open(t, c).Write(t.Context(), []*event.Event{e}); err != nil {
		t.Fatal(err)
	}
	keys, _ := o.Lines(".")
	if want := "[a b/prod%2Feu%2B1%20%C3%BC/core/v1/deployments/_/dt=2026-03-01/00000000000000000001.jsonl.zst]"; fmt.Sprint(keys) != want {
		t.Errorf("keys %v, want %s", keys, want)
	}
}

// TestUnreadable: an object that cannot be read back loses no event.
func TestUnreadable(t *testing.T) {
	o := start(t)
	c := configFor(t, o)
	c.Path = "{resource}/dt={date}/"
	events := sinktest.Events(4, 4)
	if err := sinktest.Open(t, c).Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(o.Folder(), "deployments/dt=2026-03-01/00000000000000000001.jsonl.zst")
	if err := os.WriteFile(path, []byte("not zstd"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log sinktest.Log
	if err := sinktest.Open(t, c, log.Option).Write(t.Context(), events[1:]); err != nil {
		t.Fatal(err)
	}
	if n := len(log.Like("an object cannot be read back")); n != 1 {
		t.Errorf("%d warnings", n)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(ids(t, o)); got != fmt.Sprint(sinktest.IDs(events[1:])) {
		t.Errorf("ids %s", got)
	}
}

// TestConfig: each problem names its key.
func TestConfig(t *testing.T) {
	for _, test := range []struct {
		path   string
		change func(c *object.Config)
	}{
		{"s3.bucket", func(c *object.Config) { c.S3.Bucket = "" }},
		{"s3.bucket", func(c *object.Config) { c.S3.Bucket = "Lake" }},
		{"s3.bucket", func(c *object.Config) { c.S3.Bucket = "a/b" }},
		{"s3.region", func(c *object.Config) { c.S3.Region = "eu/1" }},
		{"s3.endpoint", func(c *object.Config) { c.S3.Endpoint = "s3.example.com" }},
		{"s3.endpoint", func(c *object.Config) { c.S3.Endpoint = "https://me:canary@s3.example.com" }},
		{"s3.endpoint", func(c *object.Config) {
			c.S3.Endpoint, c.S3.AccessKey = "http://s3.example.com", "a"
			c.S3.SecretKey, c.S3.SessionToken = &sinks.Secret{Env: "A"}, &sinks.Secret{Env: "B"}
		}},
		{"s3.accessKey", func(c *object.Config) { c.S3.AccessKey = "a" }},
		{"s3.accessKey", func(c *object.Config) { c.S3.SecretKey = &sinks.Secret{Env: "A"} }},
		{"s3.secretKey", func(c *object.Config) { c.S3.AccessKey, c.S3.SecretKey = "a", &sinks.Secret{} }},
		{"s3.tls", func(c *object.Config) { c.S3.TLS.CertFile = "x" }},
		{"path", func(c *object.Config) { c.Path = "" }},
		{"path", func(c *object.Config) { c.Path = "{cluster}/" }},
		{"path", func(c *object.Config) { c.Path = "{cluster}/{date}" }},
		{"path", func(c *object.Config) { c.Path = "/{date}/" }},
		{"path", func(c *object.Config) { c.Path = "a/../{date}/" }},
		{"path", func(c *object.Config) { c.Path = "a//{date}/" }},
		{"path", func(c *object.Config) { c.Path = "{name}/{date}/" }},
		{"path", func(c *object.Config) { c.Path = "ä/{date}/" }},
		{"timeout", func(c *object.Config) { c.Timeout = 0 }},
	} {
		c := object.NewConfig()
		c.S3.Bucket = "lake"
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		test.change(c)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), test.path+": ") || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", test.path, err)
		}
	}
	c := object.NewConfig()
	c.S3.Bucket = "lake"
	if _, err := c.Open(t.Context(), sinks.Options{Format: sinks.CloudEventsBinary}); err == nil {
		t.Error("a format that needs headers is accepted")
	}
}

// TestNameWithoutObject: storage that was killed amid a PUT may refuse a name as taken and have no object of it.
func TestNameWithoutObject(t *testing.T) {
	o := start(t)
	c := configFor(t, o)
	events := sinktest.Events(6, 2)
	for range 2 {
		if err := sinktest.Open(t, c).Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		if got := ids(t, o); len(got) != len(events) {
			t.Errorf("%d events are there, want %d", len(got), len(events))
		}
		keys, _ := o.Lines(".")
		if err := os.Remove(filepath.Join(o.Folder(), keys[0])); err != nil { // and leave what the server notes of it
			t.Fatal(err)
		}
	}
}

// TestPage: what a proxy answers in the place of the storage, such as a page for maintenance, accepts nothing.
func TestPage(t *testing.T) {
	t.Setenv("OBJECT_TEST_SECRET", canary)
	for page, says := range map[string]string{
		"<!DOCTYPE html><title>back soon</title>": "a page for people", "ok": "no ETag", `{"status":"up"}`: "no ETag", "": "no ETag",
	} {
		created := map[string]bool{}
		away := false
		s := newStorage(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case away:
				w.Header().Del("ETag")
				fmt.Fprint(w, page)
			case r.Method == http.MethodGet:
				fmt.Fprint(w, emptyList)
			case created[r.URL.Path]:
				w.WriteHeader(http.StatusPreconditionFailed)
			default:
				created[r.URL.Path] = true
			}
		})
		sink := sinktest.Open(t, s.config())
		events := sinktest.Events(4, 4)
		if err := sink.Write(t.Context(), events[:2]); err != nil {
			t.Fatal(err)
		}
		away = true
		sinktest.WantClass(t, sink.Write(t.Context(), events[2:]), sinks.ClassRetry, says)
		away = false
		if err := sink.Write(t.Context(), events[2:]); err != nil || len(created) != 2 {
			t.Errorf("%q: %d objects, error %v", page, len(created), err)
		}
	}
}

// TestLargeObjectsFail: storage that takes small objects and never answers for a large one, as behind a slow line, gets
// all events, each once. Nor does it matter that it makes the large one nevertheless.
func TestLargeObjectsFail(t *testing.T) {
	t.Setenv("OBJECT_TEST_SECRET", canary)
	for _, made := range []int{0, 1, 2, 3} { // which of the large ones
		const count = "X-Amz-Meta-Watcherd-Count"
		objects := map[string]http.Header{}
		large := 0
		s := newStorage(t, func(w http.ResponseWriter, r *http.Request) {
			object, exists := objects[r.URL.Path]
			switch {
			case r.Method == http.MethodGet:
				fmt.Fprint(w, emptyList)
			case r.Method == http.MethodHead && exists:
				maps.Copy(w.Header(), object)
			case r.Method == http.MethodHead:
				w.WriteHeader(http.StatusNotFound)
			case exists:
				w.WriteHeader(http.StatusPreconditionFailed)
			case len(r.Header.Get(count)) > 1:
				if large++; large == made {
					objects[r.URL.Path] = r.Header.Clone()
				}
				w.WriteHeader(http.StatusGatewayTimeout)
			default:
				objects[r.URL.Path] = r.Header.Clone()
			}
		})
		sink := sinktest.Open(t, s.config())
		events := sinktest.Events(40, 40)
		sinktest.WantClass(t, sink.Write(t.Context(), events), sinks.ClassRetry, "504")
		for i := range events {
			var err error
			for range 10 { // as the probes of a sink that fails
				if err = sink.Write(t.Context(), events[i:i+1]); err == nil {
					break
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		total := 0
		for _, object := range objects {
			n, err := strconv.Atoi(object.Get(count))
			if total += n; err != nil {
				t.Error(err)
			}
		}
		if total != len(events) {
			t.Errorf("large object %d made: %d events are there in %d objects, want %d", made, total, len(objects), len(events))
		}
	}
}

// TestNameRefused: storage that refuses names as taken, and has no object of them, has accepted nothing.
func TestNameRefused(t *testing.T) {
	t.Setenv("OBJECT_TEST_SECRET", canary)
	s := newStorage(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPut:
			w.WriteHeader(http.StatusPreconditionFailed)
		case http.MethodHead:
			w.WriteHeader(http.StatusNotFound)
		default:
			fmt.Fprint(w, emptyList)
		}
	})
	sink := sinktest.Open(t, s.config())
	for range 2 {
		sinktest.WantClass(t, sink.Write(t.Context(), sinktest.Events(2, 2)), sinks.ClassRetry, "no object")
	}
}
