package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// TestLimitsOfRefusedConfig reloads files with another budget for the store. That
// of a file which cannot be applied never takes effect.
func TestLimitsOfRefusedConfig(t *testing.T) {
	c := testcluster.Shared(t)
	ns, admin := c.Namespace(t), testkit.Address(t)
	config := func(maxBytes, resource string) string {
		return fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {path: ./data, maxBytes: %s}
admin: {listen: %q}
watches: [{name: all, resources: [%s], namespaces: {include: [%s]}, onMissing: fail}]
sinks: [{name: archive, file: {path: "./events/{resource}.jsonl"}}]
`, maxBytes, admin, resource, ns)
	}
	d := newDaemon(t, c.Kubeconfig, config("1Gi", "configmaps"))
	d.start("--reload-interval", "100ms")
	budget := func() (n int64) {
		body, ok := httpGet(t, "http://"+admin+"/api/v1/status")
		if !ok {
			return 0
		}
		var status struct{ Store struct{ MaxBytes int64 } }
		if err := json.Unmarshal([]byte(body), &status); err != nil {
			t.Fatal(err)
		}
		return status.Store.MaxBytes
	}
	reloads := func(result string) float64 {
		return scrape(t, admin)[fmt.Sprintf("watcherd_config_reloads_total{result=%q}", result)]
	}
	eventually(t, func() bool { return budget() == 1<<30 }, func() string { return fmt.Sprintf("the budget is %d", budget()) })

	d.configure(config("2Gi", "no-such-things.example.com"))
	eventually(t, func() bool { return reloads("failed") > 0 }, func() string { return "the file was not refused" })
	if n := budget(); n != 1<<30 {
		t.Errorf("the budget of a refused file is in force: %d", n)
	}
	d.configure(config("3Gi", "configmaps"))
	eventually(t, func() bool { return budget() == 3<<30 }, func() string { return fmt.Sprintf("the budget is %d", budget()) })
	d.stop()
}
