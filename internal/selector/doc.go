// Package selector matches objects and resources against the selections of watches and
// routes: namespaces, label and field selectors, and patterns of resource names.
//
// Guarantees:
//
//   - Selectors are compiled when a configuration is loaded. Matching does no I/O and
//     has no state.
//   - An object is inflated only if a field selector reads more than its name and
//     namespace.
package selector
