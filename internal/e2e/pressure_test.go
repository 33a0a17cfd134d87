package e2e

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// TestEverySinkDown has no sink that takes anything for the length of a long run,
// and a store with less room than the run needs. Memory stays flat, the disk stops
// at the budget, and when the sinks are back everything is delivered.
func TestEverySinkDown(t *testing.T) {
	writes, budget := 4_000, int64(16<<20)
	if soak() {
		writes, budget = 200_000, 384<<20
	}
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	e, b := newEndpoint(t), newBus(t)
	config := strings.Replace(fourSinks(ns, e, b), "store: {path: ./data}", fmt.Sprintf("store: {path: ./data, maxBytes: %d}", budget), 1)
	e.down()
	b.down()
	d := newDaemon(t, c.Kubeconfig, config)
	// A file where the folder should be keeps the file sink out.
	if err := os.WriteFile(d.path("events"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	console := newPipe(t)
	d.stdout = console.in
	w := newClient(t, c, ns)
	w.mark()
	d.start()
	eventually(t, func() bool { return strings.Count(d.log.String(), "watch synced") == len(kinds) }, func() string { return "never synced" })

	var memory []int64
	var disk int64
	const steps = 20
	for range steps {
		if err := w.flood(writes / steps); err != nil {
			t.Fatal(err)
		}
		memory = append(memory, d.rss())
		disk = max(disk, size(t, d.path("data")))
	}
	eventually(t, func() bool { return strings.Contains(d.log.String(), "ingest is paused") }, func() string { return "the budget was never reached" })
	disk = max(disk, size(t, d.path("data")))
	checkFlat(t, memory)
	if disk > budget {
		t.Errorf("the store took %d bytes of a budget of %d", disk, budget)
	}
	t.Logf("%d writes; budget %d MiB, store at most %d MiB", w.history.count(), budget>>20, disk>>20)

	if err := os.Remove(d.path("events")); err != nil {
		t.Fatal(err)
	}
	e.up()
	b.up()
	console.drain()
	taps := []*tap{tapFiles("file", d.path("events/*.jsonl")), e.tap(), b.tap(), console.tap()}
	drainAll(t, taps, w.history.finals())
	if strings.Count(d.log.String(), "ingest resumed") == 0 {
		t.Error("the log doesn't say that ingest went on")
	}
	d.stop()

	checkAlike(t, taps, func(t testing.TB, events []got) {
		if gaps := gapsOf(events); len(gaps) > 0 {
			// The API server's history was shorter than the pause.
			t.Logf("gaps told for %v", gaps)
			checkFinal(t, w.history, events)
			return
		}
		checkExact(t, w.history, events)
	})
}

// checkFlat compares the second half of a run with the end of the first: by then
// caches and buffers have their size.
func checkFlat(t testing.TB, memory []int64) {
	t.Helper()
	half := len(memory) / 2
	warm, most := memory[half-1], int64(0)
	for _, m := range memory[half:] {
		most = max(most, m)
	}
	growth := float64(most-warm) / float64(warm)
	t.Logf("resident after each step in MiB: %v; the second half grew by %.1f %%", inMiB(memory), 100*growth)
	allowed := 0.5 // a short run is hardly more than the warming up
	if soak() {
		allowed = 0.15
	}
	if growth > allowed {
		t.Errorf("resident memory grew by %.0f %% in the second half of the run", 100*growth)
	}
}

func inMiB(bytes []int64) []int64 {
	var out []int64
	for _, b := range bytes {
		out = append(out, b>>20)
	}
	return out
}

// size is what the files below dir take on disk, as du counts.
func size(t testing.TB, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return ignoreMissing(err)
		}
		info, err := entry.Info()
		if err == nil {
			const block = 512 // the unit, whatever the file system's own
			sum += info.Sys().(*syscall.Stat_t).Blocks * block
		}
		return ignoreMissing(err)
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// ignoreMissing is for a walk over files that a daemon removes meanwhile.
func ignoreMissing(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// flood makes n writes to a few objects, with contents that cannot be compressed.
func (c *client) flood(n int) error {
	const writers = 8
	var group errgroup.Group
	from := c.history.count()
	for i := range writers {
		group.Go(func() error {
			k := kinds[0]
			objects := make([]*unstructured.Unstructured, 10)
			for turn := range n / writers {
				var err error
				name := fmt.Sprintf("flood-%d-%d-%d", from, i, turn%len(objects))
				if u := &objects[turn%len(objects)]; *u == nil {
					*u, err = c.create(c.t.Context(), k, name)
				} else {
					noise := make([]byte, 2<<10)
					rand.Read(noise)
					(*u).Object["data"] = map[string]any{"noise": base64.StdEncoding.EncodeToString(noise)}
					*u, err = c.update(c.t.Context(), k, *u)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// pipe is a standard output that nobody reads until drain.
type pipe struct {
	in, out *os.File
	mu      sync.Mutex
	fresh   [][]byte
	done    chan struct{} // closed when the output has ended; nil before drain
}

func newPipe(t testing.TB) *pipe {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &pipe{in: in, out: out}
	t.Cleanup(func() {
		in.Close()
		out.Close()
		if p.done != nil {
			<-p.done
		}
	})
	return p
}

func (p *pipe) drain() {
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		for in := bufio.NewReader(p.out); ; {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return
			}
			p.mu.Lock()
			p.fresh = append(p.fresh, bytes.TrimSuffix(line, []byte("\n")))
			p.mu.Unlock()
		}
	}()
}

func (p *pipe) tap() *tap {
	return newTap("stdout", func() ([][]byte, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		fresh := p.fresh
		p.fresh = nil
		return fresh, nil
	})
}

// TestDiskNearlyFull fills the disk below the store's floor: ingest waits, what is
// queued still goes out, the history does not count as complete, and with room again the feed goes on by itself.
func TestDiskNearlyFull(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	admin := testkit.Address(t)
	d := newDaemon(t, c.Kubeconfig, strings.NewReplacer("{path: ./data}", "{path: ./data, minFree: 32Mi}", `{listen: ""}`, "{listen: "+admin+"}").Replace(feedConfig(ns)))
	disk := mountSmall(t, d.path("data"), "128m")
	if disk == nil {
		t.Skip("needs a small file system")
	}
	w := newClient(t, c, ns)
	archive := []*tap{tapFiles("file", d.path("events/*.jsonl"))}
	d.start()
	awaitAll(t, archive, w.mark())

	disk.fillBut(16 << 20)
	eventually(t, func() bool { return strings.Contains(d.log.String(), "ingest is paused") }, func() string { return "ingest resumes" })
	before := d.rss()
	writes := 600
	if soak() {
		writes = 20_000
	}
	if err := w.flood(writes); err != nil {
		t.Fatal(err)
	}
	marks := w.mark()
	if !strings.Contains(d.log.String(), "disk nearly full") {
		t.Error("the log doesn't say why ingest is paused")
	}
	if archive[0].has(t, marks) {
		t.Error("the last events arrived although ingest is paused")
	}
	missing := `"cause":"the store has no room for them"`
	var history string
	ask := func() bool {
		history, _ = httpGet(t, "http://"+admin+"/api/v1/history?limit=1&resource=configmaps&namespace="+ns)
		return strings.Contains(history, `"complete":true`)
	}
	eventually(t, func() bool { return !ask() && strings.Contains(history, missing) }, func() string { return history })
	t.Logf("resident %d MiB before and %d MiB after %d writes in the pause", before>>20, d.rss()>>20, writes)

	disk.clear()
	awaitAll(t, archive, w.history.finals())
	eventually(t, ask, func() string { return history })
	d.stop()
	checkAlike(t, archive, func(t testing.TB, events []got) { checkExact(t, w.history, events) })
}

// TestDiskStall freezes the file system under the store: commits hang and nothing
// is lost, nothing is made up, memory does not grow with what happens meanwhile.
func TestDiskStall(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	d := newDaemon(t, c.Kubeconfig, strings.Replace(feedConfig(ns), "{path: ./data}", "{path: ./data, minFree: 16Mi}", 1))
	disk := mountFreezable(t, d.path("data"))
	w := newClient(t, c, ns)
	archive := []*tap{tapFiles("file", d.path("events/*.jsonl"))}
	d.start()
	awaitAll(t, archive, w.mark())
	disk.freeze()
	before := d.rss()
	writes := 600
	if soak() {
		writes = 20_000
	}
	if err := w.flood(writes); err != nil {
		t.Fatal(err)
	}
	marks := w.mark()
	after := d.rss()
	if archive[0].has(t, marks) {
		t.Error("events arrived that were not committed")
	}
	disk.thaw()
	awaitAll(t, archive, w.history.finals())
	d.stop()

	t.Logf("resident %d MiB before and %d MiB after %d writes to a stalled disk", before>>20, after>>20, writes)
	checkAlike(t, archive, func(t testing.TB, events []got) { checkExact(t, w.history, events) })
}

// freezable is a file system that can be stopped.
type freezable struct {
	t      testing.TB
	dir    string
	frozen bool
}

// mountFreezable mounts one below dir or skips the test where that is not
// permitted.
func mountFreezable(t testing.TB, dir string) *freezable {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 256<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("mounting a file system that can be frozen is not possible here: %v: %s", err, out)
		}
	}
	f := &freezable{t: t, dir: dir}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return f
}

// freeze stops every write until thaw, which the end of the test makes sure of.
func (f *freezable) freeze() {
	f.t.Helper()
	if out, err := exec.CommandContext(f.t.Context(), "fsfreeze", "--freeze", f.dir).CombinedOutput(); err != nil {
		f.t.Skipf("file systems cannot be frozen here: %v: %s", err, out)
	}
	f.frozen = true
	f.t.Cleanup(f.thaw)
}

func (f *freezable) thaw() {
	if !f.frozen {
		return
	}
	f.frozen = false
	if out, err := exec.Command("fsfreeze", "--unfreeze", f.dir).CombinedOutput(); err != nil {
		f.t.Errorf("thaw: %v: %s", err, out)
	}
}
