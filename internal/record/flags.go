package record

import "github.com/watcherd/watcherd/pkg/event"

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
