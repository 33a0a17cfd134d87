package main

import (
	"encoding/json"
	"maps"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/invopop/jsonschema"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

const (
	module  = "github.com/watcherd/watcherd"
	address = "https://watcherd.dev/schema/v1alpha1/watcherd.schema.json"
)

// generate makes the schema. Descriptions come from the comments in the sources
// below root.
func generate(root string) ([]byte, error) {
	r := &jsonschema.Reflector{
		RequiredFromJSONSchemaTags: true,
		Mapper:                     mapType,
		Namer:                      nameType,
	}
	table := kinds.Builtin()
	packages := []reflect.Type{reflect.TypeFor[config.Config](), reflect.TypeFor[sinks.Secret]()}
	for _, k := range table {
		packages = append(packages, reflect.TypeOf(k()).Elem())
	}
	for _, t := range packages {
		if err := addComments(r, root, t.PkgPath()); err != nil {
			return nil, err
		}
	}
	s := r.Reflect(config.Config{})
	s.ID, s.Title = address, "watcherd configuration"

	// What a kind requires shows in its json tags.
	r.RequiredFromJSONSchemaTags = false
	addKinds(r, s.Definitions, table)

	addDefaults(s.Definitions, reflect.ValueOf(config.Default()))
	for _, v := range []any{config.DefaultWatch(), config.DefaultRoute(), config.DefaultRouteMetric(), config.DefaultSink()} {
		addDefaults(s.Definitions, reflect.ValueOf(v))
	}
	eitherForm(s.Definitions)
	for _, def := range s.Definitions {
		nameKeys(def)
	}
	out, err := json.MarshalIndent(s, "", "  ")
	return append(out, '\n'), err
}

var capitalized = regexp.MustCompile(`[A-Z][A-Za-z0-9]*`)

// nameKeys writes keys of a block, which comments in Go name as fields, as the file has them: each
// within a sentence, each in camel case, and the subject of a comment that describes what it does.
func nameKeys(def *jsonschema.Schema) {
	if def.Properties == nil {
		return
	}
	keys := map[string]string{}
	for p := def.Properties.Oldest(); p != nil; p = p.Next() {
		keys[strings.ToLower(p.Key)] = p.Key
	}
	for p := def.Properties.Oldest(); p != nil; p = p.Next() {
		text, end := p.Value.Description, 0
		var b strings.Builder
		for _, at := range capitalized.FindAllStringIndex(text, -1) {
			word, before, after := text[at[0]:at[1]], text[:at[0]], text[at[1]:]
			key, ok := keys[strings.ToLower(word)]
			acronym, camel := strings.ToUpper(word) == word, strings.ContainsFunc(word[1:], unicode.IsUpper)
			verb, _, _ := strings.Cut(strings.TrimPrefix(after, " "), " ")
			within := before != "" && !strings.HasSuffix(before, ". ") && !strings.HasSuffix(before, ": ") && strings.HasSuffix(before, " ")
			subject := before == "" && key == p.Key && (strings.HasSuffix(verb, "s") || strings.HasSuffix(verb, "s."))
			quoted := strings.Count(before, "`")%2 == 1
			if !ok || quoted || !subject && (acronym || !camel && !within) {
				continue
			}
			b.WriteString(text[end:at[0]] + "`" + key + "`")
			end = at[1]
		}
		p.Value.Description = b.String() + text[end:]
	}
}

// addComments reads the comments of one package.
func addComments(r *jsonschema.Reflector, root, pkg string) error {
	dir := filepath.Join(root, filepath.FromSlash(strings.TrimPrefix(pkg, module)))
	var found jsonschema.Reflector
	// The folder's name would become part of the package's.
	if err := found.AddGoComments("", dir, jsonschema.WithFullComment()); err != nil {
		return err
	}
	if r.CommentMap == nil {
		r.CommentMap = map[string]string{}
	}
	for name, text := range found.CommentMap {
		if rest, ok := strings.CutPrefix(name, dir+"."); ok {
			r.CommentMap[pkg+"."+rest] = strings.Join(strings.Fields(text), " ")
		}
	}
	return nil
}

// nameType keeps apart the types that every kind calls by the same names.
func nameType(t reflect.Type) string {
	if dir, base := path.Split(t.PkgPath()); strings.HasSuffix(dir, "/pkg/sinks/") {
		return strings.ToUpper(base[:1]) + base[1:] + t.Name()
	}
	return t.Name()
}

const (
	durationPattern = `^[0-9]+d$|^([0-9]+d)?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$`
	bytesPattern    = `^[0-9]+(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$`
)

// mapType gives the schemas of types that are written in another way than they
// are held.
func mapType(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[time.Duration](), reflect.TypeFor[sinks.Duration]():
		return &jsonschema.Schema{Type: "string", Pattern: durationPattern}
	case reflect.TypeFor[resource.Quantity]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
			{Type: "string", Pattern: bytesPattern},
			{Type: "integer", Minimum: "0"},
		}}
	case reflect.TypeFor[config.Changed]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
			{Type: "string", Enum: []any{config.ChangedMeaningful}},
			{Type: "array", Items: &jsonschema.Schema{Type: "string"}},
		}}
	case reflect.TypeFor[sinks.Header]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "string"}, {Ref: "#/$defs/Secret"}}}
	default:
		return nil
	}
}

// addKinds makes each kind a key of a sink, of which there must be one.
func addKinds(r *jsonschema.Reflector, defs jsonschema.Definitions, kinds sinks.Kinds) {
	secret := r.Reflect(sinks.Secret{})
	maps.Copy(defs, secret.Definitions)
	sink := defs["Sink"]
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		block := kinds[name]()
		maps.Copy(defs, r.Reflect(block).Definitions)
		addDefaults(defs, reflect.ValueOf(block).Elem())
		t := reflect.TypeOf(block).Elem()
		sink.Properties.Set(name, &jsonschema.Schema{
			Ref:         "#/$defs/" + nameType(t),
			Description: "Settings of a sink of kind " + name + ".",
		})
		sink.OneOf = append(sink.OneOf, &jsonschema.Schema{Required: []string{name}})
	}
}

// eitherForm adds what struct tags cannot say.
func eitherForm(defs jsonschema.Definitions) {
	object := defs["Resource"]
	description := object.Description
	object.Description = ""
	defs["Resource"] = &jsonschema.Schema{
		Description: description,
		OneOf:       []*jsonschema.Schema{{Type: "string", MinLength: new(uint64(1))}, object},
	}
	defs["Secret"].OneOf = []*jsonschema.Schema{{Required: []string{"env"}}, {Required: []string{"file"}}}
}
