package dynamicfactory

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Key selects the objects of an informer.
type Key struct {
	GVR           schema.GroupVersionResource
	Namespace     string // "": all namespaces, or a cluster-scoped resource
	LabelSelector string // evaluated by the API server
	FieldSelector string // evaluated by the API server
}

// String is the key for logs: pods.v1. in namespace a with l=…
func (k Key) String() string {
	var b strings.Builder
	b.WriteString(k.GVR.Resource + "." + k.GVR.Version + "." + k.GVR.Group)
	for _, part := range [...]struct{ name, value string }{
		{"namespace", k.Namespace}, {"labels", k.LabelSelector}, {"fields", k.FieldSelector},
	} {
		if part.value != "" {
			b.WriteString(" " + part.name + "=" + part.value)
		}
	}
	return b.String()
}

// Validate returns a *KeyError if nothing can be watched under the key.
func (k Key) Validate() error {
	var errs []error
	if k.GVR.Resource == "" || k.GVR.Version == "" {
		errs = append(errs, errors.New("resource and version are required"))
	}
	for _, part := range []string{k.GVR.Group, k.GVR.Version, k.GVR.Resource, k.Namespace} {
		if strings.ContainsAny(part, "/%?#") || part == "." || part == ".." {
			errs = append(errs, fmt.Errorf("%q is no name", part))
		}
	}
	if _, err := labels.Parse(k.LabelSelector); err != nil {
		errs = append(errs, fmt.Errorf("label selector %q: %w", k.LabelSelector, err))
	}
	if _, err := fields.ParseSelector(k.FieldSelector); err != nil {
		errs = append(errs, fmt.Errorf("field selector %q: %w", k.FieldSelector, err))
	}
	if len(errs) > 0 {
		return &KeyError{Key: k, Err: errors.Join(errs...)}
	}
	return nil
}

// KeyError reports a key that selects nothing that can be watched.
type KeyError struct {
	Key Key
	Err error
}

func (e *KeyError) Error() string { return "dynamicfactory: " + e.Key.String() + ": " + e.Err.Error() }

func (e *KeyError) Unwrap() error { return e.Err }
