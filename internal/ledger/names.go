package ledger

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A feed has two names. Its partition is the part of the ledger that holds the
// states of its objects: the resource and its scope, which is what the API server
// selects by and the version that a watch insists on. Its id adds the namespace and
// names the checkpoint. What may change without another object being meant takes no
// part in either: the version that the cluster prefers, and the edits. Those make up
// the form in which states are recorded; see rerecord.go.

// ScopeOf is what makes a feed's content differ from the default one. It begins the
// version parts of event IDs. pinned is the version that a watch names, if any.
func ScopeOf(pinned, labelSelector, fieldSelector string) string {
	scope := ""
	if pinned != "" {
		scope = "@" + pinned
	}
	if labelSelector != "" || fieldSelector != "" {
		scope += fmt.Sprintf("|l=%s;f=%s", labelSelector, fieldSelector)
	}
	return scope
}

// Partition names the part of the ledger that a resource's objects in a scope
// belong to. Two running feeds share one only if their namespaces differ.
func Partition(gr schema.GroupResource, scope string) string { return gr.String() + scope }

// SplitPartition is the inverse of partitionOf.
func SplitPartition(partition string) (gr schema.GroupResource, scope string) {
	name := partition
	if i := strings.IndexAny(partition, "@|"); i >= 0 {
		name, scope = partition[:i], partition[i:]
	}
	return schema.ParseGroupResource(name), scope
}

// FeedID names a feed in the store; namespace is empty for all namespaces.
func FeedID(partition, namespace string) string { return partition + "#" + namespace }

// Key names an object within its partition. Cluster-scoped objects have an
// empty namespace.
func Key(namespace, name string) string { return namespace + "/" + name }
