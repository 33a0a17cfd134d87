package examples

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

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
	"loki.yaml":            toLoki,
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
