package testcluster

import (
	"path/filepath"
	"strconv"
	"testing"
)

// Compact removes etcd's history older than the revision, or than now if it is 0.
//
// A server with a watch cache, as it is by default, continues to answer watches from
// what its cache knows. To see 410 Gone, restart it after compacting, or run it
// with --watch-cache=false.
func (c *Cluster) Compact(t testing.TB, revision int64) {
	t.Helper()
	err := c.run(t.Context(), "compact", "--dir", c.Dir, "--revision", strconv.FormatInt(revision, 10))
	if err != nil {
		t.Fatal(err)
	}
}

// EtcdSnapshot is a state of etcd at some time.
type EtcdSnapshot struct{ dir string }

// SaveEtcd copies the cluster's present data. It stops the server for that and
// starts it again.
func (c *Cluster) SaveEtcd(t testing.TB) EtcdSnapshot {
	t.Helper()
	s := EtcdSnapshot{dir: filepath.Join(t.TempDir(), "etcd")}
	c.whileStopped(t, "save", s)
	return s
}

// RestoreEtcd goes back to the state that was saved, as a restore from a backup
// does: resource versions of what happened since are used again, for something
// else. It stops the server for that and starts it again.
func (c *Cluster) RestoreEtcd(t testing.TB, s EtcdSnapshot) {
	t.Helper()
	c.whileStopped(t, "restore", s)
}

func (c *Cluster) whileStopped(t testing.TB, verb string, s EtcdSnapshot) {
	t.Helper()
	c.Stop(t)
	if err := c.run(t.Context(), "snapshot", verb, "--dir", c.Dir, "--copy", s.dir); err != nil {
		t.Fatal(err)
	}
	c.Restart(t, c.flags...)
}
