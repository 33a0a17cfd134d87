package summary

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	maxValue = 40 // characters of a value
	maxField = 96 // characters of what names a field
	maxKeys  = 4  // keys of a field below its named item
	context  = 12 // characters shown before the first difference of long texts
)

// rank orders changes: lower is more important.
type rank uint8

const (
	rankImage rank = iota
	rankSpec
	rankMetadata
	rankState // the phase and the conditions of the status
	rankStatus
	rankNoise // written with every change, or copies of what is shown elsewhere
)

func rankOf(path []element) rank {
	if len(path) == 0 {
		return rankSpec
	}
	last := path[len(path)-1].text
	switch {
	case last == "deletionTimestamp":
		return rankImage
	case isNoise(last):
		return rankNoise
	case path[0].text == "metadata":
		return rankMetadata
	case path[0].text == "status" && len(path) > 1 && (path[1].text == "phase" || path[1].text == "conditions"):
		return rankState
	case path[0].text == "status":
		return rankStatus
	case last == "image":
		return rankImage
	default:
		return rankSpec
	}
}

// isNoise reports whether a field repeats other fields or is a time at which a controller
// looked.
func isNoise(field string) bool {
	switch field {
	case "observedGeneration", "kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision", "control-plane.alpha.kubernetes.io/leader":
		return true
	}
	return strings.HasSuffix(field, "Time") || strings.HasSuffix(field, "Timestamp")
}

// change is one difference between two states.
type change struct {
	rank     rank
	path     []element
	old, new []byte // raw JSON; nil: there is none
	note     []byte // raw JSON of the reason, nil if there is none
	set      bool   // old is unknown, not missing
}

func (c *change) append(dst []byte) []byte {
	dst = appendCut(dst, string(appendField(nil, c.path)), maxField)
	switch {
	case c.set && scalar(c.new):
		dst = appendValue(append(dst, " set to "...), c.new)
	case c.set:
		dst = append(dst, " changed"...)
	case c.old == nil:
		dst = c.appendWhole(append(dst, " added"...), c.new)
	case c.new == nil:
		dst = c.appendWhole(append(dst, " removed"...), c.old)
	case scalar(c.old) && scalar(c.new):
		dst = c.appendPair(dst)
	default:
		dst = append(dst, " changed"...)
	}
	if isText(c.note) && len(c.note) > len(`""`) && !isRedacted(c.note) {
		dst = append(appendValue(append(dst, " ("...), c.note), ')')
	}
	return dst
}

// appendWhole appends the value of what is added or removed, or the member that
// stands for it.
func (c *change) appendWhole(dst, value []byte) []byte {
	last := len(c.path) - 1
	if last >= 0 && c.path[last].kind == namedItem {
		value = field(value, nounOf(listOf(c.path, last)).value)
	}
	if len(value) == 0 || !scalar(value) {
		return dst
	}
	if isRedacted(value) {
		return append(dst, " (redacted)"...)
	}
	return append(appendValue(append(dst, " ("...), value), ')')
}

// appendPair appends two scalars: of long texts the part that differs, of images
// the tag if nothing else does.
func (c *change) appendPair(dst []byte) []byte {
	if isRedacted(c.old) && isRedacted(c.new) {
		return append(dst, " changed (redacted)"...)
	}
	const arrow = " -> "
	if !isText(c.old) || !isText(c.new) || isRedacted(c.old) || isRedacted(c.new) {
		return appendValue(append(appendValue(append(dst, ' '), c.old), arrow...), c.new)
	}
	x, y := rawjson.Unquote(c.old), rawjson.Unquote(c.new)
	from := 0
	if n := len(c.path); n > 0 && c.path[n-1].text == "image" {
		from = repository(x, y)
	}
	more := false
	if from == 0 && (utf8.RuneCountInString(x) > maxValue || utf8.RuneCountInString(y) > maxValue) {
		from = difference(x, y)
		more = from > 0
	}
	dst = appendText(append(dst, ' '), x[from:], more, maxValue)
	return appendText(append(dst, arrow...), y[from:], more, maxValue)
}

// repository is the length of the name that two images share, with its colon or @; 0 if they
// differ in more than the tag or the digest.
func repository(x, y string) int {
	n := strings.LastIndexByte(x, '/') + 1
	i := strings.IndexAny(x[n:], ":@")
	if i < 0 {
		return 0
	}
	if n += i + 1; len(x) == n || len(y) <= n || x[:n] != y[:n] {
		return 0
	}
	return n
}

// difference is where two texts are to be shown from: a few characters before the
// first that differs.
func difference(x, y string) int {
	n := 0
	for n < len(x) && n < len(y) && x[n] == y[n] {
		n++
	}
	for n > 0 && (n < len(x) && !utf8.RuneStart(x[n]) || n < len(y) && !utf8.RuneStart(y[n])) {
		n--
	}
	for range context {
		_, size := utf8.DecodeLastRuneInString(x[:n])
		n -= size
	}
	return n
}

func scalar(raw []byte) bool { return len(raw) > 0 && raw[0] != '{' && raw[0] != '[' }

func isRedacted(raw []byte) bool {
	return isText(raw) && strings.HasPrefix(rawjson.Unquote(raw), event.RedactedPrefix)
}

func appendValue(dst, raw []byte) []byte {
	if isText(raw) {
		return appendText(dst, rawjson.Unquote(raw), false, maxValue)
	}
	return appendText(dst, string(raw), false, maxValue)
}

// appendText appends a text of at most limit characters: in quotes if it could be
// taken for a part of the line, with escapes for line breaks and U+FFFD for other
// characters that are not printable. more: characters before it are left out.
func appendText(dst []byte, s string, more bool, limit int) []byte {
	if strings.HasPrefix(s, event.RedactedPrefix) {
		return append(dst, "(redacted)"...)
	}
	s, cut := head(s, limit)
	quote := s == "" || strings.ContainsFunc(s, func(r rune) bool {
		return r == ',' || r == '"' || r == '\\' || unicode.IsSpace(r) || !unicode.IsPrint(r)
	})
	if quote {
		dst = append(dst, '"')
	}
	if more {
		dst = append(dst, "…"...)
	}
	for _, r := range s {
		switch {
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case unicode.IsPrint(r):
			dst = utf8.AppendRune(dst, r)
		default:
			dst = utf8.AppendRune(dst, utf8.RuneError)
		}
	}
	if cut {
		dst = append(dst, "…"...)
	}
	if quote {
		dst = append(dst, '"')
	}
	return dst
}

// appendCut appends a text of at most limit characters.
func appendCut(dst []byte, s string, limit int) []byte {
	s, cut := head(s, limit)
	if dst = append(dst, s...); cut {
		dst = append(dst, "…"...)
	}
	return dst
}

// head returns the first characters of a text, and whether that is not all of it.
func head(s string, limit int) (start string, cut bool) {
	n := 0
	for i := range s {
		if n == limit {
			return s[:i], true
		}
		n++
	}
	return s, false
}

// noun is how a summary calls the items of a list.
type noun struct {
	text    string
	value   string // the member that stands for an item
	implied bool   // that member's name is left out
}

var nouns = map[string]noun{
	"addresses":           {"address", "address", true},
	"conditions":          {"condition", "status", true},
	"containers":          {"container", "image", false},
	"env":                 {"env", "value", true},
	"ephemeralContainers": {"ephemeral container", "image", false},
	"initContainers":      {"init container", "image", false},
	"ports":               {"port", "port", true},
}

// nounOf returns the noun of a list, by default its name's words in the singular.
func nounOf(list string) noun {
	if n, ok := nouns[list]; ok {
		return n
	}
	switch {
	case strings.HasSuffix(list, "ies"):
		list = strings.TrimSuffix(list, "ies") + "y"
	case strings.HasSuffix(list, "sses"), strings.HasSuffix(list, "uses"):
		list = strings.TrimSuffix(list, "es")
	default:
		list = strings.TrimSuffix(list, "s")
	}
	var words strings.Builder
	list, _ = head(list, maxValue)
	for i, r := range list {
		if i > 0 && 'A' <= r && r <= 'Z' {
			words.WriteByte(' ')
			r += 'a' - 'A'
		}
		words.WriteRune(r)
	}
	return noun{text: words.String()}
}

// listOf is the name of the list that the item at path[i] belongs to.
func listOf(path []element, i int) string {
	if i == 0 {
		return "items"
	}
	return path[i-1].text
}

// appendField appends a path in words, the field first: image of container web.
func appendField(dst []byte, path []element) []byte {
	item := len(path) - 1
	for item >= 0 && path[item].kind != namedItem {
		item--
	}
	if item < 0 {
		return appendPlain(dst, path)
	}
	fields := path[item+1:]
	if n := nounOf(listOf(path, item)); len(fields) == 1 && n.implied && fields[0].text == n.value {
		fields = nil
	}
	const of = " of "
	if len(fields) > 0 {
		dst = append(appendDotted(dst, fields), of...)
	}
	dst = appendItem(dst, path, item)
	for i := item - 1; i >= 0; i-- {
		if path[i].kind == namedItem {
			return appendItem(append(dst, of...), path, i)
		}
	}
	return dst
}

func appendItem(dst []byte, path []element, i int) []byte {
	dst = appendName(dst, nounOf(listOf(path, i)).text)
	return appendName(append(dst, ' '), path[i].text)
}

// prefixes are what is left out before a field, the longest first.
var prefixes = [][]string{
	{"spec", "jobTemplate", "spec", "template", "spec"},
	{"spec", "jobTemplate", "spec"},
	{"spec", "template", "spec"},
	{"spec"},
	{"metadata"},
}

func appendPlain(dst []byte, path []element) []byte {
	if n := len(path); n >= 3 && path[n-3].text == "metadata" && path[n-1].kind == member {
		if of := path[n-2].text; of == "labels" || of == "annotations" {
			if n > 3 && path[n-4].text == "template" {
				dst = append(dst, "template "...)
			}
			dst = append(dst, nounOf(of).text...)
			return appendName(append(dst, ' '), path[n-1].text)
		}
	}
	if len(path) == 2 && (path[0].text == "data" || path[0].text == "stringData" || path[0].text == "binaryData") {
		return appendName(append(dst, "data "...), path[1].text)
	}
	for _, prefix := range prefixes {
		if rest, ok := cutPrefix(path, prefix); ok {
			return appendDotted(dst, rest)
		}
	}
	return appendDotted(dst, path)
}

// cutPrefix returns what follows prefix in path, if anything does.
func cutPrefix(path []element, prefix []string) (rest []element, ok bool) {
	if len(path) <= len(prefix) {
		return nil, false
	}
	for i, key := range prefix {
		if path[i].kind != member || path[i].text != key {
			return nil, false
		}
	}
	return path[len(prefix):], true
}

// appendDotted appends the last keys of a path as a configuration spells them.
func appendDotted(dst []byte, path []element) []byte {
	if len(path) == 0 {
		return append(dst, "object"...)
	}
	if skipped := len(path) - maxKeys; skipped > 0 {
		path = path[skipped:]
		dst = append(dst, "…"...)
	}
	for i, e := range path {
		if e.kind == indexedItem {
			dst = append(strconv.AppendInt(append(dst, '['), int64(e.index), 10), ']')
			continue
		}
		if i > 0 {
			dst = append(dst, '.')
		}
		dst = appendName(dst, e.text)
	}
	return dst
}

// appendName appends a key or a name. A name of several words is in no quotes.
func appendName(dst []byte, s string) []byte { return appendText(dst, s, false, maxField) }

// words returns the reason and the message of a Kubernetes Event: "Warning BackOff: Back-off
// restarting failed container (12 times)". It is empty for other objects, and without reason and message.
func words(e *event.Event) string {
	raw := trim(e.Object)
	if !e.Resource.SelfDescribing(e.Type) || len(raw) == 0 || raw[0] != '{' {
		return ""
	}
	var kind, reason, message, count []byte
	for k, value := range rawjson.Members(raw) {
		switch string(k) {
		case "type":
			kind = value
		case "reason":
			reason = value
		case "message", "note":
			message = value
		case "count", "deprecatedCount":
			if count == nil || string(count) == "0" {
				count = value
			}
		case "series":
			if n := field(value, "count"); n != nil {
				count = n
			}
		}
	}
	var dst []byte
	if isText(reason) && len(reason) > len(`""`) {
		if isText(kind) && len(kind) > len(`""`) && string(kind) != `"Normal"` {
			dst = append(appendPrintable(dst, rawjson.Unquote(kind), maxValue), ' ')
		}
		dst = appendPrintable(dst, rawjson.Unquote(reason), maxField)
	}
	if isText(message) && len(message) > len(`""`) {
		if len(dst) > 0 {
			dst = append(dst, ": "...)
		}
		dst = appendPrintable(dst, rawjson.Unquote(message), maxLine)
	}
	if n, err := strconv.ParseUint(string(count), 10, 32); err == nil && n > 1 && len(dst) > 0 {
		dst = append(strconv.AppendUint(append(dst, " ("...), n, 10), " times)"...)
	}
	return string(dst)
}

// appendPrintable appends a text of at most limit characters, with a space for each run of
// white space and U+FFFD for other characters that are not printable.
func appendPrintable(dst []byte, s string, limit int) []byte {
	if strings.HasPrefix(s, event.RedactedPrefix) {
		return append(dst, "(redacted)"...)
	}
	s, cut := head(s, limit)
	space := true // at the start
	for _, r := range s {
		switch {
		case unicode.IsSpace(r):
			if !space {
				dst = append(dst, ' ')
			}
		case unicode.IsPrint(r):
			dst = utf8.AppendRune(dst, r)
		default:
			dst = utf8.AppendRune(dst, utf8.RuneError)
		}
		space = unicode.IsSpace(r)
	}
	if space && len(dst) > 0 && dst[len(dst)-1] == ' ' {
		dst = dst[:len(dst)-1]
	}
	if cut {
		dst = append(dst, "…"...)
	}
	return dst
}
