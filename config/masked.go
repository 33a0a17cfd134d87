package config

import (
	"encoding/json"
	"net/url"
	"regexp"
	"strings"

	"github.com/watcherd/watcherd/config/internal/strict"
)

// mask stands for a text that may be a secret.
const mask = "***"

// Masked is the content of a configuration file as JSON with sorted keys, nil if it is not
// YAML. There are no comments, and a text that may be a secret is replaced: what a key such as
// password or token has, the values of headers, and of an address all but its host. The names
// of environment variables and files that secrets are read from stay.
func Masked(data []byte) json.RawMessage {
	if len(data) > MaxSize {
		return nil
	}
	doc, problem := strict.Parse(data)
	if problem != nil {
		return nil
	}
	return masked(doc)
}

// Masked is that of the file, nil for a Config made by a program.
func (c *Config) Masked() json.RawMessage {
	if c.source.doc == nil {
		return nil
	}
	return masked(c.source.doc)
}

func masked(doc *strict.Document) json.RawMessage {
	var v any
	raw := doc.JSON()
	if json.Unmarshal(raw, &v) != nil {
		return nil
	}
	raw, err := json.Marshal(maskedValue(v, false))
	if err != nil {
		return nil
	}
	return raw
}

var (
	confidentialKey = regexp.MustCompile(`(?i)pass|pwd|token|secret|credential|api.?key|access.?key|private|signing|auth|cookie|headers|dsn`)
	// credentials are in the text of a connection, with any key.
	credentials = regexp.MustCompile(`(?i)(password|passwd|pwd|token|secret|api.?key)\s*[=:]|\bbearer\s|\bbasic\s|^[^\s/]+@`)
)

// maskedValue is v without what may be a secret. confidential: all texts of it may be.
func maskedValue(v any, confidential bool) any {
	switch v := v.(type) {
	case map[string]any:
		if reference(v) {
			return v
		}
		for key, value := range v {
			names := strings.HasSuffix(key, "File") || strings.HasSuffix(key, "Names") // of files, of clients
			v[key] = maskedValue(value, !names && (confidential || confidentialKey.MatchString(key)))
		}
	case []any:
		for i := range v {
			v[i] = maskedValue(v[i], confidential)
		}
	case string:
		return maskedText(v, confidential)
	case float64:
		if confidential {
			return mask
		}
	}
	return v
}

func maskedText(s string, confidential bool) string {
	if confidential && s != "" || credentials.MatchString(s) {
		return mask
	}
	if strings.Contains(s, "://") && !strings.ContainsAny(s, " \n") {
		u, err := url.Parse(s)
		switch {
		case err != nil:
			return mask
		case u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
			return u.Scheme + "://" + u.Host + "/" + mask
		}
	}
	return s
}

// reference reports whether a mapping names where a secret is to be found.
func reference(m map[string]any) bool {
	for key, value := range m {
		if _, text := value.(string); !text || key != "env" && key != "file" {
			return false
		}
	}
	return len(m) == 1
}
