package file

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
)

// Config is the `file` block.
type Config struct {
	// Path of the file. Tokens: {cluster} {group} {version} {resource} {namespace}
	// {name} {date} (day of the event, UTC). A relative path starts at the
	// process's working directory.
	Path string `json:"path"`

	// Rotate defines when a file is rotated: renamed, and a new one begun.
	Rotate Rotate `json:"rotate,omitzero"`

	// MaxOpenFiles bounds the files that are open at once.
	MaxOpenFiles int `json:"maxOpenFiles,omitempty" jsonschema:"default=128"`

	// MinFree is the free disk space that the sink leaves to others: the store may be
	// on the same disk. Batches wait while there is less. 0 fills the disk.
	MinFree sinks.Bytes `json:"minFree,omitempty" jsonschema:"oneof_type=string;integer,default=64Mi"`
}

// Rotate is the `rotate` block. Its zero value never rotates.
type Rotate struct {
	// MaxBytes begins a new file before this size is passed.
	MaxBytes sinks.Bytes `json:"maxBytes,omitempty" jsonschema:"oneof_type=string;integer"`

	// MaxAge begins a new file at every multiple of this time since 1970, UTC: 24h
	// rotates at midnight, whenever the process was started.
	MaxAge sinks.Duration `json:"maxAge,omitempty" jsonschema:"type=string"`

	// Keep is how many rotated files of one path are kept; 0 keeps all.
	Keep int `json:"keep,omitempty"`

	// Compress is gzip or none.
	Compress string `json:"compress,omitempty" jsonschema:"enum=none,enum=gzip,default=none"`
}

var _ sinks.Config = (*Config)(nil)

// NewConfig returns the block with its defaults.
func NewConfig() *Config {
	return &Config{MaxOpenFiles: 128, MinFree: 64 << 20, Rotate: Rotate{Compress: "none"}}
}

// Validate checks the block.
func (c *Config) Validate() error {
	var errs []error
	bad := func(path, msg string) { errs = append(errs, &sinks.FieldError{Path: path, Msg: msg}) }
	if strings.TrimSpace(c.Path) == "" {
		bad("path", "required, for example ./events/{resource}.jsonl")
	} else if _, err := parseTemplate(c.Path); err != nil {
		bad("path", err.Error())
	}
	if c.MaxOpenFiles < 1 {
		bad("maxOpenFiles", "must be at least 1")
	}
	if c.MinFree < 0 {
		bad("minFree", "must not be negative; 0 fills the disk")
	}
	if c.Rotate.MaxBytes < 0 {
		bad("rotate.maxBytes", "must not be negative; 0 means no limit")
	}
	if age := c.Rotate.MaxAge.Std(); age < 0 || age > 0 && age < time.Second {
		bad("rotate.maxAge", "must be at least 1s; 0 means no limit")
	}
	if c.Rotate.Keep < 0 {
		bad("rotate.keep", "must not be negative; 0 keeps all")
	}
	switch c.Rotate.Compress {
	case "", "none", "gzip":
	default:
		bad("rotate.compress", "gzip or none is wanted")
	}
	return errors.Join(errs...)
}

// Defaults are the delivery settings for files: large batches, since each costs
// an fsync, and one lane, since all lanes would wait for the same disk.
func (c *Config) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 512, MaxBytes: 4 << 20, Concurrency: 1}
}

// Open makes the sink. Folders and files are made by the first batch that needs
// them, so a disk that is full or not mounted is the sink's trouble alone.
func (c *Config) Open(_ context.Context, o sinks.Options) (sinks.Sink, error) {
	if err := o.Format.RequireText(); err != nil {
		return nil, err
	}
	t, err := parseTemplate(c.Path)
	if err != nil {
		return nil, &sinks.FieldError{Path: "path", Msg: err.Error()}
	}
	if !filepath.IsAbs(t.root) {
		t.root = filepath.Join(o.Dir, t.root)
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	return &sink{
		template: t,
		format:   o.Format,
		rotation: c.Rotate,
		minFree:  int64(c.MinFree),
		archive:  newArchivist(t, c.Rotate, o.Logger, m),
		log:      o.Logger,
		metrics:  m,
		io:       solo.New(),
		folder:   newFolder(t.root, c.MaxOpenFiles, o.Logger, m),
	}, nil
}
