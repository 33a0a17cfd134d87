package route

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/watcherd/watcherd/pkg/event"
)

// Spec is one route as configured. Empty lists mean "all"; an empty Payload means
// the object.
type Spec struct {
	Name      string
	Watches   []string
	Resources []string // patterns, see [ResourcePattern]
	Events    []event.Type
	When      string   // a CEL expression; empty is true
	Changed   []string // paths in the syntax of rawjson.ParsePath
	Drop      []string // paths; what the route's sinks do not get
	Redact    []string // paths; what they get hashes of
	Payload   []string // object, oldObject, patch
	Sinks     []string
	OnError   OnError
}

// Matching identifies the changes that the route takes: it is the same for routes that
// differ in what they deliver only, and to whom.
func (s Spec) Matching() string {
	s.Name, s.Payload, s.Sinks, s.Drop, s.Redact = "", nil, nil, nil, nil
	text := fmt.Appendf(nil, "%q", s)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// OnError says what becomes of an event on which a route's expression fails.
type OnError string

// The policies. By default a missing key, field or item means the route does not
// match, and any other failure (limits, types, conversions) that it does.
const (
	OnErrorDefault OnError = ""
	OnErrorDrop    OnError = "drop" // any failure: no match
	OnErrorPass    OnError = "pass" // any failure: match
)

// SpecError is a fault in a Spec. Several are joined with errors.Join.
type SpecError struct {
	Index int    // of the Spec among those compiled
	Route string // its name
	Path  string // key within the route, for example `events[1]` or `when`
	Msg   string

	// Line and Column place the fault within a `when`, counted from 1 (columns in
	// characters); 0 elsewhere.
	Line, Column int
}

func (e *SpecError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("route %q: %s: %s", e.Route, e.Path, e.Msg)
	}
	return fmt.Sprintf("route %q: %s: line %d, column %d: %s", e.Route, e.Path, e.Line, e.Column, e.Msg)
}

func parsePayload(names []string, fault func(i int, msg string)) Payload {
	if len(names) == 0 {
		return PayloadObject
	}
	var p Payload
	for i, name := range names {
		switch name {
		case "object":
			p |= PayloadObject
		case "oldObject":
			p |= PayloadOldObject
		case "patch":
			p |= PayloadPatch
		default:
			fault(i, fmt.Sprintf("%q is none of object, oldObject, patch", name))
		}
	}
	return p
}

// eventSet is a set of event types that a route can name. A gap is none of them:
// it goes to every sink it concerns.
type eventSet uint8

const allEvents eventSet = 1<<4 - 1

func eventBit(t event.Type) eventSet {
	switch t {
	case event.Added:
		return 1
	case event.Updated:
		return 2
	case event.Deleted:
		return 4
	case event.Sync:
		return 8
	}
	return 0
}

func parseEvents(names []event.Type, fault func(i int, msg string)) eventSet {
	if len(names) == 0 {
		return allEvents
	}
	var s eventSet
	for i, t := range names {
		bit := eventBit(t)
		if bit == 0 {
			fault(i, fmt.Sprintf("%q is none of added, updated, deleted, sync", string(t)))
		}
		s |= bit
	}
	return s
}
