package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/watcherd/watcherd/config/internal/strict"
)

// Policy bounds what a configuration may ask for. The operator sets it, apart
// from the file: a user who may edit the file cannot change it. The zero Policy allows everything.
type Policy struct {
	// SecretDirs are the folders of the files that the configuration may name for secrets,
	// keys, certificates and tokens; nil allows any file.
	SecretDirs []string
	// ForbidExposeSecrets refuses watches with exposeSecrets.
	ForbidExposeSecrets bool
}

// Check reports what the policy does not allow. Relative paths are those of the working
// directory. An error is an *[Errors].
func (p Policy) Check(c *Config) error {
	k := &checker{config: c}
	for i := range c.Watches {
		if p.ForbidExposeSecrets && c.Watches[i].ExposeSecrets {
			k.report(fmt.Sprintf("watches[%d].exposeSecrets", i), "is forbidden by --forbid-expose-secrets")
		}
	}
	if p.SecretDirs == nil {
		return NewErrors(k.list...)
	}
	check := func(path, file string) {
		full, err := filepath.Abs(file)
		for _, dir := range p.SecretDirs {
			if dir, derr := filepath.Abs(dir); err == nil && derr == nil && (dir == string(filepath.Separator) || strings.HasPrefix(full, dir+string(filepath.Separator))) {
				return
			}
		}
		k.report(path, "%s is in none of the folders of --secret-dirs, which are %s", quoted(file), strings.Join(p.SecretDirs, ", "))
	}
	eachFile("", reflect.ValueOf(c).Elem(), check)
	for i := range c.Sinks {
		s := &c.Sinks[i]
		eachFile(strict.Key(strict.Index("sinks", i), s.Kind), reflect.ValueOf(s.Settings), check)
	}
	return NewErrors(k.list...)
}

// eachFile calls f for every text below v whose key is file or ends in File, as those of
// all files with secrets do.
func eachFile(path string, v reflect.Value, f func(path, file string)) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			eachFile(path, v.Elem(), f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachFile(strict.Index(path, i), v.Index(i), f)
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			eachFile(strict.Key(path, fmt.Sprint(key)), value, f)
		}
	case reflect.Struct:
		for _, field := range reflect.VisibleFields(v.Type()) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if !field.IsExported() || name == "-" || len(field.Index) > 1 {
				continue // the last are those of an embedded struct, which is visited itself
			}
			inner, at := v.FieldByIndex(field.Index), path
			if name != "" {
				at = strict.Key(path, name)
			}
			if inner.Kind() == reflect.String && (name == "file" || strings.HasSuffix(name, "File")) && inner.String() != "" {
				f(at, inner.String())
			}
			eachFile(at, inner, f)
		}
	}
}
