package testcluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster/playground"
)

// Cluster is an API server and its etcd. Its methods are for one goroutine, apart
// from those that only read: Config, UserConfig, Apply, Namespace, RequestCounts.
type Cluster struct {
	URL        string // of the API server, the same for the cluster's whole life
	Kubeconfig string // path of the administrator's kubeconfig
	Dir        string // state directory; apiserver.log and etcd.log are in it

	binary  string
	flags   []string // kube-apiserver's
	process *process // nil while the server is stopped
}

// Start starts a cluster of the test's own, with flags of kube-apiserver such as
// --watch-cache=false, and stops it when the test ends.
func Start(t testing.TB, flags ...string) *Cluster {
	t.Helper()
	skipIfShort(t)
	c := &Cluster{Dir: t.TempDir(), flags: flags}
	if err := c.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func skipIfShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs an API server, which -short leaves out")
	}
}

// Restart stops the server, if it runs, and starts it again on the same data and
// port with the given kube-apiserver flags in place of the former ones.
func (c *Cluster) Restart(t testing.TB, flags ...string) {
	t.Helper()
	c.Stop(t)
	c.flags = flags
	if err := c.start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Stop stops the server as SIGTERM does; watches are ended first. It does
// nothing if the server doesn't run.
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
}

// Kill ends the server as a crash does.
func (c *Cluster) Kill(t testing.TB) {
	t.Helper()
	if c.process == nil {
		return
	}
	if err := c.end(os.Kill); err != nil {
		t.Fatal(err)
	}
}

// build finds the server's program or builds it.
func (c *Cluster) build(ctx context.Context) error {
	source, err := playground.Source(".")
	if err != nil {
		return err
	}
	c.binary, err = playground.Server().Path(ctx, source, os.Stderr)
	return err
}

func (c *Cluster) start(ctx context.Context) error {
	args := []string{"serve", "--lifeline", "--dir", c.Dir}
	if c.URL != "" {
		u, err := url.Parse(c.URL)
		if err != nil {
			return err
		}
		args = append(args, "--port", u.Port())
	}
	args = append(append(args, "--"), c.flags...)
	p, err := startProcess(ctx, c.binary, args)
	if err != nil {
		return fmt.Errorf("%w%s", err, c.logTail())
	}
	c.process, c.URL = p, p.url
	c.Kubeconfig = filepath.Join(c.Dir, "admin.kubeconfig")
	return nil
}

func (c *Cluster) stop() error {
	if c.process == nil {
		return nil
	}
	return c.end(syscall.SIGTERM)
}

// end sends the signal and waits. That the server was gone before is an error.
func (c *Cluster) end(s os.Signal) error {
	p := c.process
	c.process = nil
	if !p.running() {
		return fmt.Errorf("the server ended by itself: %w\n%s%s", p.ending(), p.stderr.String(), c.logTail())
	}
	if err := p.signal(s); err != nil {
		return fmt.Errorf("the server did not stop well: %w\n%s%s", err, p.stderr.String(), c.logTail())
	}
	// The pipe is closed already if Wait has seen the end first.
	if err := p.lifeline.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// logTail is the end of what the API server has logged, for a message about its
// failure: by the time it is read, the directory is gone.
func (c *Cluster) logTail() string {
	const limit = 4 << 10
	b, err := os.ReadFile(filepath.Join(c.Dir, "apiserver.log"))
	if err != nil {
		return "no log: " + err.Error()
	}
	return "its log ends with:\n" + string(b[max(0, len(b)-limit):])
}

// run runs a command of the server's program.
func (c *Cluster) run(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, c.binary, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("playground %s: %w\n%s", args[0], err, out)
	}
	return nil
}
