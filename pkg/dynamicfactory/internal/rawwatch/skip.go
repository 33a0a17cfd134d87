package rawwatch

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/progress"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// maxSkipped bounds how many skipped objects are remembered, to report each once.
const maxSkipped = 1024

// objectID is what is needed of an object to do without the rest of it.
type objectID struct {
	namespace, name string
	uid, version    string // "" if they cannot be read
}

// identify reads an object's id from JSON of which no object can be made, if that is
// the JSON's fault.
func (c *Client) identify(raw []byte, cause error) (id objectID, ok bool) {
	if errors.Is(cause, ErrMaker) {
		return objectID{}, false
	}
	text := func(p rawjson.Path) (s string) {
		if v, ok := rawjson.Lookup(raw, p); !ok || json.Unmarshal(v, &s) != nil {
			return ""
		}
		return s
	}
	id = objectID{text(c.namespacePath), text(c.namePath), text(c.uidPath), text(c.versionPath)}
	return id, id.name != ""
}

// skip does without an object that cannot be made. It counts it, and reports each of
// its versions once. It returns the object that is known under the name, nil if none is.
func (s *Source) skip(ctx context.Context, id objectID, cause error) (known runtime.Object) {
	s.stats.contact(func(t *Counters) { t.DecodeErrors++; t.Skipped++ })
	ask := s.known
	if ask == nil {
		ask = s.cfg.Known
	}
	if ask != nil {
		known = ask(id.namespace, id.name)
	}
	key := [2]string{id.namespace, id.name}
	if version, told := s.skipped[key]; told && version == id.version {
		return known
	}
	if s.skipped == nil || len(s.skipped) >= maxSkipped {
		s.skipped = map[[2]string]string{}
	}
	s.skipped[key] = id.version
	klog.FromContext(ctx).Error(cause, "Informer cannot read an object, and goes on without it", "resource", s.cfg.GVR.String(),
		"namespace", id.namespace, "name", id.name, "resourceVersion", id.version)
	if s.cfg.OnGap != nil {
		now := time.Now()
		gap := Gap{Cause: CauseUnreadable, Namespace: id.namespace, Name: id.name, To: id.version, FromTime: now, ToTime: now}
		if o, ok := known.(metav1.Object); ok {
			gap.From = o.GetResourceVersion()
		}
		s.cfg.OnGap(gap)
	}
	return known
}

// at returns an object at a position.
func (s *Source) at(o runtime.Object, position uint64) runtime.Object {
	if s.cfg.At == nil {
		return o
	}
	return s.cfg.At(o, position)
}

// unmade deals with an item of a list that no object can be made of: the object that
// is known keeps its place.
func (b *listBuilder) unmade(raw []byte, position uint64, cause error) error {
	s := b.source
	id, ok := s.cfg.Client.identify(raw, cause)
	if !ok {
		return cause
	}
	if known := s.skip(b.ctx, id, cause); known != nil {
		b.list.Items = append(b.list.Items, s.at(known, position))
	} else if n := len(b.list.Items); n > 0 && position > 0 {
		b.list.Items[n-1] = s.at(b.list.Items[n-1], position)
	}
	return nil
}

// unmade deals with an event that no object can be made of. It is read again as often
// as others, and then skipped; of a deletion the object that is known is handed on.
func (w *stream) unmade(ctx context.Context, typ watch.EventType, raw []byte, cause error) error {
	s := w.source
	if w.unreadable < unreadableAttempts-1 || w.unreadAt != s.progress.Resume() {
		return cause
	}
	id, ok := s.cfg.Client.identify(raw, cause)
	if !ok {
		return cause
	}
	known := s.skip(ctx, id, cause)
	version := progress.ParseVersion(id.version)
	event := s.progress.EventID(string(typ), []byte(id.uid), []byte(id.namespace), []byte(id.name))
	if typ == watch.Deleted && known != nil {
		position := s.progress.Next()
		return w.handOn(watch.Event{Type: typ, Object: s.at(known, position)}, position, version, event)
	}
	if !version.None() {
		s.progress.Skip(version, event)
	}
	return nil
}
