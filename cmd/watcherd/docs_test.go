package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// TestDocs checks what can be checked of the documentation without running it: links
// lead to files, and the commands and flags that are shown exist.
func TestDocs(t *testing.T) {
	const root = "../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "testdata"):
			return filepath.SkipDir
		case filepath.Ext(path) != ".md" && (filepath.Ext(path) != ".yaml" || filepath.Base(filepath.Dir(path)) != "examples"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		t.Run(strings.TrimPrefix(path, root+"/"), func(t *testing.T) {
			checkLinks(t, filepath.Dir(path), string(text))
			checkCommands(t, string(text))
			checkConfigs(t, string(text))
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var link = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)

func checkLinks(t *testing.T, dir, text string) {
	t.Helper()
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		if strings.Contains(m[1], "://") {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, m[1])); err != nil {
			t.Errorf("a link leads nowhere: %v", err)
		}
	}
}

// code is what stands in a fence or in backquotes, or indented in a comment of YAML.
var code = regexp.MustCompile("(?s)```.*?```|`[^`\n]+`|(?m:^#   .*$)")

// shown is a command at the beginning of a line of code, or run by kubectl.
var shown = regexp.MustCompile("(?m)(?:^[#$` ]*|-- )(?:/usr/)?(?:bin/)?watcherd ([a-z][^`#|>\\n]*)")

func checkCommands(t *testing.T, text string) {
	t.Helper()
	commands := strings.Join(code.FindAllString(text, -1), "\n")
	for _, m := range shown.FindAllStringSubmatch(commands, -1) {
		root := newRootCommand(io.Discard, io.Discard)
		words := strings.Fields(m[1])
		cmd, rest, err := root.Find(words)
		if err != nil || cmd == root {
			t.Errorf("watcherd %s: there is no such command", m[1])
			continue
		}
		for _, word := range rest {
			if word == "--" {
				break // what follows is another program's
			}
			name, _, _ := strings.Cut(word, "=")
			long, isLong := strings.CutPrefix(name, "--")
			short, isShort := strings.CutPrefix(name, "-")
			if isLong && cmd.Flag(long) == nil || !isLong && isShort && cmd.Flags().ShorthandLookup(short) == nil {
				t.Errorf("watcherd %s: there is no flag %s", m[1], name)
			}
		}
	}
}

var metricName = regexp.MustCompile(`\bwatcherd_[a-z_]+`)

// TestMetricNames checks that the pages, the alerts and the dashboard name metrics that
// the reference has. A page may name a family by its prefix.
func TestMetricNames(t *testing.T) {
	const docs, deploy = "../../docs", "../../deploy"
	reference, err := os.ReadFile(filepath.Join(docs, "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := metricName.FindAllString(string(reference), -1)
	pages, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(pages, filepath.Join(deploy, "prometheus", "alerts.yaml"), filepath.Join(deploy, "grafana", "watcherd.json"), "../../CHANGELOG.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metricName.FindAllString(string(text), -1) {
			base := name
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				base = strings.TrimSuffix(base, suffix)
			}
			prefix := strings.HasSuffix(name, "_")
			if !slices.ContainsFunc(known, func(k string) bool { return k == name || k == base || prefix && strings.HasPrefix(k, name) }) {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
}

var fenced = regexp.MustCompile("(?s)```yaml\n(.*?)```")

func checkConfigs(t *testing.T, text string) {
	t.Helper()
	for _, m := range fenced.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(m[1], "kind: WatcherConfig") {
			continue
		}
		file := filepath.Join(t.TempDir(), "watcherd.yaml")
		if err := os.WriteFile(file, []byte(m[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := watcherd.Load(file, kinds.Builtin()); err != nil {
			t.Error(err)
		}
	}
}
