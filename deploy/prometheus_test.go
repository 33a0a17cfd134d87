package deploy

import "testing"

func TestAlerts(t *testing.T) {
	promtool := tool(t, "promtool")
	mustRun(t, promtool, "check", "rules", "--lint=all", "--lint-fatal", "prometheus/alerts.yaml")
	mustRun(t, promtool, "test", "rules", "prometheus/alerts_test.yaml")
}
