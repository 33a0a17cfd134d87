package examples

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watcherd/watcherd/internal/testservers"
)

func failedPods(t *testing.T) {
	rec := newReceiver(t, func(h http.Header, _ []byte) error {
		if h.Get("Authorization") != "Bearer open sesame" {
			return errors.New("not authorized")
		}
		return nil
	})
	r := newRun(t, "failed-pods.yaml", map[string]string{"https://ops.example.com": rec.URL})
	r.env = []string{"OPS_TOKEN=open sesame"}
	r.apply(pod)
	r.start("pods.v1")
	status := func(name, patch string) {
		t.Helper()
		r.patch("pods.v1", name, `{"status":`+patch+`}`, "status")
	}
	containers := func(state string) string {
		return `{"containerStatuses":[{"name":"main","ready":false,"restartCount":0,"image":"i","imageID":"i","state":` + state + `}]}`
	}
	got := func() []event { return rec.events(r) }

	status("worker", containers(`{"running":{}}`))
	status("worker", containers(`{"terminated":{"exitCode":137,"reason":"OOMKilled","containerID":"c1"}}`))
	r.expect(got, "updated worker")
	status("worker", `{"message":"a change that has nothing to do with it"}`)
	status("worker", containers(`{"waiting":{"reason":"CrashLoopBackOff","message":"back-off 10s"}}`))
	r.expect(got, "updated worker", "updated worker")
	status("worker", containers(`{"waiting":{"reason":"CrashLoopBackOff","message":"back-off 20s"}}`))
	status("worker", `{"phase":"Failed","reason":"Evicted"}`)
	r.expect(got, "updated worker", "updated worker", "updated worker")
	status("worker", `{"message":"it is still failed"}`)
	r.patch("pods.v1", "worker", `{"metadata":{"labels":{"seen":"yes"}}}`)

	// Each pod's events are in order, but this is another: it comes when it likes.
	r.apply(strings.ReplaceAll(pod, "worker", "other"))
	status("other", `{"phase":"Failed"}`)
	events := r.expect(got, "updated worker", "updated worker", "updated worker", "updated other")
	last := events[slices.IndexFunc(events, func(e event) bool { return at(e.Object, "status", "phase") == "Failed" })]
	if last.Type != "updated" || last.Subject != "/api/v1/namespaces/"+r.namespace+"/pods/"+last.Name {
		t.Errorf("unexpected event %+v", last)
	}
}

func imageChanges(t *testing.T) {
	// What the head's openssl command prints.
	key := "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("watcherd"), 4))
	verifier, err := standardwebhooks.NewWebhook(key)
	if err != nil {
		t.Fatal(err)
	}
	rec := newReceiver(t, func(h http.Header, body []byte) error { return verifier.Verify(body, h) })
	r := newRun(t, "image-changes.yaml", map[string]string{"https://releases.example.com": rec.URL})
	r.write("webhook.key", key+"\n")
	r.apply(deployment)
	r.start("deployments.v1.apps", "statefulsets.v1.apps", "daemonsets.v1.apps")
	r.patch("deployments.v1.apps", "web", `{"spec":{"replicas":3}}`)
	r.patch("deployments.v1.apps", "web", `{"status":{"replicas":3}}`, "status")
	r.patch("deployments.v1.apps", "web", `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"registry.example.com/web:2.0"}]}}}}`)
	events := r.expect(func() []event { return rec.events(r) }, "updated web")
	if !bytes.Contains(events[0].Patch, []byte("registry.example.com/web:2.0")) {
		t.Errorf("the patch does not name the new image: %s", events[0].Patch)
	}
	if events[0].OldObject == nil || events[0].Data != nil {
		t.Errorf("want the json format with the old object, got %+v", events[0])
	}
}

func argocdFeed(t *testing.T) {
	bus, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	bus.Start()
	defer func() {
		bus.Shutdown()
		bus.WaitForShutdown()
	}()
	if !bus.ReadyForConnections(patience) {
		t.Fatal("the NATS server does not start")
	}
	r := newRun(t, "argocd-feed.yaml", map[string]string{"nats://127.0.0.1:4222": bus.ClientURL()})
	r.start()

	// The resource is installed later.
	r.apply(definition("argoproj.io", "applications", "Application"))
	r.synced("applications.v1.argoproj.io")
	r.apply("apiVersion: argoproj.io/v1\nkind: Application\nmetadata: {name: shop, namespace: NAMESPACE}\nspec: {project: default}\n")
	const resource = "applications.v1.argoproj.io"
	r.patch(resource, "shop", `{"status":{"health":{"status":"Healthy"}}}`, "status")
	r.patch(resource, "shop", `{"status":{"reconciledAt":"2026-01-01T00:00:00Z","history":[{"id":1}]}}`, "status")
	r.patch(resource, "shop", `{"status":{"health":{"status":"Degraded"}}}`, "status")

	nc, err := nats.Connect(bus.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	events := r.expect(func() []event { return stored(r, js, "argocd.*."+r.namespace+".shop") },
		"added shop", "updated shop", "updated shop")
	if at(events[2].Object, "status", "health", "status") != "Degraded" || at(events[2].Object, "status", "history") != nil {
		t.Errorf("unexpected last state %v", events[2].Object)
	}
	// When the daemon has stopped, nothing more can come.
	r.stop()
	r.expect(func() []event { return stored(r, js, "argocd.>") }, "added shop", "updated shop", "updated shop")
}

// kafkaState consumes the topics into a table of the last values.
func kafkaState(t *testing.T) {
	k := testservers.StartKafka(t, testservers.KafkaSpec{})
	r := newRun(t, "kafka-state.yaml", map[string]string{"127.0.0.1:9092": k.Addr})
	r.apply(configMap + "---" + deployment)
	r.start("deployments.v1.apps", "configmaps.v1")
	r.patch("configmaps.v1", "settings", `{"data":{"color":"green"}}`)
	c, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.ConsumeTopics("state.demo.configmaps", "state.demo.deployments"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	state := map[string][]byte{} // what a consumer makes of it
	poll := func() []event {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		c.PollFetches(ctx).EachRecord(func(rec *kgo.Record) {
			if state[string(rec.Key)] = rec.Value; rec.Value == nil {
				delete(state, string(rec.Key))
			}
		})
		var lines []byte
		for _, key := range slices.Sorted(maps.Keys(state)) {
			lines = append(append(lines, state[key]...), '\n')
		}
		return r.filter(lines)
	}
	r.eventually(func() (bool, string) {
		got := poll()
		return len(got) == 2 && got[0].Type == "updated" && got[1].Name == "web", fmt.Sprint(got)
	})
	r.remove("configmaps.v1", "settings")
	r.eventually(func() (bool, string) {
		got := poll()
		return len(got) == 1 && got[0].Name == "web", fmt.Sprint(got)
	})
}

// otlpLogs has a record for each change, with its summary.
func otlpLogs(t *testing.T) {
	c := testservers.StartCollector(t, testservers.CollectorSpec{})
	r := newRun(t, "otlp-logs.yaml", map[string]string{"http://127.0.0.1:4318": "http://" + c.Addr})
	r.apply(configMap)
	r.start("deployments.v1.apps", "configmaps.v1")
	r.patch("configmaps.v1", "settings", `{"data":{"color":"green"}}`)
	r.eventually(func() (bool, string) {
		var got []string
		for _, record := range c.Accepted() {
			if a := record.Attributes; a["k8s.namespace.name"] == r.namespace && a["watcherd.name"] == "settings" {
				got = append(got, fmt.Sprint(record.EventName, a["watcherd.summary"]))
			}
		}
		return len(got) == 2 && strings.Contains(got[1], "updated") && strings.Contains(got[1], "green"), fmt.Sprint(got)
	})
}

// inSearch has what changed in a data stream and what exists in an index.
func inSearch(t *testing.T) {
	es := testservers.StartElasticsearch(t, testservers.ElasticsearchSpec{})
	r := newRun(t, "elasticsearch.yaml", map[string]string{"http://127.0.0.1:9200": "http://" + es.Addr})
	r.apply(configMap)
	r.start("deployments.v1.apps", "configmaps.v1")
	r.patch("configmaps.v1", "settings", `{"data":{"color":"green"}}`)
	r.eventually(func() (bool, string) {
		var got []string
		for _, op := range es.Accepted() {
			if bytes.Contains(op.Source, []byte(`"namespace":"`+r.namespace+`","name":"settings"`)) {
				got = append(got, op.Op)
			}
		}
		object := string(es.Documents("watcherd-objects")["demo/configmaps/"+r.namespace+"/settings"])
		text := fmt.Sprint(got, object)
		return len(got) == 4 && strings.Contains(object, "green"), text
	})
}

// inLake has a folder for each resource and day.
func inLake(t *testing.T) {
	o := testservers.StartObject(t, testservers.ObjectSpec{Bucket: "changes", Access: "watcherd", Secret: "open sesame"})
	r := newRun(t, "lake.yaml", map[string]string{"http://127.0.0.1:9000": "http://" + o.Addr})
	r.env = append(r.env, "S3_SECRET_KEY=open sesame")
	r.apply(configMap)
	r.start("deployments.v1.apps", "configmaps.v1")
	r.patch("configmaps.v1", "settings", `{"data":{"color":"green"}}`)
	r.eventually(func() (bool, string) {
		_, lines := o.Lines("watcherd/demo/configmaps")
		var got []string
		for key, content := range lines {
			for _, e := range r.filter(slices.Concat(content...)) {
				if e.Name == "settings" && strings.HasPrefix(key, "watcherd/demo/configmaps/dt=2") {
					got = append(got, e.Type)
				}
			}
		}
		return slices.Contains(got, "updated") && len(got) == 2, fmt.Sprint(got)
	})
}

// historyInSQL has what changed in one table and what exists in the other.
func historyInSQL(t *testing.T) {
	p := testservers.StartPostgres(t, testservers.PostgresSpec{})
	r := newRun(t, "history-in-sql.yaml", nil)
	r.env = append(r.env, "DATABASE_URL="+p.URL())
	r.apply(configMap + "---" + deployment)
	r.start("deployments.v1.apps", "configmaps.v1")
	rows := func(query string) string {
		if p.Exec("select to_regclass('watcherd.objects') is null")[0][0] == "t" {
			return ""
		}
		var lines []string
		for _, row := range p.Exec(strings.ReplaceAll(query, "NAMESPACE", r.namespace)) {
			lines = append(lines, strings.Join(row, " "))
		}
		return strings.Join(lines, ", ")
	}
	want := func(query, want string) {
		r.eventually(func() (bool, string) {
			got := rows(query)
			return got == want, got
		})
	}
	const now = "select resource, name from watcherd.objects where namespace = 'NAMESPACE' and name in ('web', 'settings') and deleted_at is null order by 1"
	want(now, "configmaps settings, deployments web")
	r.patch("configmaps.v1", "settings", `{"data":{"color":"green"}}`)
	r.remove("configmaps.v1", "settings")
	want(now, "deployments web")
	want("select type, event #>> '{data,object,data,color}' from watcherd.history where namespace = 'NAMESPACE' and name = 'settings' and type <> 'sync' order by sequence",
		"updated green, deleted green")
}

// stored are the events of the stream whose subjects match, and belong to the run.
func stored(r *run, js jetstream.JetStream, subject string) []event {
	r.Helper()
	stream, err := js.Stream(r.Context(), "ARGOCD")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		r.Fatal(err)
	}
	var lines []byte
	for next := uint64(1); ; next++ {
		m, err := stream.GetMsg(r.Context(), next, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return r.filter(lines)
		}
		if err != nil {
			r.Fatal(err)
		}
		next = m.Sequence
		lines = append(append(lines, m.Data...), '\n')
	}
}

// receiver is an HTTP endpoint that keeps what it is sent.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	lines []byte // guarded by mu; the bodies
}

// newReceiver starts an endpoint that refuses what check does not like, which
// fails the test.
func newReceiver(t *testing.T, check func(h http.Header, body []byte) error) *receiver {
	t.Helper()
	rec := &receiver{}
	rec.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err == nil {
			err = check(q.Header, body)
		}
		if err != nil {
			t.Errorf("%s: %v", q.URL.Path, err)
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		rec.mu.Lock()
		defer rec.mu.Unlock()
		rec.lines = append(append(rec.lines, body...), '\n')
	}))
	t.Cleanup(rec.Close)
	return rec
}

// events are those of the run's namespace, in the order of their arrival.
func (rec *receiver) events(r *run) []event {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return r.filter(rec.lines)
}
