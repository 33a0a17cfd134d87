// Package redact drops and redacts values of objects.
//
// [Edits] are the rules of a watch or route. A watch's edits apply to the raw JSON before
// an object is stored. A [Table] applies the edits of the running configuration to
// records and states stored under an earlier one, when they are read and when the store
// is rewritten. [Accepted] is the form of the edits in the store: paths, no secrets.
//
// Guarantees:
//
//   - No value of a core Secret is stored unless its watch sets ExposeSecrets, nor a copy
//     of one in the Secret's other strings, as far as it is recognized: see
//     docs/security.md. The work for that is bounded.
//   - Equal values of two objects, or of two keys of one, have different hashes.
//   - Edits are idempotent: a hash stays as it is, and no array item is dropped by
//     index. Looser edits restore nothing.
//   - A record carries the fingerprint of its edits. A record with the fingerprint of the
//     table is not edited again.
package redact
