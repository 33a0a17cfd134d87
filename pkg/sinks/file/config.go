package file

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
	tokens "github.com/watcherd/watcherd/pkg/sinks/internal/template"
)

// Config is the `file` block.
type Config struct {
	// Path of the file. Tokens: {cluster} {group} {version} {resource} {namespace}
	// {name} {date} (day of the event, UTC). A relative path starts at the
	// process's working directory.
	Path string `json:"path"`

	// Rotate defines when a file is rotated: renamed, and a new one begun.
	Rotate Rotate `json:"rotate,omitzero"`

	// Mode is the permissions of the files, as an octal number in quotes. Their owner
	// needs to read and write. New folders can be entered by those who may read. Files that exist get it
	// when they are opened, unless it is left out.
	Mode string `json:"mode,omitempty" jsonschema:"default=0600,pattern=^0?[67][0-7][0-7]$"`

	// Group is the group of the files and of new folders, by name or number, for example
	// that of a log shipper with mode "0640". The user of the process must be a member.
	Group string `json:"group,omitempty"`

	// MaxOpenFiles bounds the files that are open at once.
	MaxOpenFiles int `json:"maxOpenFiles,omitempty" jsonschema:"default=128"`

	// MinFree is the free disk space that the sink leaves to others: the store may be
	// on the same disk. Batches wait while there is less; compression may take half of it,
	// as it makes room. 0 fills the disk.
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

// Output is the path of the files, with its tokens. Two sinks cannot write to one file.
func (c *Config) Output() string {
	path, err := filepath.Abs(c.Path)
	if err != nil {
		return filepath.Clean(c.Path)
	}
	return path
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
	if _, err := parseMode(c.Mode); err != nil {
		bad("mode", err.Error())
	}
	if _, err := lookupGroup(c.Group); err != nil {
		bad("group", err.Error())
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
		bad("rotate.compress", "must be gzip or none")
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
	rights, err := c.access()
	if err != nil {
		return nil, err
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
		archive:  newArchivist(t, c.Rotate, int64(c.MinFree)/2, rights, o.Logger, m),
		log:      o.Logger,
		metrics:  m,
		io:       solo.New(),
		folder: &folder{
			path: t.root, maxOpen: c.MaxOpenFiles, whole: map[string]struct{}{}, access: rights, log: o.Logger, metrics: m,
			files: map[string]*list.Element{}, recent: list.New(),
		},
	}, nil
}

// template is a parsed path: the literal folder before the first token, and the name
// below it.
type template struct {
	root string
	name tokens.Template
}

// parseTemplate reads a path such as ./events/{group}/{resource}-{date}.jsonl.
func parseTemplate(path string) (*template, error) {
	literal, _, _ := strings.Cut(path, "{")
	dir, _ := filepath.Split(literal)
	name := path[len(dir):]
	if strings.ContainsRune(path, 0) {
		return nil, errors.New("must not hold a NUL character")
	}
	parsed, err := tokens.Parse(name, tokens.Cluster, tokens.Group, tokens.Version, tokens.Resource, tokens.Namespace, tokens.Name, tokens.Date)
	if err != nil {
		return nil, err
	}
	if name == "" || strings.HasSuffix(name, string(filepath.Separator)) {
		return nil, errors.New("must end in the name of a file")
	}
	// Every value is at least one safe character, so a name that is local with
	// letters for tokens is local with any values.
	if sample := parsed.Sample("x"); !filepath.IsLocal(sample) || filepath.Clean(sample) != sample {
		return nil, errors.New("must have no empty part, . or .. after its first token")
	}
	return &template{root: filepath.Clean(dir), name: parsed}, nil // of "": "."
}

// append appends the name of e's file, relative to the root.
func (t *template) append(dst []byte, e *event.Event) []byte {
	start := len(dst)
	dst = t.name.Append(dst, e, appendValue)
	if len(dst)-start > maxPart {
		dst = append(dst[:start], shorten(string(dst[start:]))...)
	}
	return dst
}

// maxPart bounds a part of a name: file systems take 255 bytes, and a rotated file's name
// is longer by a time and endings.
const maxPart = 255 - len(mark+stamp+gz+partial)

// shorten returns the name with a hash in the place of what is too long of each part.
func shorten(name string) string {
	const hash, longestExt = 1 + 32, 32
	parts := strings.Split(name, string(filepath.Separator))
	for i, part := range parts {
		if len(part) <= maxPart {
			continue
		}
		ext := filepath.Ext(part)
		if len(ext) > longestExt {
			ext = ""
		}
		parts[i] = string(appendHash([]byte(part[:maxPart-hash-len(ext)]), part)) + ext
	}
	return strings.Join(parts, string(filepath.Separator))
}

// appendHash appends what takes the place of the rest of a text. No value holds a tilde.
func appendHash(dst []byte, whole string) []byte {
	sum := sha256.Sum256([]byte(whole))
	return hex.AppendEncode(append(dst, '~'), sum[:16])
}

// matcher returns an expression for the names, relative to the root, that t gives.
func (t *template) matcher() *regexp.Regexp {
	var b strings.Builder
	b.WriteByte('^')
	for _, p := range t.name {
		if p.Token == "" {
			b.WriteString(regexp.QuoteMeta(p.Text))
		} else {
			b.WriteString(`[A-Za-z0-9%_~.-]+`)
		}
	}
	b.WriteByte('$')
	return regexp.MustCompile(b.String())
}

// maxValue bounds one value, so that in most names others and the text between them stay.
const maxValue = 160

var harmless = tokens.NewCharset(func(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.'
})

// appendValue appends a value so that it is one harmless part of a file's name:
// what is not a letter, a digit, an inner dot, a dash or an underscore becomes %XX,
// which keeps different values different. A value that is too long ends in its
// hash instead.
func appendValue(dst []byte, value string) []byte {
	start, whole := len(dst), value
	if value[0] == '.' {
		dst, value = append(dst, "%2E"...), value[1:]
	}
	dst = harmless.Percent(dst, value)
	if len(dst)-start > maxValue {
		dst = appendHash(dst[:start+maxValue-33], whole)
	}
	return dst
}
