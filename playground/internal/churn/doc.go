// Package churn makes sample objects in a cluster and keeps creating, changing
// and deleting them, so that there is something to watch.
//
// Guarantees: it writes to one namespace and to one CustomResourceDefinition,
// widgets.example.com, and labels what it makes. Nothing ever runs because of it:
// its pods carry a scheduling gate that is never removed. What it did not make it
// neither changes nor deletes.
//
// Caveat: it writes at the given rate, one request after the other.
package churn
