package rawjson

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strconv"
)

// Meta is an object's type and metadata. Text is unescaped. The byte slices alias
// the scanned JSON where no unescaping was needed, so a Meta is valid as long as
// the JSON is not modified. Missing and null fields are nil or 0.
//
// If a key occurs twice in one JSON object, the last value counts, as in
// encoding/json.
type Meta struct {
	APIVersion, Kind                                    []byte
	Namespace, Name, GenerateName, UID, ResourceVersion []byte
	CreationTimestamp, DeletionTimestamp                []byte // RFC 3339, as sent
	Generation                                          int64
	DeletionGracePeriodSeconds                          int64
	HasDeletionGracePeriod                              bool // distinguishes a grace period of 0 from none
	Labels, Annotations                                 Pairs
	OwnerReferences, Finalizers                         []byte // JSON arrays, as sent
	ManagedFields                                       []byte // JSON array, as sent

	// Change is who changed the object last. Scan and ScanHead leave it nil: see
	// Editor.AppendChange and ReadChange.
	Change *Change
}

// Pairs is a validated JSON object whose values are strings (labels, annotations),
// as sent.
type Pairs []byte

// All yields every key and its value, unescaped, in the order sent. It allocates
// only for escaped and non-ASCII text. A key that occurs twice is yielded twice;
// the last value is the valid one.
func (p Pairs) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		i := p.first()
		for i < len(p) && p[i] == '"' {
			key, at := readKey(p, i)
			if at < 0 || at >= len(p) {
				return
			}
			var value []byte
			if p[at] == '"' {
				end := skipString(p, at+1)
				if end < 0 {
					return
				}
				value, at = unescape(p[at+1:end-1]), end
			} else if at = skipLiteral(p, at, "null"); at < 0 {
				return
			}
			if !yield(key, value) {
				return
			}
			if i = skipSpace(p, at); i < len(p) && p[i] == ',' {
				i = skipSpace(p, i+1)
			}
		}
	}
}

// first returns the index of the first key or of the closing brace, len(p) for any
// other value.
func (p Pairs) first() int {
	if len(p) == 0 || p[0] != '{' {
		return len(p)
	}
	return skipSpace(p, 1)
}

// Empty reports whether there are no pairs.
func (p Pairs) Empty() bool {
	i := p.first()
	return i >= len(p) || p[i] != '"'
}

// Get returns the value of a key.
func (p Pairs) Get(key string) (value []byte, ok bool) {
	for k, v := range p.All() {
		if string(k) == key {
			value, ok = v, true
		}
	}
	return value, ok
}

// Map returns the pairs as a new map that shares no memory with the JSON, nil if
// there are none.
func (p Pairs) Map() map[string]string {
	if p.Empty() {
		return nil
	}
	m := make(map[string]string, 8)
	for k, v := range p.All() {
		m[string(k)] = string(v)
	}
	return m
}

// Scan reads the type and the metadata of one object and validates all of its JSON
// in the same pass. It returns a *SyntaxError if raw is not exactly one JSON
// object, and another error if a metadata field has the wrong type. Unknown fields
// are skipped. It allocates only for escaped and non-ASCII text.
//
// Keys are case-sensitive as in the API server, unlike in encoding/json.
func Scan(raw []byte) (Meta, error) {
	var m Meta
	i := skipSpace(raw, 0)
	end, err := scanObject(raw, i, 0, func(key []byte, at int) (int, error) {
		return m.scanTop(raw, key, at)
	})
	if err != nil {
		return Meta{}, err
	}
	if end = endOfInput(raw, end); end < 0 {
		return Meta{}, syntaxError(end)
	}
	return m, nil
}

// ScanHead is Scan for valid JSON, such as the result of an Editor. It stops after
// apiVersion, kind and metadata, which API servers send first. If one of these keys
// occurs again after that point, the first value counts.
func ScanHead(raw []byte) (Meta, error) {
	var m Meta
	missing := 3
	_, err := scanObject(raw, skipSpace(raw, 0), 0, func(key []byte, at int) (int, error) {
		end, err := m.scanTop(raw, key, at)
		switch string(key) {
		case "apiVersion", "kind", "metadata":
			if missing--; missing == 0 && err == nil {
				err = errSeenAll
			}
		}
		return end, err
	})
	if err != nil && !errors.Is(err, errSeenAll) {
		return Meta{}, err
	}
	return m, nil
}

// errSeenAll stops ScanHead.
var errSeenAll = errors.New("seen all")

// scanObject reads the JSON object at i and calls member at the first byte of each
// value. member returns the index after the value.
func scanObject(b []byte, i, depth int, member func(key []byte, at int) (int, error)) (int, error) {
	if depth >= maxDepth || i >= len(b) || b[i] != '{' {
		return 0, syntaxError(^i)
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		return i + 1, nil
	}
	for {
		key, at := readKey(b, i)
		if at < 0 {
			return 0, syntaxError(at)
		}
		next, err := member(key, at)
		if err != nil {
			return 0, err
		}
		if i = skipSpace(b, next); i >= len(b) {
			return 0, syntaxError(^len(b))
		}
		switch b[i] {
		case '}':
			return i + 1, nil
		case ',':
			i = skipSpace(b, i+1)
		default:
			return 0, syntaxError(^i)
		}
	}
}

// scanTop reads the value at index at of a member of the object.
func (m *Meta) scanTop(raw, key []byte, at int) (int, error) {
	switch string(key) {
	case "apiVersion":
		return readText(raw, at, "apiVersion", &m.APIVersion)
	case "kind":
		return readText(raw, at, "kind", &m.Kind)
	case "metadata":
		*m = Meta{APIVersion: m.APIVersion, Kind: m.Kind}
		if at < len(raw) && raw[at] == '{' {
			return scanObject(raw, at, 1, func(key []byte, at int) (int, error) {
				return m.scanMetadata(raw, key, at)
			})
		}
		return readNull(raw, at, "metadata")
	}
	return skipOther(raw, at, 1)
}

// scanMetadata reads the value at index at of a member of metadata.
func (m *Meta) scanMetadata(raw, key []byte, at int) (int, error) {
	switch string(key) {
	case "name":
		return readText(raw, at, "metadata.name", &m.Name)
	case "generateName":
		return readText(raw, at, "metadata.generateName", &m.GenerateName)
	case "namespace":
		return readText(raw, at, "metadata.namespace", &m.Namespace)
	case "uid":
		return readText(raw, at, "metadata.uid", &m.UID)
	case "resourceVersion":
		return readText(raw, at, "metadata.resourceVersion", &m.ResourceVersion)
	case "creationTimestamp":
		return readText(raw, at, "metadata.creationTimestamp", &m.CreationTimestamp)
	case "deletionTimestamp":
		return readText(raw, at, "metadata.deletionTimestamp", &m.DeletionTimestamp)
	case "generation":
		_, end, err := readInt(raw, at, "metadata.generation", &m.Generation)
		return end, err
	case "deletionGracePeriodSeconds":
		has, end, err := readInt(raw, at, "metadata.deletionGracePeriodSeconds", &m.DeletionGracePeriodSeconds)
		m.HasDeletionGracePeriod = has
		return end, err
	case "labels":
		return readPairs(raw, at, "metadata.labels", &m.Labels)
	case "annotations":
		return readPairs(raw, at, "metadata.annotations", &m.Annotations)
	case "ownerReferences":
		return readArray(raw, at, "metadata.ownerReferences", &m.OwnerReferences)
	case "finalizers":
		return readArray(raw, at, "metadata.finalizers", &m.Finalizers)
	case "managedFields":
		return readArray(raw, at, "metadata.managedFields", &m.ManagedFields)
	}
	return skipOther(raw, at, 2)
}

func skipOther(b []byte, at, depth int) (int, error) {
	end := skipValue(b, at, depth)
	if end < 0 {
		return 0, syntaxError(end)
	}
	return end, nil
}

func readText(b []byte, at int, field string, to *[]byte) (int, error) {
	if at >= len(b) || b[at] != '"' {
		*to = nil
		return readNull(b, at, field)
	}
	end := skipString(b, at+1)
	if end < 0 {
		return 0, syntaxError(end)
	}
	*to = unescape(b[at+1 : end-1])
	return end, nil
}

// readInt reads an integer. has is false if the value is null.
func readInt(b []byte, at int, field string, to *int64) (has bool, end int, err error) {
	*to = 0
	if at >= len(b) || b[at] != '-' && (b[at] < '0' || b[at] > '9') {
		end, err = readNull(b, at, field)
		return false, end, err
	}
	if end = skipNumber(b, at); end < 0 {
		return false, 0, syntaxError(end)
	}
	if *to, err = strconv.ParseInt(string(b[at:end]), 10, 64); err != nil {
		return false, 0, fmt.Errorf("rawjson: %s: %w", field, err)
	}
	return true, end, nil
}

func readPairs(b []byte, at int, field string, to *Pairs) (int, error) {
	*to = nil
	if at >= len(b) || b[at] != '{' {
		return readNull(b, at, field)
	}
	end, err := scanObject(b, at, 2, func(_ []byte, at int) (int, error) {
		var value []byte
		return readText(b, at, field, &value)
	})
	if err != nil {
		return 0, err
	}
	*to = b[at:end]
	return end, nil
}

func readArray(b []byte, at int, field string, to *[]byte) (int, error) {
	*to = nil
	if at >= len(b) || b[at] != '[' {
		return readNull(b, at, field)
	}
	end := skipValue(b, at, 2)
	if end < 0 {
		return 0, syntaxError(end)
	}
	*to = b[at:end]
	return end, nil
}

// readNull reads the null of an unset field.
func readNull(b []byte, at int, field string) (int, error) {
	end := skipValue(b, at, 0)
	if end < 0 {
		return 0, syntaxError(end)
	}
	if !bytes.Equal(b[at:end], []byte("null")) {
		return 0, fmt.Errorf("rawjson: %s has a value of the wrong type", field)
	}
	return end, nil
}
