package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// fault is something that goes wrong at night, and where it has to show.
type fault struct {
	name       string
	begin, end func()
	again      func() // has it met once more, where it does not by itself
	tries      string // the counter of how often it was met; "" if it is met once

	check  string // of readyz
	reason string // a part of what readyz says
	status func(*status.Status) bool
	series string // that is 1
	alert  string
	label  string // of the alert
	says   string // what is logged, once; a regular expression
	silent bool   // nothing is heard from the API server
}

// night is a daemon that things happen to.
type night struct {
	*daemon
	*client
	t       *testing.T
	cluster *testcluster.Cluster
	proxy   *testkit.Proxy
	hook    *endpoint
	admin   string
	minFree string
	writes  int

	full, less string // the daemon's Role, and without leave to watch secrets
}

const faultsCRD = "gadgets.faults.example.com"

// TestFaultsShow brings one fault after the other upon a daemon. Each shows in the
// status, in readyz, in a metric, in an alert and in one line of the log, and
// nothing is left of it when it is over.
func TestFaultsShow(t *testing.T) {
	testcluster.Tool(t, "promtool") // made here: a fault that outlasts its minutes would be logged again
	n := newNight(t)
	n.start()
	n.well()
	n.checkNames()
	for _, f := range n.faults() {
		ok := t.Run(f.name, func(t *testing.T) {
			n.t, n.daemon.t, n.client.t, n.hook.t = t, t, t, t
			n.bring(f)
		})
		n.t, n.daemon.t, n.client.t, n.hook.t = t, t, t, t
		if !ok {
			return // the next would only show the same
		}
	}
	n.stop()
}

func newNight(t *testing.T) *night {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	c.Apply(t, gadgetCRD())
	n := &night{
		t: t, cluster: c, client: newClient(t, c, ns), proxy: newProxy(t, c), hook: newEndpoint(t),
		admin: testkit.Address(t), minFree: "1Mi",
	}
	a := account{ns, "reader"}
	n.daemon = newDaemon(t, through(t, n.proxy, c, c.UserKubeconfig(t, a.user())), n.config())
	// A connection that stands and is dead is found out by pings.
	n.env = []string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS=2", "HTTP2_PING_TIMEOUT_SECONDS=2"}
	for _, u := range a.grant(t, c, n.daemon) {
		if less, ok := withoutVerb(t, u, "secrets", "watch"); ok {
			n.full, n.less = manifest(t, u), manifest(t, less)
		}
	}
	return n
}

func gadgetCRD() string {
	return strings.NewReplacer("Widget", "Gadget", "widget", "gadget", "example.com", "faults.example.com").Replace(widgetCRD)
}

func (n *night) config() string {
	return fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data, minFree: %s}
admin: {listen: %q}
watches:
- {name: maps, resources: [configmaps], namespaces: {include: [%s]}}
- {name: hidden, resources: [secrets], namespaces: {include: [%[3]s]}}
- {name: custom, resources: [%s]}
sinks:
- name: hook
  webhook: {url: %q, timeout: 1s}
  batch: {maxEvents: 2, maxWait: 10ms}
  retry: {initial: 50ms, max: 200ms, poisonAttempts: 1}
- name: archive
  file: {path: "./events/{resource}.jsonl"}
`, n.minFree, n.admin, n.namespace, faultsCRD, n.hook.url())
}

func (n *night) faults() []fault {
	return []fault{
		{
			name:  "a sink is down",
			begin: func() { n.hook.down(); n.write() }, end: n.hook.up, again: n.write,
			tries: `watcherd_sink_errors_total{class="retry",sink="hook"}`,
			check: "sink/hook", reason: "backing-off: ",
			status: func(s *status.Status) bool { return sinkOf(s, "hook").Queued > 0 && sinkOf(s, "hook").LastError != "" },
			series: `watcherd_sink_state{sink="hook",state="backing-off"}`,
			alert:  "WatcherdSinkBacklogOld", label: `sink="hook"`,
			says: `the sink fails, backing off.* sink=hook`,
		},
		{
			name:  "a sink refuses the credentials",
			begin: func() { n.hook.become(answering(http.StatusUnauthorized)); n.write() },
			end: func() {
				n.hook.become(healthy)
				n.command("sinks", "resume", "hook")
			},
			again: n.write,
			check: "sink/hook", reason: "paused: ",
			status: func(s *status.Status) bool { return sinkOf(s, "hook").State == "paused" },
			series: `watcherd_sink_state{sink="hook",state="paused"}`,
			alert:  "WatcherdSinkPaused", label: `sink="hook"`,
			says: `the sink is paused until its cause is fixed.* sink=hook`,
		},
		{
			name:  "an event is refused",
			begin: func() { n.hook.become(answering(http.StatusUnprocessableEntity)); n.write() },
			end: func() {
				n.hook.become(healthy)
				n.command("deadletters", "drop", "--sink", "hook", "--all")
			},
			check: "sink/hook", reason: "dead letters are kept: 1",
			status: func(s *status.Status) bool { return sinkOf(s, "hook").DeadLetters == 1 },
			series: `watcherd_sink_dead_letters_kept{sink="hook"}`,
			alert:  "WatcherdDeadLetters", label: `sink="hook"`,
			says: `an event became a dead letter.* sink=hook`,
		},
		{
			name:  "a watch is forbidden",
			begin: func() { n.cluster.Apply(n.t, n.less); n.proxy.Cut(); n.proxy.Restore() }, end: func() { n.cluster.Apply(n.t, n.full) },
			tries: `watcherd_watch_forbidden_total{resource="secrets.v1",watch="hidden"}`,
			check: "watch/hidden/secrets.v1/" + n.namespace, reason: "forbidden: ",
			status: func(s *status.Status) bool { return sourceOf(s, "hidden").State == "forbidden" },
			series: `watcherd_watch_state{resource="secrets.v1",state="forbidden",watch="hidden"}`,
			alert:  "WatcherdWatchNotWatching", label: `watch="hidden"`,
			says: `cannot watch the resource; retrying" err=".*cannot watch resource .* resource=secrets\.v1`,
		},
		{
			name: "a custom resource is gone", begin: n.removeCRD, end: n.restoreCRD,
			check: "watch/custom/" + faultsCRD, reason: "waiting: ",
			status: func(s *status.Status) bool { return len(watchOf(s, "custom").Missing) == 1 },
			series: `watcherd_watch_state{resource="` + faultsCRD + `",state="waiting",watch="custom"}`,
			alert:  "WatcherdWatchWaiting", label: `watch="custom"`,
			says: `resource is not available: waiting for it.* watch=custom`,
		},
		{
			name:  "the disk is full",
			begin: func() { n.minFree = "1000Ti"; n.configure(n.config()); n.reload() },
			end:   func() { n.minFree = "1Mi"; n.configure(n.config()); n.reload() },
			again: n.write,
			check: "store", reason: "ingest is paused: disk nearly full",
			status: func(s *status.Status) bool { return s.Store.Paused && s.Store.DiskFree < s.Store.MinFree },
			series: "watcherd_store_ingest_paused",
			alert:  "WatcherdIngestPaused",
			says:   `ingest is paused until there is room.*disk nearly full`,
		},
		{
			name:  "the configuration is broken",
			begin: func() { n.configure(n.config() + "nonsense: 1\n") }, end: func() { n.configure(n.config()) },
			again: n.reload, tries: `watcherd_config_reloads_total{result="invalid"}`,
			check: "config", reason: "the file is not what runs: ",
			status: func(s *status.Status) bool { return strings.Contains(s.Config.LastError, "nonsense: unknown key") },
			series: `watcherd_config_reloads_total{result="invalid"}`,
			alert:  "WatcherdReloadFailed",
			says:   `config file is not valid.*nonsense: unknown key`,
		},
		{
			name: "the API server says nothing", begin: n.proxy.Hang, end: n.proxy.Restore, silent: true,
			check: "watch/maps/configmaps.v1/" + n.namespace, reason: "backing-off: ",
			status: func(s *status.Status) bool { return sourceOf(s, "maps").State == "backing-off" },
			series: `watcherd_watch_state{resource="configmaps.v1",state="backing-off",watch="maps"}`,
			alert:  "WatcherdWatchSilent", label: `watch="maps"`,
			says: `the API server does not answer; retrying" .*watches=\d+`,
		},
	}
}

// metric is a metric's name in a query or a text.
var metric = regexp.MustCompile(`\b(watcherd|rest_client|informer|process|go)_[a-z0-9_]*[a-z0-9]\b`)

// checkNames expects every metric that alerts and dashboard look at to be there from the
// start: what is not there cannot increase. Those of a journal are there with store.journal.
func (n *night) checkNames() {
	there := map[string]bool{}
	for series := range scrape(n.t, n.admin) {
		family, _, _ := strings.Cut(series, "{")
		there[family] = true
		there[strings.TrimSuffix(family, "_count")] = true // a histogram's
	}
	for _, file := range []string{"../../deploy/prometheus/alerts.yaml", "../../deploy/grafana/watcherd.json"} {
		text, err := os.ReadFile(file)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, name := range metric.FindAllString(string(text), -1) {
			if !there[name] && !strings.HasPrefix(name, "watcherd_journal_") {
				n.t.Errorf("%s: there is no metric %s", file, name)
				there[name] = true // said
			}
		}
	}
}

// bring has a fault begin, looks for its signs, and has it end.
func (n *night) bring(f fault) {
	n.t.Helper()
	before := moment{scrape(n.t, n.admin), time.Now()}
	n.log.Reset()
	f.begin()
	said := ""
	line := "[-]" + f.check + " degraded: " + f.reason
	eventually(n.t, func() bool {
		said, _ = httpGet(n.t, "http://"+n.admin+"/readyz?verbose")
		return strings.Contains(said, line)
	}, func() string { return "readyz doesn't say " + line + ":\n" + said })
	n.meetAgain(f)
	var st status.Status
	body, _ := httpGet(n.t, "http://"+n.admin+"/api/v1/status")
	if err := json.Unmarshal([]byte(body), &st); err != nil || !f.status(&st) {
		n.t.Errorf("the status doesn't show it: %v\n%s", err, body)
	}
	during := moment{scrape(n.t, n.admin), time.Now()}
	if during.samples[f.series] < 1 || before.samples[f.series] != 0 {
		n.t.Errorf("%s was %v and is %v", f.series, before.samples[f.series], during.samples[f.series])
	}
	alerts{well: before, faulty: during, silent: f.silent}.check(n.t, f.alert, f.label)
	n.checkLog(f.says)
	f.end()
	n.well()
}

// meetAgain has the daemon meet the fault some more times, for what is logged at
// each would be a flood.
func (n *night) meetAgain(f fault) {
	for range 3 {
		before := scrape(n.t, n.admin)[f.tries]
		if f.again != nil {
			f.again()
		}
		if f.tries != "" {
			eventually(n.t, func() bool { return scrape(n.t, n.admin)[f.tries] > before }, func() string { return f.tries + " doesn't grow" })
		}
	}
}

// loud is a line of the log that wants somebody's attention.
var loud = regexp.MustCompile(`(?m)^time=\S+ level=(WARN|ERROR) .*$`)

// checkLog expects one line that says something, and no others to be loud.
func (n *night) checkLog(says string) {
	n.t.Helper()
	var lines []string
	eventually(n.t, func() bool {
		lines = loud.FindAllString(n.log.String(), -1)
		return len(lines) > 0
	}, func() string { return "not logged: " + says })
	re := regexp.MustCompile(says)
	if len(lines) != 1 || !re.MatchString(lines[0]) {
		n.t.Errorf("want one line that says %s, and no other warning or error:\n%s", says, strings.Join(lines, "\n"))
	}
}

// well waits until nothing is degraded.
func (n *night) well() {
	n.t.Helper()
	said := ""
	eventually(n.t, func() bool {
		said, _ = httpGet(n.t, "http://"+n.admin+"/readyz?verbose")
		return strings.HasSuffix(said, "readyz check passed\n")
	}, func() string { return "readyz still says:\n" + said })
	// What failed is delivered, too: it may still wait for its next attempt.
	blocked := regexp.MustCompile(`(?m)^watcherd_sink_blocked_events\{.*\} [^0]`)
	eventually(n.t, func() bool {
		said, _ = httpGet(n.t, "http://"+n.admin+"/metrics")
		return !blocked.MatchString(said)
	}, func() string {
		return "events are still blocked:\n" + strings.Join(blocked.FindAllString(said, -1), "\n")
	})
}

// write makes a change that is watched.
func (n *night) write() {
	n.writes++
	if _, err := n.create(n.t.Context(), kinds[0], fmt.Sprintf("night-%d", n.writes)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *night) reload() { n.signal(syscall.SIGHUP) }

// command runs one of watcherd's commands on the daemon.
func (n *night) command(args ...string) {
	n.t.Helper()
	if _, errs, code := command(n.t, append(args, "--admin", "http://"+n.admin)...); code != 0 {
		n.t.Fatalf("%v: exit code %d: %s", args, code, errs)
	}
}

func (n *night) removeCRD() {
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if err := n.dyn.Resource(crds).Delete(n.t.Context(), faultsCRD, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// restoreCRD waits for what is said of the stretch without a definition: the list after
// it shows that nothing was missed.
func (n *night) restoreCRD() {
	n.cluster.Apply(n.t, gadgetCRD())
	eventually(n.t, func() bool { return strings.Contains(n.log.String(), "relists found no missed change") }, n.log.Tail)
}

func answering(code int) behaviour {
	return func(w http.ResponseWriter, _ []json.RawMessage, _ func()) { w.WriteHeader(code) }
}

func watchOf(s *status.Status, name string) status.Watch {
	for _, w := range s.Watches {
		if w.Name == name {
			return w
		}
	}
	return status.Watch{}
}

func sourceOf(s *status.Status, watch string) status.Source {
	for _, one := range watchOf(s, watch).Sources {
		return one
	}
	return status.Source{}
}

func sinkOf(s *status.Status, name string) status.Sink {
	for _, one := range s.Sinks {
		if one.Name == name {
			return one
		}
	}
	return status.Sink{}
}
