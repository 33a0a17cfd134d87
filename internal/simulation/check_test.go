package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/watcherd/watcherd/pkg/event"
)

// check compares what every receiver has with what was written.
func (w *world) check() {
	for _, name := range slices.Sorted(maps.Keys(w.receivers)) {
		for _, fault := range w.faults(name) {
			w.t.Errorf("sink %s: %s", name, fault)
		}
	}
}

// index is the place of an event's state in the history of its object path; -1 if
// there never was such a state. A deletion found by comparison is that of its uid.
func index(history []write, e received) int {
	for i, h := range history {
		switch {
		case h.uid != e.UID:
		case e.Type == event.Deleted && h.verb == "deleted" && (e.Unknown || h.version == e.Version):
			return i
		case e.Type != event.Deleted && h.verb != "deleted" && h.version == e.Version:
			return i
		}
	}
	return -1
}

// faults are what is wrong with what one receiver got.
func (w *world) faults(name string) []string {
	r := w.receivers[name]
	r.mu.Lock()
	events := slices.Clone(r.events)
	r.mu.Unlock()
	var faults []string
	fault := func(e received, format string, args ...any) {
		var trail []string
		for _, other := range events {
			if other.Path == e.Path {
				trail = append(trail, fmt.Sprintf("%s@%s", other.Type, other.Version))
			}
		}
		faults = append(faults, fmt.Sprintf("%s %s uid %s version %s: %s\n  received %s\n  written  %s", e.Type, e.Path, e.UID, e.Version,
			fmt.Sprintf(format, args...), strings.Join(trail, " "), trailOf(w.cluster.history[e.Path])))
	}
	first := map[string]received{}    // by id
	reached := map[string]int{}       // by path: the index of the last new event
	seen := map[string]map[int]bool{} // by path: the indices delivered
	gaps := map[string]bool{}         // resources of which history was lost
	for _, e := range events {
		if before, again := first[e.ID]; again {
			if before.Type != e.Type || before.UID != e.UID || before.Version != e.Version {
				fault(e, "the id is that of %s %s", before.Type, before.Version)
			}
			continue // at least once
		}
		first[e.ID] = e
		if e.Type == event.Gap {
			gaps[resourceOf(e.Path)] = true
			continue
		}
		history := w.cluster.history[e.Path]
		at := index(history, e)
		switch {
		case at < 0:
			fault(e, "there was no such state")
			continue
		case e.Type != event.Deleted && history[at].n != e.N:
			fault(e, "the object is of state %d, want %d", e.N, history[at].n)
		case e.Type == event.Added && history[at].verb != "added" && !w.lost(e.Path) && e.Selection == "":
			fault(e, "it was updated then")
		}
		last, known := reached[e.Path]
		fresh := !known || at > last
		again := at == last && (e.Type == event.Sync || e.Selection != "")
		if !fresh && !again {
			fault(e, "it comes after state %s", history[last].version)
		}
		if fresh {
			reached[e.Path] = at
		}
		if seen[e.Path] == nil {
			seen[e.Path] = map[int]bool{}
		}
		seen[e.Path][at] = true
	}
	if name == "chosen" {
		return faults
	}
	faults = append(faults, w.behind(name)...)
	for p, history := range w.cluster.history {
		began := false
		for i, h := range history {
			began = began || seen[p][i]
			if seen[p][i] || !began || w.lost(p) || gaps[resourceOf(p)] {
				continue
			}
			fault(received{Path: p, UID: h.uid, Version: h.version, Type: event.Type(h.verb)}, "it is missing, and no gap is told")
		}
	}
	return faults
}

// lost reports whether states of an object path may have been beyond reach.
func (w *world) lost(path string) bool {
	return w.lossy || w.gone && resourceOf(path) == "widgets.example.com"
}

// behind are the objects whose last state a receiver does not have.
func (w *world) behind(name string) []string {
	r := w.receivers[name]
	r.mu.Lock()
	defer r.mu.Unlock()
	last := map[string]received{}
	for _, e := range r.events {
		if e.Type == event.Gap {
			continue
		}
		if before, ok := last[e.Path]; !ok || index(w.cluster.history[e.Path], e) >= index(w.cluster.history[e.Path], before) {
			last[e.Path] = e
		}
	}
	var faults []string
	for p, history := range w.cluster.history {
		want := history[len(history)-1]
		got, ok := last[p]
		switch {
		case want.verb == "deleted" && !ok: // never seen: no one is to know
		case want.verb == "deleted" && got.Type != event.Deleted:
			faults = append(faults, fmt.Sprintf("%s was deleted at %s, the last event is %s@%s", p, want.version, got.Type, got.Version))
		case want.verb != "deleted" && (!ok || got.Version != want.version || got.Type == event.Deleted):
			faults = append(faults, fmt.Sprintf("%s is at %s, the last event is %s@%s; written %s", p, want.version, got.Type, got.Version, trailOf(history)))
		}
	}
	slices.Sort(faults)
	return faults
}

func trailOf(history []write) string {
	var trail []string
	for _, h := range history {
		trail = append(trail, h.verb+"@"+h.version)
	}
	return strings.Join(trail, " ")
}

func resourceOf(path string) string { resource, _, _ := strings.Cut(path, "/"); return resource }
