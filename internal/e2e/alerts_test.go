package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// alerts is what the alert rules of deploy/ are tried on: what was scraped while all
// was well, for an hour, and then for another hour what was scraped in a fault.
type alerts struct {
	well, faulty moment
	// silent says that in the fault the API server says nothing: the times of last
	// contact stand still while the others pass.
	silent bool
}

// moment is what was scraped at a time.
type moment struct {
	samples
	at time.Time
}

// check has Prometheus's own rule engine say that nothing fires in the first hour
// and that the alert, with this label, does in the second.
func (a alerts) check(t testing.TB, alert, label string) {
	t.Helper()
	rules, err := filepath.Abs("../../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	firing := `ALERTS{alertstate="firing"}`
	fired := fmt.Sprintf(`count(max_over_time(ALERTS{alertstate="firing", alertname=%q, %s}[1h]))`, alert, label)
	if label == "" {
		fired = strings.Replace(fired, ", }", "}", 1)
	}
	test := map[string]any{
		"rule_files": []string{rules}, "evaluation_interval": "1m",
		"tests": []any{map[string]any{
			"interval": "1m", "input_series": a.series(),
			"promql_expr_test": []any{
				map[string]any{"expr": firing, "eval_time": "60m", "exp_samples": []any{}},
				map[string]any{"expr": fired, "eval_time": "120m", "exp_samples": []any{map[string]any{"labels": "{}", "value": 1}}},
			},
		}},
	}
	text, err := json.Marshal(test) // which is YAML
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), testcluster.Tool(t, "promtool"), "test", "rules", file).CombinedOutput()
	if err != nil {
		t.Errorf("alert %s %s: %v\n%s", alert, label, err, out)
	}
}

// series are the samples of two hours in promtool's notation, one a minute.
func (a alerts) series() []map[string]string {
	list := []map[string]string{{"series": `up{job="watcherd", instance="a"}`, "values": "1x120"}}
	for name := range a.both() {
		first, second := span(name, a.well, 0, false), span(name, a.faulty, 61, a.silent)
		list = append(list, map[string]string{"series": name, "values": first + " " + second})
	}
	return list
}

func (a alerts) both() map[string]bool {
	names := map[string]bool{}
	for _, m := range []moment{a.well, a.faulty} {
		for series := range m.samples {
			if strings.HasPrefix(series, "watcherd_") {
				names[series] = true
			}
		}
	}
	return names
}

// span is an hour of a series that was scraped once, from a minute on: a time of
// the past stays as long ago as it was, or is ever longer ago if it stands still.
func span(name string, m moment, minute int, still bool) string {
	v, ok := m.samples[name]
	family, _, _ := strings.Cut(name, "{")
	switch {
	case !ok:
		return "_x61"
	case strings.HasSuffix(family, "_timestamp_seconds"):
		begin := float64(60*minute) - (float64(m.at.UnixMilli())/1000 - v)
		if still && strings.HasSuffix(family, "_contact_timestamp_seconds") {
			return number(begin) + "x60"
		}
		return number(begin) + "+60x60"
	case strings.HasSuffix(family, "_age_seconds") && v > 0 && minute > 0:
		return number(v) + "+60x60" // what waits grows older
	default:
		return number(v) + "x60"
	}
}

// number is a value in promtool's notation.
func number(v float64) string {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return "_"
	}
	return fmt.Sprintf("%.3f", v)
}
