package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// tap shows what a destination has got.
type tap struct {
	name string
	more func() ([][]byte, error) // the events that came since the last call
	seen []got
	sums map[string][sha256.Size]byte // of each event's body, by id
	told map[state]bool
}

// state is one state of an object; an empty version is that it is gone.
type state struct{ uid, version string }

func newTap(name string, more func() ([][]byte, error)) *tap {
	return &tap{name: name, more: more, sums: map[string][sha256.Size]byte{}, told: map[state]bool{}}
}

// all returns every event that came so far, repeated ones too. An event that is
// repeated with another body fails the test.
func (p *tap) all(t testing.TB) []got {
	t.Helper()
	bodies, err := p.more()
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	for _, body := range bodies {
		var g got
		if err := json.Unmarshal(body, &g); err != nil {
			t.Fatalf("%s: %v in %q", p.name, err, body)
		}
		sum := sha256.Sum256(body)
		if before, ok := p.sums[g.ID]; ok && before != sum {
			t.Errorf("%s: event %s came again with another body: %s", p.name, g.ID, body)
		}
		p.sums[g.ID] = sum
		p.seen = append(p.seen, g)
		if g.verb() == "deleted" {
			g.Data.ResourceVersion = ""
		}
		p.told[state{g.Data.UID, g.Data.ResourceVersion}] = true
	}
	return p.seen
}

// has reports whether all of these states have come.
func (p *tap) has(t testing.TB, states []state) bool {
	t.Helper()
	p.all(t)
	for _, s := range states {
		if !p.told[s] {
			return false
		}
	}
	return true
}

// awaitAll waits until all of these destinations have these states.
func awaitAll(t testing.TB, taps []*tap, states []state) {
	t.Helper()
	for _, p := range taps {
		eventually(t, func() bool { return p.has(t, states) },
			func() string {
				return fmt.Sprintf("%s has %d events and not all of the last ones", p.name, len(p.seen))
			})
	}
}

// drainAll is awaitAll of a backlog, whatever its length: it gives up when nothing
// has arrived for some time.
func drainAll(t testing.TB, taps []*tap, states []state) {
	t.Helper()
	for _, p := range taps {
		last, since := -1, time.Now()
		for !p.has(t, states) {
			if len(p.seen) > last {
				last, since = len(p.seen), time.Now()
			}
			if time.Since(since) > patience {
				t.Fatalf("%s has %d events and not all of the last ones, and no more come", p.name, last)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// finals returns the last state of every object. A sink that has them all has
// everything, by the order per object.
func (h *history) finals() (states []state) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, p := range h.objects {
		s := state{uid: uid}
		if !p.deleted {
			s.version = p.versions[len(p.versions)-1]
		}
		states = append(states, s)
	}
	return states
}

// existing are the states of the objects that exist.
func (h *history) existing() map[state]bool {
	states := map[state]bool{}
	for _, s := range h.finals() {
		if s.version != "" {
			states[s] = true
		}
	}
	return states
}

// mark writes an object of each kind and returns their states.
func (c *client) mark() (states []state) {
	c.t.Helper()
	for _, k := range kinds {
		u, err := c.create(c.t.Context(), k, fmt.Sprintf("zz-mark-%d", c.history.count()))
		if err != nil {
			c.t.Fatal(err)
		}
		states = append(states, state{string(u.GetUID()), u.GetResourceVersion()})
	}
	return states
}

// checkAlike expects every sink to have the same events, byte for byte, and each
// to pass the check.
func checkAlike(t testing.TB, taps []*tap, check func(t testing.TB, events []got)) {
	t.Helper()
	first := taps[0]
	for _, p := range taps {
		once := distinct(p.all(t))
		t.Logf("%s: %d events, %d of them again", p.name, len(once), len(p.seen)-len(once))
		check(t, once)
		var problems []string
		for id, sum := range p.sums {
			if want, ok := first.sums[id]; !ok {
				problems = append(problems, fmt.Sprintf("%s has event %s, which %s has not", p.name, id, first.name))
			} else if sum != want {
				problems = append(problems, fmt.Sprintf("event %s has one body at %s and another at %s", id, p.name, first.name))
			}
		}
		if len(p.sums) < len(first.sums) {
			problems = append(problems, fmt.Sprintf("%s has %d events, %s has %d", p.name, len(p.sums), first.name, len(first.sums)))
		}
		report(t, problems)
	}
}

// tapFiles reads the JSON lines of the files that the pattern matches.
func tapFiles(name, pattern string) *tap {
	read := map[string]int64{} // by file, how far
	return newTap(name, func() (lines [][]byte, err error) {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			f, err := os.Open(file)
			if err != nil {
				return nil, err
			}
			rest, err := io.ReadAll(io.NewSectionReader(f, read[file], 1<<40))
			if err := f.Close(); err != nil {
				return nil, err
			}
			if err != nil {
				return nil, err
			}
			whole := rest[:bytes.LastIndexByte(rest, '\n')+1]
			read[file] += int64(len(whole))
			for line := range bytes.Lines(whole) {
				lines = append(lines, line[:len(line)-1])
			}
		}
		return lines, nil
	})
}
