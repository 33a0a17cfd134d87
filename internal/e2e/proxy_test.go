package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// newProxy starts a proxy before the cluster's API server.
func newProxy(t testing.TB, c *testcluster.Cluster) *testkit.Proxy {
	t.Helper()
	return testkit.NewProxy(t, strings.TrimPrefix(c.URL, "https://"))
}

// through is a copy of a kubeconfig that leads through a proxy before the cluster's API server.
func through(t testing.TB, p *testkit.Proxy, c *testcluster.Cluster, kubeconfig string) string {
	t.Helper()
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	target := strings.TrimPrefix(c.URL, "https://")
	changed := strings.ReplaceAll(string(text), target, p.Addr)
	if changed == string(text) {
		t.Fatalf("%s does not lead to %s", kubeconfig, target)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
