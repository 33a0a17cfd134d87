package query

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
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
		routes = slices.AppendSeq(routes, t.RouteNames())
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
	e.Summary, err = history.Summarize(e, ledger.New(r.store, r.inflater.Dictionaries), rec.Prev, item.Sequence)
	return e, err
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

// Export writes everything that can be read from the store in dir to w, as
// [inspect.Export] does, without what the configuration that was accepted last hides,
// and without the key of the hashes.
func Export(dir string, w io.Writer) error {
	return inspect.Export(dir, w, &veil{meta: map[string][]byte{}})
}

// veil shows what an export may show.
type veil struct {
	meta  map[string][]byte // what Show needs, as learnt
	dicts *compact.Dictionaries
	added []inspect.Shown // dictionaries that were made for what was rewritten
	v     *redact.Reviser
	err   error // the reason that nothing recorded can be shown
}

func (v *veil) Learn(key string, value []byte) {
	if key == ledger.AcceptedMeta || key == ledger.ScrubMeta || key == ledger.RedactKeyMeta || strings.HasPrefix(key, ledger.DictionaryMeta) {
		v.meta[key] = slices.Clone(value)
	}
}

// prepare makes the dictionaries, the edits and the inflater that recorded payloads need.
func (v *veil) prepare() error {
	v.dicts = compact.NewDictionaries(func(id uint32, content []byte) error {
		v.added = append(v.added, inspect.Shown{Key: ledger.DictionaryKey(id), Payload: slices.Clone(content)})
		return nil
	})
	for key, content := range v.meta {
		if text, ok := strings.CutPrefix(key, ledger.DictionaryMeta); ok {
			id, err := strconv.ParseUint(text, 10, 32)
			if err == nil {
				err = v.dicts.Load(uint32(id), content)
			}
			_ = err // what needs it is withheld
		}
	}
	stored, ok := v.meta[ledger.AcceptedMeta]
	if !ok {
		return errors.New("the accepted edits cannot be read")
	}
	accepted, err := redact.Parse(stored)
	if err != nil {
		return err
	}
	key := v.meta[ledger.RedactKeyMeta]
	if len(key) == 0 { // the hashes then differ from those that were recorded
		key = make([]byte, ledger.RedactKeyLen)
		if _, err := rand.Read(key); err != nil {
			return err
		}
	}
	table, err := redact.Compile(accepted, nil, key)
	if err != nil {
		return err
	}
	var state ledger.Scrub
	if stored, ok := v.meta[ledger.ScrubMeta]; ok {
		if err := json.Unmarshal(stored, &state); err != nil {
			return err
		}
	}
	if state.Pending() || state.Failed > 0 {
		v.dicts.Retire(func(resource string, id uint32) bool {
			resource, _, _ = strings.Cut(resource, " ")
			return slices.Contains(state.Retired, id) || !state.Dictionaries && state.Concerns(resource)
		})
	}
	v.v = redact.NewReviser(table, v.dicts)
	return nil
}

// errWithheld is for what is not shown at all.
var errWithheld = errors.New("withheld")

func (v *veil) Show(it inspect.Shown) (payload []byte, before []inspect.Shown, ok bool) {
	if v.dicts == nil {
		v.err = v.prepare()
	}
	payload, err := v.show(it)
	before, v.added = v.added, nil
	return payload, before, err == nil
}

func (v *veil) show(it inspect.Shown) ([]byte, error) {
	if it.Kind == inspect.ShownMeta {
		return v.metadata(it.Key, it.Payload)
	}
	if v.err != nil || len(it.Payload) == 0 {
		return it.Payload, v.err
	}
	if it.Kind == inspect.ShownState {
		gr, _ := ledger.SplitPartition(it.Partition)
		shown, _, err := v.v.State(gr, it.Payload)
		return shown, err
	}
	shown, _, err := v.v.Record(it.Payload)
	return shown, err
}

// metadata returns an error for a withheld value.
func (v *veil) metadata(key string, value []byte) ([]byte, error) {
	if key == ledger.RedactKeyMeta {
		return nil, errWithheld
	}
	if text, ok := strings.CutPrefix(key, ledger.DictionaryMeta); ok {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil || v.err != nil || v.dicts.Retired(uint32(id)) {
			return nil, errWithheld
		}
	}
	name, all, err := commit.LabelsIn(key, value)
	for _, set := range all {
		if err == nil {
			err = v.namespace(name, set)
		}
	}
	if err != nil {
		return nil, err
	}
	return timer.ReviseValue(key, value, func(record []byte) ([]byte, error) {
		if v.err != nil {
			return nil, v.err
		}
		revised, _, err := v.v.Record(record)
		return revised, err
	})
}

// namespace returns an error if the edits of namespaces hide labels of one by which watches select.
func (v *veil) namespace(name string, set labels.Set) error {
	if v.err != nil {
		return v.err
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": name, "labels": set}})
	if err != nil {
		return err
	}
	edited, err := v.v.Object(schema.GroupResource{Resource: "namespaces"}, "", raw)
	if err == nil && !bytes.Equal(edited, raw) {
		err = errWithheld
	}
	return err
}
