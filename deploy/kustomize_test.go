package deploy

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/watcherd/watcherd/internal/testcluster"
)

const base = "kustomize/base"

func TestKustomize(t *testing.T) {
	kustomize, c := testcluster.Tool(t, "kustomize"), testcluster.Start(t)
	rendered := mustRun(t, kustomize, "build", base)
	c.Apply(t, rendered)
	c.Apply(t, restrictedPod(t, find(t, objects(t, rendered), "StatefulSet"), "restricted"))
}

// TestOverlay tries what the base's head says of overlays.
func TestOverlay(t *testing.T) {
	kustomize := testcluster.Tool(t, "kustomize")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs(base)
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(dir, here)
	if err != nil {
		t.Fatal(err)
	}
	role := "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: watcherd}\nrules:\n- {apiGroups: [example.com], resources: [widgets], verbs: [list, watch]}\n"
	for name, content := range map[string]string{
		"watcherd.yaml": "# mine\n",
		"rbac.yaml":     role,
		"kustomization.yaml": "resources: [" + relative + "]\nconfigMapGenerator:\n- {name: watcherd, behavior: replace, files: [watcherd.yaml]}\n" +
			"patches:\n- {path: rbac.yaml}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rendered := objects(t, mustRun(t, kustomize, "build", "--load-restrictor", "LoadRestrictionsNone", dir))
	if data, _, _ := unstructured.NestedString(find(t, rendered, "ConfigMap").Object, "data", "watcherd.yaml"); data != "# mine\n" {
		t.Errorf("the configuration is %q", data)
	}
	rules, _, _ := unstructured.NestedSlice(find(t, rendered, "ClusterRole").Object, "rules")
	if len(rules) != 1 {
		t.Errorf("the rules are %v, want those of the overlay alone", rules)
	}
}

// TestSame compares the pod of the base with that of the chart.
func TestSame(t *testing.T) {
	pod := func(manifests string) map[string]any {
		t.Helper()
		set := find(t, objects(t, manifests), "StatefulSet")
		spec, _, err := unstructured.NestedMap(set.Object, "spec", "template", "spec")
		if err != nil {
			t.Fatal(err)
		}
		claims, _, err := unstructured.NestedSlice(set.Object, "spec", "volumeClaimTemplates")
		if err != nil {
			t.Fatal(err)
		}
		for _, claim := range claims {
			unstructured.RemoveNestedField(claim.(map[string]any), "metadata", "labels")
		}
		spec["claims"] = claims
		return spec
	}
	ours := pod(mustRun(t, testcluster.Tool(t, "kustomize"), "build", base))
	theirs := pod(mustRun(t, testcluster.Tool(t, "helm"), "template", "watcherd", chart, "--namespace", "watcherd"))
	delete(theirs["containers"].([]any)[0].(map[string]any), "imagePullPolicy") // the default
	for key := range theirs {
		if !reflect.DeepEqual(ours[key], theirs[key]) {
			t.Errorf("%s differs: the base has\n%v\nthe chart\n%v", key, ours[key], theirs[key])
		}
	}
	if len(ours) != len(theirs) {
		t.Errorf("the base has %d parts, the chart %d", len(ours), len(theirs))
	}
}

// TestGenerated checks that what is kept twice is the same; `make generate` makes it so.
func TestGenerated(t *testing.T) {
	for source, copied := range map[string]string{
		"helm/watcherd/files/watcherd.yaml": "kustomize/base/watcherd.yaml",
		"prometheus/alerts.yaml":            "helm/watcherd/files/alerts.yaml",
	} {
		want, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(copied)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(string(got), string(want)) {
			t.Errorf("%s is not a copy of %s: run make generate", copied, source)
		}
	}
}
