package post

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// MaxExcerpt is how many characters of an answer an error quotes.
const MaxExcerpt = 256

// RetryAfter reads the header: seconds or a date. What is in the past, negative
// or not understood is 0; what is absurdly far is a year.
func RetryAfter(value string, now time.Time) time.Duration {
	const longest = 365 * 24 * time.Hour
	value = strings.TrimSpace(value)
	if value == "" {
		return 0
	}
	seconds, err := strconv.ParseInt(value, 10, 64)
	switch {
	case err == nil && seconds <= 0:
		return 0
	case err == nil && seconds < int64(longest/time.Second):
		return time.Duration(seconds) * time.Second
	case err == nil:
		return longest
	case errors.Is(err, strconv.ErrRange) && !strings.HasPrefix(value, "-"):
		return longest
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), longest)
}

// Mask hides secrets in texts of strangers. It is safe for concurrent use.
type Mask struct {
	secrets  []string // the longest first
	replacer *strings.Replacer
}

const minSecret = 4

// NewMask returns a mask for values, also as Go and JSON quote them, read as Latin-1, and in one line. Values shorter than four
// bytes would mask half the alphabet and keep no secret.
func NewMask(hidden []string) *Mask {
	hidden = slices.DeleteFunc(slices.Clone(hidden), func(h string) bool { return len(h) < minSecret })
	for _, h := range hidden {
		if latin := latin1(h); latin != h {
			hidden = append(hidden, latin)
		}
	}
	for _, h := range hidden {
		hidden = append(hidden, unquote(strconv.Quote(h)))
		if quoted, err := json.Marshal(h); err == nil {
			hidden = append(hidden, unquote(string(quoted)))
		}
		hidden = append(hidden, strings.Map(printable, h)) // as in the message of a result
	}
	// The longest first: a part of another one must not leave the rest of it.
	slices.SortFunc(hidden, func(x, y string) int { return len(y) - len(x) })
	var pairs []string
	for _, h := range hidden {
		pairs = append(pairs, h, "***")
	}
	return &Mask{hidden, strings.NewReplacer(pairs...)}
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return ' '
}

// latin1 is a text as a server has it that takes each of its bytes for a character, as many do with headers.
func latin1(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		b.WriteRune(rune(c))
	}
	return b.String()
}

func unquote(text string) string { return text[1 : len(text)-1] }

// Hide replaces the secrets in a text, also where JSON has escapes in them that it does not need, as that of PHP, Python, .NET
// and Gson does: the text is then without these.
func (m *Mask) Hide(text string) string { return m.hide(text, m.replacer.Replace) }

// HideCut is Hide for a text that may have been cut: the beginning of a secret at its end is
// replaced, too.
func (m *Mask) HideCut(text string) string {
	return m.hide(text, func(text string) string {
		text = m.replacer.Replace(text)
		for _, secret := range m.secrets {
			for n := len(secret) - 1; n >= minSecret; n-- {
				if rest, found := strings.CutSuffix(text, secret[:n]); found {
					text = rest + "***"
					break
				}
			}
		}
		return text
	})
}

// hide replaces what is to be in a text, and in what is left of it without escapes.
func (m *Mask) hide(text string, replace func(string) string) string {
	text = replace(text)
	plain := needless.ReplaceAllStringFunc(text, func(escapes string) string {
		if escapes == `\/` {
			return "/"
		}
		var units []uint16
		for escape := range strings.SplitSeq(escapes[1:], `\`) {
			if c, err := strconv.ParseUint(strings.TrimPrefix(escape, "u"), 16, 16); err == nil && len(escape) == len(`u0000`) { // else it was cut
				units = append(units, uint16(c))
			}
		}
		const high = 0xd800 // the first half of a character
		if n := len(units) - 1; n >= 0 && units[n]&^0x3ff == high && strings.HasSuffix(text, escapes) {
			units = units[:n]
		}
		return string(utf16.Decode(units))
	})
	if hidden := replace(plain); hidden != plain {
		return hidden
	}
	return text
}

// needless matches escapes of what is no control character, and the beginning of one at the end.
var needless = regexp.MustCompile(`\\/|(?:\\u(?:00[2-9a-fA-F]|0[1-9a-fA-F][0-9a-fA-F]|[1-9a-fA-F][0-9a-fA-F]{2})[0-9a-fA-F])+(?:\\(?:u[0-9a-fA-F]{0,3})?$)?|\\(?:u[0-9a-fA-F]{0,3})?$`)

// Sent are the secrets that a destination got, which it may quote when others have taken their place. It is safe for concurrent use.
type Sent struct {
	mu      sync.Mutex // guards what follows
	secrets []string   // the latest last
}

// maxSent is how many secrets are known: those of a while.
const maxSent = 256

// Note notes secrets that are sent now and returns all that are known, for reading.
func (s *Sent) Note(secrets ...string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.secrets) - len(secrets); n >= 0 && slices.Equal(s.secrets[n:], secrets) {
		return s.secrets // as of the request before
	}
	for _, secret := range secrets {
		if secret != "" { // one that is in use is never the oldest
			others := slices.DeleteFunc(slices.Clone(s.secrets), func(known string) bool { return known == secret })
			s.secrets = append(others, secret)
		}
	}
	s.secrets = s.secrets[max(len(s.secrets)-maxSent, 0):]
	return slices.Clip(s.secrets)
}

// Error returns err with a text in which the secrets are replaced; see [Reword].
func (s *Sent) Error(err error) error {
	if err == nil {
		return nil
	}
	return Reword(err, NewMask(s.Note()).Hide)
}

// Reword returns err with the text that words makes of its own, or err if that is the same. Of a [sinks.BatchError] that is
// each of its errors.
func Reword(err error, words func(text string) string) error {
	if err == nil {
		return nil
	}
	if batch, ok := errors.AsType[*sinks.BatchError](err); ok {
		failed := make(map[int]error, len(batch.Failed))
		for i, one := range batch.Failed {
			failed[i] = Reword(one, words)
		}
		return &sinks.BatchError{Failed: failed}
	}
	if text := words(err.Error()); text != err.Error() {
		return WithText(err, text)
	}
	return err
}

// WithText returns err with another text.
func WithText(err error, text string) error { return &withText{err, text} }

type withText struct {
	error
	text string
}

func (e *withText) Error() string { return e.text }
func (e *withText) Unwrap() error { return e.error }

// Results reads a results document. No secret is in its messages or in the error.
func (m *Mask) Results(document []byte, events int) ([]sinks.Result, error) {
	results, err := sinks.ParseResults(document, events)
	if err != nil {
		// The error may quote half of a secret.
		if _, masked := sinks.ParseResults([]byte(m.Hide(string(document))), events); masked != nil {
			err = masked
		}
		return nil, errors.New(Clean(m.Hide(err.Error()), MaxExcerpt))
	}
	for i := range results {
		results[i].Message = m.HideCut(results[i].Message)
	}
	return results, nil
}

// Clean makes text of a stranger fit for a log line, with so many characters at most.
func Clean(text string, limit int) string {
	var b strings.Builder
	n := 0
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		if n > 0 {
			word = " " + word
		}
		for _, r := range word {
			if n == limit {
				return b.String() + "…"
			}
			if !unicode.IsPrint(r) {
				r = '?'
			}
			b.WriteRune(r)
			n++
		}
	}
	return b.String()
}
