package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
	"github.com/watcherd/watcherd/pkg/watcherd"
	builtin "github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

const hubPassword = "FLEET_PASSWORD"

// newHub starts a server with a stream for the events of all clusters. The user of each of these may publish
// below its own prefix, and nothing else; the user hub may do everything.
func newHub(t *testing.T, clusters ...string) *natstest.Node {
	t.Helper()
	t.Setenv(hubPassword, "secret")
	users := []natstest.User{{Name: "hub", Password: "secret"}}
	for _, c := range clusters {
		users = append(users, natstest.User{Name: c, Password: "secret", Publish: []string{"k8s." + c + ".>"}, Subscribe: []string{"_INBOX.>"}})
	}
	return startHub(t, natstest.Spec{Users: users})
}

func startHub(t *testing.T, s natstest.Spec) *natstest.Node {
	t.Helper()
	s.Name, s.Dir = "hub", t.TempDir()
	hub := natstest.Start(t, s)
	nc, js := asUser(t, hub, "hub")
	defer nc.Close()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{"k8s.>"}, Storage: jetstream.FileStorage})
	if err != nil {
		t.Fatal(err)
	}
	return hub
}

func asUser(t *testing.T, hub *natstest.Node, user string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(hub.URL, nats.UserInfo(user, "secret"), nats.Timeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// agent is a watcherd in the test's process with a cluster of its own, of ConfigMaps.
type agent struct {
	t       *testing.T
	cluster string
	api     *apitest.Server
	config  string
	log     testkit.Log
	rng     *rand.Rand
	made    map[string][]string // by name of the object, the versions of its writes; the last may be its deletion
	deleted map[string]bool
	objects int
}

const (
	mapsPath = "/api/v1/configmaps"
	noGroups = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[]}`
	onlyMaps = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{},"versions":[
{"version":"v1","freshness":"Current","resources":[
 {"resource":"configmaps","singularResource":"configmap","scope":"Namespaced","verbs":["get","list","watch"],"responseKind":{"group":"","version":"v1","kind":"ConfigMap"}}]}]}]}`
)

// discover answers discovery, which apitest leaves to tests.
func discover(w http.ResponseWriter, r *http.Request) bool {
	body, ok := map[string]string{"/api": onlyMaps, "/apis": noGroups}[r.URL.Path]
	if ok {
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		_, _ = io.WriteString(w, body)
	}
	return ok
}

// newAgent prepares an agent that authenticates as user.
func newAgent(t *testing.T, hub *natstest.Node, cluster, user string, seed uint64) *agent {
	t.Helper()
	a := &agent{
		t: t, cluster: cluster, api: apitest.New(t), rng: rand.New(rand.NewPCG(seed, 5)),
		made: map[string][]string{}, deleted: map[string]bool{},
	}
	a.api.Serve(mapsPath, "v1", "ConfigMap")
	a.api.SetUID("uid-of-" + cluster)
	a.api.Intercept(discover)
	dir := t.TempDir()
	a.config = filepath.Join(dir, "watcherd.yaml")
	config := fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: %s}
store: {path: %s}
admin: {listen: ""}
consistencyCheck: {enabled: false}
watches: [{name: maps, resources: [configmaps]}]
sinks:
- name: hub
  nats:
    url: %s
    user: %s
    password: {env: %s}
    subject: "k8s.{cluster}.{group}.{resource}.{namespace}"
    jetstream: {stream: %s}
  heartbeat: 1s
  retry: {initial: 100ms, max: 2s}
`, cluster, filepath.Join(dir, "data"), hub.URL, user, hubPassword, stream)
	if err := os.WriteFile(a.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// run runs the agent until the returned function is called, which returns its error.
func (a *agent) run() (stop func() error) {
	ctx, cancel := context.WithCancel(a.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- watcherd.Run(ctx, watcherd.Options{
			ConfigFile: a.config, Kinds: builtin.Builtin(), REST: a.api.Config(), Stdout: io.Discard,
			Logger: slog.New(slog.NewTextHandler(&a.log, nil)), ShutdownTimeout: 5 * time.Second,
		})
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

// write makes n random writes and remembers them.
func (a *agent) write(n int) {
	for range n {
		var live []string
		for name := range a.made {
			if !a.deleted[name] {
				live = append(live, name)
			}
		}
		slices.Sort(live)
		var name string
		switch p := a.rng.Float64(); {
		case len(live) == 0 || p < 0.3:
			a.objects++
			name = fmt.Sprintf("object-%d", a.objects)
		default:
			name = live[a.rng.IntN(len(live))]
			a.deleted[name] = p > 0.85
		}
		if a.deleted[name] {
			a.api.Delete(mapsPath, "ns", name)
		} else {
			a.api.Put(mapsPath, "ns", name, map[string]any{"data": map[string]any{"n": a.api.Version()}})
		}
		a.made[name] = append(a.made[name], a.api.Version())
	}
}

// published are a cluster's messages in the stream, in its order.
type published struct {
	got
	ClusterUID string `json:"clusteruid"`
	beat       heartbeat
}

type heartbeat struct {
	Through, Recorded string
	Pending           int
	Informers         int
	Contact           time.Time
}

// hubReader reads the stream, by cluster.
type hubReader struct {
	t    *testing.T
	hub  *natstest.Node
	last uint64 // sequence that was read, in the stream
	all  map[string][]published
}

// read returns all that is in the stream, and checks that each message is of the cluster that its subject names.
func (h *hubReader) read() map[string][]published {
	t := h.t
	t.Helper()
	nc, js := asUser(t, h.hub, "hub")
	defer nc.Close()
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	if h.all == nil {
		h.all = map[string][]published{}
	}
	for end := s.CachedInfo().State.LastSeq; h.last < end; {
		m, err := s.GetMsg(t.Context(), h.last+1)
		if err != nil {
			t.Fatal(err)
		}
		h.last++
		var p published
		if err := json.Unmarshal(m.Data, &p); err != nil {
			t.Fatal(err)
		}
		cluster := strings.Split(m.Subject, ".")[1]
		if p.verb() == "heartbeat" {
			var body struct {
				Data struct{ Object struct{ Status heartbeat } }
			}
			if err := json.Unmarshal(m.Data, &body); err != nil {
				t.Fatal(err)
			}
			p.beat = body.Data.Object.Status
		}
		uid := "uid-of-" + cluster
		if p.verb() == "heartbeat" && p.beat.Contact.IsZero() && p.ClusterUID == "" {
			uid = "" // the API server was not asked yet
		}
		if want := "/clusters/" + cluster; p.Source != want || p.ClusterUID != uid {
			t.Errorf("%s has an event of %s, uid %q", m.Subject, p.Source, p.ClusterUID)
		}
		h.all[cluster] = append(h.all[cluster], p)
	}
	return h.all
}

// missing lists what of the agent's writes is not in the stream, or otherwise than it happened: each event
// once, those of an object in their order, none after a heartbeat that counts it as delivered, and a last
// heartbeat after which nothing is pending.
func (a *agent) missing(messages []published) (problems []string) {
	bad := func(format string, args ...any) {
		problems = append(problems, a.cluster+": "+fmt.Sprintf(format, args...))
	}
	through := ""
	seen, versions, last, newest := map[string]bool{}, map[string][]string{}, heartbeat{}, ""
	for _, p := range messages {
		if seen[p.ID] {
			bad("event %s twice", p.ID)
		}
		seen[p.ID] = true
		if p.verb() == "heartbeat" {
			last, through = p.beat, max(through, p.beat.Through)
			continue
		}
		if p.Sequence <= through {
			bad("event %s comes after a heartbeat that has everything through %s", p.Sequence, through)
		}
		newest = max(newest, p.Sequence)
		versions[p.Data.Name] = append(versions[p.Data.Name], p.verb()+" "+p.Data.ResourceVersion)
	}
	for name, writes := range a.made {
		events := versions[name]
		delete(versions, name)
		if len(events) != len(writes) {
			bad("%s: %d writes, events %v", name, len(writes), events)
			continue
		}
		for i, version := range writes {
			verb, of, _ := strings.Cut(events[i], " ")
			deletion := a.deleted[name] && i == len(writes)-1
			if of != version || (verb == "deleted") != deletion || (verb == "updated") != (i > 0 && !deletion) {
				bad("%s: event %d is %s, the write was %s", name, i, events[i], version)
			}
		}
	}
	for name := range versions {
		bad("events of %s, which was never written", name)
	}
	if last.Pending != 0 || last.Through < newest || last.Informers != 1 || last.Contact.IsZero() {
		bad("the newest event is %s, the last heartbeat %+v", newest, last)
	}
	return problems
}

// TestFleet has 50 agents publish to a hub that is killed and comes back a minute later: every change of every
// cluster arrives, once, in the order of its object.
func TestFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	const size = 50
	away := 10 * time.Second
	if soak() {
		away = time.Minute
	}
	var clusters []string
	for i := range size {
		clusters = append(clusters, fmt.Sprintf("c%02d", i))
	}
	hub := newHub(t, clusters...)
	reader := &hubReader{t: t, hub: hub}
	var agents []*agent
	var stops []func() error
	for i, cluster := range clusters {
		a := newAgent(t, hub, cluster, cluster, uint64(i))
		a.write(5) // found by the first list
		agents, stops = append(agents, a), append(stops, a.run())
	}
	all := func(do func(*agent)) {
		var group sync.WaitGroup
		for _, a := range agents {
			group.Go(func() { do(a) })
		}
		group.Wait()
	}
	// A first list has the newest state only.
	for _, a := range agents {
		for name, versions := range a.made {
			if a.deleted[name] {
				delete(a.made, name)
				delete(a.deleted, name)
			} else {
				a.made[name] = versions[len(versions)-1:]
			}
		}
	}
	settled := func() {
		t.Helper()
		var problems []string
		eventually(t, func() bool {
			problems = nil
			read := reader.read()
			for _, a := range agents {
				problems = append(problems, a.missing(read[a.cluster])...)
			}
			return len(problems) == 0
		}, func() string {
			return fmt.Sprintf("%d problems, the first are %q", len(problems), problems[:min(len(problems), 5)])
		})
	}
	settled()
	all(func(a *agent) { a.write(10) })
	hub.Kill()
	began := time.Now()
	for time.Since(began) < away {
		all(func(a *agent) { a.write(5) })
		pause(t, away/20)
	}
	hub.Start()
	all(func(a *agent) { a.write(10) })
	settled()
	events, beats := 0, 0
	for _, list := range reader.read() {
		for _, p := range list {
			if p.verb() == "heartbeat" {
				beats++
			} else {
				events++
			}
		}
	}
	for i, stop := range stops {
		if err := stop(); err != nil {
			t.Errorf("%s: %v\n%s", agents[i].cluster, err, &agents[i].log)
		}
	}
	t.Logf("%d agents, the hub away for %v: %d events, each once, and %d heartbeats", size, away, events, beats)
}

// TestFleetPermissions has an agent call itself another cluster than its user is for, with the hub of the
// example: nothing of it arrives.
func TestFleetPermissions(t *testing.T) {
	const mine, other = "prod-eu-1", "prod-us-1"
	for _, user := range []string{hubPassword, "HUB_PASSWORD", "PROD_EU_1_PASSWORD", "PROD_US_1_PASSWORD"} {
		t.Setenv(user, "secret")
	}
	hub := startHub(t, natstest.Spec{Config: "../../examples/fleet/hub.conf"})
	reader := &hubReader{t: t, hub: hub}
	honest, liar := newAgent(t, hub, mine, mine, 1), newAgent(t, hub, mine, other, 2)
	liar.write(1)
	stopLiar := liar.run()
	eventually(t, func() bool { return strings.Contains(strings.ToLower(liar.log.String()), "permissions violation") }, liar.log.String)
	honest.write(1)
	stop := honest.run()
	arrived := func(p published) bool { return p.verb() != "heartbeat" }
	eventually(t, func() bool { return slices.ContainsFunc(reader.read()[mine], arrived) }, honest.log.String)
	if err := errors.Join(stop(), stopLiar()); err != nil {
		t.Error(err)
	}
	for cluster, messages := range reader.read() {
		if cluster != mine {
			t.Errorf("%d messages of %s", len(messages), cluster)
		}
		var changes []published
		for _, p := range messages {
			if arrived(p) {
				changes = append(changes, p)
			}
		}
		if len(changes) != 1 || changes[0].Data.ResourceVersion != honest.made["object-1"][0] {
			t.Errorf("of the cluster there is %+v", changes)
		}
	}
	// A user's own client can neither publish for another cluster nor read what others publish.
	nc, js := asUser(t, hub, other)
	defer nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := js.Publish(ctx, "k8s."+mine+".core.configmaps.ns", []byte("{}")); err == nil {
		t.Error("a user published for another cluster")
	}
	if _, err := js.Publish(t.Context(), "k8s."+other+".core.configmaps.ns", []byte("{}")); err != nil {
		t.Errorf("a user cannot publish for its own cluster: %v", err)
	}
	for _, subject := range []string{"k8s.>", "k8s." + mine + ".>"} {
		sub, err := nc.SubscribeSync(subject)
		if err == nil {
			if err = nc.Flush(); err == nil {
				_, err = sub.NextMsg(200 * time.Millisecond)
			}
		}
		if err == nil {
			t.Errorf("a user reads %s", subject)
		}
	}
	if _, err := js.Stream(ctx, stream); err == nil {
		t.Error("a user reads the stream")
	}
}
