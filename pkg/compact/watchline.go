package compact

import (
	"bytes"
	"errors"
)

var errWatchLine = errors.New("compact: a watch line without a type and an object")

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
