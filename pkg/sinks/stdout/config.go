package stdout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/pretty"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// Pretty defines when to write the form for people instead of JSON.
type Pretty string

// The values of `pretty`.
const (
	Never  Pretty = "false" // the default
	Always Pretty = "true"
	Auto   Pretty = "auto" // when standard output is a terminal
)

// UnmarshalJSON reads a boolean or "auto".
func (p *Pretty) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case "false":
		*p = Never
	case "true":
		*p = Always
	case `"auto"`:
		*p = Auto
	default:
		return fmt.Errorf("must be true, false or auto, not %s", b)
	}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (p Pretty) MarshalJSON() ([]byte, error) {
	if p == Auto {
		return json.Marshal(string(Auto))
	}
	return json.Marshal(p == Always)
}

// Config is the `stdout` block.
type Config struct {
	// Pretty writes a line for people instead of JSON: true, false or auto (when
	// standard output is a terminal).
	Pretty Pretty `json:"pretty,omitempty" jsonschema:"oneof_type=boolean;string,default=false"`
}

var _ sinks.Config = (*Config)(nil)

// NewConfig returns the block with its defaults.
func NewConfig() *Config { return &Config{Pretty: Never} }

// Validate checks the block.
func (c *Config) Validate() error {
	switch c.Pretty {
	case "", Never, Always, Auto:
		return nil
	default:
		return &sinks.FieldError{Path: "pretty", Msg: "must be true, false or auto"}
	}
}

// Defaults are the delivery settings for standard output.
func (c *Config) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 256, MaxBytes: 4 << 20, Concurrency: 1}
}

// Open makes the sink. It touches nothing yet.
func (c *Config) Open(_ context.Context, o sinks.Options) (sinks.Sink, error) {
	if err := o.Format.RequireText(); err != nil {
		return nil, err
	}
	if o.Stdout == nil {
		return nil, errors.New("no standard output to write to")
	}
	s := &sink{output: share(o.Stdout), encode: o.Format.AppendLine}
	if c.Pretty == Always || c.Pretty == Auto && pretty.IsTerminal(o.Stdout) {
		printer := pretty.Printer{Color: pretty.WantsColor(o.Stdout)}
		s.encode = func(dst []byte, e *event.Event) []byte {
			if e.Body != nil {
				return o.Format.AppendLine(dst, e)
			}
			return printer.Append(dst, e)
		}
	}
	return s, nil
}
