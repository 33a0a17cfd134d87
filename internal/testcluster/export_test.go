package testcluster

import (
	"os"
	"testing"
)

// Binary is the server's program.
func Binary(t testing.TB) string {
	t.Helper()
	skipIfShort(t)
	var c Cluster
	if err := c.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c.binary
}

// EndBehindItsBack ends the cluster's server without its knowledge, then stops the
// cluster.
func EndBehindItsBack(c *Cluster) error {
	if err := c.process.signal(os.Kill); err != nil {
		return err
	}
	return c.stop()
}
