package plan_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/plan"
)

var update = flag.Bool("update", false, "write the plans that the pairs of configurations now give")

// TestDiff compiles pairs of configurations and compares the plans from the one to
// the other with golden files. A line of three dashes parts the two.
func TestDiff(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			before, after, ok := strings.Cut(string(data), "---\n")
			if !ok {
				t.Fatal("one configuration")
			}
			old, next := compile(t, before), compile(t, after)
			p := plan.Diff(old, next)
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(p.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), p.String()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if p.Empty() && len(p.NeedsRestart) == 0 != (old.Hash == next.Hash) {
				t.Errorf("empty: %v, hashes %s and %s", p.Empty(), old.Hash, next.Hash)
			}
			if same := plan.Diff(next, next); same.String() != "nothing changed\n" {
				t.Errorf("to itself: %s", same)
			}
		})
	}
}

func TestDiffFromNothing(t *testing.T) {
	s := compile(t, "store: {path: /x}\ncluster: {name: c}\nwatches: [{name: w, resources: [pods]}]\nsinks: [{name: s, console: {}}, {name: r, console: {}}]\n")
	want := plan.Plan{
		Watches: plan.Change{Add: []string{"w"}},
		Sinks:   plan.Change{Add: []string{"r", "s"}},
		Routes:  plan.Change{Add: []string{"default"}},
	}
	if diff := cmp.Diff(want, plan.Diff(nil, s)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestLine(t *testing.T) {
	p := plan.Plan{Sinks: plan.Change{Add: []string{"a", "b"}, Keep: []string{"c"}}, RoutesMoved: true, NeedsRestart: []string{"store.path"}}
	if got, want := p.Line(), "sinks: 2 added, 0 removed, 0 replaced, 1 unchanged + a + b; order of the routes changed"; got != want {
		t.Errorf("on one line: %s", got)
	}
}

// TestSecretsAreComparedByName: a plan must not depend on a secret's value, which a
// fingerprint could leak.
func TestSecretsAreComparedByName(t *testing.T) {
	const config = "watches: [{name: w, resources: [pods]}]\nsinks: [{name: s, post: {url: x, token: {env: PLAN_TEST_TOKEN}}}]\n"
	t.Setenv("PLAN_TEST_TOKEN", "one")
	before := compile(t, config)
	t.Setenv("PLAN_TEST_TOKEN", "two")
	if p := plan.Diff(before, compile(t, config)); !p.Empty() {
		t.Error(p)
	}
	renamed := compile(t, strings.ReplaceAll(config, "PLAN_TEST_TOKEN", "OTHER"))
	if p := plan.Diff(before, renamed); len(p.Sinks.Replace) != 1 {
		t.Error(p)
	}
}
