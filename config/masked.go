package config

import (
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/watcherd/watcherd/config/internal/strict"
)

// mask stands for a text that may be a secret.
const mask = "***"

// Masked is the content of a configuration file as JSON with sorted keys, nil if it is not
// YAML. There are no comments. A text or number is replaced unless its key is known to hold no
// secret, and an address has its host alone. The names of environment variables and files that
// secrets are read from stay.
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
	raw, err := json.Marshal(maskedValue(v, "", false))
	if err != nil {
		return nil
	}
	return raw
}

var (
	// harmless are the keys whose texts and numbers are shown, beside those of files and of names of clients.
	harmless = strings.Fields(`apiVersion kind name path interval bucket region qps burst listen probes maxAge maxBytes maxLen dedupe master minFree env file
		watches resources resource group version excludeResources include exclude selector labelSelector fieldSelector selectorSide
		snapshot drop keep redact redactPresets onMissing events when onError changed sample labels maxSeries payload enrich per for sinks
		format contentType maxEvents maxWait initial max poisonAttempts heartbeat concurrency onOversize startFrom compress maxOpenFiles pretty
		method timeout maxEventBytes accept serverName scopes subject subjects stream storage replicas duplicateWindow topic mode acks
		takeOverAfter compression maxMessageBytes partitions mechanism timestamps index tombstones schema tables`)
	addresses = []string{"url", "urls", "endpoint", "proxyURL", "tokenURL", "brokers"}

	// confidentialKey is of values in which only the names of variables and files are shown.
	confidentialKey = regexp.MustCompile(`(?i)pass|pwd|token|secret|credential|key|headers|config|dsn`)
	// credentials are in a text with any key.
	credentials = regexp.MustCompile(`(?i)(password|passwd|pwd|token|secret|api.?key)\s*[=:]|\bbearer\s|\bbasic\s|^[^\s/]+@|://|-----BEGIN`)
	plainKey    = regexp.MustCompile(`^[\w.-]{1,128}$`)
	plainPath   = regexp.MustCompile(`^[\w.\-\[\]"]*`)
	hostPort    = regexp.MustCompile(`^[\w.-]+:\d+$`)
)

// maskedValue is the value of a key, or the item of its list, without what may be a secret.
func maskedValue(v any, key string, confidential bool) any {
	switch v := v.(type) {
	case map[string]any:
		shown := make(map[string]any, len(v))
		confidential = confidential || confidentialKey.MatchString(key)
		for k, value := range v {
			inner, below := k, confidential && k != "env" && k != "file"
			if key == "labels" { // its keys are names
				inner = key
			}
			if !plainKey.MatchString(k) {
				k = mask
			}
			shown[k] = maskedValue(value, inner, below)
		}
		return shown
	case []any:
		for i := range v {
			v[i] = maskedValue(v[i], key, confidential)
		}
	case string:
		return maskedText(v, key, confidential)
	case float64:
		if confidential || !slices.Contains(harmless, key) {
			return mask
		}
	}
	return v
}

func maskedText(s, key string, confidential bool) string {
	switch {
	case s == "" || strings.HasSuffix(key, "Names") && !confidential:
		return s
	case confidential:
		return mask
	case slices.Contains(addresses, key):
		return maskedAddress(s)
	case !slices.Contains(harmless, key) && !strings.HasSuffix(key, "File"), credentials.MatchString(s), key == "env" && !plainKey.MatchString(s):
		return mask
	}
	return s
}

func maskedAddress(s string) string {
	u, err := url.Parse(s)
	switch {
	case hostPort.MatchString(s):
		return s
	case err != nil || u.Host == "" || strings.Count(s, "@") > 1 || u.User == nil && strings.Contains(s, "@"):
		return mask // what is left of a broken address may be a part of a password
	case u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return u.Scheme + "://" + u.Host + "/" + mask
	}
	return s
}

// maskedPath is a key path up to what is not plain in a key: in {Authorization:Bearer TOKEN}, the value is a part of the key.
func maskedPath(path string) string {
	if plain := plainPath.FindString(path); plain != path {
		return plain + mask
	}
	return path
}
