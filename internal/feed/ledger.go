package feed

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/watcherd/watcherd/internal/jsonpatch"
	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// before returns the recorded state that c follows on. For an update that is the
// state the informer had: it came through here earlier, so it is what the ledger
// holds, and no read is needed. Of history that an earlier life may have recorded, the
// ledger is ahead of the informer.
func (g *group) before(c *change) (*compact.Object, error) {
	if c.old != nil && (c.src.floor == "" || c.src.pastFloor(c.obj)) {
		return c.old, nil
	}
	return g.recorded(c.src, c.obj)
}

// pastFloor reports whether o is newer than all that was recorded when the source
// started, and so is everything after it.
func (s *source) pastFloor(o *compact.Object) bool {
	if order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), s.floor); err == nil && order <= 0 {
		return false
	}
	s.floor = ""
	return true
}

// recorded returns the ledger's state of the object with o's name, as this group
// will leave it; nil if there is none. The error is outbox.ErrUnreadable if the entry is
// damaged, any other is an ErrStore.
func (g *group) recorded(src *source, o *compact.Object) (*compact.Object, error) {
	id := stateID{src.partition, stateKey(o.GetNamespace(), o.GetName())}
	if known, ok := g.overlay[id]; ok {
		return known, nil
	}
	return g.m.loadState(id.partition, id.key)
}

// loadState returns a committed entry of the ledger, nil if there is none. Its errors are
// those of recorded.
func (m *Manager) loadState(partition, key string) (*compact.Object, error) {
	value, ok, err := m.store.State(partition, key, nil)
	switch {
	case errors.Is(err, outbox.ErrUnreadable):
		return nil, fmt.Errorf("state of %s in %s: %w", key, partition, err)
	case err != nil:
		return nil, fmt.Errorf("%w: read state of %s in %s: %w", ErrStore, key, partition, err)
	case !ok:
		return nil, nil
	}
	return m.decodeState(partition, key, value)
}

// decodeState decodes a ledger entry. What cannot be decoded is damaged as well.
func (m *Manager) decodeState(partition, key string, value []byte) (*compact.Object, error) {
	o, err := m.codec.Decode(value)
	if err != nil {
		return nil, fmt.Errorf("%w: state of %s in %s: %w", outbox.ErrUnreadable, key, partition, err)
	}
	return o, nil
}

// hashOf stands for an object's place in the ledger.
func (g *group) hashOf(o *compact.Object) uint64 {
	g.buf = append(append(append(g.buf[:0], o.GetNamespace()...), '/'), o.GetName()...)
	return xxhash.Sum64(g.buf)
}

// record makes o the ledger's state of its object.
func (g *group) record(src *source, o *compact.Object) error {
	fresh, err := g.refresh(src.resource, o)
	if err != nil {
		return fmt.Errorf("record %s/%s in %s: %w", o.GetNamespace(), o.GetName(), src.partition, err)
	}
	id := stateID{src.partition, stateKey(o.GetNamespace(), o.GetName())}
	g.overlay[id] = o
	g.buf = fresh.AppendBinary(g.buf[:0])
	g.batch.PutState(id.partition, id.key, g.buf)
	return nil
}

// refresh returns what is to be written for o, which may have been encoded before its
// dictionary was retired.
func (g *group) refresh(about event.Resource, o *compact.Object) (*compact.Object, error) {
	if !g.m.dicts.Retired(o.Body().Dict) {
		return o, nil
	}
	gr := schema.GroupResource{Group: about.Group, Resource: about.Resource}
	codec := g.m.refreshers[gr]
	if codec == nil {
		codec = compact.NewCodecFor(g.m.dicts, gr.String())
		g.m.refreshers[gr] = codec
	}
	return codec.Refresh(o)
}

// forget removes the object with o's name from the ledger.
func (g *group) forget(src *source, o *compact.Object) {
	id := stateID{src.partition, stateKey(o.GetNamespace(), o.GetName())}
	g.overlay[id] = nil
	g.batch.DeleteState(id.partition, id.key)
}

// scan calls fn for every committed ledger entry in the source's scope, in the order
// of keys. What is damaged is left out; the error then is outbox.ErrUnreadable.
func (m *Manager) scan(s *source, fn func(*compact.Object) error) error {
	return m.scanAfter(s, s.statePrefix(), "", func(_ string, o *compact.Object) error { return fn(o) })
}

// statePrefix begins the keys of the ledger entries in the source's scope.
func (s *source) statePrefix() string {
	if s.key.Namespace == "" {
		return ""
	}
	return stateKey(s.key.Namespace, "")
}

// recordsNothing reports whether the source's scope has no committed ledger entry.
func (m *Manager) recordsNothing(s *source) (bool, error) {
	errFound := errors.New("found one")
	err := m.store.ScanState(s.partition, s.statePrefix(), func(string, []byte) error { return errFound })
	if errors.Is(err, errFound) || errors.Is(err, outbox.ErrUnreadable) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: scan %s: %w", ErrStore, s.partition, err)
	}
	return true, nil
}

// errEnough ends a scan that is gone on with later.
var errEnough = errors.New("enough for now")

// scanAfter calls fn for the entries behind a key that begin with prefix. The error may be both errEnough and
// outbox.ErrUnreadable.
func (m *Manager) scanAfter(s *source, prefix, after string, fn func(key string, o *compact.Object) error) error {
	var damage error
	err := m.store.ScanStateAfter(s.partition, prefix, after, func(key string, value []byte) error {
		o, err := m.decodeState(s.partition, key, value)
		if err != nil {
			damage = err
			return nil //nolint:nilerr // the scan goes on, and ends with it
		}
		return fn(key, o)
	})
	if err == nil || errors.Is(err, errEnough) || errors.Is(err, outbox.ErrUnreadable) {
		return errors.Join(err, damage)
	}
	return fmt.Errorf("%w: scan %s: %w", ErrStore, s.partition, err)
}

// append adds the event to the log and to the queues of g.targets. The record
// holds the parts that at least one of them asks for, which edits made what they are.
func (g *group) append(e *event.Event, edits uint64, obj, old *compact.Object) error {
	var want route.Payload
	if len(g.targets) == 0 {
		want = route.PayloadObject // for those who read the log itself
	}
	g.routes = g.routes[:0]
	g.stored = g.stored[:0]
	for _, t := range g.targets {
		want |= t.Payload
		flags := flagsOf(t)
		g.routes = append(g.routes, outbox.Route{Sink: t.Sink, Flags: uint32(flags)})
		g.stored = append(g.stored, record.Target{Sink: t.Sink, Flags: flags, Routes: t.Routes})
	}
	r := record.Record{Event: *e, Edits: edits, Targets: g.stored}
	if want&route.PayloadObject != 0 {
		fresh, err := g.refresh(e.Resource, obj)
		if err != nil {
			return err
		}
		r.Object = fresh.Body()
	}
	if e.Type == event.Updated && want&route.PayloadOldObject != 0 {
		fresh, err := g.refresh(e.Resource, old)
		if err != nil {
			return err
		}
		r.OldObject = fresh.Body()
	}
	if e.Type == event.Updated && want&route.PayloadPatch != 0 {
		patch, err := patchOf(old, obj)
		if err != nil {
			return err
		}
		r.Patch = patch
	}
	sequence, err := g.appendRecord(&r)
	if err == nil && e.Type == event.Updated {
		g.m.recent.put(sequence, old)
	}
	return err
}

// appendRecord adds r to the log and to the queues of g.routes.
func (g *group) appendRecord(r *record.Record) (sequence uint64, err error) {
	lane := g.laneOf(&r.Event)
	payload, err := record.Append(g.buf[:0], r)
	if err != nil {
		return 0, err
	}
	g.buf = payload
	g.events[r.Event.Type]++
	return g.batch.Append(outbox.Record{Time: r.Event.Time, Lane: lane, Payload: payload}, g.routes), nil
}

func patchOf(old, obj *compact.Object) ([]byte, error) {
	before, err := old.AppendJSON(nil)
	if err != nil {
		return nil, err
	}
	after, err := obj.AppendJSON(nil)
	if err != nil {
		return nil, err
	}
	return jsonpatch.Diff(before, after)
}

func flagsOf(t route.Target) record.Flags {
	var f record.Flags
	if t.Payload&route.PayloadObject != 0 {
		f |= record.Object
	}
	if t.Payload&route.PayloadOldObject != 0 {
		f |= record.OldObject
	}
	if t.Payload&route.PayloadPatch != 0 {
		f |= record.Patch
	}
	return f.WithSelection(t.Selection)
}

// laneOf spreads objects over a sink's lanes by what is in order. It is stored with
// the event, so the function must never change: the events of one partition key share
// one lane.
func (g *group) laneOf(e *event.Event) uint64 {
	g.buf = e.AppendPartitionKey(g.buf[:0])
	return xxhash.Sum64(g.buf)
}

// idOf is an object's part in the IDs of its events: its uid, or its place where an
// aggregated API has none.
func idOf(o *compact.Object) string {
	if uid := o.GetUID(); uid != "" {
		return string(uid)
	}
	return stateKey(o.GetNamespace(), o.GetName())
}

// checkpoint is how far a source has come.
type checkpoint struct {
	ResourceVersion string              `json:"resourceVersion"`
	Synced          bool                `json:"synced"`
	Epoch           int                 `json:"epoch,omitempty"`
	Recorded        string              `json:"recorded,omitempty"` // the newest version that is committed in part, if it is later
	Form            string              `json:"form"`               // of all recorded states; "" if they may differ
	Sweeping        bool                `json:"sweeping,omitempty"` // deletions that the first list showed are not all committed
	Listing         *listing            `json:"listing,omitempty"`  // a list that is committed in part
	Gap             *dynamicfactory.Gap `json:"gap,omitempty"`      // is reported if the rest of the list has a difference
	Forgot          bool                `json:"forgot,omitempty"`   // what was recorded before the list cannot be read, which is not reported yet
	Time            time.Time           `json:"time"`

	// Ahead are namespaces that were watched by themselves, and the versions up to which
	// everything in them is recorded; "" stands for all.
	Ahead map[string]string `json:"ahead,omitempty"`
}

// resumable reports whether the ledger and a watch from the version are everything.
func (c checkpoint) resumable() bool {
	return c.Synced && !c.Sweeping && c.Listing == nil && c.ResourceVersion != ""
}

// same reports whether both say the same, whenever they did.
func (c checkpoint) same(other checkpoint) bool {
	if (c.Listing == nil) != (other.Listing == nil) || c.Listing != nil && *c.Listing != *other.Listing {
		return false
	}
	return c.ResourceVersion == other.ResourceVersion && c.Recorded == other.Recorded && c.Synced == other.Synced && c.Sweeping == other.Sweeping && c.Epoch == other.Epoch && c.Form == other.Form && c.Gap == other.Gap && c.Forgot == other.Forgot && len(c.Ahead) == len(other.Ahead)
}

// listVersion is the version whose list shows everything that is recorded, and of
// which everything is recorded after it: a list, in contrast to a watch, does not send
// again what has been recorded of a version that may not be complete.
func (c checkpoint) listVersion() string {
	switch {
	case c.Listing != nil:
		return c.Listing.ResourceVersion
	case c.Ahead != nil:
		return c.ResourceVersion
	default:
		return c.recordedUpTo()
	}
}

// recordedUpTo is the newest version of which anything is recorded.
func (c checkpoint) recordedUpTo() string {
	newest := later(c.ResourceVersion, c.Recorded)
	if c.Listing != nil {
		newest = later(newest, c.Listing.ResourceVersion)
	}
	return newest
}

// later returns b if it is certainly later than a, or a is none.
func later(a, b string) string {
	if a == "" || newer(b, a) {
		return b
	}
	return a
}

func checkpointMeta(sourceID string) string { return "checkpoint/" + sourceID }

func encodeCheckpoint(c checkpoint) []byte {
	b, err := json.Marshal(c)
	if err != nil { // strings, a bool and a time always marshal
		panic(fmt.Sprintf("feed: marshal checkpoint: %v", err))
	}
	return b
}

// loadCheckpoint returns a source's checkpoint; ok is false if there is none. A damaged
// one is outbox.ErrUnreadable.
func (m *Manager) loadCheckpoint(sourceID string) (c checkpoint, ok bool, err error) {
	b, ok, err := m.store.Meta(checkpointMeta(sourceID))
	switch {
	case errors.Is(err, outbox.ErrUnreadable):
		return c, false, fmt.Errorf("checkpoint of %s: %w", sourceID, err)
	case err != nil:
		return c, false, fmt.Errorf("%w: checkpoint of %s: %w", ErrStore, sourceID, err)
	case !ok:
		return c, false, nil
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return checkpoint{}, false, fmt.Errorf("%w: checkpoint of %s: %w", outbox.ErrUnreadable, sourceID, err)
	}
	return c, true, nil
}
