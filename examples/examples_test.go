package examples

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	events "github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// situations has a test for each example: what the file says of itself happens.
var situations = map[string]func(t *testing.T){
	"access-trail.yaml":    accessTrail,
	"alertmanager.yaml":    toAlertmanager,
	"argocd-feed.yaml":     argocdFeed,
	"cluster-events.yaml":  clusterEvents,
	"discord.yaml":         toDiscord,
	"elasticsearch.yaml":   inSearch,
	"failed-pods.yaml":     failedPods,
	"github.yaml":          toGitHub,
	"grafana.yaml":         toGrafana,
	"history-in-sql.yaml":  historyInSQL,
	"image-changes.yaml":   imageChanges,
	"inventory.yaml":       inventory,
	"kafka-state.yaml":     kafkaState,
	"lake.yaml":            inLake,
	"loki.yaml":            toLoki,
	"mqtt.yaml":            toMQTT,
	"otlp-logs.yaml":       otlpLogs,
	"pagerduty.yaml":       toPagerDuty,
	"pipe.yaml":            pipe,
	"quickstart.yaml":      quickstart,
	"recycle-bin.yaml":     recycleBin,
	"slack.yaml":           toSlack,
	"splunk.yaml":          toSplunk,
	"team-namespaces.yaml": teamNamespaces,
	"teams.yaml":           toTeams,
	"whole-group.yaml":     wholeGroup,
}

func TestExamples(t *testing.T) {
	for _, file := range files(t) {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			test := situations[file]
			if test == nil {
				t.Fatal("the example has no test")
			}
			test(t)
		})
	}
}

// TestHeads checks that each file is valid as it is and says how to try it.
func TestHeads(t *testing.T) {
	for _, file := range files(t) {
		if _, err := watcherd.Load(file, kinds.Builtin()); err != nil {
			t.Error(err)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want := "watcherd run --config examples/" + file
		typed := commands(string(content))
		if !slices.ContainsFunc(typed, func(line string) bool { return len(line) >= len(want) && line[:len(want)] == want }) {
			t.Errorf("%s: its head does not show %q but %q", file, want, typed)
		}
	}
}

// TestGaps checks that a body names the cause of a gap, which has no object, or leaves it out. The
// configuration of docs/getting-started.md is among the files.
func TestGaps(t *testing.T) {
	page, err := os.ReadFile("../docs/getting-started.md")
	if err != nil {
		t.Fatal(err)
	}
	_, config, _ := strings.Cut(string(page), "```yaml\n")
	config, _, _ = strings.Cut(config, "```")
	started := filepath.Join(t.TempDir(), "slack.yaml")
	if err := os.WriteFile(started, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	bodies := 0
	for _, file := range append(files(t), started) {
		st, err := watcherd.Load(file, kinds.Builtin())
		if err != nil {
			t.Fatal(err)
		}
		for i := range st.Sinks {
			b := st.Sinks[i].Body
			if b == nil {
				continue
			}
			bodies++
			gap := &events.Event{ID: "0", Type: events.Gap, Sequence: 1, Time: time.Unix(1_700_000_000, 0), Gap: &events.GapData{Watch: "w", Cause: "expired"}}
			if _, err := b.Render(gap); err != nil || len(gap.Body) > 0 && !strings.Contains(string(gap.Body), "expired") {
				t.Errorf("%s: %s, %v", file, gap.Body, err)
			}
		}
	}
	if bodies < 8 {
		t.Errorf("only %d bodies", bodies)
	}
}

func files(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < len(situations) {
		t.Fatalf("%d files for %d tests", len(files), len(situations))
	}
	return files
}
