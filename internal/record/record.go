package record

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

const (
	version   = 5
	headerLen = 4 // version, marks and the length of the ID
)

// ErrMalformed is wrapped by every decoding error.
var ErrMalformed = errors.New("malformed event record")

// The causes of gaps that are not for every reader.
const (
	CauseRemoved = "removed" // a sink was not configured: for the sink alone
	CauseQuiet   = "quiet"   // only objects that came and went may be missing: for the history alone
	// CauseDefinition is of changes that may be missing before the definition of a resource was found gone
	// with objects whose deletions were not observed: for the history alone.
	CauseDefinition = "definition"
)

// OfHistory reports whether gaps of a cause are for the history alone.
func OfHistory(cause string) bool { return cause == CauseQuiet || cause == CauseDefinition }

// Record is one event as it is stored. Bodies alias the objects they come from,
// or the payload they were decoded from.
type Record struct {
	// Event holds everything but the sequence, the cluster and the bodies.
	Event event.Event

	// Edits identifies the edits that the object, the old object and the patch were
	// made with; 0 if those are not known, or there is nothing of the kind.
	Edits uint64

	Object    compact.Body
	OldObject compact.Body
	Patch     []byte // RFC 6902, JSON
	// PatchOmitted means that there was a patch, and nothing of it may be kept.
	PatchOmitted bool

	// State means that the record is one of the states in its object's history: Object
	// is what the object became, or was last when it was deleted.
	State bool
	// Prev is the sequence of the record with the object's state before, 0 if there was
	// none or it is not known. If the log may lose that record long before this one,
	// OldObject is that state, even if no sink asks for it.
	Prev uint64
	// Rerecorded marks an unchanged state in the form that other edits give it: no
	// event, and for no sink.
	Rerecorded bool
	// Blind means that history was lost before the change: what was seen is what came of it and of
	// others.
	Blind bool

	// Status means that the event is an update of the object's status alone.
	Status bool

	// Enrichment is what the targets ask for about other objects; nil: nothing.
	Enrichment *Enrichment

	// Scope is what the event was observed in: a version of the resource, a selection by the
	// API server; see ledger.ScopeOf. Usually empty.
	Scope string

	Targets []Target
}

// Target is a sink that the event was routed to when it was recorded.
type Target struct {
	Sink   string
	Flags  Flags  // what the sink was to get
	Routes string // those that led to it, separated by commas; none for a gap, which no route selects
}

// RouteNames yields the names of the routes that led to the target.
func (t *Target) RouteNames() iter.Seq[string] {
	if t.Routes == "" {
		return func(func(string) bool) {}
	}
	return strings.SplitSeq(t.Routes, ",")
}

// LedBy reports whether a route led to the target.
func (t *Target) LedBy(route string) bool {
	for name := range t.RouteNames() {
		if name == route {
			return true
		}
	}
	return false
}

// RouteCount is how many routes led to the target.
func (t *Target) RouteCount() int {
	if t.Routes == "" {
		return 0
	}
	return 1 + strings.Count(t.Routes, ",")
}

// Markers of Event's boolean fields.
const (
	markFinalStateUnknown = 1 << iota
	markRepair
	markGap
	markTargets // a list of targets follows
	markPatchOmitted
	markChangedBy
	markState // with the sequence of the state before
	markRerecorded
	markEnrichment
	markCoalesced
	markFor
	markScope // a text follows
	markStatus
	markBlind
)

// Append appends the stored form of r to dst. The event's ID must be hexadecimal,
// as [event.ID] makes it.
func Append(dst []byte, r *Record) ([]byte, error) {
	e := &r.Event
	var marks uint16
	for _, m := range [...]struct {
		set  bool
		mark uint16
	}{
		{e.FinalStateUnknown, markFinalStateUnknown},
		{e.Repair, markRepair},
		{e.Gap != nil, markGap},
		{len(r.Targets) > 0, markTargets},
		{r.PatchOmitted, markPatchOmitted},
		{e.ChangedBy != nil, markChangedBy},
		{r.State, markState},
		{r.Rerecorded, markRerecorded},
		{r.Enrichment != nil, markEnrichment},
		{e.Coalesced > 0, markCoalesced},
		{e.For != nil, markFor},
		{r.Scope != "", markScope},
		{r.Status, markStatus},
		{r.Blind, markBlind},
	} {
		if m.set {
			marks |= m.mark
		}
	}
	dst = binary.BigEndian.AppendUint16(append(dst, version), marks)
	dst, err := hex.AppendDecode(append(dst, byte(hex.DecodedLen(len(e.ID)))), []byte(e.ID))
	if err != nil || hex.DecodedLen(len(e.ID)) > math.MaxUint8 {
		return nil, fmt.Errorf("event id %q is not short hexadecimal", e.ID)
	}
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.Time.UnixNano()))
	dst = binary.BigEndian.AppendUint64(dst, r.Edits)
	if r.State {
		dst = binary.BigEndian.AppendUint64(dst, r.Prev)
	}
	for _, s := range [...]string{
		string(e.Type), e.Resource.Group, e.Resource.Version, e.Resource.Resource, e.Resource.Kind,
		e.Namespace, e.Name, e.UID, e.ResourceVersion,
	} {
		dst = appendBytes(dst, s)
	}
	dst = appendBody(dst, r.Object)
	dst = appendBody(dst, r.OldObject)
	dst = appendBytes(dst, r.Patch)
	if c := e.ChangedBy; c != nil {
		for _, s := range [...]string{c.Manager, c.Operation, c.Subresource} {
			dst = appendBytes(dst, s)
		}
		dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time.Unix()))
	}
	if e.Coalesced > 0 {
		dst = binary.AppendUvarint(dst, uint64(e.Coalesced))
	}
	if e.For != nil {
		dst = binary.BigEndian.AppendUint64(dst, uint64(e.For.Since.UnixNano()))
	}
	if e.Gap != nil {
		gap, err := json.Marshal(e.Gap)
		if err != nil {
			return nil, fmt.Errorf("encode gap: %w", err)
		}
		dst = appendBytes(dst, gap)
	}
	if r.Enrichment != nil {
		enrichment, err := json.Marshal(r.Enrichment)
		if err != nil {
			return nil, fmt.Errorf("encode enrichment: %w", err)
		}
		dst = appendBytes(dst, enrichment)
	}
	if r.Scope != "" {
		dst = appendBytes(dst, r.Scope)
	}
	if len(r.Targets) > 0 {
		dst = appendTargets(dst, r.Targets)
	}
	return dst, nil
}

// Decode reads a stored record. Bodies and patch alias payload; all else is
// copied.
func Decode(payload []byte) (*Record, error) {
	if len(payload) < headerLen || payload[0] != version {
		return nil, fmt.Errorf("%w: unknown version", ErrMalformed)
	}
	marks, idLen := binary.BigEndian.Uint16(payload[1:]), int(payload[3])
	in := reader{buf: payload[headerLen:]}
	r := &Record{}
	e := &r.Event
	e.ID = hex.EncodeToString(in.take(idLen))
	e.Time = time.Unix(0, int64(in.uint64())).UTC()
	r.Edits = in.uint64()
	if r.State = marks&markState != 0; r.State {
		r.Prev = in.uint64()
	}
	r.Rerecorded, r.Status, r.Blind = marks&markRerecorded != 0, marks&markStatus != 0, marks&markBlind != 0
	e.Type = event.Type(in.text())
	for _, f := range [...]*string{
		&e.Resource.Group, &e.Resource.Version, &e.Resource.Resource, &e.Resource.Kind,
		&e.Namespace, &e.Name, &e.UID, &e.ResourceVersion,
	} {
		*f = in.text()
	}
	r.Object = in.body()
	r.OldObject = in.body()
	r.Patch = in.bytes()
	e.FinalStateUnknown = marks&markFinalStateUnknown != 0
	e.Repair = marks&markRepair != 0
	r.PatchOmitted = marks&markPatchOmitted != 0
	if marks&markChangedBy != 0 {
		e.ChangedBy = &event.ChangedBy{Manager: in.text(), Operation: in.text(), Subresource: in.text(), Time: time.Unix(int64(in.uint64()), 0).UTC()}
	}
	if marks&markCoalesced != 0 {
		e.Coalesced = int(in.uvarint())
	}
	if marks&markFor != 0 {
		e.For = &event.For{Since: time.Unix(0, int64(in.uint64())).UTC()}
	}
	if marks&markGap != 0 {
		e.Gap = &event.GapData{}
		if err := json.Unmarshal(in.bytes(), e.Gap); err != nil && !in.short {
			return nil, fmt.Errorf("%w: gap: %w", ErrMalformed, err)
		}
	}
	if marks&markEnrichment != 0 {
		r.Enrichment = &Enrichment{}
		if err := json.Unmarshal(in.bytes(), r.Enrichment); err != nil && !in.short {
			return nil, fmt.Errorf("%w: enrichment: %w", ErrMalformed, err)
		}
	}
	if marks&markScope != 0 {
		r.Scope = in.text()
	}
	if marks&markTargets != 0 {
		r.Targets = in.targets()
	}
	if in.short || len(in.buf) != 0 {
		return nil, fmt.Errorf("%w: wrong length", ErrMalformed)
	}
	return r, nil
}

// HasID reports whether a stored record is of the event with an ID.
func HasID(payload []byte, id string) bool {
	if len(payload) < headerLen || payload[0] != version {
		return false
	}
	in := reader{buf: payload[headerLen:]}
	raw := in.take(int(payload[3]))
	return len(raw) > 0 && hex.EncodeToString(raw) == id
}

func appendBytes[T string | []byte](dst []byte, b T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

func appendBody(dst []byte, b compact.Body) []byte {
	dst = binary.BigEndian.AppendUint32(dst, b.Dict)
	dst = binary.AppendUvarint(dst, uint64(b.RawLen))
	return appendBytes(dst, b.Data)
}

func appendTargets(dst []byte, targets []Target) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(targets)))
	for _, t := range targets {
		dst = appendBytes(dst, t.Sink)
		dst = binary.AppendUvarint(dst, uint64(t.Flags))
		dst = appendBytes(dst, t.Routes)
	}
	return dst
}

// reader takes fields off a payload; short is set once it ran out, and every
// later field is then empty.
type reader struct {
	buf   []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.buf) {
		r.short, r.buf = true, nil
		return nil
	}
	b := r.buf[:n:n]
	r.buf = r.buf[n:]
	return b
}

func (r *reader) uint64() uint64 {
	b := r.take(8)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.buf)
	if n <= 0 || v > math.MaxInt32 {
		r.short, r.buf = true, nil
		return 0
	}
	r.buf = r.buf[n:]
	return v
}

func (r *reader) bytes() []byte { return r.take(int(r.uvarint())) }
func (r *reader) text() string  { return string(r.bytes()) }

func (r *reader) body() compact.Body {
	var b compact.Body
	if dict := r.take(4); dict != nil {
		b.Dict = binary.BigEndian.Uint32(dict)
	}
	b.RawLen = int(r.uvarint())
	b.Data = r.bytes()
	return b
}

// targets makes room only for what the buffer can hold: the counts are not to be
// trusted.
func (r *reader) targets() []Target {
	n := int(r.uvarint())
	list := make([]Target, 0, min(n, len(r.buf)))
	for range n {
		t := Target{Sink: r.text(), Flags: Flags(r.uvarint()), Routes: r.text()}
		if r.short {
			return nil
		}
		list = append(list, t)
	}
	return list
}

// Headline returns the headline of the record. selection is what the event was to the
// watches that it concerned.
func (r *Record) Headline(sequence uint64, selection event.Selection) headline.Row {
	e := &r.Event
	row := headline.Row{Sequence: sequence, At: e.Time.UnixNano(), Type: e.Type, Resource: e.Resource, Namespace: e.Namespace, Name: e.Name}
	if e.ChangedBy != nil {
		row.Manager = e.ChangedBy.Manager
	}
	for _, f := range [...]struct {
		flag headline.Flags
		set  bool
	}{
		{headline.State, r.State},
		{headline.Rerecorded, r.Rerecorded},
		{headline.Unknown, e.FinalStateUnknown},
		{headline.Repair, e.Repair},
		{headline.Left, selection == event.Left},
		{headline.Entered, selection == event.Entered},
		{headline.Status, r.Status},
	} {
		if f.set {
			row.Flags |= f.flag
		}
	}
	return row
}

// Flags are what one sink's queue entry adds to a record. They are stored: a
// bit's meaning never changes.
type Flags uint32

// The payload bits choose which parts of the record the sink asked for.
const (
	Object    Flags = 1 << 0
	OldObject Flags = 1 << 1
	Patch     Flags = 1 << 2
	Summary   Flags = 1 << 6 // made from both states

	Owner          Flags = 1 << 8
	InvolvedObject Flags = 1 << 9
)

// Comparing are the parts that are made from the state before, too.
const Comparing = OldObject | Patch | Summary

// Part is the bit of a part by its name in a configuration; not ok if there is none.
func Part(name string) (part Flags, ok bool) {
	switch name {
	case "object":
		return Object, true
	case "oldObject":
		return OldObject, true
	case "patch":
		return Patch, true
	case "summary":
		return Summary, true
	default:
		return 0, false
	}
}

const (
	selectionShift       = 3
	selectionMask  Flags = 3 << selectionShift

	// Replay marks a delivery that an operator asked for again.
	Replay Flags = 1 << 5
)

var selections = [...]event.Selection{event.Inside, event.Entered, event.Left, event.Unknown}

// The upper bits have the number of a set of routes; see [RouteSets].
const (
	routeSetShift = 12
	// MaxRouteSet is the largest number of a set of routes.
	MaxRouteSet = 1<<(32-routeSetShift) - 1
)

// RouteSets are numbered sets of routes. An entry by which a sink is given a record that does not name
// the routes that led to it has the number of these instead.
type RouteSets interface {
	// Number returns the number of a set, as in [Target.Routes]; 0: there are none left.
	Number(routes string) (uint32, error)
	// Routes returns the set of a number; not ok if it is not known.
	Routes(number uint32) (routes string, ok bool)
}

// WithRouteSet returns f with the number of a set of routes.
func (f Flags) WithRouteSet(number uint32) Flags {
	return f&(1<<routeSetShift-1) | Flags(number)<<routeSetShift
}

// RouteSet returns the number of the set of routes that f carries; 0: those of the record.
func (f Flags) RouteSet() uint32 { return uint32(f >> routeSetShift) }

// WithSelection returns f with the selection s.
func (f Flags) WithSelection(s event.Selection) Flags {
	f &^= selectionMask
	for i, known := range selections {
		if s == known {
			f |= Flags(i) << selectionShift
		}
	}
	return f
}

// Selection returns the selection that f carries.
func (f Flags) Selection() event.Selection {
	return selections[(f&selectionMask)>>selectionShift]
}
