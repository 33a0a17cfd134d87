package simulation

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// world is one history.
type world struct {
	t       *testing.T
	r       *rand.Rand
	starts  *rand.Rand // of what befalls starts
	without []string   // steps that are left out

	cluster   *cluster
	resolver  *resolver
	disk      *disk
	receivers map[string]*receiver
	config    settings
	life      *life
	states    map[string]*plan.State // by configuration
	widgets   bool

	refuse atomic.Int64 // of a hundred requests, how many are refused; 100: the server is away

	blind atomic.Bool // the namespaces alone are refused
	apart atomic.Bool // the aggregated API has no APIService
	other atomic.Bool // another cluster answers at the address

	selects bool // a watch that selects namespaces by label was ready once

	pages  atomic.Int64 // objects of a page of a list; 0: as many as the client asks for
	delay  atomic.Int64 // of a page, in nanoseconds
	former atomic.Bool  // the former version of widgets is not served

	backup *backup // nil: there is none

	lossy    bool // history was compacted away
	wentBack bool // the cluster was restored
	gone     bool // the definition of widgets was deleted: what was not read of them by then cannot be
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, without: strings.Split(os.Getenv("WATCHERD_SIM_WITHOUT"), ","), r: rand.New(rand.NewPCG(seed, 1)), starts: rand.New(rand.NewPCG(seed, 3)),
		cluster: newCluster(), resolver: &resolver{now: discovery{widgets: true, routes: true}, changed: make(chan struct{}, 1)},
		disk:      newDisk(vfs.NewCrashableMem()),
		receivers: map[string]*receiver{"main": {name: "main", mode: well}, "flaky": {name: "flaky", mode: well}, "chosen": {name: "chosen", mode: well}, "calm": {name: "calm", mode: well}, "red": {name: "red", mode: well}, "pinned": {name: "pinned", mode: well}, "guest": {name: "guest", mode: well}},
		widgets:   true, states: map[string]*plan.State{},
		config: settings{calm: 4, chosen: seed%3 == 0, red: seed%5 < 2, pinned: seed%7 == 0, checks: seed%4 == 0, guest: true},
	}
	w.cluster.ready = w.ready
	w.cluster.chosen = func() bool {
		w.selects = w.selects || !w.cluster.beside && w.config.chosen && !w.config.byName && w.ready() && !w.lacks("widgets.example.com")
		return w.selects
	}
	if seed%3 == 1 { // nothing is lost for good, and no gap is to be reported
		w.without = append(w.without, "compact", "server restarts", "restore", "widgets go")
	}
	if seed%2 == 0 {
		w.without = append(w.without, "restore") // of what the guest has yet to get, nothing is known then
	} else {
		w.without = append(w.without, "guest")
	}
	var turn atomic.Int64
	w.cluster.Intercept(func(rw http.ResponseWriter, req *http.Request) bool {
		share := w.refuse.Load()
		if q := req.URL.Query(); w.pages.Load() > 0 && len(q.Get("limit")) > 1 {
			q.Set("limit", fmt.Sprint(w.pages.Load()))
			req.URL.RawQuery = q.Encode()
			time.Sleep(time.Duration(w.delay.Load()))
		}
		if w.former.Load() && req.URL.Path == paths["widgets.example.com"] {
			apitest.Fail(rw, http.StatusNotFound, "NotFound")
			return true
		}
		if w.apart.Load() && req.URL.Path == paths["routes.api.test"] {
			apitest.Fail(rw, http.StatusNotFound, "NotFound")
			return true
		}
		if w.blind.Load() && req.URL.Path == paths["namespaces"] {
			apitest.Fail(rw, http.StatusInternalServerError, "InternalError")
			return true
		}
		if share < 100 && w.other.Load() && req.URL.Query().Get("fieldSelector") != "metadata.name=kube-system" {
			answerOther(rw, req)
			return true
		}
		if share == 0 {
			return false
		}
		if share >= 100 {
			panic(http.ErrAbortHandler)
		}
		if (turn.Add(1)*7919)%100 >= share {
			return false
		}
		switch turn.Load() % 3 {
		case 0:
			rw.Header().Set("Retry-After", "1")
			apitest.Fail(rw, http.StatusTooManyRequests, "TooManyRequests")
		case 1:
			apitest.Fail(rw, http.StatusInternalServerError, "InternalError")
		default:
			panic(http.ErrAbortHandler)
		}
		return true
	})
	return w
}

// step is a thing that may happen, weight times as often as one of weight 1.
type step struct {
	name   string
	weight int
	do     func() error
}

func (w *world) steps() []step {
	r, c := w.r, w.cluster
	return []step{
		{"write", 30, func() error {
			for range 1 + r.IntN(6) {
				c.write(r, w.widgets)
			}
			return nil
		}},
		{"settle", 15, func() error { synctest.Wait(); return nil }},
		{"sleep", 10, func() error { time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond); return nil }},
		{"sleep long", 1, func() error { time.Sleep(time.Duration(30+r.IntN(200)) * time.Second); return nil }},
		{"bookmark", 5, func() error { c.Bookmark(); return nil }},
		{"cut", 3, func() error { c.Cut(); return nil }},
		{"end watches", 3, func() error { c.EndWatches(); return nil }},
		{"compact", 1, func() error { w.lossy = true; c.Compact(); c.Cut(); return nil }},
		{"refuse some requests", 2, func() error { w.refuse.Store(int64(10 + r.IntN(40))); return nil }},
		{"server away", 1, func() error {
			w.refuse.Store(100)
			c.Cut()
			time.Sleep(time.Duration(1+r.IntN(40)) * time.Second)
			w.refuse.Store(0)
			return nil
		}},
		{"server well", 3, func() error { w.refuse.Store(0); return nil }},
		{"reload", 4, func() error {
			w.reconfigure(r)
			return w.reload(r)
		}},
		{"guest", 4, func() error { // leaves or comes back, at times amid a write
			guest := w.receivers["guest"]
			guest.set([]string{well, down, paused, slow, hanging}[r.IntN(5)])
			if r.IntN(2) == 0 {
				return nil
			}
			w.config.guest = !w.config.guest
			return w.reload(r)
		}},
		{"kill soon", 3, func() error { // amid whatever the next steps have it do
			if !w.disk.counting() {
				w.life.killAt(1+r.IntN(12), r.Uint64())
			}
			return nil
		}},
		{"bury", 6, func() error {
			if w.isKilled() {
				w.life.kill(r)
				return w.begin()
			}
			return nil
		}},
		{"start without discovery", 1, func() error {
			if r.IntN(2) == 0 {
				if err := w.stop(); err != nil {
					return err
				}
			} else {
				w.life.kill(r)
			}
			w.resolver.set(func() { w.resolver.now.away = true })
			for range r.IntN(8) {
				c.write(r, w.widgets)
			}
			return w.begin()
		}},
		{"discovery", 4, func() error {
			if w.resolver.now.away {
				w.resolver.set(func() { w.resolver.now.away = false })
			}
			return nil
		}},
		{"relabel", 2, func() error {
			ns := []string{"a", "b", c.passing()}[r.IntN(3)]
			c.relabel(ns, []string{"x", "y"}[r.IntN(2)])
			return nil
		}},
		{"namespace goes", 2, func() error {
			c.removeNamespace([]string{"a", "b", c.passing()}[r.IntN(3)])
			time.Sleep(time.Minute)
			return nil
		}},
		{"namespaces are refused", 2, func() error { w.blind.Store(true); c.Cut(); return nil }},
		{"namespace is not seen", 1, func() error { // changes of its jobs wait for it
			w.blind.Store(true)
			c.Cut()
			c.removeNamespace(c.passing())
			for range 3 {
				for range r.IntN(10) {
					c.writeTo(r, "jobs.batch", c.passing())
				}
				time.Sleep(time.Duration(r.IntN(40)) * time.Second)
			}
			return nil
		}},
		{"namespaces are served", 3, func() error { w.blind.Store(false); return nil }},
		{"preferred version", 1, func() error {
			w.resolver.set(func() { w.resolver.now.beta = !w.resolver.now.beta || w.former.Load() })
			return nil
		}},
		{"former version goes", 1, func() error {
			if w.widgets {
				w.former.Store(true)
				c.Cut()
				w.resolver.set(func() { w.resolver.now.beta = true })
			}
			return nil
		}},
		{"former version comes", 2, func() error { w.former.Store(false); return nil }},
		{"short pages", 2, func() error {
			w.pages.Store(int64(1 + r.IntN(3)))
			w.delay.Store(int64(r.IntN(3)) * int64(time.Second))
			return nil
		}},
		{"long pages", 2, func() error { w.pages.Store(0); return nil }},
		{"back up", 3, func() error { w.backUp(); return nil }},
		{"restore", 3, func() error { return w.restore(rand.New(rand.NewPCG(r.Uint64(), 5))) }},
		{"server restarts", 1, func() error { w.lossy = true; c.Restart(); return nil }},
		{"stall", 1, func() error {
			c.Stall(true)
			for range r.IntN(5) {
				c.write(r, w.widgets)
			}
			time.Sleep(time.Duration(r.IntN(400)) * time.Second)
			for range r.IntN(10) {
				c.write(r, w.widgets)
			}
			c.Stall(false)
			return nil
		}},
		{"disk fails", 1, func() error {
			w.disk.fail.Store(true)
			for range 3 {
				c.write(r, w.widgets)
			}
			time.Sleep(10 * time.Second)
			w.life.kill(r)
			return w.begin()
		}},
		{"disk full", 1, func() error { w.disk.full.Store(true); time.Sleep(time.Second); return nil }},
		{"disk free", 3, func() error { w.disk.full.Store(false); return nil }},
		{"receiver", 6, func() error {
			flaky := w.receivers["flaky"]
			flaky.mu.Lock()
			defer flaky.mu.Unlock()
			flaky.mode = []string{well, down, paused, slow, picky}[r.IntN(5)]
			flaky.poison = path("pods", []string{"a", "b"}[r.IntN(2)], fmt.Sprint("o", r.IntN(6)))
			w.say(flaky.mode)
			return nil
		}},
		{"stop and start", 1, func() error {
			if err := w.stop(); err != nil {
				return err
			}
			for range r.IntN(8) {
				c.write(r, w.widgets)
			}
			return w.restart()
		}},
		{"kill and start", 1, func() error {
			w.life.kill(r)
			for range r.IntN(8) {
				c.write(r, w.widgets)
			}
			return w.restart()
		}},
		{"widgets go", 1, func() error {
			if w.widgets {
				w.widgets = false
				w.gone = true
				c.removeWidgets()
				w.discover()
			}
			return nil
		}},
		{"widgets come", 2, func() error {
			if !w.widgets {
				w.widgets = true
				c.serveWidgets()
				w.discover()
			}
			return nil
		}},
		{"aggregated API goes", 1, func() error {
			w.aggregate(false)
			return nil
		}},
		{"aggregated API comes", 4, func() error {
			w.aggregate(true)
			return nil
		}},
		{"another cluster answers", 2, func() error {
			if w.watching() { // else the process may have had no contact yet, and ends
				w.replace(true)
			}
			return nil
		}},
		{"the cluster answers", 4, func() error { w.replace(false); return nil }},
	}
}

// reconfigure changes the configuration, which nothing follows yet.
func (w *world) reconfigure(r *rand.Rand) {
	before := w.config.division()
	what := w.config.change(r)
	w.cluster.idle, w.cluster.idled = w.config.idle, w.cluster.idled || w.config.idle
	if (w.config.names > 0 || w.config.division() != before) && (w.config.allows || w.resolver.now.away || !w.widgets || w.apart.Load() || w.other.Load()) {
		w.config.fresh = true
	}
	w.say(what)
	w.forgive()
}

// reload has the process follow the present configuration, and be cut off meanwhile at times.
func (w *world) reload(r *rand.Rand) error {
	if r.IntN(2) == 0 {
		w.life.killAt(1+r.IntN(12), r.Uint64())
	}
	err := w.applyBesideWrites(r)
	w.disk.atSync(0, nil)
	if w.isKilled() {
		w.life.kill(r)
		return w.begin()
	}
	return err
}

// restart starts a process again, with another configuration at times.
func (w *world) restart() error {
	if !slices.Contains(w.without, "reload") && w.starts.IntN(3) == 0 {
		w.reconfigure(w.starts)
	}
	return w.begin()
}

// applyBesideWrites has the process follow the present configuration, at times while objects change.
func (w *world) applyBesideWrites(r *rand.Rand) error {
	var writing sync.WaitGroup
	if writes := r.IntN(2) * r.IntN(15); writes > 0 {
		own := rand.New(rand.NewPCG(r.Uint64(), 4))
		w.cluster.beside = true
		writing.Go(func() {
			for range writes {
				w.cluster.write(own, w.widgets)
				time.Sleep(time.Duration(own.IntN(100)) * time.Millisecond)
			}
		})
	}
	err := w.apply()
	writing.Wait()
	w.cluster.beside = false
	return err
}

// aggregate makes or deletes the APIService of the aggregated API, whose objects stay.
func (w *world) aggregate(is bool) {
	if w.apart.Swap(!is) == is {
		w.cluster.Cut()
		w.discover()
	}
}

// replace has another cluster, which is empty, answer at the address of the API server, or ends that.
// Watches that are established stay. It takes some seconds, in which nothing answers: sources share a
// probe of the cluster for that long.
func (w *world) replace(is bool) {
	if w.other.Load() != is {
		share := w.refuse.Swap(100)
		time.Sleep(6 * time.Second)
		w.refuse.Store(share)
		if is { // no moment shows the objects of the other cluster under the uid of this one
			w.cluster.SetUID("cluster-2")
		}
		if w.other.Store(is); !is {
			w.cluster.SetUID("cluster-1")
		}
		w.discover()
	}
}

// answerOther answers a request as the other cluster does.
func answerOther(rw http.ResponseWriter, req *http.Request) {
	switch q := req.URL.Query(); {
	case strings.Contains(req.URL.Path, "customresourcedefinitions"):
		apitest.Fail(rw, http.StatusNotFound, "NotFound")
	case q.Get("watch") != "" || q.Get("resourceVersionMatch") != "" || q.Get("continue") != "":
		apitest.Fail(rw, http.StatusGone, "Expired")
	default:
		rw.Header().Set("Content-Type", "application/json")
		_, _ = rw.Write([]byte(`{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1000000"},"items":[]}`))
	}
}

// discover has discovery find what is served now.
func (w *world) discover() {
	other := w.other.Load()
	w.resolver.set(func() { w.resolver.now.widgets, w.resolver.now.routes = w.widgets && !other, !w.apart.Load() && !other })
}

// stop ends the process in its own time.
func (w *world) stop() error {
	if w.isKilled() {
		w.life.kill(w.r)
		return nil
	}
	if err := w.life.end(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

// isKilled reports whether the process was cut off.
func (w *world) isKilled() bool {
	main := w.receivers["main"]
	main.mu.Lock()
	defer main.mu.Unlock()
	return w.life.killed
}

// ready reports whether the daemon is ready, and watches everything.
func (w *world) ready() bool {
	if w.life == nil || w.life.store.Err() != nil {
		return false
	}
	s := status.Status{Pipeline: w.life.manager.Reader().Status()}
	for i := range s.Watches {
		if slices.ContainsFunc(s.Watches[i].Sources, func(s status.Source) bool { return !s.Synced }) {
			return false // it is known not to be possible at present
		}
	}
	// A process that is cut off comes as far as ready, too, without it being durable.
	return !w.lacks("namespaces") && status.Worst(s.Checks(time.Now())) != status.Failed && !w.isKilled()
}

// lacks reports whether a watch waits for a resource: its objects are not listed.
func (w *world) lacks(resource string) bool {
	return slices.ContainsFunc(w.life.manager.Reader().Status().Watches, func(watch status.Watch) bool {
		return slices.ContainsFunc(watch.Missing, func(m status.Missing) bool { return m.Resource == resource })
	})
}

// watching reports whether the process has a watch.
func (w *world) watching() bool {
	return slices.ContainsFunc(w.life.manager.Reader().Status().Watches, func(watch status.Watch) bool {
		return slices.ContainsFunc(watch.Sources, func(s status.Source) bool { return s.State == dynamicfactory.StateWatching })
	})
}

// forgive has additions that are not delivered yet come as they may: other watches may be given
// them.
func (w *world) forgive() {
	main := w.receivers["main"]
	main.mu.Lock()
	defer main.mu.Unlock()
	came := map[string]bool{}
	for _, e := range main.events {
		came[e.UID] = true
	}
	for _, history := range w.cluster.history {
		for i := range history {
			history[i].ready = history[i].ready && came[history[i].uid]
		}
	}
}

func (w *world) say(what string) {
	account.tell("====", what, "version", w.cluster.Version())
}

// run plays a history of n steps and checks it.
func (w *world) run(n int) {
	defer w.cluster.Close()
	defer func() {
		if w.life != nil {
			if err := w.life.end(); err != nil {
				w.t.Errorf("the last stop: %v", err)
			}
		}
	}()
	for range w.r.IntN(20) {
		w.cluster.write(w.r, true)
	}
	if err := w.begin(); err != nil {
		w.t.Fatalf("begin: %v", err)
	}
	play(w.t, w.r, n, slices.DeleteFunc(w.steps(), func(s step) bool { return slices.Contains(w.without, s.name) }), w.say)
	if w.t.Failed() {
		return
	}
	w.heal()
	w.check()
}

// errOver ends a history before its time.
var errOver = errors.New("the history is over")

// play takes n random steps.
func play(t *testing.T, r *rand.Rand, n int, steps []step, say func(string)) {
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	for range n {
		at := r.IntN(total)
		for _, s := range steps {
			if at -= s.weight; at >= 0 {
				continue
			}
			say(s.name)
			if err := s.do(); errors.Is(err, errOver) {
				say(err.Error())
				return
			} else if err != nil {
				t.Errorf("%s: %v", s.name, err)
				return
			}
			break
		}
	}
}

// heal ends every trouble and returns when all that was written is delivered.
func (w *world) heal() {
	w.say("heal")
	w.refuse.Store(0)
	w.pages.Store(0)
	w.former.Store(false)
	w.blind.Store(false)
	w.aggregate(true)
	w.replace(false)
	w.disk.atSync(0, nil)
	w.disk.full.Store(false)
	if w.isKilled() {
		w.life.kill(w.r)
		if err := w.begin(); err != nil {
			w.t.Errorf("begin: %v", err)
			return
		}
	}
	w.resolver.set(func() { w.resolver.now.away = false })
	if w.config.idle || !w.config.guest {
		w.config.idle, w.config.guest = false, true
		if err := w.apply(); err != nil {
			w.t.Errorf("apply: %v", err)
			return
		}
	}
	for _, r := range w.receivers {
		r.set(well)
	}
	if !w.widgets {
		w.widgets = true
		w.cluster.serveWidgets()
		w.discover()
	}
	if ns := w.cluster.passing(); w.cluster.labels[ns] == "" { // nothing is in a namespace for good that is not there
		w.cluster.relabel(ns, "x")
	}
	for range 60 {
		time.Sleep(10 * time.Second)
		w.cluster.Bookmark()
		synctest.Wait()
		if w.waits() == "" {
			return
		}
	}
	w.t.Error("ten minutes after the last trouble not everything is delivered:", w.waits())
}

// waits is what is to be delivered yet, empty if every change has been and no sink has anything
// left.
func (w *world) waits() string {
	for name := range w.receivers {
		q, err := w.life.store.Queue(name)
		if err != nil {
			continue // never configured
		}
		if w.life.manager == nil || name == "chosen" && !w.config.chosen || name == "red" && !w.config.red || name == "pinned" && !w.config.pinned {
			continue
		}
		if n := q.Stats().Length; n > 0 {
			return fmt.Sprintf("%s has %d events to come", name, n)
		}
	}
	mark := ""
	if err := w.life.store.ScanMeta("unjudged/", func(key string, value []byte) error {
		if bytes.Contains(value, []byte(`"Lost":true`)) { // else nothing is reported of it
			mark = key + " " + string(value)
		}
		return nil
	}); err != nil {
		return err.Error()
	}
	if mark != "" {
		return mark
	}
	for name := range w.receivers {
		if list := w.faults(name); len(list) > 0 {
			return name + ": " + list[0]
		}
	}
	return ""
}
