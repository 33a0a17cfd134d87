package sinks

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// Secret names where a secret value is to be found: never the value itself. In
// the configuration it is {env: NAME} or {file: PATH}.
//
// It holds no value, so printing it is safe. A file is read at each call of
// Value, so that a rotated one takes effect by itself.
type Secret struct {
	Env  string `json:"env,omitempty"`  // name of an environment variable
	File string `json:"file,omitempty"` // path of a file; one trailing newline is not part of the value
}

// IsZero reports whether no source is named.
func (s Secret) IsZero() bool { return s == Secret{} }

// Validate reports a *[FieldError] below path unless exactly one source is named.
func (s Secret) Validate(path string) error {
	if (s.Env == "") == (s.File == "") {
		return &FieldError{Path: path, Msg: "name exactly one source: {env: NAME} or {file: PATH}"}
	}
	return nil
}

// In returns the secret with a relative file taken from dir ([Options.Dir]).
func (s Secret) In(dir string) Secret {
	s.File = InDir(dir, s.File)
	return s
}

// InDir returns path as it is when it is empty or absolute, and below dir
// otherwise.
func InDir(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// Value reads the secret. The error names the source, never the value.
func (s Secret) Value() (string, error) {
	if s.Env != "" {
		v, ok := os.LookupEnv(s.Env)
		if !ok || v == "" {
			return "", fmt.Errorf("environment variable %s is not set or empty", s.Env)
		}
		return v, nil
	}
	b, err := os.ReadFile(s.File)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	v := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if v == "" {
		return "", fmt.Errorf("secret file %s is empty", s.File)
	}
	return v, nil
}

// LogValue shows where the secret comes from.
func (s Secret) LogValue() slog.Value {
	if s.Env != "" {
		return slog.StringValue("env:" + s.Env)
	}
	return slog.StringValue("file:" + s.File)
}
