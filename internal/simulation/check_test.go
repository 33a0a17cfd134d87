package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
)

// check compares what every receiver has with what was written.
func (w *world) check() {
	for _, name := range slices.Sorted(maps.Keys(w.receivers)) {
		if name == "guest" && !w.config.guest {
			continue // it has yet to come back
		}
		for _, fault := range w.faults(name) {
			w.t.Errorf("sink %s: %s", name, fault)
		}
	}
}

// index is the place of an event's state in the history of its object path; -1 if
// there never was such a state. A deletion found by comparison is that of its uid, or else of the state that
// it has.
func index(history []write, e received) int {
	found := e.UID != ""
	for i, h := range history {
		found = found || h.version == e.Version
		switch {
		case h.uid != e.UID:
		case e.Type == event.Deleted && h.verb == "deleted" && (e.Unknown && found || h.version == e.Version):
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
	events, had := slices.Clone(r.events), maps.Clone(r.had)
	formerly := map[[2]string]bool{} // uid and version: what it was given before a rollback
	for _, e := range r.former {
		formerly[[2]string{e.UID, e.Version}] = true
	}
	r.mu.Unlock()
	// A watch that moves to another part of the ledger resumes where it had left that.
	returns := name == "pinned" && w.config.moved
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
	came := map[string]bool{}         // by uid
	left := map[string]bool{}         // by path: whether the object had left the selection
	gaps := map[string][]received{}   // by resource; one may arrive behind the events that it explains
	for _, e := range events {
		if e.Type == event.Gap {
			e.Epoch = w.wentBack
			gaps[resourceOf(e.Path)] = append(gaps[resourceOf(e.Path)], e)
		}
	}
	for _, e := range events {
		if before, again := first[e.ID]; again {
			if before.Type != e.Type || before.UID != e.UID || before.Version != e.Version {
				fault(e, "the id is that of %s %s", before.Type, before.Version)
			}
			continue // at least once
		}
		first[e.ID] = e
		if e.Type == event.Gap {
			continue
		}
		history := w.cluster.history[e.Path]
		at := index(history, e)
		switch {
		case at < 0 && e.Type == event.Deleted && had[e.UID]:
			delete(had, e.UID)
			continue
		case at < 0 && e.Type == event.Sync && returns && formerly[[2]string{e.UID, e.Version}]:
			had[e.UID] = true
			continue
		case at < 0:
			fault(e, "there was no such state")
			continue
		case e.Type != event.Deleted && e.N != 0 && history[at].n != e.N:
			fault(e, "the object is of state %d, want %d", e.N, history[at].n)
		case e.Type == event.Added && history[at].verb != "added" && !w.lost(e.Path) && e.Selection == "" && !covered(gaps[resourceOf(e.Path)], e.Path, history[at]) &&
			!slices.ContainsFunc(history[:at], func(h write) bool {
				return h.uid == e.UID && h.verb == "added" && covered(gaps[resourceOf(e.Path)], e.Path, h)
			}):
			fault(e, "it was updated then")
		}
		if e.Type == event.Sync && name == "main" && !came[e.UID] && slices.ContainsFunc(history, func(h write) bool {
			return h.uid == e.UID && h.ready && !covered(gaps[resourceOf(e.Path)], e.Path, h)
		}) {
			fault(e, "it was added when the daemon was ready")
		}
		came[e.UID] = true
		last, known := reached[e.Path]
		fresh := !known || at > last
		again := at == last && (e.Type == event.Sync || e.Selection != "" || w.wentBack && left[e.Path]) // what it had left may be restored
		if !fresh && !again && !returns {
			fault(e, "it comes after state %s", history[last].version)
		}
		if fresh {
			reached[e.Path] = at
		}
		if e.Earlier {
			reached[e.Path] = -1
		}
		left[e.Path] = e.Selection == event.Left
		if seen[e.Path] == nil {
			seen[e.Path] = map[int]bool{}
		}
		seen[e.Path][at] = true
	}
	begun := map[string]bool{} // by resource: a change came; the gap may arrive behind what a snapshot shows
	for _, e := range events {
		resource := resourceOf(e.Path)
		begun[resource] = begun[resource] || e.Type != event.Gap && e.Type != event.Sync
		// The chosen wait for namespaces when they take the jobs back, and when their first snapshot was cut short; others do not.
		waited := name == "chosen" && (w.cluster.idled && resource == "jobs.batch" || !begun[resource])
		if e.Type == event.Gap && !w.lossy && (e.Gap == "expired" || e.Gap == "rollback" || e.Gap == "unreadable" || e.Gap == "consistencyCheck") && !(w.gone && resource == "widgets.example.com") && !returns && !w.config.fresh && !waited {
			faults = append(faults, fmt.Sprintf("gap of %s in %q: %s %d-%d %v-%v, and nothing was lost", e.Path, e.In, e.Gap, e.From, e.To, e.Since, e.Until))
		}
		if e.Repair && !w.wentBack { // the cluster may have passed what a watch had come to
			fault(e, "it is a repair")
		}
	}
	switch name {
	case "red":
		return append(faults, w.behindOf(name, w.config.red, w.config.wasRed, gaps, func(p string, last write) bool { return resourceOf(p) == "pods" && last.red })...)
	case "pinned":
		return append(faults, w.behindOf(name, w.config.pinned, w.config.repinned || w.config.moved && w.gone, gaps, func(p string, _ write) bool { return resourceOf(p) == "widgets.example.com" })...)
	}
	if name == "chosen" {
		for p, history := range w.cluster.history {
			namespace := strings.Split(p, "/")[1]
			if !w.config.chosen || w.config.byName || w.config.rechosen || namespace == "" || w.cluster.other[namespace] {
				continue // another order of the watches explains what is missing
			}
			for i, h := range history {
				chosen := slices.ContainsFunc(history, func(o write) bool { return o.uid == h.uid && o.chosen })
				if seen[p][i] || !chosen || w.cluster.idled && resourceOf(p) == "jobs.batch" || covered(gaps[resourceOf(p)], p, h) || w.gone && resourceOf(p) == "widgets.example.com" || w.lossy && unseen(history, seen[p], h.life) {
					continue
				}
				fault(received{Path: p, UID: h.uid, Version: h.version, Type: event.Type(h.verb)}, "it is missing, and no gap is told")
			}
		}
		return append(faults, w.behindChosen()...)
	}
	faults = append(faults, w.behind(name, gaps)...)
	if name == "calm" {
		return faults
	}
	for p, history := range w.cluster.history {
		began := false
		for i, h := range history {
			began = began || seen[p][i]
			if seen[p][i] || !began || covered(gaps[resourceOf(p)], p, h) || w.gone && resourceOf(p) == "widgets.example.com" || w.lossy && unseen(history, seen[p], h.life) || w.config.fresh {
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

// stalled is how late a gap may begin: a watch that is silent for a shorter time is not taken for a stalled one.
const stalled = 90 * time.Second

// covered reports whether a gap says that a state may be missing, by its versions and by its times.
func covered(gaps []received, path string, h write) bool {
	version, _ := strconv.ParseUint(h.version, 10, 64)
	return slices.ContainsFunc(gaps, func(g received) bool {
		return (g.Epoch || g.From < version && (g.To == 0 || version <= g.To)) && (g.In == "" || g.In == strings.Split(path, "/")[1]) &&
			!g.Since.After(h.at.Add(stalled)) && !g.Until.Before(h.at)
	})
}

// unseen reports whether nothing of an object was seen.
func unseen(history []write, seen map[int]bool, life int) bool {
	for i, h := range history {
		if h.life == life && seen[i] {
			return false
		}
	}
	return true
}

// behindChosen are the objects that the receiver of some pods should have and has not, or
// has and should not.
func (w *world) behindChosen() []string {
	if !w.config.chosen {
		return nil
	}
	last := map[string]received{}
	r := w.receivers["chosen"]
	r.mu.Lock()
	defer r.mu.Unlock()
	first := map[string]bool{}
	for _, e := range r.events {
		if e.Type != event.Gap && !first[e.ID] {
			last[e.Path] = e
		}
		first[e.ID] = true
	}
	var faults []string
	for p, history := range w.cluster.history {
		resource, namespace := resourceOf(p), strings.Split(p, "/")[1]
		if resource == "nodes" {
			continue
		}
		is := w.cluster.labels[namespace] == "x"
		if w.config.byName {
			is = namespace == "a"
		}
		want := history[len(history)-1]
		is = is && want.verb != "deleted"
		got, ok := last[p]
		has := ok && got.Type != event.Deleted && got.Selection != event.Left
		switch {
		case is && (!has || got.Version != want.version):
			faults = append(faults, fmt.Sprintf("%s is at %s, the last event of the chosen is %s@%s %s", p, want.version, got.Type, got.Version, got.Selection))
		case !is && has && !w.config.rechosen && !(w.cluster.idled && resource == "jobs.batch"):
			faults = append(faults, fmt.Sprintf("%s is not of the chosen, the last event is %s@%s %s", p, got.Type, got.Version, got.Selection))
		}
	}
	slices.Sort(faults)
	return faults
}

// behindOf are the objects that the receiver of a part of them should have and has not, or has and should not. The
// watch that leads to it was taken away if it is former. Of a deletion, a gap will do.
func (w *world) behindOf(name string, watched, former bool, gaps map[string][]received, selects func(path string, last write) bool) (faults []string) {
	if !watched {
		return nil
	}
	last, first := map[string]received{}, map[string]bool{}
	r := w.receivers[name]
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.Type != event.Gap && !first[e.ID] {
			last[e.Path] = e
		}
		first[e.ID] = true
	}
	for p, history := range w.cluster.history {
		want := history[len(history)-1]
		is := want.verb != "deleted" && selects(p, want)
		got, ok := last[p]
		has := ok && got.Type != event.Deleted && got.Selection != event.Left
		switch {
		case is && (!has || got.Version != want.version):
			faults = append(faults, fmt.Sprintf("%s is at %s, the last event is %s@%s %s", p, want.version, got.Type, got.Version, got.Selection))
		case !is && has && !former && !(want.verb == "deleted" && covered(gaps[resourceOf(p)], p, want)):
			faults = append(faults, fmt.Sprintf("%s is not selected, the last event is %s@%s %s", p, got.Type, got.Version, got.Selection))
		}
	}
	slices.Sort(faults)
	return faults
}

// behind are the objects whose last state a receiver does not have. What the guest has missed for good may be told by a gap.
func (w *world) behind(name string, gaps map[string][]received) []string {
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
		case name == "guest" && covered(gaps[resourceOf(p)], p, want):
		case want.verb == "deleted" && !ok: // never seen: no one is to know
		case want.verb == "deleted" && got.Type != event.Deleted && !w.config.fresh:
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
