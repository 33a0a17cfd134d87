package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// TestErrorsAUserCanActOn starts the daemon in ways that cannot work and reads
// what it says.
func TestErrorsAUserCanActOn(t *testing.T) {
	c := testcluster.Shared(t)
	for _, tc := range []struct {
		name       string
		config     string
		kubeconfig string
		code       int
		says       []string
	}{
		{
			name:       "a key that does not exist",
			config:     strings.Replace(feedConfig("default"), "watches:", "watchs:", 1),
			kubeconfig: c.Kubeconfig,
			code:       2,
			says:       []string{"watcherd.yaml:7:1", "watchs", "watches"},
		},
		{
			name:       "a route to a sink that does not exist",
			config:     strings.Replace(feedConfig("default"), "sinks: [archive]", "sinks: [archiv]", 1),
			kubeconfig: c.Kubeconfig,
			code:       2,
			says:       []string{"routes[0].sinks[0]", "archiv"},
		},
		{
			name:       "no such kubeconfig",
			config:     feedConfig("default"),
			kubeconfig: "/does/not/exist",
			code:       1,
			says:       []string{"kubeconfig", "/does/not/exist"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDaemon(t, tc.kubeconfig, tc.config)
			d.start()
			if code := d.wait(); code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			for _, want := range tc.says {
				if !strings.Contains(d.log.String(), want) {
					t.Errorf("the output doesn't say %q:\n%s", want, d.log)
				}
			}
		})
	}
}

// TestDegradedWatches has one resource that is forbidden and one that does not
// exist beside one that works. The last one works.
func TestDegradedWatches(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	c.Apply(t, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: %[1]s}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s-reader}]
`, ns))
	d := newDaemon(t, c.UserKubeconfig(t, ns+"-reader"), fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {path: ./data}
admin: {listen: ""}
watches:
- {name: allowed, resources: [configmaps], namespaces: {include: [%[1]s]}}
- {name: forbidden, resources: [secrets], namespaces: {include: [%[1]s]}}
- {name: absent, resources: [gadgets.example.org]}
sinks:
- {name: archive, file: {path: "./events/{resource}.jsonl"}}
`, ns))
	w := newClient(t, c, ns)
	d.start()
	eventually(t, func() bool {
		log := d.log.String()
		return strings.Contains(log, "secrets") && strings.Contains(log, "forbidden") && strings.Contains(log, "gadgets.example.org")
	}, func() string { return "the log doesn't name what is missing:\n" + d.log.Tail() })
	w.settleAll(d.path("events"), kinds[0])
	d.stop()
}
