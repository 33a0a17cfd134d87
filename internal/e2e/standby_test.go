package e2e

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
)

// pair are two daemons with replicas of one store, on a cluster of three NATS servers. Both write to the folder
// events, and to the receiver.
type pair struct {
	t       *testing.T
	daemons [2]*daemon
	nodes   []*natstest.Node
	events  string
	noAcks  map[string]int // events that each sink got while its acknowledgements could not be recorded
	*receiver
	*client
}

func newPair(t *testing.T) *pair {
	t.Helper()
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	p := &pair{t: t, nodes: natstest.StartCluster(t), noAcks: map[string]int{}, receiver: newReceiver(t), client: newClient(t, c, ns)}
	shared := t.TempDir()
	p.events = filepath.Join(shared, "events")
	key := filepath.Join(shared, "key")
	if err := os.WriteFile(key, []byte("the key of the journal"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := journaled(killConfig(ns, p.URL), p.nodes, "E2E", key)
	config = strings.Replace(config, "./events/", p.events+"/", 1)
	for i := range p.daemons {
		p.daemons[i] = newDaemon(t, c.Kubeconfig, config)
	}
	return p
}

// journaled is a configuration with a journal in a stream of its own.
func journaled(config string, nodes []*natstest.Node, stream, key string) string {
	var urls []string
	for _, n := range nodes {
		urls = append(urls, n.URL)
	}
	return strings.Replace(config, "store: {path: ./data}", fmt.Sprintf(`
store:
  path: ./data
  journal:
    nats: {urls: [%s], timeout: 2s}
    stream: %s
    takeOverAfter: 3s
    encryptionKey: {file: %s}`, strings.Join(urls, ", "), stream, key), 1)
}

// terms is how often a daemon has begun to lead.
func terms(d *daemon) int { return strings.Count(d.log.String(), "this replica leads") }

// lead waits until one of the daemons leads that did not before, and returns it and the other.
func (p *pair) lead(before [2]int) (leader, other *daemon) {
	p.t.Helper()
	eventually(p.t, func() bool {
		for i, d := range p.daemons {
			if terms(d) > before[i] {
				leader, other = d, p.daemons[1-i]
				return true
			}
		}
		return false
	}, func() string { return "nobody leads" })
	return leader, other
}

func (p *pair) terms() [2]int { return [2]int{terms(p.daemons[0]), terms(p.daemons[1])} }

// start returns when one daemon leads, the other runs, and nothing is part of the first list any more.
func (p *pair) start() (leader, other *daemon) {
	p.t.Helper()
	before := p.terms()
	p.daemons[0].start()
	leader, other = p.lead(before)
	other.start()
	p.settleAll(p.events, kinds...)
	return leader, other
}

// delivered waits for an event that was not there before.
func (p *pair) delivered() {
	p.t.Helper()
	before := len(p.all())
	eventually(p.t, func() bool { return len(p.all()) > before }, func() string { return "no event reaches the receiver" })
}

// caughtUp waits for as many events as there are writes. Leaders that end before, again and again, fall behind what the API server
// remembers, which is a gap.
func (p *pair) caughtUp() {
	p.t.Helper()
	writes := p.history.count()
	eventually(p.t, func() bool { return len(p.all()) >= writes },
		func() string { return fmt.Sprintf("the receiver has %d events of %d writes", len(p.all()), writes) })
}

// beginning is the line of a replica that leads.
var beginning = regexp.MustCompile(`"this replica leads" replica=(\S+ term=\d+)`)

// follows waits until a replica has read what a leader has begun its term with: it may have been seeded, and read everything since.
func (p *pair) follows(leader, other *daemon) {
	p.t.Helper()
	terms := beginning.FindAllStringSubmatch(leader.log.String(), -1)
	want := `"this replica follows" leader=` + terms[len(terms)-1][1]
	eventually(p.t, func() bool { return strings.Contains(other.log.String(), want) }, func() string { return "the other does not follow\n" + other.log.Tail() })
}

// bySink is what each sink has got.
func (p *pair) bySink() map[string][]got {
	p.t.Helper()
	return map[string][]got{"file": readEvents(p.t, p.events), "webhook": p.all()}
}

// check ends the pair and compares what was delivered with what was written.
func (p *pair) check(ends, restarts int) {
	p.t.Helper()
	p.settleAll(p.events, kinds...)
	eventually(p.t, func() bool { return len(distinct(p.all())) >= len(distinct(readEvents(p.t, p.events))) },
		func() string { return fmt.Sprintf("the receiver has %d events", len(p.all())) })
	for _, d := range p.daemons {
		if d.running() {
			d.stop()
		}
	}
	for name, events := range p.bySink() {
		once := distinct(events)
		checkExact(p.t, p.history, once)
		repeated := len(events) - len(once)
		if most := ends*hookBatch*4 + p.noAcks[name]; repeated > most {
			p.t.Errorf("%s: %d events delivered again, want at most %d", name, repeated, most)
		}
		p.t.Logf("%s: %d ends of leaders, %d of servers, %d writes, %d events, %d of them again", name, ends, restarts, p.history.count(), len(once), repeated)
	}
}

// TestStandby ends the leader again and again in a stream of writes: killed, killed with its disk lost, stopped in
// order. The other takes over; everything is delivered, in order, once but for what was in flight. In a soak, it is killed 20
// times in 50,000 writes, and each third time stopped in order besides.
func TestStandby(t *testing.T) {
	const long, longWrites = 30, 50_000
	p := newPair(t)
	leader, _ := p.start()
	writers := p.sustain(2, 60, 0)
	rng := rand.New(rand.NewPCG(3, 3))
	var other *daemon
	ends, took := 0, map[bool][]time.Duration{} // by whether the leader resigned
	for ; ends < 6 || soak() && ends < long; ends++ {
		for soak() && p.history.count() < ends*longWrites/long {
			pause(t, 100*time.Millisecond)
		}
		p.delivered()
		if soak() {
			p.caughtUp()
			if other != nil {
				p.follows(leader, other)
			}
		}
		pause(t, time.Duration(rng.Int64N(int64(time.Second))))
		before, began := p.terms(), time.Now()
		switch ends % 3 {
		case 0:
			leader.kill()
		case 1:
			leader.kill()
			if err := os.RemoveAll(leader.path("data")); err != nil {
				t.Fatal(err)
			}
		case 2:
			leader.stop()
		}
		next, ended := p.lead(before)
		took[ends%3 == 2] = append(took[ends%3 == 2], time.Since(began).Round(10*time.Millisecond))
		if next == leader {
			t.Fatal("a replica that does not run leads")
		}
		ended.start()
		leader, other = next, ended
	}
	if err := writers(); err != nil {
		t.Fatal(err)
	}
	t.Logf("from the end of a leader to the next: killed %v, stopped %v (its own end included)", took[false], took[true])
	p.check(ends, 0)
}

// slowHook stands before the receiver, and notes when each daemon has begun a delivery.
type slowHook struct {
	*httptest.Server
	mu    sync.Mutex
	begun map[string][]time.Time // guarded by mu; by path
}

// slow has the daemons deliver to a path each of a server that takes its time.
func (p *pair) slow() *slowHook {
	p.t.Helper()
	h := &slowHook{begun: map[string][]time.Time{}}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.begun[r.URL.Path] = append(h.begun[r.URL.Path], time.Now())
		h.mu.Unlock()
		time.Sleep(200 * time.Millisecond)
		p.Config.Handler.ServeHTTP(w, r)
	}))
	p.t.Cleanup(h.Close)
	for i, d := range p.daemons {
		text, err := os.ReadFile(d.path("watcherd.yaml"))
		if err != nil {
			p.t.Fatal(err)
		}
		d.configure(strings.Replace(string(text), p.URL, h.URL+path(i), 1))
	}
	return h
}

func path(daemon int) string { return fmt.Sprint("/", daemon) }

// since is how many deliveries a daemon has begun before and after a time.
func (h *slowHook) since(daemon int, at time.Time) (before, after int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, begun := range h.begun[path(daemon)] {
		if begun.After(at) {
			after++
		} else {
			before++
		}
	}
	return before, after
}

// TestStandbyAsleep stops the leader's process, with a backlog at a slow webhook, until the other leads, in a soak for 30
// seconds: it begins no delivery when it wakes, and ends.
func TestStandbyAsleep(t *testing.T) {
	p := newPair(t)
	hook := p.slow()
	asleep, _ := p.start()
	index := slices.Index(p.daemons[:], asleep)
	writers := p.sustain(2, 60, 0)
	p.delivered()
	before, began := p.terms(), time.Now()
	asleep.signal(syscall.SIGSTOP)
	p.lead(before)
	p.delivered()
	if soak() {
		pause(t, 30*time.Second-time.Since(began))
	}
	woke := time.Now()
	asleep.signal(syscall.SIGCONT)
	if code := asleep.wait(); code != 3 {
		t.Errorf("exit code %d of the leader that was replaced, want 3", code)
	}
	if before, after := hook.since(index, woke); before == 0 || after > 0 {
		t.Errorf("the leader that was replaced began %d deliveries before it woke, and %d after", before, after)
	}
	asleep.start()
	p.delivered()
	if err := writers(); err != nil {
		t.Fatal(err)
	}
	p.check(1, 0)
}

// TestStandbyWithoutServers ends NATS servers, one of three, two, all; and both replicas while these are away.
func TestStandbyWithoutServers(t *testing.T) {
	p := newPair(t)
	leader, other := p.start()
	writers := p.sustain(2, 30, 0)
	ends, before := 0, p.terms()
	for n := 1; n <= 3; n++ {
		acked := p.bySink()
		p.caughtUp()           // the journal has taken what was written since, and so the acknowledgements before that
		if !leader.running() { // the election of the servers took longer than a take-over
			if code := leader.wait(); code != 3 {
				t.Errorf("exit code %d of the leader that was replaced, want 3", code)
			}
			leader.start()
			leader, other = other, leader
			ends++
		}
		for _, node := range p.nodes[:n] {
			node.Kill()
		}
		pause(t, 4*time.Second) // longer than the time-out of a take-over
		if n == 3 {
			leader.stop() // although the journal does not answer
			other.kill()
			for name, events := range p.bySink() {
				p.noAcks[name] += len(events) - len(acked[name])
			}
			before = p.terms()
			leader.start()
			other.start()
			pause(t, time.Second)
			ends++
		}
		for _, node := range p.nodes[:n] {
			node.Start()
		}
		if n == 3 {
			p.lead(before)
		}
		p.delivered()
	}
	if err := writers(); err != nil {
		t.Fatal(err)
	}
	p.check(ends, 3)
}

// TestStandbyHidesLater hides values by a reload that are recorded in the clear: once the scrub is done, no folder of a
// replica has them, nor has one that is seeded then.
func TestStandbyHidesLater(t *testing.T) {
	p := newPair(t)
	leader, other := p.start()
	plain := newCanary()
	for i := range 20 {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": p.namespace, "name": fmt.Sprintf("hidden-%d", i)},
			"data": map[string]any{"value": plain.text},
		}}
		if _, err := p.dyn.Resource(configMaps).Namespace(p.namespace).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	with := func(d *daemon) (paths []string) {
		t.Helper()
		err := filepath.WalkDir(d.path("data"), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return nil //nolint:nilerr // it was removed meanwhile
			}
			if content, err := os.ReadFile(path); err == nil && plain.in(content) {
				paths = append(paths, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return paths
	}
	for _, d := range p.daemons {
		eventually(t, func() bool { return len(with(d)) > 0 }, func() string { return "a replica does not have the value" })
	}
	running, err := os.ReadFile(leader.path("watcherd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	hiding := strings.Replace(string(running), "- name: all\n  resources:", "- name: all\n  redact: [\"data[*]\"]\n  resources:", 1)
	other.configure(hiding)
	leader.reload(hiding)
	eventually(t, func() bool {
		return strings.Contains(leader.log.String(), "has been rewritten as the configuration wants it")
	},
		func() string { return "the scrub is not done\n" + leader.log.Tail() })
	for _, d := range p.daemons {
		if paths := with(d); len(paths) > 0 {
			t.Errorf("the value is in %v", paths)
		}
	}
	other.kill()
	if err := os.RemoveAll(other.path("data")); err != nil {
		t.Fatal(err)
	}
	other.start()
	eventually(t, func() bool { return strings.Contains(other.log.String(), "this replica has been seeded") },
		func() string { return "it is not seeded\n" + other.log.Tail() })
	before := p.terms()
	leader.stop()
	p.lead(before)
	other.stop()
	for _, d := range p.daemons {
		if _, inflated := storeContents(t, d); plain.in(inflated) || len(with(d)) > 0 {
			t.Errorf("the value is in the store: %v", with(d))
		}
	}
}
