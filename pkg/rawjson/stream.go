package rawjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// ListMeta is what a list response says of itself.
type ListMeta struct {
	Kind, APIVersion          string
	ResourceVersion, Continue string
	RemainingItemCount        *int64 // nil if the server does not say
}

// ErrNoList says that a response was JSON but no list: it had no items at all. Its ListMeta tells the kind (a Status, say).
var ErrNoList = errors.New("rawjson: the response has no items")

const (
	listBuffer    = 64 << 10 // what ScanList reads at once; it grows to hold the largest item
	maxEmptyReads = 100      // in a row, before a reader counts as stuck
)

// ScanList reads a list response from r to its end and calls item with the JSON of every object in it, in order. It
// holds one item at a time, so a page of any size costs the memory of its largest item. raw is valid during the call
// alone; it is checked to be valid JSON and an object. Items of built-in types carry neither apiVersion nor kind: see
// Editor.AppendTyped.
//
// An error of item ends the reading and is returned as it is. On any other error (r's own, wrapped; a *SyntaxError with
// an offset into the response; ErrNoList) items may already have been handed on, and the caller must not take them for
// a whole page. The list's metadata may come before or after its items.
func ScanList(r io.Reader, item func(raw []byte) error) (ListMeta, error) {
	s := listScanner{r: r, buf: make([]byte, 0, listBuffer), item: item}
	if err := s.list(); err != nil {
		return s.meta, err
	}
	if !s.hasItems {
		return s.meta, ErrNoList
	}
	return s.meta, nil
}

// listScanner holds the part of the response that is being read: buf[at:] is unread.
type listScanner struct {
	r        io.Reader
	buf      []byte
	at       int
	passed   int // bytes of the response before buf[0]
	eof      bool
	item     func(raw []byte) error
	meta     ListMeta
	hasItems bool
}

// fill reads at least n bytes more into buf, giving up what is before at. It reports false if the response ends first;
// what there was is in buf then.
func (s *listScanner) fill(n int) (bool, error) {
	s.passed += s.at
	s.buf = s.buf[:copy(s.buf, s.buf[s.at:])]
	s.at = 0
	if need := len(s.buf) + n; need > cap(s.buf) {
		s.buf = append(make([]byte, 0, max(need, 2*cap(s.buf))), s.buf...)
	}
	for empty := 0; n > 0 && !s.eof; {
		got, err := s.r.Read(s.buf[len(s.buf):cap(s.buf)])
		s.buf = s.buf[:len(s.buf)+got]
		n -= got
		if empty++; got > 0 {
			empty = 0
		}
		switch {
		case errors.Is(err, io.EOF):
			s.eof = true
		case err != nil:
			return false, fmt.Errorf("rawjson: read list: %w", err)
		case empty == maxEmptyReads:
			return false, fmt.Errorf("rawjson: read list: %w", io.ErrNoProgress)
		}
	}
	return n <= 0, nil
}

func (s *listScanner) syntaxError(bad int) error {
	return &SyntaxError{Offset: s.passed + ^bad}
}

// next returns the first byte that is no white space, without passing it.
func (s *listScanner) next() (byte, error) {
	for {
		if s.at = skipSpace(s.buf, s.at); s.at < len(s.buf) {
			return s.buf[s.at], nil
		}
		more, err := s.fill(1)
		if err != nil {
			return 0, err
		}
		if !more {
			return 0, s.syntaxError(^s.at)
		}
	}
}

// expect passes the byte c.
func (s *listScanner) expect(c byte) error {
	got, err := s.next()
	if err != nil {
		return err
	}
	if got != c {
		return s.syntaxError(^s.at)
	}
	s.at++
	return nil
}

// value passes one whole value and returns it; it is valid until the next read. A value that goes beyond what has been
// read is scanned again from its start, but only once there is twice as much of it: all in all that costs as much again.
func (s *listScanner) value(depth int) ([]byte, error) {
	if _, err := s.next(); err != nil {
		return nil, err
	}
	for {
		end := skipValue(s.buf, s.at, depth)
		if end >= 0 && (end < len(s.buf) || s.eof) {
			v := s.buf[s.at:end]
			s.at = end
			return v, nil
		}
		if end < 0 && ^end < len(s.buf) {
			return nil, s.syntaxError(end)
		}
		n, before := 1, s.passed+len(s.buf) // a number might go on
		if end < 0 {
			n = max(len(s.buf)-s.at, 1)
		}
		if _, err := s.fill(n); err != nil {
			return nil, err
		}
		if end < 0 && before == s.passed+len(s.buf) {
			return nil, s.syntaxError(^len(s.buf))
		}
	}
}

func (s *listScanner) list() error {
	if err := s.members(); err != nil {
		return err
	}
	for {
		if s.at = skipSpace(s.buf, s.at); s.at < len(s.buf) {
			return s.syntaxError(^s.at)
		}
		if more, err := s.fill(1); err != nil || !more {
			return err
		}
	}
}

// members reads the list's object.
func (s *listScanner) members() error {
	if err := s.expect('{'); err != nil {
		return err
	}
	if c, err := s.next(); err != nil || c == '}' {
		s.at++
		return err
	}
	for {
		text, err := s.value(1)
		if err != nil {
			return err
		}
		if text[0] != '"' {
			return s.syntaxError(^(s.at - len(text)))
		}
		key := string(unescape(text[1 : len(text)-1]))
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := s.member(key); err != nil {
			return err
		}
		c, err := s.next()
		if err != nil {
			return err
		}
		switch s.at++; c {
		case '}':
			return nil
		case ',':
		default:
			return s.syntaxError(^(s.at - 1))
		}
	}
}

func (s *listScanner) member(key string) error {
	if key == "items" {
		return s.items()
	}
	v, err := s.value(1)
	if err != nil {
		return err
	}
	switch key {
	case "kind":
		return textTo(&s.meta.Kind, v, key)
	case "apiVersion":
		return textTo(&s.meta.APIVersion, v, key)
	case "metadata":
		return s.meta.read(v)
	}
	return nil
}

// items reads the array of items; null counts as none.
func (s *listScanner) items() error {
	s.hasItems = true
	c, err := s.next()
	if err != nil {
		return err
	}
	if c != '[' {
		v, err := s.value(1)
		if err == nil && string(v) != "null" {
			err = errors.New("rawjson: items is no array")
		}
		return err
	}
	s.at++
	if c, err := s.next(); err != nil || c == ']' {
		s.at++
		return err
	}
	for {
		v, err := s.value(0) // an item may nest as deep as the object of a watch event
		if err != nil {
			return err
		}
		if v[0] != '{' {
			return errors.New("rawjson: an item of the list is no object")
		}
		if err := s.item(v); err != nil {
			return err
		}
		c, err := s.next()
		if err != nil {
			return err
		}
		switch s.at++; c {
		case ']':
			return nil
		case ',':
		default:
			return s.syntaxError(^(s.at - 1))
		}
	}
}

// read takes the list's metadata from its JSON, which is valid.
func (m *ListMeta) read(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	_, err := scanObject(raw, 0, 1, func(key []byte, at int) (int, error) {
		end, err := skipOther(raw, at, 2)
		if err != nil {
			return 0, err
		}
		switch v := raw[at:end]; string(key) {
		case "resourceVersion":
			err = textTo(&m.ResourceVersion, v, "metadata.resourceVersion")
		case "continue":
			err = textTo(&m.Continue, v, "metadata.continue")
		case "remainingItemCount":
			if string(v) == "null" {
				break
			}
			var n int64
			if n, err = strconv.ParseInt(string(v), 10, 64); err == nil {
				m.RemainingItemCount = &n
			}
		}
		return end, err
	})
	return err
}

// textTo sets a field to a JSON string.
func textTo(to *string, v []byte, field string) error {
	var text []byte
	if _, err := readText(v, 0, field, &text); err != nil {
		return err
	}
	*to = string(text)
	return nil
}

var errWatchLine = errors.New("rawjson: a watch line without a type and an object")

// SplitWatchLine takes apart one line of a watch response, `{"type":"MODIFIED","object":{...}}`: BOOKMARK and ERROR (whose
// object is a Status) as well as the three kinds of change. The object aliases line.
//
// On the usual form it looks at the ends of the line alone: whether the object is valid JSON is for Scan or an Editor to
// say, and one of them must be asked. Other orders of the keys, other white space and further keys are read in full.
func SplitWatchLine(line []byte) (typ string, object []byte, err error) {
	if typ, object, ok := splitUsual(line); ok {
		return typ, object, nil
	}
	var text []byte
	end, err := scanObject(line, skipSpace(line, 0), 0, func(key []byte, at int) (int, error) {
		switch string(key) {
		case "type":
			return readText(line, at, "type", &text)
		case "object":
			end, err := skipOther(line, at, 1)
			if err == nil {
				object = line[at:end]
			}
			return end, err
		}
		return skipOther(line, at, 1)
	})
	if err != nil {
		return "", nil, err
	}
	if end = endOfInput(line, end); end < 0 {
		return "", nil, syntaxError(end)
	}
	if len(text) == 0 || len(object) == 0 || object[0] != '{' {
		return "", nil, errWatchLine
	}
	return watchType(text), object, nil
}

// splitUsual splits a line of the form the API server writes.
func splitUsual(line []byte) (typ string, object []byte, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"type":"`))
	if !ok {
		return "", nil, false
	}
	quote := 0
	for quote < len(rest) && 'A' <= rest[quote] && rest[quote] <= 'Z' {
		quote++
	}
	if quote == 0 {
		return "", nil, false
	}
	object, ok = bytes.CutPrefix(rest[quote:], []byte(`","object":`))
	if !ok {
		return "", nil, false
	}
	object = bytes.TrimRight(object, " \r\n\t")
	if len(object) < 3 || object[0] != '{' || string(object[len(object)-2:]) != "}}" {
		return "", nil, false
	}
	return watchType(rest[:quote]), object[:len(object)-1], true
}

// watchType is the text as a string, without allocating for the types there are.
func watchType(text []byte) string {
	switch string(text) {
	case "ADDED":
		return "ADDED"
	case "MODIFIED":
		return "MODIFIED"
	case "DELETED":
		return "DELETED"
	case "BOOKMARK":
		return "BOOKMARK"
	case "ERROR":
		return "ERROR"
	}
	return string(text)
}
