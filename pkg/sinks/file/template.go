package file

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/watcherd/watcherd/pkg/event"
	tokens "github.com/watcherd/watcherd/pkg/sinks/internal/template"
)

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
