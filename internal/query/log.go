package query

import (
	"fmt"
	"strings"

	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// LogEvent returns the event of a record of the log, with all that was recorded of
// it; nil if keep refuses it, which is given the event without its objects and the
// routes that took it when it was recorded. Of a recent update the state before is
// there too if the stream was followed by then.
func (r *Reader) LogEvent(item store.Item, keep func(e *event.Event, routes []string) bool) (*event.Event, error) {
	rec, err := record.Decode(item.Payload)
	if err != nil {
		return nil, fmt.Errorf("event %d: %w", item.Sequence, err)
	}
	flags := record.Object | record.OldObject | record.Patch
	var routes []string
	for i, t := range rec.Targets {
		if i == 0 {
			flags = flags.WithSelection(t.Flags.Selection())
		}
		if t.Routes != "" {
			routes = append(routes, strings.Split(t.Routes, ",")...)
		}
	}
	if !keep(&rec.Event, routes) {
		return nil, nil //nolint:nilnil // refused, which is no error
	}
	e, err := r.inflater.Event(item.Sequence, flags, item.Payload, "")
	if err != nil {
		return nil, err
	}
	if e.Type == event.Updated && e.OldObject == nil {
		if old := r.committer.Former(item.Sequence); old != nil {
			if e.OldObject, err = r.formerState(rec, old); err != nil {
				return nil, fmt.Errorf("event %d: old object: %w", item.Sequence, err)
			}
		}
	}
	return e, nil
}

// formerState is the JSON of the state before an update, which was edited as the
// update's record was.
func (r *Reader) formerState(rec *record.Record, old *compact.Object) ([]byte, error) {
	raw, err := old.AppendJSON(nil)
	if edit := r.cfg.Edits().Edit(rec, ""); edit != nil && err == nil {
		return edit.Object(nil, raw)
	}
	return raw, err
}

// LetterEvent returns the event of a sink's dead letter, as the sink would get it now.
func (r *Reader) LetterEvent(sink string, item store.Item) (*event.Event, error) {
	return Decode(r.inflater, sink, item)
}

// Follow has [Reader.LogEvent] know more of the updates to come, until release is
// called.
func (r *Reader) Follow() (release func()) { return r.committer.Follow() }

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
