// Package strict decodes one YAML document into Go values and reports every
// problem with its place.
//
// Guarantees:
//
//   - Nothing is guessed or dropped: an unknown key, a key given twice, a value of
//     another type, a second document and a merge key are problems.
//   - All problems of a document are found in one pass, each with line, column and
//     key path. Only broken syntax hides what comes after it.
//   - Work and memory follow the size of the document as written: aliases that
//     multiply, refer to themselves or nest too deep are refused before decoding.
//
// The rules of decoding: struct fields are named by their json tags, and a field
// that is not mentioned keeps the value it had, so defaults are set beforehand; a
// null value means not mentioned. List elements and map values of a type with
// SetDefaults start from it. [time.Duration] is written in Go's style, with days (7d, 1d12h). A type with
// UnmarshalText or UnmarshalJSON decodes itself; [Handle] takes over a type from
// outside.
package strict
