package churn

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

//go:embed widgets.yaml
var widgetsYAML []byte

const (
	ownerLabel  = "app.kubernetes.io/managed-by"
	ownerValue  = "watcherd-churn"
	widgetsName = "widgets.example.com"

	poll        = 100 * time.Millisecond
	servedLimit = 30 * time.Second
	goneLimit   = time.Minute
)

var (
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	definitions = schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
)

// prepare makes the namespace, the widgets' definition and one object in every
// slot. The namespace of another program is refused: its objects are not ours to
// change. Widgets of other programs are left alone.
func (c *churner) prepare(ctx context.Context) error {
	ours, err := c.own(ctx, namespaces, c.options.Namespace, map[string]any{"apiVersion": "v1", "kind": "Namespace"})
	if err != nil {
		return err
	}
	if !ours {
		return fmt.Errorf("namespace %s exists and was not created by this program: choose another one", c.options.Namespace)
	}
	var definition map[string]any
	if err := yaml.Unmarshal(widgetsYAML, &definition); err != nil {
		return err
	}
	if ours, err = c.own(ctx, definitions, widgetsName, definition); err != nil {
		return err
	}
	if ours {
		err = c.untilServed(ctx)
	} else {
		_, err = fmt.Fprintf(c.options.Report, "churn: the cluster has another %s: leaving it alone\n", widgetsName)
	}
	if err != nil {
		return err
	}
	for _, k := range kinds(ours) {
		for i := range k.count {
			s := &slot{kind: k, name: fmt.Sprintf("%s-%d", k.name, i)}
			if err := c.step(ctx, s); err != nil {
				return err
			}
			c.slots = append(c.slots, s)
		}
	}
	return nil
}

// own creates a cluster-wide object, if it is missing, and reports whether the one
// that is now there is ours. One that is being deleted is waited for.
func (c *churner) own(
	ctx context.Context, r schema.GroupVersionResource, name string, object map[string]any,
) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, goneLimit)
	defer cancel()
	u := &unstructured.Unstructured{Object: object}
	u.SetName(name)
	u.SetLabels(map[string]string{ownerLabel: ownerValue})
	for {
		_, err := c.client.Resource(r).Create(ctx, u, metav1.CreateOptions{FieldManager: ownerValue})
		if !apierrors.IsAlreadyExists(err) {
			return err == nil, err
		}
		present, err := c.client.Resource(r).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && present.GetDeletionTimestamp() != nil:
			wait(ctx, poll)
		case err != nil:
			return false, err
		default:
			return present.GetLabels()[ownerLabel] == ownerValue, nil
		}
		if ctx.Err() != nil {
			return false, fmt.Errorf("%s %s is being deleted: %w", r.Resource, name, ctx.Err())
		}
	}
}

// untilServed waits for widgets: a definition takes a moment to become an API.
func (c *churner) untilServed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, servedLimit)
	defer cancel()
	for {
		_, err := c.client.Resource(widgetResource).Namespace(c.options.Namespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil || !apierrors.IsNotFound(err) {
			return err
		}
		wait(ctx, poll)
		if ctx.Err() != nil {
			return fmt.Errorf("%s is not served: %w", widgetsName, err)
		}
	}
}

func (c *churner) create(ctx context.Context, s *slot) error {
	u := &unstructured.Unstructured{Object: s.kind.object(c.random)}
	u.SetName(s.name)
	u.SetNamespace(c.options.Namespace)
	u.SetLabels(map[string]string{ownerLabel: ownerValue, "app.kubernetes.io/name": s.kind.name})
	_, err := c.client.Resource(s.kind.resource).Namespace(c.options.Namespace).
		Create(ctx, u, metav1.CreateOptions{FieldManager: ownerValue})
	return err
}

func (c *churner) change(ctx context.Context, s *slot) error {
	patch, subresource := s.kind.patch(c.random)
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	var subresources []string
	if subresource != "" {
		subresources = []string{subresource}
	}
	_, err = c.client.Resource(s.kind.resource).Namespace(c.options.Namespace).
		Patch(ctx, s.name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: ownerValue}, subresources...)
	return err
}

func (c *churner) delete(ctx context.Context, s *slot) error {
	return c.client.Resource(s.kind.resource).Namespace(c.options.Namespace).
		Delete(ctx, s.name, metav1.DeleteOptions{})
}

// cleanup asks the cluster to delete the namespace, with all in it, and the
// definition, if they are ours.
func (c *churner) cleanup(ctx context.Context) error {
	return errors.Join(
		c.deleteOurs(ctx, namespaces, c.options.Namespace),
		c.deleteOurs(ctx, definitions, widgetsName),
	)
}

// deleteOurs deletes the cluster-wide object if it bears our label.
func (c *churner) deleteOurs(ctx context.Context, r schema.GroupVersionResource, name string) error {
	client := c.client.Resource(r)
	u, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ignore(err, apierrors.IsNotFound)
	}
	if u.GetLabels()[ownerLabel] != ownerValue {
		return nil
	}
	uid := u.GetUID()
	err = client.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil {
		return ignore(err, apierrors.IsNotFound)
	}
	_, err = fmt.Fprintf(c.options.Report, "churn: deleting %s %s\n", r.Resource, name)
	return err
}
