package rawjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
)

// ListMeta is the type and the metadata of a list response.
type ListMeta struct {
	Kind, APIVersion          string
	ResourceVersion, Continue string
	RemainingItemCount        *int64 // nil if not sent
}

// ErrNoList reports valid JSON without items. The ListMeta has the kind, for
// example Status.
var ErrNoList = errors.New("rawjson: the response has no items")

// ErrLongItem reports an item, or another member of the list, of more than maxItem bytes.
var ErrLongItem = errors.New("rawjson: the response has an item of more than 64 MiB")

const (
	maxItem       = 64 << 20
	listBuffer    = 64 << 10 // initial size; it grows to hold the largest item
	maxEmptyReads = 100      // in a row, before io.ErrNoProgress
)

// listBuffers are reused: most lists are a probe for the version, or a page that fits.
var listBuffers = sync.Pool{New: func() any { return new([listBuffer]byte) }}

// ScanList reads a list response to its end and calls item with the JSON of every
// object, in order. It buffers one item at a time, so the memory of a page is that
// of its largest item. raw is a valid JSON object and must not be used after item
// returns. Items of built-in types have no apiVersion and kind: see
// Editor.AppendTyped. An item of more than 64 MiB is ErrLongItem.
//
// An error of item stops ScanList and is returned unchanged. On any other error (of
// r, wrapped; a *SyntaxError with an offset into the response; ErrNoList) item may
// have been called already, and the caller must discard the page. The list's
// metadata can follow its items.
func ScanList(r io.Reader, item func(raw []byte) error) (ListMeta, error) {
	buf := listBuffers.Get().(*[listBuffer]byte)
	defer listBuffers.Put(buf)
	s := listScanner{r: r, buf: buf[:0], item: item}
	if err := s.list(); err != nil {
		return s.meta, err
	}
	if !s.hasItems {
		return s.meta, ErrNoList
	}
	return s.meta, nil
}

// listScanner buffers the part of the response that is being read. buf[at:] is
// unread.
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

// fill discards buf[:at] and reads at least n more bytes. It returns false if the
// response ends before; buf then holds the bytes read.
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

// next returns the first byte that is not white space, without consuming it.
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

// value consumes one value and returns it, valid until the next read. A value
// beyond the buffered bytes is scanned again from its start after the buffer has
// doubled, so each byte is scanned about twice.
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
		if len(s.buf)-s.at > maxItem {
			return nil, ErrLongItem
		}
		n, before := 1, s.passed+len(s.buf) // a number may continue
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

func (s *listScanner) members() error {
	if err := s.expect('{'); err != nil {
		return err
	}
	return s.each('}', func() error {
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
		return s.member(key)
	})
}

// each reads what an opened object or array holds, up to its closing byte.
func (s *listScanner) each(end byte, one func() error) error {
	if c, err := s.next(); err != nil || c == end {
		s.at++
		return err
	}
	for {
		if err := one(); err != nil {
			return err
		}
		c, err := s.next()
		if err != nil {
			return err
		}
		switch s.at++; c {
		case end:
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

// items reads the array of items. null is an empty array.
func (s *listScanner) items() error {
	s.hasItems = true
	c, err := s.next()
	if err != nil {
		return err
	}
	if c != '[' {
		v, err := s.value(1)
		if err == nil && string(v) != "null" {
			err = errors.New("rawjson: items is not an array")
		}
		return err
	}
	s.at++
	return s.each(']', func() error {
		v, err := s.value(0) // an item may nest as deep as the object of a watch event
		if err != nil {
			return err
		}
		if v[0] != '{' {
			return errors.New("rawjson: an item of the list is not an object")
		}
		return s.item(v)
	})
}

// read reads the list's metadata from valid JSON.
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

func textTo(to *string, v []byte, field string) error {
	var text []byte
	if _, err := readText(v, 0, field, &text); err != nil {
		return err
	}
	*to = string(text)
	return nil
}

var errWatchLine = errors.New("rawjson: the watch line has no type or no object")

// SplitWatchLine splits one line of a watch response,
// `{"type":"MODIFIED","object":{...}}`. The object aliases line; that of an ERROR
// is a Status.
//
// For a line in the API server's usual form only its start and end are examined, so
// the caller must validate the object with Scan or an Editor. Lines with another
// key order, white space or further keys are read completely.
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

// splitUsual splits a line in the API server's usual form.
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

// watchType returns the type as a string without allocating for known types.
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
