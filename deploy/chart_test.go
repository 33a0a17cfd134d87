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

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
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

// twoFeeds are two feeds of two replicas each.
const twoFeeds = `
replicas: 2
config: |
  cluster: {name: prod}
  admin: {probes: ":8081"}
  store:
    maxBytes: 20Gi
    journal: {nats: {urls: ["nats://nats:4222"]}, stream: WATCHERD, encryptionKey: {env: JOURNAL_KEY}}
  sinks:
  - name: bus
    nats: {url: "nats://nats:4222", subject: "k8s.{cluster}.{resource}", jetstream: {stream: K8S}}
    batch: {maxEvents: 1000}
feeds:
  pods:
    config: {watches: [{name: pods, resources: [pods]}]}
    clusterRules: [{apiGroups: [""], resources: [pods], verbs: [list, watch]}]
    resources: {limits: {memory: 4Gi}}
    size: 50Gi
  rest:
    config:
      watches: [{name: rest, resources: ["*"], excludeResources: [pods, secrets]}]
      sinks: [{name: console, stdout: {}}]
    clusterRules: [{apiGroups: ["*"], resources: ["*"], verbs: [list, watch]}]
podMonitor: {enabled: true}
prometheusRule: {enabled: true}
`

var values = map[string]string{
	"defaults":           "{}",
	"own configuration":  ownConfig,
	"everything":         everything,
	"existing ConfigMap": "existingConfigMap: mine\nrbac: {clusterRules: [{apiGroups: [''], resources: [pods], verbs: [list, watch]}]}",
	"existing claim":     "persistence: {existingClaim: mine}",
	"no volume":          "persistence: {enabled: false}\npodDisruptionBudget: {enabled: false}",
	"feeds":              twoFeeds,
	"agent of a fleet":   agentOfAFleet(),
	"bare":               "rbac: {create: false}\nserviceAccount: {create: false}\nfullnameOverride: feed",
}

// agentOfAFleet are the values of the example.
func agentOfAFleet() string {
	text, err := os.ReadFile("../examples/fleet/values.yaml")
	if err != nil {
		panic(err)
	}
	return string(text)
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
			for _, u := range objects(t, rendered) {
				if u.GetKind() == "StatefulSet" {
					c.Apply(t, restrictedPod(t, u, c.Namespace(t)))
				}
			}
			mustRun(t, helm, "install", "demo", chart, "--dry-run=server", "--kubeconfig", c.Kubeconfig, "--namespace", c.Namespace(t), "--values", file)
		})
	}
}

// restrictedPod is the pod that the StatefulSet would make, in a namespace that takes
// only pods that keep to the restricted standard.
func restrictedPod(t *testing.T, set *unstructured.Unstructured, namespace string) string {
	t.Helper()
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
		"serviceAccount: {create: false}":                             "serviceAccount.name",
		"replicas: 2":                                                 "store.journal",
		noRoles + "replicas: 2\nconfig: 'admin: {probes: \":8081\"}'": "store.journal",
		"replicas: 2\npersistence: {existingClaim: mine}":             "existingClaim",

		feedsOf("[pods]", "[pods]"):                                                      "pods of a and pods of b",
		feedsOf("[pods]", "[configmaps, pods.v1]"):                                       "pods of a and pods.v1 of b",
		feedsOf("[deployments]", "[deployments.apps]"):                                   "name the same resource",
		feedsOf("[deployments.v1.apps]", "[deployments.apps]"):                           "name the same resource",
		feedsOf("[Deployments.apps]", "[{group: apps, resource: deployments}]"):          "name the same resource",
		feedsOf(`["*.apps"]`, "[deployments.v1.apps]"):                                   "name the same resource",
		feedsOf("[pods]", `["*"]`):                                                       "name the same resource",
		feedsOf(`["*.apps"]`, `["*"], excludeResources: [deployments.apps]`):             "name the same resource",
		feedsOf("[pods]", "[services]") + "existingConfigMap: mine":                      "existingConfigMap",
		feedsOf("[pods]", "[services]") + "persistence: {existingClaim: mine}":           "existingClaim",
		feedsOf("[pods]", "[services]") + "replicas: 2":                                  "store.journal",
		strings.Replace(feedsOf("[pods]", "[services]"), "rbac: {create: false}", "", 1): "what a may read",
		strings.Replace(feedsOf("[pods]", "[services]"), "rbac: {create: false}", "rbac: {clusterRules: [{apiGroups: [], resources: [], verbs: []}]}", 1): "rbac",
		"feeds: {A: {config: {watches: []}}}": "propertyName",
		"feeds: {a: {}}":                      "config",
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

// feedsOf are values with two feeds of these resources.
func feedsOf(a, b string) string {
	return "rbac: {create: false}\nconfig: 'admin: {probes: \":8081\"}'\nfeeds:\n" +
		"  a: {config: {watches: [{name: w, resources: " + a + "}]}}\n  b: {config: {watches: [{name: w, resources: " + b + "}]}}\n"
}

// TestFeeds checks what the chart makes of one value: for each feed a configuration that is valid and
// names it, a stream, a StatefulSet of its own pods, and permissions.
func TestFeeds(t *testing.T) {
	helm := testcluster.Tool(t, "helm")
	render := func(values string) []*unstructured.Unstructured {
		t.Helper()
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
			t.Fatal(err)
		}
		return objects(t, mustRun(t, helm, "template", "demo", chart, "--namespace", "monitoring", "--values", file))
	}
	for _, distinct := range []string{
		feedsOf("[pods]", `["*"], excludeResources: [pods]`),
		feedsOf("[pods.v1]", "[pods.metrics.k8s.io]"),
		feedsOf(`["*.apps"]`, `["*"], excludeResources: ["*.apps"]`),
		feedsOf(`["*.apps"]`, "[pods, jobs.batch]"),
	} {
		render(distinct)
	}
	list := render(twoFeeds)
	of := func(kind, name string) map[string]any {
		t.Helper()
		for _, u := range list {
			if u.GetKind() == kind && u.GetName() == name {
				return u.Object
			}
		}
		t.Fatalf("no %s %s", kind, name)
		return nil
	}
	at := func(o map[string]any, path ...string) any {
		t.Helper()
		v, _, err := unstructured.NestedFieldNoCopy(o, path...)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	sinks := map[string]string{"pods": "bus", "rest": "console"}
	for feed, size := range map[string]string{"pods": "50Gi", "rest": "12Gi"} {
		name := "demo-watcherd-" + feed
		text := at(of("ConfigMap", name), "data", "watcherd.yaml").(string)
		c, err := config.Parse("watcherd.yaml", []byte(text), watcherd.Blocks(kinds.Builtin()))
		if err != nil {
			t.Errorf("%s: %v\n%s", feed, err, text)
			continue
		}
		if c.Feed.Name != feed || c.Store.Journal.Stream != "WATCHERD-"+feed || c.Sinks[0].Name != sinks[feed] || c.Store.MaxBytes.String() != "20Gi" {
			t.Errorf("the configuration of %s is\n%s", feed, text)
		}
		set := of("StatefulSet", name)
		labels := map[string]any{"app.kubernetes.io/name": "watcherd", "app.kubernetes.io/instance": "demo", "watcherd.dev/feed": feed}
		apart := at(set, "spec", "template", "spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution").([]any)[0].(map[string]any)
		for what, selector := range map[string]any{
			"its pods": at(set, "spec", "selector", "matchLabels"), "pods to keep apart": at(apart, "labelSelector", "matchLabels"),
			"pods of its budget": at(of("PodDisruptionBudget", name), "spec", "selector", "matchLabels"), "pods of its service": at(of("Service", name), "spec", "selector"),
		} {
			if !reflect.DeepEqual(selector, labels) {
				t.Errorf("%s: %s are %v", feed, what, selector)
			}
		}
		claims := at(set, "spec", "volumeClaimTemplates").([]any)
		if got := at(claims[0].(map[string]any), "spec", "resources", "requests", "storage"); got != size {
			t.Errorf("%s has %v of disk, want %s", feed, got, size)
		}
		if account := at(set, "spec", "template", "spec", "serviceAccountName"); account != name || of("ServiceAccount", name) == nil {
			t.Errorf("%s runs as %v", feed, account)
		}
		subject := at(of("ClusterRoleBinding", "monitoring."+name), "subjects").([]any)[0].(map[string]any)
		if subject["name"] != name {
			t.Errorf("the role of %s is bound to %v", feed, subject)
		}
	}
	if rules := mustYAML(t, of("ClusterRole", "monitoring.demo-watcherd-pods")["rules"]); strings.Contains(rules, "*") {
		t.Errorf("the feed of pods may read\n%s", rules)
	}
	// One of each for all feeds.
	for _, kind := range []string{"NetworkPolicy", "PodMonitor", "PrometheusRule"} {
		find(t, list, kind)
	}
}

// TestUpgrades checks what makes upgrades and evictions of replicas short.
func TestUpgrades(t *testing.T) {
	helm := testcluster.Tool(t, "helm")
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(twoFeeds, "replicas: 2", "replicas: 2\nterminationGracePeriodSeconds: 60", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, u := range objects(t, mustRun(t, helm, "template", "demo", chart, "--values", file)) {
		spec, _, err := unstructured.NestedMap(u.Object, "spec")
		if err != nil {
			t.Fatal(err)
		}
		text := mustYAML(t, spec)
		var want []string
		switch u.GetKind() {
		case "StatefulSet":
			want = []string{"minReadySeconds: 10", "type: RollingUpdate", "terminationGracePeriodSeconds: 60", "--shutdown-timeout=50s", "--first-replica=" + u.GetName() + "-0", "podManagementPolicy: Parallel"}
		case "PodDisruptionBudget":
			want = []string{"maxUnavailable: 1", "unhealthyPodEvictionPolicy: AlwaysAllow"}
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s %s lacks %q:\n%s", u.GetKind(), u.GetName(), w, text)
			}
		}
	}
	one := mustYAML(t, find(t, objects(t, mustRun(t, helm, "template", "demo", chart)), "StatefulSet").Object)
	if !strings.Contains(one, "--shutdown-timeout=20s") || strings.Contains(one, "minReadySeconds") || strings.Contains(one, "--first-replica") {
		t.Errorf("one replica:\n%s", one)
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
