package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// settings are what a reload changes. Sinks main and flaky are to get everything,
// whatever the settings are; sink chosen gets the pods of namespaces of tier x.
type settings struct {
	names   int  // of the watches: a reload renames them
	split   bool // the one watch of everything is two
	noise   bool // noise is dropped
	secret  bool // the secret is redacted
	chosen  bool // the watch by namespace selector exists
	lonely  bool // a route that nothing comes through exists
	allows  bool // the watches of everything have a namespace selector that matches all
	reverse bool // the order of the watches in the file
}

func (s *settings) change(r *rand.Rand) string {
	switch r.IntN(8) {
	case 0:
		s.names++
		return "rename the watches"
	case 1:
		s.split = !s.split
		return fmt.Sprint("split ", s.split)
	case 2:
		s.noise = !s.noise
		return fmt.Sprint("drop noise ", s.noise)
	case 3:
		s.secret = !s.secret
		return fmt.Sprint("redact the secret ", s.secret)
	case 4:
		s.chosen = !s.chosen
		return fmt.Sprint("watch by namespace selector ", s.chosen)
	case 5:
		s.lonely = !s.lonely
		return fmt.Sprint("lonely route ", s.lonely)
	case 6:
		s.reverse = !s.reverse
		return fmt.Sprint("reverse ", s.reverse)
	default:
		s.allows = !s.allows
		return fmt.Sprint("namespace selector that matches all ", s.allows)
	}
}

func (s *settings) yaml() string {
	var b strings.Builder
	b.WriteString(`apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {minFree: 64Mi}
admin: {listen: ""}
`)
	edits := "  drop: [metadata.managedFields"
	if s.noise {
		edits += ", spec.noise"
	}
	edits += "]\n"
	if s.secret {
		edits += "  redact: [spec.secret]\n"
	}
	all := ""
	if s.allows {
		all = "  namespaces: {selector: \"tier in (x, y)\"}\n"
	}
	// Nodes are in no namespace, which a watch with a namespace selector leaves out.
	list := [][2]string{{"n", "[nodes]"}, {"w", "[pods, widgets.example.com]"}}
	if s.split {
		list = [][2]string{{"n", "[nodes]"}, {"w", "[widgets.example.com]"}, {"p", "[pods]"}}
	}
	var watches, names []string
	for _, w := range list {
		name := fmt.Sprintf("%s%d", w[0], s.names)
		names = append(names, name)
		text := fmt.Sprintf("- name: %s\n  resources: %s\n%s", name, w[1], edits)
		if w[0] != "n" {
			text += all
		}
		watches = append(watches, text)
	}
	if s.chosen {
		watches = append(watches, "- name: chosen\n  resources: [pods]\n  namespaces: {selector: tier=x}\n"+edits)
	}
	if s.reverse {
		for i, j := 0, len(watches)-1; i < j; i, j = i+1, j-1 {
			watches[i], watches[j] = watches[j], watches[i]
		}
	}
	b.WriteString("watches:\n" + strings.Join(watches, ""))
	b.WriteString("routes:\n")
	fmt.Fprintf(&b, "- {name: all, watches: [%s], sinks: [main]}\n", strings.Join(names, ", "))
	fmt.Fprintf(&b, "- {name: too, watches: [%s], sinks: [flaky]}\n", strings.Join(names, ", "))
	if s.chosen {
		b.WriteString("- {name: chosen, watches: [chosen], sinks: [chosen]}\n")
	}
	if s.lonely {
		fmt.Fprintf(&b, "- {name: lonely, watches: [%s], events: [deleted], when: object.spec.n < 0, sinks: [main]}\n", names[0])
	}
	b.WriteString("sinks:\n- {name: main, sim: {}}\n- {name: flaky, sim: {}, retry: {initial: 100ms, max: 2s}}\n")
	if s.chosen {
		b.WriteString("- {name: chosen, sim: {}}\n")
	}
	return b.String()
}
