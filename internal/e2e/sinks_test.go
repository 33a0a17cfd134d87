package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/testcluster"
)

// fourSinks is the feed of [feedConfig] with a sink of each kind.
func fourSinks(namespace string, e *endpoint, b *bus) string {
	all := strings.Replace(feedConfig(namespace), "sinks: [archive]", "sinks: [archive, hook, bus, console]", 1)
	return all + fmt.Sprintf(`
  retry: {initial: 20ms, max: 500ms}
- name: hook
  webhook: {url: %q, timeout: %s}
  batch: {maxEvents: %d}
  retry: {initial: 20ms, max: 500ms}
- name: bus
  nats: {url: %q, jetstream: {stream: %s}, timeout: 5s}
  retry: {initial: 20ms, max: 500ms}
- name: console
  stdout: {}
  retry: {initial: 20ms, max: 500ms}
`, e.url(), hookTimeout, hookBatch, b.url(), stream)
}

// trouble is a time in which one sink cannot deliver.
type trouble struct {
	name  string
	of    string // the tap of the sink in trouble
	dead  bool   // nothing at all arrives
	lasts time.Duration
	begin func()
	end   func()
}

// TestSinksInTrouble brings one sink after the other into trouble in a sustained
// stream of writes. The others keep pace, and in the end each has every event.
func TestSinksInTrouble(t *testing.T) {
	short, long := 500*time.Millisecond, 8*time.Second
	if soak() {
		short, long = 20*time.Second, time.Minute
	}
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	e, b := newEndpoint(t), newBus(t)
	d := newDaemon(t, c.Kubeconfig, fourSinks(ns, e, b))
	console, err := os.Create(d.path("console.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	d.stdout = console
	volume := mountSmall(t, d.path("events"), "256m")

	archive := func() *tap { return tapFiles("file", d.path("events/*.jsonl")) }
	taps := []*tap{archive(), e.tap(), b.tap(), tapFiles("stdout", console.Name())}
	w := newClient(t, c, ns)
	d.start()
	awaitAll(t, taps, w.mark()) // from here on nothing is part of the first list

	writers := w.sustain(2, 20, 200*time.Millisecond)
	become := func(b behaviour) func() { return func() { e.become(b) } }
	troubles := []trouble{
		{"down", "webhook", true, long, e.down, e.up},
		{"answering 500", "webhook", true, short, become(failing), become(healthy)},
		{"answering 429", "webhook", true, short, become(busy), become(healthy)},
		{"slow", "webhook", false, short, become(slow), become(healthy)},
		{"closing connections", "webhook", false, short, become(cutting), become(healthy)},
		{"restarted", "nats", true, short, b.down, b.up},
	}
	if volume != nil {
		troubles = append(troubles, trouble{"full", "file", true, short, volume.fill, volume.clear})
	}
	for _, tr := range troubles {
		before := w.history.count()
		tr.begin()
		pause(t, tr.lasts)
		marks := w.mark()
		var victim, others []*tap
		for _, p := range taps {
			if p.name == tr.of {
				victim = append(victim, p)
			} else {
				others = append(others, p)
			}
		}
		awaitAll(t, others, marks)
		if tr.dead && victim[0].has(t, marks) {
			t.Errorf("%s %s: the last events arrived there all the same", tr.of, tr.name)
		}
		tr.end()
		began := time.Now()
		awaitAll(t, victim, marks)
		t.Logf("%s %s: %d writes meanwhile, caught up in %v", tr.of, tr.name, w.history.count()-before, time.Since(began).Round(time.Millisecond))
	}
	if err := writers(); err != nil {
		t.Fatal(err)
	}
	awaitAll(t, taps, w.history.finals())
	d.stop()

	taps[0] = archive() // a file may have been cut back after it was read
	checkAlike(t, taps, func(t testing.TB, events []got) { checkExact(t, w.history, events) })
}

// sustain starts n writers that write until the returned function is called: that many
// objects a round, and after each a random pause below most, in which the sinks catch up.
func (c *client) sustain(n, objects int, most time.Duration) (stop func() error) {
	var stopped atomic.Bool
	var group errgroup.Group
	for i := range n {
		group.Go(func() error {
			for round := 0; !stopped.Load(); round++ {
				if err := c.churn(c.t.Context(), fmt.Sprintf("w%d-%d", i, round), uint64(i*1000+round), objects); err != nil {
					return err
				}
				if most > 0 {
					pause(c.t, rand.N(most))
				}
			}
			return nil
		})
	}
	return func() error {
		stopped.Store(true)
		return group.Wait()
	}
}

// TestRejectedObject has a backlog of 500 events, one of which is refused for
// good: the others arrive, it becomes a dead letter.
func TestRejectedObject(t *testing.T) {
	const backlog, rejected = 500, "object-250"
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	e := newEndpoint(t)
	e.become(failing)
	d := newDaemon(t, c.Kubeconfig, killConfig(ns, e.url()))
	archive, hook := tapFiles("file", d.path("events/*.jsonl")), e.tap()
	w := newClient(t, c, ns)
	d.start()
	awaitAll(t, []*tap{archive}, w.mark())
	if _, err := w.populate(t.Context(), backlog); err != nil {
		t.Fatal(err)
	}
	awaitAll(t, []*tap{archive}, w.history.finals())
	if n := len(hook.all(t)); n > 0 {
		t.Fatalf("%d events arrived at an endpoint that fails", n)
	}

	var alone atomic.Int32 // refusals of the event on its own
	e.become(func(w http.ResponseWriter, batch []json.RawMessage, take func()) {
		for _, body := range batch {
			if strings.Contains(string(body), `"name":"`+rejected+`"`) {
				if len(batch) == 1 {
					alone.Add(1)
				}
				http.Error(w, "no such thing", http.StatusUnprocessableEntity)
				return
			}
		}
		take()
	})
	var want []state
	var refused got
	for _, g := range archive.all(t) {
		if g.Data.Name == rejected {
			refused = g
		} else {
			want = append(want, state{g.Data.UID, g.Data.ResourceVersion})
		}
	}
	awaitAll(t, []*tap{hook}, want)
	const poisonAttempts = 3 // the default
	eventually(t, func() bool { return alone.Load() >= poisonAttempts }, func() string { return fmt.Sprint(alone.Load(), " refusals") })
	d.stop()
	if n, once := len(hook.seen), len(distinct(hook.seen)); n != once || once != len(want) {
		t.Errorf("%d events arrived, %d different ones, want %d once each", n, once, len(want))
	}

	letters := deadLetters(t, d.path("data"), "hook")
	if len(letters) != 1 {
		t.Fatalf("%d dead letters, want 1", len(letters))
	}
	l := letters[0]
	if fmt.Sprint(l.Sequence) != strings.TrimLeft(refused.Sequence, "0") || l.Attempts < 2 || !strings.Contains(l.Reason, "422") || !strings.Contains(l.Reason, "no such thing") {
		t.Errorf("the dead letter is %d after %d attempts: %q; want event %s", l.Sequence, l.Attempts, l.Reason, refused.Sequence)
	}
}

// deadLetters reads the dead letters of a sink from the store of a daemon that
// does not run.
func deadLetters(t testing.TB, dir, sink string) []store.DeadLetter {
	t.Helper()
	st, err := store.Open(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}()
	queue, err := st.EnsureSink(sink, store.FromNow)
	if err != nil {
		t.Fatal(err)
	}
	letters, err := queue.DeadLetters(0, 100)
	if err != nil {
		t.Fatal(err)
	}
	return letters
}

// smallDisk is a file system of little room.
type smallDisk struct {
	t   testing.TB
	dir string
}

// mountSmall mounts one below dir, or returns nil where that is not permitted.
func mountSmall(t testing.TB, dir, size string) *smallDisk {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",mode=0700"); err != nil {
		t.Logf("mounting a small file system is not permitted here, the full disk is left out: %v", err)
		return nil
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return &smallDisk{t: t, dir: dir}
}

func (s *smallDisk) filler() string { return filepath.Join(s.dir, "filler") }

// fill leaves no room.
func (s *smallDisk) fill() { s.fillBut(0) }

// fillBut leaves about that many bytes.
func (s *smallDisk) fillBut(room int64) {
	s.t.Helper()
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.dir, &fs); err != nil {
		s.t.Fatal(err)
	}
	free := int64(fs.Bavail) * fs.Bsize
	f, err := os.Create(s.filler())
	if err == nil {
		defer f.Close()
		block := make([]byte, 64<<10)
		for ; err == nil && free > room; free -= int64(len(block)) {
			_, err = f.Write(block)
		}
	}
	if err != nil && !errors.Is(err, syscall.ENOSPC) {
		s.t.Fatal(err)
	}
}

func (s *smallDisk) clear() {
	s.t.Helper()
	if err := os.Remove(s.filler()); err != nil {
		s.t.Fatal(err)
	}
}
