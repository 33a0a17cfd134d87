package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
	"github.com/watcherd/watcherd/internal/waittest"
)

func TestMain(m *testing.M) {
	if !natstest.Main() {
		testcluster.Main(m)
	}
}

// patience is how long a test waits for a condition before it gives up. It is no
// expectation of speed: a loaded machine may take most of it.
const patience = 90 * time.Second

// binary builds the daemon once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "watcherd-e2e-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "watcherd")
	out, err := exec.CommandContext(context.Background(), "go", "build", "-race", "-o", path, "github.com/watcherd/watcherd/cmd/watcherd").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the daemon: %w\n%s", err, out)
	}
	return path, nil
})

// daemon is a watcherd process with a folder of its own.
type daemon struct {
	t          testing.TB
	dir        string // config, store and files are here
	kubeconfig string
	cmd        *exec.Cmd
	log        *testcluster.Output
	binary     string        // "": of this source
	stdout     io.Writer     // nil: the log
	env        []string      // in addition to the test's
	ended      chan struct{} // closed when the process has ended
	err        error         // how it ended; read after ended is closed
}

// newDaemon prepares a daemon; start starts it. Whatever still runs at the end of
// the test is killed.
func newDaemon(t testing.TB, kubeconfig, config string) *daemon {
	t.Helper()
	d := &daemon{t: t, dir: t.TempDir(), kubeconfig: kubeconfig, log: &testcluster.Output{}}
	d.configure(config)
	t.Cleanup(func() {
		if d.running() {
			d.kill()
		}
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", d.log.Tail())
		}
	})
	return d
}

// configure replaces the config file, atomically as editors and ConfigMaps do.
func (d *daemon) configure(config string) {
	d.t.Helper()
	next := d.path("watcherd.yaml.next")
	if err := os.WriteFile(next, []byte(config), 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Rename(next, d.path("watcherd.yaml")); err != nil {
		d.t.Fatal(err)
	}
}

// reload replaces the config file and returns when the daemon runs it.
func (d *daemon) reload(config string) {
	d.t.Helper()
	applied := func() int { return strings.Count(d.log.String(), "configuration applied") }
	before := applied()
	d.configure(config)
	eventually(d.t, func() bool { return applied() > before }, func() string { return "the configuration is not applied\n" + d.log.Tail() })
}

func (d *daemon) path(name string) string { return filepath.Join(d.dir, name) }

func (d *daemon) start(args ...string) {
	d.t.Helper()
	bin := d.binary
	if bin == "" {
		var err error
		if bin, err = binary(); err != nil {
			d.t.Fatal(err)
		}
	}
	args = append([]string{"run", "--config", d.path("watcherd.yaml"), "--kubeconfig", d.kubeconfig}, args...)
	d.cmd = exec.Command(bin, args...)
	d.cmd.Dir, d.cmd.Env = d.dir, append(os.Environ(), d.env...)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if d.stdout != nil {
		d.cmd.Stdout = d.stdout
	}
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	ended := make(chan struct{})
	d.ended = ended
	cmd := d.cmd
	go func() {
		d.err = cmd.Wait()
		close(ended)
	}()
}

func (d *daemon) running() bool {
	if d.ended == nil {
		return false
	}
	select {
	case <-d.ended:
		return false
	default:
		return true
	}
}

// stop ends the daemon as a user would and expects a clean end.
func (d *daemon) stop() {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	if code := d.wait(); code != 0 {
		d.t.Fatalf("exit code %d after SIGTERM, want 0", code)
	}
}

// kill ends the daemon with no chance to do anything.
func (d *daemon) kill() {
	d.t.Helper()
	d.signal(syscall.SIGKILL)
	d.wait()
}

func (d *daemon) signal(s os.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		d.t.Fatal(err)
	}
}

// wait returns the exit code, -1 after a signal.
func (d *daemon) wait() int {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(patience):
		d.t.Fatal("the daemon did not end")
	}
	if exit, ok := errors.AsType[*exec.ExitError](d.err); ok {
		return exit.ExitCode()
	}
	if d.err != nil {
		d.t.Fatal(d.err)
	}
	return 0
}

// eventually waits for a condition; state describes it when it never holds.
func eventually(t testing.TB, ok func() bool, state func() string) {
	t.Helper()
	if !waittest.Holds(ok) {
		t.Fatalf("gave up waiting: %s", state())
	}
}
