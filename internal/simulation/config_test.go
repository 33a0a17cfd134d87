package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// settings are what a reload changes. Sinks main and flaky are to get everything,
// whatever the settings are, and sink guest, which comes and goes, too; sink calm the last state of everything, at the rate of its
// throttle; sink chosen gets the pods of namespaces of tier x, or of
// namespace a.
type settings struct {
	names    int  // of the watches: a reload renames them
	layout   int  // which watch has which resources
	spaces   int  // 0: all namespaces; 1: both by name; 2: a watch for each; 3: both by a pattern
	wild     bool // a pattern means the widgets
	noise    bool // noise is dropped
	secret   bool // the secret is redacted
	metadata bool // metadata alone is watched
	chosen   bool // the watch of some pods exists
	byName   bool // it is of namespace a
	rechosen bool // it was taken away or selected otherwise
	lonely   bool // a route that nothing comes through exists
	calm     int  // the seconds of the throttle of sink calm; 0: none
	allows   bool // the watches of everything have a namespace selector that matches all
	reverse  bool // the order of the watches in the file
	red      bool // the watch of red pods exists
	redder   bool // its route leads to sink main, too
	wasRed   bool // it was taken away
	idle     bool // no watch has the jobs
	pinned   bool // the watch of widgets in a version exists
	repinned bool // it was taken away
	unpinned bool // it is of no version, as others are
	moved    bool // it was of another part of the ledger
	checks   bool // the consistency check runs all the time
	guest    bool // sink guest is there

	// fresh: watches were renamed, or resources came to others, when nothing could be judged
	// by them, so that they began as new ones, after others had recorded changes.
	fresh bool
}

// change makes a change, or several.
func (s *settings) change(r *rand.Rand) string {
	what := s.changeOne(r)
	for r.IntN(3) == 0 {
		what += ", " + s.changeOne(r)
	}
	return what
}

// toggle adds a watch or takes it away, and notes that it was taken away.
func toggle(exists, taken *bool) bool {
	*taken = *taken || *exists
	*exists = !*exists
	return *exists
}

func (s *settings) changeOne(r *rand.Rand) string {
	switch r.IntN(19) {
	case 0:
		s.names++
		return "rename the watches"
	case 1:
		s.layout = r.IntN(3)
		return fmt.Sprint("layout ", s.layout)
	case 2:
		s.noise = !s.noise
		return fmt.Sprint("drop noise ", s.noise)
	case 3:
		s.secret = !s.secret
		return fmt.Sprint("redact the secret ", s.secret)
	case 4:
		return fmt.Sprint("watch of some pods ", toggle(&s.chosen, &s.rechosen))
	case 5:
		s.lonely = !s.lonely
		return fmt.Sprint("lonely route ", s.lonely)
	case 6:
		s.reverse = !s.reverse
		return fmt.Sprint("reverse ", s.reverse)
	case 11:
		s.calm = r.IntN(3) * 4
		return fmt.Sprintf("throttle %ds", s.calm)
	case 7, 8:
		s.spaces = r.IntN(4)
		return fmt.Sprint("namespaces ", s.spaces)
	case 14:
		s.idle = !s.idle
		return fmt.Sprint("jobs are not watched ", s.idle)
	case 15:
		return fmt.Sprint("watch of a version ", toggle(&s.pinned, &s.repinned))
	case 18:
		s.unpinned, s.moved = !s.unpinned, true
		return fmt.Sprint("the version is of no matter ", s.unpinned)
	case 12:
		return fmt.Sprint("watch of red pods ", toggle(&s.red, &s.wasRed))
	case 13:
		s.redder = !s.redder
		return fmt.Sprint("red pods to all ", s.redder)
	case 9:
		s.wild = !s.wild
		return fmt.Sprint("wildcard ", s.wild)
	case 10:
		if r.IntN(2) == 0 {
			s.rechosen = s.rechosen || s.chosen
			s.byName = !s.byName
			return fmt.Sprint("watch of some pods by name ", s.byName)
		}
		s.metadata = !s.metadata
		return fmt.Sprint("metadata only ", s.metadata)
	default:
		s.allows = !s.allows
		return fmt.Sprint("namespace selector that matches all ", s.allows)
	}
}

// division says which watches have which resources and namespaces.
func (s *settings) division() string { return fmt.Sprint(s.names, s.layout, s.spaces == 2) }

func (s *settings) yaml() string {
	var b strings.Builder
	b.WriteString(`apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {minFree: 64Mi}
admin: {listen: ""}
`)
	if s.checks {
		b.WriteString("consistencyCheck: {interval: 20s}\n")
	}
	edits := "  drop: [metadata.managedFields"
	if s.noise {
		edits += ", spec.noise"
	}
	edits += "]\n"
	if s.secret {
		edits += "  redact: [spec.secret]\n"
	}
	if s.metadata {
		edits += "  metadataOnly: true\n"
	}
	things := "widgets.example.com"
	if s.wild {
		things = "'*.example.com'"
	}
	// Nodes are in no namespace, which a watch with namespaces leaves out.
	list := [][2]string{{"n", "nodes, routes.api.test, jobs.batch"}, {"w", "pods, " + things}}
	switch s.layout {
	case 1:
		list = [][2]string{{"n", "nodes, routes.api.test, jobs.batch"}, {"w", things}, {"p", "pods"}}
	case 2:
		list = [][2]string{{"n", "nodes, routes.api.test, jobs.batch, " + things}, {"w", "pods"}}
	}
	if s.idle {
		list[0][1] = strings.Replace(list[0][1], ", jobs.batch", "", 1)
	}
	var watches, names []string
	add := func(name, resources, namespaces string) {
		name = fmt.Sprintf("%s%d", name, s.names)
		names = append(names, name)
		text := fmt.Sprintf("- name: %s\n  resources: [%s]\n%s", name, resources, edits)
		if s.wild && strings.Contains(resources, things) {
			text += "  excludeResources: [gadgets.example.com]\n"
		}
		if namespaces != "" {
			text += "  namespaces: {" + namespaces + "}\n"
		}
		watches = append(watches, text)
	}
	for _, w := range list {
		switch {
		case w[0] == "n":
			add(w[0], w[1], "")
		case s.spaces == 1:
			add(w[0], w[1], "include: [a, b]")
		case s.spaces == 2:
			add(w[0]+"a", w[1], "include: [a]")
			add(w[0]+"b", w[1], "include: [b]")
		case s.spaces == 3:
			add(w[0], w[1], "include: ['a*', 'b*']")
		case s.allows:
			add(w[0], w[1], `selector: "tier in (x, y)"`)
		default:
			add(w[0], w[1], "")
		}
	}
	if s.chosen {
		namespaces := "selector: tier=x"
		if s.byName {
			namespaces = "include: [a]"
		}
		watches = append(watches, "- name: chosen\n  resources: [pods, widgets.example.com"+map[bool]string{false: ", jobs.batch"}[s.idle]+"]\n  namespaces: {"+namespaces+"}\n"+edits)
	}
	if s.red {
		watches = append(watches, "- name: red\n  resources: [pods]\n  labelSelector: color=red\n"+edits)
	}
	if s.pinned {
		watches = append(watches, "- name: pinned\n  resources: [widgets."+map[bool]string{false: "v1beta1."}[s.unpinned]+"example.com]\n"+edits)
	}
	if s.reverse {
		for i, j := 0, len(watches)-1; i < j; i, j = i+1, j-1 {
			watches[i], watches[j] = watches[j], watches[i]
		}
	}
	b.WriteString("watches:\n" + strings.Join(watches, ""))
	b.WriteString("routes:\n")
	fmt.Fprintf(&b, "- {name: all, watches: [%s], sinks: [main]}\n", strings.Join(names, ", "))
	fmt.Fprintf(&b, "- {name: too, watches: [%s], sinks: [flaky%s]}\n", strings.Join(names, ", "), map[bool]string{true: ", guest"}[s.guest])
	if s.calm > 0 {
		fmt.Fprintf(&b, "- {name: calm, watches: [%s], throttle: {per: %ds}, sinks: [calm]}\n", strings.Join(names, ", "), s.calm)
	} else {
		fmt.Fprintf(&b, "- {name: calm, watches: [%s], sinks: [calm]}\n", strings.Join(names, ", "))
	}
	if s.chosen {
		b.WriteString("- {name: chosen, watches: [chosen], sinks: [chosen]}\n")
	}
	if s.red && s.redder {
		b.WriteString("- {name: red, watches: [red], sinks: [red, main]}\n")
	} else if s.red {
		b.WriteString("- {name: red, watches: [red], sinks: [red]}\n")
	}
	if s.pinned {
		b.WriteString("- {name: pinned, watches: [pinned], sinks: [pinned]}\n")
	}
	if s.lonely {
		fmt.Fprintf(&b, "- {name: lonely, watches: [%s], events: [deleted], when: object.metadata.name == \"nobody\", sinks: [main]}\n", names[0])
	}
	b.WriteString("sinks:\n- {name: main, sim: {}}\n- {name: flaky, sim: {}, retry: {initial: 100ms, max: 10s, poisonAttempts: 1000}}\n- {name: calm, sim: {}}\n")
	if s.guest {
		b.WriteString("- {name: guest, sim: {}}\n")
	}
	if s.chosen {
		b.WriteString("- {name: chosen, sim: {}}\n")
	}
	if s.pinned {
		b.WriteString("- {name: pinned, sim: {}}\n")
	}
	if s.red {
		b.WriteString("- {name: red, sim: {}}\n")
	}
	return b.String()
}
