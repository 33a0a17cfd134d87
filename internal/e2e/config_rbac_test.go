package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// command runs a subcommand of the real binary to its end.
func command(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs strings.Builder
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() < 0 {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// account is a service account with nothing but what was applied for it.
type account struct{ namespace, name string }

func (a account) user() string { return "system:serviceaccount:" + a.namespace + ":" + a.name }

// grant applies what `watcherd rbac` prints for the daemon's config.
func (a account) grant(t testing.TB, c *testcluster.Cluster, d *daemon, args ...string) []*unstructured.Unstructured {
	t.Helper()
	args = append([]string{"rbac", "--config", d.path("watcherd.yaml"), "--service-account", a.name, "--namespace", a.namespace}, args...)
	out, errs, code := command(t, args...)
	if code != 0 {
		t.Fatalf("rbac: exit code %d: %s", code, errs)
	}
	return c.Apply(t, out)
}

// watchConfig is a config with these watches and one file a resource.
func watchConfig(watches string) string {
	return fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data}
admin: {listen: ""}
watches:
%s
sinks:
- name: archive
  file: {path: "./events/{resource}.jsonl"}
`, watches)
}

// TestLeastPermissions runs the daemon as a service account that holds exactly
// what `watcherd rbac` printed. All that is watched arrives, and nothing is
// refused.
func TestLeastPermissions(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	for _, tc := range []struct {
		name    string
		watches string // NS is the namespace
		args    []string
		kinds   []kind
		roles   string // kinds of what is applied
		quiet   bool   // refusals are expected: optional rules were left out
	}{
		{
			name:    "a namespace",
			watches: "- {name: a, resources: [configmaps, pods], namespaces: {include: [NS]}}",
			kinds:   kinds[:2], roles: "ClusterRole ClusterRoleBinding Role RoleBinding",
		},
		{
			name:    "a namespace without optional rules",
			watches: "- {name: a, resources: [cm, pods, widgets.example.com], namespaces: {include: [NS]}}",
			args:    []string{"--optional=false"},
			kinds:   []kind{kinds[0], kinds[1], kinds[3]}, roles: "Role RoleBinding", quiet: true,
		},
		{
			name:    "the cluster",
			watches: "- {name: a, resources: [configmaps, deployments.v1.apps, widgets.example.com]}",
			kinds:   []kind{kinds[0], kinds[2], kinds[3]}, roles: "ClusterRole ClusterRoleBinding",
		},
		{
			name:    "patterns of namespaces",
			watches: `- {name: a, resources: [pods], namespaces: {include: ["test-*"]}}`,
			kinds:   kinds[1:2], roles: "ClusterRole ClusterRoleBinding",
		},
		{
			name:    "namespaces by label",
			watches: `- {name: a, resources: [pods], namespaces: {selector: "kubernetes.io/metadata.name=NS"}}`,
			kinds:   kinds[1:2], roles: "ClusterRole ClusterRoleBinding",
		},
		{
			name:    "a group",
			watches: `- {name: a, resources: ["*.example.com", "*.apps"], namespaces: {include: [NS]}}`,
			kinds:   kinds[2:4], roles: "ClusterRole ClusterRoleBinding Role RoleBinding",
		},
		{
			name:    "everything, by what is served",
			watches: `- {name: a, resources: ["*"]}`,
			args:    []string{"--kubeconfig", c.Kubeconfig},
			kinds:   kinds, roles: "ClusterRole ClusterRoleBinding",
		},
		{
			name:    "everything",
			watches: `- {name: a, resources: ["*"]}`,
			kinds:   kinds, roles: "ClusterRole ClusterRoleBinding",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ns := c.Namespace(t)
			a := account{ns, "reader"}
			d := newDaemon(t, c.UserKubeconfig(t, a.user()), watchConfig(strings.ReplaceAll(tc.watches, "NS", ns)))
			var roles []string
			for _, u := range a.grant(t, c, d, tc.args...) {
				roles = append(roles, u.GetKind())
			}
			if got, want := strings.Join(roles, " "), "Namespace ServiceAccount "+tc.roles; got != want {
				t.Errorf("applied %s, want %s", got, want)
			}
			out, errs, code := command(t, "validate", "--config", d.path("watcherd.yaml"), "--kubeconfig", d.kubeconfig, "--server")
			if code != 0 || !strings.Contains(out, a.user()) || strings.Contains(out, "missing rules") != tc.quiet {
				t.Errorf("validate: exit code %d: %s%s", code, out, errs)
			}
			d.start()
			newClient(t, c, ns).settle(d.path("events"), tc.kinds...)
			d.stop()
			if log := d.log.String(); strings.Contains(log, "orbidden") {
				t.Errorf("something was refused:\n%s", log)
			}
		})
	}
}

// TestMissingPermission takes one verb away. The watch that needs it degrades and
// says what it may not; `watcherd validate --server` prints the rule; the others
// go on; and when the rule is back the watch catches up.
func TestMissingPermission(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	for _, tc := range []struct {
		name, watches, verb, says, rule string // NS is the namespace
	}{
		{
			name:    "list in a namespace",
			watches: "- {name: gone, resources: [widgets.example.com], namespaces: {include: [NS]}}",
			verb:    "list",
			says:    `cannot list resource \"widgets\" in API group \"example.com\" in the namespace \"NS\"`,
			rule:    "# in a Role in namespace NS\n# watch gone\n- apiGroups: [example.com]\n  resources: [widgets]\n  verbs: [list]\n",
		},
		{
			name:    "watch in the cluster",
			watches: "- {name: gone, resources: [widgets.example.com]}",
			verb:    "watch",
			says:    `cannot watch resource \"widgets\" in API group \"example.com\" at the cluster scope`,
			rule:    "# in a ClusterRole\n# watch gone\n- apiGroups: [example.com]\n  resources: [widgets]\n  verbs: [watch]\n",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := c.Namespace(t)
			in := func(s string) string { return strings.ReplaceAll(s, "NS", ns) }
			a := account{ns, "reader"}
			d := newDaemon(t, c.UserKubeconfig(t, a.user()), watchConfig(in(tc.watches+"\n- {name: fine, resources: [configmaps], namespaces: {include: [NS]}}")))
			var full string
			for _, u := range a.grant(t, c, d) {
				if less, ok := withoutVerb(t, u, "widgets", tc.verb); ok {
					full = manifest(t, u)
					c.Apply(t, manifest(t, less))
				}
			}
			if full == "" {
				t.Fatal("no rule to take away")
			}

			out, errs, code := command(t, "validate", "--config", d.path("watcherd.yaml"), "--kubeconfig", d.kubeconfig, "--server")
			if code != 1 || !strings.Contains(out, in(tc.rule)) {
				t.Errorf("validate: exit code %d: %s%s\nwant %s", code, out, errs, in(tc.rule))
			}

			w := newClient(t, c, ns)
			d.start()
			w.settle(d.path("events"), kinds[0])
			eventually(t, func() bool { return strings.Contains(d.log.String(), in(tc.says)) },
				func() string { return "the log doesn't say " + in(tc.says) })
			c.Apply(t, full)
			w.settle(d.path("events"), kinds[3])
			d.stop()
		})
	}
}

// withoutVerb is a role without one verb for a resource; ok is false if the role
// does not have it.
func withoutVerb(t testing.TB, role *unstructured.Unstructured, resource, verb string) (less *unstructured.Unstructured, ok bool) {
	t.Helper()
	less = role.DeepCopy()
	rules, _, err := unstructured.NestedSlice(less.Object, "rules")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		rule := r.(map[string]any)
		if !slices.Contains(rule["resources"].([]any), any(resource)) {
			continue
		}
		rule["verbs"] = slices.DeleteFunc(rule["verbs"].([]any), func(v any) bool { return v == verb })
		ok = true
	}
	if err := unstructured.SetNestedSlice(less.Object, rules, "rules"); ok && err != nil {
		t.Fatal(err)
	}
	return less, ok
}

// manifest is an object to apply again.
func manifest(t testing.TB, u *unstructured.Unstructured) string {
	t.Helper()
	u = u.DeepCopy()
	u.SetManagedFields(nil)
	u.SetResourceVersion("")
	u.SetUID("")
	b, err := yaml.Marshal(u.Object)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRBACNeedsAGroup(t *testing.T) {
	d := newDaemon(t, "", watchConfig("- {name: a, resources: [widgets]}"))
	_, errs, code := command(t, "rbac", "--config", d.path("watcherd.yaml"))
	if code != 1 || !strings.Contains(errs, "watch a: resource widgets: its group is not known") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// TestExamplesPermissions runs every example, with files for sinks, as a service
// account with what `watcherd rbac` prints for it: all watches sync, and nothing
// is refused.
func TestExamplesPermissions(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	// What the examples watch besides.
	for _, names := range [][3]string{
		{"Application", "application", "argoproj.io"}, {"Certificate", "certificate", "cert-manager.io"}, {"Order", "order", "acme.cert-manager.io"},
	} {
		c.Apply(t, strings.NewReplacer("Widget", names[0], "widget", names[1], "example.com", names[2]).Replace(widgetCRD))
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			a := account{c.Namespace(t), "reader"}
			d := newDaemon(t, c.UserKubeconfig(t, a.user()), withFileSinks(t, file))
			a.grant(t, c, d)
			d.start()
			eventually(t, func() bool {
				log := d.log.String()
				started := strings.Count(log, "watch started")
				return started > 0 && strings.Contains(log, "watcherd is running") && strings.Count(log, "watch synced") == started
			}, func() string { return "not all watches synced:\n" + d.log.Tail() })
			d.stop()
			if log := d.log.String(); strings.Contains(log, "orbidden") {
				t.Errorf("something was refused:\n%s", log)
			}
		})
	}
}

// withFileSinks is a config with its own watches and routes, and files for sinks.
func withFileSinks(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	config["store"] = map[string]any{"path": "./data"}
	config["admin"] = map[string]any{"listen": ""}
	for i, s := range config["sinks"].([]any) {
		name := s.(map[string]any)["name"].(string)
		config["sinks"].([]any)[i] = map[string]any{
			"name": name, "file": map[string]any{"path": "./events/" + name + "-{resource}.jsonl"},
		}
	}
	out, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
