package file

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/watcherd/watcherd/pkg/event"
)

// template is a parsed path: the literal folder before the first token, and the
// pieces of the name below it.
type template struct {
	root   string
	pieces []piece
}

// piece is literal text, or the value of a token when token is not empty.
type piece struct{ text, token string }

// tokens are the names a path may hold in braces.
var tokens = map[string]func(dst []byte, e *event.Event) []byte{
	"cluster":   func(dst []byte, e *event.Event) []byte { return appendValue(dst, e.Cluster, "_") },
	"group":     func(dst []byte, e *event.Event) []byte { return appendValue(dst, e.Resource.Group, "core") },
	"version":   func(dst []byte, e *event.Event) []byte { return appendValue(dst, e.Resource.Version, "_") },
	"resource":  func(dst []byte, e *event.Event) []byte { return appendValue(dst, e.Resource.Resource, "_") },
	"namespace": func(dst []byte, e *event.Event) []byte { return appendValue(dst, e.Namespace, "_") },
	"name":      func(dst []byte, e *event.Event) []byte { return appendValue(dst, e.Name, "_") },
	"date":      func(dst []byte, e *event.Event) []byte { return e.Time.UTC().AppendFormat(dst, "2006-01-02") },
}

// parseTemplate reads a path such as ./events/{group}/{resource}-{date}.jsonl.
func parseTemplate(path string) (*template, error) {
	literal, _, _ := strings.Cut(path, "{")
	dir, _ := filepath.Split(literal)
	t := &template{root: filepath.Clean(dir)} // of "": "."
	name := path[len(dir):]
	if strings.ContainsRune(path, 0) {
		return nil, errors.New("must not hold a NUL character")
	}
	// Every value is at least one safe character, so a name that is local with
	// letters for tokens is local with any values.
	sample := name
	for token := range tokens {
		sample = strings.ReplaceAll(sample, "{"+token+"}", "x")
	}
	if name == "" || strings.HasSuffix(name, string(filepath.Separator)) {
		return nil, errors.New("must end in the name of a file")
	}
	if !filepath.IsLocal(sample) || filepath.Clean(sample) != sample {
		return nil, errors.New("must have no empty part, . or .. after its first token")
	}
	for name != "" {
		text, rest, found := strings.Cut(name, "{")
		if strings.ContainsRune(text, '}') {
			return nil, errors.New("has a } without a {")
		}
		if text != "" {
			t.pieces = append(t.pieces, piece{text: text})
		}
		if !found {
			break
		}
		token, after, closed := strings.Cut(rest, "}")
		if !closed {
			return nil, errors.New("has a { without a }")
		}
		if tokens[token] == nil {
			return nil, fmt.Errorf("has the unknown token {%s}; known are {cluster} {group} {version} {resource} {namespace} {name} {date}", token)
		}
		t.pieces = append(t.pieces, piece{token: token})
		name = after
	}
	return t, nil
}

// append appends the name of e's file, relative to the root.
func (t *template) append(dst []byte, e *event.Event) []byte {
	for _, p := range t.pieces {
		if p.token == "" {
			dst = append(dst, p.text...)
		} else {
			dst = tokens[p.token](dst, e)
		}
	}
	return dst
}

// matcher returns an expression for the names, relative to the root, that t gives.
func (t *template) matcher() *regexp.Regexp {
	var b strings.Builder
	b.WriteByte('^')
	for _, p := range t.pieces {
		if p.token == "" {
			b.WriteString(regexp.QuoteMeta(p.text))
		} else {
			b.WriteString(`[A-Za-z0-9%_~.-]+`)
		}
	}
	b.WriteByte('$')
	return regexp.MustCompile(b.String())
}

// maxValue bounds one value in a name: file systems take 255 bytes for a part,
// and a rotated file's name is longer by a time and a suffix.
const maxValue = 160

// appendValue appends a value so that it is one harmless part of a file's name:
// what is not a letter, a digit, an inner dot, a dash or an underscore becomes %XX,
// which keeps different values different. A value that is too long ends in its
// hash instead.
func appendValue(dst []byte, value, empty string) []byte {
	if value == "" {
		return append(dst, empty...)
	}
	const hexdigits = "0123456789ABCDEF"
	start := len(dst)
	for i := range len(value) {
		c := value[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.' && i > 0:
			dst = append(dst, c)
		default:
			dst = append(dst, '%', hexdigits[c>>4], hexdigits[c&15])
		}
	}
	if len(dst)-start > maxValue {
		sum := sha256.Sum256([]byte(value))
		dst = hex.AppendEncode(append(dst[:start+maxValue-33], '~'), sum[:16])
	}
	return dst
}
