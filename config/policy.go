package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/watcherd/watcherd/config/internal/strict"
)

// Policy bounds what a configuration may ask for. The operator sets it, apart
// from the file: a user who may edit the file cannot change it. The zero Policy allows everything.
// Any other refuses sinks that start a program, which would have what the process has.
type Policy struct {
	// SecretDirs are the folders of the files that the configuration may name for secrets,
	// keys, certificates and tokens; nil allows any file.
	SecretDirs []string
	// ForbidExposeSecrets refuses watches with exposeSecrets.
	ForbidExposeSecrets bool
}

// Check reports what the policy does not allow. Relative paths are those of the working
// directory; with SecretDirs, paths have no part "..". An error is an *[Errors].
func (p Policy) Check(c *Config) error {
	k := &checker{config: c}
	for i := range c.Watches {
		if p.ForbidExposeSecrets && c.Watches[i].ExposeSecrets {
			k.report(fmt.Sprintf("watches[%d].exposeSecrets", i), "is forbidden by --forbid-expose-secrets")
		}
	}
	for i := range c.Sinks {
		s := &c.Sinks[i]
		if of, ok := s.Settings.(starter); ok && of.Starts() != "" && (p.ForbidExposeSecrets || p.SecretDirs != nil) {
			k.report(strict.Key(strict.Key(strict.Index("sinks", i), s.Kind), of.Starts()),
				"starts a program, which neither --secret-dirs nor --forbid-expose-secrets bounds: run it beside watcherd, and have the sink connect to it")
		}
	}
	if p.SecretDirs == nil {
		return NewErrors(k.list...)
	}
	eachSource(c, func(path, key, file string) {
		if key == envKey {
			return
		}
		if slices.Contains(strings.Split(filepath.ToSlash(file), "/"), "..") { // behind a link it leads to another folder than its text
			k.report(path, "%s has a part '..', which may lead out of the folders of --secret-dirs: write it without", quoted(file))
			return
		}
		full, err := filepath.Abs(file)
		for _, dir := range p.SecretDirs {
			if dir, derr := filepath.Abs(dir); err == nil && derr == nil && (dir == string(filepath.Separator) || strings.HasPrefix(full, dir+string(filepath.Separator))) {
				return
			}
		}
		k.report(path, "%s is in none of the folders of --secret-dirs, which are %s", quoted(file), strings.Join(p.SecretDirs, ", "))
	})
	return NewErrors(k.list...)
}

// starter is implemented by the settings of kinds whose sinks may start a program: Starts returns the key that
// names it, "" if there is none.
type starter interface{ Starts() string }

// Unavailable are the environment variables and files that c names for secrets, keys,
// certificates and tokens, and that this process cannot read. Another process may.
func (c *Config) Unavailable() (list []*Error) {
	eachSource(c, func(path, key, name string) {
		if key == envKey {
			if os.Getenv(name) == "" {
				list = append(list, c.ErrorAt(path, "environment variable %s is not set here, or is empty", name))
			}
			return
		}
		f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for a writer
		if err == nil {
			defer f.Close()
			switch info, _ := f.Stat(); {
			case info == nil || info.Mode().IsRegular():
			case info.IsDir():
				err = errors.New("is a directory")
			default:
				err = errors.New("is not a regular file")
			}
		}
		if err != nil {
			list = append(list, c.ErrorAt(path, "%v", unreadable(name, err)))
		}
	})
	return list
}

// envKey is the key of the name of an environment variable.
const envKey = "env"

// eachSource calls f for every name of an environment variable, and every path of a file
// with secrets.
func eachSource(c *Config, f func(path, key, name string)) {
	eachText("", reflect.ValueOf(c).Elem(), f)
	for i := range c.Sinks {
		s := &c.Sinks[i]
		eachText(strict.Key(strict.Index("sinks", i), s.Kind), reflect.ValueOf(s.Settings), f)
	}
}

// eachText calls f for every text below v whose key is env or file, or ends in File, as those
// of all files with secrets do.
func eachText(path string, v reflect.Value, f func(path, key, text string)) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			eachText(path, v.Elem(), f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachText(strict.Index(path, i), v.Index(i), f)
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			eachText(strict.Key(path, fmt.Sprint(key)), value, f)
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
			if inner.Kind() == reflect.String && (name == envKey || name == "file" || strings.HasSuffix(name, "File")) && inner.String() != "" {
				f(at, name, inner.String())
			}
			eachText(at, inner, f)
		}
	}
}
