package deploy

import (
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

func TestAlerts(t *testing.T) {
	promtool := testcluster.Tool(t, "promtool")
	mustRun(t, promtool, "check", "rules", "--lint=all", "--lint-fatal", "prometheus/alerts.yaml")
	mustRun(t, promtool, "test", "rules", "prometheus/alerts_test.yaml")
}
