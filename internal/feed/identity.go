package feed

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// A source has two names. Its partition is the part of the ledger that holds the
// states of its objects: the resource and its scope, which is what the API server
// selects by and the version that a watch insists on. Its id adds the namespace and
// names the checkpoint. What may change without another object being meant takes no
// part in either: the version that the cluster prefers, and the edits. Those make up
// the form in which states are recorded; see rerecord.go.

// scopeOf is what makes a feed's content differ from the default one. It begins the
// version parts of event IDs. pinned is the version that a watch names, if any.
func scopeOf(pinned, labelSelector, fieldSelector string) string {
	scope := ""
	if pinned != "" {
		scope = "@" + pinned
	}
	if labelSelector != "" || fieldSelector != "" {
		scope += fmt.Sprintf("|l=%s;f=%s", labelSelector, fieldSelector)
	}
	return scope
}

// partitionOf names the part of the ledger that a resource's objects in a scope
// belong to. Two running sources share one only if their namespaces differ.
func partitionOf(gr schema.GroupResource, scope string) string { return gr.String() + scope }

// splitPartition is the inverse of partitionOf.
func splitPartition(partition string) (gr schema.GroupResource, scope string) {
	name := partition
	if i := strings.IndexAny(partition, "@|"); i >= 0 {
		name, scope = partition[:i], partition[i:]
	}
	return schema.ParseGroupResource(name), scope
}

// sourceID names a source in the store; namespace is empty for all namespaces.
func sourceID(partition, namespace string) string { return partition + "#" + namespace }

// pinnedVersion is the version that a watch's pattern insists on for a resource that
// it means, "" if it leaves the choice to the cluster.
func pinnedVersion(pattern, group string) string {
	p, err := selector.ParseResource(pattern)
	if err != nil {
		return ""
	}
	return p.Version(group)
}

// keyOf is the informer's key of a watch for a resource in a namespace.
func keyOf(w *plan.Watch, gvr schema.GroupVersionResource, pinned, namespace string) dynamicfactory.Key {
	variant := w.Edits.Variant(gvr.GroupResource())
	if pinned != "" {
		variant = strings.TrimSpace("pinned " + variant) // a feed of its own beside the preferred version's
	}
	return dynamicfactory.Key{
		GVR: gvr, Namespace: namespace, LabelSelector: w.ServerLabels, FieldSelector: w.ServerFields,
		MetadataOnly: w.MetadataOnly, Variant: variant,
	}
}

// formOf is the form in which a source records states: the API version, and what the
// watches' edits leave.
func formOf(w *plan.Watch, gvr schema.GroupVersionResource) string {
	form := gvr.Version
	if w.MetadataOnly {
		form += " metadata"
	}
	if variant := w.Edits.Variant(gvr.GroupResource()); variant != "" {
		form += " edits " + variant
	}
	return form
}

// idScope is the part of event ids that is not of the object. After the cluster
// was set back to an older state, versions are used again for something else.
func (s *source) idScope() string {
	if s.epoch == 0 {
		return s.scope
	}
	return s.scope + "#" + strconv.Itoa(s.epoch)
}

// stateKey names an object within its partition. Cluster-scoped objects have an
// empty namespace.
func stateKey(namespace, name string) string { return namespace + "/" + name }
