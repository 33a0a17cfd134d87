package rbac

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ServiceAccount is whom the permissions are for.
type ServiceAccount struct{ Namespace, Name string }

// roleName is the name of all its roles and bindings. It contains the namespace, which has
// no dot, so that two daemons of one cluster do not share any, and none has the name of a role of Kubernetes, such as admin.
func (s ServiceAccount) roleName() string {
	if (s == ServiceAccount{"watcherd", "watcherd"}) {
		return s.Name
	}
	return s.Namespace + "." + s.Name
}

// WriteManifest writes the roles and bindings that grant the needs to a service
// account, as YAML documents: a ClusterRole for what is needed in the whole
// cluster, and a Role for each namespace. needs are as [Needs] returns them.
func WriteManifest(w io.Writer, needs []Need, to ServiceAccount) error {
	p := &printer{}
	for i, part := range byNamespace(needs) {
		if i > 0 {
			p.line("---")
		}
		p.role(part, to)
		p.line("---")
		p.binding(part[0].Namespace, to)
	}
	_, err := io.WriteString(w, p.b.String())
	return err
}

// WriteAccount writes the service account and its namespace, as YAML documents that others
// follow.
func WriteAccount(w io.Writer, a ServiceAccount) error {
	_, err := fmt.Fprintf(w, "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: %[1]s\n---\n"+
		"apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: %[2]s\n  namespace: %[1]s\n---\n", scalar(a.Namespace), scalar(a.Name))
	return err
}

// WriteRules writes the needs as the rules of roles, a list for each role that
// they belong to.
func WriteRules(w io.Writer, needs []Need) error {
	p := &printer{}
	for _, part := range byNamespace(needs) {
		if ns := part[0].Namespace; ns == "" {
			p.line("# in a ClusterRole")
		} else {
			p.line("# in a Role in namespace %s", ns)
		}
		p.rules(part)
	}
	_, err := io.WriteString(w, p.b.String())
	return err
}

func byNamespace(needs []Need) [][]Need {
	var parts [][]Need
	for len(needs) > 0 {
		n := slices.IndexFunc(needs, func(other Need) bool { return other.Namespace != needs[0].Namespace })
		if n < 0 {
			n = len(needs)
		}
		parts = append(parts, needs[:n])
		needs = needs[n:]
	}
	return parts
}

type printer struct{ b strings.Builder }

func (p *printer) line(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

func (p *printer) role(needs []Need, to ServiceAccount) {
	p.head("Role", needs[0].Namespace, to)
	p.line("rules:")
	p.rules(needs)
}

func (p *printer) binding(namespace string, to ServiceAccount) {
	p.head("RoleBinding", namespace, to)
	p.line("roleRef:")
	p.line("  apiGroup: rbac.authorization.k8s.io")
	p.line("  kind: %s", kindIn("Role", namespace))
	p.line("  name: %s", scalar(to.roleName()))
	p.line("subjects:")
	p.line("- kind: ServiceAccount")
	p.line("  name: %s", scalar(to.Name))
	p.line("  namespace: %s", scalar(to.Namespace))
}

func (p *printer) head(kind, namespace string, to ServiceAccount) {
	p.line("apiVersion: rbac.authorization.k8s.io/v1")
	p.line("kind: %s", kindIn(kind, namespace))
	p.line("metadata:")
	p.line("  name: %s", scalar(to.roleName()))
	if namespace != "" {
		p.line("  namespace: %s", scalar(namespace))
	}
}

func kindIn(kind, namespace string) string {
	if namespace == "" {
		return "Cluster" + kind
	}
	return kind
}

// rules joins neighbours that differ in the resource alone.
func (p *printer) rules(needs []Need) {
	comment := ""
	for len(needs) > 0 {
		n := 1
		for n < len(needs) && joins(&needs[0], &needs[n]) {
			n++
		}
		if c := commentOf(&needs[0]); c != comment {
			comment = c
			p.line("# %s", c)
		}
		resources := make([]string, n)
		for i := range resources {
			resources[i] = needs[i].Resource
		}
		first := &needs[0]
		p.line("- apiGroups: %s", list(first.Group))
		p.line("  resources: %s", list(resources...))
		if first.Name != "" {
			p.line("  resourceNames: %s", list(first.Name))
		}
		p.line("  verbs: %s", list(first.Verbs...))
		needs = needs[n:]
	}
}

func joins(a, b *Need) bool {
	return a.Group == b.Group && a.Name == b.Name && slices.Equal(a.Verbs, b.Verbs) && commentOf(a) == commentOf(b)
}

func commentOf(n *Need) string {
	what := n.Reason
	if len(n.Watches) > 0 {
		what = "watch " + strings.Join(n.Watches, ", ")
		if n.Reason != "" {
			what += ", which " + n.Reason
		}
	}
	if n.Optional {
		what = "optional: " + what
	}
	if n.Resource == wildcard && (n.Group == wildcard || n.Group == "") {
		what += "; this includes Secrets"
	}
	return what
}

func list(items ...string) string {
	quoted := make([]string, len(items))
	for i, s := range items {
		quoted[i] = scalar(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

var plainScalar = regexp.MustCompile(`^[a-z][a-z0-9.-]*$`)

// scalar writes a string so that YAML of any version reads a string.
func scalar(s string) string {
	if plainScalar.MatchString(s) && !slices.Contains([]string{"null", "true", "false", "yes", "no", "on", "off", "y", "n"}, s) {
		return s
	}
	return strconv.Quote(s)
}

// Rule is a permission for one resource.
type Rule struct {
	Group    string // "*": every group
	Resource string // "*": every resource
	Name     string // of the one object it is limited to; "": any

	Namespace string // "": the whole cluster
	Verbs     []string
}

// Need is a rule and what it is for.
type Need struct {
	Rule
	Watches  []string // names of the watches that need it, sorted
	Reason   string   // why, where a watch does not say it all; "": its watches read the resource
	Optional bool     // the daemon works without it; see Reason
}

// covers reports whether r grants everything that other grants.
func (r *Rule) covers(other *Rule) bool {
	return (r.Namespace == "" || r.Namespace == other.Namespace) &&
		(r.Group == wildcard || r.Group == other.Group) &&
		(r.Resource == wildcard || r.Resource == other.Resource) &&
		(r.Name == "" || r.Name == other.Name) &&
		!slices.ContainsFunc(other.Verbs, func(v string) bool { return !slices.Contains(r.Verbs, v) })
}

// wildcard is RBAC's word for everything.
const wildcard = "*"

// least leaves out the needs that others cover, which then name the watches of
// both, and brings the rest into order.
func least(needs []Need) []Need {
	// The widest come first, so that one pass finds what each is covered by.
	slices.SortStableFunc(needs, func(a, b Need) int {
		return cmp.Or(compareWidth(a, b), compare(a, b))
	})
	var kept []Need
	for _, n := range needs {
		i := slices.IndexFunc(kept, func(k Need) bool { return k.covers(&n.Rule) && (!k.Optional || n.Optional) })
		if i < 0 {
			n.Watches = slices.Clone(n.Watches)
			kept = append(kept, n)
			continue
		}
		kept[i].Watches = append(kept[i].Watches, n.Watches...)
	}
	for i := range kept {
		slices.Sort(kept[i].Watches)
		kept[i].Watches = slices.Compact(kept[i].Watches)
	}
	slices.SortStableFunc(kept, compare)
	return kept
}

// compareWidth puts rules before those that they may cover.
func compareWidth(a, b Need) int {
	width := func(n Need) int {
		w := 0
		for _, narrow := range []bool{n.Optional, n.Name != "", n.Namespace != "", n.Resource != wildcard, n.Group != wildcard} {
			if narrow {
				w++
			}
		}
		return w - len(n.Verbs)
	}
	return cmp.Compare(width(a), width(b))
}

// compare is the order in which rules are printed.
func compare(a, b Need) int {
	return cmp.Or(
		strings.Compare(a.Namespace, b.Namespace),
		compareBool(a.Optional, b.Optional),
		strings.Compare(a.Group, b.Group),
		strings.Compare(a.Resource, b.Resource),
		strings.Compare(a.Name, b.Name),
		strings.Compare(a.Reason, b.Reason),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// String formats the rule as the server does in a refusal.
func (r *Rule) String() string {
	s := strings.Join(r.Verbs, " or ") + " " + r.Resource
	if r.Group != "" {
		s += "." + r.Group
	}
	if r.Name != "" {
		s += " named " + r.Name
	}
	if r.Namespace == "" {
		return s + " in the whole cluster"
	}
	return s + " in namespace " + r.Namespace
}
