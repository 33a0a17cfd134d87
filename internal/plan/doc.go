// Package plan compiles a configuration into the desired state, and computes
// what has to be done to get from one state to another.
//
// Guarantees:
//
//   - Both are pure: no file, network, clock or environment, and nothing of what
//     they return is shared with anything running.
//   - A [State] is complete: selectors, paths and expressions are compiled, so
//     applying it cannot fail because of the configuration. All
//     faults are reported at once, at their places in the file.
//   - Blocks are compared by fingerprints of the file's contents, not of live or
//     defaulted values. Layout, comments and order of keys make no difference.
//     Secrets are part of it by name only.
//
// Caveat: that a resource exists and may be watched is not known here; the
// resolver and the API server have the last word on it.
package plan
