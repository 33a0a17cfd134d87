// Command genopenapi writes the OpenAPI document of the HTTP interface. It is run by go
// generate in the folder of package admin.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/invopop/jsonschema"

	"github.com/watcherd/watcherd/internal/admin"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: genopenapi FILE")
		os.Exit(2)
	}
	out, err := generate()
	if err == nil {
		err = os.WriteFile(os.Args[1], out, 0o644) //nolint:gosec // it is a source file
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "genopenapi:", err)
		os.Exit(1)
	}
}

type object = map[string]any

// generate makes the document.
func generate() ([]byte, error) {
	schemas, paths := object{}, object{}
	problem := schemaOf(schemas, admin.Problem{})
	for _, op := range admin.Operations() {
		method, path, _ := strings.Cut(op.Pattern, " ")
		content := object{"application/json": object{"schema": schemaOf(schemas, op.Answer)}}
		if op.Content != "" {
			content = object{op.Content: object{"schema": object{"type": "string"}}}
		}
		one := object{
			"summary": op.Summary,
			"responses": object{
				"200":     object{"description": "OK", "content": content},
				"default": object{"description": "A problem", "content": object{"application/problem+json": object{"schema": problem}}},
			},
		}
		if parameters := parametersOf(path, op.Parameters); len(parameters) > 0 {
			one["parameters"] = parameters
		}
		if op.Body != nil {
			one["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": schemaOf(schemas, op.Body)}}}
		}
		if paths[path] == nil {
			paths[path] = object{}
		}
		paths[path].(object)[strings.ToLower(method)] = one //nolint:forcetypeassert // made above
	}
	out, err := json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info":    object{"title": "watcherd", "version": "v1", "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"}},
		"paths":   paths,
		"components": object{
			"schemas":         schemas,
			"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}},
		},
		"security": []object{{}, {"token": []string{}}},
	}, "", "  ")
	return append(out, '\n'), err
}

var pathParameter = regexp.MustCompile(`\{([a-z]+)\}`)

func parametersOf(path, query string) (list []object) {
	for _, found := range pathParameter.FindAllStringSubmatch(path, -1) {
		list = append(list, object{"name": found[1], "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for name := range strings.FieldsSeq(query) {
		list = append(list, object{"name": strings.TrimSuffix(name, "*"), "in": "query", "schema": object{"type": "string"}})
	}
	return list
}

// schemaOf adds the schema of a value's type and all that it needs, and returns a reference
// to it.
func schemaOf(schemas object, v any) any {
	t := reflect.TypeOf(v)
	if t == nil || t.Kind() != reflect.Struct {
		return object{"type": "object"}
	}
	r := &jsonschema.Reflector{Mapper: func(t reflect.Type) *jsonschema.Schema {
		if t == reflect.TypeFor[json.RawMessage]() {
			return &jsonschema.Schema{} // any value
		}
		return nil
	}, Namer: nameOf}
	raw, err := json.Marshal(r.ReflectFromType(t))
	if err == nil {
		var s struct {
			Defs map[string]json.RawMessage `json:"$defs"`
		}
		if err = json.Unmarshal(raw, &s); err == nil {
			for name, definition := range s.Defs {
				schemas[name] = json.RawMessage(bytes.ReplaceAll(definition, []byte("#/$defs/"), []byte("#/components/schemas/")))
			}
		}
	}
	if err != nil {
		panic(err) // a schema always marshals
	}
	return object{"$ref": "#/components/schemas/" + nameOf(t)}
}

// nameOf keeps apart the types of a name in several packages.
func nameOf(t reflect.Type) string {
	if t.PkgPath() == "" {
		return t.Name()
	}
	pkg := t.PkgPath()[strings.LastIndexByte(t.PkgPath(), '/')+1:]
	return strings.ToUpper(pkg[:1]) + pkg[1:] + t.Name()
}
