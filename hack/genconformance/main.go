// Command genconformance writes the page of the kinds of sinks with what each passed of the
// suite that all of them are tested with, from a run of it:
//
//	go test -json -count 1 -run '^TestConformance' ./pkg/sinks/... | go run ./hack/genconformance docs/sinks.md
//
// It fails if a check failed.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json … | genconformance FILE")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "genconformance:", err)
		os.Exit(1)
	}
}

func write(file string, events io.Reader) error {
	results, err := read(events)
	if err != nil {
		return err
	}
	page, err := results.page()
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(page), 0o644) //nolint:gosec // it is a source file
}

// cell is a check of a kind.
type cell struct{ kind, check string }

// results are, for each check of a kind, the outcomes of its runs: a kind is tested in several forms.
type results map[cell]map[string]int

// read takes in what go test -json prints.
func read(events io.Reader) (results, error) {
	all := results{}
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct{ Action, Package, Test string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%w: %.80s", err, lines.Text())
		}
		switch e.Action {
		case "fail":
			return nil, fmt.Errorf("%s %s failed", e.Package, e.Test)
		case "pass", "skip":
			at := cell{path.Base(e.Package), strings.ReplaceAll(path.Base(e.Test), "_", " ")}
			if all[at] == nil {
				all[at] = map[string]int{}
			}
			all[at][e.Action]++
		}
	}
	return all, lines.Err()
}

// columns are the kinds, and what the page has of each.
var columns = []struct{ name, page, delivery string }{
	{"elasticsearch", "elasticsearch.md", "once: the id of a document is that of its event; within one backing index of a data stream"},
	{"file", "configuration.md#sinksfile", "at least once"},
	{"kafka", "kafka.md", "at least once; brokers drop what a connection makes it send twice"},
	{"nats", "configuration.md#sinksnats", "at least once; JetStream drops repeats within its duplicate window"},
	{"object", "object.md", "exactly once"},
	{"otlp", "otlp.md", "at least once, with `cloudevents.event_id`"},
	{"plugin", "plugin.md", "at least once, with the `id`; once with the example in Python"},
	{"postgres", "postgres.md", "exactly once"},
	{"redis", "redis.md", "once within `dedupe`"},
	{"stdout", "configuration.md#sinksstdout", "at least once"},
	{"webhook", "configuration.md#sinkswebhook", "at least once, with the `id`"},
}

const head = `# Sinks

<!-- Made by hack/genconformance from a run of the tests. -->

Every kind delivers each event at least once, and the events of an object in order
([delivery guarantees](delivery-guarantees.md)). What is left of an event that had to be sent twice, as after a crash:

| kind | |
|---|---|
`

const middle = `
A sink in another language is a [plugin](plugin.md), one in Go a [kind of your own](custom-sink.md).

## What is tested

Each kind passes one suite, over a real server where one can be had: [pkg/sinks/sinktest](../pkg/sinks/sinktest), which is for kinds of
your own too. Without a mark, the destination cannot do what the check is about: a file refuses no event.

| check |`

func (r results) page() (string, error) {
	var b strings.Builder
	b.WriteString(head)
	for _, k := range columns {
		fmt.Fprintf(&b, "| [%s](%s) | %s |\n", k.name, k.page, k.delivery)
	}
	b.WriteString(middle)
	for _, k := range columns {
		fmt.Fprintf(&b, " %s |", k.name)
	}
	fmt.Fprint(&b, "\n|---|", strings.Repeat(":-:|", len(columns)), "\n")
	names, err := checks()
	if err != nil {
		return "", err
	}
	for _, check := range names {
		fmt.Fprintf(&b, "| %s |", check)
		for _, k := range columns {
			switch outcome := r[cell{k.name, check}]; {
			case outcome == nil:
				return "", fmt.Errorf("%s: %s was not run", k.name, check)
			case outcome["pass"] > 0:
				b.WriteString(" ✓ |")
			default:
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}

// checks are the names of the suite's checks, from its source: a program without the tests cannot ask it.
func checks() ([]string, error) {
	source, err := os.ReadFile("pkg/sinks/sinktest/run.go")
	if err != nil {
		return nil, err
	}
	_, list, _ := strings.Cut(string(source), "for _, check := range []struct {")
	list, _, found := strings.Cut(list, "t.Run(check.name")
	var names []string
	for line := range strings.Lines(list) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), `{"`); ok {
			name, _, _ = strings.Cut(name, `"`)
			names = append(names, name)
		}
	}
	if !found || len(names) == 0 {
		return nil, errors.New("pkg/sinks/sinktest/run.go has no list of checks")
	}
	return names, nil
}
