package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// got is one event as a sink wrote it.
type got struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Source   string `json:"source"`
	Subject  string `json:"subject"`
	Sequence string `json:"sequence"`
	Data     struct {
		Namespace         string   `json:"namespace"`
		Name              string   `json:"name"`
		UID               string   `json:"uid"`
		ResourceVersion   string   `json:"resourceVersion"`
		Object            *content `json:"object"`
		OldObject         *content `json:"oldObject"`
		Selection         string   `json:"selection"`
		FinalStateUnknown bool     `json:"finalStateUnknown"`
		Repair            bool     `json:"repair"`
		Cause             string   `json:"cause"`
		Watch             string   `json:"watch"`
	} `json:"data"`
}

// content is the part of an object that the tests look at.
type content struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name            string            `json:"name"`
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
		Deletion        string            `json:"deletionTimestamp"`
		ManagedFields   json.RawMessage   `json:"managedFields"`
	} `json:"metadata"`
}

// verb is the last part of the type: added, updated, deleted, sync, gap.
func (g *got) verb() string { return g.Type[strings.LastIndexByte(g.Type, '.')+1:] }

// readEvents reads everything below a folder of JSON-lines files. A last line
// without its end is one that is being written.
func readEvents(t testing.TB, dir string) []got {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var all []got
	for _, name := range files {
		all = append(all, readFile(t, name)...)
	}
	return all
}

func readFile(t testing.TB, name string) []got {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var events []got
	for in := bufio.NewReader(f); ; {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		var g got
		if err := json.Unmarshal(line, &g); err != nil {
			t.Fatalf("%s: %v in %q", name, err, line)
		}
		events = append(events, g)
	}
}

// byObject groups events by object uid, in the order of the file. Gaps are left
// out.
func byObject(events []got) map[string][]got {
	m := map[string][]got{}
	for _, g := range events {
		if g.verb() != "gap" {
			m[g.Data.UID] = append(m[g.Data.UID], g)
		}
	}
	return m
}

// checkExact compares a feed with the history of all writes: nothing missing,
// nothing twice, in order, and each update with the state it replaced.
func checkExact(t testing.TB, h *history, events []got) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	problems := checkIDs(events)
	feed := byObject(events)
	for uid, p := range h.objects {
		problems = append(problems, p.compare(uid, feed[uid])...)
	}
	for uid, list := range feed {
		if _, ok := h.objects[uid]; !ok {
			problems = append(problems, fmt.Sprintf("%s: %d events of an object nobody wrote", list[0].Subject, len(list)))
		}
	}
	report(t, problems)
}

func checkIDs(events []got) (problems []string) {
	seen := map[string]string{}
	for _, g := range events {
		if before, ok := seen[g.ID]; ok {
			problems = append(problems, fmt.Sprintf("event %s delivered twice: %s and %s %s", g.ID, before, g.Type, g.Subject))
		}
		seen[g.ID] = g.Type + " " + g.Subject
	}
	return problems
}

// compare lists how the events of one object differ from what happened to it.
func (p *past) compare(uid string, events []got) (problems []string) {
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("%s %s (%s): ", p.gvr.Resource, p.name, uid)+fmt.Sprintf(format, args...))
	}
	want := slices.Clone(p.versions)
	for i, g := range events {
		verb := g.verb()
		if verb == "deleted" {
			if !p.deleted || i != len(events)-1 || len(want) > 0 {
				bad("unexpected deletion at place %d, %d states outstanding", i, len(want))
			}
			continue
		}
		if p.terminating(&g) && len(want) == 0 && i == len(events)-2 {
			continue
		}
		if len(want) == 0 || g.Data.ResourceVersion != want[0] {
			bad("event %d is %s of version %s, want the next of %v", i, verb, g.Data.ResourceVersion, want)
			return problems
		}
		want = want[1:]
		if first := i == 0; first != (verb == "added" || verb == "sync") {
			bad("event %d is %s", i, verb)
		}
		if g.Data.Object == nil || g.Data.Object.Metadata.ResourceVersion != g.Data.ResourceVersion {
			bad("event %d carries another state than it names", i)
		}
		if g.Data.Object != nil && len(g.Data.Object.Metadata.ManagedFields) > 0 {
			bad("event %d carries managedFields", i)
		}
		if verb == "updated" && (g.Data.OldObject == nil || g.Data.OldObject.Metadata.ResourceVersion != p.versions[i-1]) {
			bad("event %d has the wrong old object", i)
		}
	}
	if len(want) > 0 {
		bad("versions %v are missing", want)
	}
	if p.deleted && (len(events) == 0 || events[len(events)-1].verb() != "deleted") {
		bad("the deletion is missing")
	}
	return problems
}

// terminating reports whether the event is the write that the API server itself
// makes when a pod is deleted: it sets the deletionTimestamp, then deletes.
func (p *past) terminating(g *got) bool {
	return p.deleted && p.gvr.Resource == "pods" && g.verb() == "updated" && g.Data.Object != nil && g.Data.Object.Metadata.Deletion != ""
}

// report fails the test with the first problems.
func report(t testing.TB, problems []string) {
	t.Helper()
	for i, p := range problems {
		if i == 20 {
			t.Errorf("and %d more", len(problems)-i)
			break
		}
		t.Error(p)
	}
}

// settle waits until the feed in dir has seen every change made before. In each
// kind a last object is written: it comes last in a stream, and by its name in a
// list. Deliveries of other objects may still be on their way: see settleAll.
func (c *client) settle(dir string, watched ...kind) {
	c.t.Helper()
	c.await(dir, false, watched)
}

// settleAll is settle for a feed whose every event goes to dir; it waits until all
// of them are there.
func (c *client) settleAll(dir string, watched ...kind) {
	c.t.Helper()
	c.await(dir, true, watched)
}

func (c *client) await(dir string, all bool, watched []kind) {
	c.t.Helper()
	want := map[string]bool{}
	for _, k := range watched {
		u, err := c.create(c.t.Context(), k, fmt.Sprintf("zz-sentinel-%d", c.history.count()))
		if err != nil {
			c.t.Fatal(err)
		}
		want[string(u.GetUID())] = true
	}
	left, missing := len(want), 0
	eventually(c.t, func() bool {
		events := readEvents(c.t, dir)
		left, missing = len(want), 0
		if all {
			missing = holes(c.t, events)
		}
		for uid := range byObject(events) {
			if want[uid] {
				left--
			}
		}
		return left == 0 && missing == 0
	}, func() string {
		return fmt.Sprintf("of %d last objects %d never arrived, and %d events before them", len(want), left, missing)
	})
}

// holes is how many events are missing before the last one, by their sequences, which
// have no gaps where every event goes to the sink. A start, and a reload that watches more, continue from the clock
// in microseconds: none of them is as soon after another as the jump that is taken for one.
func holes(t testing.TB, events []got) (missing int) {
	t.Helper()
	const start = 50_000
	var sequences []int
	for _, g := range events {
		n, err := strconv.Atoi(g.Sequence)
		if err != nil {
			t.Fatal(err)
		}
		sequences = append(sequences, n)
	}
	slices.Sort(sequences)
	sequences = slices.Compact(sequences)
	for i := 1; i < len(sequences); i++ {
		if between := sequences[i] - sequences[i-1] - 1; between < start {
			missing += between
		}
	}
	return missing
}

func (h *history) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.writes
}
