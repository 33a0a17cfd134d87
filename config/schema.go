package config

import _ "embed"

//go:generate go run ../hack/genschema

//go:embed watcherd.schema.json
var schema string

// Schema is the JSON Schema (draft 2020-12) of the configuration with the built-in
// kinds of sinks. It is generated from the types of this package and of the kinds.
func Schema() []byte { return []byte(schema) }
