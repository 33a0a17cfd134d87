package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// shared is the test binary's common cluster. It is a process-wide variable
// because that is what it is to be: tests of one binary have nothing else in
// common that could carry it.
var shared struct {
	mu      sync.Mutex
	cluster *Cluster // guarded by mu; nil until a test asks for it
	err     error    // guarded by mu; why there is none
	managed bool     // guarded by mu; Main will stop it
}

// Shared is a cluster that all tests of the binary share. It is started by the
// first that asks and stopped by [Main], which the binary's TestMain must call.
// Tests keep to a [Cluster.Namespace] of their own, and do not stop the server.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	skipIfShort(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.managed {
		t.Fatal("testcluster.Shared needs a TestMain that calls testcluster.Main")
	}
	if shared.cluster == nil && shared.err == nil {
		// It outlives this test, hence not its context.
		shared.cluster, shared.err = startShared(context.WithoutCancel(t.Context()))
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cluster
}

func startShared(ctx context.Context) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "watcherd-testcluster-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir}
	err = c.build(ctx)
	if err == nil {
		err = c.start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return c, nil
}

// Main runs the tests, stops the shared cluster if there is one, looks for
// goroutines that were left behind, and exits.
func Main(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(runner{m}, options...)
}

type runner struct{ m *testing.M }

// Run implements goleak.TestingM.
func (r runner) Run() int {
	shared.mu.Lock()
	shared.managed = true
	shared.mu.Unlock()

	code := r.m.Run()

	shared.mu.Lock()
	defer shared.mu.Unlock()
	c := shared.cluster
	if c == nil {
		return code
	}
	shared.cluster = nil
	if err := errors.Join(c.stop(), os.RemoveAll(c.Dir)); err != nil {
		fmt.Fprintln(os.Stderr, "testcluster:", err)
		return max(code, 1)
	}
	return code
}
