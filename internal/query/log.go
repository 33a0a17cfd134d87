package query

import (
	"fmt"
	"strings"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/summary"
)

// LogEvent returns the event of a record of the log, with all that was recorded of
// it and of the state before; nil if it is no event, or keep refuses it, which is given the
// event without its objects and the routes that took it when it was recorded.
func (r *Reader) LogEvent(item store.Item, keep func(e *event.Event, routes []string) bool) (*event.Event, error) {
	rec, err := record.Decode(item.Payload)
	if err != nil {
		return nil, fmt.Errorf("event %d: %w", item.Sequence, err)
	}
	flags := record.Object | record.OldObject | record.Patch | record.Owner | record.InvolvedObject
	var routes []string
	for i, t := range rec.Targets {
		if i == 0 {
			flags = flags.WithSelection(t.Flags.Selection())
		}
		if t.Routes != "" {
			routes = append(routes, strings.Split(t.Routes, ",")...)
		}
	}
	rec.Event.Sequence = item.Sequence
	if rec.Rerecorded || !keep(&rec.Event, routes) {
		return nil, nil //nolint:nilnil // left out, which is no error
	}
	e, err := r.inflater.Event(item.Sequence, flags, item.Payload, "")
	if err != nil {
		return nil, err
	}
	if e.Type == event.Updated && e.OldObject == nil && rec.Prev != 0 {
		if e.OldObject, err = r.stateOf(rec.Prev); err != nil {
			return nil, fmt.Errorf("event %d: old object: %w", item.Sequence, err)
		}
	}
	e.Summary = summary.Of(e)
	return e, nil
}

// stateOf returns the object of a record of the log, nil if it is not there any more or
// cannot be read.
func (r *Reader) stateOf(sequence uint64) ([]byte, error) {
	item, ok, err := r.store.ReadRecord(sequence)
	if err != nil || !ok {
		return nil, ledger.IgnoreUnreadable(err)
	}
	rec, err := record.Decode(item.Payload)
	if err != nil {
		return nil, err
	}
	return r.inflater.State(rec, rec.Object, "")
}

// LetterEvent returns the event of a sink's dead letter, as the sink would get it now.
func (r *Reader) LetterEvent(sink string, item store.Item) (*event.Event, error) {
	return Decode(r.inflater, sink, item)
}

// LetterReason is the reason of a dead letter, without its text if that may quote what
// is hidden by now.
func (r *Reader) LetterReason(l *store.DeadLetter) string {
	rec, err := record.Decode(l.Payload)
	if err == nil && r.cfg.Edits().Concerns(rec) {
		return store.ReasonClass(l.Reason)
	}
	return l.Reason
}

// Decode makes the event that a sink's item stands for.
func Decode(in *record.Inflater, sink string, it store.Item) (*event.Event, error) {
	e, err := in.Event(it.Sequence, record.Flags(it.Flags), it.Payload, sink)
	if err == nil {
		e.Position = it.Position
	}
	return e, err
}
