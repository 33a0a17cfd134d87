// Package config holds the types of watcherd's configuration file, reads it
// strictly, and checks what can be checked without a cluster or a sink.
//
// Guarantees:
//
//   - A file loads completely or not at all. Every problem is reported at once,
//     sorted by place, as file:line:column: key path: what to do ([Errors]).
//   - Parsing is pure: no environment, no other file, no network. Nothing in the
//     file is expanded; secrets are named ({env: NAME} or {file: PATH}), never
//     written down, so a Config and its raw blocks hold none.
//   - Time and memory are proportional to the input ([MaxSize]).
//
// Selectors, CEL expressions, key paths and resource names are only carried
// here; internal/plan compiles them and reports at the same places ([Config.ErrorAt]).
//
// The JSON Schema ([Schema]) is generated from these types, and watcherd.yaml in
// this folder is the annotated reference. Comments of fields are what both show.
package config
