package config

import "time"

// Route maps changes to sinks and defines the payload.
type Route struct {
	// Name of the route: lower-case letters, digits and dashes, unique among routes.
	Name string `json:"name" jsonschema:"required"`
	// Names of the watches it takes from; all when empty.
	Watches []string `json:"watches"`
	// Resources it takes; all of those watches when empty.
	Resources []Resource `json:"resources"`
	// Types of events it takes; all when empty.
	Events []string `json:"events" jsonschema:"enum=added,enum=updated,enum=deleted,enum=sync"`
	// CEL expression that must be true; it sees object, oldObject, metadata and event.
	When string `json:"when"`
	// Handling of an event on which the expression fails, as it does on an object that lacks a field of it. drop: the event does not match. pass: it does. Failures are counted; the first of a route that is not about a missing field is logged.
	OnError string `json:"onError" jsonschema:"enum=pass,enum=drop"`
	// Key paths; an update counts only if one of these changed. Other types of events are not affected.
	Changed []string `json:"changed"`
	// Key paths, as a watch's: further values that the events of this route do not carry. Its expressions see them. Of several routes to one sink the edits of all apply.
	Drop []string `json:"drop"`
	// Key paths whose values the events of this route carry as keyed hashes only.
	Redact []string `json:"redact"`
	// What the events carry: the state after the change, the state before it, the RFC 6902 patch between them, a summary of the change in one line that a person reads.
	Payload []string `json:"payload" jsonschema:"enum=object,enum=oldObject,enum=patch,enum=summary"`
	// Limit to the events of one object. The first is delivered at once.
	Throttle *Throttle `json:"throttle,omitempty"`
	// Time for which an object must match `when` without a break. The route then delivers one event for it, of type updated with data.for, instead of one for each change. It excludes events and changed, and a `when` that reads event or oldObject.
	For *time.Duration `json:"for,omitempty"`
	// Names of the sinks it delivers to.
	Sinks []string `json:"sinks" jsonschema:"required,minItems=1"`
}

// Throttle limits the events of one object to one in each period: the last one, with the
// number of those that it replaces. Deletions are delivered at once.
type Throttle struct {
	// Length of the period, from 1s to 24h.
	Per time.Duration `json:"per" jsonschema:"required"`
}

// Values of a route's keys.
const (
	EventAdded   = "added"
	EventUpdated = "updated"
	EventDeleted = "deleted"
	EventSync    = "sync"

	PayloadObject    = "object"
	PayloadOldObject = "oldObject"
	PayloadPatch     = "patch"
	PayloadSummary   = "summary"

	ErrorPass = "pass"
	ErrorDrop = "drop"
)
