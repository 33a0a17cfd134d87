// Package redact applies the edits of the configuration that runs to what was
// recorded under an earlier one, when it is read and when the store is rewritten.
//
// [Accepted] are the edits as they are kept in the store: paths, no secrets. A
// [Table] is their compiled form. A record carries the fingerprint of the edits it
// was made with; where it is that of the table, nothing is done.
//
// Edits can be applied again to their own result: a hash that stands for a value
// stays as it is, and no item of an array is dropped by its number. Looser edits bring nothing back.
package redact
