package reload

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/plan"
)

// inBubble runs f with a watcher in a bubble of its own time. There are no
// notifications in it, only the poll and Trigger.
func inBubble(t *testing.T, f func(t *testing.T, d *daemon)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon(t)
		d.watcher.watchDir = func(string) (*folder, error) { return nil, nil }
		stop := d.run()
		defer stop()
		pass(time.Second)
		f(t, d)
	})
}

// pass lets time go by and everything come to rest.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// soon is more than it takes to settle, and less than the poll.
const soon = time.Second

func TestThePollFindsAChange(t *testing.T) {
	inBubble(t, func(_ *testing.T, d *daemon) {
		d.want() // a runs already
		d.write(content("b"))
		pass(31 * time.Second)
		d.want("b")
		pass(10 * time.Minute)
		d.want("b")
		if !d.successful() || d.reloads(resultSuccess) != 1 {
			t.Error("not reported as a success")
		}
	})
}

func TestTriggerAppliesWhatIsThere(t *testing.T) {
	inBubble(t, func(_ *testing.T, d *daemon) {
		d.watcher.Trigger()
		pass(soon)
		d.want("a")
		d.write(content("b"))
		d.watcher.Trigger()
		d.watcher.Trigger()
		d.watcher.Trigger()
		pass(10 * time.Second)
		d.want("a", "b") // one apply for all that asked while the file settled
	})
}

// TestHalfAFile: a writer pauses in the middle of the file, where that is valid.
func TestHalfAFile(t *testing.T) {
	inBubble(t, func(_ *testing.T, d *daemon) {
		whole := content("b") + "  redact: [spec.a,\n    spec.b]\n"
		half := strings.TrimSuffix(content("b"), "\n")
		d.write(half)
		d.watcher.Trigger()
		pass(2 * time.Second)
		d.want()
		d.write(whole)
		pass(10 * time.Second)
		d.want("b")
		d.write(half) // all of a file that ends so
		d.watcher.Trigger()
		pass(10 * time.Second)
		d.want("b", "b")
	})
}

func TestUnavailableSecretsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon(t)
		d.watcher.cfg.Running.Unavailable = []*config.Error{{Path: "sinks[0].webhook.url.env", Msg: "environment variable NOPE is not set here, or is empty"}}
		d.watcher.watchDir = func(string) (*folder, error) { return nil, nil }
		stop := d.run()
		defer stop()
		pass(soon)
		if log := d.log.String(); strings.Count(log, "environment variable NOPE is not set here") != 1 {
			t.Errorf("the log has it not once:\n%s", log)
		}
		if got := d.watcher.Status().Warnings; len(got) != 0 {
			t.Errorf("the status has %q", got)
		}
	})
}

func TestNothingRunsYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon(t)
		d.watcher.cfg.Running = nil
		d.watcher.watchDir = func(string) (*folder, error) { return nil, nil }
		stop := d.run()
		defer stop()
		if d.watcher.Status().Hash != "" {
			t.Error("there is a hash of nothing")
		}
		pass(soon)
		d.want("a")
		if d.watcher.Status().Hash == "" {
			t.Error("no hash")
		}
	})
}

// TestFileWrittenByAndBy: at no time but the end is the text complete, yet its
// first part is a valid configuration.
func TestFileWrittenByAndBy(t *testing.T) {
	inBubble(t, func(t *testing.T, d *daemon) {
		f, err := os.Create(d.file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		d.mu.Lock()
		before := d.loads
		d.mu.Unlock()
		for _, c := range []byte(content("b") + "- name: last\n  resources: [nodes]\n") {
			if _, err := f.Write([]byte{c}); err != nil {
				t.Fatal(err)
			}
			d.watcher.Trigger()
			pass(100 * time.Millisecond)
		}
		pass(6 * time.Second)
		if got := d.got(); len(got) == 0 {
			t.Error("never applied")
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.log.Like("level=ERROR")) > 0 {
			t.Errorf("an unfinished text was taken as complete:\n%s", d.log.String())
		}
		if len(d.applied) > 2 || d.loads-before > 2 {
			t.Errorf("%d loads, applied %v", d.loads-before, d.applied)
		}
	})
}

func TestApplyIsRateLimitedAndTheLastWins(t *testing.T) {
	inBubble(t, func(t *testing.T, d *daemon) {
		start := time.Now()
		for i := range 60 {
			d.write(content("x" + string(rune('a'+i%26))))
			d.watcher.Trigger()
			pass(500 * time.Millisecond)
		}
		d.write(content("last"))
		d.watcher.Trigger()
		pass(20 * time.Second)
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.applied[len(d.applied)-1] != "last" {
			t.Errorf("the last applied is %v", d.applied)
		}
		if first := d.times[0].Sub(start); first > soon {
			t.Errorf("the first waited %s", first)
		}
		if len(d.times) < 4 {
			t.Errorf("starved: %v", d.applied)
		}
		for i, at := range d.times[1:] {
			if gap := at.Sub(d.times[i]); gap < 5*time.Second {
				t.Errorf("%s and %s are %s apart", d.applied[i], d.applied[i+1], gap)
			}
		}
	})
}

func TestBadFilesChangeNothingAndAreReportedOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil  func(t *testing.T, d *daemon)
		result result
		says   string
	}{
		"invalid": {func(_ *testing.T, d *daemon) { d.write(content("b") + "colour: red\n") }, resultInvalid, "colour: unknown key"},
		"too large": {func(_ *testing.T, d *daemon) {
			d.write(content("b") + "#" + strings.Repeat("x", 3*config.MaxSize))
		}, resultInvalid, "larger than"},
		"half":  {func(_ *testing.T, d *daemon) { d.write(content("b")[:90]) }, resultInvalid, "not valid YAML: did not find"},
		"empty": {func(_ *testing.T, d *daemon) { d.write("") }, resultUnreadable, "is empty"},
		"blank": {func(_ *testing.T, d *daemon) { d.write(" \n\n") }, resultUnreadable, "is empty"},
		"gone": {func(t *testing.T, d *daemon) {
			if err := os.Remove(d.file); err != nil {
				t.Fatal(err)
			}
		}, resultUnreadable, "no such file"},
		"a folder": {func(t *testing.T, d *daemon) {
			if err := os.Remove(d.file); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(d.file, 0o700); err != nil {
				t.Fatal(err)
			}
		}, resultUnreadable, "not a regular file"},
		"a pipe": {func(t *testing.T, d *daemon) {
			if err := os.Remove(d.file); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(d.file, 0o600); err != nil {
				t.Fatal(err)
			}
		}, resultUnreadable, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, d *daemon) {
				hash := d.watcher.Status().Hash
				tc.spoil(t, d)
				pass(10 * time.Minute)
				d.want()
				if s := d.watcher.Status(); d.successful() || s.Hash != hash || !strings.Contains(s.LastError.Error(), tc.says) {
					t.Errorf("status %+v", s)
				}
				if n := d.reloads(tc.result); n != 1 {
					t.Errorf("counted %d times", n)
				}
				if n := d.logged(tc.says); n != 1 {
					t.Errorf("said %d times:\n%s", n, d.log.String())
				}

				// The same file as before is what runs, so nothing is applied.
				if err := os.RemoveAll(d.file); err != nil {
					t.Fatal(err)
				}
				d.write(content("a"))
				pass(31 * time.Second)
				d.want()
				if !d.successful() {
					t.Errorf("still %v", d.watcher.Status().LastError)
				}
				if n := d.logged("matches the active configuration again"); n != 1 {
					t.Errorf("the end of it was said %d times", n)
				}
				d.write(content("c"))
				pass(31 * time.Second)
				d.want("c")
			})
		})
	}
}

func TestAnotherProblemIsReportedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, d *daemon) {
		d.write("colour: red\n")
		pass(time.Minute)
		d.write("color: red\n")
		pass(time.Minute)
		if d.logged("colour: unknown") != 1 || d.logged("color: unknown") != 1 || d.reloads(resultInvalid) != 2 {
			t.Errorf("log:\n%s", d.log.String())
		}
	})
}

func TestCommentsAreNoChange(t *testing.T) {
	inBubble(t, func(t *testing.T, d *daemon) {
		d.write("# a comment\n" + content("a"))
		d.mu.Lock()
		before := d.loads
		d.mu.Unlock()
		pass(10 * time.Minute)
		d.want()
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.loads-before != 1 {
			t.Errorf("loaded %d times", d.loads-before)
		}
	})
}

func TestFailedApplyIsTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, d *daemon) {
		d.setRefuse(errRefused)
		d.write(content("b"))
		pass(2 * time.Minute)
		if n := len(d.got()); n < 3 || n > 5 || d.reloads(resultFailed) != n {
			t.Errorf("%d tries in two minutes, %d counted", n, d.reloads(resultFailed))
		}
		if d.successful() || d.logged(errRefused.Error()) != 1 {
			t.Errorf("status %+v, log\n%s", d.watcher.Status(), d.log.String())
		}
		d.setRefuse(nil)
		pass(time.Minute)
		if n := len(d.got()); !d.successful() {
			t.Errorf("after %d tries: %v", n, d.watcher.Status().LastError)
		}
		tries := len(d.got())
		pass(10 * time.Minute)
		if n := len(d.got()); n != tries {
			t.Errorf("applied %d times more after it worked", n-tries)
		}
	})
}

// TestBackAfterAFailedApply: how far a failed apply came is not known here, so
// what ran before it is applied again.
func TestBackAfterAFailedApply(t *testing.T) {
	inBubble(t, func(t *testing.T, d *daemon) {
		d.setRefuse(errRefused)
		d.write(content("b"))
		d.watcher.Trigger()
		pass(soon)
		d.setRefuse(nil)
		d.write(content("a"))
		pass(31 * time.Second)
		d.want("b", "a")
		if !d.successful() {
			t.Error(d.watcher.Status().LastError)
		}
	})
}

func TestInvalidAfterAFailedApplyIsNotApplied(t *testing.T) {
	inBubble(t, func(t *testing.T, d *daemon) {
		d.setRefuse(errRefused)
		d.write(content("b"))
		d.watcher.Trigger()
		pass(soon)
		d.write("no: good\n")
		pass(10 * time.Minute)
		d.want("b")
		if d.reloads(resultInvalid) != 1 {
			t.Errorf("invalid %d times", d.reloads(resultInvalid))
		}
	})
}

func TestNeedsRestart(t *testing.T) {
	inBubble(t, func(t *testing.T, d *daemon) {
		d.write(content("a") + "store: {path: /elsewhere}\n")
		pass(31 * time.Second)
		if got := d.watcher.Status().NeedsRestart; len(got) != 1 || got[0] != "store.path" {
			t.Errorf("after the change: %v", got)
		}
		d.write(content("b") + "store: {path: /elsewhere}\n")
		pass(31 * time.Second)
		if got := d.watcher.Status().NeedsRestart; len(got) != 1 {
			t.Errorf("forgotten with the next change: %v", got)
		}
		d.write(content("b"))
		pass(31 * time.Second)
		if got := d.watcher.Status().NeedsRestart; len(got) != 0 {
			t.Errorf("after taking it back: %v", got)
		}
	})
}

// TestNeedsRestartFromTheStart: the file has changed between the start and the first state that
// runs, as with a replica that followed for a while.
func TestNeedsRestartFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon(t)
		d.watcher.watchDir = func(string) (*folder, error) { return nil, nil }
		changed := content("a") + "store: {path: /elsewhere}\n"
		d.write(changed)
		running, err := compiled([]byte(changed))
		if err != nil {
			t.Fatal(err)
		}
		d.watcher.cfg.First, d.watcher.cfg.Running = d.watcher.cfg.Running, running
		stop := d.run()
		defer stop()
		pass(31 * time.Second)
		d.want() // it runs already
		if got := d.watcher.Status().NeedsRestart; len(got) != 1 || got[0] != "store.path" {
			t.Errorf("keys that need a restart: %v", got)
		}
	})
}

func TestStopWhileApplying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon(t)
		d.watcher.watchDir = func(string) (*folder, error) { return nil, nil }
		d.watcher.cfg.Apply = func(ctx context.Context, _ *plan.State) error {
			<-ctx.Done()
			return ctx.Err()
		}
		stop := d.run()
		d.write(content("b"))
		d.watcher.Trigger()
		pass(soon)
		stop()
		if d.reloads(resultFailed) != 0 || d.logged("level=ERROR") != 0 {
			t.Errorf("the end counts as a failure:\n%s", d.log.String())
		}
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon(t)
		d.watcher.watchDir = func(string) (*folder, error) { return nil, nil }
		stop := d.run()
		pass(soon)
		start := d.watcher.Status()
		d.write(content("b"))
		pass(31 * time.Second)
		d.write("bad: 1\n")
		pass(31 * time.Second)
		now := d.watcher.Status()
		if start.Hash == now.Hash || now.LastAttempt.Compare(now.LastSuccess) <= 0 {
			t.Errorf("%+v then %+v", start, now)
		}
		want := `
# HELP watcherd_config_hash 1 for the hash of the active configuration.
# TYPE watcherd_config_hash gauge
watcherd_config_hash{hash="` + now.Hash + `"} 1
# HELP watcherd_config_last_reload_successful 1 if the last reload succeeded, 0 if it failed.
# TYPE watcherd_config_last_reload_successful gauge
watcherd_config_last_reload_successful 0
# HELP watcherd_config_reloads_total Reloads of the configuration file by outcome.
# TYPE watcherd_config_reloads_total counter
watcherd_config_reloads_total{result="failed"} 0
watcherd_config_reloads_total{result="invalid"} 1
watcherd_config_reloads_total{result="success"} 1
watcherd_config_reloads_total{result="unreadable"} 0
`
		if err := testutil.GatherAndCompare(d.registry, strings.NewReader(want),
			"watcherd_config_hash", "watcherd_config_last_reload_successful", "watcherd_config_reloads_total"); err != nil {
			t.Error(err)
		}
		if at := testutil.ToFloat64(d.watcher.metrics.successAt); at != float64(now.LastSuccess.UnixMilli())/1000 {
			t.Errorf("success at %v, status %v", at, now.LastSuccess)
		}
		stop()
		if n, err := testutil.GatherAndCount(d.registry); n != 0 || err != nil {
			t.Errorf("%d series are left, %v", n, err)
		}
	})
}

// TestHashInEveryScrape gathers while configurations follow each other.
func TestHashInEveryScrape(t *testing.T) {
	m, registry := newMetrics(), prometheus.NewRegistry()
	unregister, err := m.register(registry)
	if err != nil {
		t.Fatal(err)
	}
	defer unregister()
	m.succeeded("0", time.Now())
	var group sync.WaitGroup
	group.Go(func() {
		for i := range 20_000 {
			m.succeeded(strconv.Itoa(i), time.Now())
		}
	})
	defer group.Wait()
	for range 1000 {
		if n, err := testutil.GatherAndCount(registry, "watcherd_config_hash"); n != 1 || err != nil {
			t.Fatalf("%d hashes in a scrape, %v", n, err)
		}
	}
}
