package config_test

import (
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/watcherd/watcherd/config"
)

// The kinds of these tests have every type of field that a kind can have.

type lakeConfig struct {
	URL      string              `json:"url"`
	Token    *secret             `json:"token,omitempty"`
	Headers  map[string]secret   `json:"headers,omitempty"`
	Labels   map[string]string   `json:"labels,omitempty"`
	Timeout  time.Duration       `json:"timeout,omitempty"`
	MaxBytes resource.Quantity   `json:"maxBytes"`
	Level    int8                `json:"level,omitempty"`
	Port     uint16              `json:"port,omitempty"`
	Ratio    float32             `json:"ratio,omitempty"`
	Mode     mode                `json:"mode,omitempty"`
	Size     size                `json:"size"`
	Extra    any                 `json:"extra,omitempty"`
	TLS      *tlsBlock           `json:"tls,omitempty"`
	Steps    []step              `json:"steps,omitempty"`
	Groups   map[string][]string `json:"groups,omitempty"`
	common
}

type common struct {
	Compress bool `json:"compress"`
}

type tlsBlock struct {
	CAFile string `json:"caFile"`
}

type step struct {
	Do   string `json:"do"`
	Left int    `json:"left"`
}

func (s *step) SetDefaults() { s.Left = 7 }

// secret has the manner of sinks.Secret.
type secret struct {
	Env  string `json:"env,omitempty"`
	File string `json:"file,omitempty"`
}

func (secret) Value() (string, error) { return "", errors.New("not asked for while loading") }

// mode decodes itself from text.
type mode string

func (m *mode) UnmarshalText(text []byte) error {
	if string(text) != "fast" && string(text) != "safe" {
		return errors.New("must be fast or safe")
	}
	*m = mode(text)
	return nil
}

// size decodes itself from JSON.
type size struct{ w, h int }

func (s *size) UnmarshalJSON(b []byte) error {
	if string(b) == `[3,4]` {
		*s = size{3, 4}
		return nil
	}
	return errors.New("must be [3, 4]")
}

type fieldError struct{ path, msg string }

// placed is a problem within the text of a field.
type placed struct {
	fieldError
	line, column int
}

func (e *placed) Within() (line, column int) { return e.line, e.column }

func (e *fieldError) Error() string                { return e.path + ": " + e.msg }
func (e *fieldError) Field() (path, msg string)    { return e.path, e.msg }
func (c *lakeConfig) fault(path, msg string) error { return &fieldError{path, msg} }

func (c *lakeConfig) Validate() error {
	var errs []error
	if c.URL == "" {
		errs = append(errs, c.fault("url", "is required"))
	}
	if c.URL == "ftp://x" {
		errs = append(errs, errors.New("a lake speaks no FTP"))
	}
	if column := strings.Index(c.URL, "\t"); column >= 0 {
		errs = append(errs, &placed{fieldError{"url", "a lake speaks no tabs"}, 1, column + 1})
	}
	if c.TLS != nil && c.TLS.CAFile == "" {
		errs = append(errs, c.fault("tls.caFile", "is required"))
	}
	if s, ok := c.Headers["X-Odd.Name"]; ok && s.Env == "" {
		errs = append(errs, c.fault(`headers["X-Odd.Name"]`, "name its variable"))
	}
	return errors.Join(errs...)
}

type consoleConfig struct{}

func kinds() config.Kinds {
	return config.Kinds{
		"lake":    func() any { return &lakeConfig{Timeout: 15 * time.Second, common: common{Compress: true}} },
		"console": func() any { return consoleConfig{} },
	}
}
