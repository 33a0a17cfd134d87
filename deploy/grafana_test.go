package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// TestDashboard has promtool read each of the dashboard's queries.
func TestDashboard(t *testing.T) {
	content, err := os.ReadFile("grafana/watcherd.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID      int    `json:"id"`
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	// Grafana fills these in.
	fill := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*")
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for i, target := range p.Targets {
			expr, err := json.Marshal(fill.Replace(target.Expr))
			if err != nil {
				t.Fatal(err)
			}
			record, err := json.Marshal(map[string]any{
				"record": "panel:query", "expr": json.RawMessage(expr),
				"labels": map[string]string{"panel": p.Title, "query": string(rune('a' + i))},
			})
			if err != nil {
				t.Fatal(err)
			}
			rules.WriteString("  - " + string(record) + "\n")
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	mustRun(t, testcluster.Tool(t, "promtool"), "check", "rules", file)
}
