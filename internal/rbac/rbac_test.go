package rbac

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authorization "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/stdout"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// state compiles watches with a sink for all.
func state(t testing.TB, watches string) *plan.State {
	t.Helper()
	text := "apiVersion: watcherd.dev/v1alpha1\nkind: WatcherConfig\nwatches:\n" + watches + "\nsinks:\n- {name: console, stdout: {}}\n"
	c, err := config.Parse("test.yaml", []byte(text), config.Kinds{"stdout": func() any { return sinks.Config(stdout.NewConfig()) }})
	if err != nil {
		t.Fatal(err)
	}
	st, err := plan.Compile(c)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// TestManifests compares what is printed with golden files.
func TestManifests(t *testing.T) {
	for _, tc := range []struct {
		name, watches string
		find          Finder
	}{
		{"cluster", `- {name: all, resources: [pods, deployments.v1.apps, nodes, widgets.example.com]}`, Offline{}},
		{"namespaces", `- {name: team, resources: [po, secrets, nodes, "*.example.com"], namespaces: {include: [team-b, team-a, "123"]}}`, Offline{}},
		{"patterns", `- {name: team, resources: [pods], namespaces: {include: ["team-*"]}}`, Offline{}},
		{"selector", `- {name: prod, resources: [pods, namespaces], namespaces: {selector: env=prod}}`, Offline{}},
		{"everything", "- {name: some, resources: [pods], namespaces: {include: [one]}}\n- {name: all, resources: [\"*\"]}", Offline{}},
		{"overlap", "- {name: one, resources: [pods, configmaps], namespaces: {include: [one]}}\n- {name: all, resources: [pods]}", Offline{}},
		{"by-name", `- {name: one, resources: [configmaps], namespaces: {include: [one]}, fieldSelector: metadata.name=settings, selectorSide: server}`, Offline{}},
		{"served", "- {name: all, resources: [\"*.example.com\", wd, gadgets.example.org]}\n- {name: one, resources: [gizmos.example.com, wd], namespaces: {include: [one]}}", Served{served}},
		{"excluded", "- {name: all, resources: [\"*\", secrets.example.com], excludeResources: [secrets., events]}", Offline{}},
		{"excluded-served", "- {name: all, resources: [\"*.example.com\"], excludeResources: [wd]}", Served{served}},
		{"enrich", "- {name: team, resources: [pods, events], namespaces: {include: [one, two]}}\nroutes: [{name: r, enrich: [owner, involvedObject], sinks: [console]}]", Offline{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			needs, err := Needs(state(t, tc.watches), tc.find)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := WriteManifest(&got, needs, ServiceAccount{"monitoring", "watcherd"}); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", tc.name+".yaml")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("%s differs; go test -update rewrites it. It is now\n%s", file, &got)
			}
			readable(t, got.String(), needs)
		})
	}
}

// TestRolesAreOfOneAccount: the roles of two service accounts have different names, since the ones of the second would take the place of the
// first's.
func TestRolesAreOfOneAccount(t *testing.T) {
	a, b := ServiceAccount{"team", "a-watcherd"}, ServiceAccount{"team-a", "watcherd"}
	if a.roleName() == b.roleName() {
		t.Errorf("%v and %v share %s", a, b, a.roleName())
	}
	// Kubernetes puts back the rules of its own, to which the account would be bound.
	for _, name := range []string{"cluster-admin", "admin", "edit", "view"} {
		if role := (ServiceAccount{name, name}).roleName(); role == name {
			t.Errorf("the account has the ClusterRole %s of Kubernetes", role)
		}
	}
}

// readable reads the manifest as Kubernetes would and compares it with the needs.
func readable(t *testing.T, manifest string, needs []Need) {
	t.Helper()
	granted := map[string]bool{}
	for doc := range strings.SplitSeq(manifest, "---\n") {
		var role v1.Role
		if strings.Contains(doc, "Binding\n") {
			var binding v1.RoleBinding
			if err := yaml.UnmarshalStrict([]byte(doc), &binding); err != nil {
				t.Fatal(err)
			}
			if s := binding.Subjects; len(s) != 1 || s[0].Name != "watcherd" || s[0].Namespace != "monitoring" || binding.RoleRef.Name != "monitoring.watcherd" {
				t.Errorf("binding is %+v", binding)
			}
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(doc), &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				r := Rule{Group: rule.APIGroups[0], Resource: resource, Name: strings.Join(rule.ResourceNames, ","), Namespace: role.Namespace, Verbs: rule.Verbs}
				granted[r.String()] = true
			}
		}
	}
	for _, n := range needs {
		if !granted[n.Rule.String()] {
			t.Errorf("the manifest does not grant %s", n.Rule.String())
		}
		delete(granted, n.Rule.String())
	}
	if len(granted) > 0 {
		t.Errorf("the manifest grants too much: %v", granted)
	}
}

// served is a cluster with a custom group and no gadgets.
var served = resolver{
	"*.example.com":      {{GVR: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}, Namespaced: true}, {GVR: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gizmos"}}},
	"gizmos.example.com": {{GVR: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gizmos"}}},
	"wd":                 {{GVR: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}, Namespaced: true}},
}

type resolver map[string][]dynamicfactory.Resource

func (r resolver) Resolve(pattern string) ([]dynamicfactory.Resource, error) {
	if found, ok := r[pattern]; ok {
		return found, nil
	}
	return nil, fmt.Errorf("%w %q", dynamicfactory.ErrNotServed, pattern)
}

func TestNameWithoutGroup(t *testing.T) {
	_, err := Needs(state(t, `- {name: a, resources: [widgets, pods]}`), Offline{})
	if err == nil || !strings.Contains(err.Error(), "watch a: resource widgets: its group is not known") {
		t.Errorf("error is %v", err)
	}
}

func TestOfflineNames(t *testing.T) {
	for pattern, want := range map[string]Resource{
		"pods":                       {Name: "pods", Scope: ScopeNamespaced},
		"pod.v1":                     {Name: "pods", Scope: ScopeNamespaced},
		"deploy":                     {Group: "apps", Name: "deployments", Scope: ScopeNamespaced},
		"deployments.v1.apps":        {Group: "apps", Name: "deployments", Scope: ScopeNamespaced},
		"events":                     {Name: "events", Scope: ScopeNamespaced},
		"events.events.k8s.io":       {Group: "events.k8s.io", Name: "events", Scope: ScopeNamespaced},
		"pc":                         {Group: "scheduling.k8s.io", Name: "priorityclasses", Scope: ScopeCluster},
		"widgets.v1beta1.example.io": {Group: "example.io", Name: "widgets", Custom: true},
		"*.apps":                     {Group: "apps", Name: "*", Custom: true},
		"*":                          {Group: "*", Name: "*", Custom: true},
	} {
		got, err := Offline{}.Find(pattern)
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s is %+v, %v; want %+v", pattern, got, err, want)
		}
	}
}

// reviewer grants what it holds.
type reviewer map[string]bool

func (r reviewer) Create(_ context.Context, q *authorization.SelfSubjectAccessReview, _ metav1.CreateOptions) (*authorization.SelfSubjectAccessReview, error) {
	a := q.Spec.ResourceAttributes
	if a.Resource == "broken" {
		return nil, errors.New("no answer")
	}
	q.Status.Allowed = r[strings.Join([]string{a.Verb, a.Resource, a.Group, a.Namespace, a.Name}, "/")]
	return q, nil
}

func TestMissingRules(t *testing.T) {
	needs, err := Needs(state(t, `- {name: team, resources: [pods, jobs.batch], namespaces: {include: [one, two]}}`), Offline{})
	if err != nil {
		t.Fatal(err)
	}
	missing, err := Missing(t.Context(), reviewer{
		"list/pods///one": false, "list/pods//one/": true, "watch/pods//one/": true,
		"list/jobs/batch/one/": true, "list/jobs/batch/two/": true, "watch/jobs/batch/two/": true,
		"list/namespaces///kube-system": true, "list/namespaces///one": true, "list/namespaces///two": true,
	}, needs)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := WriteRules(&got, missing); err != nil {
		t.Fatal(err)
	}
	want := `# in a Role in namespace one
# watch team
- apiGroups: [batch]
  resources: [jobs]
  verbs: [watch]
# in a Role in namespace two
# watch team
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
`
	if got.String() != want {
		t.Errorf("missing are\n%s\nwant\n%s", &got, want)
	}
	if len(needs[0].Verbs) == 0 {
		t.Error("the needs were changed")
	}
	if _, err := Missing(t.Context(), reviewer{}, []Need{{Rule: Rule{Resource: "broken", Verbs: []string{"list"}}}}); err == nil || !strings.Contains(err.Error(), "list on broken") {
		t.Errorf("error is %v", err)
	}
}
