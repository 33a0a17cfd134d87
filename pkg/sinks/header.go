package sinks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Header is the value of a header of HTTP: text, or a secret.
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
// must not be part of the configuration.
func (h Header) Validate(path, name string) error {
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return &FieldError{Path: path, Msg: "is not the name of a header"}
	case !h.Secret.IsZero():
		return h.Secret.Validate(path)
	case confidential(name):
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

// confidential are headers whose value must not stand in the configuration.
func confidential(name string) bool {
	switch strings.ToLower(name) {
	case "authorization", "proxy-authorization", "cookie", "x-api-key", "x-auth-token":
		return true
	default:
		return false
	}
}
