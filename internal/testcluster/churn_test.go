package testcluster_test

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/watcherd/watcherd/internal/testcluster"
)

func TestChurn(t *testing.T) {
	c := testcluster.Shared(t)
	const namespace = "churned"
	var output bytes.Buffer
	churn := exec.Command(testcluster.Binary(t), "churn", "--kubeconfig", c.Kubeconfig,
		"--namespace", namespace, "--rate", "200", "--cleanup")
	churn.Stdout, churn.Stderr = &output, &output
	if err := churn.Start(); err != nil {
		t.Fatal(err)
	}
	for _, resource := range []schema.GroupVersionResource{
		configMaps,
		{Version: "v1", Resource: "pods"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
		{Group: "example.com", Version: "v1", Resource: "widgets"},
	} {
		sees(t, c, resource, namespace)
	}
	if err := errors.Join(churn.Process.Signal(syscall.SIGTERM), churn.Wait()); err != nil {
		t.Fatalf("churn: %v\n%s", err, output.String())
	}
	if n := strings.Count(output.String(), "\n"); n > 6 {
		t.Errorf("churn printed %d lines:\n%s", n, output.String())
	}
	namespaces := c.Dynamic(t).Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	eventually(t, "the namespace is being deleted", func() bool {
		u, err := namespaces.Get(t.Context(), namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err) || err == nil && u.GetDeletionTimestamp() != nil
	})
}

// A namespace that churn has not made is none of its business.
func TestChurnKeepsOutOfOthersNamespaces(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	output, err := exec.CommandContext(t.Context(), testcluster.Binary(t), "churn",
		"--kubeconfig", c.Kubeconfig, "--namespace", ns, "--cleanup").CombinedOutput()
	if err == nil || !strings.Contains(string(output), "was not created by this program") {
		t.Fatalf("got %v, %s", err, output)
	}
	u, err := c.Dynamic(t).Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).
		Get(t.Context(), ns, metav1.GetOptions{})
	if err != nil || u.GetDeletionTimestamp() != nil {
		t.Errorf("the namespace is gone or going: %v", err)
	}
}

// sees waits until a watch has shown objects of the resource coming, changing and
// going.
func sees(t *testing.T, c *testcluster.Cluster, resource schema.GroupVersionResource, namespace string) {
	t.Helper()
	client := c.Dynamic(t).Resource(resource).Namespace(namespace)
	seen := map[watch.EventType]bool{}
	eventually(t, "added, modified and deleted "+resource.Resource, func() bool {
		w, err := client.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false // not served yet
		}
		defer w.Stop()
		for e := range w.ResultChan() {
			seen[e.Type] = true
			if seen[watch.Added] && seen[watch.Modified] && seen[watch.Deleted] {
				return true
			}
		}
		return false
	})
}
