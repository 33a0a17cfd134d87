package delivery

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// prepare makes an entry ready to be written: read again if necessary, decoded, and
// within the sink's limit. Not ok: it became a dead letter or left the queue, and is
// released. The caller removes it from its fifo.
func (e *engine) prepare(en *entry) (ok bool, err error) {
	if en.event != nil && en.decoded != e.decoding() {
		e.setAside(en)
	}
	if en.away {
		found, err := e.fetch(en)
		if err != nil {
			return false, err
		}
		if !found {
			e.log.Warn("an event left the queue before it was delivered", "position", en.item.Position)
			e.forget(en)
			return false, nil
		}
	}
	if en.event == nil {
		if err := e.decode(en); err != nil {
			reason := letterUndecodable
			if errors.Is(err, errLeftOut) {
				e.leaveOut(en)
				return false, nil
			}
			if _, ok := errors.AsType[*bodyError](err); ok {
				reason = letterBody
			}
			return false, e.deadLetter(en, reason, err)
		}
	}
	if limit := smallest(e.limits.MaxEventBytes, en.limit); limit > 0 {
		if err := e.fit(en, limit); err != nil {
			return false, e.deadLetter(en, letterOversize, err)
		}
	}
	return true, nil
}

// smallest returns the smaller of two limits; 0 is no limit.
func smallest(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// fetch reads the item of an entry again, and those of later entries that are wanted
// soon. The size of the read follows the share that the last one could use.
func (e *engine) fetch(en *entry) (found bool, err error) {
	items, err := e.cfg.Queue.Read(en.item.Position-1, e.span, readBytes)
	if err != nil {
		return false, fmt.Errorf("read event again: %w", err)
	}
	used := make([]*entry, 0, len(items))
	for i := range items {
		other := e.away[items[i].Position]
		switch {
		case other == nil:
		case other == en:
			found = true
			e.refill(other, items[i])
			used = append(used, other)
		case e.wanted(other):
			e.refill(other, items[i])
			used = append(used, other)
		}
	}
	if 2*len(used) >= len(items) {
		e.span = min(2*e.span, readItems)
		return found, nil
	}
	e.span = max(e.span/2, 1)
	for _, en := range used {
		en.item.Payload = bytes.Clone(en.item.Payload) // the items share an allocation
	}
	return found, nil
}

// wanted reports whether an entry without payload is due soon, and there is room for it.
func (e *engine) wanted(en *entry) bool {
	if e.fetched >= fetchItems || e.fetchedBytes >= readAheadBytes {
		return false
	}
	o := e.laneOf(en).detached.get(en.item.Lane)
	return o != nil && (o.free() || o.queue.len() > 0 && o.queue.at(0) == en && !o.due.After(time.Now()))
}

func (e *engine) refill(en *entry, item store.Item) {
	delete(e.away, item.Position)
	en.item, en.away, en.fetched = item, false, true
	en.payload = len(item.Payload)
	e.fetched++
	e.fetchedBytes += en.payload
}

func (e *engine) unfetch(en *entry) {
	if en.fetched {
		en.fetched = false
		e.fetched--
		e.fetchedBytes -= en.payload
	}
}

func (e *engine) decode(en *entry) (err error) {
	decoding := e.decoding() // first, so that a later change is noticed
	ev, err := e.eventOf(en.item)
	if err != nil {
		return err
	}
	en.event, en.size, en.decoded = ev, estimate(ev), decoding
	en.item.Payload = nil
	return nil
}

func (e *engine) decoding() uint64 {
	if e.cfg.Decoding == nil {
		return 0
	}
	return e.cfg.Decoding()
}

// errLeftOut means that Config.Render leaves an event out.
var errLeftOut = errors.New("the body leaves the event out")

// leaveOut lets an event leave the queue that is not to be sent.
func (e *engine) leaveOut(en *entry) {
	e.acks = append(e.acks, en.item.Position)
	e.metrics.leftOut.Inc()
	e.forget(en)
}

// bodyError is the failure of Config.Render.
type bodyError struct{ error }

func (e *bodyError) Unwrap() error { return e.error }

func (e *engine) eventOf(item store.Item) (ev *event.Event, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: v, stack: debug.Stack(), hash: stackHash()}
		}
	}()
	ev, err = e.cfg.Decode(item)
	if err == nil && ev == nil {
		err = errors.New("no event in the record")
	}
	if err == nil {
		err = e.render(ev)
	}
	return ev, err
}

// render sets the event's body. The error is a bodyError, or errLeftOut.
func (e *engine) render(ev *event.Event) (err error) {
	if e.cfg.Render == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = &bodyError{&panicError{value: v, stack: debug.Stack(), hash: stackHash()}}
		}
	}()
	send, err := e.cfg.Render(ev)
	switch {
	case err != nil:
		return &bodyError{err}
	case !send:
		return errLeftOut
	}
	return nil
}

// fit applies the oversize policy. It may replace en.event with a smaller copy; an error
// means that none fits.
func (e *engine) fit(en *entry, limit int) error {
	if en.size <= limit {
		return nil
	}
	// The estimate is an upper bound.
	size := e.measure(en.event)
	if size > limit && e.cfg.Oversize == OversizeTruncate {
		var left int
		smaller, ok := truncate(en.event, func(ev *event.Event) bool { left = e.remeasure(ev); return left <= limit })
		if ok {
			en.event, en.size = smaller, left
			e.metrics.truncated.Inc()
			return nil
		}
	}
	if size > limit {
		return fmt.Errorf("the event has %d bytes, the sink takes %d", size, limit)
	}
	en.size = size
	return nil
}

func (e *engine) measure(ev *event.Event) int {
	if ev.Body != nil {
		return len(ev.Body)
	}
	e.scratch = e.cfg.Format.Append(e.scratch[:0], ev)
	return len(e.scratch)
}

// remeasure is measure of an event that was cut, and whose body is another one then. One
// that has no body does not fit.
func (e *engine) remeasure(ev *event.Event) int {
	if e.render(ev) != nil {
		return math.MaxInt
	}
	return e.measure(ev)
}

// frame exceeds the size of the member names and fixed-length values of an encoded event
// in any format.
const frame = 896

// estimate returns an upper bound of the event's encoded size, at most a few hundred
// bytes above it. It relies on the API server's names being plain ASCII.
func estimate(ev *event.Event) int {
	if ev.Body != nil {
		return len(ev.Body)
	}
	n := frame + len(ev.Object) + len(ev.OldObject) + len(ev.Patch)
	n += len(ev.Feed) + len(ev.ClusterUID) + len(`/feeds/,"clusteruid":""`)
	n += len(ev.ID) + len(ev.Cluster) + len(ev.ResourceVersion) + len(ev.Resource.Kind) + 2*len(ev.UID)
	// In the data, and in the subject.
	n += 2 * (len(ev.Resource.Group) + len(ev.Resource.Version) + len(ev.Resource.Resource) + len(ev.Namespace) + len(ev.Name))
	n += 2 * len(ev.Summary) // quotes in it are escaped
	if c := ev.ChangedBy; c != nil {
		const escaped = 6 // bytes at most for one of a name that a client chose
		n += 128 + escaped*len(c.Manager)
	}
	n += ev.EnrichmentSize()
	if g := ev.Gap; g != nil {
		n += len(g.Watch) + len(g.FromResourceVersion) + len(g.ToResourceVersion) + len(g.Cause)
	}
	return n
}

// shrink limits an event to half its size for the next attempt, if the policy truncates
// events. It reports whether the event can become that small.
func (e *engine) shrink(en *entry) bool {
	if e.cfg.Oversize != OversizeTruncate {
		return false
	}
	limit := e.measure(en.event) / 2
	if _, ok := truncate(en.event, func(ev *event.Event) bool { return e.remeasure(ev) <= limit }); !ok {
		return false
	}
	en.limit = limit
	return true
}

// truncate reduces a copy of the event step by step until it fits. It first removes
// parts that are available elsewhere.
func truncate(ev *event.Event, fits func(*event.Event) bool) (smaller *event.Event, ok bool) {
	c := *ev // an event may be shared
	c.Truncated = true
	for _, cut := range [...]func(){
		func() { c.OldObject = nil },
		func() { c.Patch = nil },
		func() { c.Object = bare(c.Object) },
		func() { c.Object = nil },
		func() { c.Summary = "" },
		func() { c.Owner, c.InvolvedObject = nil, nil },
	} {
		if cut(); fits(&c) {
			return &c, true
		}
	}
	return nil, false
}

func bare(object json.RawMessage) json.RawMessage {
	var kept struct {
		APIVersion json.RawMessage `json:"apiVersion,omitempty"`
		Kind       json.RawMessage `json:"kind,omitempty"`
		Metadata   json.RawMessage `json:"metadata,omitempty"`
	}
	if json.Unmarshal(object, &kept) != nil {
		return nil
	}
	out, err := json.Marshal(kept)
	if err != nil {
		return nil
	}
	return out
}
