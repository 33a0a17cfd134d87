// Package pods renders pods as an API server sends them, at the speed of a copy:
// templates made once of the real Go types, in which the parts that differ from
// pod to pod and from update to update have fixed places and widths.
//
// A pod is about 5.5 KB: managedFields of two managers, spec and status, with names,
// uids, addresses, nodes, containers and times of its own, of sixty workloads with
// their own labels, images, environment and owners. Everything about a pod follows
// from its number and its resourceVersion, so no state is needed to repeat it.
package pods
