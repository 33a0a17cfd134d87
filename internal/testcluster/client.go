package testcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

// fieldManager owns the fields of what tests apply.
const fieldManager = "testcluster"

// servedLimit is how long Apply waits for a kind to be served, and servedPoll how
// often it polls: a CustomResourceDefinition takes a moment to become an API.
const (
	servedLimit = 30 * time.Second
	servedPoll  = 50 * time.Millisecond
)

// definitionKind is the kind that makes other kinds.
var definitionKind = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}

// Config is a new client config of the cluster's administrator, without a limit
// on requests.
func (c *Cluster) Config(t testing.TB) *rest.Config {
	t.Helper()
	return load(t, c.Kubeconfig)
}

// UserConfig is a new client config of any user, who has no rights but those that
// are bound to the name or to one of the groups.
func (c *Cluster) UserConfig(t testing.TB, user string, groups ...string) *rest.Config {
	t.Helper()
	return load(t, c.UserKubeconfig(t, user, groups...))
}

// UserKubeconfig is as UserConfig, as a file that lasts as long as the test.
func (c *Cluster) UserKubeconfig(t testing.TB, user string, groups ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	err := c.run(t.Context(), "kubeconfig", "--dir", c.Dir,
		"--user", user, "--groups", strings.Join(groups, ","), "--out", file)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func load(t testing.TB, kubeconfig string) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	return cfg
}

// Dynamic is a new dynamic client of the administrator.
func (c *Cluster) Dynamic(t testing.TB) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(c.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// Namespace makes a namespace with a name of its own and deletes it, without
// waiting for that to be through, when the test ends.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	client := c.Dynamic(t).Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	made, err := client.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"generateName": "test-"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.process == nil {
			return // the test has stopped the server for good
		}
		err := client.Delete(context.WithoutCancel(t.Context()), made.GetName(), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return made.GetName()
}

// Apply applies the YAML documents in their order, server-side and with force, and
// returns what the server has made of them. Each CustomResourceDefinition is served
// when Apply returns.
func (c *Cluster) Apply(t testing.TB, manifests string) []*unstructured.Unstructured {
	t.Helper()
	cfg := c.Config(t)
	objects, err := decode(manifests)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newApplier(cfg)
	if err != nil {
		t.Fatal(err)
	}
	applied := make([]*unstructured.Unstructured, 0, len(objects))
	for _, object := range objects {
		u, err := a.apply(t.Context(), object)
		if err != nil {
			t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
		}
		applied = append(applied, u)
	}
	return applied
}

func decode(manifests string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewBufferString(manifests), 4096)
	for {
		var document json.RawMessage
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(document) == 0 || string(document) == "null" { // nothing but a comment between two separators
			continue
		}
		// Unlike a plain decode into a map, this keeps integers integers.
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(document); err != nil {
			return nil, err
		}
		objects = append(objects, u)
	}
}

type applier struct {
	client    dynamic.Interface
	discovery discovery.DiscoveryInterface
	mapper    meta.RESTMapper
}

func newApplier(cfg *rest.Config) (*applier, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	a := &applier{client: client, discovery: d}
	return a, a.discover()
}

func (a *applier) discover() error {
	groups, err := restmapper.GetAPIGroupResources(a.discovery)
	if err != nil {
		return err
	}
	a.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	return nil
}

func (a *applier) apply(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	mapping, err := a.mapping(ctx, u.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	namespace := u.GetNamespace()
	switch {
	case mapping.Scope.Name() == meta.RESTScopeNameRoot:
		namespace = ""
	case namespace == "":
		namespace = metav1.NamespaceDefault
	}
	applied, err := a.client.Resource(mapping.Resource).Namespace(namespace).
		Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil || mapping.GroupVersionKind.GroupKind() != definitionKind {
		return applied, err
	}
	return applied, a.served(ctx, applied)
}

// served waits until every served version of a CustomResourceDefinition answers a
// list: until then a write may be answered 404.
func (a *applier) served(ctx context.Context, definition *unstructured.Unstructured) error {
	var crd struct {
		Spec struct {
			Group    string                  `json:"group"`
			Names    struct{ Plural string } `json:"names"`
			Versions []struct {
				Name   string `json:"name"`
				Served bool   `json:"served"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(definition.Object, &crd); err != nil {
		return err
	}
	for _, version := range crd.Spec.Versions {
		if !version.Served {
			continue
		}
		resource := a.client.Resource(schema.GroupVersionResource{Group: crd.Spec.Group, Version: version.Name, Resource: crd.Spec.Names.Plural})
		err := wait.PollUntilContextTimeout(ctx, servedPoll, servedLimit, true, func(ctx context.Context) (bool, error) {
			_, err := resource.List(ctx, metav1.ListOptions{Limit: 1})
			if apierrors.IsNotFound(err) || apierrors.IsServiceUnavailable(err) {
				return false, nil
			}
			return err == nil, err
		})
		if err != nil {
			return fmt.Errorf("wait for version %s to be served: %w", version.Name, err)
		}
	}
	return nil
}

func (a *applier) mapping(ctx context.Context, kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	ctx, cancel := context.WithTimeout(ctx, servedLimit)
	defer cancel()
	poll := time.NewTicker(servedPoll)
	defer poll.Stop()
	for {
		mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err == nil || !meta.IsNoMatchError(err) {
			return mapping, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-poll.C:
		}
		if err := a.discover(); err != nil {
			return nil, err
		}
	}
}
