package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// Header is the value of a header: text, or a secret.
type Header struct {
	Text   string
	Secret sinks.Secret
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
