package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// soak reports whether the long forms of tests were asked for (make soak).
func soak() bool { return os.Getenv("WATCHERD_SOAK") != "" }

// receiver is a webhook's other end: it keeps every event it accepted.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	events []got
}

func newReceiver(t testing.TB) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var batch []got
		if err := json.NewDecoder(req.Body).Decode(&batch); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		r.events = append(r.events, batch...)
		r.mu.Unlock()
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) all() []got {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

const hookBatch = 50

func killConfig(namespace, url string) string {
	toBoth := strings.Replace(feedConfig(namespace), "sinks: [archive]", "sinks: [archive, hook]", 1)
	return toBoth + fmt.Sprintf(`
- name: hook
  webhook: {url: %q}
  batch: {maxEvents: %d}
  retry: {initial: 20ms, max: 1s}
`, url, hookBatch)
}

// TestKillLoop kills the daemon again and again in a sustained stream of writes.
func TestKillLoop(t *testing.T) {
	kills := 8
	if soak() {
		kills = 40
	}
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	r := newReceiver(t)
	d := newDaemon(t, c.Kubeconfig, killConfig(ns, r.URL))
	w := newClient(t, c, ns)

	d.start()
	w.settleAll(d.path("events"), kinds...) // from here on nothing is part of the first list
	d.kill()

	writers := w.sustain(2, 60, 0)
	rng := rand.New(rand.NewPCG(7, 7))
	for range kills {
		before := len(r.all())
		d.start()
		// A life counts once it has delivered something; then it ends at any moment.
		eventually(t, func() bool { return len(r.all()) > before || !d.running() }, func() string { return "no event reached the receiver" })
		pause(t, time.Duration(rng.Int64N(int64(1200*time.Millisecond))))
		d.kill()
	}
	if err := writers(); err != nil {
		t.Fatal(err)
	}
	d.start()
	w.settleAll(d.path("events"), kinds...)
	eventually(t, func() bool { return len(distinct(r.all())) >= len(distinct(readEvents(t, d.path("events")))) },
		func() string { return fmt.Sprintf("the receiver has %d events", len(r.all())) })
	d.stop()

	for name, events := range map[string][]got{"file": readEvents(t, d.path("events")), "webhook": r.all()} {
		once := distinct(events)
		checkExact(t, w.history, once)
		repeated := len(events) - len(once)
		if most := kills * hookBatch * 4; repeated > most {
			t.Errorf("%s: %d events delivered again, want at most %d", name, repeated, most)
		}
		t.Logf("%s: %d kills, %d writes, %d events, %d of them again", name, kills, w.history.count(), len(once), repeated)
	}
}

// killInTurn restarts the server and kills the daemon in turn in a sustained stream of
// writes, and returns how often: eight times, in a soak over 20,000 writes.
func killInTurn(d *daemon, w *client, seed uint64, restart func()) (kills int) {
	w.t.Helper()
	writers := w.sustain(2, 60, 0)
	rng := rand.New(rand.NewPCG(seed, seed))
	for ; kills < 8 || soak() && w.history.count() < 20_000; kills++ {
		pause(w.t, 300*time.Millisecond+time.Duration(rng.Int64N(int64(1200*time.Millisecond))))
		if kills%2 == 0 {
			restart()
			continue
		}
		d.kill()
		d.start()
	}
	if err := writers(); err != nil {
		w.t.Fatal(err)
	}
	return kills
}

// distinct keeps the first delivery of each event. A repeated one must be the
// same in all respects, which [checkIDs] would otherwise not see.
func distinct(events []got) []got {
	seen := map[string]bool{}
	var once []got
	for _, g := range events {
		if !seen[g.ID] {
			seen[g.ID] = true
			once = append(once, g)
		}
	}
	return once
}

// pause lets a random time pass: the point of it is that nothing is waited for.
func pause(t testing.TB, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}
