package sinks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Result is a receiver's answer for one event.
type Result struct {
	Status     Status
	Message    string        // the receiver's reason, at most [MaxResultMessage] bytes
	RetryAfter time.Duration // with StatusRetry: the delay the receiver asks for; 0: none
}

// Status is the fate of one event in a results document.
type Status string

// The statuses.
const (
	StatusAccepted Status = "accepted" // durably accepted
	StatusRetry    Status = "retry"    // failed for the time being
	StatusPoison   Status = "poison"   // refused; it will never be accepted
	StatusHeld     Status = "held"     // not tried: an earlier event of its object failed
	StatusPause    Status = "pause"    // not accepted until a person acts
)

const (
	// MaxResultMessage is the length in bytes to which a message is cut.
	MaxResultMessage = 256

	// maxResultRetryAfter caps a delay before it becomes a time.Duration. The
	// worker's own cap is far below it.
	maxResultRetryAfter = 24 * time.Hour
)

// ResultsLimit is the largest results document in bytes for a batch of that many
// events. A client reads no more than this, plus one byte that shows an excess.
func ResultsLimit(events int) int { return (events + 1) << 10 }

// ParseResults parses a results document, a receiver's answer to a batch:
//
//	{"results": [{"status": "accepted"}, {"status": "retry", "message": "busy", "retryAfter": 5}]}
//
// It has exactly one result for each event, in the order of the batch. retryAfter
// is in seconds. Unknown and repeated members, another number of results, a
// document above [ResultsLimit] and anything behind it are errors: an answer that
// is not understood in full proves nothing about any event.
func ParseResults(document []byte, events int) ([]Result, error) {
	if len(document) > ResultsLimit(events) {
		return nil, fmt.Errorf("results document: more than %d bytes for %d events", ResultsLimit(events), events)
	}
	if allAccepted(document, events) {
		return slices.Repeat([]Result{{Status: StatusAccepted}}, events), nil
	}
	p := resultsParser{dec: json.NewDecoder(bytes.NewReader(document)), events: events}
	if err := p.document(); err != nil {
		return nil, fmt.Errorf("results document: %w", err)
	}
	return p.results, nil
}

// allAccepted recognizes the usual answer, that all events were accepted, without the cost of the parser. It may be false of
// a document that means it and has another form.
func allAccepted(document []byte, events int) bool {
	next := func(tokens ...string) bool {
		for _, token := range tokens {
			document = bytes.TrimLeft(document, " \t\r\n") // the white space of JSON
			rest, ok := bytes.CutPrefix(document, []byte(token))
			if !ok {
				return false
			}
			document = rest
		}
		return true
	}
	if !next("{", `"results"`, ":", "[") {
		return false
	}
	for i := range events {
		if i > 0 && !next(",") || !next("{", `"status"`, ":", `"accepted"`, "}") {
			return false
		}
	}
	return next("]", "}", "") && len(document) == 0
}

// ResultsError returns what Write returns for these results: nil if all events
// were accepted, else a [*BatchError].
func ResultsError(results []Result) error {
	failed := map[int]error{}
	for i, r := range results {
		if r.Status != StatusAccepted {
			failed[i] = r.err()
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return &BatchError{Failed: failed}
}

func (r Result) err() error {
	text := "the receiver answered " + string(r.Status)
	if r.Message != "" {
		text += ": " + r.Message
	}
	err := errors.New(text)
	switch r.Status {
	case StatusPoison:
		return Poison(err)
	case StatusPause:
		return Pause(err)
	case StatusHeld:
		return Held(err)
	}
	if r.RetryAfter > 0 {
		return RetryAfter(err, r.RetryAfter)
	}
	return err
}

// resultsParser reads tokens, since encoding/json alone takes members that are
// repeated or spelled in another case.
type resultsParser struct {
	dec     *json.Decoder
	events  int
	results []Result
}

func (p *resultsParser) document() error {
	err := p.object(func(member string) error {
		if member != "results" {
			return fmt.Errorf("unknown member %s", quoted(member))
		}
		return p.array()
	})
	switch {
	case err != nil:
		return err
	case len(p.results) != p.events:
		return fmt.Errorf("%d results for %d events", len(p.results), p.events)
	}
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data behind the document")
	}
	return nil
}

func (p *resultsParser) array() error {
	if err := p.delim('['); err != nil {
		return err
	}
	for p.dec.More() {
		if len(p.results) == p.events {
			return fmt.Errorf("more than %d results", p.events)
		}
		r, err := p.result()
		if err != nil {
			return fmt.Errorf("result %d: %w", len(p.results), err)
		}
		p.results = append(p.results, r)
	}
	return p.delim(']')
}

func (p *resultsParser) result() (r Result, err error) {
	var seconds float64
	err = p.object(func(member string) error {
		switch member {
		case "status":
			return p.dec.Decode(&r.Status)
		case "message":
			return p.dec.Decode(&r.Message)
		case "retryAfter":
			return p.dec.Decode(&seconds)
		default:
			return fmt.Errorf("unknown member %s", quoted(member))
		}
	})
	if err != nil {
		return r, err
	}
	switch r.Status {
	case StatusAccepted, StatusRetry, StatusPoison, StatusHeld, StatusPause:
	default:
		return r, fmt.Errorf("unknown status %s; known are accepted, retry, poison, held, pause", quoted(string(r.Status)))
	}
	if seconds < 0 || seconds > 0 && r.Status != StatusRetry {
		return r, fmt.Errorf("retryAfter %v with status %s", seconds, r.Status)
	}
	r.RetryAfter = time.Duration(min(seconds, maxResultRetryAfter.Seconds()) * float64(time.Second))
	r.Message = oneLine(r.Message, MaxResultMessage)
	return r, nil
}

func (p *resultsParser) object(value func(member string) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	var seen []string
	for p.dec.More() {
		token, err := p.dec.Token()
		if err != nil {
			return err
		}
		member, _ := token.(string) // a key is always a string
		if slices.Contains(seen, member) {
			return fmt.Errorf("member %s is repeated", quoted(member))
		}
		seen = append(seen, member)
		if err := value(member); err != nil {
			return err
		}
	}
	return p.delim('}')
}

func (p *resultsParser) delim(want json.Delim) error {
	token, err := p.dec.Token()
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case token != want:
		if text, ok := token.(string); ok {
			return fmt.Errorf("%s where %v is expected", quoted(text), want)
		}
		return fmt.Errorf("%v where %v is expected", token, want)
	}
	return nil
}

// quoted is a receiver's text in an error: whole, as a part of a secret would not be recognized as one.
func quoted(text string) string {
	const most = 40
	if len(text) > most {
		return fmt.Sprintf("of %d bytes", len(text))
	}
	return strconv.Quote(text)
}

// oneLine makes a receiver's text fit for a log line.
func oneLine(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
