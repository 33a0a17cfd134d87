// Package body makes the body of a message out of events, in the shape that its receiver
// asks for: a CEL expression of a sink's configuration.
//
// Guarantees:
//
//   - Everything is compiled and checked when a configuration is loaded.
//   - The same event has the same body, byte for byte, on every attempt: keys of maps are
//     sorted, and no function has a clock or a state.
//   - Evaluation is bounded in cost, in memory and in the size of its result
//     (4 MiB). Calls of functions whose result is much larger than their arguments
//     are checked before they run.
//   - Only the members on an expression's path are decoded; parts of objects that are sent
//     unchanged are copied.
//
// # Expressions
//
// A text is sent as it is, null and optional.none() not at all, any other value as JSON. The variables of an expression are
// event, object, oldObject, patch, metadata and resource; fields of event are listed in
// docs/bodies.md. An expression that names `events` makes one body of all events of a
// message, and has no other variable.
//
// The functions are those of filters without regex and network, and in addition replace,
// join, format, distinct, transformMap and json.encode. Patterns of matches() are
// literals.
//
// # Caveats
//
// An expression that reads a missing field fails, and its event becomes a dead letter.
// Optional selection (object.?status.?phase) avoids that. Gaps reach every sink of their
// watch, and have neither an object nor a name.
package body
