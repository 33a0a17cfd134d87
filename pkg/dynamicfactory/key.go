package dynamicfactory

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Key names one informer: what it watches and in which form. Subscriptions with
// equal keys share an informer.
type Key struct {
	GVR           schema.GroupVersionResource
	Namespace     string // "": all namespaces, or a cluster-scoped resource
	LabelSelector string // evaluated by the API server
	FieldSelector string // evaluated by the API server

	// MetadataOnly asks the API server for metadata alone. The objects then are of
	// kind PartialObjectMetadata. Only a factory made by NewForConfig can.
	MetadataOnly bool
	// Variant tells apart informers whose objects are edited differently (see
	// RawOptions.Edit). It means nothing to the factory.
	Variant string
}

// String is the key for logs: pods.v1. in namespace a with l=…
func (k Key) String() string {
	var b strings.Builder
	b.WriteString(k.GVR.Resource + "." + k.GVR.Version + "." + k.GVR.Group)
	for _, part := range [...]struct{ name, value string }{
		{"namespace", k.Namespace}, {"labels", k.LabelSelector}, {"fields", k.FieldSelector}, {"variant", k.Variant},
	} {
		if part.value != "" {
			b.WriteString(" " + part.name + "=" + part.value)
		}
	}
	if k.MetadataOnly {
		b.WriteString(" metadata only")
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
