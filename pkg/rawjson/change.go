package rawjson

import (
	"bytes"
	"slices"
)

// Change is who changed an object last, as its managed fields say: the entry with the
// newest time. If several entries have that time, Managers names each manager once, in
// their order, and Operation and Subresource are empty where they differ. It is empty if
// no entry has a time.
//
// The API server gives the entry of the subresource scale no time, so that who scaled an
// object is known apart, but not when
// (https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apimachinery/pkg/util/managedfields/scalehandler.go).
//
// A manager is a name that the client chose, not a user, and its time has seconds. A
// client that does not say who it is, or changes nothing that fields are managed of,
// leaves no trace
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
//
// Text is unescaped, and aliases the scanned JSON where no unescaping was needed. A Change
// may be used again and keeps the room for Managers.
type Change struct {
	Managers    [][]byte // at most maxManagers
	Operation   []byte   // Apply or Update
	Subresource []byte   // such as status or scale; empty for the object itself
	Time        []byte   // RFC 3339 in UTC, as sent
	Scaler      []byte   // the manager of the entry of scale without a time, the last of several; empty: none
}

// maxManagers bounds the managers of one change. Others of the same second are left out.
const maxManagers = 8

// timeLen is the length of a time as API servers send it: UTC, in seconds. Such times
// are in the order of their text.
const timeLen = len("2006-01-02T15:04:05Z")

// ReadChange reads managedFields, the JSON of an object's metadata.managedFields, into by;
// nil is none.
func ReadChange(managedFields []byte, by *Change) error {
	if len(managedFields) == 0 {
		*by = Change{Managers: by.Managers[:0]}
		return nil
	}
	_, err := by.scan(managedFields, 0, 2)
	return err
}

// scan reads the managed fields at i and returns the index after them. A value of
// another type is skipped.
func (c *Change) scan(b []byte, i, depth int) (int, error) {
	*c = Change{Managers: c.Managers[:0]}
	if i >= len(b) || b[i] != '[' {
		return skipOther(b, i, depth)
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == ']' {
		return i + 1, nil
	}
	for {
		end, err := c.entry(b, i, depth+1)
		if err != nil {
			return 0, err
		}
		if i = skipSpace(b, end); i >= len(b) || b[i] != ',' && b[i] != ']' {
			return 0, syntaxError(^i)
		}
		if b[i] == ']' {
			return i + 1, nil
		}
		i = skipSpace(b, i+1)
	}
}

func (c *Change) entry(b []byte, i, depth int) (int, error) {
	if i >= len(b) || b[i] != '{' {
		return skipOther(b, i, depth)
	}
	var manager, operation, subresource, time []byte
	end, err := scanObject(b, i, depth, func(key []byte, at int) (int, error) {
		var to *[]byte
		switch string(key) {
		case "manager":
			to = &manager
		case "operation":
			to = &operation
		case "subresource":
			to = &subresource
		case "time":
			to = &time
		}
		if to == nil || at >= len(b) || b[at] != '"' {
			return skipOther(b, at, depth+1)
		}
		return readText(b, at, "metadata.managedFields", to)
	})
	if err != nil || len(time) != timeLen {
		if string(subresource) == "scale" && len(time) == 0 {
			c.Scaler = manager
		}
		return end, err
	}
	switch bytes.Compare(time, c.Time) {
	case 1:
		*c = Change{Managers: append(c.Managers[:0], manager), Operation: operation, Subresource: subresource, Time: time, Scaler: c.Scaler}
	case 0:
		if !bytes.Equal(c.Operation, operation) {
			c.Operation = nil
		}
		if !bytes.Equal(c.Subresource, subresource) {
			c.Subresource = nil
		}
		if len(c.Managers) < maxManagers && !slices.ContainsFunc(c.Managers, func(m []byte) bool { return bytes.Equal(m, manager) }) {
			c.Managers = append(c.Managers, manager)
		}
	}
	return end, nil
}
