package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// Value is text, or a secret.
type Value struct {
	Text   string
	Secret sinks.Secret
}

// UnmarshalJSON reads a string, or {"env": ...} or {"file": ...}.
func (v *Value) UnmarshalJSON(b []byte) error {
	*v = Value{}
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &v.Text)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&v.Secret); err != nil {
		return fmt.Errorf("text, {env: NAME} or {file: PATH} is wanted: %w", err)
	}
	if v.Secret.IsZero() {
		return fmt.Errorf("text, {env: NAME} or {file: PATH} is wanted, not %s", b)
	}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (v Value) MarshalJSON() ([]byte, error) {
	if v.Secret.IsZero() {
		return json.Marshal(v.Text)
	}
	return json.Marshal(v.Secret)
}
