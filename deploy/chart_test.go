package deploy

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/watcherd/watcherd/internal/testcluster"
)

const chart = "helm/watcherd"

// ownConfig is a configuration as a user would set it, with what it needs.
const ownConfig = `
config: |
  apiVersion: watcherd.dev/v1alpha1
  kind: WatcherConfig
  admin: {probes: ":9000"}
  watches:
  - {name: maps, resources: [configmaps], namespaces: {include: [default]}}
  sinks:
  - name: ops
    webhook: {url: "https://ops.example.com", bearerToken: {env: OPS_TOKEN}, tls: {caFile: /etc/ops/ca.pem}}
rbac:
  namespaceRules:
    default:
    - {apiGroups: [""], resources: [configmaps], verbs: [list, watch]}
probes: {port: 9000}
`

// everything uses each value that adds to the manifests.
const everything = ownConfig + `
image: {repository: registry.example.com/watcherd, digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000", pullPolicy: Always}
imagePullSecrets: [{name: pull}]
nameOverride: cdc
persistence: {size: 50Gi, storageClass: fast, accessModes: [ReadWriteOnce], annotations: {a: b}}
extraEnv: [{name: OPS_TOKEN, valueFrom: {secretKeyRef: {name: ops, key: token}}}]
extraEnvFrom: [{secretRef: {name: more, optional: true}}]
extraVolumes: [{name: ops, secret: {secretName: ops-ca}}]
extraVolumeMounts: [{name: ops, mountPath: /etc/ops, readOnly: true}]
extraArgs: [--log-level=debug]
serviceAccount: {name: reader, annotations: {a: b}}
podMonitor: {enabled: true, labels: {release: prometheus}, interval: 15s}
prometheusRule: {enabled: true, labels: {release: prometheus}}
networkPolicy:
  scrapers: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  extraIngress: [{ports: [{protocol: TCP, port: 8443}], from: [{podSelector: {matchLabels: {team: platform}}}]}]
  egress: [{ports: [{protocol: TCP, port: 443}, {protocol: UDP, port: 53}]}]
podAnnotations: {a: b}
podLabels: {team: platform}
nodeSelector: {disk: ssd}
tolerations: [{key: dedicated, operator: Exists, effect: NoSchedule}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [ssd]}]}]}}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {a: b}}}]
priorityClassName: system-cluster-critical
`

var values = map[string]string{
	"defaults":           "{}",
	"own configuration":  ownConfig,
	"everything":         everything,
	"existing ConfigMap": "existingConfigMap: mine\nrbac: {clusterRules: [{apiGroups: [''], resources: [pods], verbs: [list, watch]}]}",
	"existing claim":     "persistence: {existingClaim: mine}",
	"no volume":          "persistence: {enabled: false}\npodDisruptionBudget: {enabled: false}",
	"bare":               "rbac: {create: false}\nserviceAccount: {create: false}\nfullnameOverride: feed",
}

// TestChart renders the chart in every shape and has the API server check each
// object, whose fields must be ones that it knows.
func TestChart(t *testing.T) {
	helm, c := testcluster.Tool(t, "helm"), testcluster.Shared(t)
	c.Apply(t, operator)
	for name, text := range values {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			mustRun(t, helm, "lint", "--strict", "--values", file, chart)
			namespace := c.Namespace(t)
			rendered := mustRun(t, helm, "template", "demo", chart, "--namespace", namespace, "--values", file)
			c.Apply(t, rendered)
			c.Apply(t, restrictedPod(t, objects(t, rendered), c.Namespace(t)))
			mustRun(t, helm, "install", "demo", chart, "--dry-run=server", "--kubeconfig", c.Kubeconfig, "--namespace", c.Namespace(t), "--values", file)
		})
	}
}

// restrictedPod is the pod that the StatefulSet would make, in a namespace that takes
// only pods that keep to the restricted standard.
func restrictedPod(t *testing.T, rendered []*unstructured.Unstructured, namespace string) string {
	t.Helper()
	set := find(t, rendered, "StatefulSet")
	template, _, err := unstructured.NestedMap(set.Object, "spec", "template")
	if err != nil {
		t.Fatal(err)
	}
	pod := &unstructured.Unstructured{Object: template}
	pod.SetAPIVersion("v1")
	pod.SetKind("Pod")
	pod.SetName("watcherd-0")
	pod.SetNamespace(namespace)
	spec := template["spec"].(map[string]any)
	// These come from objects that are not there.
	delete(spec, "serviceAccountName")
	delete(spec, "priorityClassName")
	volumes, _ := spec["volumes"].([]any)
	claims, _, err := unstructured.NestedSlice(set.Object, "spec", "volumeClaimTemplates")
	if err != nil {
		t.Fatal(err)
	}
	if len(claims) > 0 {
		volumes = append(volumes, map[string]any{"name": "data", "persistentVolumeClaim": map[string]any{"claimName": "data-watcherd-0"}})
	}
	spec["volumes"] = volumes
	manifest, err := yaml.Marshal(pod.Object)
	if err != nil {
		t.Fatal(err)
	}
	return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + namespace + ", labels: {pod-security.kubernetes.io/enforce: restricted}}\n---\n" + string(manifest)
}

// TestValues checks that mistakes are told before anything is installed.
func TestValues(t *testing.T) {
	helm := testcluster.Tool(t, "helm")
	const noRoles = "rbac: {create: false}\n"
	for text, want := range map[string]string{
		"conifg: x":                                                   "conifg",
		"image: {tag: 1}":                                             "tag",
		"persistence: {size: big}":                                    "size",
		"persistence: {accessModes: [RWX]}":                           "accessModes",
		"rbac: {clusterRules: [{verbs: []}]}":                         "clusterRules",
		"config: {apiVersion: x}":                                     "config",
		"config: 'apiVersion: x'":                                     "rbac.clusterRules",
		noRoles + "config: 'apiVersion: x'":                           "admin.probes",
		noRoles + "config: 'admin: {probes: \":9000\"}'":              "set admin.probes to \":8081\", or probes.port",
		noRoles + "config: 'admin: {probes: \"127.0.0.1:8081\"}'":     "cannot reach",
		noRoles + "config: 'admin: {probes: \"[::1]:8081\"}'":         "cannot reach",
		noRoles + "config: 'a: b: c'":                                 "not YAML",
		"existingConfigMap: mine":                                     "rbac.clusterRules",
		"replicas: 2":                                                 "store.journal",
		noRoles + "replicas: 2\nconfig: 'admin: {probes: \":8081\"}'": "store.journal",
		"replicas: 2\npersistence: {existingClaim: mine}":             "existingClaim",
	} {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := run(t, helm, "template", "demo", chart, "--values", file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want an error about %s, got %v\n%s", text, want, err, out)
		}
	}
}

// TestShapes reads what values do to the manifests.
func TestShapes(t *testing.T) {
	helm := testcluster.Tool(t, "helm")
	render := func(args ...string) []*unstructured.Unstructured {
		t.Helper()
		return objects(t, mustRun(t, helm, append([]string{"template", "demo", chart, "--namespace", "monitoring"}, args...)...))
	}
	policy, _, err := unstructured.NestedFieldNoCopy(find(t, render(), "NetworkPolicy").Object, "spec")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := mustYAML(t, policy.(map[string]any)["ingress"]), "- ports:\n  - port: probes\n    protocol: TCP\n"; got != want {
		t.Errorf("others may connect to\n%swant\n%s", got, want)
	}

	pod := find(t, render("--set", "persistence.enabled=false,persistence.size=3Gi"), "StatefulSet").Object
	containers, _, err := unstructured.NestedSlice(pod, "spec", "template", "spec", "containers")
	if err != nil {
		t.Fatal(err)
	}
	requests, _, err := unstructured.NestedStringMap(containers[0].(map[string]any), "resources", "requests")
	if err != nil || requests["ephemeral-storage"] != "3Gi" || requests["cpu"] == "" {
		t.Errorf("without a volume the pod requests %v, %v", requests, err)
	}

	for _, tc := range []struct{ monitor, job string }{{"true", `job="monitoring/feed"`}, {"false", `job=~".*watcherd.*"`}} {
		rule := find(t, render("--set", "fullnameOverride=feed,prometheusRule.enabled=true,podMonitor.enabled="+tc.monitor), "PrometheusRule")
		if text := mustYAML(t, rule.Object); !strings.Contains(text, "up{"+tc.job+"} == 0 or absent(up{"+tc.job+"})") {
			t.Errorf("no alert on %s:\n%s", tc.job, text)
		}
	}
}

func mustYAML(t *testing.T, v any) string {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestInstall installs the chart, changes the configuration, which must not touch the
// pod, and uninstalls it, which must leave nothing of its own.
func TestInstall(t *testing.T) {
	helm, c := testcluster.Tool(t, "helm"), testcluster.Shared(t)
	namespace := c.Namespace(t)
	common := []string{"demo", chart, "--kubeconfig", c.Kubeconfig, "--namespace", namespace}
	notes := mustRun(t, helm, append([]string{"install"}, common...)...)
	if !strings.Contains(notes, "exec statefulset/demo-watcherd -- /usr/bin/watcherd status") {
		t.Errorf("the notes do not say how to see its status:\n%s", notes)
	}
	get := func(group, resource, name string) *unstructured.Unstructured {
		t.Helper()
		gvr := schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
		u, err := c.Dynamic(t).Resource(gvr).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	before := get("apps", "statefulsets", "demo-watcherd")
	content := get("", "configmaps", "demo-watcherd").Object["data"].(map[string]any)["watcherd.yaml"].(string)
	want, err := os.ReadFile(filepath.Join(chart, "files", "watcherd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(content) != strings.TrimSpace(string(want)) {
		t.Errorf("the ConfigMap holds\n%s", content)
	}

	file := filepath.Join(t.TempDir(), "values.yaml")
	changed := "rbac: {clusterRules: [{apiGroups: [''], resources: [pods], verbs: [list, watch]}]}\nconfig: |\n  # mine\n" + indent(content)
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	mustRun(t, helm, append([]string{"upgrade", "--values", file}, common...)...)
	if got := get("", "configmaps", "demo-watcherd").Object["data"].(map[string]any)["watcherd.yaml"].(string); !strings.HasPrefix(got, "# mine\n") {
		t.Errorf("the ConfigMap was not changed:\n%s", got)
	}
	after := get("apps", "statefulsets", "demo-watcherd")
	if !reflect.DeepEqual(before.Object["spec"], after.Object["spec"]) {
		t.Errorf("a new configuration restarts the pod: it was\n%v\nand is\n%v", before.Object["spec"], after.Object["spec"])
	}
	mustRun(t, helm, "uninstall", "demo", "--kubeconfig", c.Kubeconfig, "--namespace", namespace)
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("  " + line)
	}
	return b.String()
}
