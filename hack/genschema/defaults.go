package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/invopop/jsonschema"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// addDefaults shows the values that v, a struct, holds as the defaults of its
// type's properties, and those of the structs in it.
func addDefaults(defs jsonschema.Definitions, v reflect.Value) {
	def, ok := defs[nameType(v.Type())]
	if !ok {
		return
	}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		property, ok := def.Properties.Get(name)
		if !ok {
			continue
		}
		if value, ok := written(v.Field(i)); ok {
			property.Default = value
		} else if v.Field(i).Kind() == reflect.Struct {
			addDefaults(defs, v.Field(i))
		}
	}
}

// written is a value the way a file has it; there is none for what is empty or a
// block of its own.
func written(v reflect.Value) (any, bool) {
	if v.IsZero() && v.Kind() != reflect.Bool {
		return nil, false
	}
	switch value := v.Interface().(type) {
	case time.Duration:
		return spell(value), true
	case sinks.Duration:
		return spell(value.Std()), true
	case resource.Quantity:
		return value.String(), true
	case sinks.Bytes:
		return resource.NewQuantity(int64(value), resource.BinarySI).String(), true
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Pointer, reflect.Map, reflect.Interface:
		return nil, false
	case reflect.Slice:
		if v.Len() == 0 || v.Type().Elem().Kind() != reflect.String {
			return nil, false
		}
	}
	b, err := json.Marshal(v.Interface())
	return json.RawMessage(b), err == nil
}

// spell writes 5m0s as 5m.
func spell(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
