package redact

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// isApplied reports whether tools store the manifest that they applied in an annotation, as
// text or compressed. The manifest repeats a Secret's values (CVE-2019-10223, CVE-2019-17110
// in kube-state-metrics) and every other value that a watch redacts.
func isApplied(annotation []byte) bool {
	for _, end := range [...]string{
		"/last-applied-configuration", "/last-applied", // kubectl, KubeVela, KUDO, TiDB, Banzai Cloud
		"/last-handled-configuration",     // kopf
		"lastSuccessfulConfiguration",     // MongoDB
		"objectset.rio.cattle.io/applied", // Rancher, k3s
		"kapp.k14s.io/original",           // Carvel
	} {
		if bytes.HasSuffix(annotation, []byte(end)) {
			return true
		}
	}
	return false
}

// editManifest edits an applied manifest as h.manifest does, and replaces what contains a Secret's
// or is not a JSON object. Its hashes are bound to the object that has it: a manifest may name any.
func (h *hasher) editManifest(dst, value []byte, at *rawjson.Place) []byte {
	if value[0] != '"' || holdsSecret(value) {
		return h.replace(dst, value, at)
	}
	text := bytes.TrimSpace(textOf(value))
	namespace, name := at.Of()
	edited, _, err := h.manifest.AppendAt(nil, string(namespace), string(name), nil, text)
	if err != nil || !bytes.HasPrefix(edited, []byte{'{'}) {
		return h.replace(dst, value, at)
	}
	if bytes.Equal(edited, text) {
		return append(dst, value...)
	}
	quoted, err := json.Marshal(string(edited))
	if err != nil { // a string always marshals
		panic(err)
	}
	return append(dst, quoted...)
}

// replaceManifests replaces an annotation of an applied manifest or whose text contains a
// Secret's, and copies every other one.
func (h *hasher) replaceManifests(dst, value []byte, at *rawjson.Place) []byte {
	if isApplied(at.Key()) || holdsSecret(value) {
		return h.replace(dst, value, at)
	}
	return append(dst, value...)
}

// replaceCopies replaces an annotation of a Secret that holds a copy of its values, and
// copies every other one. Where the values are not known, which is the case of metadata
// and of a patch alone, it replaces every annotation.
func (h *hasher) replaceCopies(dst, value []byte, at *rawjson.Place) []byte {
	own := h.ownOf(at)
	if (own.hidden || own.unknown) && (isApplied(at.Key()) || value[0] == '"' && (own.unknown || own.copied(textOf(value), layers))) {
		return h.replace(dst, value, at)
	}
	return append(dst, value...)
}

// replaceMentions replaces any other string of a Secret that holds one of its longer
// values. Labels and names repeat user names and the like, by which objects are selected.
func (h *hasher) replaceMentions(dst, value []byte, at *rawjson.Place) []byte {
	if value[0] == '"' && h.ownOf(at).mentioned(unquoted(textOf(value)), minMention) {
		return h.replace(dst, value, at)
	}
	return append(dst, value...)
}

const (
	// minCopy and minMention are the lengths below which a value is not searched for.
	minCopy, minMention = 6, 16
	// maxValue is the length of the part of a long value that is searched for, its
	// beginning: whole groups of base64.
	maxValue = 3 * 350
	// layers bounds base64 and gzip within each other.
	layers = 3
	// minEncoded is the length of text from which it is decoded as base64.
	minEncoded = 16
	// maxSearch bounds the bytes that are searched and decoded for one object, and
	// maxInflated those of one gzip. Text beyond it counts as a copy.
	maxSearch   = 32 << 20
	maxInflated = 4 << 20
)

// ownValues are the values of a Secret, as they are searched for in its other strings.
type ownValues struct {
	unknown bool
	hidden  bool     // there are any, or the Secret is not exposed
	list    [][]byte // as unquoted leaves them, and their base64
	room    int      // what is left of maxSearch
}

// ownOf returns the values of the Secret that is edited, of an exposed one those that are hidden.
func (h *hasher) ownOf(at *rawjson.Place) *ownValues {
	if known, ok := at.Memo.(*ownValues); ok {
		return known
	}
	own := &ownValues{unknown: at.Object == nil, hidden: h.hides == nil, room: maxSearch}
	at.Memo = own
	namespace, name := at.Of()
	shown := map[string]bool{} // values of an exposed Secret
	if h.hides != nil && !own.unknown {
		left, err := h.hides.Append(nil, at.Object)
		own.unknown = err != nil
		for key, value := range rawjson.Members(left) {
			if string(key) == "data" || string(key) == "stringData" {
				for k, v := range rawjson.Members(value) {
					shown[string(key)+"/"+string(k)+string(v)] = !event.IsRedacted(v)
				}
			}
		}
	}
	for key, value := range rawjson.Members(at.Object) {
		switch string(key) {
		case "kind":
			own.unknown = own.unknown || string(value) == `"PartialObjectMetadata"`
		case "data", "stringData":
			for k, v := range rawjson.Members(value) {
				if h.hides != nil && shown[string(key)+"/"+string(k)+string(v)] {
					continue
				}
				if own.hidden = true; v[0] != '"' || event.IsRedacted(v) {
					continue
				}
				for _, text := range []func([]byte) []byte{beginning, textOf} { // all of it if there are only blanks
					value := text(v)
					if decoded, err := base64.StdEncoding.AppendDecode(nil, value); err == nil && string(key) == "data" {
						value = decoded
					}
					if bytes.Equal(value, namespace) || bytes.Equal(value, name) || own.add(value) {
						break
					}
				}
			}
		}
	}
	return own
}

// beginning returns as much of a JSON string's text as is searched for.
func beginning(value []byte) []byte {
	const length = maxValue / 3 * 4
	if len(value) > length+1 && bytes.IndexByte(value[:length+1], '\\') < 0 {
		return value[1 : 1+length]
	}
	return textOf(value)
}

// add adds a value in the forms in which it is searched for. It returns false if the value
// is too short, without its blanks.
func (o *ownValues) add(value []byte) bool {
	blanks := len(value) - len(bytes.TrimLeftFunc(value, func(r rune) bool { return r <= ' ' || strings.ContainsRune(`"'\`, r) }))
	all := value
	value = value[:min(len(value), blanks-blanks%3+maxValue)]
	whole := value
	if len(value) >= maxValue { // it may end within an escape
		const longest = len(`\\ud83d\\ude00`)
		if i := bytes.IndexByte(value[len(value)-longest:], '\\'); i >= 0 {
			whole = bytes.TrimRight(value[:len(value)-longest+i], `\`)
		}
	}
	plain := squeezed(unquoted(whole))
	if len(plain) < minCopy && len(value) < len(all) { // most of its beginning is blanks
		plain = squeezed(unquoted(all))
		plain = plain[:min(len(plain), maxValue)]
	}
	if len(plain) < minCopy {
		return false
	}
	encoded := base64.RawStdEncoding.AppendEncode(nil, value)
	o.list = append(o.list, plain, encoded)
	if url := base64.RawURLEncoding.AppendEncode(nil, value); !bytes.Equal(url, encoded) {
		o.list = append(o.list, url)
	}
	return true
}

// spend reports whether n more bytes may be searched.
func (o *ownValues) spend(n int) bool {
	o.room -= n
	return o.room >= 0
}

// mentioned reports whether text, as unquoted leaves it, holds a value of that length.
func (o *ownValues) mentioned(text []byte, minLen int) bool {
	if text = squeezed(text); !o.spend(len(o.list)) {
		return true
	}
	for _, v := range o.list {
		if len(v) < minLen || len(v) > len(text) {
			continue
		}
		if !o.spend(len(text)) || bytes.Contains(text, v) {
			return true
		}
	}
	return false
}

// copied reports whether text holds a value or the manifest of a Secret, with or without
// its kind, as it is or in base64 and gzip.
func (o *ownValues) copied(text []byte, layers int) bool {
	if !o.spend(len(text)) {
		return true
	}
	plain := unquoted(text)
	if hasMember(plain, "data", "") || hasMember(plain, "stringData", "") || o.mentioned(plain, minCopy) {
		return true
	}
	if bytes.HasPrefix(text, []byte("\x1f\x8b")) {
		return layers == 0 || o.zipped(text, layers-1)
	}
	plain = squeezed(plain)
	for len(plain) > 0 {
		n := 0
		for n < len(plain) && (isWord(plain[n]) || plain[n] == '+' || plain[n] == '/' || plain[n] == '-') {
			n++
		}
		// The text may begin within a group of four.
		for skip := 0; skip < 4 && n-skip >= minEncoded; skip++ {
			inner := make([]byte, base64.RawStdEncoding.DecodedLen(n-skip))
			size, _ := base64.RawStdEncoding.Decode(inner, standard(plain[skip:n])) // up to what is cut off
			if layers == 0 || o.copied(inner[:size], layers-1) {
				return true
			}
		}
		plain = plain[min(n+1, len(plain)):]
	}
	return false
}

// zipped is copied for gzip. What is damaged or cut off is searched as far as it goes.
func (o *ownValues) zipped(text []byte, layers int) bool {
	r, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return false
	}
	inner, _ := io.ReadAll(io.LimitReader(r, maxInflated+1))
	return len(inner) > maxInflated || o.copied(inner, layers)
}

// standard returns base64 text of either alphabet in the standard one.
func standard(text []byte) []byte {
	return bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("-"), []byte("+")), []byte("_"), []byte("/"))
}

func textOf(value []byte) []byte { return []byte(rawjson.Unquote(value)) }

// holdsSecret reports whether a JSON value's text contains the manifest of a Secret
// with values: JSON or YAML, complete or truncated, plain or quoted within other JSON.
// It searches for a member `kind` with the value Secret and a member `data` or
// `stringData`. False positives are accepted.
func holdsSecret(value []byte) bool {
	if value[0] == '"' && bytes.IndexByte(value, '\\') >= 0 {
		value = textOf(value)
	}
	if !bytes.Contains(value, []byte("Secret")) {
		return false
	}
	plain := unquoted(value)
	return hasMember(plain, "kind", "Secret") && (hasMember(plain, "data", "") || hasMember(plain, "stringData", ""))
}

// unquoted removes quotes, blanks and escapes, so that a member reads `key:value` in
// every notation. An escaped control character becomes a newline, other escapes become
// the character.
func unquoted(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '\\' {
			out = appendUnquoted(out, rune(c), text[i:i+1])
			continue
		}
		for i+1 < len(text) && text[i+1] == '\\' {
			i++
		}
		if i+1 == len(text) {
			break
		}
		switch text[i+1] {
		case 'n', 't', 'r', 'b', 'f':
			i++
			out = append(out, '\n')
		case 'u':
			r, size := escapedRune(text[i+1:])
			if size == 0 {
				continue
			}
			i += size
			out = appendUnquoted(out, r, utf8.AppendRune(nil, r))
		}
	}
	return out
}

func appendUnquoted(out []byte, r rune, text []byte) []byte {
	switch {
	case r == '"' || r == '\'' || r == '\\' || r <= ' ' && r != '\n':
		return out
	}
	return append(out, text...)
}

// escapedRune reads uXXXX, or a surrogate pair uXXXX\uXXXX, and returns its length, 0 if
// it is not one.
func escapedRune(text []byte) (r rune, size int) {
	n, ok := hexRune(text)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(n) {
		return n, 5
	}
	rest := bytes.TrimLeft(text[5:], `\`)
	if low, ok := hexRune(rest); ok && utf16.DecodeRune(n, low) != utf8.RuneError {
		return utf16.DecodeRune(n, low), len(text) - len(rest) + 5
	}
	return utf8.RuneError, 5
}

func hexRune(text []byte) (rune, bool) {
	if len(text) < 5 || text[0] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[1:5]), 16, 16)
	return rune(n), err == nil
}

// squeezed removes the newlines that unquoted leaves, so that broken lines are whole.
func squeezed(text []byte) []byte { return bytes.ReplaceAll(text, []byte("\n"), nil) }

// hasMember searches for key:value that is not part of longer words. The empty value
// matches any.
func hasMember(text []byte, key, value string) bool {
	member := []byte(key + ":" + value)
	for at := 0; ; {
		i := bytes.Index(text[at:], member)
		if i < 0 {
			return false
		}
		start, end := at+i, at+i+len(member)
		if (start == 0 || !isWord(text[start-1])) && (value == "" || end == len(text) || !isWord(text[end])) {
			return true
		}
		at = start + 1
	}
}

func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
}
