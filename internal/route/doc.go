// Package route decides which sinks get a change and in which form.
//
// Guarantees:
//
//   - Everything is compiled and checked when a configuration is loaded. An
//     expression that does not parse, names an unknown variable or is not a bool never
//     reaches a running router.
//   - Decisions depend on the change alone, not on time, load, I/O or the order of
//     events. Routing the same change again gives the same result.
//   - An object is inflated at most once per change for all routes, and only if a route
//     reads more than its type and metadata. Only the members on an expression's path
//     are decoded.
//   - Evaluation is bounded in cost and memory: by an estimate at load where possible,
//     otherwise by metering.
//
// # Expressions
//
// A `when` is CEL (https://cel.dev) and must be a bool. Its variables:
//
//   - object: the state after the change, the last known state of a deleted object, as
//     untyped JSON
//   - oldObject: the state before an update, otherwise null
//   - metadata: the typed metadata of object: name, namespace, uid, resourceVersion,
//     generateName, generation, labels, annotations, finalizers, ownerReferences, and
//     creationTimestamp and deletionTimestamp as timestamps. Unset fields are empty,
//     except deletionTimestamp; has() reports whether a field is set
//   - event: type (added, updated, deleted or sync), time, cluster, changedBy (manager,
//     operation, subresource, time; empty if the manager is unknown, which has() reports)
//   - resource: group, version, resource, kind
//
// In addition to CEL's own functions there are optional values, the strings, lists, math,
// encoders, network, bindings and two-variable comprehension extensions, and
// quantity() with its Kubernetes methods. Functions of unbounded cost are not supported:
// replace, join, format, distinct, hasAny and its like, transformMap, regex.*, json.*, yaml.*
// and patterns that are not literals.
//
// # Time
//
// The router has no clock. A route with a throttle matches like any other: the committer
// holds what it takes ([Router.Timers]). A route with [Spec.For] takes no change; it gives a
// verdict on the state ([Change.Matches]), from which the committer knows how long a match lasts.
//
// # Caveats
//
// An expression that reads a missing field is false, as absence is the usual case
// (`object.status.phase` before there is a status). Use has() or optional selection
// (`object.?status.?phase`) to decide otherwise. So is one that fails in any other way:
// a filter that is open to what it cannot judge would send objects of one tenant to the
// sink of another. Both are counted per route, and [Spec.OnError] changes both.
//
// The package is larger than others: expressions, changed paths, samples and metrics are parts of
// one compiled rule, and are evaluated over the same cached state of a change.
package route
