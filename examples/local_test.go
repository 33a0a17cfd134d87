package examples

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// The manifests that several tests use.
const (
	deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NAMESPACE}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "registry.example.com/web:1.0"}]}
`
	configMap = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: NAMESPACE}
data: {color: red}
`
	pod = `
apiVersion: v1
kind: Pod
metadata: {name: worker, namespace: NAMESPACE}
spec: {containers: [{name: main, image: "registry.example.com/web:1.0"}]}
`
)

func definition(group, plural, kind string) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.%[1]s, annotations: {api-approved.kubernetes.io: "unapproved, test"}}
spec:
  group: %[1]s
  scope: Namespaced
  names: {plural: %[2]s, singular: %[4]s, kind: %[3]s}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, group, plural, kind, strings.ToLower(kind))
}

func quickstart(t *testing.T) {
	r := newRun(t, "quickstart.yaml", nil)
	r.start("pods.v1", "configmaps.v1", "deployments.v1.apps")
	r.apply(configMap)
	r.patch("configmaps.v1", "settings", `{"data":{"color":"blue"}}`)
	r.remove("configmaps.v1", "settings")
	events := r.expect(func() []event { return r.mine("watcherd-events/*.jsonl") },
		"added settings", "updated settings", "deleted settings")
	for _, e := range events {
		if e.Type == "updated" && at(e.OldObject, "data", "color") != "red" {
			t.Errorf("the file's update has no old object: %v", e.OldObject)
		}
	}
	r.eventually(func() (bool, string) {
		screen := r.out.String()
		return strings.Contains(screen, r.namespace+"/settings") && strings.Contains(screen, "blue"), "the screen does not show the change"
	})
}

func clusterEvents(t *testing.T) {
	r := newRun(t, "cluster-events.yaml", nil)
	r.start("events.v1")
	r.apply(`
apiVersion: v1
kind: Event
metadata: {name: pulled, namespace: NAMESPACE}
involvedObject: {kind: Pod, name: web, namespace: NAMESPACE}
reason: Pulled
message: image is present
`)
	r.patch("events.v1", "pulled", `{"count":2}`)
	r.remove("events.v1", "pulled")
	// The deletion is last in order, so what comes after it shows that it is left out.
	r.apply(`
apiVersion: v1
kind: Event
metadata: {name: started, namespace: NAMESPACE}
involvedObject: {kind: Pod, name: web, namespace: NAMESPACE}
reason: Started
`)
	events := r.expect(func() []event { return r.mine("cluster-events/" + r.namespace + ".jsonl") },
		"added pulled", "updated pulled", "added started")
	if events[0].Object["reason"] != "Pulled" {
		t.Errorf("the event is not whole: %v", events[0].Object)
	}
}

func accessTrail(t *testing.T) {
	r := newRun(t, "access-trail.yaml", nil)
	r.start("secrets.v1", "serviceaccounts.v1", "roles.v1.rbac.authorization.k8s.io", "clusterrolebindings.v1.rbac.authorization.k8s.io",
		"validatingwebhookconfigurations.v1.admissionregistration.k8s.io")
	const password = "correct horse battery staple"
	secret := func(value string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: db, namespace: NAMESPACE}\nstringData: {password: " + value + "}\n"
	}
	r.apply(secret(password))
	r.apply(secret(password + "!"))
	r.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAMESPACE-oops}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: eve}]
`)
	client := r.client.Resource(gvr("clusterrolebindings.v1.rbac.authorization.k8s.io"))
	if err := client.Delete(t.Context(), r.namespace+"-oops", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.expect(func() []event { return r.mine("access-trail/rbac.authorization.k8s.io.jsonl") },
		"added "+r.namespace+"-oops", "deleted "+r.namespace+"-oops")
	events := r.expect(func() []event { return r.mine("access-trail/core.jsonl") }, "added db", "updated db")
	before, after := at(events[1].OldObject, "data", "password"), at(events[1].Object, "data", "password")
	for _, value := range []any{before, after} {
		if text, _ := value.(string); !secretValue.MatchString(text) {
			t.Errorf("the value of a Secret came out as %v", value)
		}
	}
	if before == after {
		t.Error("the change of the Secret's value is not visible")
	}
	if len(events[1].Patch) == 0 {
		t.Error("no patch")
	}
}

func recycleBin(t *testing.T) {
	r := newRun(t, "recycle-bin.yaml", nil)
	r.apply(configMap + "---" + deployment)
	inSync := []string{"configmaps.v1", "deployments.v1.apps", "services.v1", "jobs.v1.batch", "roles.v1.rbac.authorization.k8s.io", "ingresses.v1.networking.k8s.io"}
	r.start(inSync...)
	r.remove("configmaps.v1", "settings")
	events := r.expect(func() []event { return r.mine("recycle-bin/*.jsonl") }, "deleted settings")

	// What the file's head does with jq.
	restored := &unstructured.Unstructured{Object: events[0].Object}
	for _, field := range []string{"uid", "resourceVersion", "ownerReferences"} {
		unstructured.RemoveNestedField(restored.Object, "metadata", field)
	}
	back, err := json.Marshal(restored)
	if err != nil {
		t.Fatal(err)
	}
	r.apply(string(back))

	// And one that is deleted while nobody looks.
	r.stop()
	r.remove("deployments.v1.apps", "web")
	r.log.Reset()
	r.start()
	for _, e := range r.expect(func() []event { return r.mine("recycle-bin/*.jsonl") }, "deleted settings", "deleted web") {
		if e.Name == "web" && at(e.Object, "spec", "template") == nil {
			t.Errorf("the last state is not whole: %v", e.Object)
		}
	}
}

func inventory(t *testing.T) {
	r := newRun(t, "inventory.yaml", nil)
	r.apply(deployment)
	r.start("deployments.v1.apps", "pods.v1", "secrets.v1", "nodes.v1", "cronjobs.v1.batch")
	r.patch("deployments.v1.apps", "web", `{"status":{"replicas":1}}`, "status")
	r.patch("deployments.v1.apps", "web", `{"metadata":{"labels":{"tier":"front"}}}`)
	events := r.expect(func() []event { return r.mine("inventory/*.jsonl") }, "sync "+r.namespace, "sync web", "updated web")
	for _, e := range events {
		if e.Object["metadata"] == nil || e.Object["spec"] != nil || e.Object["status"] != nil {
			t.Errorf("want metadata alone, got %v", e.Object)
		}
	}
}

func wholeGroup(t *testing.T) {
	r := newRun(t, "whole-group.yaml", nil)
	r.apply(definition("cert-manager.io", "certificates", "Certificate"))
	r.start("certificates.v1.cert-manager.io")
	r.apply("apiVersion: cert-manager.io/v1\nkind: Certificate\nmetadata: {name: web, namespace: NAMESPACE}\n")
	ready := func(status string) string {
		return `{"status":{"conditions":[{"type":"Ready","status":"` + status + `"}]}}`
	}
	r.patch("certificates.v1.cert-manager.io", "web", ready("True"), "status")
	r.patch("certificates.v1.cert-manager.io", "web", ready("False"), "status")

	// A kind that comes later, in the other group.
	r.apply(definition("acme.cert-manager.io", "orders", "Order"))
	r.synced("orders.v1.acme.cert-manager.io")
	r.apply("apiVersion: acme.cert-manager.io/v1\nkind: Order\nmetadata: {name: later, namespace: NAMESPACE}\n")
	r.expect(func() []event { return r.mine("cert-manager/*.jsonl") },
		"added web", "updated web", "updated web", "added later")
	r.expect(func() []event { return r.filter([]byte(r.out.String())) }, "updated web")
}

func teamNamespaces(t *testing.T) {
	r := newRun(t, "team-namespaces.yaml", nil)
	r.start("deployments.v1.apps", "configmaps.v1", "cronjobs.v1.batch")
	r.apply(configMap)
	const other = "always-payments"
	r.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: " + other + ", labels: {team: payments}}")
	label := func(patch string) {
		t.Helper()
		_, err := r.client.Resource(gvr("namespaces.v1")).Patch(t.Context(), r.namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	// delivered changes an object in the namespace, then one in a namespace that has
	// the label all the time. When the second has come, the first is there or never is.
	round := 0
	delivered := func() bool {
		t.Helper()
		round++
		color := fmt.Sprintf("color %d", round)
		r.patch("configmaps.v1", "settings", `{"data":{"color":"`+color+`"}}`)
		r.apply(strings.NewReplacer("NAMESPACE", other, "red", color).Replace(configMap))
		has := func(namespace string) bool {
			content, err := os.ReadFile(filepath.Join(r.dir, "payments", namespace, "configmaps.jsonl"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			return bytes.Contains(content, []byte(color))
		}
		r.eventually(func() (bool, string) { return has(other), "nothing arrives from " + other })
		return has(r.namespace)
	}
	if delivered() {
		t.Error("the namespace is not the team's, but its objects are delivered")
	}
	label(`{"metadata":{"labels":{"team":"payments"}}}`)
	r.eventually(func() (bool, string) { return delivered(), "the namespace has not joined" })
	label(`{"metadata":{"labels":{"team":null}}}`)
	r.eventually(func() (bool, string) { return !delivered(), "the namespace has not left" })
}

func pipe(t *testing.T) {
	r := newRun(t, "pipe.yaml", nil)
	r.start("deployments.v1.apps", "jobs.v1.batch")
	r.apply(deployment)
	r.remove("deployments.v1.apps", "web")
	r.expect(func() []event { return r.filter([]byte(r.out.String())) }, "added web", "deleted web")
	if strings.Contains(r.out.String(), `"msg"`) {
		t.Error("the log is on standard output")
	}
}
