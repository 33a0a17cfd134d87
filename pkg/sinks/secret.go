package sinks

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
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

// Header is the value of a header of HTTP, or a URL: text, or a secret.
type Header struct {
	Text   string
	Secret Secret
}

// UnmarshalJSON reads a string, or {"env": ...} or {"file": ...}.
func (h *Header) UnmarshalJSON(b []byte) error {
	*h = Header{}
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &h.Text)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&h.Secret); err != nil {
		return fmt.Errorf("text, {env: NAME} or {file: PATH} is wanted: %w", err)
	}
	if h.Secret.IsZero() {
		return fmt.Errorf("text, {env: NAME} or {file: PATH} is wanted, not %s", b)
	}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (h Header) MarshalJSON() ([]byte, error) {
	if h.Secret.IsZero() {
		return json.Marshal(h.Text)
	}
	return json.Marshal(h.Secret)
}

// Validate reports a *[FieldError] at path for a header that HTTP cannot carry, or whose value
// must not be part of the configuration unless insecure is set.
func (h Header) Validate(path, name string, insecure bool) error {
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return &FieldError{Path: path, Msg: "is not the name of a header"}
	case !h.Secret.IsZero():
		return h.Secret.Validate(path)
	case confidential(name) && !insecure:
		return &FieldError{Path: path, Msg: "is a secret: name where it is to be found, {env: NAME} or {file: PATH}"}
	case !httpguts.ValidHeaderFieldValue(h.Text):
		return &FieldError{Path: path, Msg: "holds a character that no header can carry"}
	}
	return nil
}

// Value is the text, or the secret's value, read at each call. A relative file is taken from dir.
func (h Header) Value(dir string) (string, error) {
	if h.Secret.IsZero() {
		return h.Text, nil
	}
	v, err := h.Secret.In(dir).Value()
	if err == nil && !httpguts.ValidHeaderFieldValue(v) {
		err = errors.New("the secret holds a character that no header can carry")
	}
	return v, err
}

// BasicAuth is the `basicAuth` block of kinds that speak HTTP: a user and a password.
type BasicAuth struct {
	Username string `json:"username"`
	Password Secret `json:"password"`
}

// Validate reports every problem of the block, which is at path.
func (b *BasicAuth) Validate(path string) error {
	err := b.Password.Validate(path + ".password")
	if b.Username == "" || strings.ContainsRune(b.Username, ':') {
		err = errors.Join(err, &FieldError{Path: path + ".username", Msg: "required, and without a colon"})
	}
	return err
}

// Header is the value of the header Authorization.
func (b *BasicAuth) Header(password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(b.Username+":"+password))
}

// PlainText reports whether requests to a URL leave the machine unencrypted.
func PlainText(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Hostname() == "localhost" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return ip == nil || !ip.IsLoopback()
}

// confidential reports whether the value of a header is a secret, by its name.
func confidential(name string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "-", "")
	return slices.ContainsFunc([]string{"authorization", "cookie", "token", "secret", "password", "passwd", "credential", "apikey", "accesskey", "authkey", "routingkey"},
		func(word string) bool { return strings.Contains(name, word) })
}
