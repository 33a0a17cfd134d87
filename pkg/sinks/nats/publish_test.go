package nats_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/nats"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// withServer runs a test against a server with a stream, unless noStream.
func withServer(t *testing.T, change func(*server.Options), stream func(*jetstream.StreamConfig)) (*server.Server, jetstream.JetStream) {
	t.Helper()
	s := startServer(t, change)
	nc, js := connect(t, s.ClientURL())
	t.Cleanup(func() { nc.Close(); stopServer(s) })
	if s.JetStreamEnabled() && stream != nil {
		makeStream(t, js, stream)
	}
	return s, js
}

func asIs(*jetstream.StreamConfig) {}

func wantClass(t *testing.T, err error, want sinks.Class, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; class %s is wanted", want)
	}
	why := err
	if batch, ok := errors.AsType[*sinks.BatchError](err); ok {
		why = batch.Failed[slices.Min(keys(batch.Failed))]
	}
	if class, _ := sinks.Classify(why); class != want {
		t.Errorf("class %s, want %s: %v", class, want, err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}

func keys(m map[int]error) (out []int) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

func TestForms(t *testing.T) {
	e := sinktest.Event(0, 0)
	e.Resource.Group = "networking.k8s.io"
	e.Namespace = ""
	e.Name = "a.b>*% ü\n"
	e.Cluster = "prod eu"
	for _, test := range []struct {
		format sinks.Format
		body   []byte
		header map[string]string
	}{
		{sinks.CloudEvents, event.AppendCloudEvent(nil, e), map[string]string{"content-type": "application/cloudevents+json"}},
		{sinks.JSON, event.AppendJSON(nil, e), map[string]string{"content-type": "application/json"}},
		{sinks.CloudEventsBinary, event.AppendData(nil, e), map[string]string{
			"content-type": "", "ce-datacontenttype": "application/json", "ce-specversion": "1.0", "ce-id": e.ID,
			"ce-type": "dev.watcherd.resource.added", "ce-source": "/clusters/prod%2520eu", "ce-partitionkey": event.HeaderValue(e.PartitionKey()),
			"ce-subject": "/apis/networking.k8s.io/v1/deployments/a.b%253E*%2525%2520%25C3%25BC%250A",
		}},
	} {
		t.Run(string(test.format), func(t *testing.T) {
			srv, js := withServer(t, nil, asIs)
			c := configFor(srv.ClientURL(), true)
			c.Subject += ".{version}.{type}"
			s := sinktest.Open(t, c, func(o *sinks.Options) { o.Format = test.format })
			if err := s.Write(t.Context(), []*event.Event{e}); err != nil {
				t.Fatal(err)
			}
			got := stored(t, js)[0]
			if want := "k8s.prod%20eu.networking%2Ek8s%2Eio.deployments._.a%2Eb%3E%2A%25%20%C3%BC%0A.v1.added"; got.Subject != want {
				t.Errorf("subject %s, want %s", got.Subject, want)
			}
			if !bytes.Equal(got.Data, test.body) {
				t.Errorf("body %s, want %s", got.Data, test.body)
			}
			if id := got.Header.Get("Nats-Msg-Id"); !strings.HasPrefix(id, e.ID+".") || len(id) > 64 {
				t.Errorf("message id %s of event %s", id, e.ID)
			}
			test.header["Nats-Expected-Stream"] = "K8S"
			for name, want := range test.header {
				if v := got.Header[name]; want == "" && v != nil || want != "" && (len(v) != 1 || v[0] != want) {
					t.Errorf("header %s: %q, want %q", name, v, want)
				}
			}
		})
	}
}

// TestDuplicates: what the stream has already counts as accepted and is there once.
func TestDuplicates(t *testing.T) {
	srv, js := withServer(t, nil, asIs)
	reg := prometheus.NewRegistry()
	s := sinktest.Open(t, configFor(srv.ClientURL(), true), func(o *sinks.Options) { o.Registerer = reg })
	events := sinktest.Events(10, 3)
	for range 2 {
		if err := s.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
	}
	if got := idsOf(stored(t, js)); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(sinktest.IDs(events)))) {
		t.Errorf("%d messages are stored, %d are wanted", len(got), len(events))
	}
	want := "# HELP watcherd_nats_sink_duplicates_total Events that the stream had stored already.\n# TYPE watcherd_nats_sink_duplicates_total counter\nwatcherd_nats_sink_duplicates_total 10\n"
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "watcherd_nats_sink_duplicates_total"); err != nil {
		t.Error(err)
	}
}

// TestTwoSinksOneStream: what two sinks, or two subjects, publish into one stream is
// there for each.
func TestTwoSinksOneStream(t *testing.T) {
	srv, js := withServer(t, nil, func(c *jetstream.StreamConfig) { c.Subjects = []string{"audit.>", "app.>"} })
	events := sinktest.Events(10, 3)
	for _, test := range []struct{ name, subject string }{
		{"audit", "audit.{resource}.{name}"},
		{"app", "app.{resource}.{name}"},
		{"app", "app.{resource}.{namespace}"}, // a sink whose subject was changed
		{"other", "app.{resource}.{name}"},    // two sinks on one subject
	} {
		c := configFor(srv.ClientURL(), true)
		c.Subject = test.subject
		s := sinktest.Open(t, c, func(o *sinks.Options) { o.Name = test.name })
		for range 2 { // the second time is a redelivery
			if err := s.Write(t.Context(), events); err != nil {
				t.Fatal(err)
			}
		}
	}
	count := map[string]int{}
	for _, m := range stored(t, js) {
		count[m.Subject]++
	}
	want := map[string]int{
		"audit.deployments.web-0": 4, "audit.deployments.web-1": 3, "audit.deployments.web-2": 3,
		"app.deployments.prod":  10,
		"app.deployments.web-0": 8, "app.deployments.web-1": 6, "app.deployments.web-2": 6,
	}
	if !maps.Equal(count, want) {
		t.Errorf("the stream holds %v, want %v", count, want)
	}
}

// TestRedeliveryWithinWindow: each replay of an event, and each snapshot of an object,
// is stored, however long the stream remembers ids; each attempt at one is not.
func TestRedeliveryWithinWindow(t *testing.T) {
	srv, js := withServer(t, nil, func(c *jetstream.StreamConfig) { c.Duplicates = 24 * time.Hour })
	s := sinktest.Open(t, configFor(srv.ClientURL(), true))
	replay := func(position uint64) []*event.Event {
		events := sinktest.Events(10, 10)
		for i, e := range events {
			e.Replay, e.Position = true, position+uint64(i)
		}
		return events
	}
	snapshot := func(position uint64) []*event.Event {
		events := sinktest.Events(10, 10)
		for i, e := range events {
			e.Type, e.Position = event.Sync, position+uint64(i)
		}
		return events
	}
	for _, batch := range [][]*event.Event{
		sinktest.Events(10, 10), replay(100), replay(100), replay(200), snapshot(300), snapshot(300), snapshot(400),
	} {
		if err := s.Write(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(stored(t, js)); got != 50 {
		t.Errorf("%d messages are stored, 50 are wanted: the events, two replays and two snapshots", got)
	}
}

// TestUnexpectedDuplicates: a duplicate of an event that this sink cannot have
// published before is counted on its own and logged: something else publishes under
// the same identity.
func TestUnexpectedDuplicates(t *testing.T) {
	srv, js := withServer(t, nil, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 4 << 10 })
	var log bytes.Buffer
	reg := prometheus.NewRegistry()
	s := sinktest.Open(t, configFor(srv.ClientURL(), true), func(o *sinks.Options) {
		o.Registerer, o.Logger = reg, slog.New(slog.NewTextHandler(&log, nil))
	})
	expect := func(all, unexpected int) {
		t.Helper()
		for name, want := range map[string]int{"duplicates_total": all, "unexpected_duplicates_total": unexpected} {
			if got := metric(t, reg, "watcherd_nats_sink_"+name); got != float64(want) {
				t.Errorf("%s is %v, want %d", name, got, want)
			}
		}
		if got := strings.Contains(log.String(), "same sink name and subject"); got != (unexpected > 0) {
			t.Errorf("%d unexpected duplicates, and the log is\n%s", unexpected, &log)
		}
	}
	observed := func(d time.Duration, objects ...int) []*event.Event {
		var batch []*event.Event
		for i, o := range objects {
			e := sinktest.Event(o+100*i, o)
			e.Time = time.Now().Add(d)
			batch = append(batch, e)
		}
		return batch
	}
	twin := sinktest.Open(t, configFor(srv.ClientURL(), true)) // another installation
	write := func(s sinks.Sink, batch []*event.Event) {
		t.Helper()
		if err := s.Write(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	// Observed before the sink was opened: a previous process may have published them.
	old := observed(-time.Minute, 0, 1)
	write(twin, old)
	write(s, old)
	expect(2, 0)
	// A failed Write may have stored a part of its batch.
	failed := observed(time.Millisecond, 2, 3)
	write(twin, failed)
	if err := s.Write(t.Context(), []*event.Event{sinktest.Large(7, 7, 8<<10)}); err == nil {
		t.Fatal("no error")
	}
	failed[0].Time, failed[1].Time = time.Now().Add(-time.Millisecond), time.Now().Add(-time.Millisecond)
	write(s, failed)
	expect(4, 0)
	fresh := observed(time.Minute, 4, 5, 6)
	write(twin, fresh)
	write(s, fresh)
	expect(7, 3)
	if n := len(stored(t, js)); n != 7 {
		t.Errorf("%d messages are stored, 7 are wanted", n)
	}
}

// metric returns the value of a metric without labels.
func metric(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// TestStreamWithoutLeader: while nothing takes publishes, a Write ends within a few
// timeouts, however large its batch, and asks about the stream once.
func TestStreamWithoutLeader(t *testing.T) {
	srv := startServer(t, func(o *server.Options) { o.JetStream = false })
	nc, err := client.Connect(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); stopServer(srv) })
	const info = `{"type":"io.nats.jetstream.api.v1.stream_info_response","config":{"name":"K8S","subjects":["k8s.>"],"storage":"file","num_replicas":3,"duplicate_window":120000000000},"state":{}}`
	asked := make(chan struct{}, 1000)
	if _, err := nc.Subscribe("$JS.API.STREAM.INFO.K8S", func(m *client.Msg) {
		if asked <- struct{}{}; len(asked) == 1 { // it had a leader at the start
			if err := m.Respond([]byte(info)); err != nil {
				t.Error(err)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	c := configFor(srv.ClientURL(), true)
	c.Timeout = sinks.Duration(time.Second)
	s := sinktest.Open(t, c)
	err = s.Write(t.Context(), sinktest.Events(50, 50))
	wantClass(t, err, sinks.ClassRetry)
	if n := len(asked); n > 2 { // before the publishes, and after they failed
		t.Errorf("the stream was asked about %d times, 2 are allowed", n)
	}
	if batch, ok := errors.AsType[*sinks.BatchError](err); !ok || len(batch.Failed) != 50 {
		t.Errorf("error %v", err)
	}
}

// TestWriteIsBounded: a stream that answers each publish just in time does not stretch
// one Write to the number of its rounds; what it took in that time is accepted.
func TestWriteIsBounded(t *testing.T) {
	srv, js := withServer(t, nil, asIs)
	p := testkit.NewProxy(t, srv.Addr().String())
	c := configFor("nats://"+p.Addr, true)
	c.Timeout = sinks.Duration(time.Second)
	s := sinktest.Open(t, c)
	events := sinktest.Events(60, 1) // one object: a round each
	if err := s.Write(t.Context(), events[:1]); err != nil {
		t.Fatal(err)
	}
	p.Delay(200 * time.Millisecond)
	err := s.Write(t.Context(), events[1:])
	p.Delay(0)
	wantClass(t, err, sinks.ClassRetry)
	rest := failedOf(events[1:], err)
	if err := s.Write(t.Context(), rest); err != nil {
		t.Error(err)
	}
	if got := idsOf(stored(t, js)); !slices.Equal(got, sinktest.IDs(events)) {
		t.Errorf("the stream holds %v, want %v", got, sinktest.IDs(events))
	}
}

// TestOrderWhenOneFails: an event the stream refuses holds up its object's later
// events, and no other's.
func TestOrderWhenOneFails(t *testing.T) {
	for _, js := range []bool{true, false} {
		t.Run(fmt.Sprintf("jetstream %v", js), func(t *testing.T) {
			// The limit is the stream's in one case and the server's in the other.
			srv, stream := withServer(t, func(o *server.Options) {
				if !js {
					o.MaxPayload = 4 << 10
				}
			}, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 4 << 10 })
			s := sinktest.Open(t, configFor(srv.ClientURL(), js))
			events := sinktest.Events(9, 3) // objects 0 1 2 0 1 2 0 1 2
			events[4] = sinktest.Large(4, 1, 8<<10)
			err := s.Write(t.Context(), events)
			batch, ok := errors.AsType[*sinks.BatchError](err)
			if !ok || len(batch.Failed) != 2 {
				t.Fatalf("error %v", err)
			}
			if !sinks.IsTooLarge(batch.Failed[4]) {
				t.Errorf("event 4 is not refused for its size: %v", batch.Failed[4])
			}
			if class, _ := sinks.Classify(batch.Failed[7]); class != sinks.ClassRetry {
				t.Errorf("event 7: class %s: %v", class, batch.Failed[7])
			}
			for _, m := range stored(t, stream) {
				if bytes.Contains(m.Data, []byte(events[7].ID)) {
					t.Error("the later event of the object overtook the refused one")
				}
			}
			if err := s.Write(t.Context(), events[7:8]); err != nil {
				t.Errorf("the later event, on its own: %v", err)
			}
		})
	}
}

// TestLongAttributes: an object whose name makes headers that no stream takes is refused alone.
func TestLongAttributes(t *testing.T) {
	srv, _ := withServer(t, nil, asIs)
	c := configFor(srv.ClientURL(), true)
	c.Subject = "k8s.{resource}"
	s := sinktest.Open(t, c, func(o *sinks.Options) { o.Format = sinks.CloudEventsBinary })
	events := sinktest.Events(2, 2)
	events[0].Name = strings.Repeat("a", 40<<10) // of a Role
	err := s.Write(t.Context(), events)
	batch, ok := errors.AsType[*sinks.BatchError](err)
	if !ok || len(batch.Failed) != 1 {
		t.Fatalf("error %v", err)
	}
	wantClass(t, batch.Failed[0], sinks.ClassPoison, "header")
}

// askedContext looks for its end when it is asked for it, as that of a replica which may lead no more.
type askedContext struct {
	context.Context
	look func()
}

func (c askedContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

func (c askedContext) Err() error {
	c.look()
	return c.Context.Err()
}

// TestEndBetweenRounds: a replica that was stopped while it published, and leads no more, publishes nothing that it has not begun.
func TestEndBetweenRounds(t *testing.T) {
	srv, js := withServer(t, nil, asIs)
	s := sinktest.Open(t, configFor(srv.ClientURL(), true))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := sinktest.Events(3, 1) // each in a round of its own
	err := s.Write(askedContext{ctx, func() {
		if len(stored(t, js)) > 0 {
			cancel()
		}
	}}, events)
	if left := failedOf(events, err); len(left) != 2 {
		t.Errorf("%d events are left: %v", len(left), err)
	}
	if got := idsOf(stored(t, js)); !slices.Equal(got, sinktest.IDs(events[:1])) {
		t.Errorf("the stream has %v, want the first of %v", got, sinktest.IDs(events))
	}
}

func TestStreamMissing(t *testing.T) {
	srv, js := withServer(t, nil, nil)
	s := sinktest.Open(t, configFor(srv.ClientURL(), true))
	events := sinktest.Events(2, 1)
	wantClass(t, s.Write(t.Context(), events), sinks.ClassPause, "stream K8S does not exist", "jetstream.create")
	makeStream(t, js, asIs)
	if err := s.Write(t.Context(), events[:1]); err != nil {
		t.Fatal(err)
	}
	// It goes away while the sink is open.
	if err := js.DeleteStream(t.Context(), "K8S"); err != nil {
		t.Fatal(err)
	}
	wantClass(t, s.Write(t.Context(), events[1:]), sinks.ClassPause, "stream K8S does not exist")
}

func TestCreate(t *testing.T) {
	srv, js := withServer(t, nil, nil)
	c := configFor(srv.ClientURL(), true)
	c.JetStream.Create, c.JetStream.MaxAge, c.JetStream.MaxBytes = true, sinks.Duration(time.Minute), 1<<20
	for range 2 { // the second finds it
		if err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(3, 3)); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := js.Stream(t.Context(), "K8S")
	if err != nil {
		t.Fatal(err)
	}
	got := stream.CachedInfo().Config
	if !slices.Equal(got.Subjects, []string{"k8s.*.*.*.*.*"}) || got.Storage != jetstream.FileStorage || got.MaxAge != time.Minute || got.MaxBytes != 1<<20 || got.Duplicates != time.Minute {
		t.Errorf("the stream is %+v", got)
	}
}

func TestPauses(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		server func(o *server.Options)
		stream func(c *jetstream.StreamConfig)
		change func(c *nats.Config)
		says   []string
	}{
		{"no JetStream", func(o *server.Options) { o.JetStream = false }, nil, nil, []string{"JetStream"}},
		{"subject not taken", nil, func(c *jetstream.StreamConfig) { c.Subjects = []string{"other.>", "k8s.*"} }, nil, []string{"stream K8S takes", "other.>", "and not subject k8s.test.apps"}},
		{"mirror", nil, func(c *jetstream.StreamConfig) { c.Subjects, c.Mirror = nil, &jetstream.StreamSource{Name: "ORIGIN"} }, nil, []string{"mirror"}},
		{"no acks", nil, func(c *jetstream.StreamConfig) { c.NoAck = true }, nil, []string{"acknowledges nothing"}},
		{"wrong password", func(o *server.Options) { o.Users = users(nil) }, nil, func(c *nats.Config) {
			c.User, c.Password = "sink", &sinks.Secret{Env: "NATS_WRONG"}
		}, []string{"uthorization"}},
		{"no credentials", func(o *server.Options) { o.Users, o.NoAuthUser = users(nil), "" }, nil, nil, []string{"uthorization"}},
		{"secret missing", nil, nil, func(c *nats.Config) { c.Token = &sinks.Secret{File: "/no/such/file"} }, []string{"token", "/no/such/file"}},
		{"credentials missing", nil, nil, func(c *nats.Config) { c.CredentialsFile = "no.creds" }, []string{"credentialsFile", "no.creds"}},
		{"nkey missing", nil, nil, func(c *nats.Config) { c.NkeySeedFile = "no.nk" }, []string{"nkeySeedFile"}},
		{"credentials in a pipe", nil, nil, func(c *nats.Config) { c.CredentialsFile = pipe }, []string{"credentialsFile", "regular file"}},
		{"nkey in a pipe", nil, nil, func(c *nats.Config) { c.NkeySeedFile = pipe }, []string{"nkeySeedFile", "regular file"}},
		{"nkey without end", nil, nil, func(c *nats.Config) { c.NkeySeedFile = "/dev/zero" }, []string{"nkeySeedFile", "regular file"}},
		{"CA missing", nil, nil, func(c *nats.Config) { c.TLS.CAFile = "no.pem" }, []string{"no.pem"}},
		{"TLS not offered", nil, nil, func(c *nats.Config) { c.TLS.ServerName = "nats.example.com" }, []string{"secure connection"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("NATS_WRONG", "not this")
			s := startServer(t, test.server)
			defer stopServer(s)
			if test.stream != nil {
				nc, js := connect(t, s.ClientURL())
				makeStream(t, js, test.stream)
				nc.Close()
			}
			c := configFor(s.ClientURL(), true)
			if test.change != nil {
				test.change(c)
			}
			c.Timeout = sinks.Duration(time.Hour) // nothing may have to wait for it
			wantClass(t, sinktest.Open(t, c).Write(t.Context(), sinktest.Events(2, 2)), sinks.ClassPause, test.says...)
		})
	}
}

// users are one that may do everything, and one with what is given.
func users(sink *server.Permissions) []*server.User {
	return []*server.User{{Username: "all", Password: "all"}, {Username: "sink", Password: "sink", Permissions: sink}}
}

func TestPermissions(t *testing.T) {
	t.Setenv("NATS_SINK", "sink")
	for _, test := range []struct {
		name  string
		allow []string
		js    bool
		class sinks.Class // ClassPause: refused
		ok    bool
	}{
		{"all it needs", []string{"k8s.>", "$JS.API.STREAM.INFO.K8S"}, true, 0, true},
		{"the least it needs", []string{"k8s.>"}, true, 0, true},
		{"not the subject", []string{"$JS.API.STREAM.INFO.K8S"}, true, sinks.ClassPause, false},
		{"core", []string{"k8s.>"}, false, 0, true},
		{"core, not the subject", []string{"other.>"}, false, sinks.ClassPause, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := startServer(t, func(o *server.Options) {
				o.Users = users(&server.Permissions{Publish: &server.SubjectPermission{Allow: test.allow}})
			})
			defer stopServer(s)
			nc, js := connect(t, strings.Replace(s.ClientURL(), "nats://", "nats://all:all@", 1))
			defer nc.Close()
			makeStream(t, js, nil)
			c := configFor(s.ClientURL(), test.js)
			c.User, c.Password = "sink", &sinks.Secret{Env: "NATS_SINK"}
			c.Timeout = sinks.Duration(time.Hour) // nothing may have to wait for it
			sink := sinktest.Open(t, c)
			for range 2 {
				err := sink.Write(t.Context(), sinktest.Events(3, 3))
				if test.ok && err != nil {
					t.Fatal(err)
				}
				if !test.ok {
					wantClass(t, err, test.class, "ermissions", "k8s.test.apps")
				}
			}
		})
	}
}

func TestFullStreamIsRetried(t *testing.T) {
	srv, js := withServer(t, nil, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 5, jetstream.DiscardNew })
	s := sinktest.Open(t, configFor(srv.ClientURL(), true))
	events := sinktest.Events(8, 8)
	err := s.Write(t.Context(), events)
	wantClass(t, err, sinks.ClassRetry, "may be full")
	stream, err := js.Stream(t.Context(), "K8S")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(t.Context(), events[5:]); err != nil {
		t.Error(err)
	}
}

// TestWarnings: what may lose what the stream acknowledges is said once.
func TestWarnings(t *testing.T) {
	for _, test := range []struct {
		says   []string
		change func(c *jetstream.StreamConfig)
	}{
		{[]string{"kept in memory", "duplicate window of the stream is short"}, func(c *jetstream.StreamConfig) { c.Duplicates = time.Second }},
		{[]string{"before it writes them (persist_mode: async)"}, func(c *jetstream.StreamConfig) {
			c.Storage, c.PersistMode = jetstream.FileStorage, jetstream.AsyncPersistMode
		}},
		{[]string{"drops what no consumer wants"}, func(c *jetstream.StreamConfig) {
			c.Storage, c.Retention = jetstream.FileStorage, jetstream.InterestPolicy
		}},
	} {
		srv, _ := withServer(t, nil, test.change)
		var log bytes.Buffer
		s := sinktest.Open(t, configFor(srv.ClientURL(), true), func(o *sinks.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		for i := range 3 {
			if err := s.Write(t.Context(), []*event.Event{sinktest.Event(i, i)}); err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range test.says {
			if n := strings.Count(log.String(), want); n != 1 {
				t.Errorf("%q was said %d times:\n%s", want, n, &log)
			}
		}
		if n := strings.Count(log.String(), "level=WARN"); n != len(test.says) { // a single server is no cluster, of one replica
			t.Errorf("%d warnings, want %d:\n%s", n, len(test.says), &log)
		}
	}
}

// TestSilentServer: a server that accepts connections and says nothing holds up
// neither a Write whose context ends nor the sink for longer than its timeout.
func TestSilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := configFor("nats://"+l.Addr().String(), true)
	c.Timeout = sinks.Duration(time.Hour)
	s := sinktest.Open(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	wantClass(t, s.Write(ctx, sinktest.Events(1, 1)), sinks.ClassRetry)
	c.Timeout = sinks.Duration(100 * time.Millisecond)
	wantClass(t, sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassRetry, "connect")
	l.Close() // ends the attempt that is still under way
}

func TestValidate(t *testing.T) {
	secret := &sinks.Secret{Env: "X"}
	for _, test := range []struct {
		change func(c *nats.Config)
		bad    string
	}{
		{func(c *nats.Config) {}, ""},
		{func(c *nats.Config) { c.URL, c.URLs = "", []string{"nats://a", "tls://b:4222"} }, ""},
		{func(c *nats.Config) { c.URL = "" }, "url: required"},
		{func(c *nats.Config) { c.URLs = []string{"nats://a"} }, "urls: keep one"},
		{func(c *nats.Config) { c.URL = "http://a" }, "url: must begin"},
		{func(c *nats.Config) { c.URL = "nats://u:canary@a" }, "url: must not hold a user"},
		{func(c *nats.Config) { c.URL = "nats://canary@a" }, "url: must not hold a user"},
		{func(c *nats.Config) { c.Subject = "" }, "subject: is required"},
		{func(c *nats.Config) { c.Subject = "a..b" }, "subject: is required"},
		{func(c *nats.Config) { c.Subject = "a.*" }, "subject: must not hold"},
		{func(c *nats.Config) { c.Subject = "a b" }, "subject: must not hold"},
		{func(c *nats.Config) { c.Subject = "a.{nam}" }, "unknown token {nam}"},
		{func(c *nats.Config) { c.Subject = "a.{name" }, "{ without a }"},
		{func(c *nats.Config) { c.Subject = "$JS.{name}" }, "begin with $"},
		{func(c *nats.Config) { c.JetStream.Stream = "a b" }, "jetstream.stream: required"},
		{func(c *nats.Config) { c.JetStream.Replicas = 3 }, "jetstream.create: must be true"},
		{func(c *nats.Config) { c.JetStream.Create, c.JetStream.Storage = true, "disk" }, "jetstream.storage: "},
		{func(c *nats.Config) { c.User = "x" }, "user: user and password"},
		{func(c *nats.Config) { c.User, c.Password, c.Token = "x", secret, secret }, "token: keep one way"},
		{func(c *nats.Config) { c.Token = &sinks.Secret{} }, "token: name exactly one"},
		{func(c *nats.Config) { c.Timeout = 0 }, "timeout: "},
		{func(c *nats.Config) { c.TLS.KeyFile = "k" }, "tls: certFile"},
	} {
		c := configFor("nats://127.0.0.1:4222", true)
		test.change(c)
		err := c.Validate()
		switch {
		case test.bad == "" && err != nil:
			t.Error(err)
		case test.bad != "" && (err == nil || !strings.Contains(err.Error(), test.bad)):
			t.Errorf("%v does not say %q", err, test.bad)
		case err != nil && strings.Contains(err.Error(), "canary"):
			t.Errorf("the error repeats a secret: %v", err)
		}
	}
}
