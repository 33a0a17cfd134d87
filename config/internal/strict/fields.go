package strict

import (
	"reflect"
	"strings"
)

// fields are the keys of a struct.
type fields struct {
	names []string
	index map[string][]int // key → field index for reflect.Value.FieldByIndex
}

// fieldsOf lists the exported fields of a struct type that carry a json tag with
// a name; those of embedded structs without one count as the struct's own.
func fieldsOf(t reflect.Type) fields {
	f := fields{index: map[string][]int{}}
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || name == "" || name == "-" {
			continue
		}
		if _, ok := f.index[name]; !ok {
			f.index[name] = field.Index
			f.names = append(f.names, name)
		}
	}
	return f
}
